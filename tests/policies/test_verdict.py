"""Verdicts on runs that their sender policy limits: the cause, its flows, and the saving without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.results.cause_kinds import CauseKind
from support import sender_policies

pytestmark = pytest.mark.proof

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


LOSSY = """
name: lossy
link_types:
  lossy:
    base: roce-400
    pfc: none
    ecn: {min: 1KiB, max: 100KiB, probability: 0.1}
    drop: {queue: 1MiB, red: true}
cluster: {node: hgx-h20, nodes: 3, network: {kind: rail, link: lossy, switch: spectrum4}}
"""
TIMEOUT_PS = 4_294_967_296_000


def test_a_collective_that_waits_for_a_timeout_says_so(tmp_path: Path) -> None:
    """A link at 100% of nothing was named before. Half the timeouts save half of the one that the run waited for."""
    path = tmp_path / "lossy.yaml"
    path.write_text(LOSSY)
    result = clusim.collective(path, "alltoall", "1MiB", granularity="packet", confirm=True)
    cause = result.diagnose().causes[0]
    assert result.time_ps > TIMEOUT_PS
    assert (cause.kind, cause.remedy) == (CauseKind.TIMEOUT, "timeout x2")
    assert cause.words() == "retransmission timeouts, 1 of 1 NICs"
    assert cause.time_ps == TIMEOUT_PS
    assert cause.saving_ps == pytest.approx(TIMEOUT_PS / 2, rel=1e-6)


def test_traffic_that_waits_for_timeouts_says_so(tmp_path: Path) -> None:
    path = tmp_path / "lossy.yaml"
    path.write_text(LOSSY.replace("1MiB", "64KiB"))
    result = clusim.traffic(path, "incast", "64KiB", confirm=True)
    cause = result.diagnose().causes[0]
    longest_ps = max(nic.timeout_ps for nic in result.in_order)
    assert (cause.kind, cause.remedy) == (CauseKind.TIMEOUT, "timeout x2")
    assert cause.time_ps == pytest.approx(longest_ps, rel=1e-5)
    assert longest_ps > 0.99 * result.time_ps
    assert cause.saving_ps == pytest.approx(longest_ps / 2, rel=0.01)


@pytest.mark.parametrize(
    ("policy", "routing", "words"),
    [
        ("plb", "spray", "without effect: path of policy plb: no flow has one path by hash"),
        ("plb", "ecmp", ""),
        ("swift", "spray", ""),
    ],
)
def test_a_path_that_no_flow_can_take_is_noted(policy: str, routing: str, words: str) -> None:
    result = clusim.traffic(
        "hgx-h20", "incast", "64KiB", nodes=2, policy=f"sender={policy}", routing=routing
    )
    assert ("path of policy" in " ".join(result.provenance.notes)) == bool(words)
    assert words in " ".join(result.provenance.notes)
