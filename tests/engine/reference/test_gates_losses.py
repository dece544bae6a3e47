"""Gates of losses: drops of switches, retransmission, timeouts. Defaults as in `test_gates`: 100 bytes, 1000 ps each.

A packet granted at its source at t reaches the switch at t + 1100, and its destination at t + 3100 without contention.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError, RangeExceeded
from clusim.engine.abi import NONE, Kind
from clusim.engine.reference.specs import hash32
from clusim.policies.choice import Sender
from support import sender_policies
from support.gates import assert_messages_at, counters, finish
from support.images import LINE_RATE, ImageBuilder, Place

TIMEOUT_PS = 20_000


def star(
    count: int, nvc: int = 1, header: int = 1, **drops: int
) -> tuple[ImageBuilder, list[Place]]:
    """Return endpoints on a switch; the wire to the last one drops packets, or trims them to a header."""
    builder = ImageBuilder(nvc)
    builder.format(header={Kind.TRIMMED: header})
    places = [builder.endpoint() for _ in range(count)]
    switch = builder.switch()
    for place in places:
        builder.link(place, switch)
    builder.rows["wires"][2 * count - 1].update(drops)
    return builder, places


def one_lost(start_ps: int, control: str = "", **spread: int) -> ImageBuilder:
    """Four packets leave for the third endpoint, one each 1000 ps; one of another endpoint waits in a queue for one.

    It reaches the switch at `start_ps` + 1100, and the next packet of the first endpoint is dropped.
    """
    builder, (a, b, c) = star(3, queue_bytes=100)
    fields = {"ordered": 1, "timeout_ps": TIMEOUT_PS, "retries": 7}
    row = builder.spread(**fields | spread)
    limits = builder.control(Sender(f"{sender_policies.PLACE}:{control}")) if control else NONE
    builder.source(a, [(0, 396, c)], spread=row, control=limits, packet_bytes=99)
    builder.source(b, [(start_ps, 99, c)], spread=row)
    return builder


@pytest.mark.parametrize(
    ("selective", "end", "repeats", "bytes_"), [(0, 11_210, 3, 297), (1, 9211, 1, 99)]
)
def test_the_second_of_four_packets_is_lost(engine, selective, end, repeats, bytes_):
    # Packet 1 meets the waiting one at 2100 and is dropped. Packet 2 is early at 5100; the refusal arrives at 6100.
    # Go-back-N: packets 1 to 3 leave at 6100, 7100 and 8100; the last arrives at 11200. Selective: packet 1 arrives at
    # 9200, and memory accepts the kept ones 1 ps later.
    sim = assert_messages_at(engine, one_lost(500, selective=selective), end, 4110)
    assert counters(sim, 5, "drops", "dropped_bytes") == (1, 99)
    row = sim.orders()[0]
    assert (row["repeats"], row["repeated_bytes"], row["timeouts"]) == (repeats, bytes_, 0)


@pytest.mark.parametrize("selective", [0, 1])
def test_the_last_packet_is_repeated_after_a_timeout(engine, selective):
    # Packet 3 is dropped at 4100; packet 2 is accepted at 5100. The timeout counts from there.
    end = 5100 + TIMEOUT_PS + 3110
    sim = assert_messages_at(engine, one_lost(2500, selective=selective), end, 6110)
    row = sim.orders()[0]
    assert (row["timeouts"], row["timeout_ps"]) == (1, TIMEOUT_PS)


def test_time_in_which_two_queue_pairs_of_a_sender_wait_for_timeouts_counts_once(engine):
    # The packets of the second endpoint arrive at 1100, one behind the other's, and at 3100, behind another one's. Both
    # are dropped, and repeated after their timeouts, at 21100 and 23100.
    builder, (other, sender, receiver) = star(3, queue_bytes=100)
    row = builder.spread(ordered=1, timeout_ps=TIMEOUT_PS, retries=7)
    builder.source(other, [(0, 99, receiver), (2000, 99, receiver)])
    builder.source(sender, [(0, 99, receiver)], spread=row)
    builder.source(sender, [(2000, 99, receiver)], spread=row)
    sim = assert_messages_at(engine, builder, 3110, 5110, 24_210, 26_210)
    row = sim.orders()[1]
    assert (row["timeouts"], row["timeout_ps"]) == (2, TIMEOUT_PS + 2000)


@pytest.mark.parametrize(
    ("until_ps", "grants"), [(5100 + TIMEOUT_PS - 1, 4), (5100 + TIMEOUT_PS, 5)]
)
def test_nothing_is_repeated_before_the_timeout(engine, until_ps, grants):
    sim = engine(one_lost(2500).build())
    sim.run(until_ps=until_ps)
    assert counters(sim, 0, "grants") == (grants,)


def test_a_policy_that_learns_of_a_loss_slows_the_repeats(engine):
    # Three packets are in flight at 6100; from then on packets leave at a quarter of the line rate.
    gap_ps = -((-99 << 30) // (LINE_RATE // 4))
    assert_messages_at(engine, one_lost(500, "Quartered"), 6100 + 2 * gap_ps + 3110, 4110)


def test_repeats_wait_for_the_window(engine):
    # After the loss of 297 bytes the window is 99: a repeat waits for the notice of the one before, 1 ps after it
    # arrived, 3100 after it left.
    assert_messages_at(engine, one_lost(500, "Shut"), 6100 + 2 * 3101 + 3110, 4110)


@pytest.mark.parametrize(("grant", "time"), [(0, "0 ps"), (1, "131 ns"), (2, "132 ns")])
def test_a_packet_granted_again_in_flight_counts_once_in_flight(engine, grant, time):
    # The packet meets another at 1100 and is dropped. It is lost at 51100, and waits behind a packet of 80000 ps that
    # left at 51000. It is lost again at 101100, so that it leaves twice: at 131000, and at 132000, when the first copy
    # is still on its way.
    builder, (other, sender, receiver) = star(3, queue_bytes=100)
    row = builder.spread(ordered=1, timeout_ps=50_000, retries=7)
    weigh = Sender(f"{sender_policies.PLACE}:Weigh", (("grant", grant),))
    builder.source(other, [(0, 99, receiver)])
    builder.source(sender, [(0, 99, receiver)], spread=row, control=builder.control(weigh))
    builder.source(sender, [(51_000, 7999, other)], packet_bytes=7999)
    with pytest.raises(InputError, match=rf"window = -100 at {time}, source 1"):
        engine(builder.build()).run()


def test_a_packet_that_is_never_accepted_ends_the_run(engine):
    builder, (a, b) = star(2, queue_bytes=99)
    row = builder.spread(ordered=1, timeout_ps=1000, retries=2)
    builder.source(a, [(0, 99, b)], spread=row)
    with pytest.raises(RangeExceeded, match=r"source 0.*all repeats of a packet were lost"):
        engine(builder.build()).run()


def test_packets_without_retransmission_are_not_dropped(engine):
    builder, (a, b) = star(2, queue_bytes=1)
    builder.source(a, [(0, 99, b)])
    assert counters(assert_messages_at(engine, builder, 3110), 3, "drops") == (0,)


@pytest.mark.parametrize(
    ("alpha_1024", "most"), [(0, 1000), (512, 400), (1024, 500), (2048, 700), (8192, 900)]
)
def test_a_queue_has_alpha_times_the_free_memory(engine, alpha_1024, most):
    # A packet enters while the queue is below alpha (1000 - queue): up to 1000 alpha / (1 + alpha), and a packet more.
    builder, places = star(4, queue_bytes=10_000, alpha_1024=alpha_1024)
    builder.rows["nodes"][4]["shared_bytes"] = 1000
    row = builder.spread(ordered=1, selective=1, timeout_ps=TIMEOUT_PS, retries=100)
    for place in places[:3]:
        builder.source(place, [(0, 20 * 99, places[3])], spread=row)
    sim = finish(engine, builder)
    assert counters(sim, 7, "queued_max") == (most,)
    assert counters(sim, 7, "drops")[0] > 0
    sim.check_conservation()


@pytest.mark.parametrize("seed", range(6))
def test_red_drops_what_it_would_mark(engine, seed):
    builder, (a, b, c) = star(
        3, queue_bytes=9999, ecn_min_bytes=99, ecn_max_bytes=400, ecn_threshold=3 << 30, red=1
    )
    builder.seed = seed
    row = builder.spread(ordered=1, selective=1, timeout_ps=10**6, retries=9)
    for place in (a, b):
        builder.source(place, [(0, 99, c)], spread=row)
    # Both arrive at 1100, into queues of 100 and 200 bytes, or of 100 if the first is dropped.
    drops, queued = 0, 0
    for n in range(2):
        lost = hash32(seed, 5 ^ (1 << 31), n) < (3 << 30) * (queued + 100 - 99) // 301
        drops, queued = drops + lost, queued + 100 * (not lost)
    sim = engine(builder.build())
    sim.run(until_ps=1100)
    assert counters(sim, 5, "drops", "marks") == (drops, 0)


TRIMS = {"ordered": 1, "selective": 1, "trimmed": 1, "timeout_ps": TIMEOUT_PS, "retries": 7}


def one_trimmed(header: int) -> ImageBuilder:
    """Return the machine of `one_lost`, in which the second of four packets is trimmed at 2100."""
    builder, (a, b, c) = star(3, 2, header, queue_bytes=100, trim_vc=1)
    row = builder.spread(**TRIMS)
    builder.source(a, [(0, 396, c)], spread=row, packet_bytes=99)
    builder.source(b, [(500, 99, c)], spread=row)
    return builder


def test_a_header_arrives_and_its_packet_is_repeated(engine):
    # Its header of 10 bytes leaves at 2100, before the other's packet, and arrives at 3200; the refusal arrives at
    # 4200. The packet leaves then, and from the switch at 5300; it arrives at 7300. Memory accepts the kept ones 1 ps
    # later.
    sim = assert_messages_at(engine, one_trimmed(10), 7311, 4210)
    assert counters(sim, 5, "trims", "trimmed_bytes", "drops") == (1, 99, 0)
    assert [int(row["trimmed"]) for row in sim.orders()] == [0, 0, 1]
    row = sim.orders()[0]
    assert (row["repeats"], row["repeated_bytes"], row["timeouts"]) == (1, 99, 0)


@pytest.mark.parametrize(("until_ps", "grants"), [(4199, 4), (4200, 5)])
def test_nothing_is_repeated_before_the_refusal_of_a_header_arrives(engine, until_ps, grants):
    sim = engine(one_trimmed(10).build())
    sim.run(until_ps=until_ps)
    assert counters(sim, 0, "grants") == (grants,)


def test_a_header_that_does_not_fit_is_dropped_and_its_packet_repeated_after_a_timeout(engine):
    # Packet 0 is accepted at 3100, and nothing later; early packets refuse none.
    sim = assert_messages_at(engine, one_trimmed(101), 3100 + TIMEOUT_PS + 3111, 4110)
    names = ("trims", "trimmed_bytes", "drops", "dropped_bytes")
    assert counters(sim, 5, *names) == (1, 99, 1, 0)
    assert sim.orders()[0]["timeouts"] == 1


@pytest.mark.parametrize(("strict", "end"), [(False, 9310), (True, 8310)])
def test_a_header_waits_for_its_turn_or_goes_first_by_a_schedule(engine, strict, end):
    # Both send three packets at once. The third of the first sender is trimmed at 3100, when the wire is free and its
    # second one waits. In turns that one goes first, and the header leaves at 4100; with priority it leaves at 3100.
    # The packet leaves again 2100 later, and the others have left by the time at which it reaches the switch.
    builder, (a, b, c) = star(3, 2, 10, queue_bytes=200, trim_vc=1)
    if strict:
        builder.rows["wires"][5]["schedule"] = builder.schedule(priority=(1, 0))
    builder.source(a, [(0, 297, c)], spread=builder.spread(**TRIMS))
    builder.source(b, [(0, 297, c)])
    assert_messages_at(engine, builder, end, 7210)


def test_a_sender_without_use_of_headers_is_not_trimmed(engine):
    builder = one_trimmed(10)
    builder.rows["spreads"][0]["trimmed"] = 0
    sim = assert_messages_at(engine, builder, 9211, 4110)
    assert counters(sim, 5, "trims", "drops") == (0, 1)
