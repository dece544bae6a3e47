"""The verdict on a replayed job: that of its kernels, as often as they ran, or of the one run that they were."""

from __future__ import annotations

from pathlib import Path

import clusim
from clusim.replays.report import CallResult, calls_verdict
from clusim.results.diagnosis import CauseKind, Verdict, VerdictCause

LOG = Path(__file__).parents[2] / "traces" / "nccl-8xh100.log"


def call(count: int, kernel_ps: int, *causes: VerdictCause) -> CallResult:
    verdict = Verdict(kernel_ps, causes)
    shown = (0, 8, "allreduce", 1024, "float32", count, "RING", "LL", 1)
    return CallResult(*shown, kernel_ps, kernel_ps + 100, verdict=verdict)


def test_causes_of_calls_count_as_often_as_the_calls() -> None:
    latency = VerdictCause(CauseKind.LATENCY, "", ("rank 1",), 300, 150)
    wire = VerdictCause(CauseKind.WIRE, "NVLink", (), 900, 400)
    found = calls_verdict([call(10, 400, latency), call(2, 1000, wire, latency)])
    assert found.time_ps == 10 * 500 + 2 * 1100
    assert [(own.kind, own.time_ps) for own in found.causes] == [
        (CauseKind.LATENCY, 12 * 300),
        (CauseKind.WIRE, 2 * 900),
        (CauseKind.LAUNCH, 12 * 100),
    ]
    assert not any("if" in line.split() for line in found.lines()), "no saving was simulated"
    assert calls_verdict([]).causes == ()


def test_a_log_is_judged_by_its_calls() -> None:
    found = clusim.replay(LOG)
    verdict = found.verdict
    assert verdict is not None
    assert verdict.time_ps == sum(own.time_ps * own.count for own in found.calls)
    assert found.to_json()["verdict"]["text"] == verdict.lines()
    assert sum(own.time_ps for own in verdict.causes) <= verdict.time_ps
