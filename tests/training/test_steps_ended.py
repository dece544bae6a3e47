"""Training steps that the clock on the wall ends: what is told is the beginning of the whole run's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import TimeLimitReached
from clusim.results.trace.reader import read_result
from clusim.training import TrainingResult, train
from clusim.training.proof import EndedSteps, StepsEnded
from clusim.training.trainingreport import ended_report
from support.limits import Again, Asked, Reached, Second
from support.workloads import tiny

STEPS = 3
FINE = "parallel: {tensor: 2, pipeline: 2, data: 2}\npipeline: {messages: overlapped}"
"""Of which more is exposed than coarse bursts are good enough for, and not all that is folded is proved at once."""


def _steps(text: str = "parallel: {data: 4}", **options: Any) -> TrainingResult:
    workload = tiny(text, sequence=options.pop("sequence", "128"))
    told = {"fold": "none", "granularity": "packet", "confirm": False, "steps": STEPS} | options
    return train(workload, "dgx-a100", **told)


def _known(**options: Any) -> EndedSteps:
    with pytest.raises(StepsEnded) as ended:
        _steps(**options)
    return ended.value.known


@pytest.fixture(scope="module")
def whole() -> TrainingResult:
    return _steps()


def test_steps_that_are_done_are_those_of_the_whole_and_the_next_is_under_way(
    whole: TrainingResult, tmp_path: Path
) -> None:
    watch = Reached(whole.step_ps[0])
    trace = tmp_path / "t.h5"
    known = _known(watch=watch, progress=watch.progress, trace_out=trace)
    done = len(known.step_ps)
    assert 1 <= done < STEPS
    assert known.step_ps == whole.step_ps[:done]
    assert 0 <= known.under_way_ps <= whole.step_ps[done]
    assert known.result is not None
    assert known.result.unfinished is not None
    assert known.time_ps <= known.result.unfinished.least_ps <= sum(whole.step_ps)
    kept = read_result(Path(f"{trace}.partial"))
    assert (kept.complete, kept.time_ps) == (False, known.time_ps)
    assert not trace.exists()
    said = known.to_json()
    assert said["steps_s"] == [round(ps / 1e12, 9) for ps in known.step_ps]
    assert (said["complete"], said["before"]) == (False, None)
    assert f"steps done        {done} of {STEPS}: " in ended_report(known)


def test_before_a_step_is_done_only_the_time_under_way_is_told(whole: TrainingResult) -> None:
    known = _known(watch=Asked(1))
    assert known.step_ps == []
    assert 0 < known.under_way_ps == known.time_ps < whole.step_ps[0]


def test_a_checkpoint_that_is_not_simulated_leaves_the_steps_without_it(
    whole: TrainingResult,
) -> None:
    known = _known(
        text="parallel: {data: 4}\ncheckpoint: {write: 1 GB/s, every: 10}", watch=Again(1)
    )
    assert (known.step_ps, known.result) == ([], None)
    assert known.before is not None
    assert known.before.step_ps == whole.step_ps
    assert known.words == "time limit of 1 s: ended before the steps were simulated again"
    assert "steps before" in ended_report(known)


def test_a_coarse_answer_is_told_where_the_finer_run_has_no_time_and_its_trace_is_not_kept(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "t.h5"
    trace.write_text("of a run before")
    coarse = _steps(FINE, granularity="coarse")
    known = _known(text=FINE, granularity="step", watch=Again(1), trace_out=trace)
    assert known.before is not None
    assert known.before.step_ps == coarse.step_ps
    assert known.before.granularity == coarse.result.provenance.granularity_note
    assert [path.name for path in tmp_path.iterdir()] == ["t.h5"]
    assert trace.read_text() == "of a run before"


def test_a_finer_run_that_is_ended_leaves_its_own_beginning_and_not_the_coarse_trace(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "t.h5"
    watch = Second()
    known = _known(
        text=FINE, granularity="step", watch=watch, progress=watch.progress, trace_out=trace
    )
    assert known.before is not None
    assert not trace.exists()
    kept = read_result(Path(f"{trace}.partial"))
    assert kept.provenance.granularity_note == known.granularity != known.before.granularity
    assert (kept.complete, kept.time_ps) == (False, known.time_ps)


def test_a_block_that_is_folded_is_no_step() -> None:
    with pytest.raises(TimeLimitReached, match="reached in a block of work") as ended:
        _steps("parallel: {tensor: 4}", sequence="2048", fold="all", watch=Asked(1))
    assert not isinstance(ended.value, StepsEnded)
