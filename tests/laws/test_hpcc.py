"""HPCC: its estimate of a link by hand, and its claims: links used to 95%, fairly, with hardly any queue or pause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.arrays import Array
from clusim.engine.abi import Stop
from clusim.engine.simulation import Simulation
from clusim.policies.choice import BoundSender, Sender, find_policy
from clusim.policies.kinds import SwitchHop
from clusim.simulation.flows import Flow
from support.images import ImageBuilder

LINE = 53_687_091  # 400 Gb/s in bytes per 2^30 ps
BYTES_PER_PS = 0.05
MTU_BYTES, HEADER_BYTES = 4096, 82
BASE_PS = 10 * 10**6
STEP_BYTES = 500_000 * 26 / 65536
"""Step of the window: 20 of 50,000 Mb/s, of the product of 400 Gb/s and the round trip."""


def _flow() -> Any:
    """Return a flow on a NIC of 400 Gb/s, after a first packet that met an idle link."""
    of = find_policy("hpcc")
    flow = of.cls()
    rates = (("line_rate", LINE), ("min_rate", LINE // 1000))
    for key, value in zip(of.fields, BoundSender(Sender("hpcc"), rates).record, strict=True):
        setattr(flow, key, list(value) if isinstance(value, tuple) else value)
    flow.acked(0, MTU_BYTES, BASE_PS, 0, [SwitchHop(0, 0, 0, LINE, 3)])
    return flow


def test_the_first_packet_only_sets_the_base() -> None:
    flow = _flow()
    assert flow.reference == pytest.approx(BASE_PS * BYTES_PER_PS, rel=1e-3)
    assert flow.rate == LINE
    assert flow.window == 2**62


@pytest.mark.parametrize(
    ("passed_ps", "sent_bytes", "queue_bytes", "use"),
    [
        (BASE_PS, 250_000, 0, 0.5),  # half the link, over a round trip
        (BASE_PS // 2, 125_000, 0, 0.75),  # the same for half of one: the mean with 1
        (BASE_PS, 500_000, 250_000, 1.5),  # a full link, and half a product in its queue
        (3 * BASE_PS, 1_500_000, 250_000, 1.5),  # the same for longer
    ],
)
def test_bytes_in_flight_of_a_link_by_hand(
    passed_ps: int, sent_bytes: int, queue_bytes: int, use: float
) -> None:
    """Bytes sent over rate, and the smaller queue over rate times base, weighted by the share of a round trip."""
    flow = _flow()
    flow.last_queue[0] = queue_bytes
    hops = [SwitchHop(passed_ps, queue_bytes + 1000, sent_bytes, LINE, 3)]
    flow.acked(passed_ps, MTU_BYTES, BASE_PS, 0, hops)
    assert flow.use / 65536 == pytest.approx(use, rel=2e-3)
    expected = 500_000.0
    if use >= 0.95:
        expected = 500_000 * 0.95 / use + STEP_BYTES
    assert flow.window == pytest.approx(expected, rel=2e-3)
    assert flow.rate == pytest.approx(flow.window / BASE_PS * 2**30, rel=2e-3)


def test_the_busiest_hop_counts_and_another_path_is_measured_anew() -> None:
    flow = _flow()
    flow.acked(1, MTU_BYTES, BASE_PS, 0, [SwitchHop(1, 0, 0, LINE, 5), SwitchHop(1, 0, 0, LINE, 6)])
    assert flow.use == 65536
    hops = [SwitchHop(BASE_PS, 0, 100_000, LINE, 5), SwitchHop(BASE_PS, 0, 300_000, LINE, 6)]
    flow.acked(BASE_PS, MTU_BYTES, BASE_PS, 0, hops)
    assert flow.use / 65536 == pytest.approx(0.6, rel=2e-3)


def test_a_reference_counts_a_round_trip_once() -> None:
    """Packets of one round trip divide the same reference window, not the result of the last packet."""
    flow = _flow()
    flow.in_flight = 500_000
    windows = []
    for number in range(1, 6):
        now_ps = number * 2 * BASE_PS
        hops = [SwitchHop(now_ps, 0, 2 * number * 950_000, LINE, 3)]
        flow.acked(now_ps, MTU_BYTES, BASE_PS, 0, hops)
        windows.append(flow.window)
    assert windows[0] == pytest.approx(500_000 * 0.95 / 1.9 + STEP_BYTES, rel=2e-3)
    assert windows[1:] == pytest.approx([windows[0] / 2 + STEP_BYTES] * 4, rel=2e-3)


def test_a_bottleneck_is_used_to_95_percent() -> None:
    flow = [Flow(8, 0, 64 << 20, 0)]
    free, held = (
        clusim.traffic("hgx-h20", nodes=2, flows=flow, policy=f"sender={name}").time_ps
        for name in ("none", "hpcc")
    )
    assert 0.945 < free / held < 0.955


def _incast(flows: int, policy: str) -> tuple[Simulation, int]:
    """Return a run of endless flows, 300 us apart, into one NIC of 400 Gb/s, and the wire to it."""
    builder = ImageBuilder(seed=7)
    wire = {"latency_ps": 500_000, "format": builder.format(header=HEADER_BYTES)}
    wire |= {"xoff_bytes": 800_000, "xon_bytes": 780_000, "buffer_bytes": 1_200_000}
    switch = builder.switch(latency_ps=400_000)
    hosts = [builder.endpoint(latency_ps=1) for _ in range(flows + 1)]
    links = [builder.link(host, switch, (1, 20), **wire) for host in hosts]
    figures = {"line_rate": LINE, "min_rate": LINE // 1000, "cnp_delay_ps": 4_000_000}
    row = builder.control(Sender(policy) if policy else None, **figures)
    for number, host in enumerate(hosts[1:]):
        messages = [(number * 300_000_000, 1 << 28, hosts[0])] * 4
        fields = {"packet_bytes": MTU_BYTES, "policy": "pinned", "flags": 0, "control": row}
        builder.source(host, messages, **fields)
    return Simulation(builder.build(), records=False), links[0] + 1


def _settled(sim: Simulation, wire: int, flows: int) -> tuple[Array, Array]:
    """Return queues of a wire [bytes] at 100 times from 20 to 22 ms, and the bytes of each flow between them."""
    queues, sent = [], []
    for number in range(101):
        assert sim.run(20 * 10**9 + number * 20_000_000) == Stop.TIME
        counters = sim.wires()
        queues.append(int(counters["queued_bytes"][wire]))
        sent.append(counters["bytes"][wire + 1 : wire + 1 + 2 * flows : 2].astype(np.int64))
    return np.array(queues), sent[-1] - sent[0]


@pytest.mark.parametrize("flows", [4, 8])
def test_queues_stay_near_zero_and_shares_equal(flows: int) -> None:
    """The queue of the receiver's link is its paper's claim.

    Shares become equal slowly: the steps of N flows replace N / 2,521 of the bytes in flight by equal parts per round
    trip of 6 us, so that differences from joining at the line rate decay by e in 15 ms / N.
    """
    sim, wire = _incast(flows, "hpcc")
    queues, sent = _settled(sim, wire, flows)
    assert queues.mean() < 3 * (MTU_BYTES + HEADER_BYTES)
    assert 0.93 < sent.sum() / (2 * 10**9 * BYTES_PER_PS) < 0.97
    assert sent.sum() ** 2 / (flows * (sent.astype(float) ** 2).sum()) > 0.9
    assert sim.wires()["pauses"].sum() == 0


def test_without_it_the_queue_is_at_the_threshold_of_pauses() -> None:
    """The same flows and wires without telemetry: what the law above would see."""
    sim, wire = _incast(4, "")
    queues, _ = _settled(sim, wire, 4)
    assert queues.mean() > 100_000
    assert sim.wires()["pauses"].sum() > 100
