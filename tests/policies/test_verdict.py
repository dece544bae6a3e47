"""Verdicts on runs that their sender policy limits: the cause, its flows, and the saving without it."""

from __future__ import annotations

from typing import Any

import clusim
from clusim.results.causes import CauseKind
from support import sender_policies

POLICY = f"sender={sender_policies.PLACE}:Slow"
REMEDY = "--policy sender=none"


def _savings(run: Any) -> tuple[Any, int]:
    """Return the first cause of a run with the policy, and the time that the run without policy is shorter [ps]."""
    result = run(POLICY)
    return result.diagnose().causes[0], result.time_ps - run("sender=none").time_ps


def test_traffic_that_a_policy_holds_names_it_and_saves_as_much_as_without_it() -> None:
    """Each of 16 flows has two NICs, at 1/64 of their rate: with headers 1.6% of the wire."""

    def run(policy: str) -> Any:
        options: dict[str, Any] = {"nodes": 2, "span": 8, "routing": "spray", "policy": policy}
        return clusim.traffic("hgx-h20", "stride", "256KiB", **options)

    cause, saving_ps = _savings(run)
    assert (cause.kind, cause.remedy) == (CauseKind.RATE, REMEDY)
    assert cause.saving_ps == saving_ps > 0
    assert (
        cause.words()
        == f"rate control by {sender_policies.PLACE}:Slow, all 16 flows at 2% of the wire"
    )


def test_a_collective_that_a_policy_holds_names_it_and_saves_as_much_as_without_it() -> None:
    def run(policy: str) -> Any:
        return clusim.collective(
            "hgx-h20", "sendrecv", "1MiB", nodes=2, policy=policy, confirm=True
        )

    cause, saving_ps = _savings(run)
    assert (cause.kind, cause.remedy) == (CauseKind.RATE, REMEDY)
    assert cause.saving_ps == saving_ps > 0


def test_a_policy_that_only_divides_a_full_wire_is_not_the_cause() -> None:
    """In an incast Swift holds all flows, but the wire of the receiver is full."""
    result = clusim.traffic("hgx-h20", "incast", "1MiB", nodes=3, policy="sender=swift")
    first = result.diagnose().causes[0]
    assert first.kind is CauseKind.NIC
