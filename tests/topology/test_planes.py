"""Separate planes of the network: one per rail (DeepSeek-V3), or one per port of a NIC (dual-ToR, Alibaba HPN)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import clusim
from clusim import topology
from clusim.base.errors import ScheduleError
from clusim.collectives import ScheduleBuilder, build
from clusim.engine.abi import NONE
from clusim.lowering import lower
from clusim.results.result import Result
from clusim.topology.arrays import arrays_of
from support.routes import wires_of

MULTI_PLANE = "multi-plane:node=hgx-h800,nodes=4,unit=2"
DUAL_TOR = "dual-tor:node=hgx-h20,nodes=2,link=roce-200"


def tiers_of(fabric: topology.Fabric) -> Counter[str]:
    return Counter(node.tier for node in fabric.nodes if node.zone == -1)


def payload_of(result: Result) -> dict[str, int]:
    """Return the payload of the used wires between NICs and leaf switches [bytes]."""
    sent = zip(result.wires.names, result.wires.counters["payload"].tolist(), strict=True)
    return {name: size for name, size in sent if size and "/nic" in name and "->plane" in name}


def test_planes_of_deepseek_have_the_switches_of_its_table() -> None:
    """Two-level fat trees of 64-port switches, 16,384 GPUs: 768 switches (arXiv 2505.09343, table 3)."""
    fabric = topology.load("multi-plane:node=hgx-h800,nodes=2048")
    assert tiers_of(fabric) == {"leaf": 8 * 64, "spine": 8 * 32}
    assert sum(link.count for link in fabric.links if "leaf" in link.a + link.b) == 2 * 16_384


def test_no_switch_joins_two_planes() -> None:
    arrays = arrays_of(topology.load(MULTI_PLANE))
    first, second = arrays.nics(0), arrays.nics(1)
    joined = [[arrays.on_same_plane(one, two) for two in second] for one in first]
    assert joined == [[row == column for column in range(8)] for row in range(8)]


def test_planes_carry_an_all_to_all_as_rails_do_and_only_with_pxn() -> None:
    def run(name: str, **options: Any) -> Result:
        return clusim.collective(name, "alltoall", "4MiB", ranks=(0, 1, 16, 17), **options)

    planes, rails = run(MULTI_PLANE), run("rail:node=hgx-h800,nodes=4,unit=2")
    assert planes.time_ps == pytest.approx(rails.time_ps, rel=0.01)
    with pytest.raises(ScheduleError, match=r"no network joins NIC . of rank . and NIC . of rank"):
        run(MULTI_PLANE, env={"NCCL_PXN_DISABLE": "1"})


def test_channels_take_turns_over_both_ports_of_a_nic() -> None:
    fabric = topology.load(DUAL_TOR)
    assert {node.ports for node in fabric.nodes if node.kind == "nic"} == {2}
    result = clusim.collective(
        fabric, "allreduce", "4MiB", "ring", channels=2, ranks=(0, 8), granularity="quick"
    )
    sent = payload_of(result)
    assert {name.partition("->")[2].partition("/")[0] for name in sent} == {"plane0", "plane1"}
    assert max(sent.values()) == pytest.approx(min(sent.values()), rel=0.01)


def test_a_nic_with_one_port_down_keeps_the_rate_of_the_other() -> None:
    """Beside both ports, loads of CTAs wait on the PCIe link (`clusim.lowering.dma`)."""

    def busbw(*faults: str) -> float:
        result = clusim.collective(
            DUAL_TOR, "sendrecv", "64MiB", ranks=(0, 8), granularity="quick", faults=faults
        )
        return result.busbw_GBps

    both = busbw()
    left = busbw("link n0/nic0-plane0/leaf0.0 down", "link n1/nic0-plane0/leaf0.0 down")
    assert 0.9 * 25 < left < 25
    assert 1.5 * left < both < 50


def test_gradients_wait_for_the_ring_of_the_nic_with_one_port_down() -> None:
    """A ring per GPU index, as of tensor parallelism inside nodes: one of eight has half of its rate (HPN, 9.3)."""

    def ends_ps(*faults: str) -> list[int]:
        fabric = topology.load(DUAL_TOR)
        rings = ScheduleBuilder(fabric, "rings")
        for gpu in range(8):
            ranks = [gpu, gpu + 8]
            rings.collective("allreduce", 32 << 20, stream=f"{gpu}", ranks=ranks, algorithm="ring")
        schedule = rings.build()
        found = clusim.simulate(fabric, schedule, granularity="quick", faults=faults)
        ends = found.tasks.end_ps.tolist()
        return [
            max(end for end, task in zip(ends, schedule.tasks, strict=True) if task.rank == gpu)
            for gpu in range(8)
        ]

    sound, broken = ends_ps(), ends_ps("link n0/nic0-plane0/leaf0.0 down")
    assert broken[0] / sound[0] == pytest.approx(2, rel=0.05)
    assert broken[1:] == pytest.approx(sound[1:], rel=0.02)


def bonded(ports: str) -> topology.Fabric:
    return topology.loads(f"""
name: bonds
cluster: {{node: hgx-h20, nodes: 2, network: {{kind: dual-tor, link: roce-200}}}}
forwarding: {{ports: {ports}}}
""")


def flows_by_port(ports: str, seed: int) -> list[tuple[int, int]]:
    """Return the flows on the two ports of every NIC of a node that sends over 32 channels, fuller port first."""
    fabric = bonded(ports)
    schedule = build(fabric, "broadcast", "ring", 1 << 20, channels=32, ranks=(0, 8))
    image = lower(fabric, schedule, seed=seed).image
    found: dict[int, Counter[int]] = {}
    for row in image.conns:
        if row["via_last"] != NONE:
            nic = int(image.targets["node"][row["via_first"]])
            port = next(w for w in wires_of(image, row) if image.wires["src"][w] == nic)
            found.setdefault(nic, Counter())[port] += 1
    counts = [sorted(flows.values()) for flows in found.values()]
    return [(row[-1], row[0] if len(row) > 1 else 0) for row in counts]


def test_a_bond_hashes_flows_onto_its_ports_as_coins_fall() -> None:
    """Drivers assign queue pairs to ports in turn; the fuller port of a bond has the greater count of coins."""
    turn = flows_by_port("turn", 0)
    each = sum(turn[0])
    assert {one - other for one, other in turn} == {0}
    found = [one for seed in range(12) for one, _ in flows_by_port("hash", seed)]
    coins = np.random.default_rng(1).binomial(each, 0.5, 20_000)
    expected = np.maximum(coins, each - coins)
    assert np.mean(found) == pytest.approx(
        expected.mean(), abs=4 * expected.std() / len(found) ** 0.5
    )
    assert min(found) < max(found)


def test_flows_of_a_bond_move_to_the_port_that_is_left() -> None:
    faults = ("link n0/nic0-plane0/leaf0.0 down", "link n1/nic0-plane0/leaf0.0 down")
    result = clusim.collective(
        *(bonded("hash"), "broadcast", "4MiB", "ring"),
        channels=8,
        ranks=(0, 8),
        granularity="quick",
        faults=faults,
    )
    sent = payload_of(result)
    assert sum(sent.values()) == 4 << 20
    assert {name for name in sent if "plane0" in name.partition("->")[2]} == set()
