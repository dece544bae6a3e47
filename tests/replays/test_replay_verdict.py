"""The verdict on a replayed job: that of its kernels, as often as they ran, or of the one run that they were."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.base.errors import InputError
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.report import CallResult, calls_verdict
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import CauseInstance, CauseResource, VerdictCause
from clusim.results.diagnosis import Verdict
from clusim_cli.main import cli
from clusim_formats.recordings import layers
from formats.recordings.layertables import layer, table

pytestmark = pytest.mark.proof

TRACES = Path(__file__).parents[2] / "traces"
LOG = TRACES / "nccl-8xh100.log"


def cause(kind: CauseKind, what: str, time_ps: int, **more: Any) -> VerdictCause:
    row = CauseResource("ranks", time_ps, (CauseInstance("rank 1", time_ps),), 1, "ranks", 8)
    return VerdictCause(kind, what, time_ps, (row,), **more)


def call(count: int, kernel_ps: int, *causes: VerdictCause) -> CallResult:
    verdict = Verdict(kernel_ps, causes)
    shown = (0, 8, "allreduce", 1024, "float32", count, "RING", "LL", 1)
    return CallResult(*shown, kernel_ps, kernel_ps + 100, verdict=verdict)


def test_causes_of_calls_count_as_often_as_the_calls() -> None:
    latency = cause(CauseKind.LATENCY, "", 300)
    wire = cause(CauseKind.WIRE, "NVLink", 900, also=("PCIe bandwidth (81.0% busy)",))
    calls = [call(10, 300, latency), call(2, 1200, wire, latency)]
    found = calls_verdict(calls)
    assert found.time_ps == 10 * 400 + 2 * 1300
    assert [(own.kind, own.time_ps) for own in found.causes] == [
        (CauseKind.LATENCY, 12 * 300),
        (CauseKind.WIRE, 2 * 900),
        (CauseKind.LAUNCH, 12 * 100),
    ]
    (seen,) = (own for own in found.causes if own.kind is CauseKind.WIRE)
    assert seen.also == wire.also
    assert seen.resources[0].places == (CauseInstance("rank 1", 2 * 900),)
    assert calls_verdict([]).causes == ()


@pytest.mark.parametrize("job_ps", [3300, 9900])
def test_causes_of_concurrent_or_paused_calls_add_up_to_the_job(job_ps: int) -> None:
    """Concurrent calls share the time of the job; pauses are between kernels."""
    calls = [
        call(10, 300, cause(CauseKind.LATENCY, "", 300)),
        call(2, 1200, cause(CauseKind.CTA, "", 1200)),
    ]
    found = calls_verdict(calls, job_ps)
    times = {own.kind: own.time_ps for own in found.causes}
    assert sum(times.values()) == found.time_ps == job_ps
    part = min(1, job_ps / 6600)
    assert times[CauseKind.LATENCY] == 3000 * part
    assert times[CauseKind.LAUNCH] == (1200 * part if part < 1 else 1200 + 3300)


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


def changed(base: str, words: list[str]) -> list[int]:
    """Return the savings of ``what-if`` with the same plan [ps]."""
    done = CliRunner().invoke(cli, ["what-if", base, *words, "--no-progress", "--json"])
    rows = json.loads(done.stdout)["rows"]
    assert [row["change"] for row in rows] == words
    return [row["baseline"]["time_ps"] - row["held"]["time_ps"] for row in rows]


@pytest.mark.parametrize(
    "options",
    [
        f"{LOG} dgx-h100 --calls 2 --granularity 64KiB",
        f"{LOG} dgx-h100 --calls 2 --granularity 64KiB --fault 'rank 1 slow x3 at 1ns'",
        f"{LOG} dgx-h100 --calls 2 --granularity 64KiB --whole",
        f"{TRACES / 'comma-4ranks'} dgx-h100 --gap none",
    ],
)
def test_every_change_of_a_replay_has_words_that_what_if_takes_with_the_same_saving(
    options: str,
) -> None:
    """Calls of a log one by one and together, and a recording of all ranks."""
    words = [*shlex.split(options), "--confirm", "--no-progress", "--json"]
    found = json.loads(CliRunner().invoke(cli, ["replay", *words]).stdout)
    verdict = found["verdict"]
    assert verdict["proof"].startswith("certain: no other single change saves more (")
    known = {own["remedy"]: own["saving_ps"] for own in verdict["causes"] if "remedy" in own}
    assert len(known) > 1
    assert changed(f"replay {options}", [*known]) == [*known.values()]
    assert verdict["causes"][0]["saving_ps"] >= 0.7 * max(known.values())


def test_a_log_of_slow_calls_says_that_no_change_was_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clusim.replays.callproof.CHEAP_CALLS", 1)
    found = clusim.replay(LOG, "dgx-h100", calls=2)
    assert found.verdict is not None
    assert found.verdict.proof == "", "no change is simulated before a diagnosis"
    verdict = found.diagnose()
    assert verdict is not None
    assert found.verdict == verdict
    assert verdict.proof.startswith("not certain: not simulated: step x2, cta x2")
    assert all(own.saving_ps is None for own in verdict.causes)


def _represented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayRequest:
    """Return the replay of 8 ranks that one represents: two layers, each with a call after its kernels."""
    monkeypatch.setattr(layers, "MOST_LAYER_EVENTS", 30)
    name = table(
        tmp_path,
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 all_gpus: 8",
        layer("a", 10_000, 20_000, 30_000, f=("ALLREDUCE", 1 << 18), i=("ALLREDUCE", 1 << 18)),
    )
    return ReplayRequest((name,), topology="dgx-a100")


def test_links_and_compute_of_a_rank_that_represents_all_can_be_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _represented(tmp_path, monkeypatch)
    found = replay(request)
    assert replay(replace(request, faster="nvlink x2")).total_ps < found.total_ps
    # Kernels of 60 us are not beside a call.
    assert found.total_ps - replay(replace(request, faster="compute x2")).total_ps == 30_000_000
    with pytest.raises(InputError, match="step x2: one rank represents all; links and compute"):
        replay(replace(request, faster="step x2"))


def test_the_bottleneck_of_a_rank_that_represents_all_is_the_change_that_saves_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _represented(tmp_path, monkeypatch)
    found = replay(request)
    verdict = found.verdict
    assert verdict is not None
    parts = {cause.kind.value: cause.time_ps for cause in verdict.causes}
    # What is not a kernel is exposed: no call is beside one.
    assert parts == {"compute": 60_000_000, "exposed": found.total_ps - 60_000_000}
    proof = found.diagnose()
    assert proof is not None
    savings = {
        words: found.total_ps - replay(replace(request, faster=words)).total_ps
        for words in ("compute x2", "nvlink x2", "pcie x2")
    }
    best = max(savings, key=lambda words: savings[words])
    assert (proof.causes[0].remedy, proof.causes[0].saving_ps) == (best, savings[best])
    assert proof.proof.startswith("certain: no other single change saves more")
