"""Windows of Swift and DCTCP after each notice, by hand."""

from __future__ import annotations

import pytest

from clusim.policies.kinds import UNLIMITED_BYTES
from clusim.policies.windows import Dctcp, Swift, count_marks

US = 1_000_000
KB = 1000


def swift(window: int, in_flight: int = 10**9) -> Swift:
    """Return a flow whose least round trip is 10 us, so that its target is 20 us."""
    flow = Swift()
    flow.window, flow.in_flight, flow.base_ps = window, in_flight, 10 * US
    return flow


def test_below_the_target_the_window_grows_by_a_step_per_round_trip() -> None:
    """4096 B per window of acknowledged bytes: 40 of a packet of 1 kB in 100 kB."""
    flow = swift(100_000)
    flow.acked(0, KB, 10 * US, 0)
    assert flow.window == 100_040
    flow.acked(1, KB, 20 * US, 0)
    assert (flow.window, flow.cut_at_ps) == (100_080, 0)
    for _ in range(100):
        flow.acked(2, KB, 15 * US, 0)
    assert flow.window == pytest.approx(104_096, abs=130)


def test_above_the_target_a_window_is_cut_by_its_excess_at_most_by_half() -> None:
    flow = swift(51_200)
    flow.acked(100 * US, KB, 40 * US, 0)
    assert flow.window == 51_200 - 51_200 * 409 // 1024  # 819 of 1024 times 20 of 40 us
    assert flow.cut_at_ps == 100 * US
    flow = swift(51_200)
    flow.acked(300 * US, KB, 200 * US, 0)
    assert flow.window == 25_600


def test_a_window_is_cut_once_per_round_trip() -> None:
    flow = swift(51_200)
    flow.cut_at_ps = 100 * US
    flow.acked(140 * US - 1, KB, 40 * US, 0)
    assert flow.window == 51_200
    flow.acked(140 * US, KB, 40 * US, 0)
    assert flow.window < 51_200


def test_a_cut_starts_from_the_bytes_in_flight_and_leaves_a_packet() -> None:
    flow = swift(UNLIMITED_BYTES, in_flight=50_000)
    flow.acked(100 * US, KB, 20 * US + 1, 0)
    assert flow.window == 51_000
    flow = swift(51_200, in_flight=0)
    flow.acked(200 * US, KB, 200 * US, 0)
    assert flow.window == KB


def test_the_target_is_10_us_above_the_least_round_trip() -> None:
    flow = swift(51_200)
    flow.acked(0, KB, 5 * US, 0)
    assert flow.base_ps == 5 * US
    flow.acked(100 * US, KB, 15 * US + 1, 0)
    assert flow.cut_at_ps == 100 * US


def dctcp(window: int, in_flight: int, **state: int) -> Dctcp:
    flow = Dctcp()
    flow.window, flow.in_flight = window, in_flight
    for name, value in state.items():
        setattr(flow, name, value)
    return flow


def test_without_marks_a_round_adds_a_step_and_the_share_falls_by_a_sixteenth() -> None:
    flow = dctcp(40_000, 30_000, round_bytes=2 * KB)
    assert count_marks(flow, KB, 0) == -1
    assert (flow.window, flow.acked_bytes, flow.share_65536) == (40_000, KB, 65_536)
    assert count_marks(flow, KB, 0) == 0
    assert (flow.window, flow.share_65536) == (44_096, 61_440)
    assert (flow.acked_bytes, flow.marked_bytes, flow.round_bytes) == (0, 0, 30_000)


def test_a_flow_without_a_window_gets_none_until_a_mark() -> None:
    flow = dctcp(UNLIMITED_BYTES, 30_000)
    flow.acked(0, KB, 0, 0)
    assert (flow.window, flow.round_bytes) == (UNLIMITED_BYTES, 30_000)
    flow.acked(0, KB, 0, 1)  # 31,000 B, of which the share of 64,000 of 65,536 is cut by half
    share = 61_440 + (4096 * (65_536 - 61_440) >> 16)
    assert flow.share_65536 == share == 61_696
    assert flow.window == 31_000 - (31_000 * share >> 17)
    assert flow.round_bytes == flow.window


def test_a_marked_round_is_cut_by_half_of_the_share() -> None:
    """A quarter of the bytes marked, from a share of 1/4: a window loses an eighth."""
    flow = dctcp(80_000, 90_000, share_65536=16_384, round_bytes=4 * KB)
    assert [count_marks(flow, KB, marked) for marked in (1, 0, 0)] == [-1, -1, -1]
    assert flow.marked_bytes == KB
    assert count_marks(flow, KB, 0) == 16_384
    assert (flow.window, flow.share_65536) == (70_000, 16_384)
    assert (flow.acked_bytes, flow.marked_bytes, flow.round_bytes) == (0, 0, 70_000)


def test_a_window_holds_a_packet() -> None:
    flow = dctcp(1200, 0)
    assert count_marks(flow, KB, 1) == 65_536
    assert (flow.window, flow.round_bytes) == (KB, 0)
