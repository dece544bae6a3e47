"""The verdict on a replayed job: that of its kernels, as often as they ran, or of the one run that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.replays.report import CallResult, calls_verdict
from clusim.results.causes import CauseInstance, CauseKind, CauseResource, VerdictCause
from clusim.results.diagnosis import Verdict

LOG = Path(__file__).parents[2] / "traces" / "nccl-8xh100.log"


def cause(kind: CauseKind, what: str, time_ps: int, **more: Any) -> VerdictCause:
    row = CauseResource("ranks", time_ps, (CauseInstance("rank 1", time_ps),), 1, "ranks", 8)
    return VerdictCause(kind, what, time_ps, (row,), **more)


def call(count: int, kernel_ps: int, *causes: VerdictCause) -> CallResult:
    verdict = Verdict(kernel_ps, causes)
    shown = (0, 8, "allreduce", 1024, "float32", count, "RING", "LL", 1)
    return CallResult(*shown, kernel_ps, kernel_ps + 100, verdict=verdict)


@pytest.mark.parametrize("simulated", [True, False])
def test_causes_of_calls_count_as_often_as_the_calls(simulated: bool) -> None:
    """Causes are in the order of their simulated savings, if each call has some."""
    latency = cause(CauseKind.LATENCY, "", 300, saving_ps=10 if simulated else None)
    wire = cause(
        CauseKind.WIRE, "NVLink", 900, saving_ps=400, also=("PCIe bandwidth (81.0% busy)",)
    )
    found = calls_verdict([call(10, 300, latency), call(2, 1200, wire, latency)])
    assert found.time_ps == 10 * 400 + 2 * 1300
    by_share = [
        (CauseKind.LATENCY, 12 * 300),
        (CauseKind.WIRE, 2 * 900),
        (CauseKind.LAUNCH, 12 * 100),
    ]
    by_saving = [by_share[1], by_share[2], by_share[0]]
    assert [(own.kind, own.time_ps) for own in found.causes] == (
        by_saving if simulated else by_share
    )
    savings = [2 * 400, 12 * 50, 12 * 10] if simulated else [None] * 3
    assert [own.saving_ps for own in found.causes] == savings
    said = "by simulated saving" if simulated else "by share; savings were not simulated"
    assert f"order: {said}" in found.lines()
    (seen,) = (own for own in found.causes if own.kind is CauseKind.WIRE)
    assert seen.also == wire.also
    assert seen.resources[0].places == (CauseInstance("rank 1", 2 * 900),)
    assert calls_verdict([]).causes == ()


def test_time_of_a_call_that_was_not_analysed_is_unattributed() -> None:
    other = call(3, 400)
    found = calls_verdict([call(1, 400, cause(CauseKind.LATENCY, "", 400)), other])
    assert {own.kind: own.time_ps for own in found.causes} == {
        CauseKind.LATENCY: 400,
        CauseKind.LAUNCH: 4 * 100,
        CauseKind.OTHER: 3 * 400,
    }


def test_a_log_is_judged_by_its_calls() -> None:
    found = clusim.replay(LOG)
    verdict = found.verdict
    assert verdict is not None
    assert verdict.time_ps == sum(own.time_ps * own.count for own in found.calls)
    assert found.to_json()["verdict"]["text"] == verdict.lines()
    assert sum(own.time_ps for own in verdict.causes) == verdict.time_ps


def test_affordable_savings_of_calls_are_simulated() -> None:
    """A job saves the sum of its calls."""
    found = clusim.replay(LOG, "dgx-h100", calls=2)
    verdict = found.verdict
    assert verdict is not None
    assert verdict.order == "by simulated saving"
    savings = [own.saving_ps for own in verdict.causes if own.saving_ps is not None]
    assert savings == sorted(savings, reverse=True)
    (saved,) = (own.saving_ps for own in verdict.causes if own.kind is CauseKind.STEP)
    each = [
        own.saving_ps or 0
        for call in found.calls
        for own in (call.verdict.causes if call.verdict else ())
        if own.kind is CauseKind.STEP
    ]
    assert saved == sum(each)
    assert min(each) > 0
