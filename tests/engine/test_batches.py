"""Fetches and operands of reductions in queues are stored by operation."""

from __future__ import annotations

import pytest

from clusim.engine.simulation import Simulation
from support.images import ImageBuilder, prim

OPERATIONS = 800
BATCH = 9  # operations in the slot of a packet
FEW = 30  # packets on wires and in memories


def late_operands(slow_ps_per_byte: int) -> ImageBuilder:
    """Return an endpoint that reduces packets of two members; the wire to the second is slow."""
    builder = ImageBuilder()
    builder.format(header=8)
    a, b = builder.endpoint(), builder.endpoint()
    switch = builder.switch(unit={"latency_ps": 300, "capacity_bytes": 1 << 20, "cost16": 1 << 16})
    up = builder.link(a, switch)
    down = builder.link(switch, b)
    builder.rows["wires"][down].update(rate_num=1, rate_den=slow_ps_per_byte)
    conn = builder.conn(
        a,
        b,
        "multimem",
        packet_bytes=92,
        mgroup=builder.mgroup(a, b),
        first_group=builder.group(up),
    )
    builder.run_alone(a, prim("reduceLoad", send=0), conns=(conn,), length=92 * OPERATIONS)
    return builder


@pytest.mark.parametrize("windows", [True, False])
def test_an_operation_that_waits_takes_a_packet_and_a_ninth_of_one_per_member(windows):
    """A request takes 80 ps, a fetch to the second member 8,000, an operand 1,000: nearly all wait at one time.

    One packet each, operations, fetches and operands would need 3 x 800, that is 4,096 slots.
    """
    sim = Simulation(late_operands(1000).build(), windows=windows)
    sim.run()
    assert OPERATIONS <= sim.packet_slots < 2 * (OPERATIONS + 2 * OPERATIONS // BATCH + FEW)
    sim.check_conservation()
