"""Gates of aggregation trees: 92 + 8 bytes per packet, 1000 ps on a wire, 100 ps for a switch.

A unit takes 1 ps per byte of every operand, and 300 ps.
"""

from __future__ import annotations

import pytest

from support.gates import assert_records_at, counters
from support.images import ImageBuilder, Place, prim

PS = 65536  # 1 ps per byte as a cost16
OPERATION = 2 * 92
UP = 1000 + 1000  # a packet from a member to its switch
DOWN = 1000 + 1000 + 10  # from the switch to a member's memory


def add_switch(builder: ImageBuilder, cost16: int = PS, **fields) -> Place:
    unit = {"latency_ps": 300, "capacity_bytes": 1, "cost16": cost16}
    return builder.switch(latency_ps=100, unit=unit, **fields)


def join(builder: ImageBuilder, place: Place, vertex: int, *prims, size: int = 92, **conn) -> int:
    """Let an endpoint aggregate `size` bytes as a member; return the instance."""
    index = builder.conn(place, place, "aggregation", packet_bytes=92, vertex=vertex, **conn)
    rows = prims or (prim("aggregate", send=0),)
    return builder.run_alone(place, *rows, conns=(index,), length=size)


def flat(cost16: int = PS, slots: int = 8, **wire) -> tuple[ImageBuilder, Place, Place, list[int]]:
    """Return a and b on one switch, the vertices of the root, a and b."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(inject_256=256), builder.endpoint()
    switch = add_switch(builder, cost16)
    up = [builder.link(place, switch, **wire) for place in (a, b)]
    leaves = [
        {"place": place, "parent": 0, "up": [w], "down": [w + 1]}
        for place, w in zip((a, b), up, strict=True)
    ]
    return builder, a, b, builder.tree({"place": switch, "slots": slots}, *leaves)


def assert_both_at(engine, builder: ImageBuilder, *times_ps: int):
    assert_records_at(engine, builder, 0, *times_ps)
    return assert_records_at(engine, builder, 1, *times_ps)


def test_an_aggregation_goes_to_the_unit_and_back_to_all(engine):
    builder, a, b, (_, *members) = flat()
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex)
    sim = assert_both_at(engine, builder, UP + OPERATION + 300 + DOWN)
    for wire in range(4):
        assert counters(sim, wire, "packets", "bytes", "payload") == (1, 100, 92)
    assert sim.mem_bytes_256().tolist() == [2 * 92 * 256, 92 * 256]


def test_the_last_member_decides(engine):
    builder, a, b, (_, *members) = flat()
    join(builder, a, members[0])
    late = join(builder, b, members[1])
    builder.rows["instances"][late]["start_ps"] = 500
    assert_both_at(engine, builder, 500 + UP + OPERATION + 300 + DOWN)


def test_a_burst_is_one_operation(engine):
    builder, a, b, (_, *members) = flat()
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex, size=184, burst=2)
    sim = assert_both_at(engine, builder, UP + 1000 + 2 * OPERATION + 300 + 1000 + DOWN)
    assert counters(sim, 1, "packets", "grants") == (2, 1)


@pytest.mark.parametrize(("slots", "second"), [(1, 9660 + 300), (2, 9360 + 300)])
def test_without_a_slot_a_packet_waits_for_the_result_before(engine, slots, second):
    # The first operation lasts from 2000 to 5680, its result is there at 5980.
    builder, a, b, (_, *members) = flat(cost16=20 * PS, slots=slots)
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex, size=184)
    assert_both_at(engine, builder, second + DOWN)


@pytest.mark.parametrize(
    ("slots", "third"),
    [
        (1, 9960 + 3680 + 300),  # sent at 6980, there at 8980, admitted with the second result
        (2, 9360 + 3680 + 300),  # sent at 6000
    ],
)
def test_a_packet_that_waits_keeps_its_buffer(engine, slots, third):
    builder, a, b, (_, *members) = flat(cost16=20 * PS, slots=slots, buffer_bytes=100)
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex, size=276)
    # The second packet leaves at 3000 and is there at 5000; with one slot it waits until 5980.
    sim = assert_both_at(engine, builder, third + DOWN)
    sent = 6980 if slots == 1 else 6000
    assert counters(sim, 0, "stall_credit_ps") == (2000 + sent - 4000,)


def test_a_window_waits_for_the_packet_that_comes_down(engine):
    builder, a, b, (_, *members) = flat()
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex, size=184, window_bytes=92)
    turn = UP + OPERATION + 300 + 1000 + 1000
    assert_both_at(engine, builder, turn + turn + 10)


def test_numbers_go_on_over_transfers(engine):
    builder, a, b, (_, *members) = flat(slots=1)
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex, prim("aggregate", send=0, repeat=2))
    turn = UP + OPERATION + 300 + DOWN
    assert_both_at(engine, builder, turn, 2 * turn)


def test_a_slice_is_not_done_before_its_pace(engine):
    builder, a, b, (_, *members) = flat()
    builder.cost(aggregate=100 * PS)
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex)
    assert_both_at(engine, builder, 9200)


def two_levels(slots: int = 8, **leaf) -> tuple[ImageBuilder, list[Place], list[int]]:
    """Return a and b on a leaf switch, c on the root's; the vertices are root, leaf, c, a and b."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b, c = (builder.endpoint() for _ in range(3))
    low, high = add_switch(builder, **leaf), add_switch(builder)
    up = [builder.link(place, low) for place in (a, b)]
    across, far = builder.link(low, high), builder.link(c, high)
    vertices = builder.tree(
        {"place": high, "slots": slots},
        {"place": low, "parent": 0, "up": [across], "down": [across + 1], "slots": slots},
        {"place": c, "parent": 0, "up": [far], "down": [far + 1]},
        {"place": a, "parent": 1, "up": [up[0]], "down": [up[0] + 1]},
        {"place": b, "parent": 1, "up": [up[1]], "down": [up[1] + 1]},
    )
    return builder, [a, b, c], [vertices[3], vertices[4], vertices[2]]


ROOT = UP + OPERATION + 300 + 2000 + OPERATION + 300  # when the root sends its first result


@pytest.mark.parametrize(("store", "leaf"), [(False, 1000 + 80 + 100), (True, 1000 + 1000 + 100)])
def test_results_climb_the_tree_and_come_down_as_copies(engine, store, leaf):
    builder, places, members = two_levels(store_and_forward=store)
    instances = [join(builder, *pair) for pair in zip(places, members, strict=True)]
    for instance, end in zip(instances, [leaf, leaf, 0], strict=True):
        sim = assert_records_at(engine, builder, instance, ROOT + end + DOWN)
    assert counters(sim, 4, "payload") == counters(sim, 5, "payload") == (92,)


def test_the_copies_share_their_buffer(engine):
    builder, places, members = two_levels()
    builder.rows["wires"][3].update(rate_den=30)  # to b
    builder.rows["wires"][5].update(buffer_bytes=100)  # from the root to the leaf
    instances = [join(builder, *pair, size=184) for pair in zip(places, members, strict=True)]
    # The copies of the first leave at ROOT + 1180, until 1000 and 3000 later; then the second may come.
    second = ROOT + 1180 + 3000 + 1000 + 1180
    for instance, end in zip(instances, [second, second + 2000, ROOT + 1000], strict=True):
        sim = assert_records_at(engine, builder, instance, end + DOWN)
    assert counters(sim, 5, "stall_credit_ps") == (second - 1180 - ROOT - 1000,)


def test_copies_down_start_on_their_first_vc(engine):
    builder, places, members = two_levels()
    builder.nvc = 2
    builder.rows["wires"][5].update(
        dateline=1
    )  # from the root to the leaf: what arrives is on VC 1
    builder.rows["wires"][1].update(buffer_bytes=100)  # to a
    instances = [join(builder, *pair) for pair in zip(places, members, strict=True)]
    # b's packet has left for a at 5180, on VC 0: the copy, there at ROOT + 1180 = 6148, waits for its credit.
    builder.source(places[1], [(4000, 92, places[0])], packet_bytes=92)
    assert_records_at(engine, builder, instances[0], 5180 + 2000 + 1000 + DOWN)


def test_copies_down_can_meet_congestion(engine):
    builder, places, members = two_levels()
    for row in builder.rows["wires"]:
        row["ecn_max_bytes"] = 1
    for pair in zip(places, members, strict=True):
        last = join(builder, *pair)
    sim = assert_records_at(engine, builder, last, ROOT + DOWN)
    sim = engine(builder.build())
    sim.run()
    # Only the copies at the leaf came in over a wire; everything else was made where it left.
    assert sim.wires()["marks"].tolist() == [0, 1, 0, 1, 0, 0, 0, 0]


def test_paths_may_lead_over_other_nodes(engine):
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(), builder.endpoint()
    plain, switch = builder.switch(latency_ps=100), add_switch(builder)
    near, on, far = builder.link(a, plain), builder.link(plain, switch), builder.link(b, switch)
    _, *members = builder.tree(
        {"place": switch},
        {"place": a, "parent": 0, "up": [near, on], "down": [on + 1, near + 1]},
        {"place": b, "parent": 0, "up": [far], "down": [far + 1]},
    )
    for place, vertex in zip((a, b), members, strict=True):
        join(builder, place, vertex)
    result = UP + 1180 + OPERATION + 300
    assert_records_at(engine, builder, 0, result + 1180 + DOWN)
    assert_records_at(engine, builder, 1, result + DOWN)


def test_two_trees_share_a_unit(engine):
    builder, a, b, (_, *members) = flat(cost16=20 * PS)
    up = {place.node: wire for place, wire in ((a, 0), (b, 2))}
    leaves = [
        {"place": p, "parent": 0, "up": [up[p.node]], "down": [up[p.node] + 1]} for p in (a, b)
    ]
    _, *others = builder.tree({"place": Place(2)}, *leaves)
    for vertices in (members, others):
        for place, vertex in zip((a, b), vertices, strict=True):
            join(builder, place, vertex)
    # One packet of each member for either tree: there at 2000 and 3000; the unit is busy until 5680.
    for instance, result in enumerate([5980, 5980, 9660, 9660]):
        assert_records_at(engine, builder, instance, result + DOWN)
