from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.engine.abi import WIRE_COUNTERS
from clusim.results.bins import COLUMNS, BinRecorder

WIDTH_PS = 100_000
"""Of the first bins."""


def record(steps: list[int], queued: list[int], end_ps: int, max_bins: int = 16) -> BinRecorder:
    """Feed one wire whose bytes grow by `steps`, one step per bin edge, and stop at `end_ps`."""
    recorder = BinRecorder(1, 1, max_bins=max_bins)
    counters = np.zeros(1, WIRE_COUNTERS)
    memory = np.zeros(1, np.uint64)
    for step, queue in zip(steps, queued, strict=True):
        now = min(recorder.next_edge_ps, end_ps)
        counters["bytes"] += np.uint64(step)
        counters["queued_bytes"] = queue
        memory += np.uint64(step * 256)
        recorder.sample(now, counters, memory)
        if now == end_ps:
            break
    return recorder


def test_one_bin_per_edge_until_the_table_is_full() -> None:
    bins = record([1, 2, 3], [0, 5, 0], end_ps=10**9).bins()
    assert bins.edge_ps.tolist() == [0, WIDTH_PS, 2 * WIDTH_PS, 3 * WIDTH_PS]
    assert bins.wires["bytes"].tolist() == [[1, 2, 3]]
    assert bins.wires["queue"].tolist() == [[0, 5, 0]]
    assert bins.hbm_bytes.tolist() == [[1, 2, 3]]


def test_a_single_bin_is_the_whole_run() -> None:
    recorder = BinRecorder(1, 1, max_bins=1)
    counters = np.zeros(1, WIRE_COUNTERS)
    counters["bytes"] = 7
    assert recorder.next_edge_ps >= 1 << 62
    recorder.sample(10**15, counters, np.zeros(1, np.uint64))
    bins = recorder.bins()
    assert bins.edge_ps.tolist() == [0, 10**15]
    assert bins.wires["bytes"].tolist() == [[7]]


def test_a_full_table_is_halved_and_the_width_doubles() -> None:
    bins = record(list(range(16)), [7, *[0] * 15], end_ps=10**9).bins()
    assert bins.edge_ps.tolist() == list(range(0, 16 * WIDTH_PS + 1, 2 * WIDTH_PS))
    assert bins.wires["bytes"][0].tolist() == [1, 5, 9, 13, 17, 21, 25, 29]
    assert bins.wires["queue"][0].tolist() == [7, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("least_ps", "first"), [(0, 1), (1_599_999, 1), (1_600_000, 2), (7_000_000, 8)]
)
def test_a_run_known_to_be_long_begins_with_the_bins_that_it_ends_with(
    least_ps: int, first: int
) -> None:
    """Sixteen bins are merged at 1.6, 3.2 and 6.4 us; what is known before spares the stops, and changes nothing."""
    recorder = BinRecorder(1, 1, max_bins=16, least_ps=least_ps)
    assert recorder.width_ps == first * WIDTH_PS
    counters = np.zeros(1, WIRE_COUNTERS)
    while (now_ps := min(recorder.next_edge_ps, 7_000_000)) < 7_000_000:
        counters["bytes"] = (now_ps // WIDTH_PS) ** 2
        recorder.sample(now_ps, counters, np.zeros(1, np.uint64))
    bins = recorder.bins()
    assert bins.edge_ps.tolist() == list(range(0, 64 * WIDTH_PS + 1, 8 * WIDTH_PS))
    assert bins.wires["bytes"].tolist() == [[64 * (2 * n + 1) for n in range(8)]]


def test_the_last_bin_ends_with_the_run() -> None:
    bins = record([1, 1, 1], [0, 0, 0], end_ps=250_000).bins()
    assert bins.edge_ps.tolist() == [0, WIDTH_PS, 2 * WIDTH_PS, 250_000]


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_nothing_is_lost_however_often_bins_merge(steps: list[int]) -> None:
    bins = record(steps, [0] * len(steps), end_ps=10**12).bins()
    assert bins.wires["bytes"].sum() == sum(steps)
    assert bins.hbm_bytes.sum() == sum(steps)
    widths = np.diff(bins.edge_ps)
    assert len(set(widths.tolist())) <= 1
    assert set(bins.wires) == set(COLUMNS)


def test_many_wires_get_fewer_bins() -> None:
    assert BinRecorder(100_000, 8).max_bins == 16
    assert BinRecorder(10, 8).max_bins == 512
