"""Gates of congestion marks and rate control. Defaults as in `test_gates`: 100 bytes on the wire, 1000 ps each."""

from __future__ import annotations

import pytest

from support.gates import assert_messages_at, assert_records_at, counters, finish
from support.images import ImageBuilder, Place, prim

LINE = 1 << 26  # a byte per 16 ps
NEVER = 1 << 40
HALF = 32768  # a weight g of 1/2


def pace(rate: int) -> int:
    """Return the time between two packets of 99 bytes at a rate per 2^30 ps."""
    return -((-99 << 30) // rate)


def star(**ecn) -> tuple[ImageBuilder, list[Place]]:
    """Return a, b and c on a switch; wire 5 leads to c and marks."""
    builder = ImageBuilder()
    gpus = [builder.endpoint() for _ in range(3)]
    switch = builder.switch()
    for gpu in gpus:
        builder.link(gpu, switch)
    builder.rows["wires"][5].update(ecn)
    return builder, gpus


def test_packets_that_meet_a_full_queue_are_marked(engine):
    builder, (a, b, c) = star(ecn_max_bytes=300)
    for place in (a, b):
        builder.source(place, [(0, 297, c)])
    # Queues: 100 200, 200 300, 300 400 when the packets of a and b enter at 1100, 2100 and 3100.
    sim = finish(engine, builder)
    assert counters(sim, 5, "marks", "queued_max") == (3, 400)
    assert counters(sim, 0, "marks") == (0,)


def mix(a: int, b: int) -> int:
    """The mixing function, from its definition."""
    mask = (1 << 64) - 1
    x = (a + 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@pytest.mark.parametrize("seed", range(12))
def test_between_the_thresholds_chance_decides(engine, seed):
    builder, (a, b, c) = star(ecn_min_bytes=100, ecn_max_bytes=400, ecn_threshold=3 << 30)
    builder.seed = seed
    for place in (a, b):
        builder.source(place, [(0, 297, c)])
    marks = 1  # the last: the queue is full
    for n, queued in enumerate([100, 200, 200, 300, 300]):
        drawn = mix(mix(seed, 5 ^ (1 << 31)), n) >> 32
        marks += queued > 100 and drawn < (3 << 30) * (queued - 100) // 300
    assert counters(finish(engine, builder), 5, "marks") == (marks,)


def test_a_packet_made_at_its_endpoint_meets_no_queue(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b, ecn_max_bytes=1)
    conn = builder.conn(a, b, "read")
    builder.run_alone(a, prim("send", send=0), conns=(conn,))
    builder.run_alone(b, prim("recv", recv=0), conns=(conn,))
    sim = finish(engine, builder)
    assert counters(sim, 0, "marks", "grants") == counters(sim, 1, "marks", "grants") == (0, 1)


def test_every_wire_counts_its_own_marks(engine):
    builder = ImageBuilder()
    places = [builder.endpoint(), builder.switch(), builder.switch(), builder.endpoint()]
    for i in range(3):
        builder.link(places[i], places[i + 1], ecn_max_bytes=1)
    builder.source(places[0], [(0, 198, places[3])])
    sim = finish(engine, builder)
    assert [counters(sim, wire, "marks")[0] for wire in (0, 2, 4)] == [0, 2, 2]


def flow(packets: int, marks: bool = True, **control) -> ImageBuilder:
    """Return a - switch - b with a rate-controlled source; packets are delivered 3100 ps after their grant."""
    builder = ImageBuilder()
    a, b, switch = builder.endpoint(), builder.endpoint(), builder.switch()
    builder.link(a, switch)
    builder.link(switch, b, ecn_max_bytes=int(marks))
    fields = {"line_rate": LINE, "g_65536": HALF, "cnp_interval_ps": NEVER, **control}
    builder.source(a, [(0, 99 * packets, b)], policy="pinned", control=builder.control(**fields))
    return builder


def assert_last_at(engine, builder: ImageBuilder, grant: int) -> None:
    """The last packet is granted at a time."""
    assert_messages_at(engine, builder, grant + 3110)


def test_packets_keep_the_rate(engine):
    assert_last_at(engine, flow(4, marks=False), 3 * pace(LINE))


def test_the_pace_is_rounded_up(engine):
    rate = LINE - 1  # 1584.00002 ps
    assert_last_at(engine, flow(4, marks=False, line_rate=rate), 3 * 1585)


def test_a_rate_above_the_wires_changes_nothing(engine):
    assert_last_at(engine, flow(4, marks=False, line_rate=1 << 28), 3000)


def test_the_pace_goes_on_over_messages(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    control = builder.control(line_rate=LINE)
    messages = [(0, 99, b), (0, 50, b), (0, 99, b)]
    builder.source(a, messages, policy="pinned", control=control)
    # 99 and 50 bytes at 16 ps each: the second starts at 1000 and the third at 1584 + 510, but they wait.
    assert_messages_at(engine, builder, 2010, 1584 + 510 + 1010, 1584 + 800 + 2010)


def test_a_connection_keeps_its_rate_over_slices(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    control = builder.control(line_rate=LINE)
    conn = builder.conn(a, b, policy="pinned", control=control)
    sender = builder.run_alone(a, prim("send", send=0, repeat=3), conns=(conn,))
    builder.run_alone(b, prim("recv", recv=0, repeat=3), conns=(conn,))
    assert_records_at(engine, builder, sender, 1000, 1584 + 1000, 3168 + 1000)


@pytest.mark.parametrize(
    ("delay", "third", "fourth"), [(1, 3168, 3168), (1652, 1584, 3168), (1653, 1584, 1584)]
)
def test_a_notify_lowers_the_rate_for_what_follows(engine, delay, third, fourth):
    # The first packet arrives marked at 3100; the packets are granted at 0, 1584, 3168 and 3168 + third.
    assert_last_at(engine, flow(5, cnp_delay_ps=delay), 3168 + third + fourth)


@pytest.mark.parametrize(("interval", "fourth"), [(1584, 4 * 3168), (1585, 2 * 3168)])
def test_marks_within_the_interval_make_no_notify(engine, interval, fourth):
    # Delivered at 3100, 4684 and 6268; the fourth packet is granted at 3168 + 3168 = 6336.
    assert_last_at(engine, flow(5, cnp_interval_ps=interval), 6336 + fourth)


@pytest.mark.parametrize("policy", ["pinned", "stripe", "adaptive"])
def test_the_pace_of_a_flow_is_that_of_all_its_wires(engine, policy):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    for _ in range(2):
        builder.link(a, b)
    control = builder.control(line_rate=LINE)
    builder.source(a, [(0, 99 * 4, b)], policy=policy, control=control)
    assert_messages_at(engine, builder, 3 * pace(LINE) + 2010)


def test_a_notification_leaves_the_share_that_is_kept(engine):
    # Without it the rate would be half, at 3101.
    rate = LINE * 3 // 4
    assert_last_at(engine, flow(5, kept_65536=49152), 3168 + 2 * pace(rate))


def test_without_clamp_only_the_first_notification_after_a_rise_lowers_the_target(engine):
    # Notified at 3101, 4685 and 6269: the fourth packet is granted at 6336 with an eighth of the rate, the fifth
    # 8 * 1584 later. The timer raises the rate at 7869 towards the target, still the line rate, before the notification
    # at 9437.
    rate = (LINE // 8 + LINE + 1) // 2
    target, rate = rate, rate // 2
    for _ in range(5):  # 11037 to 17437
        rate = (rate + target + 1) // 2
    builder = flow(6, clamp=0, cnp_interval_ps=1584, increase_timer_ps=1600)
    assert_last_at(engine, builder, 6336 + 8 * 1584 + pace(rate))


def test_the_rate_stays_above_its_minimum(engine):
    builder = flow(5, cnp_interval_ps=1584, min_rate=LINE // 4)
    assert_last_at(engine, builder, 6336 + pace(LINE // 4))


@pytest.mark.parametrize(("timer", "rate"), [(3235, 50331648), (3236, LINE // 2)])
def test_the_increase_timer_brings_half_of_the_way_back(engine, timer, rate):
    # NOTIFY at 3101; the fourth packet is granted at 6336, a period of 3235 later.
    assert_last_at(engine, flow(5, increase_timer_ps=timer), 6336 + pace(rate))


def test_half_of_the_way_back_is_rounded_up(engine):
    # NOTIFY at 3101 halves 262146 to 131073, and 300 ns later the timer makes it (131073 + 262146 + 1) / 2; one less
    # would grant the third packet 2 ps later.
    builder = flow(3, line_rate=262146, increase_timer_ps=300_000)
    assert_last_at(engine, builder, pace(262146) + pace(196610))


def test_the_increase_timer_comes_again(engine):
    assert_last_at(engine, flow(5, increase_timer_ps=1000), 6336 + pace(62914560))


@pytest.mark.parametrize(("timer", "alpha"), [(1000, 8192), (1056, 8192), (1057, 16384)])
def test_alpha_decays_with_its_timer(engine, timer, alpha):
    # NOTIFY at 3101 and, for the third packet, at 6269, three periods of 1056 later.
    builder = flow(5, alpha_timer_ps=timer, cnp_interval_ps=3168)
    rate = LINE // 2
    assert_last_at(engine, builder, 6336 + pace(rate - (rate * alpha >> 17)))


def test_alpha_rises_with_every_notify(engine):
    builder = flow(6, alpha_timer_ps=1057, cnp_interval_ps=3168)
    # 6269: alpha 2^14, then 2^13 + 2^15; the fourth packet makes the third NOTIFY at 6336 + 3101, two periods later.
    rate = LINE // 2
    rate -= rate * 16384 >> 17
    fifth = 6336 + pace(rate)
    assert fifth > 9437
    rate -= rate * (40960 // 4) >> 17
    assert_last_at(engine, builder, fifth + pace(rate))


def test_bytes_sent_raise_the_rate(engine):
    fields = {"byte_counter": 99, "fast_recovery": 1, "additive": 1 << 22}
    # B is 1 at every grant after a NOTIFY (3101 and 4685): halfway back to the line rate at 3168; at 5280 the
    # target, the rate before, has risen by 2^22.
    builder = flow(5, cnp_interval_ps=1584, **fields)
    after_first = (LINE // 2 + LINE + 1) // 2
    target = after_first + (1 << 22)
    rate = (after_first // 2 + target + 1) // 2
    assert 3168 + pace(after_first) == 5280
    assert_last_at(engine, builder, 5280 + pace(rate))


def test_time_and_bytes_together_raise_the_rate_much(engine):
    fields = {"byte_counter": 99, "fast_recovery": 0, "additive": 1 << 20, "hyper": 1 << 19}
    builder = flow(5, cnp_interval_ps=1584, increase_timer_ps=500, **fields)
    # 3101: half. 3168: B = 1, halfway back, next packet at 5280. 3601, 4101, 4601: halfway back each.
    rate = LINE // 2
    for _ in range(4):
        rate = (rate + LINE + 1) // 2
    # 4685: half. 5185: T = 1, additive.
    target, rate = rate + (1 << 20), rate // 2
    rate = (rate + target + 1) // 2
    # 5280: B = 1 as well: hyper.
    target += 1 << 19
    rate = (rate + target + 1) // 2
    assert_last_at(engine, builder, 5280 + pace(rate))
