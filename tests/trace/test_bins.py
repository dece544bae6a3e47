from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.bins import COLUMNS, BinRecorder
from clusim.outcome import WIRE_COUNTERS


def record(steps: list[int], queued: list[int], end_ps: int, max_bins: int = 16) -> BinRecorder:
    """Feed one wire whose bytes grow by `steps`, one step per bin edge, and stop at `end_ps`."""
    recorder = BinRecorder(1, 1, max_bins=max_bins, width_ps=10)
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
    assert bins.edge_ps.tolist() == [0, 10, 20, 30]
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
    assert bins.edge_ps.tolist() == list(range(0, 161, 20))
    assert bins.wires["bytes"][0].tolist() == [1, 5, 9, 13, 17, 21, 25, 29]
    assert bins.wires["queue"][0].tolist() == [7, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("least_ps", [0, 159, 160, 640, 700])
def test_a_run_known_to_be_long_begins_with_the_bins_that_it_ends_with(least_ps: int) -> None:
    """Bins of 10 ps are merged at 160, 320 and 640 ps; what is known before spares the stops, and changes nothing."""
    recorder = BinRecorder(1, 1, max_bins=16, width_ps=10, least_ps=least_ps)
    assert recorder.width_ps == {0: 10, 159: 10, 160: 20, 640: 80, 700: 80}[least_ps]
    counters = np.zeros(1, WIRE_COUNTERS)
    while (now_ps := min(recorder.next_edge_ps, 700)) < 700:
        counters["bytes"] = now_ps**2
        recorder.sample(now_ps, counters, np.zeros(1, np.uint64))
    bins = recorder.bins()
    assert bins.edge_ps.tolist() == list(range(0, 641, 80))
    assert bins.wires["bytes"].tolist() == [[(n + 1) ** 2 * 6400 - n**2 * 6400 for n in range(8)]]


def test_the_last_bin_ends_with_the_run() -> None:
    bins = record([1, 1, 1], [0, 0, 0], end_ps=25).bins()
    assert bins.edge_ps.tolist() == [0, 10, 20, 25]


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
