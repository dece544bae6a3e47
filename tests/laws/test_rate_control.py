"""Rate control as shipped: senders of one NIC each share a link fairly and fill it, in every pattern of traffic.

The wires have the figures of the shipped links: pauses, marks and rates.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import clusim
from clusim.base.arrays import Array
from clusim.collectives import build
from clusim.engine.abi import NONE, Policy, Stop
from clusim.engine.image import empty
from clusim.engine.simulation import Simulation
from clusim.hardware import RATE_CONTROLS
from clusim.lowering import lower
from clusim.lowering.controls import control_row
from clusim.policies.choice import BoundSender, Sender, find_policy, option_of, shipped
from clusim.policies.kinds import PATH
from clusim.simulation.flows import Flow
from clusim.simulation.traffic import PATTERNS, TIMED_PATTERNS, Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from support.images import ImageBuilder

MTU_BYTES, HEADER_BYTES = 4096, 82
MESSAGE_BYTES = 256 << 10
BURST = 8
MS = 10**9
SETTLED_PS = 60 * MS
PAPER_GBPS = 40


def _gbps(name: str) -> int:
    return int(name.partition("-")[2] or PAPER_GBPS)


def _control(name: str) -> dict[str, int]:
    nodes = "cpu0: {kind: switch, switch: xeon-spr}"
    text = (
        f"name: one\nnics:\n  n: {{base: cx7-roce400, rate_control: {name}}}\n"
        f"nodes:\n  gpu0: {{kind: gpu, chip: h20-sxm5}}\n  nic0: {{kind: nic, nic: n}}\n  {nodes}\n"
        "links:\n  - {from: gpu0, to: cpu0, type: pcie-gen5-x16}\n  - {from: nic0, to: cpu0, type: pcie-gen5-x16}\n"
    )
    (nic,) = (node.nic for node in clusim.topology.loads(text).nodes if node.nic is not None)
    control = nic.rate_control
    names = empty("controls").dtype.names
    row = control_row(control, _gbps(name) * 1e9 / 8, control.sender, 0)
    return dict(zip(names, row, strict=True))


def _incast(
    name: str,
    messages: int,
    start_ps: tuple[int, ...],
    *,
    controlled: bool = True,
    burst: int = BURST,
    policy: str = "",
) -> tuple[Array, Simulation]:
    """Run flows into one endpoint; return the end of each message, [flows, messages]."""
    gbps = _gbps(name)
    rate = Fraction(gbps, 8000)
    marks = {
        "ecn_min_bytes": 1000 * gbps,
        "ecn_max_bytes": 4000 * gbps,
        "ecn_threshold": 2**32 // 5,
    }
    if name == "dcqcn":  # of its paper
        marks = {"ecn_min_bytes": 5000, "ecn_max_bytes": 200_000, "ecn_threshold": 2**32 // 100}
    builder = ImageBuilder(seed=7)
    wire = {
        "latency_ps": 500_000,
        "format": builder.format(header=HEADER_BYTES),
        "xoff_bytes": 2048 * gbps,
        "xon_bytes": 2048 * gbps - 4 * MTU_BYTES,
        "buffer_bytes": 2048 * gbps + 400 * gbps + 2 * burst * 4178,
    }
    switch = builder.switch(latency_ps=400_000)
    hosts = [builder.endpoint(latency_ps=1) for _ in range(len(start_ps) + 1)]
    for host in hosts:
        builder.link(host, switch, (rate.numerator, rate.denominator), **wire, **marks)
    sender = Sender(policy) if policy else None
    row = builder.control(sender, **_control(name))
    for host, start in zip(hosts[1:], start_ps, strict=True):
        fields = {"packet_bytes": MTU_BYTES, "burst": burst, "policy": "pinned", "flags": 0}
        fields |= {"control": row} if controlled else {}
        builder.source(host, [(start, MESSAGE_BYTES, hosts[0])] * messages, **fields)
    sim = Simulation(builder.build(), records=False)
    assert sim.run() == Stop.DONE
    sim.check_conservation()
    return sim.message_times().reshape(len(start_ps), messages), sim


def _shares(ends: Array, gbps: int, from_ps: int) -> tuple[float, float]:
    """Return used part of the link and Jain's index, from a time until the first flow is done."""
    stop_ps = int(ends[:, -1].min())
    moved = ((ends > from_ps) & (ends <= stop_ps)).sum(axis=1) * float(MESSAGE_BYTES)
    wire = moved.sum() * (MTU_BYTES + HEADER_BYTES) / MTU_BYTES
    used = wire / ((stop_ps - from_ps) * gbps / 8000)
    return used, float(moved.sum() ** 2 / (len(moved) * (moved**2).sum()))


@pytest.mark.parametrize("senders", [2, 8])
@pytest.mark.parametrize("name", RATE_CONTROLS)
def test_equal_flows_of_shipped_controls_fill_a_link_and_share_it(name: str, senders: int) -> None:
    """Each starts 300 us after the last; Barre's figure 12 shows fair shares within its resolution, a second."""
    gbps = _gbps(name)
    join_ps = 300_000_000
    most = int(140 * MS * gbps / 8000 / senders / MESSAGE_BYTES)
    start = tuple(number * join_ps for number in range(senders))
    ends, _ = _incast(name, most, start)
    used, jain = _shares(ends, gbps, start[-1] + SETTLED_PS)
    assert jain >= 0.95
    assert used >= 0.95


def test_eight_into_one_take_little_longer_than_with_pauses_alone() -> None:
    """8 MiB each at 400 Gb/s; the timers of 40 Gb/s took 2.6 times as long."""
    times = []
    for controlled in (True, False):
        ends, _ = _incast("dcqcn-400", 32, (0,) * 8, controlled=controlled, burst=1)
        times.append(int(ends.max()))
    assert times[0] < 1.2 * times[1]


def test_a_flow_alone_is_not_slowed_by_its_control() -> None:
    times = [_incast("dcqcn-400", 40, (0,), controlled=on)[0].max() for on in (True, False)]
    assert times[0] == pytest.approx(times[1], rel=0.01)


def _without_control(fabric: Fabric) -> Fabric:
    nodes = tuple(
        node if node.nic is None else replace(node, nic=replace(node.nic, rate_control=None))
        for node in fabric.nodes
    )
    return replace(fabric, nodes=nodes)


@pytest.mark.covering
@pytest.mark.parametrize("routing", ["auto", "ecmp", "spray", "adaptive", "flowlet"])
@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if pattern != "transpose"])
def test_rate_control_acts_in_every_pattern_and_routing(pattern: str, routing: str) -> None:
    """Eight NICs on two leaves with a quarter of the uplinks: all patterns meet marks."""
    fabric = clusim.load("fat-tree:node=dgx-spark,nodes=8,unit=4,oversubscription=4")
    options = {"packet": 4096, "routing": routing, "granularity": "packet"}
    if routing == "flowlet":
        options["gap"] = "1us"
    if pattern in TIMED_PATTERNS:
        options |= {"load": 3.0, "duration": "100us"}
    if pattern in ("stride", "group-alltoall"):
        options["span"] = 4 if pattern == "stride" else 8
    if pattern == "flows":
        options["flows"] = [Flow(rank, 0, 1 << 20) for rank in (4, 5, 6)]
    given = () if pattern == "flows" else (pattern, 1 << 20)
    both = [clusim.traffic(item, *given, **options) for item in (fabric, _without_control(fabric))]
    assert both[0].wires.counters["marks"].sum() > 0
    assert both[0].fingerprint != both[1].fingerprint


@pytest.mark.parametrize("routing", ["ecmp", "spray", "adaptive"])
def test_controlled_collectives_pause_less_on_several_paths(routing: str) -> None:
    """Four NICs per leaf share two uplinks, on which each leaf sends 64 MiB to the other one.

    Queues mark packets before they pause a wire. Controlled senders fill them less, so that pauses, which also block
    flows to other receivers, become fewer and the collective shorter. Both move the same bytes.
    """
    fabric = clusim.load("fat-tree:node=dgx-spark,nodes=8,unit=4,oversubscription=2")
    controlled, free = (
        clusim.collective(item, "alltoall", "32MiB", routing=routing, granularity="packet")
        for item in (fabric, _without_control(fabric))
    )
    counted = [result.wires.counters for result in (controlled, free)]
    assert counted[0]["payload"].sum() == counted[1]["payload"].sum()
    assert 0 < counted[0]["pauses"].sum() < counted[1]["pauses"].sum()
    assert counted[0]["marks"].sum() > 0
    least_ps = (64 << 20) * 10**12 // (2 * 25 * 10**9)
    assert least_ps < controlled.time_ps < free.time_ps


@pytest.mark.parametrize("machine", ["hgx-h20", "hgx-h100-ndr", "dgx-spark", "aws-p5"])
def test_traffic_and_collectives_route_between_nodes_alike(machine: str) -> None:
    """By path of a flow or per packet, as the topology says; inside a node packets alternate over the links."""
    fabric = clusim.load(f"{machine}:nodes=2")
    traffic = Traffic("tornado" if fabric.num_ranks > 2 else "permutation", 1 << 16, MTU_BYTES)
    sent = to_image(fabric, traffic, traffic.plan(arrays_of(fabric)))
    called = lower(fabric, build(fabric, "alltoall", "direct", 1 << 20)).image
    first = sent.messages["via_first"][sent.sources["msg_lo"]]
    policies = [
        set(sent.sources["policy"][first != NONE].tolist()),
        set(called.conns["policy"][called.conns["via_first"] != NONE].tolist()),
    ]
    assert policies[0] == policies[1] != set()
    assert set(sent.sources["policy"][first == NONE].tolist()) <= {Policy.STRIPE}


@pytest.mark.parametrize("network", ["fat-tree:4", "star:4", "torus:4x4"])
def test_traffic_and_collectives_route_between_hosts_alike(network: str) -> None:
    fabric = clusim.load(network)
    traffic = Traffic("tornado", 1 << 16, MTU_BYTES)
    sent = to_image(fabric, traffic, traffic.plan(arrays_of(fabric)))
    called = lower(fabric, build(fabric, "alltoall", "direct", 1 << 20)).image
    assert set(sent.sources["policy"].tolist()) == set(called.conns["policy"].tolist())


# Sender policies.

POLICIES = sorted(name for name, of in shipped().items() if of.kind is not PATH)
INCAST = [Flow(8 * host, 0, 2 << 20, 0) for host in range(1, 5)]


def test_dcqcn_as_a_policy_has_the_fingerprint_of_the_engines() -> None:
    start = (0, 300_000_000, 600_000_000)
    _, compiled = _incast("dcqcn-400", 60, start)
    _, policy = _incast("dcqcn-400", 60, start, policy="dcqcn-policy")
    assert policy.fingerprint() == compiled.fingerprint()


def test_dcqcn_as_a_policy_keeps_the_figures_of_the_nics() -> None:
    options = {"nodes": 5, "flows": INCAST, "routing": "ecmp"}
    compiled = clusim.traffic("hgx-h20", **options)
    policy = clusim.traffic("hgx-h20", policy="sender=dcqcn-policy", **options)
    assert compiled.wires.counters["marks"].sum() > 0
    assert policy.fingerprint == compiled.fingerprint


@pytest.mark.parametrize("policy", POLICIES)
def test_a_flow_without_contention_has_the_line_rate_with_every_policy(policy: str) -> None:
    """To the picosecond the time without rate control: no queue that a policy could react to limits the flow.

    Policies that aim at a part of the link need as much longer.
    """
    flow = [Flow(8, 0, 8 << 20, 0)]
    free = clusim.traffic("hgx-h20", nodes=2, flows=flow, policy="sender=none")
    held = clusim.traffic("hgx-h20", nodes=2, flows=flow, policy=option_of(policy))
    target = find_policy(policy).target_use
    assert held.time_ps == pytest.approx(free.time_ps / target, rel=0 if target == 1 else 0.005)


@pytest.mark.parametrize("policy", ["dctcp", "nscc", "swift", "timely"])
def test_equal_flows_of_policies_fill_a_link_and_share_it(policy: str) -> None:
    """Four flows, 300 us apart, into 400 Gb/s: from 5 ms on. DCQCN is that of the engine; HPCC is in test_hpcc."""
    start = tuple(number * 300_000_000 for number in range(4))
    ends, _ = _incast("dcqcn-400", 500, start, policy=policy)
    used, jain = _shares(ends, 400, 5 * MS)
    assert used > 0.98
    assert jain > 0.95


def test_policies_are_equal_on_any_number_of_threads() -> None:
    prints = {
        clusim.traffic(
            "hgx-h20", nodes=5, flows=INCAST, policy="sender=swift", threads=threads
        ).fingerprint
        for threads in (1, 2, 4)
    }
    assert len(prints) == 1


LINE = 53_687_091


def _flow(name: str) -> Any:
    """Return a flow of a policy at its start, on a NIC of 400 Gb/s."""
    of = find_policy(name)
    flow = of.cls()
    rates = (("line_rate", LINE), ("min_rate", LINE // 1000))
    for key, value in zip(of.fields, BoundSender(Sender(name), rates).record, strict=True):
        setattr(flow, key, value)
    return flow


def _timely_rate(flows: int, factor: float) -> float:
    """Return a flow's rate after 100 segments, over a fair share, at `factor` of the round trip of the fixed point."""
    flow = _flow("timely")
    flow.base_ps, flow.rate = 8_000_000, LINE // flows
    target_ps = flow.base_ps + flow.queue_ps
    rtt_ps = int(target_ps * (1 + flows * flow.step_65536 / flow.beta_65536) * factor)
    for number in range(100):
        flow.acked(number * rtt_ps, flow.segment_bytes, rtt_ps, 0)
    return float(flow.rate * flows / LINE)


@pytest.mark.parametrize("flows", [2, 4, 16])
def test_timely_has_the_fixed_point_of_its_paper(flows: int) -> None:
    """Without gradient the weight is 1/2, so step / 2 = rate beta error / 2 (Zhu et al., CoNEXT 2016)."""
    assert _timely_rate(flows, 1.0) == pytest.approx(1, rel=0.02)
    assert _timely_rate(flows, 1.2) < 0.95
    assert _timely_rate(flows, 0.8) > 1.05


@pytest.mark.parametrize("seed", range(20))
def test_the_window_of_nscc_is_within_its_bounds(seed: int) -> None:
    """From a packet to 1.5 products of rate and least round trip, for any delays and marks."""
    rng = random.Random(seed)
    flow, base_ps, now_ps = _flow("nscc"), rng.choice([2_000_000, 9_000_000, 40_000_000]), 0
    delays_ps = [rng.choice([0, 500_000, base_ps // 2, base_ps, 6 * base_ps]) for _ in range(40)]
    most = (LINE * base_ps >> 30) * 3 // 2
    windows = []
    for number in range(4000):
        now_ps += rng.choice([1, 80_000, base_ps])
        flow.in_flight = rng.randrange(1 << 20)
        delay_ps = delays_ps[number // 100] if number else 0
        marked = int(rng.random() < number % 1000 / 1000)
        flow.acked(now_ps, rng.choice([1, 4096, 32_768]), base_ps + delay_ps, marked)
        windows.append(flow.window)
    assert min(windows) >= 4096
    assert max(windows) <= most
    assert len(set(windows)) > 100


@pytest.mark.parametrize(
    ("delay", "marked", "sign"), [(0.5, 0, 1), (2, 0, 1), (2, 1, -1), (0.5, 1, 0)]
)
def test_nscc_has_the_four_cases_of_mark_and_delay(delay: float, marked: int, sign: int) -> None:
    """Below and above the target without a mark it grows; marked and late it shrinks by 0.8 x 1/2; marked it waits."""
    flow, base_ps = _flow("nscc"), 12_000_000
    flow.base_ps, flow.window, flow.delay_ps = base_ps, 300_000, int(delay * base_ps)
    flow.adjusted_ps = flow.cut_at_ps = now_ps = 10 * base_ps
    flow.round_end_ps = 100 * base_ps
    for number in range(8):
        now_ps += base_ps // 8 + (number == 0) * 10
        flow.acked(now_ps, 4096, int((1 + delay) * base_ps), marked)
    change = flow.window - 300_000
    eta_bytes = 154 * 4096 * (LINE * base_ps >> 30) // 150_000 // 1024
    if sign < 0:
        assert change == pytest.approx(eta_bytes - 300_000 * 0.8 / 2, rel=0.005)
    elif sign == 0:
        assert change in (0, eta_bytes)
    else:
        a = (LINE * base_ps >> 30) / 150_000
        share = 4 * (1 - delay) if delay < 1 else 5
        assert change == pytest.approx(share * a * 4096 * 8 * 4096 / 300_000 + eta_bytes, rel=0.02)


@pytest.mark.parametrize("policy", ["swift", "timely", "nscc"])
def test_policies_of_round_trips_end_the_pauses_of_an_incast(policy: str) -> None:
    """The queue of the fixed point is below the threshold to pause: all pauses are of the start.

    Without rate control twice as long an incast has twice as many.
    """

    def pauses(messages: int, *, controlled: bool) -> int:
        name = policy if controlled else ""
        _, sim = _incast("dcqcn-400", messages, (0,) * 4, controlled=controlled, policy=name)
        return int(sim.wires()["pauses"].sum())

    assert pauses(500, controlled=True) == pauses(1000, controlled=True)
    assert pauses(1000, controlled=False) > 1.9 * pauses(500, controlled=False)


def test_swift_keeps_an_incast_without_pauses() -> None:
    """Its window bounds the queue below the threshold to pause; without rate control the link pauses."""
    options = {"nodes": 9, "flows": [Flow(8 * host, 0, 8 << 20, 0) for host in range(1, 9)]}
    free = clusim.traffic("hgx-h20", policy="sender=none", routing="ecmp", **options)
    swift = clusim.traffic("hgx-h20", policy="sender=swift", routing="ecmp", **options)
    assert free.wires.counters["pauses"].sum() > 0
    assert swift.wires.counters["pauses"].sum() < free.wires.counters["pauses"].sum() / 20
    assert swift.time_ps < 1.05 * free.time_ps
