"""Gates of programs: slots, visibility, step costs, CTA slots, tasks, ends, the fingerprint.

Defaults as in `test_gates`: a slice of 99 bytes takes 1000 ps on the wire and is visible after 2010 ps.
"""

from __future__ import annotations

import pytest

from clusim.engine.abi import NONE, Cause, State, Stop
from support.gates import assert_messages_at, assert_records_at, assert_tasks_end_at, finish
from support.images import ImageBuilder, Place, prim

PS = 65536  # 1 ps per byte as a cost16


def transfer(slices=1, **conn) -> tuple[ImageBuilder, tuple[int, int], tuple[Place, Place]]:
    """Return a that sends slices of 99 bytes to b, and the two instances."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, **conn)
    there = builder.run_alone(a, prim("send", send=0, repeat=slices), conns=(index,))
    here = builder.run_alone(b, prim("recv", recv=0, repeat=slices), conns=(index,))
    return builder, (there, here), (a, b)


def test_a_slice_is_done_when_sent_and_received_when_visible(engine):
    builder, (there, here), _ = transfer()
    assert_records_at(engine, builder, there, 1000)
    assert_records_at(engine, builder, here, 2010)


def test_the_tail_becomes_visible_after_its_latency(engine):
    builder, (_, here), _ = transfer(tail_ps=500)
    assert_records_at(engine, builder, here, 2510)


def test_a_sender_waits_for_the_head_when_its_slots_are_taken(engine):
    builder, (there, _), _ = transfer(slices=9, slots=8, head_ps=20000)
    eight = [1000 * (i + 1) for i in range(8)]
    assert_records_at(engine, builder, there, *eight, 2010 + 20000 + 1000)


def test_two_slots_let_two_slices_be_under_way(engine):
    builder, (there, _), _ = transfer(slices=3, slots=2)
    assert_records_at(engine, builder, there, 1000, 2000, 2010 + 1000)


def test_the_fixed_cost_is_paid_per_slice(engine):
    builder = transfer()[0]
    builder.cost(fixed_ps=300)
    builder.rows["costs"].pop(0)
    assert_records_at(engine, builder, 0, 1300)
    assert_records_at(engine, builder, 1, 2310 + 300)


def paced(size: int, **endpoint: int) -> ImageBuilder:
    """Return one slice whose CTA takes 300 ps and 20 ps per byte, twice the wire's time."""
    builder = ImageBuilder()
    a, b = builder.endpoint(**endpoint), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b)
    builder.cost(fixed_ps=300, send=20 * PS)
    builder.run_alone(a, prim("send", send=0), conns=(index,), length=size)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,), length=size)
    return builder


def test_a_slow_cta_sets_the_pace(engine):
    builder = paced(198)
    # Packets leave at 300 and at 300 + 99*20 = 2280; the CTA is done after 198 bytes.
    assert_records_at(engine, builder, 0, 300 + 198 * 20)
    assert_records_at(engine, builder, 1, 2280 + 2010 + 300)


def test_a_slow_endpoint_has_slow_ctas(engine):
    builder = paced(198, slow_1024=2048)
    assert_records_at(engine, builder, 0, 600 + 198 * 40)
    assert_records_at(engine, builder, 1, 600 + 198 * 40 + 300)  # posts when the CTA is done


def test_a_slow_fault_counts_from_the_next_slice(engine):
    builder, (there, _), _ = transfer(slices=3)
    builder.cost(fixed_ps=300)
    builder.rows["costs"].pop(0)
    builder.fault(1300, index=0, num=2048)  # before the second slice, whose gate opens then
    assert_records_at(engine, builder, there, 1300, 1300 + 600 + 1000, 2900 + 600 + 1000)


def test_bytes_on_the_wire_expand_with_the_protocol(engine):
    builder, (there, _), _ = transfer(expand_120=240)
    assert_records_at(engine, builder, there, 2000)


def test_a_copy_takes_its_pace_and_no_wire(engine):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint()
    builder.cost(fixed_ps=70, copy=3 * PS)
    instance = builder.run_alone(a, prim("copy"), conns=(), length=100)
    assert_records_at(engine, builder, instance, 70 + 300)


def test_flags_cross_without_data(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    flag = builder.conn(a, b, "flag", tail_ps=1234)
    builder.cost(fixed_ps=70)
    signal = builder.run_alone(a, prim("signal", send=0, flags=1), conns=(flag,), length=0)
    wait = builder.run_alone(b, prim("waitSignal", recv=0, flags=1), conns=(flag,), length=0)
    assert_records_at(engine, builder, signal, 70)
    assert_records_at(engine, builder, wait, 70 + 1234 + 70)


def test_slices_are_rounded_up_to_16_bytes_and_empty_ones_skipped(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b)
    sizes = {"length": 70, "slices": 4}  # up16(18) = 32: 32, 32, 6 and nothing
    there = builder.run_alone(a, prim("send", send=0), conns=(index,), **sizes)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,), **sizes)
    assert_records_at(engine, builder, there, 330, 660, 730)


@pytest.mark.parametrize(
    ("mode", "length", "chunk", "expected"),
    [
        (0, 90, 30, [30, 30, 30]),
        (0, 70, 30, [24, 24, 22]),  # one ragged loop: chunks of ceil(70/3)
        (0, 100, 30, [30, 30, 30, 4, 4, 2]),  # align 4: a last loop of 10 bytes
        (1, 50, 30, [30, 30, 30, 20, 20, 10]),  # three blocks of 50, cut at the limit 140
        (0, 0, 30, []),
    ],
)
def test_chunks_of_ragged_ranges(engine, mode, length, chunk, expected):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint()
    builder.cost(copy=PS)
    template = builder.template(prim("copy", step=1, repeat=3), nchunks=3, mode=mode)
    sizes = {"length": length, "chunk_bytes": chunk, "stride": 50, "limit": 140, "align": 4}
    builder.instance(builder.task(), a, template, **sizes)
    times = [sum(expected[: i + 1]) for i in range(len(expected))]
    assert_records_at(engine, builder, 0, *times)


def test_rotation_turns_the_chunks(engine):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint()
    builder.cost(copy=PS)
    template = builder.template(prim("copy", base=-1, coef=1, step=-1, repeat=3), nchunks=3)
    sizes = {"length": 70, "chunk_bytes": 24, "rotation": 1}
    builder.instance(builder.task(), a, template, **sizes)
    assert_records_at(engine, builder, 0, 24, 24 + 22, 24 + 22 + 24)  # chunks 0, 2, 1


def test_ctas_wait_for_a_slot_in_order(engine):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(cta_slots=1)
    builder.cost(copy=PS)
    template = builder.template(prim("copy"))
    task = builder.task()
    for length in (500, 100, 200):
        builder.instance(task, a, template, length=length)
    sim = finish(engine, builder)
    assert sim.records()["time_ps"].tolist() == [500, 600, 800]
    assert sim.records().size == 0


def test_instances_that_start_at_the_same_time_queue_by_id_for_a_slot(engine):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(cta_slots=1)
    builder.cost(copy=PS)
    template = builder.template(prim("copy"))
    delay = builder.task("delay", delay_ps=500)
    holder, follower, late = builder.task(), builder.task(after=(1,)), builder.task(after=(delay,))
    for task in (holder, follower, late):
        builder.instance(task, a, template, length=500)
    # At 500 `late` starts in the first wave and finds no slot; `follower` starts in the second.
    assert_tasks_end_at(engine, builder, 500, 500, 1000, 1500)


def test_the_lower_cta_slot_is_asked_first(engine):
    builder, _, (a, b) = transfer()
    other = builder.conn(a, b)
    late = builder.run_alone(a, prim("send", send=0), conns=(other,))
    builder.run_alone(b, prim("recv", recv=0), conns=(other,))
    assert_records_at(engine, builder, 0, 1000)
    assert_records_at(engine, builder, late, 2000)


def test_tasks_follow_their_predecessors(engine):
    builder = ImageBuilder()
    builder.format()
    builder.endpoint()
    first = builder.task("delay", delay_ps=100)
    second = builder.task("delay", delay_ps=250)
    both = builder.task("marker", (first, second))
    builder.task("delay", (both,), delay_ps=0)
    builder.task("program", (first,))
    sim = assert_tasks_end_at(engine, builder, 100, 250, 250, 250, 100)
    assert sim.task_times()[0].tolist() == [0, 0, 250, 250, 100]


def test_a_receive_without_a_send_is_a_deadlock(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    builder.conn(a, b)
    index = builder.conn(a, b)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,))
    sim = engine(builder.build())
    assert sim.run() == Stop.DEADLOCK
    assert sim.instance_states()[0].tolist() == (State.WAIT_RECV, 0, 1, 0, 0)
    assert sim.task_times()[1].tolist() == [-1]


def test_a_send_without_a_receive_runs_out_of_slots(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, slots=2)
    builder.run_alone(a, prim("send", send=0, repeat=3), conns=(index,))
    sim = engine(builder.build())
    assert sim.run() == Stop.DEADLOCK
    state = sim.instance_states()[0]
    assert (state["state"], state["conn"], state["seq"]) == (State.WAIT_SEND, 0, 2)


def test_run_stops_after_the_given_time(engine):
    builder, _, _ = transfer()
    sim = engine(builder.build())
    assert sim.run(until_ps=1500) == Stop.TIME
    assert sim.now_ps == 1500
    assert sim.records()["time_ps"].tolist() == [1000]
    assert sim.instance_states()["state"].tolist() == [State.DONE, State.WAIT_RECV]
    assert sim.run() == Stop.DONE
    assert sim.run() == Stop.DONE
    assert sim.now_ps == 2010


def test_busy_time_is_cut_at_the_time_of_reading(engine):
    builder, _, _ = transfer()
    sim = engine(builder.build())
    sim.run(until_ps=400)
    assert sim.wires()[0]["busy_ps"] == 400


def mix(a: int, b: int) -> int:
    """The mixing function, from its definition."""
    mask = (1 << 64) - 1
    x = (a + 0x9E3779B97F4A7C15 + b * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_fingerprint_of_one_message_by_hand(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    builder.source(a, [(0, 99, b)])
    sim = assert_messages_at(engine, builder, 2010)
    expected = mix(mix(mix(3, 2010), 0), 0)
    for value in (1, 100, 1000, 0, 0, 0, 0, 0, *[0] * 8):
        expected = mix(expected, value)
    assert sim.fingerprint() == expected


def test_the_same_image_gives_the_same_fingerprint(engine):
    image = transfer()[0].build()
    prints = []
    for _ in range(2):
        sim = engine(image)
        sim.run()
        prints.append(sim.fingerprint())
    assert prints[0] == prints[1]


def reasons(sim, instance: int) -> list[tuple[int, ...]]:
    """Return (gate, done, cause, wire) of the slices of an instance."""
    rows = sim.records()
    rows = rows[rows["instance"] == instance]
    return [(int(r["gate_ps"]), int(r["time_ps"]), int(r["cause"]), int(r["wire"])) for r in rows]


def test_records_say_what_a_slice_waited_for(engine):
    builder, (there, _), _ = transfer(slices=3, slots=2)
    # The third slice waits for room, which the receiver makes at 2010.
    expected = [(0, 1000, Cause.NONE, 0), (1000, 2000, Cause.NONE, 0), (2010, 3010, Cause.SEND, 0)]
    assert reasons(finish(engine, builder), there) == expected
    builder, (_, here), _ = transfer(slices=2)
    expected = [(2010, 2010, Cause.RECV, NONE), (3010, 3010, Cause.RECV, NONE)]
    assert reasons(finish(engine, builder), here) == expected


def test_records_name_the_wire_that_was_last(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    for rate in ((1, 10), (1, 20), (1, 10)):
        builder.link(a, b, rate)
    index = builder.conn(a, b)
    there = builder.run_alone(a, prim("send", send=0), conns=(index,), length=297)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,), length=297)
    assert reasons(finish(engine, builder), there) == [(0, 2000, Cause.NONE, 2)]


def test_records_of_reads_name_the_wire_the_data_came_over(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, "read")
    builder.run_alone(a, prim("signal", send=0, flags=1), conns=(index,), length=0)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,))
    sim = finish(engine, builder)
    assert [row[3] for row in reasons(sim, 1)] == [0]
