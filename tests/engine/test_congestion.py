"""Ethernet under incast: pauses lose nothing, and rate control shares a link fairly.

Senders of 50 GB/s (400 Gb/s) behind one switch send to one receiver: more than its link can carry.
"""

from __future__ import annotations

import numpy as np
import pytest

from clusim.engine.abi import Stop
from clusim.engine.simulation import Simulation
from support.images import ImageBuilder

KB = 1000
MTU = 4096
HEADER = 82  # RoCEv2 over Ethernet, preamble and gap included
LATENCY_PS = 500_000  # a hop of 100 m
RATE = (1, 20)  # bytes per ps: 50 GB/s
LINE_RATE = (1 << 30) // 20
SWITCH_PS = 400_000  # a packet counts as arrived when the switch is through with its header
ROUND_TRIP_BYTES = (2 * LATENCY_PS + SWITCH_PS) // 20


def _incast(
    senders: int,
    *,
    messages: int,
    size: int,
    start_ps: tuple[int, ...] = (),
    control: dict[str, int] | None = None,
    **wire: int,
) -> tuple[Simulation, int]:
    """Run until everything is delivered; return the simulation and the wire to the receiver."""
    b = ImageBuilder(seed=7)
    form = b.format(header=HEADER)
    switch = b.switch(latency_ps=SWITCH_PS)
    hosts = [b.endpoint(latency_ps=1) for _ in range(senders + 1)]
    links = [
        b.link(host, switch, RATE, latency_ps=LATENCY_PS, format=form, **wire) for host in hosts
    ]
    row = b.control(line_rate=LINE_RATE, min_rate=LINE_RATE // 1000, **control) if control else None
    for number, host in enumerate(hosts[1:]):
        first = start_ps[number] if start_ps else 0
        fields = {"packet_bytes": MTU, "policy": "pinned", "flags": 0}
        if row is not None:
            fields["control"] = row
        b.source(host, [(first, size, hosts[0])] * messages, **fields)
    sim = Simulation(b.build(), records=False)
    assert sim.run() == Stop.DONE
    sim.check_conservation()
    return sim, links[0] + 1


@pytest.mark.parametrize("senders", [2, 4, 8])
def test_pauses_with_headroom_lose_nothing(senders: int) -> None:
    """Headroom of a round trip and two packets is enough, whatever the number of senders."""
    xoff = 100 * KB
    buffer = xoff + ROUND_TRIP_BYTES + 2 * (MTU + HEADER)
    sim, _ = _incast(
        senders,
        messages=16,
        size=1 << 20,
        buffer_bytes=buffer,
        xoff_bytes=xoff,
        xon_bytes=xoff // 2,
    )
    wires = sim.wires()
    assert wires["overflows"].sum() == 0
    assert wires["pauses"].sum() > 0
    assert xoff < wires["held_max"].max() <= buffer
    assert wires["payload"][::2].sum() == senders * 16 << 20


def test_pauses_without_headroom_would_lose_packets() -> None:
    """Half the round trip is not enough: the counter says so."""
    xoff = 100 * KB
    buffer = xoff + ROUND_TRIP_BYTES // 2
    sim, _ = _incast(
        4, messages=16, size=1 << 20, buffer_bytes=buffer, xoff_bytes=xoff, xon_bytes=xoff // 2
    )
    assert sim.wires()["overflows"].sum() > 0


def test_pauses_keep_the_bottleneck_busy() -> None:
    """With a resume threshold of more than a round trip the receiver's link never idles."""
    xoff = 200 * KB
    sim, wire = _incast(
        4,
        messages=16,
        size=1 << 20,
        buffer_bytes=400 * KB,
        xoff_bytes=xoff,
        xon_bytes=xoff - 2 * MTU,
    )
    row = sim.wires()[wire]
    assert row["busy_ps"] / sim.now_ps > 0.98


DCQCN = {
    "alpha_timer_ps": 5_000_000,
    "increase_timer_ps": 5_000_000,
    "cnp_interval_ps": 4_000_000,
    "cnp_delay_ps": 1_500_000,
    "byte_counter": 1_000_000,
    "additive": LINE_RATE // 200,
    "hyper": LINE_RATE // 50,
    "g_65536": 256,
    "fast_recovery": 1,
}
"""Timers of the order that 400 Gb/s adapters use; a twentieth of the first paper's."""


def _shares(sim: Simulation, senders: int, messages: int, size: int) -> np.ndarray:
    """Return the bytes every sender delivered in the last third of the shortest sender's time."""
    ends = sim.message_times().reshape(senders, messages)
    stop = int(ends[:, -1].min())
    return np.array([((own > stop * 2 // 3) & (own <= stop)).sum() * size for own in ends])


def test_rate_control_converges_to_fair_shares() -> None:
    """Senders that join one after the other end with equal shares, with short queues and no pause."""
    senders, messages, size = 4, 1500, 64 << 10
    start = tuple(number * 300_000_000 for number in range(senders))
    sim, wire = _incast(
        senders,
        messages=messages,
        size=size,
        start_ps=start,
        control=DCQCN,
        buffer_bytes=2_000 * KB,
        xoff_bytes=1_500 * KB,
        xon_bytes=1_400 * KB,
        ecn_min_bytes=100 * KB,
        ecn_max_bytes=400 * KB,
        ecn_threshold=int(0.2 * 2**32),
    )
    shares = _shares(sim, senders, messages, size)
    jain = shares.sum() ** 2 / (senders * (shares**2).sum())
    assert jain > 0.98, shares
    wires = sim.wires()
    assert wires["marks"][wire] > 0
    assert wires["pauses"].sum() == 0
    assert wires["queued_max"][wire] < 1_500 * KB
    assert wires["busy_ps"][wire] / sim.now_ps > 0.85


def test_rate_control_without_congestion_runs_at_line_rate() -> None:
    """A single sender is never marked and loses nothing to its pacing."""
    sim, wire = _incast(
        1,
        messages=64,
        size=1 << 20,
        control=DCQCN,
        buffer_bytes=2_000 * KB,
        xoff_bytes=1_500 * KB,
        xon_bytes=1_400 * KB,
        ecn_min_bytes=100 * KB,
        ecn_max_bytes=400 * KB,
        ecn_threshold=int(0.2 * 2**32),
    )
    assert sim.wires()["marks"].sum() == 0
    ideal_ps = 64 * (1 << 20) * (MTU + HEADER) // MTU * 20
    assert sim.now_ps < 1.01 * ideal_ps + 3_000_000
    assert sim.wires()["payload"][wire] == 64 << 20
