"""Gates of the network: serialisation, switching, credit, arbitration, control bytes, faults.

Defaults of the builder: 1 byte per 10 ps, 1000 ps of propagation, packets of 99 bytes and 1 of header, 100 ps from
a packet's head to the next output, data visible 10 ps after memory accepted them; so one packet
takes 1000 + 1000 + 10 ps.
"""

from __future__ import annotations

import pytest

from support.gates import assert_messages_at, assert_records_at, counters, finish
from support.images import ImageBuilder, Place, prim

ALWAYS = 2**32 - 1


def pair(**fields) -> tuple[ImageBuilder, Place, Place]:
    """Two endpoints with one link."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b, **fields)
    return builder, a, b


def line(*, store_and_forward=False, second=(1, 10), header=20, **fields):
    """Return a - switch - b; packets of 80 + 20 = 100 bytes on the wire."""
    builder = ImageBuilder()
    builder.format(header=header)
    a, b = builder.endpoint(), builder.endpoint()
    switch = builder.switch(latency_ps=100, store_and_forward=store_and_forward)
    builder.link(a, switch, **fields)
    builder.link(switch, b, rate=second)
    return builder, a, b


def test_one_packet_takes_serialisation_propagation_and_write_latency(engine):
    builder, a, b = pair()
    builder.source(a, [(0, 99, b)])
    assert_messages_at(engine, builder, 1000 + 1000 + 10)


@pytest.mark.parametrize(("size", "end"), [(99, 333), (198, 666), (297, 1000)])
def test_serialisation_carries_its_remainder(engine, size, end):
    builder, a, b = pair(rate=(3, 10))  # 333 1/3 ps per packet
    builder.source(a, [(0, size, b)])
    assert_messages_at(engine, builder, end + 1000 + 10)


def test_packets_are_rounded_up_to_flits_with_their_header(engine):
    builder = ImageBuilder()
    builder.format(flit=32, header=16)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 150, b)], packet_bytes=100)
    sim = assert_messages_at(engine, builder, (128 + 96) * 10 + 1010)
    assert counters(sim, there, "packets", "grants", "bytes", "payload") == (2, 2, 224, 150)


def test_a_burst_has_the_bytes_of_its_packets(engine):
    builder = ImageBuilder()
    builder.format(flit=32, header=16)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 250, b)], packet_bytes=100, burst=2)
    sim = assert_messages_at(engine, builder, (128 + 128 + 96) * 10 + 1010)
    assert counters(sim, there, "packets", "grants", "bytes", "payload") == (3, 2, 352, 250)


def test_service_factor_lengthens_the_occupancy_only(engine):
    builder = ImageBuilder()
    builder.format(service=2048)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 99, b)])
    sim = assert_messages_at(engine, builder, 2000 + 1010)
    assert counters(sim, there, "bytes", "busy_ps") == (100, 2000)


def test_cut_through_forwards_after_the_header(engine):
    builder, a, b = line()
    builder.source(a, [(0, 80, b)], packet_bytes=80)
    start = 1000 + 200 + 100  # head, 20 bytes of header, switch
    assert_messages_at(engine, builder, start + 1000 + 1000 + 10)


def test_cut_through_to_a_faster_output_waits_for_the_tail(engine):
    builder, a, b = line(second=(1, 5))
    builder.source(a, [(0, 80, b)], packet_bytes=80)
    # The header was there at 1300; tail, switch, time on the faster wire:
    start = 2000 + 100 - 500
    assert_messages_at(engine, builder, start + 500 + 1000 + 10)


def test_cut_through_expects_the_fastest_wire_of_the_group_even_if_it_is_down(engine):
    builder, a, b = line(second=(1, 5))
    builder.link(Place(2), b)
    builder.fault(0, wire=2, num=0, den=1)
    builder.source(a, [(0, 80, b)], packet_bytes=80)
    sim = finish(engine, builder)
    assert sim.message_times().tolist() == [1600 + 1000 + 1000 + 10]


def test_cut_through_to_a_slower_output_starts_with_the_header(engine):
    builder, a, b = line(second=(1, 20))
    builder.source(a, [(0, 80, b)], packet_bytes=80)
    assert_messages_at(engine, builder, 1300 + 2000 + 1000 + 10)


def test_store_and_forward_waits_for_the_whole_packet(engine):
    builder, a, b = line(store_and_forward=True)
    builder.source(a, [(0, 80, b)], packet_bytes=80)
    assert_messages_at(engine, builder, 2000 + 100 + 1000 + 1000 + 10)


def test_a_relay_stores_and_forwards(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    relay = builder.endpoint(latency_ps=50, relay=True)
    builder.link(a, relay)
    builder.link(relay, b)
    builder.source(a, [(0, 99, b)])
    assert_messages_at(engine, builder, 2000 + 50 + 1000 + 1000 + 10)


def test_credit_returns_after_one_round_trip(engine):
    builder, a, b = pair(buffer_bytes=100)
    builder.source(a, [(0, 198, b)])
    second = 1000 + 1000 + 1000  # end, tail at b, credit back
    sim = assert_messages_at(engine, builder, second + 1000 + 1010)
    assert counters(sim, 0, "stall_credit_ps", "busy_ps") == (2000, 2000)


def test_credit_travels_over_the_reverse_wire(engine):
    builder, a, b = pair(buffer_bytes=100)
    builder.rows["wires"][1]["latency_ps"] = 700
    builder.source(a, [(0, 198, b)])
    assert_messages_at(engine, builder, 2700 + 1000 + 1010)


def test_credit_of_a_simplex_wire_takes_its_own_latency(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.wire(a, b, latency_ps=600, buffer_bytes=100)
    builder.source(a, [(0, 198, b)])
    assert_messages_at(engine, builder, 1000 + 600 + 600 + 1000 + 600 + 10)


def test_a_switch_returns_credit_when_the_tail_left_its_buffer(engine):
    builder, a, b = line(buffer_bytes=100)
    builder.source(a, [(0, 160, b)], packet_bytes=80)
    second = 1300 + 1000 + 1000  # out of the switch at 1300 .. 2300, credit 1000 later
    assert_messages_at(engine, builder, second + 1300 + 2000 + 10)


def star(n: int, **fields) -> tuple[ImageBuilder, list[Place]]:
    builder = ImageBuilder()
    gpus = [builder.endpoint() for _ in range(n)]
    switch = builder.switch()
    for gpu in gpus:
        builder.link(gpu, switch, **fields)
    return builder, gpus


def test_round_robin_goes_on_after_the_last_granted_input(engine):
    builder, (a, b, c) = star(3)
    builder.source(a, [(0, 297, c)])
    builder.source(b, [(1000, 99, c)])  # at the switch together with a's second packet
    sim = assert_messages_at(engine, builder, 4100 + 2010, 2100 + 2010)
    assert counters(sim, 5, "queued_max", "stall_arbitration_ps") == (200, 2000)


@pytest.mark.parametrize(
    ("onward", "ends"), [(0, (3110, 4110, 5110)), (1, (5110, 4110, 3110)), (2, (5110, 3110, 4110))]
)
def test_packets_that_stay_in_a_dimension_precede_those_that_turn_or_enter(engine, onward, ends):
    """Three packets are at the switch at 1100; wires from the senders have dimensions 0, 2 and 1."""
    builder = ImageBuilder()
    a, b, c, d = (builder.endpoint() for _ in range(4))
    switch = builder.switch()
    for place, dim in ((a, 0), (b, 2), (c, 1), (d, onward)):
        builder.link(place, switch, dim=dim)
    for sender in (a, b, c):
        builder.source(sender, [(0, 99, d)])
    assert_messages_at(engine, builder, *ends)


def test_a_packet_that_stays_but_lacks_credit_lets_another_pass(engine):
    """Both of a's packets stay in the dimension; the second lacks credit on VC 0, and b's is on VC 1."""
    builder = ImageBuilder(nvc=2)
    a, b, c = (builder.endpoint() for _ in range(3))
    switch = builder.switch()
    builder.link(a, switch, dim=1)
    builder.link(b, switch)
    builder.link(c, switch, dim=1, buffer_bytes=100)
    builder.source(a, [(0, 99, c), (0, 99, c)], vc=0)
    builder.source(b, [(0, 99, c)], vc=1)
    back = 1100 + 2000 + 1000  # accepted by c, credit returns
    assert_messages_at(engine, builder, 3110, back + 2010, 4110)


def test_a_packet_that_enters_during_a_transmission_counts_as_lost_arbitration(engine):
    builder, (a, b, c) = star(3)
    builder.source(a, [(0, 99, c)])
    builder.source(b, [(400, 99, c)])  # enters at 1500, the wire is busy from 1100 to 2100
    sim = assert_messages_at(engine, builder, 1100 + 2010, 2100 + 2010)
    assert counters(sim, 5, "stall_arbitration_ps", "queued_max") == (600, 100)


@pytest.mark.parametrize(
    ("start", "prefix", "drained"), [(2000, 10, 0), (2049, 10, 0), (2050, 5, 5), (2100, 0, 10)]
)
def test_owed_control_bytes_drain_when_idle_and_else_go_in_front(engine, start, prefix, drained):
    builder = ImageBuilder()
    builder.format(flit=5, control=10 * 256)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 99, b)])  # arrives at 2000: b's wire owes 10 bytes, two flits
    builder.source(b, [(start, 99, a)])
    sim = assert_messages_at(engine, builder, 2010, start + (prefix + 100) * 10 + 1010)
    assert counters(sim, there + 1, "control_bytes", "bytes") == (prefix + drained, 100)


def test_control_bytes_in_front_delay_the_head(engine):
    builder = ImageBuilder()
    builder.format(flit=5, control=10 * 256)
    a, b = builder.endpoint(), builder.endpoint()
    switches = [builder.switch(latency_ps=100), builder.switch(latency_ps=100)]
    builder.link(a, switches[0])
    builder.link(*switches)
    builder.link(switches[1], b, rate=(1, 20))
    # b's packet is at switch 1 at 3000 + 100 - 1000 and at switch 0 at 2100 + 1000 + 50 + 100 = 3250.
    # a's packet comes there at the same time; the wires on, to switch 1 and to a, owe 10 bytes each.
    builder.source(a, [(2100, 99, b)])
    builder.source(b, [(0, 99, a)])
    onward = 3250 + 100 + 1000 + 50 + 100  # two flits in front, propagation, header, switch
    assert_messages_at(engine, builder, onward + 2000 + 1010, 3250 + 1100 + 1010)


def test_a_replay_costs_the_packet_again_and_its_delay(engine):
    builder, a, b = pair(error_threshold=ALWAYS, replay_ps=500)
    builder.source(a, [(0, 99, b)])
    sim = assert_messages_at(engine, builder, 1000 + 1000 + 500 + 1000 + 10)
    assert counters(sim, 0, "replays", "busy_ps", "bytes") == (1, 2500, 100)


def dateline(dateline_wire: int, small: int, dims: tuple[int, int, int]) -> ImageBuilder:
    """Return a - s - t - b with two flows on VC 0 and 1; wire `small` has room for one packet."""
    builder = ImageBuilder(nvc=2)
    a, b = builder.endpoint(), builder.endpoint()
    places = [a, builder.switch(), builder.switch(), b]
    for i, dim in enumerate(dims):
        size = 100 if i == small else 10000
        first = builder.link(places[i], places[i + 1], dim=dim, buffer_bytes=size)
        builder.rows["wires"][first]["dateline"] = int(i == dateline_wire)
    builder.source(a, [(0, 99, b)], vc=0)
    builder.source(a, [(0, 99, b)], vc=1)
    return builder


def test_without_a_dateline_flows_keep_their_vcs(engine):
    assert_messages_at(engine, dateline(9, 1, (0, 0, 0)), 4210, 2100 + 2200 + 910)


def test_a_dateline_moves_a_packet_to_the_next_vc(engine):
    # Both are on VC 1 behind the dateline: the second waits for the first one's credit, 3200 + 1000.
    assert_messages_at(engine, dateline(1, 1, (0, 0, 0)), 4210, 4200 + 1100 + 2010)


def test_behind_the_dateline_a_packet_keeps_its_vc(engine):
    # The first took VC 1 to b at 2200, its credit is back at 4200 + 1000.
    assert_messages_at(engine, dateline(1, 2, (0, 0, 0)), 4210, 5200 + 2010)


def test_a_new_dimension_brings_back_the_first_vc(engine):
    assert_messages_at(engine, dateline(1, 2, (0, 0, 1)), 4210, 3200 + 2010)


def diamond() -> tuple[ImageBuilder, Place, Place]:
    """Return a - switch = b: one wire in, two slow wires (4000 ps per packet) out."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    switch = builder.switch()
    builder.link(a, switch)
    for _ in range(2):
        builder.link(switch, b, rate=(1, 40))
    return builder, a, b


def test_a_switch_stripes_by_the_route_key(engine):
    builder, a, b = diamond()
    builder.source(a, [(0, 396, b)])
    # Wires in turn: 1100 and 5100 on one, 2100 and 6100 on the other.
    sim = assert_messages_at(engine, builder, 6100 + 4000 + 1010)
    assert counters(sim, 2, "grants") == counters(sim, 4, "grants") == (2,)


def test_a_pinned_message_takes_one_wire_at_every_switch(engine):
    builder, a, b = diamond()
    builder.source(a, [(0, 198, b)], key=1, policy="pinned")
    sim = assert_messages_at(engine, builder, 5100 + 4000 + 1010)
    assert counters(sim, 4, "grants") == (2,)


def test_adaptive_takes_the_shortest_queue_then_the_lowest_wire(engine):
    builder, a, b = diamond()
    builder.source(a, [(0, 396, b)], policy="adaptive")
    # 1100: both queues empty, lower wire, which grants; 2100: again; 3100: the other; 4100: the other.
    sim = assert_messages_at(engine, builder, 7100 + 4000 + 1010)
    assert counters(sim, 2, "grants", "queued_max") == (2, 100)
    assert counters(sim, 4, "grants", "queued_max") == (2, 100)


def double(n: int = 2) -> tuple[ImageBuilder, Place, Place]:
    """Two endpoints with parallel links: wires 0, 2, ... from a to b."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    for _ in range(n):
        builder.link(a, b)
    return builder, a, b


def test_a_message_stripes_over_parallel_wires_from_its_key(engine):
    builder, a, b = double()
    builder.source(a, [(0, 297, b)], key=1)
    sim = assert_messages_at(engine, builder, 2000 + 1010)
    assert (counters(sim, 0, "grants"), counters(sim, 2, "grants")) == ((1,), (2,))


def test_a_pinned_message_stays_on_one_wire(engine):
    builder, a, b = double()
    builder.source(a, [(0, 297, b)], key=5, policy="pinned")
    sim = assert_messages_at(engine, builder, 3000 + 1010)
    assert (counters(sim, 0, "grants"), counters(sim, 2, "grants")) == ((0,), (3,))


def test_an_adaptive_message_uses_whichever_wire_is_free(engine):
    builder, a, b = double()
    builder.source(a, [(0, 99, b)])  # takes wire 0
    builder.source(a, [(500, 297, b)], policy="adaptive")
    # Wire 2 at 500, wire 0 at 1000, wire 2 at 1500.
    sim = assert_messages_at(engine, builder, 2010, 2500 + 1010)
    assert (counters(sim, 0, "grants"), counters(sim, 2, "grants")) == ((2,), (2,))


def test_a_second_pass_serves_a_lower_wire_with_a_shorter_adaptive_packet(engine):
    builder, a, b = double()
    builder.rows["wires"][0]["buffer_bytes"] = 100
    builder.source(a, [(0, 50, b)])  # wire 0 is free at 510 and has credit for 49 bytes until 2510
    builder.source(
        a, [(600, 139, b)], policy="adaptive"
    )  # 100 bytes on wire 2, 41 on wire 0, at 600
    sim = assert_messages_at(engine, builder, 510 + 1010, 1600 + 1010)
    assert counters(sim, 0, "busy_ps", "stall_credit_ps") == (510 + 410, 0)


def test_a_connection_goes_on_striping_where_it_stopped(engine):
    builder, a, b = double(3)
    conn = builder.conn(a, b)
    sender = prim("send", send=0, repeat=2, step=1)
    one = builder.run_alone(a, sender, conns=(conn,))
    builder.run_alone(b, prim("recv", recv=0, repeat=2), conns=(conn,))
    sim = assert_records_at(engine, builder, one, 1000, 2000)
    grants = [counters(sim, wire, "grants")[0] for wire in (0, 2, 4)]
    assert grants == [1, 1, 0]


def test_an_explicit_path_is_followed(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    s, t = builder.switch(), builder.switch()
    builder.link(a, b)
    up, across, down = builder.link(a, s), builder.link(s, t), builder.link(t, b)
    conn = builder.conn(a, b, path=builder.path(up, across, down))
    builder.run_alone(a, prim("send", send=0), conns=(conn,))
    receiver = builder.run_alone(b, prim("recv", recv=0), conns=(conn,))
    assert_records_at(engine, builder, receiver, 1100 + 1100 + 1000 + 1010)


def test_a_rate_change_leaves_the_packet_on_the_wire_alone(engine):
    builder, a, b = pair()
    builder.source(a, [(0, 198, b)])
    builder.fault(500, wire=0, num=1, den=20)
    assert_messages_at(engine, builder, 1000 + 2000 + 1010)


def test_a_wire_that_is_down_grants_again_when_it_is_up(engine):
    builder, a, b = pair()
    builder.source(a, [(0, 198, b)])
    builder.fault(500, wire=0, num=0, den=1)
    builder.fault(5000, wire=0, num=1, den=10)
    sim = assert_messages_at(engine, builder, 6000 + 1010)
    assert counters(sim, 0, "stall_credit_ps", "busy_ps") == (0, 2000)


def test_a_wire_that_goes_down_waits_for_credit_no_longer(engine):
    builder, a, b = pair(buffer_bytes=100)
    builder.source(a, [(0, 198, b)])
    builder.fault(1500, wire=0, num=0, den=1)
    builder.fault(5000, wire=0, num=1, den=10)
    sim = assert_messages_at(engine, builder, 6000 + 1010)
    assert counters(sim, 0, "stall_credit_ps") == (500,)


def test_a_rate_change_forgets_the_remainder(engine):
    builder, a, b = pair(rate=(3, 10))  # 333 1/3 ps per packet
    builder.source(a, [(0, 297, b)])
    builder.fault(500, wire=0, num=3, den=10)
    assert_messages_at(engine, builder, 333 + 333 + 333 + 1010)


def test_a_transfer_avoids_wires_that_are_down_when_it_starts(engine):
    builder, a, b = double()
    builder.source(a, [(100, 198, b)])
    builder.fault(100, wire=0, num=0, den=1)
    sim = finish(engine, builder)
    assert sim.message_times().tolist() == [100 + 2000 + 1010]
    assert counters(sim, 0, "grants") == (0,)


def test_a_switch_avoids_wires_that_are_down_when_a_packet_arrives(engine):
    builder, a, b = diamond()
    builder.source(a, [(0, 198, b)])
    builder.fault(2000, wire=4, num=0, den=1)
    sim = finish(engine, builder)
    assert sim.message_times().tolist() == [5100 + 4000 + 1010]
    assert counters(sim, 4, "grants") == (0,)


@pytest.mark.parametrize(("flags", "second"), [(0, 1000), (1, 2010)])
def test_the_next_message_follows_the_last_packet_or_the_completion(engine, flags, second):
    builder, a, b = pair()
    builder.source(a, [(0, 99, b), (500, 99, b)], flags=flags)
    assert_messages_at(engine, builder, 2010, second + 2010)
