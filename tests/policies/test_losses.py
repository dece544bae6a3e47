"""Shipped policies after losses: the window that their sources state, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from clusim.policies.choice import find_policy
from clusim.policies.kinds import UNLIMITED_BYTES

LINE_RATE = 50 * 2**30 // 1000  # bytes per 2^30 ps: 50 GB/s
REACTING = ("swift", "dctcp", "plb", "reps", "nscc")


def flow_of(name: str, **fields: int) -> Any:
    """Return the state of a flow, with some fields."""
    policy = find_policy(name)
    first = {"line_rate": LINE_RATE, "min_rate": 1}
    flow = object.__new__(policy.cls)
    for field, value in zip(policy.fields, policy.record(first, {}), strict=True):
        setattr(flow, field, list(value) if isinstance(value, tuple) else value)
    for field, value in fields.items():
        setattr(flow, field, value)
    return flow


def test_the_shipped_policies_that_react_to_losses_are_those_whose_sources_do() -> None:
    names = ("dcqcn-policy", "hpcc", "timely", *REACTING)
    assert [name for name in names if "lost" in find_policy(name).functions] == [*REACTING]


@pytest.mark.parametrize(("now_ps", "window"), [(99_999, 80_000), (100_000, 40_000)])
def test_swift_halves_its_window_once_per_round_trip(now_ps: int, window: int) -> None:
    """Of 80,000 bytes in flight 20,000 are lost; the last round trip lasted 100,000 ps, the last cut was at 0."""
    flow = flow_of("swift", window=80_000, in_flight=60_000, last_ps=100_000)
    flow.lost(now_ps, 20_000)
    assert flow.window == window


def test_swift_sets_an_unlimited_window_to_half_of_what_was_in_flight() -> None:
    flow = flow_of("swift", in_flight=60_000)
    assert flow.window == UNLIMITED_BYTES
    flow.lost(1, 20_000)
    assert flow.window == 40_000


@pytest.mark.parametrize("name", ["dctcp", "plb", "reps"])
def test_dctcp_halves_its_window_once_per_window_of_data(name: str) -> None:
    """A second loss counts after 80,000 bytes were acknowledged, and leaves two segments of 4096 bytes at least."""
    flow = flow_of(name, window=80_000, in_flight=60_000)
    acked = (1,) if name == "reps" else ()
    flow.lost(0, 20_000)
    assert flow.window == 40_000
    flow.acked(0, 79_999, 1000, 1, *acked)
    window = flow.window
    flow.lost(0, 1000)
    assert flow.window == window
    flow.acked(0, 1, 1000, 1, *acked)
    flow.in_flight = 0
    flow.lost(0, 1000)
    assert flow.window == 8192


@pytest.mark.parametrize(("arrived_bytes", "window"), [(9_000, 9_000), (75_000, 80_000)])
def test_nscc_adapts_to_what_arrived_or_shrinks_by_what_was_lost(
    arrived_bytes: int, window: int
) -> None:
    """A round trip of 10 us at 50 GB/s has 500,000 bytes: adapted below 93,750 bytes that arrived in the last round."""
    fields = {"base_ps": 10_000_000, "round_end_ps": 1, "window": 100_000, "in_flight": 90_000}
    flow = flow_of("nscc", arrived_bytes=arrived_bytes, **fields)
    flow.lost(2 if arrived_bytes == 9_000 else 1, 20_000)
    assert flow.window == window


def test_nscc_before_its_first_round_trip_keeps_what_is_in_flight() -> None:
    flow = flow_of("nscc", in_flight=60_000)
    flow.lost(1, 20_000)
    assert flow.window == 60_000
