"""Gates at times at which a clock in 2^-16 ps has no room in 64 bits: memory, reduction unit, aggregation, kernels.

2^47 ps is the first such time. The numbers are those of an early run plus the start, derived anew beside each test.
"""

from __future__ import annotations

import pytest

from clusim.base.errors import RangeExceeded
from clusim.engine.abi import Stop
from clusim.engine.ranges import DURATION_END_PS, TIME_END_PS
from support.images import ImageBuilder, prim
from support.shifted import later

PS = 65536  # 1 ps per byte as a cost16
STARTS_PS = [2**47 - 1500, 2**47, 2**50 + 1, DURATION_END_PS - 10**6]
ENDED_PS = TIME_END_PS - 1


@pytest.fixture(params=STARTS_PS)
def start_ps(request):
    """When the run starts."""
    return request.param


def assert_slices_at(engine, builder: ImageBuilder, start_ps: int, *times_ps: int):
    """The slices of instance 0 are done this long after the start, and not 1 ps before."""
    image = later(builder.build(), start_ps)
    sim = engine(image)
    for k, time_ps in enumerate(times_ps):
        sim.run(until_ps=start_ps + time_ps - 1)
        assert sim.instance_states()["seq"][0] == k
    assert sim.run() == Stop.DONE
    found = sim.records()
    assert found["time_ps"][found["instance"] == 0].tolist() == [start_ps + t for t in times_ps]
    sim.check_conservation()


def test_memory_accepts_late_packets_at_its_own_rate(engine, start_ps):
    """Packets of 99 + 1 bytes at 10 ps per byte into a memory that takes 20.5 ps per byte."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint(mem_cost16=20 * PS + PS // 2)
    builder.link(a, b)
    builder.source(a, [(0, 3 * 99, b)])
    sim = engine(later(builder.build(), start_ps))
    # The first arrives at 1000 + 1000 and is accepted at once, the third two times 2029.5 ps later; then 10 ps.
    end_ps = start_ps + 2000 + 2 * 2029 + 1 + 10
    sim.run(until_ps=end_ps - 1)
    assert sim.message_times()[0] == -1
    assert sim.run(until_ps=end_ps) == Stop.DONE
    assert sim.message_times()[0] == end_ps
    sim.check_conservation()


def test_a_unit_reduces_late_operands_at_its_own_rate(engine, start_ps):
    """Two operations of 2 x 92 bytes in a unit that takes 20 ps per byte: 3680 ps each."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(), builder.endpoint()
    unit = {"latency_ps": 300, "capacity_bytes": 1 << 20, "cost16": 20 * PS}
    switch = builder.switch(latency_ps=100, unit=unit)
    up = builder.link(a, switch)
    builder.link(switch, b)
    group, members = builder.group(up), builder.mgroup(a, b)
    conn = builder.conn(a, b, "multimem", packet_bytes=92, mgroup=members, first_group=group)
    builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=184)
    # Request 1080, fetch 1080, 20 ps, data 2000: both operands of the first at 4180. The unit is never idle
    # after that. The second result leaves the switch 300 ps after its operation, and takes 2000 and 30 more.
    assert_slices_at(engine, builder, start_ps, 4180 + 2 * 3680 + 300 + 2000 + 30)


def test_a_switch_aggregates_late_at_its_own_rate(engine, start_ps):
    """Two operations of 2 x 92 bytes, 20 ps per byte; every member sends both at once."""
    builder = ImageBuilder()
    builder.format(header=8)
    ends = [builder.endpoint(), builder.endpoint()]
    unit = {"latency_ps": 300, "capacity_bytes": 1, "cost16": 20 * PS}
    switch = builder.switch(latency_ps=100, unit=unit)
    up = [builder.link(place, switch) for place in ends]
    leaves = [
        {"place": place, "parent": 0, "up": [w], "down": [w + 1]}
        for place, w in zip(ends, up, strict=True)
    ]
    _, *members = builder.tree({"place": switch, "slots": 8}, *leaves)
    for place, vertex in zip(ends, members, strict=True):
        conn = builder.conn(place, place, "aggregation", packet_bytes=92, vertex=vertex)
        builder.run_alone(place, prim("aggregate", send=0), conns=(conn,), length=184)
    # The first pair is there at 2000, the unit then works for two operations; 300 ps, 2000 ps down, 10 ps.
    assert_slices_at(engine, builder, start_ps, 2000 + 2 * 3680 + 300 + 2000 + 10)


def test_a_late_kernel_takes_its_time(engine, start_ps):
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(mem_quantum_ps=1024, mem_cost16=PS)
    builder.task("kernel", compute_ps=1 << 14, sms=16, endpoint=a.ep)
    sim = engine(later(builder.build(), start_ps))
    assert sim.run() == Stop.DONE
    assert sim.task_times()[1].tolist()[0] == start_ps + (1 << 14)
    sim.check_conservation()


# ---- the end of time: t is allowed up to 2^62 - 1


def _one_copy(fixed_ps: int) -> ImageBuilder:
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint()
    builder.cost(fixed_ps=fixed_ps)
    builder.run_alone(a, prim("copy"), conns=(), length=8)
    return builder


def _send(**cost: int) -> ImageBuilder:
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    conn = builder.conn(a, b, tail_ps=500)
    builder.cost(**cost)
    builder.run_alone(a, prim("send", send=0), conns=(conn,), length=99)
    return builder


def _kernel() -> ImageBuilder:
    builder = ImageBuilder()
    builder.format()
    a = builder.endpoint(mem_quantum_ps=1024, mem_cost16=PS)
    builder.task("kernel", compute_ps=2048, sms=16, endpoint=a.ep)
    return builder


@pytest.mark.parametrize(
    ("builder", "longest_ps", "who"),
    [
        # A step of 700 ps.
        (_one_copy(700), 700, "instance 0: a step"),
        # Its packet leaves in 1000 ps, arrives at 2000, is visible at 2010; the flag at 2510, the credit at 3000.
        (_send(), 3000, "wire 0: a packet"),
        # 99 bytes at 100 ps each: the slice is paced to 9900 ps, long after its packet, and its flag is seen then.
        (_send(send=100 * PS), 10400, "connection 0: a flag"),
        # Two epochs, and no third one that would start with the kernel's end.
        (_kernel(), 2048, "task 0: it would end"),
    ],
)
def test_what_ends_in_the_last_picosecond_is_done_and_one_later_is_refused(
    engine, builder, longest_ps, who
):
    image = builder.build()
    sim = engine(later(image, ENDED_PS - longest_ps))
    assert sim.run() == Stop.DONE
    sim.check_conservation()
    sim = engine(later(image, ENDED_PS - longest_ps + 1))
    with pytest.raises(RangeExceeded) as caught:
        _to_the_end(sim)
    assert "or after 2^62 ps (53 days of simulated time)" in str(caught.value)
    assert str(caught.value).endswith("; simulate less at once")
    assert str(caught.value).startswith(who)


def _to_the_end(sim) -> None:
    """Run, and drain what is under way: a credit may be later than all that was asked for."""
    sim.run()
    sim.check_conservation()
