"""The verdict on a replayed job: that of its kernels, as often as they ran, or of the one run that they were."""

from __future__ import annotations

from pathlib import Path

import clusim
from clusim.replays.report import CallResult, calls_verdict
from clusim.results.diagnosis import CauseKind, Verdict, VerdictCause

LOG = Path(__file__).parents[2] / "traces" / "nccl-8xh100.log"


def call(count: int, kernel_ps: int, *causes: VerdictCause) -> CallResult:
    parts = {(own.kind, own.what): own.time_ps for own in causes}
    verdict = Verdict(kernel_ps, causes[:1], parts=parts)
    shown = (0, 8, "allreduce", 1024, "float32", count, "RING", "LL", 1)
    return CallResult(*shown, kernel_ps, kernel_ps + 100, verdict=verdict)


def test_causes_of_calls_count_as_often_as_the_calls() -> None:
    latency = VerdictCause(CauseKind.LATENCY, "", ("rank 1",), 300, 150)
    wire = VerdictCause(
        CauseKind.WIRE, "NVLink", (), 900, 400, also=("PCIe bandwidth (81.0% busy)",)
    )
    found = calls_verdict([call(10, 300, latency), call(2, 1200, wire, latency)])
    assert found.time_ps == 10 * 400 + 2 * 1300
    assert [(own.kind, own.time_ps) for own in found.causes] == [
        (CauseKind.LATENCY, 12 * 300),
        (CauseKind.WIRE, 2 * 900),
        (CauseKind.LAUNCH, 12 * 100),
    ]
    assert [own.saving_ps for own in found.causes] == [12 * 150, 2 * 400, 12 * 50]
    assert found.causes[1].also == wire.also
    assert not any("if" in line.split() for line in found.lines()), "no saving was simulated"
    assert calls_verdict([]).causes == ()


def test_time_of_a_call_that_was_not_analysed_is_unattributed() -> None:
    latency = VerdictCause(CauseKind.LATENCY, "", (), 400, 200)
    other = call(3, 400)
    found = calls_verdict([call(1, 400, latency), other])
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
