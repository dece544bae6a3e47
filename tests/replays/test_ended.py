"""Replays that the clock on the wall ends: what is told is the beginning of the whole replay's answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import TimeLimitReached
from clusim.replays import Replay, ReplayRequest, replay, replay_report
from clusim.replays.replayreport import replay_page
from clusim.results.trace.reader import read_result
from clusim.simulation.job import RunOptions
from clusim.simulation.session import Watch
from clusim_formats.recordings import layers
from formats.recordings.layertables import layer, table
from support.limits import Again, Asked, Reached

LOG = str(Path(__file__).resolve().parents[2] / "traces" / "nccl-8xh100.log")


def _replayed(watch: Watch, trace: Path | None = None, **asked: Any) -> Replay:
    request = ReplayRequest((LOG,), topology="dgx-h100", calls=6, granularity=65536, **asked)
    return replay(request, RunOptions(watch=watch, trace_out=trace, confirm=False))


@pytest.mark.parametrize("known", [1, 2])
def test_calls_that_are_done_are_the_first_of_the_whole(known: int) -> None:
    whole = _replayed(Watch())
    assert len(whole.calls) > 2
    part = _replayed(Again(known))
    assert part.calls == whole.calls[:known]
    assert 0 < part.total_calls < whole.total_calls
    assert 0 < part.total_ps < whole.total_ps
    ended = part.unfinished
    assert ended is not None
    assert (ended.part_done, ended.least_ps) == (part.total_calls / 6, part.total_ps)
    said = part.to_json()
    assert (said["complete"], said["ended_by"]) == (False, "time limit of 1 s")
    assert "complete" not in whole.to_json()
    assert "ended by time limit of 1 s: " in replay_report(part)
    assert "time limit of 1 s: ended at" in replay_page(part)


def test_before_a_call_is_done_there_is_no_replay() -> None:
    with pytest.raises(TimeLimitReached, match="time limit of 1 s: reached before"):
        _replayed(Again(0))


def test_a_trace_that_has_no_time_leaves_the_calls(tmp_path: Path) -> None:
    whole = _replayed(Watch())
    part = _replayed(Again(len(whole.calls)), tmp_path / "t.h5")
    assert (part.calls, part.total_ps) == (whole.calls, whole.total_ps)
    assert part.unfinished is not None
    assert list(tmp_path.iterdir()) == []


def test_one_run_of_everything_tells_the_calls_that_ended_in_it(tmp_path: Path) -> None:
    request = ReplayRequest((LOG,), topology="dgx-h100", calls=6, granularity=4096, whole=True)
    whole = replay(request, RunOptions(trace_out=tmp_path / "whole.h5", confirm=False))
    watch = Reached(whole.total_ps // 2)
    trace = tmp_path / "t.h5"
    part = replay(
        request, RunOptions(watch=watch, progress=watch.progress, trace_out=trace, confirm=False)
    )
    ended = part.unfinished
    assert ended is not None
    assert 0 < part.total_calls < whole.total_calls
    assert part.total_ps <= ended.least_ps <= whole.total_ps
    kept, all_of_it = read_result(Path(f"{trace}.partial")), read_result(tmp_path / "whole.h5")
    assert (kept.complete, kept.time_ps) == (False, part.total_ps)
    ended_ps, whole_ps = kept.tasks.end_ps, all_of_it.tasks.end_ps
    over = ended_ps >= 0
    assert 0 < np.count_nonzero(over) < len(whole_ps)
    assert np.array_equal(ended_ps[over], whole_ps[over])
    done = [call.count for call in part.calls]
    assert sum(done) == part.total_calls
    assert {(call.operation, call.bytes) for call in part.calls} <= {
        (call.operation, call.bytes) for call in whole.calls
    }


def test_another_machine_that_has_no_time_leaves_this_one() -> None:
    whole = _replayed(Watch(), whole=True)
    part = _replayed(Again(1), whole=True, other="dgx-a100")
    assert (part.calls, part.total_ps, part.other) == (whole.calls, whole.total_ps, None)
    assert part.unfinished is not None
    assert part.unfinished.why == "time limit of 1 s, reached on dgx-a100"


def test_one_rank_that_stands_for_all_tells_the_kinds_before_the_time_was_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MOST_LAYER_EVENTS", 30)
    first = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 1 pp: 1 all_gpus: 8"
    rows = [
        layer("one", 1000, f=("ALLREDUCE", 1 << 20)),
        layer("two", 1000, f=("ALLREDUCE", 2 << 20)),
    ] * 2
    request = ReplayRequest((table(tmp_path, first, *rows),), topology="dgx-a100")
    whole, part = replay(request), replay(request, RunOptions(watch=Asked(0)))
    assert (len(part.calls), len(whole.calls)) == (1, 2)
    assert part.calls[0] in whole.calls
    ended = part.unfinished
    assert ended is not None
    assert ended.least_ps <= part.total_ps < whole.total_ps
