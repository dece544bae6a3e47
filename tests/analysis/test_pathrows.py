"""The critical path on a timeline: nothing of it is lost, and channels do what the trace says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.analysis.path import path_rows
from clusim.base.errors import TraceError


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "run.h5"
    clusim.collective(
        "dgx-a100", "allreduce", "64KiB", algorithm="ring", nodes=2, trace_out=path, confirm=False
    )
    return path


def test_steps_of_the_path_follow_each_other_over_the_whole_run(traced: Path) -> None:
    found = path_rows(traced, 24).path
    end = int(found.end_ps[-1])
    assert found.start_ps[0] == 0
    assert np.array_equal(found.start_ps[1:], found.end_ps[:-1])
    assert end == int((found.end_ps - found.start_ps).sum())


def test_rows_are_the_longest_and_all_others_are_the_last_one(traced: Path) -> None:
    every, few = path_rows(traced, 24), path_rows(traced, 3)
    assert [rank for rank, _ in few.rows] == [*sorted(rank for rank, _ in few.rows[:3]), -1]
    length = (every.path.end_ps - every.path.start_ps).astype(np.int64)
    sums = {row: int(length[every.path.row == i].sum()) for i, row in enumerate(every.rows)}
    least = min(sums[row] for row in few.rows[:3])
    assert all(ps <= least for row, ps in sums.items() if row not in few.rows)


def test_slices_of_a_channel_do_not_overlap_and_end_where_the_path_says(traced: Path) -> None:
    found = path_rows(traced, 24)
    slices = found.slices
    for row in np.unique(slices.row).tolist():
        mine = np.flatnonzero(slices.row == row)
        start, end = slices.start_ps[mine], slices.end_ps[mine]
        assert (end >= start).all()
        assert (start[1:] >= end[:-1]).all()
    assert {found.primitives[name] for name in np.unique(slices.name)} <= set(found.primitives)
    shown = [i for i, row in enumerate(found.rows) if row[1].startswith("channel")]
    assert set(np.unique(slices.row).tolist()) == set(shown)


def test_a_trace_without_slices_has_none(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    clusim.collective(
        "dgx-a100", "allreduce", "8KiB", trace_out=path, trace_primitives=False, confirm=False
    )
    with pytest.raises(TraceError, match="primitives"):
        path_rows(path, 24)
