"""Ethernet under incast: pauses lose nothing. Rate control is tested as shipped, in `tests/laws/test_rate_control.py`.

Senders of 50 GB/s (400 Gb/s) behind one switch send to one receiver: more than its link can carry.
"""

from __future__ import annotations

import pytest

from clusim.engine.abi import Stop
from clusim.engine.simulation import Simulation
from support.images import ImageBuilder

KB = 1000
MTU = 4096
HEADER = 82  # RoCEv2 over Ethernet, preamble and gap included
LATENCY_PS = 500_000  # a hop of 100 m
RATE = (1, 20)  # bytes per ps: 50 GB/s
SWITCH_PS = 400_000  # a packet counts as arrived when the switch is through with its header
ROUND_TRIP_BYTES = (2 * LATENCY_PS + SWITCH_PS) // 20


def _incast(
    senders: int,
    *,
    messages: int,
    size: int,
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
    for host in hosts[1:]:
        fields = {"packet_bytes": MTU, "policy": "pinned", "flags": 0}
        b.source(host, [(0, size, hosts[0])] * messages, **fields)
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
