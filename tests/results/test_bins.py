from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.engine.abi import FLOW_SAMPLE, WIRE_COUNTERS
from clusim.results.bins import COLUMNS, BinRecorder, Bins, Usage
from clusim.results.flows import FLOW_COLUMNS, UNLIMITED_BYTES, Flows

WIDTH_PS = 100_000
"""Of the first bins."""

NO_SAMPLES = np.zeros(0, FLOW_SAMPLE)


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
        recorder.sample(now, counters, memory, NO_SAMPLES)
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
    recorder.sample(10**15, counters, np.zeros(1, np.uint64), NO_SAMPLES)
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
        recorder.sample(now_ps, counters, np.zeros(1, np.uint64), NO_SAMPLES)
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


def some_flows(count: int) -> Flows:
    """Return flows of endpoint 0 to endpoint 1."""
    numbers = np.arange(count)
    names = [f"flow {number}" for number in range(count)]
    ends = np.zeros(count, np.int64), np.ones(count, np.int64)
    return Flows(numbers, names, *ends, ["swift"] * count, np.full(count, 1e9))


def test_bins_of_flows_have_sums_and_values_at_their_end() -> None:
    """Merged bins add what was sent, and keep the later rate; 2^30 bytes per 2^30 ps are 10^12 bytes/s."""
    recorder = BinRecorder(1, 1, max_bins=16)
    recorder.follow(some_flows(1))
    sample = np.zeros(1, FLOW_SAMPLE)
    sample["window"] = UNLIMITED_BYTES
    for number in range(1, 17):
        sample["sent_bytes"] += np.uint64(number)
        sample["rate"] = number << 30
        if number == 4:
            sample["window"], sample["rtt_ps"] = 99, 7
        recorder.sample(
            recorder.next_edge_ps, np.zeros(1, WIRE_COUNTERS), np.zeros(1, np.uint64), sample
        )
    tables = recorder.bins().flows.tables
    assert set(tables) == set(FLOW_COLUMNS)
    assert tables["sent"].tolist() == [[3, 7, 11, 15, 19, 23, 27, 31]]
    assert tables["rate"].tolist() == [[n * 10**12 for n in range(2, 17, 2)]]
    assert tables["window"].tolist() == [[-1, *[99] * 7]]
    assert tables["rtt"].tolist() == [[-1, *[7] * 7]]


def test_histories_of_flows_have_a_limit() -> None:
    """Six columns of 16 bins are 768 bytes a flow: of 1,000 flows, 42 evenly spaced ones fit into 32 KiB."""
    recorder = BinRecorder(1, 1, max_bins=16, limit_bytes=32 << 10)
    recorder.follow(some_flows(1000))
    assert len(recorder.flows) == 42
    assert recorder.flows.numbers[:3].tolist() == [0, 23, 47]
    assert recorder.flows.names[1] == "flow 23"


def usage() -> Usage:
    """Return two bins of 100 and 50 ps: wire 0 is busy for 50 and 50 ps, wire 1 never; one unit, one flow."""
    edges = np.array([0, 100, 150])
    busy = np.array([[50, 50], [0, 0]])
    wires = {"busy": busy, "stall_credit": busy[::-1] // 2}
    held = {
        "rate": np.array([[10**9, 10**8]]),
        "in_flight": np.zeros((1, 2)),
        "window": np.full((1, 2), -1),
    }
    flows = replace(some_flows(1), numbers=np.array([4]), tables=held)
    bins = Bins(edges, wires, hbm_bytes=np.array([[30, 90]]), flows=flows)
    return Usage(bins, np.array([32768]), unit_busy_ps=np.array([[20, 0]]))


@pytest.mark.parametrize(
    ("start_ps", "end_ps", "share"),
    [(0, 100, 0.5), (100, 150, 1.0), (0, 150, 2 / 3), (50, 125, 2 / 3), (25, 75, 0.5), (-50, 50, 0.25),
     (140, 190, 0.2)],
)  # fmt: skip
def test_shares_of_spans_are_even_inside_bins_and_nothing_is_outside(
    start_ps: int, end_ps: int, share: float
) -> None:
    assert usage().one("wire", 0, start_ps, end_ps) == pytest.approx(share)
    assert usage().of("wire", [1, 0], start_ps, end_ps) == pytest.approx([0, share])
    assert usage().one("credit", 1, start_ps, end_ps) == pytest.approx(share / 2)


def test_shares_of_memory_count_its_cost_and_are_at_most_one() -> None:
    """Half a ps per byte: 15 of 100 ps, and 45 of 50."""
    assert usage().one("hbm", 0, 0, 100) == pytest.approx(0.15)
    assert usage().one("hbm", 0, 100, 150) == pytest.approx(0.9)
    full = Bins(
        np.array([0, 10]),
        {"busy": np.zeros((1, 1)), "stall_credit": np.zeros((1, 1))},
        np.array([[40]]),
    )
    assert Usage(full, np.array([65536])).one("hbm", 0, 0, 10) == 1.0


def test_units_and_flows_have_shares_and_unknown_ones_none() -> None:
    assert usage().one("unit", 0, 0, 100) == pytest.approx(0.2)
    assert usage().held_share(4, 100, 150) == 1.0
    assert usage().held_share(4, 50, 150) == pytest.approx(0.5)
    assert usage().held_share(0, 100, 150) == 0.0
    assert usage().one("wire", 0, 100, 100) == 0.0
    assert usage().of("wire", [0, 1], 100, 99).tolist() == [0, 0]
    bins = replace(BinRecorder(1, 1).bins(), hbm_bytes=np.zeros((1, 0)))
    assert Usage(bins, np.array([0])).one("unit", 0, 0, 100) == 0.0
