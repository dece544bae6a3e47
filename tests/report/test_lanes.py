"""Lanes of a timeline by hand: which bars are drawn, tasks too short to see, and the time of ranks by use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clusim.report.lanes import Lanes, LaneTasks, lanes_of, shares_of, window

COMPUTE, TALK = 0, 1

Row = tuple[int, int, int, int, int]


def lanes(*rows: tuple[int, ...]) -> Lanes:
    """Return tasks of (lane, kind, name, start, end, and from when data move) on lanes of ranks 4 and 5."""
    columns = np.array([(*row, row[3])[:6] for row in rows], np.int64).T
    lane, kind, name, start, end, moves = columns
    return Lanes([4, 5], ["a", "b"], [], [LaneTasks(lane, kind, name, start, moves, end)])


def bars(drawn: Lanes, from_ps: int = 0, until_ps: int = 1000) -> list[tuple[int, ...]]:
    """Return lane, kind, name, start, end and count of the bars at ten columns."""
    found = window(drawn, from_ps, until_ps, 10)
    parts = found.lane, found.kind, found.name, found.start_ps, found.end_ps, found.count
    return sorted(zip(*(part.tolist() for part in parts), strict=True))


def test_short_tasks_of_a_lane_and_kind_in_a_column_are_one_bar() -> None:
    drawn = lanes(
        *((0, COMPUTE, 9, 250, 299), (0, COMPUTE, 1, 200, 240), (0, COMPUTE, 2, 241, 249)),
        *((0, TALK, 3, 250, 260), (1, COMPUTE, 4, 210, 220), (0, COMPUTE, 5, 300, 350)),
    )
    assert bars(drawn) == [
        (0, COMPUTE, 1, 200, 299, 3),
        (0, COMPUTE, 5, 300, 350, 1),
        (0, TALK, 3, 250, 260, 1),
        (1, COMPUTE, 4, 210, 220, 1),
    ]


def test_tasks_of_a_column_are_never_merged() -> None:
    drawn = lanes((0, COMPUTE, 1, 200, 300), (0, COMPUTE, 2, 200, 300), (0, COMPUTE, 3, 200, 299))
    assert bars(drawn) == [
        (0, COMPUTE, 1, 200, 300, 1), (0, COMPUTE, 2, 200, 300, 1), (0, COMPUTE, 3, 200, 299, 1),
    ]  # fmt: skip


def test_the_bars_of_a_window_touch_it() -> None:
    drawn = lanes(
        *((0, COMPUTE, 1, 0, 99), (0, TALK, 2, 0, 100), (1, COMPUTE, 3, 1000, 2000)),
        *((1, TALK, 4, 999, 2000), (1, COMPUTE, 5, 90, 105)),
    )
    assert [bar[2] for bar in bars(drawn, 100, 1000)] == [2, 5, 4]
    assert bars(drawn, 3000, 4000) == []


def test_what_began_before_a_window_is_apart_from_its_first_column() -> None:
    drawn = lanes((0, COMPUTE, 1, 190, 250), (0, COMPUTE, 2, 200, 250), (1, COMPUTE, 3, 190, 250))
    assert [bar[2] for bar in bars(drawn, 200, 1200)] == [1, 2, 3]


def test_columns_begin_with_the_window() -> None:
    drawn = lanes((0, COMPUTE, 1, 60, 70), (0, COMPUTE, 2, 75, 80), (0, COMPUTE, 3, 130, 140))
    assert [(bar[2], bar[5]) for bar in bars(drawn, 30, 1030)] == [(1, 2), (3, 1)]


def test_no_two_lanes_kinds_or_columns_share_a_bar() -> None:
    rows = [
        (lane, kind, 0, at, at)
        for lane in (0, 1)
        for kind in range(4)
        for at in range(-99, 1000, 100)
    ]
    assert len(bars(lanes(*((*row[:4], row[4] + 99) for row in rows)))) == len(rows)


def test_a_column_is_at_least_a_picosecond() -> None:
    drawn = lanes(
        (0, COMPUTE, 1, 5, 5), (0, COMPUTE, 2, 5, 5), (0, COMPUTE, 3, 6, 6), (0, 0, 4, 5, 6)
    )
    assert bars(drawn, 5, 7) == [(0, 0, 1, 5, 5, 2), (0, 0, 3, 6, 6, 1), (0, 0, 4, 5, 6, 1)]


def test_every_task_is_in_one_bar_and_no_lane_has_more_than_twice_the_columns() -> None:
    draw = np.random.default_rng(1)
    start = draw.integers(0, 1000, 5000)
    rows = zip(draw.integers(0, 2, 5000), draw.integers(0, 2, 5000), start, start, strict=True)
    drawn = lanes(*((a, b, 0, s, e + 50) for a, b, s, e in rows))
    found = bars(drawn)
    assert sum(bar[5] for bar in found) == 5000
    assert len(found) <= 2 * 2 * 10
    assert {bar[3] // 100 for bar in found} == set(range(10))


def test_shares_of_a_rank_add_up_to_the_run() -> None:
    """Computes 0..40 and 60..80; data move from 30 to 70 and from 50 to 100, though the second began at 20."""
    drawn = lanes(
        *((0, COMPUTE, 0, 0, 40), (0, COMPUTE, 0, 60, 80)),
        *((0, TALK, 0, 30, 70), (1, TALK, 0, 20, 100, 50), (0, 2, 0, 0, 120)),
    )
    shares = shares_of(drawn, 120)
    assert shares.ranks == [4]
    parts = (shares.compute, shares.both, shares.exposed, shares.idle)
    assert [part.tolist() for part in parts] == [[30], [30], [40], [20]]


def test_a_single_task_is_of_the_rank_of_its_lane() -> None:
    shares = shares_of(lanes((1, COMPUTE, 0, 10, 30)), 100)
    assert (shares.ranks, shares.compute.tolist(), shares.idle.tolist()) == ([5], [20], [80])


def test_ranks_without_tasks_have_no_shares() -> None:
    nothing: Any = np.zeros(0, np.int64)
    shares = shares_of(Lanes([], [], [], [LaneTasks(*[nothing] * 6)]), 100)
    assert shares.ranks == []
    assert shares.idle.shape == (0,)


@pytest.mark.parametrize("missing", ["tasks/rank", "names"])
def test_a_trace_without_places_of_tasks_has_no_lanes(missing: str) -> None:
    schedule, result = ran()
    if missing == "names":
        result.tasks.names = []
    else:
        del schedule[missing]
    found = lanes_of(result, schedule)
    assert (found.ranks, found.streams, list(found.tasks)) == ([], [], [])


def ran() -> tuple[dict[str, Any], Any]:
    """Return two ranks with a kernel each and a collective, whose data move from 12."""
    schedule = {
        "tasks/rank": np.array([0, 0, 1, 1]),
        "tasks/kind": ["kernel", "program", "kernel", "program"],
        "tasks/call": np.array([-1, 0, -1, 0]),
        "tasks/stream": ["compute", "comm", "compute", "comm"],
    }
    tasks = SimpleNamespace(
        names=["F", "reduce", "F", "reduce"],
        start_ps=np.array([0, 10, 0, 12]),
        end_ps=np.array([10, 30, 5, -1]),
        blocks=None,
    )
    return schedule, SimpleNamespace(tasks=tasks, time_ps=40)


def test_lanes_are_streams_of_ranks_with_their_tasks() -> None:
    schedule, result = ran()
    found = lanes_of(result, schedule)
    assert (found.ranks, found.streams, found.names) == (
        [0, 0, 1, 1],
        ["compute", "comm"] * 2,
        ["F", "reduce"],
    )
    first, second = found.tasks
    assert (first.lane.tolist(), second.lane.tolist()) == ([0, 1], [2, 3])
    assert first.kind.tolist() == second.kind.tolist() == [COMPUTE, TALK]
    assert first.moves_ps.tolist() == [0, 12]
    assert second.end_ps.tolist() == [5, 40]
