"""Gates of spreads: receivers in order, load by credit, flowlets, detours.

Defaults as in `test_gates`: packets of 100 bytes on the wire, 1000 ps each.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import ScheduleError
from clusim.engine.reference.specs import hash32
from clusim.engine.simulation import Simulation
from support.gates import assert_messages_at, assert_records_at, counters, finish
from support.images import ImageBuilder, Place, prim


def uneven(a: Place, b: Place, builder: ImageBuilder) -> None:
    """Join a and b by wires 0 and 2, at whose ends packets arrive 6000 and 2000 ps after their grant."""
    builder.link(a, b, latency_ps=5000)
    builder.link(a, b)


def unequal(size: int, **spread: int) -> ImageBuilder:
    """Packets alternate over the wires of `uneven`."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    uneven(a, b, builder)
    builder.source(a, [(0, size, b)], spread=builder.spread(ordered=1, **spread))
    return builder


@pytest.mark.parametrize(("reorder_bytes", "end"), [(99, 6011), (98, 9010)])
def test_an_early_packet_is_kept_if_the_reorder_buffer_has_room(engine, reorder_bytes, end):
    # Packet 1 arrives at 2000, packet 0 at 6000; memory accepts one 1 ps after the other. Without room packet 1 is
    # repeated at 3000, arrives at 5000, is early again, and is refused when packet 0 is accepted: repeated at 7000, it
    # arrives at 9000.
    assert_messages_at(engine, unequal(198, reorder_bytes=reorder_bytes), end)


@pytest.mark.parametrize(("nak_ps", "end"), [(1999, 10009), (2000, 6011), (3000, 7010)])
def test_a_repeat_counts_if_it_arrives_with_the_missing_packet_or_later(engine, nak_ps, end):
    # The repeat arrives at 4000 + nak_ps; at 6000 packet 0 is accepted first, as its wire has the lower id.
    assert_messages_at(engine, unequal(198, nak_ps=nak_ps), end)


def test_a_receiver_of_any_order_pays_nothing(engine):
    builder = unequal(198)
    builder.rows["spreads"][0]["ordered"] = 0
    sim = assert_messages_at(engine, builder, 6010)
    assert counters(sim, 2, "grants") == (1,)


def test_the_sender_goes_back_to_the_expected_packet(engine):
    sim = finish(engine, unequal(198, nak_ps=2000))
    assert [counters(sim, wire, "grants")[0] for wire in (0, 2)] == [2, 2]  # packets 0 and 1 twice


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        ({"nak_ps": 2000}, [(0, 0, 2, 0, 198, 0, 0, 0), (3, 1, 0, 0, 0, 0, 0, 0)]),
        ({"reorder_bytes": 99}, [(0, 0, 0, 0, 0, 0, 0, 0), (2, 1, 0, 99, 0, 0, 0, 0)]),
    ],
)
def test_nics_count_what_order_costs(engine, spread, expected):
    # Packet 1 is early. Kept, it waits with its 99 bytes; dropped, both packets are repeated, and the second packet 0
    # arrives after the end.
    sim = finish(engine, unequal(198, **spread))
    assert [tuple(row) for row in sim.orders().tolist()] == expected


@pytest.mark.parametrize(("until_ps", "grants"), [(5999, (6, 6)), (6000, (7, 7))])
def test_new_packets_wait_for_repeats(engine, until_ps, grants):
    # Packet 1 is refused at 2000; at 2500 packets 0 to 5 are granted, and all are repeated by 6000.
    sim = engine(unequal(8 * 99, nak_ps=500).build())
    sim.run(until_ps=until_ps)
    assert tuple(counters(sim, wire, "grants")[0] for wire in (0, 2)) == grants


def test_a_refusal_on_its_way_covers_all_that_is_early_meanwhile(engine):
    # Packet 1 is refused at 2000, which covers packet 3; all are repeated at 5500. Packet 2 is early at 7000: refused,
    # which covers the repeat of packet 3 at 8500; packets 1 to 3 are repeated at 10500. The first repeat of 2 arrives
    # at 12500, the second one of 3 at 13500.
    sim = assert_messages_at(engine, unequal(4 * 99, nak_ps=3500), 13510)
    assert [counters(sim, wire, "grants")[0] for wire in (0, 2)] == [5, 6]


def test_what_never_arrives_in_order_ends_in_a_deadlock(engine):
    builder = unequal(198)
    builder.rows["wires"][0]["buffer_bytes"] = 99  # packet 0 never leaves
    sim = engine(builder.build())
    assert sim.run(until_ps=1 << 40).name == "DEADLOCK"


@pytest.mark.parametrize(
    ("far", "spread", "end"),
    [
        (1, {"reorder_bytes": 99}, 6011),
        (1, {"reorder_bytes": 98, "nak_ps": 1000}, 6011),
        (1, {"reorder_bytes": 98, "nak_ps": 999}, 9009),
        (2, {}, 3010),
    ],
)
def test_messages_to_one_destination_share_their_order(engine, far, spread, end):
    # The second message leaves over wire 2 at 1000 and is early at 3000. Without room it is repeated nak_ps later, and
    # arrives 2000 after that: with the first one, at 6000, or early again and repeated when that is accepted.
    builder = ImageBuilder()
    places = [builder.endpoint() for _ in range(3)]
    uneven(*places[:2], builder)
    builder.link(places[0], places[2])
    spread_row = builder.spread(ordered=1, **spread)
    builder.source(places[0], [(0, 99, places[1]), (0, 99, places[far])], spread=spread_row)
    builder.rows["messages"][1]["key"] = 1
    assert_messages_at(engine, builder, 6010, end)


@pytest.mark.parametrize(
    ("queues", "split", "slices", "size", "ends"),
    [
        (1, 0, 2, 99, [6010, 9009]),
        (2, 0, 2, 99, [6010, 6010]),
        (2, 1, 2, 99, [6010, 9009]),
        (2, 0, 1, 198, [9009]),
        (2, 1, 1, 198, [6010]),
    ],
)
def test_each_queue_pair_has_its_order(engine, queues, split, slices, size, ends):
    # The second packet takes wire 2, and is early unless it is of another queue pair: of another slice if these take
    # turns, of the same slice if its packets do.
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    uneven(a, b, builder)
    fields = builder.queues(*range(queues)) | {"split": split}
    conn = builder.conn(a, b, spread=builder.spread(ordered=1, nak_ps=999), **fields)
    for place, name in ((a, "send"), (b, "recv")):
        steps = prim(name, **{name: 0}, repeat=slices)
        here = builder.run_alone(place, steps, conns=(conn,), length=size)
    assert_records_at(engine, builder, here, *ends)


def diamond(**spread: int) -> tuple[ImageBuilder, list[Place]]:
    """Return a, c, b: a and c on a switch with two links (wires 4 and 6) to that of b; ties begin with wire 4.

    Credit for a packet that c sends at 0 is back at 4200: granted at 1100, it leaves the second switch by 3200.
    """
    builder = ImageBuilder()
    a, c, b = (builder.endpoint() for _ in range(3))
    near, far = builder.switch(), builder.switch()
    builder.link(a, near)
    builder.link(c, near)
    for _ in range(2):
        builder.link(near, far)
    builder.link(far, b)
    builder.seed = next(seed for seed in range(99) if hash32(seed, near.node, 0) % 2 == 0)
    builder.spread(**spread)
    return builder, [a, c, b]


@pytest.mark.parametrize(
    ("estimate", "start_ps", "wire"), [(1, 3100, 6), (1, 3101, 4), (0, 3100, 4)]
)
def test_load_by_credit_counts_what_has_not_come_back_before(engine, estimate, start_ps, wire):
    builder, (a, c, b) = diamond(estimate=estimate)
    builder.source(c, [(0, 99, b)], policy="pinned")
    builder.source(a, [(start_ps, 99, b)], policy="adaptive", spread=0)
    sim = finish(engine, builder)
    expected = {4: 1, 6: 0}
    expected[wire] += 1
    assert {wire: counters(sim, wire, "grants")[0] for wire in (4, 6)} == expected


@pytest.mark.parametrize(("gap_ps", "grants"), [(1501, {4: 2, 6: 0}), (1500, {4: 1, 6: 1})])
def test_a_flowlet_stays_on_its_wire_until_the_gap(engine, gap_ps, grants):
    # The second packet arrives 1500 ps after the first, when wire 4 still has less credit.
    builder, (a, _, b) = diamond(estimate=1, gap_ps=gap_ps)
    builder.source(a, [(0, 99, b), (1500, 99, b)], policy="pinned", spread=0)
    sim = finish(engine, builder)
    assert {wire: counters(sim, wire, "grants")[0] for wire in (4, 6)} == grants


def triangle(bias_bytes: int, start_ps: int, **spread: int) -> ImageBuilder:
    """A packet of a meets, at its switch, those of d and e, which arrive at 1100; c is beside the third switch.

    Wires 8 and 10 lead from the first switch to that of b and to that of c; from there wire 12 leads to that of b.
    """
    builder = ImageBuilder(nvc=3)
    a, d, e, b, c = (builder.endpoint() for _ in range(5))
    near, far, third = (builder.switch() for _ in range(3))
    for place in (a, d, e):
        builder.link(place, near)
    builder.link(b, far)
    builder.link(near, far)
    builder.link(near, third)
    builder.link(third, far)
    builder.link(c, third)
    spread |= {"bias_bytes": bias_bytes, "detour_lo": c.ep, "detour_hi": c.ep + 1}
    builder.source(a, [(start_ps, 99, b)], policy="adaptive", spread=builder.spread(**spread))
    for place in (d, e):
        builder.source(place, [(0, 99, b)])
    return builder


@pytest.mark.parametrize(
    ("bias_bytes", "start_ps", "detours"),
    [(199, 1, 1), (200, 1, 0), (0, 0, 0), (0, 999, 1), (0, 1001, 0)],
)
def test_a_detour_begins_if_bytes_times_hops_are_fewer(engine, bias_bytes, start_ps, detours):
    # From 1100 to 2100 100 bytes wait for wire 8: 200 over two hops, against none over three. A packet that arrives at
    # 1100 is handled before those of d and e.
    sim = finish(engine, triangle(bias_bytes, start_ps))
    assert counters(sim, 10, "grants") == counters(sim, 12, "grants") == (detours,)
    assert counters(sim, 8, "grants") == (3 - detours,)


@pytest.mark.parametrize(("room", "stalled"), [(100, 0), (99, 1)])
def test_the_end_of_a_detour_changes_the_virtual_channel(engine, room, stalled):
    # On wire 12 the packet is on VC 2, of which a buffer without room for it would stop it for ever.
    builder = triangle(0, 1, detour_vcs=2)
    builder.rows["wires"][12]["buffer_bytes"] = room
    sim = engine(builder.build())
    assert sim.run(until_ps=1 << 40).name == ("DEADLOCK" if stalled else "DONE")


def parallel(buffer_bytes: int, **spread: int) -> tuple[ImageBuilder, list[Place]]:
    """The diamond with a third sender d, whose two wires between switches have a dimension: both are minimal paths.

    Their buffers hold `buffer_bytes` per virtual channel; ties begin with wire 6.
    """
    builder = ImageBuilder(nvc=3)
    a, c, d, b = (builder.endpoint() for _ in range(4))
    near, far = builder.switch(), builder.switch()
    for place in (a, c, d):
        builder.link(place, near)
    for _ in range(2):
        builder.link(near, far)
    builder.link(far, b)
    for wire in (6, 7, 8, 9):
        builder.rows["wires"][wire]["dim"] = 1
        builder.rows["wires"][wire]["buffer_bytes"] = buffer_bytes
    builder.seed = next(seed for seed in range(99) if hash32(seed, 6, 0) < hash32(seed, 8, 0))
    builder.spread(minimal_vc=2, **spread)
    return builder, [a, c, d, b]


@pytest.mark.parametrize(("start_ps", "wire"), [(3100, 8), (3101, 6)])
def test_a_minimal_path_needs_credit_that_came_back_before(engine, start_ps, wire):
    # As above: the credit of the packet of c is back at 4200, when the packet of a arrives.
    builder, (a, c, _, b) = parallel(100)
    for place, at_ps in ((c, 0), (a, start_ps)):
        builder.source(place, [(at_ps, 99, b)], policy="adaptive", spread=0)
    sim = finish(engine, builder)
    expected = {6: 1, 8: 0}
    expected[wire] += 1
    assert {wire: counters(sim, wire, "grants")[0] for wire in (6, 8)} == expected


def test_packets_without_credit_on_minimal_paths_escape(engine):
    # Three packets arrive at 1100: two have the only credit of channel 2, the third is granted at 2100 on channel 0.
    builder, (a, c, d, b) = parallel(100)
    for place in (a, c, d):
        builder.source(place, [(0, 99, b)], policy="adaptive", spread=0)
    sim = finish(engine, builder)
    assert sorted(counters(sim, wire, "grants")[0] for wire in (6, 8)) == [1, 2]
    assert all(counters(sim, wire, "stall_credit_ps")[0] == 0 for wire in (6, 8))


def test_promised_credit_is_not_used_twice(engine):
    # Wire 8 is on no minimal path: a packet without credit on wire 6 uses it by the route choice, as it is idle.
    builder, (a, c, _, b) = parallel(100)
    builder.rows["wires"][8]["dim"] = 0
    for place in (a, c):
        builder.source(place, [(0, 99, b)], policy="adaptive", spread=0)
    sim = finish(engine, builder)
    assert [counters(sim, wire, "grants")[0] for wire in (6, 8)] == [1, 1]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"gap_ps": 1}, "minimal paths exclude flowlets and detours"),
        ({"detour_hi": 1}, "minimal paths exclude flowlets and detours"),
        ({"detour_vcs": 1}, "other packets use the virtual channel of minimal paths"),
    ],
)
def test_minimal_paths_have_a_virtual_channel_for_themselves(row, words):
    builder, (a, _, _, b) = parallel(100, **row)
    builder.source(a, [(0, 99, b)], policy="adaptive", spread=0)
    with pytest.raises(ScheduleError, match=words):
        Simulation(builder.build())
