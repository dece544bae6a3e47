"""Given flows: their rates against a water-filling solver, tables, patterns of interconnection networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim import topology
from clusim.analysis.flowrates import FlowRates, flow_rates, jain
from clusim.base.errors import InputError
from clusim.engine.abi import NONE
from clusim.results.result import Result
from clusim.simulation.flows import PARTS, Flow, flow_messages, read_flows
from clusim.simulation.traffic import Pattern, Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology.arrays import arrays_of

PACKET_BYTES = 4096
SHARE = 4096 / 4160
"""Payload of the bytes on a wire of generated topologies."""

MIB = 1 << 20


def star_of(rates_GBps: Sequence[float]) -> topology.Fabric:
    """Return hosts on one switch, each with a link of its rate."""
    links = "".join(
        f"  - {{from: h{i}, to: sw, rate: {rate} GB/s, latency: 500ns, format: packet, buffer: 128KiB,"
        f" class: host}}\n"
        for i, rate in enumerate(rates_GBps)
    )
    nodes = "".join(f"  h{i}: {{kind: host}}\n" for i in range(len(rates_GBps)))
    head = "name: star\nformats:\n  packet: {header: 64B, flit: 1B}\n"
    return topology.loads(
        f"{head}nodes:\n{nodes}  sw: {{kind: switch, latency: 1ps}}\nlinks:\n{links}"
    )


def water_filled(flows: Sequence[Flow], rates_GBps: Sequence[float]) -> list[float]:
    """Return the max-min fair rates: raise all equally; flows of a full link stop [payload, 10^9 bytes/s]."""
    users = [((f.source, "up"), (f.destination, "down")) for f in flows]
    left = {(host, way): rate for host, rate in enumerate(rates_GBps) for way in ("up", "down")}
    rates, open_flows = [0.0] * len(flows), set(range(len(flows)))
    while open_flows:
        counts = {link: sum(link in users[i] for i in open_flows) for link in left}
        grow = min(left[link] / count for link, count in counts.items() if count)
        for i in open_flows:
            rates[i] += grow
            for link in users[i]:
                left[link] -= grow
        full = {link for link, rest in left.items() if rest < 1e-9}
        open_flows -= {i for i in open_flows if full & set(users[i])}
    return [rate * SHARE for rate in rates]


def ran(fabric: Any, flows: Sequence[Flow], **options: Any) -> tuple[Result, FlowRates]:
    result = clusim.traffic(fabric, flows=flows, packet=PACKET_BYTES, **options)
    return result, flow_rates(result)


@pytest.mark.parametrize("seed", range(6))
def test_lossless_flows_of_different_hosts_have_max_min_fair_rates(seed: int) -> None:
    """One flow per sender: nothing waits behind the packets of another flow."""
    rng = np.random.default_rng(seed)
    hosts = 9
    rates_GBps = [float(rng.choice([2, 5, 10, 25])) for _ in range(hosts)]
    senders = rng.permutation(hosts)[: hosts - 2]
    pairs = [(int(s), int(rng.choice([h for h in range(4) if h != s]))) for s in senders]
    expected = water_filled([Flow(*pair, 1) for pair in pairs], rates_GBps)
    # As much as each sends in the same time, so that all flows are there for most of the run.
    flows = [Flow(*pair, int(rate * 2_000_000)) for pair, rate in zip(pairs, expected, strict=True)]
    _, found = ran(star_of(rates_GBps), flows)
    steady = [row.steady_GBps for row in found.flows]
    assert steady == pytest.approx(expected, rel=0.03)
    assert found.fairness == pytest.approx(jain(expected), rel=0.03)


def test_flows_in_and_out_of_hosts_are_max_min_fair() -> None:
    """A sends to four hosts, another host to one of them: 1/4 each and 3/4 (NDP, SIGCOMM 2017, figure 21)."""
    rates_GBps = [1.25] * 6
    flows = [Flow(0, host, 4 * MIB) for host in (1, 2, 3, 4)] + [Flow(5, 4, 12 * MIB)]
    _, found = ran(star_of(rates_GBps), flows)
    expected = water_filled(flows, rates_GBps)
    assert expected == pytest.approx([0.3125 * SHARE] * 4 + [0.9375 * SHARE])
    assert [row.steady_GBps for row in found.flows] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("senders", "published_us"), [(1, 259.8), (2, 479.0), (5, 1135.2), (10, 2250.9)]
)
def test_few_senders_from_other_pods_need_the_time_of_ndp(
    senders: int, published_us: float
) -> None:
    """Handley et al. (SIGCOMM 2017), figure 20: 270,000 B each to one of 432 hosts at 10 Gb/s, within 2%.

    The first packet is stored and forwarded on five further wires, 7.2 us each.
    """
    flows = [Flow(36 + 37 * number, 0, 270_000) for number in range(senders)]
    result = clusim.traffic("fat-tree:k=12,rate=1.25GB/s", flows=flows, packet=8936)
    assert result.time_ps / 1e6 == pytest.approx(published_us, rel=0.02)


def test_a_flow_behind_a_congested_one_is_not_max_min_fair() -> None:
    """Ten hosts fill one receiver: credit stops the common input buffer, and with it the other flow of a host."""
    flows = [Flow(host, 11, 8 * MIB) for host in range(10)] + [Flow(0, 10, 8 * MIB)]
    _, found = ran(star_of([5.0] * 12), flows)
    victim = found.flows[-1].steady_GBps
    assert victim is not None
    assert water_filled(flows, [5.0] * 12)[-1] == pytest.approx(4.5 * SHARE)
    assert victim == pytest.approx(0.5 * SHARE, rel=0.05)


def test_parts_of_a_flow_take_the_time_of_one_message() -> None:
    fabric = topology.load("star:2")
    whole = clusim.traffic(fabric, "permutation", 8 * MIB, packet=PACKET_BYTES)
    result, found = ran(fabric, [Flow(0, 1, 8 * MIB), Flow(1, 0, 8 * MIB)])
    assert result.time_ps == whole.time_ps
    (one, other) = found.flows
    assert one.end_ps == other.end_ps == result.time_ps
    assert sum(one.rates_GBps) * found.bin_ps / 1e3 == pytest.approx(8 * MIB, rel=1e-9)


def test_a_flow_starts_at_its_time_and_runs_on_both_engines() -> None:
    flows = [Flow(0, 2, 40_000), Flow(1, 2, 40_000, start_ps=3_000_000)]
    result, found = ran(topology.load("star:3"), flows)
    again, _ = ran(topology.load("star:3"), flows, engine="reference")
    assert again.fingerprint == result.fingerprint
    assert found.flows[1].start_ps == 3_000_000
    assert found.flows[1].end_ps == result.time_ps > 3_000_000
    assert found.steady_from_ps is None
    assert found.flows[0].steady_GBps is None


def test_messages_of_a_flow_have_equal_sizes_but_the_last() -> None:
    messages = flow_messages([Flow(0, 1, 100 * PACKET_BYTES + 1), Flow(1, 0, 5)], PACKET_BYTES)
    sizes = messages.size_bytes[messages.flow == 0].tolist()
    assert sum(sizes) == 100 * PACKET_BYTES + 1
    assert len(sizes) <= PARTS
    assert set(sizes[:-1]) == {2 * PACKET_BYTES}
    assert messages.size_bytes[messages.flow == 1].tolist() == [5]


@pytest.mark.parametrize(("node", "controlled"), [("hgx-h20", True), ("hgx-h100-ndr", False)])
def test_flows_over_roce_have_the_rate_control_of_their_nic(node: str, controlled: bool) -> None:
    fabric = topology.load(f"{node}:nodes=2")
    arrays = arrays_of(fabric)
    traffic = Traffic.of_flows([Flow(0, 8, MIB), Flow(0, 1, MIB)], PACKET_BYTES, routing="ecmp")
    image = to_image(fabric, traffic, traffic.plan(arrays))
    assert (image.sources["control"] != NONE).tolist() == [controlled, False]
    assert len(image.controls) == controlled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,destination\n0,1\n", "no column bytes"),
        ("source,destination,bytes\n0,9,1MiB\n", r":2: no rank '9'; star:4 has 0 to 3"),
        ("source,destination,bytes\n0,0,1MiB\n", ":2: from 0 to itself"),
        ("source,destination,bytes\n0,1,0\n", ":2: a flow of 0 bytes"),
        ("source,destination,bytes\n0,1,1Gbit\n", ":2: .*Gbit"),
        ("source,destination,bytes,start\n0,1,1,3x\n", ":2: .*3x"),
        ("source,destination,bytes,when\n0,1,1,3\n", ":2: unknown column 'when'"),
        ("source,destination,bytes\n", "no flows"),
    ],
)
def test_wrong_tables_are_errors_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "flows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_flows(path, topology.load("star:4"))


def test_tables_name_ranks_by_number_or_name(tmp_path: Path) -> None:
    path = tmp_path / "flows.csv"
    path.write_text("source,destination,bytes,start\n0,host3,1MiB,\nhost1,2,7,10us\n")
    found = read_flows(path, topology.load("star:4"))
    assert found == (Flow(0, 3, MIB), Flow(1, 2, 7, 10_000_000))


def test_more_flows_than_an_endpoint_has_slots_are_an_error() -> None:
    with pytest.raises(InputError, match="host0 sends 300 flows; at most 256"):
        ran(topology.load("star:4"), [Flow(0, 1, 1)] * 300)


@pytest.mark.parametrize(
    ("pattern", "num", "span", "pairs"),
    [
        ("tornado", 8, None, {(i, (i + 3) % 8) for i in range(8)}),
        ("bit-complement", 8, None, {(i, i ^ 7) for i in range(8)}),
        ("transpose", 16, None, {(4 * r + c, 4 * c + r) for r in range(4) for c in range(4) if r != c}),
        ("stride", 6, 4, {(i, (i + 4) % 6) for i in range(6)}),
        ("group-alltoall", 6, 3, {(i, j) for i in range(6) for j in range(6) if i != j and i // 3 == j // 3}),
    ],
)  # fmt: skip
def test_patterns_are_those_of_interconnection_networks(
    pattern: Pattern, num: int, span: int | None, pairs: set[tuple[int, int]]
) -> None:
    result = clusim.traffic(f"star:{num}", pattern, 4096, span=span)
    assert result.messages is not None
    found = zip(result.messages.source.tolist(), result.messages.destination.tolist(), strict=True)
    assert sorted(found) == sorted(pairs)


@pytest.mark.parametrize(
    ("pattern", "span", "message"),
    [
        ("transpose", None, "8 endpoints are no square"),
        ("stride", None, "needs a span"),
        ("stride", 8, "must be 1 to 7"),
        ("incast", 2, "is without a span"),
        ("group-alltoall", 3, "not divisible by it"),
        ("flows", None, "given by a table"),
    ],
)
def test_wrong_spans_are_errors(pattern: Pattern, span: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        clusim.traffic("star:8", pattern, 4096, span=span)


def test_the_fairness_index_is_that_of_jain() -> None:
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([0.0]) == 1
