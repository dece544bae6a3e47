"""Gates of endpoints and switches that compute: reads, multicast, reduction, memory, kernels.

Defaults as in `test_gates`; requests have the header only, 8 bytes here, and payload packets 92 + 8 bytes, so
that a request takes 80 ps and a packet 1000 ps on a wire.
"""

from __future__ import annotations

import pytest

from support.gates import assert_messages_at, assert_records_at, assert_tasks_end_at, counters
from support.images import ImageBuilder, Place, prim

PS = 65536  # 1 ps per byte as a cost16
BIG = 1 << 14


def reader(size=92, **conn) -> tuple[ImageBuilder, int]:
    """Return b that reads from a over one link, and the reading instance."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, "read", packet_bytes=92, **conn)
    builder.run_alone(a, prim("send", send=0), conns=(index,), length=size)
    return builder, builder.run_alone(b, prim("recv", recv=0), conns=(index,), length=size)


RESPONSE_STARTS = 80 + 1000 + 20  # request, propagation, read latency


def test_a_read_takes_request_memory_response_and_response_latency(engine):
    builder, instance = reader()
    sim = assert_records_at(engine, builder, instance, RESPONSE_STARTS + 1000 + 1000 + 30)
    assert counters(sim, 1, "bytes", "payload") == (8, 0)
    assert counters(sim, 0, "bytes", "payload") == (100, 92)
    assert sim.mem_bytes_256().tolist() == [92 * 256, 92 * 256]


def test_without_a_window_requests_follow_each_other(engine):
    builder, instance = reader(size=184)
    assert_records_at(engine, builder, instance, RESPONSE_STARTS + 2000 + 1000 + 30)


def test_a_window_of_one_packet_waits_for_each_response(engine):
    builder, instance = reader(size=184, window_bytes=92)
    response = RESPONSE_STARTS + 1000 + 1000  # at the requester, where the window opens
    assert_records_at(engine, builder, instance, response + response + 30)


def test_a_window_counts_per_wire_of_the_group(engine):
    builder, instance = reader(size=184, window_bytes=92)
    places = (Place(0, 0), Place(1, 1))
    builder.link(*places)
    # Two at once; a's memory accepts the second request 1 ps later.
    assert_records_at(engine, builder, instance, RESPONSE_STARTS + 1000 + 1000 + 30 + 1)


def test_a_read_can_feed_a_write_of_the_same_slice(engine):
    builder = ImageBuilder()
    builder.format(header=8)
    a, b, c = (builder.endpoint() for _ in range(3))
    builder.link(a, b)
    builder.link(b, c)
    read = builder.conn(a, b, "read", packet_bytes=92)
    write = builder.conn(b, c, packet_bytes=92)
    builder.cost(fixed_ps=100)
    builder.run_alone(a, prim("send", send=0), conns=(read,), length=92)
    middle = builder.run_alone(
        b, prim("recvCopySend", recv=0, send=1), conns=(read, write), length=92
    )
    last = builder.run_alone(c, prim("recv", recv=0), conns=(write,), length=92)
    read_done = 100 + 100 + RESPONSE_STARTS + 1000 + 1000 + 30  # both pay the fixed cost
    assert_records_at(engine, builder, middle, read_done + 1000)
    assert_records_at(engine, builder, last, read_done + 1000 + 1010 + 100)


def fan(slow=(1, 10), capacity=1 << 20, unit_cost16=PS, **fields):
    """Return members a, b on a switch with a reduction unit; `slow` is the rate to b."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(), builder.endpoint()
    unit = {"latency_ps": 300, "capacity_bytes": capacity, "cost16": unit_cost16}
    switch = builder.switch(latency_ps=100, unit=unit)
    up = builder.link(a, switch, **fields)
    down = builder.link(switch, b)
    builder.rows["wires"][down].update(rate_num=slow[0], rate_den=slow[1])
    conn = builder.conn(
        a,
        b,
        "multimem",
        packet_bytes=92,
        mgroup=builder.mgroup(a, b),
        first_group=builder.group(up),
    )
    return builder, a, conn


def test_a_multicast_buffer_is_free_when_the_last_copy_left(engine):
    builder, a, conn = fan(slow=(1, 30), buffer_bytes=100)
    store = prim("multicastStore", send=0)
    instance = builder.run_alone(a, store, conns=(conn,), length=184)
    # At the switch at 1000 + 80 + 100; copies until 2180 and 1180 + 3000; credit back at 5180.
    sim = assert_records_at(engine, builder, instance, 5180 + 1000)
    assert counters(sim, 0, "stall_credit_ps") == (5180 - 1000,)


STORED = 1000 + 80 + 100 + 10000 + 1000 + 10
"""A store of 92 B: its end on the first wire, header, switch, the slow copy to b, its flight and memory."""


def test_a_flag_after_a_multicast_waits_until_all_members_have_it(engine):
    builder, a, conn = fan(slow=(1, 100))
    flag = builder.conn(a, a, "flag", slots=1)
    store, tell = prim("multicastStore", send=0), prim("signal", send=1)
    builder.run_alone(a, store, tell, conns=(conn, flag), length=92)
    waiter = builder.run_alone(a, prim("waitSignal", recv=0), conns=(flag,), length=92)
    assert_records_at(engine, builder, waiter, STORED)


def test_a_multicast_begins_when_the_last_has_left_and_ends_after_it_has_arrived(engine):
    builder, a, conn = fan(slow=(1, 100))
    store = prim("multicastStore", send=0)
    instance = builder.run_alone(a, store, store, store, conns=(conn,), length=92)
    # The second leaves at 2000 and is done when the first is complete; its copy to b follows the first's,
    # and is complete 10000 later.
    assert_records_at(engine, builder, instance, 1000, STORED, STORED + 10000)


REDUCED = (
    80 + 1000  # request at the unit
    + 80 + 1000 + 20  # fetch at the member, its data ready
    + 1000 + 1000  # data at the unit
    + 2 * 92  # both operands at 1 ps per byte
    + 300
)  # fmt: skip


def test_a_reduction_goes_to_the_members_and_back(engine):
    builder, a, conn = fan()
    instance = builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=92)
    sim = assert_records_at(engine, builder, instance, REDUCED + 1000 + 1000 + 30)
    assert counters(sim, 1, "packets", "bytes", "payload") == (2, 108, 92)


def test_a_reduction_can_be_multicast_to_all_members(engine):
    builder, a, conn = fan()
    instance = builder.run_alone(a, prim("reduceLoadStore", send=0), conns=(conn,), length=92)
    store = REDUCED + 1000 + 1000 + 30  # the result is in registers and goes out again
    assert_records_at(engine, builder, instance, store + 1000 + 80 + 100 + 1000 + 1000 + 10)


def test_a_full_unit_lets_requests_wait(engine):
    builder, a, conn = fan(capacity=92)
    instance = builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=184)
    # The second is admitted with the first one's result, behind which its fetch to a leaves.
    assert_records_at(engine, builder, instance, REDUCED + 1000 + (REDUCED - 1080) + 2000 + 30)


def test_a_unit_smaller_than_a_packet_admits_one_at_a_time(engine):
    builder, a, conn = fan(capacity=1)
    instance = builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=184)
    assert_records_at(engine, builder, instance, REDUCED + 1000 + (REDUCED - 1080) + 2000 + 30)


def test_a_slow_unit_limits_the_throughput(engine):
    builder, a, conn = fan(unit_cost16=20 * PS)
    instance = builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=184)
    operation = 2 * 92 * 20
    second = REDUCED - 2 * 92 + 2 * operation
    assert_records_at(engine, builder, instance, second + 1000 + 1000 + 30)


def memory(share_256=256, size=297, **wire) -> ImageBuilder:
    """Return a that writes to b, whose memory takes 1980 ps per packet of 99 bytes."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint(mem_cost16=20 * PS, deliver_256=share_256)
    builder.link(a, b, **wire)
    builder.source(a, [(0, size, b)])
    return builder


def test_memory_accepts_packets_at_its_own_rate(engine):
    # Packets arrive at 2000, 3000, 4000; accepted at 2000, 3980, 5960.
    assert_messages_at(engine, memory(), 5960 + 10)


def test_memory_charges_the_share_the_preset_says(engine):
    # 495 ps per packet: no wait.
    assert_messages_at(engine, memory(share_256=64), 4000 + 10)


def test_credit_returns_when_memory_accepted_the_packet(engine):
    builder = memory(buffer_bytes=100)
    builder.rows["endpoints"][1]["mem_cost16"] = 40 * PS  # 3960 ps
    # Accepted at 2000; sent at 3000, arrives at 5000, accepted at 5960; sent at 6960, arrives at 8960,
    # accepted at 9920.
    assert_messages_at(engine, builder, 9920 + 10)


def test_injected_bytes_take_memory_time_too(engine):
    builder = ImageBuilder()
    a = builder.endpoint(mem_cost16=20 * PS, inject_256=256)
    b = builder.endpoint()
    builder.link(a, b, rate=(1, 1))
    builder.source(b, [(0, 99, a)])  # arrives at 1100
    builder.source(a, [(1000, 99, b)])  # takes a's memory from 1000 to 2980
    sim = assert_messages_at(engine, builder, 2980 + 10, 1000 + 1110)
    assert sim.mem_bytes_256().tolist() == [2 * 99 * 256, 99 * 256]


def kernels(count=1, **fields) -> tuple[ImageBuilder, Place]:
    """Return kernels of 2^14 ps with all 16 SMs on one endpoint."""
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(mem_quantum_ps=1024, mem_cost16=PS, cta_slots=4, **fields)
    for _ in range(count):
        builder.task("kernel", compute_ps=BIG, sms=16, endpoint=a.ep)
    return builder, a


def test_a_kernel_alone_takes_its_compute_time(engine):
    assert_tasks_end_at(engine, kernels()[0], BIG)


def test_a_slow_endpoint_slows_its_kernels(engine):
    assert_tasks_end_at(engine, kernels(slow_1024=2048)[0], 2 * BIG)


def test_two_kernels_share_the_sms(engine):
    assert_tasks_end_at(engine, kernels(2)[0], 2 * BIG, 2 * BIG)


def test_a_cta_takes_its_sms_from_the_kernel(engine):
    builder, a = kernels()
    builder.cost(copy=PS)
    builder.run_alone(a, prim("copy"), conns=(), length=8192, sm=8)
    # 8192 ps at half speed, the rest alone.
    assert_tasks_end_at(engine, builder, 8192 + (BIG - 4096), 8192)


def test_a_memory_bound_kernel_takes_its_memory_time(engine):
    builder, _ = kernels()
    builder.rows["tasks"][0].update(compute_ps=1, mem_bytes=BIG)
    assert_tasks_end_at(engine, builder, BIG)


def contended(rate=(1, 2), size=32704, start=4096) -> ImageBuilder:
    """Return a flow into an endpoint, and a kernel there that needs all its memory for 2^14 ps."""
    builder = ImageBuilder()
    builder.format(header=1)
    a = builder.endpoint()
    b = builder.endpoint(mem_quantum_ps=1024, mem_cost16=PS)
    builder.link(a, b, rate=rate)
    builder.source(a, [(0, size, b)], packet_bytes=63)
    before = builder.task("delay", delay_ps=start)
    builder.task("kernel", (before,), compute_ps=1, mem_bytes=BIG, sms=16, endpoint=b.ep)
    return builder


def test_communication_slows_a_memory_bound_kernel(engine):
    builder = contended()
    builder.rows["endpoints"][1]["deliver_256"] = 512
    # A packet of 63 bytes every 128 ps is 8 x 126 = 1008 bytes per epoch of 1024: the kernel keeps its
    # half. Its first epoch is undisturbed (1/16 of it), 30 more take 1/32 each.
    sim = engine(builder.build())
    sim.run()
    assert sim.task_times()[1].tolist() == [4096, 4096 + 1024 + 30 * 1024]


def test_a_kernel_that_follows_another_at_once_has_its_own_first_epoch(engine):
    builder = contended(size=40000)
    builder.rows["endpoints"][1]["deliver_256"] = 512
    builder.task(
        "kernel", (1,), **{k: v for k, v in builder.rows["tasks"][1].items() if k != "kind"}
    )
    sim = engine(builder.build())
    sim.run()
    assert sim.task_times()[1].tolist() == [4096, 35840, 35840 + 31 * 1024]


def test_a_kernel_gets_its_new_speed_only_when_speeds_are_set(engine):
    builder, a = kernels()
    builder.rows["endpoints"][0]["mem_quantum_ps"] = 10**6
    builder.fault(1000, index=a.ep, num=2048)
    builder.cost(copy=PS)
    builder.run_alone(a, prim("copy"), conns=(), length=4096, sm=0)  # changes no SMs
    assert_tasks_end_at(engine, builder, BIG, 4096)


@pytest.mark.parametrize(("start", "per_packet"), [(1, 126), (10**6, 64)])
def test_a_memory_bound_kernel_slows_communication(engine, start, per_packet):
    builder = contended(rate=(1, 1), size=630, start=start)
    # Packets arrive every 64 ps from 1064 on. The kernel leaves communication half of the memory.
    accepted = 1064 + 9 * per_packet
    sim = engine(builder.build())
    sim.run()
    assert sim.message_times().tolist() == [accepted + 10]
