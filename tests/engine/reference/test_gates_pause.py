"""Gates of pausing instead of credit. Defaults as in `test_gates`: 100 bytes on the wire, 1000 ps each."""

from __future__ import annotations

import pytest

from support.gates import assert_messages_at, assert_records_at, counters, finish
from support.images import ImageBuilder, prim

PS = 65536  # 1 ps per byte as a cost16


def slow_memory(packets: int, **fields) -> tuple[ImageBuilder, int]:
    """Return a that sends to b, whose memory takes 3960 ps per packet, and the sending instance."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint(mem_cost16=40 * PS)
    builder.link(a, b, **fields)
    conn = builder.conn(a, b)
    sizes = {"length": 99 * packets}
    there = builder.run_alone(a, prim("send", send=0), conns=(conn,), **sizes)
    builder.run_alone(b, prim("recv", recv=0), conns=(conn,), **sizes)
    return builder, there


@pytest.mark.parametrize(
    ("buffer", "overflows"), [(400, 0), (300, 0), (299, 2), (200, 2), (151, 4)]
)
def test_a_receiver_asks_for_a_pause_and_an_end_of_it(engine, buffer, overflows):
    # Memory accepts at 2000, 5960, 9920, 13880, 17840; packets are there at 2000, 3000, 4000, 5000 and 6000.
    # held is above 150 at 4000: five packets leave before 5000. It is 100 at 13880: the sixth leaves at 14880,
    # and arrives at 16880, while the fifth is still there.
    builder, there = slow_memory(6, buffer_bytes=buffer, xoff_bytes=150, xon_bytes=100)
    sim = assert_records_at(engine, builder, there, 14880 + 1000)
    assert counters(sim, 0, "held_max", "pauses", "overflows") == (300, 2, overflows)
    assert counters(sim, 0, "stall_credit_ps") == (14880 - 5000,)


@pytest.mark.parametrize(
    ("xon", "resumed", "held_max"),
    [(200, 6960, 500), (199, 18840, 400), (100, 18840, 400), (99, 22800, 400), (0, 22800, 400)],
)
def test_the_wire_runs_again_when_the_lower_threshold_is_reached(engine, xon, resumed, held_max):
    # 300 bytes at 5000: the wire stops at 6000, after six packets. 200 are left at 5960, before the fifth and the
    # sixth arrive; from 7000 on it is 400, then 200 at 13880, 100 at 17840 and nothing at 21800.
    builder, there = slow_memory(7, buffer_bytes=400, xoff_bytes=200, xon_bytes=xon)
    sim = assert_records_at(engine, builder, there, resumed + 1000)
    assert counters(sim, 0, "held_max", "stall_credit_ps") == (held_max, resumed - 6000)


def test_a_switch_frees_its_buffer_when_the_tail_left(engine):
    builder = ImageBuilder()
    a, b, switch = builder.endpoint(), builder.endpoint(), builder.switch()
    builder.link(a, switch, buffer_bytes=450, xoff_bytes=250, xon_bytes=150)
    builder.link(switch, b, rate=(1, 40))
    builder.source(a, [(0, 594, b)])
    # At the switch at 1100, 2100, 3100: stopped at 4100, two more are under way. The first one leaves until 5100,
    # when the fifth arrives: 500 bytes for a moment. 100 are left at 17100.
    sim = assert_messages_at(engine, builder, 21100 + 4000 + 1010)
    assert counters(sim, 0, "held_max", "pauses", "overflows") == (500, 1, 1)
    assert counters(sim, 0, "stall_credit_ps") == (18100 - 5000,)


def test_a_pause_stops_one_vc_only(engine):
    builder = ImageBuilder(nvc=2)
    a, b, c = (builder.endpoint() for _ in range(3))
    switch = builder.switch()
    builder.link(a, switch, buffer_bytes=1000, xoff_bytes=50, xon_bytes=0)
    builder.link(switch, b, rate=(1, 40))
    builder.link(switch, c)
    builder.source(a, [(0, 594, b)], vc=0)  # stopped from 2100 to 14100, then from 16200 on
    builder.source(a, [(4000, 99, c)], vc=1)
    sim = assert_messages_at(engine, builder, 15200 + 3 * 4000 + 1010, 4000 + 3110)
    assert counters(sim, 0, "held_max") == (300,)


def test_there_is_no_credit_where_there_are_pauses(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b, buffer_bytes=2, xoff_bytes=1, xon_bytes=1)
    builder.source(a, [(0, 297, b)])  # the first is there at 2000 and stops the wire at 3000
    sim = assert_messages_at(engine, builder, 3000 + 1010)
    assert counters(sim, 0, "overflows", "held_max", "pauses") == (3, 100, 2)


def mix(a: int, b: int) -> int:
    """The mixing function, from its definition."""
    mask = (1 << 64) - 1
    x = (a + 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_fingerprint_has_four_more_values_of_wires_that_pause_or_mark(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b, buffer_bytes=99, xoff_bytes=50)
    builder.rows["wires"][1].update(xoff_bytes=0, ecn_max_bytes=10)
    builder.source(a, [(0, 99, b)])
    sim = finish(engine, builder)
    expected = mix(mix(mix(3, 2010), 0), 0)
    first = (1, 100, 1000, 0, 0, 0, 0, 0, 0, 0, 100, 1)  # the pause comes after the end
    for value in (*first, *[0] * 12):
        expected = mix(expected, value)
    assert sim.fingerprint() == expected
