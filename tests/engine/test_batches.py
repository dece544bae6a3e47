"""Fetches and operands of reductions in queues are stored by operation."""

from __future__ import annotations

import numpy as np
import pytest

from clusim.engine.simulation import Simulation
from support.engines import slots_of
from support.images import ImageBuilder, prim
from support.shifted import later

OPERATIONS = 800
BATCH = 9  # operations in the slot of a packet
FEW = 30  # packets on wires and in memories


def late_operands(slow_ps_per_byte: int, far_ps: int = 1000) -> ImageBuilder:
    """Return an endpoint that reduces packets of two members; the wire to the second is slow, and long."""
    builder = ImageBuilder()
    builder.format(header=8)
    slow = {"read_latency_ps": 20_000, "response_latency_ps": 2000}  # at least a window
    a, b = builder.endpoint(**slow), builder.endpoint(**slow)
    switch = builder.switch(unit={"latency_ps": 2000, "capacity_bytes": 1 << 20, "cost16": 1 << 16})
    up = builder.link(a, switch)
    down = builder.link(switch, b)
    builder.rows["wires"][down].update(rate_num=1, rate_den=slow_ps_per_byte, latency_ps=far_ps)
    conn = builder.conn(
        a,
        b,
        "multimem",
        packet_bytes=92,
        mgroup=builder.mgroup(a, b),
        first_group=builder.group(up),
    )
    cost = builder.cost(fixed_ps=4000)
    builder.run_alone(
        a, prim("reduceLoad", send=0), conns=(conn,), length=92 * OPERATIONS, cost=cost
    )
    return builder


@pytest.mark.parametrize("windows", [True, False])
def test_an_operation_that_waits_takes_a_packet_and_a_ninth_of_one_per_member(windows):
    """A request takes 80 ps, a fetch to the second member 8,000, an operand 1,000: nearly all wait at one time.

    One packet each, operations, fetches and operands would need 3 x 800, that is 4,096 slots.
    """
    sim = Simulation(late_operands(1000).build(), windows=windows)
    sim.run()
    assert OPERATIONS <= slots_of(sim) < 2 * (OPERATIONS + 2 * OPERATIONS // BATCH + FEW)
    sim.check_conservation()


def test_fetches_in_flight_stay_in_their_batches():
    """800 operations and 800 / 9 batches fit into 1,024 slots; 375 fetches in flight, one in 8,000 ps, do not."""
    sim = Simulation(late_operands(1000, far_ps=375 * 8000).build(), windows=True)
    sim.run()
    assert slots_of(sim) == 1024
    sim.check_conservation()


@pytest.mark.parametrize("closed_ps", range(2_000_000, 8_000_000, 1_500_001))
def test_batches_in_flight_survive_the_end_of_windows(closed_ps):
    """Windows end at 2^61 ps: fetches and operands on wires and answers in memories continue as packets."""
    image = later(late_operands(1000, far_ps=2_000_000).build(), 2**61 - closed_ps)
    ways = [Simulation(image, windows=windows) for windows in (True, False)]
    for sim in ways:
        sim.run()
        sim.check_conservation()
    assert ways[0].fingerprint() == ways[1].fingerprint()
    assert np.array_equal(ways[0].wires(), ways[1].wires())
    assert ways[0].now_ps > 2**61
