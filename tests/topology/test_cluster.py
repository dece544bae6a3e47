"""Clusters: how many switches and cables each network has, and what hangs where."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.topology.deadlock import dependency_cycle
from clusim.topology.loading import from_data
from clusim.topology.node import NETWORK
from support.boxes import box_text, cluster, cluster_data
from support.work import calls_of


@pytest.fixture
def box(tmp_path: Path) -> str:
    """Two GPUs, two NICs."""
    return written(tmp_path, box_text())


@pytest.fixture
def box8(tmp_path: Path) -> str:
    """Eight GPUs, eight NICs, as a DGX."""
    return written(tmp_path, box_text(8, 8))


def written(where: Path, text: str, name: str = "box.yaml") -> str:
    (where / name).write_text(text)
    return str(where / name)


def tiers(net: Fabric) -> dict[str, int]:
    return Counter(node.tier for node in net.nodes if node.zone == NETWORK)


def cables(net: Fabric) -> dict[str, int]:
    """Cables by the tiers they join, e.g. ``leaf-nic``."""
    tier = {node.name: node.tier for node in net.nodes}
    found: Counter[str] = Counter()
    for link in net.links:
        found["-".join(sorted((tier[link.a], tier[link.b])))] += link.count
    return found


def used_ports(net: Fabric) -> dict[str, int]:
    found: Counter[str] = Counter()
    for link in net.links:
        found[link.a] += link.count
        found[link.b] += link.count
    return found


def switch_of(net: Fabric) -> dict[str, str]:
    """The switch each NIC hangs on."""
    network = {node.name for node in net.nodes if node.zone == NETWORK}
    nics = {node.name for node in net.nodes if node.kind == "nic"}
    pairs = ((link.a, link.b) for link in net.links)
    return {a: b for a, b in pairs if a in nics and b in network}


SUPERPODS = [
    ("ib-hdr", "quantum", 140, (56, 80, 28), (1120, 1120, 1120)),
    ("ib-ndr", "quantum2", 32, (8, 4, 0), (256, 256, 0)),
    ("ib-ndr", "quantum2", 64, (16, 8, 0), (512, 512, 0)),
    ("ib-ndr", "quantum2", 128, (32, 16, 0), (1024, 1024, 0)),
    ("ib-ndr", "quantum2", 256, (64, 32, 0), (2048, 2048, 0)),
    ("ib-ndr", "quantum2", 512, (128, 128, 64), (4096, 4096, 4096)),
    ("ib-ndr", "quantum2", 1024, (256, 256, 128), (8192, 8192, 8192)),
    ("ib-ndr", "quantum2", 2048, (512, 512, 256), (16384, 16384, 16384)),
    ("ib-xdr", "quantum-x800", 72, (8, 4, 0), (576, 576, 0)),
    ("ib-xdr", "quantum-x800", 288, (32, 18, 0), (2304, 2304, 0)),
    ("ib-xdr", "quantum-x800", 576, (64, 36, 0), (4608, 4608, 0)),
]
"""Reference architectures of DGX SuperPOD: A100; H100, H200 and B200; B300. Nodes, switches and cables per tier."""


@pytest.mark.parametrize(("link", "switch", "nodes", "switches", "wiring"), SUPERPODS)
def test_superpods_have_the_switches_and_cables_of_the_reference_architectures(
    tmp_path: Path,
    link: str,
    switch: str,
    nodes: int,
    switches: tuple[int, ...],
    wiring: tuple[int, ...],
) -> None:
    node = written(tmp_path, box_text(1, 8))
    net = cluster(node, nodes, kind="superpod", link=link, switch=switch)
    found = tiers(net)
    assert (found["leaf"], found["spine"], found["core"]) == switches
    joins = cables(net)
    assert (joins["leaf-nic"], joins["leaf-spine"], joins["core-spine"]) == wiring
    ports = {node.name: node.ports for node in net.nodes if node.zone == NETWORK}
    used = used_ports(net)
    assert all(used[name] <= ports[name] for name in ports)
    full = [name for name in ports if name.startswith("leaf")]
    assert all(used[name] == ports[name] for name in full), "all leaves are full"


def test_nic_i_of_the_nodes_of_a_unit_is_on_leaf_i(box8: str) -> None:
    net = cluster(box8, 80, kind="superpod", link="ib-ndr", switch="quantum2")
    where = switch_of(net)
    for zone in range(80):
        for nic in range(8):
            assert where[f"n{zone}/nic{nic}"] == f"leaf{zone // 32}.{nic}"


def test_a_small_rail_network_is_as_small_as_it_can_be(box8: str) -> None:
    net = cluster(box8, 2, kind="rail", link="ib-ndr", switch="quantum2")
    assert tiers(net) == {"leaf": 8, "spine": 1}
    assert cables(net)["leaf-spine"] == 16
    assert net.num_zones == 2
    assert net.ranks[:9] == (*(f"n0/gpu{i}" for i in range(8)), "n1/gpu0")
    assert net.description.startswith("2 x box, rail network: 8 rails, 1 unit of 2 nodes")


def test_units_are_evened_out_unless_they_are_given(box: str) -> None:
    assert tiers(cluster(box, 6, kind="rail")) == {"leaf": 4, "spine": 2}
    leaves = Counter(switch_of(cluster(box, 6, kind="rail")).values())
    assert set(leaves.values()) == {3}, "3 and 3, not 4 and 2"
    leaves = Counter(switch_of(cluster(box, 6, kind="rail", unit=4)).values())
    assert sorted(leaves.values()) == [2, 2, 4, 4]


@pytest.mark.parametrize(("ratio", "leaf_nics", "up"), [(1, 8, 8), (3, 12, 4), (0.5, 4, 8)])
def test_oversubscription_is_bandwidth_down_over_bandwidth_up(
    box: str, ratio: float, leaf_nics: int, up: int
) -> None:
    net = cluster(box, 24, kind="fat-tree", switch="sixteen", oversubscription=ratio)
    assert set(Counter(switch_of(net).values()).values()) == {leaf_nics}
    ups: Counter[str] = Counter()
    for link in net.links:
        if link.a.startswith("leaf"):
            ups[link.a] += link.count
    assert set(ups.values()) == {up}


def test_faster_trunks_need_fewer_cables(box: str) -> None:
    slow = cluster(box, 6, kind="rail", unit=4)
    fast = cluster(box, 6, kind="rail", unit=4, trunk="fast")
    assert cables(slow)["leaf-spine"] == 2 * cables(fast)["leaf-spine"] == 16


def test_rails_of_racks_take_several_nics_of_a_machine(box8: str) -> None:
    net = cluster(box8, 2, kind="rail", rails=2, switch="sixteen")
    where = switch_of(net)
    assert {where[f"n0/nic{i}"] for i in (0, 2, 4, 6)} == {where["n1/nic0"]} == {"leaf0.0"}
    assert {where[f"n0/nic{i}"] for i in (1, 3, 5, 7)} == {"leaf0.1"}


def test_unused_nics_stay_unconnected_and_are_not_chosen(box8: str) -> None:
    net = cluster(box8, 4, kind="single", nics=2, switch="sixteen")
    assert len(switch_of(net)) == 8
    arrays = arrays_of(net)
    assert [net.nodes[int(arrays.targets["node"][t])].name for t in arrays.nics(1)] == [
        "n1/nic0",
        "n1/nic1",
    ]
    path = [arrays.wire_names[wire] for wire in arrays.path(7, 15)]
    assert any("n0/nic" in name for name in path)


def test_three_level_fat_tree_is_the_textbook_one(tmp_path: Path) -> None:
    net = cluster(written(tmp_path, box_text(1, 1)), 128, kind="fat-tree")
    assert tiers(net) == {"leaf": 32, "spine": 32, "core": 16}
    joins = cables(net)
    assert joins["leaf-nic"] == joins["leaf-spine"] == joins["core-spine"] == 128
    assert all(used == 8 for name, used in used_ports(net).items() if "/" not in name)


def test_cores_are_modular_switches_where_one_switch_has_too_few_ports(tmp_path: Path) -> None:
    node = written(tmp_path, box_text(1, 1))
    net = cluster(node, 160, kind="fat-tree")
    # 40 leaves of 4 nodes, 10 blocks of 4 leaves and 4 spines; a core joins all blocks.
    assert tiers(net) == {"leaf": 40, "spine": 40, "core": 16}
    used = used_ports(net)
    assert {used[node.name] for node in net.nodes if node.tier == "core"} == {10}
    assert "16 cores (modular switches of 10 ports, assumed)" in net.description
    for given in ({"radix": 8}, {"core_switch": "eight"}):
        with pytest.raises(TopologyError, match="a core has 8 ports, needs 10"):
            cluster(node, 160, kind="fat-tree", **given)


def test_cores_can_be_oversubscribed_as_well(tmp_path: Path) -> None:
    node = written(tmp_path, box_text(1, 1))
    net = cluster(node, 128, kind="fat-tree", switch="sixteen", levels=3, core_oversubscription=3)
    joins = cables(net)
    assert joins["leaf-spine"] == 128
    assert joins["core-spine"] * 3 in range(128, 128 + 3 * tiers(net)["spine"])


def test_dragonfly_groups_are_full_meshes_and_joined_pairwise(box: str) -> None:
    net = cluster(
        box, 24, kind="dragonfly", switch="any", switch_nics=2, group_switches=4, global_links=2
    )
    assert tiers(net) == {"switch": 24}
    inside = [link for link in net.links if link.dim == 1 and not any(link.dateline)]
    across = [link for link in net.links if link.dim == 1 and any(link.dateline)]
    assert sum(link.count for link in inside) == 6 * 6
    groups = Counter(tuple(sorted(end.split(".")[0] for end in (a.a, a.b))) for a in across)
    assert len(groups) == 15
    assert len(set(groups.values())) == 1, "any two groups have equally many cables"
    ends: Counter[str] = Counter()
    for link in across:
        ends[link.a] += 1
        ends[link.b] += 1
    assert max(ends.values()) - min(ends.values()) <= 1, "global links are evenly spread"
    where = switch_of(net)
    assert all(where[f"n{i}/nic0"] != where[f"n{i}/nic1"] for i in range(24))


def test_slingshot_groups_by_default(box8: str) -> None:
    net = cluster(box8, 256, kind="dragonfly", link="slingshot-200", switch="rosetta")
    assert tiers(net) == {"switch": 128}, "2,048 NICs are four groups of 32 switches of 16"
    assert max(used for name, used in used_ports(net).items() if "/" not in name) <= 64


def test_torus_of_nodes(box: str) -> None:
    net = cluster(box, 24, kind="torus", switch="any", shape=[4, 3, 2], torus_links=2)
    assert tiers(net) == {"switch": 24}
    links = [link for link in net.links if link.dim]
    assert Counter(link.dim for link in links) == {1: 24, 2: 24, 3: 12}
    assert {link.count for link in links} == {2}
    assert sum(any(link.dateline) for link in links) == 6 + 8
    assert net.network_routing == "dimension-order"
    assert cluster(box, 64, kind="torus", switch="any").description.endswith(
        "torus 4x4x4, 1 link to each neighbour"
    )


@pytest.mark.parametrize(
    "network",
    [
        {"kind": "single", "switch": "any"},
        {"kind": "rail"},
        {"kind": "fat-tree"},
        {"kind": "superpod"},
        {"kind": "rail", "spines": 0, "unit": 12, "switch": "any"},
        {
            "kind": "dragonfly",
            "switch": "any",
            "switch_nics": 2,
            "group_switches": 3,
            "global_links": 2,
        },
        {"kind": "torus", "switch": "any", "shape": [4, 3]},
        {"kind": "torus", "switch": "any", "shape": [3, 2, 2]},
    ],
    ids=str,
)
def test_no_network_can_deadlock(box: str, network: dict[str, object]) -> None:
    assert dependency_cycle(arrays_of(cluster(box, 12, **network))) == []


def test_cable_lengths_add_to_the_latency(box: str) -> None:
    near = cluster(box, 6, kind="rail")
    far = cluster(box, 6, kind="rail", lengths={"nic": 3, "spine": "30m"})
    plain, long = (
        {link.cls + link.a[:4]: link.latency_ps for link in net.links} for net in (near, far)
    )
    assert long["infinibandleaf"] - plain["infinibandleaf"] == 30 * 5_000
    nic = next(link for link in far.links if link.b.startswith("leaf"))
    assert nic.latency_ps == 100_000 + 3 * 5_000


def test_machines_keep_what_they_are(box: str) -> None:
    alone, net = topology.load(box), cluster(box, 3, kind="single")
    for zone in range(3):
        own = [node for node in net.nodes if node.zone == zone]
        assert [node.name for node in own] == [f"n{zone}/{node.name}" for node in alone.nodes]
        assert [node.endpoint for node in own] == [node.endpoint for node in alone.nodes]
    assert len(net.links) == 3 * len(alone.links) + 6
    assert (net.protocols, net.p2p, net.channels) == (alone.protocols, alone.p2p, alone.channels)


def test_ring_orders_pass_through_the_machines(tmp_path: Path) -> None:
    node = written(tmp_path, "rings: [[0, 1], [1, 0]]\n" + box_text())
    assert cluster(node, 2).ring_orders == ((0, 1, 2, 3), (1, 0, 3, 2))


def test_formats_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    text = box_text() + "formats: {packet: {flit: 8B, header: 8B}}\n"
    node = written(tmp_path, text.replace("format: pcie-gen4}", "format: packet}"))
    data = cluster_data(node, 2, kind="single")
    data["formats"] = {"packet": {"flit": "4B", "header": "40B"}}
    data["link_types"]["cable"] = data["link_types"]["cable"] | {"format": "packet"}
    net = from_data(data)
    assert net.formats["packet"].header_bytes[0] == 8
    assert net.formats["network.packet"].header_bytes[0] == 40
    assert {link.format for link in net.links if link.b == "switch0"} == {"network.packet"}


def test_the_work_of_building_grows_as_the_cluster_does() -> None:
    def build(nodes: int) -> None:
        arrays_of(topology.load(f"superpod-h100:nodes={nodes}"))

    build(2)  # what is read and imported once
    half, whole = (calls_of(partial(build, nodes)) for nodes in (32, 64))
    assert 1.5 < whole / half < 2.2


def test_a_thousand_gpus_take_little_memory() -> None:
    code = (
        "import re; from clusim import topology; from clusim.topology.arrays import arrays_of;"
        "net = topology.load('superpod-h100:nodes=128'); arrays = arrays_of(net);"
        "assert net.num_ranks == 1024 and len(arrays.path(0, 1023)) == 8;"
        "status = open('/proc/self/status').read();"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1])"
    )
    # Not `ru_maxrss`: it never falls below what the process that forked had, here the test runner.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 20
