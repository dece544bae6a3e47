"""Routes of clusters: the machine's own inside, all shortest paths between NICs, and the way over both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.engine.abi import NONE
from clusim.topology import Fabric, FabricArrays
from clusim.topology.arrays import arrays_of
from clusim.topology.checks import errors, unreachable
from clusim.topology.node import NETWORK
from support.arrays import hop_latency_ps, rail_of, target_of
from support.boxes import box_text, cluster

NETWORKS = [
    {"kind": "single", "switch": "any"},
    {"kind": "rail"},
    {"kind": "fat-tree", "oversubscription": 3},
    {"kind": "superpod"},
    {"kind": "rail", "levels": 3, "unit": 2},
    {
        "kind": "dragonfly",
        "switch": "any",
        "switch_nics": 2,
        "group_switches": 3,
        "global_links": 2,
    },
]


@pytest.fixture
def box(tmp_path: Path) -> str:
    (tmp_path / "box.yaml").write_text(box_text())
    return str(tmp_path / "box.yaml")


@pytest.fixture(params=NETWORKS, ids=str)
def net(box: str, request: pytest.FixtureRequest) -> Fabric:
    return cluster(box, 10, **request.param)


def name(arrays: FabricArrays, target: int) -> str:
    return arrays.fabric.nodes[int(arrays.targets["node"][target])].name


def wide_graph(net: Fabric) -> nx.DiGraph[str]:
    """What may carry packets between machines: NICs send and receive, switches of the network forward."""
    zone = {node.name: node.zone for node in net.nodes}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in net.links:
        if NETWORK in (zone[link.a], zone[link.b]):
            weight = link.weight if zone[link.a] == zone[link.b] else 1
            graph.add_edge(link.a, link.b, weight=weight)
            graph.add_edge(link.b, link.a, weight=weight)
    return graph


def lookups(net: Fabric) -> Iterator[tuple[str, int]]:
    """Every (node, NIC) that a packet between machines can meet."""
    arrays = arrays_of(net)
    for node in net.nodes:
        for target in arrays.nic_targets.tolist():
            zone = int(arrays.targets["zone"][target])
            if node.zone == NETWORK or (node.kind == "nic" and node.zone != zone):
                yield node.name, target


def test_every_group_is_all_wires_on_shortest_paths_to_a_nic(net: Fabric) -> None:
    arrays, graph = arrays_of(net), wide_graph(net)
    nics = {node.name for node in net.nodes if node.kind == "nic"}
    checked = 0
    for target in arrays.nic_targets.tolist():
        goal = name(arrays, target)
        allowed = graph.subgraph((set(graph) - nics) | {goal})
        far = nx.shortest_path_length(allowed.reverse(), goal, weight="weight")
        for at, other in lookups(net):
            if other == target:
                index = net.node_index[at]
                expected = {
                    wire
                    for wire in range(len(arrays.wires))
                    if arrays.wires["src"][wire] == index
                    and on_the_way(net, arrays, wire, far, graph)
                }
                assert set(arrays.group(index, target)) == expected
                checked += 1
        if target > arrays.nic_targets[3]:
            break
    assert checked > 50


def on_the_way(
    net: Fabric, arrays: FabricArrays, wire: int, far: dict[str, int], graph: nx.DiGraph[str]
) -> bool:
    """Whether a wire of the network is the first of a shortest path."""
    src, dst = (net.nodes[int(arrays.wires[end][wire])].name for end in ("src", "dst"))
    if (src, dst) not in graph.edges or dst not in far:
        return False
    ways = (far[b] + graph.edges[src, b]["weight"] for b in graph[src] if b in far)
    return bool(far[dst] + int(graph.edges[src, dst]["weight"]) == min(ways))


def test_every_group_leads_closer_and_every_pair_of_nics_is_joined(net: Fabric) -> None:
    arrays = arrays_of(net)
    for at, target in lookups(net):
        index = net.node_index[at]
        if name(arrays, target) == at:
            continue
        here = len(arrays.steps(index, [target]))
        for wire in arrays.group(index, target):
            there = int(arrays.wires["dst"][wire])
            rest = [] if net.nodes[there].name == name(arrays, target) else [target]
            ahead = arrays.steps(there, rest) if rest else []
            weights = [
                arrays.wire_weight[path].sum() for path in (ahead, arrays.steps(index, [target]))
            ]
            assert weights[0] < weights[1]
            assert len(ahead) < here or weights[0] < weights[1]


def test_rows_of_every_machine_are_those_of_the_machine_alone(box: str, net: Fabric) -> None:
    alone, arrays = arrays_of(topology.load(box)), arrays_of(net)
    for zone in range(net.num_zones):
        prefix = f"n{zone}/"
        for index, node in enumerate(alone.fabric.nodes):
            for target in range(len(alone.targets)):
                there = target_of(arrays, prefix + name(alone, target))
                mine = net.node_index[prefix + node.name]
                found = [arrays.wire_names[wire] for wire in arrays.group(mine, there)]
                want = [alone.wire_names[wire] for wire in alone.group(index, target)]
                assert [text.replace(prefix, "") for text in found] == want


def test_machines_that_are_alike_share_a_template_and_others_do_not(box: str) -> None:
    net = cluster(box, 4, kind="single")
    assert arrays_of(net).machines.template.tolist() == [0, 0, 0, 0]
    broken = [link for link in net.links if (link.a, link.b) != ("n2/gpu1", "n2/pcie1")]
    arrays = arrays_of(replace(net, links=tuple(broken)))
    assert len(set(arrays.machines.template.tolist())) == 2
    assert arrays.machines.template[2] != arrays.machines.template[0]
    assert arrays.nearest_nics(5) == [], "its only way to a NIC is gone"
    assert len(arrays.path(4, 0)) == 6


def test_group_sizes_are_those_of_the_cables(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(box_text(1, 8))
    net = cluster(str(tmp_path / "box.yaml"), 64, kind="superpod", link="ib-ndr", switch="quantum2")
    arrays = arrays_of(net)
    same, other = target_of(arrays, "n5/nic0"), target_of(arrays, "n40/nic0")
    assert len(arrays.group(net.node_index["n0/nic0"], other)) == 1
    assert len(arrays.group(net.node_index["leaf0.0"], same)) == 1
    assert len(arrays.group(net.node_index["leaf0.0"], other)) == 32
    assert len(arrays.group(net.node_index["leaf0.0"], target_of(arrays, "n0/nic3"))) == 32
    assert len(arrays.group(net.node_index["spine0"], other)) == 4
    assert [arrays.wire_class[w] for w in arrays.path(0, 40)] == ["pcie"] * 2 + [
        "infiniband"
    ] * 4 + ["pcie"] * 2


def test_in_three_levels_a_rail_stays_below_the_cores(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(box_text(8, 8))
    net = cluster(str(tmp_path / "box.yaml"), 40, kind="superpod", switch="sixteen")
    arrays = arrays_of(net)

    def tiers(a: int, b: int) -> list[str]:
        return [net.nodes[int(arrays.wires["dst"][wire])].tier for wire in arrays.path(a, b)][2:-2]

    assert tiers(0, 8) == ["leaf", "nic"]
    assert tiers(0, 8 * 39) == ["leaf", "spine", "leaf", "nic"]
    assert tiers(0, 8 * 39 + 5) == ["leaf", "spine", "core", "spine", "leaf", "nic"]


def test_the_way_between_machines_takes_the_nearest_nics_of_one_rail(box: str) -> None:
    net = cluster(box, 3, kind="rail")
    arrays = arrays_of(net)
    assert net.num_ranks == 6
    for a in range(6):
        for b in range(6):
            vias = arrays.vias(a, b)
            if arrays.zone_of(a) == arrays.zone_of(b):
                assert vias is None
            else:
                assert vias is not None
                assert [name(arrays, via) for via in vias] == [
                    f"n{a // 2}/nic{a % 2}",
                    f"n{b // 2}/nic{b % 2}",
                ]
    first = arrays.first_wires(0, 2)
    assert [arrays.wire_names[wire] for wire in first] == ["n0/gpu0->n0/pcie0.0"]
    path = arrays.path(0, 3)
    assert all(arrays.wires["dst"][one] == arrays.wires["src"][two] for one, two in pairwise(path))
    assert hop_latency_ps(arrays, 0, 3) == arrays.latency_ps(path) > hop_latency_ps(arrays, 0, 2)


def test_ranks_that_share_nics_take_different_ones(tmp_path: Path) -> None:
    text = box_text(2, 2).replace("to: nic0..1, pair: zip", "to: nic0..1")
    (tmp_path / "box.yaml").write_text(text)
    arrays = arrays_of(cluster(str(tmp_path / "box.yaml"), 2, kind="single"))
    assert [name(arrays, nic) for nic in arrays.nearest_nics(0)] == ["n0/nic0", "n0/nic1"]
    assert [rail_of(arrays, arrays.vias(rank, 2)[0]) for rank in (0, 1)] == [0, 1]  # type: ignore[index]


def test_rails_without_spines_are_met_by_the_right_nic(box: str) -> None:
    net = cluster(box, 3, kind="rail", spines=0)
    arrays = arrays_of(net)
    assert len(arrays.machines.planes) == 2
    assert arrays.group(net.node_index["leaf0.0"], target_of(arrays, "n1/nic1")) == []
    vias = arrays.vias(0, 3)
    assert vias is not None
    assert rail_of(arrays, vias[0]) == rail_of(arrays, vias[1])
    assert errors(net) == []


def test_nics_are_sorted_by_distance_and_memory_is_found(box: str) -> None:
    net = cluster(box, 2, kind="single")
    arrays = arrays_of(net)
    assert [name(arrays, nic) for nic in arrays.nearest_nics(3)] == ["n1/nic1", "n1/nic0"]
    assert name(arrays, arrays.memory_of(2)) == "n1/memory"
    assert arrays.zone_of(2) == 1
    assert [rail_of(arrays, nic) for nic in arrays.nics(1)] == [0, 1]
    with pytest.raises(TopologyError, match="no path from n0/gpu0 over n1/memory"):
        arrays.steps(0, [target_of(arrays, "n1/memory")])


def test_gpus_never_talk_through_a_nic(tmp_path: Path) -> None:
    text = box_text(2, 1).replace(
        "{from: pcie0..1, to: root, type: pcie-gen4-x16, weight: 4}",
        "{from: pcie0, to: root, type: pcie-gen4-x16}",
    )
    text = text.replace("nvswitch: {", "other: {").replace("to: nvswitch,", "to: other,")
    lines = [line for line in text.splitlines() if "other" not in line]
    lines.append("  - {from: pcie1, to: nic0, type: pcie-gen4-x16}")
    (tmp_path / "box.yaml").write_text("\n".join(lines))
    with pytest.raises(TopologyError, match="no route gpu0 to gpu1"):
        topology.load(str(tmp_path / "box.yaml"))


def dual(net: Fabric, targets: dict[str, str]) -> Fabric:
    """Give NICs a second port on another switch."""
    cable = next(link for link in net.links if link.b.startswith("leaf"))
    more = tuple(replace(cable, a=nic, b=switch) for nic, switch in targets.items())
    return replace(net, links=net.links + more)


def test_a_second_port_widens_the_group_where_it_is_no_detour(box: str) -> None:
    net = cluster(box, 2, kind="rail", nics=1, unit=1, levels=2)
    both = arrays_of(dual(net, {"n0/nic0": "leaf1.0", "n1/nic0": "leaf0.0"}))
    nic, goal = both.fabric.node_index["n0/nic0"], target_of(both, "n1/nic0")
    assert len(both.group(nic, goal)) == 2
    assert int(both.nodes["wide_stride"][nic]) == 0
    assert len(both.group(both.fabric.node_index["leaf0.0"], goal)) == 1


def test_a_second_port_that_is_a_detour_is_used_only_where_it_is_short(box: str) -> None:
    net = dual(cluster(box, 3, kind="rail", nics=1, unit=1), {"n0/nic0": "leaf1.0"})
    arrays = arrays_of(net)
    nic = net.node_index["n0/nic0"]

    def via(goal: str) -> list[str]:
        group = arrays.group(nic, target_of(arrays, goal))
        return sorted(net.nodes[int(arrays.wires["dst"][wire])].name for wire in group)

    assert via("n1/nic0") == ["leaf1.0"]
    assert via("n2/nic0") == ["leaf0.0", "leaf1.0"]
    assert int(arrays.nodes["wide_stride"][nic]) == 1
    assert len(arrays.steps(nic, [target_of(arrays, "n1/nic0")])) == 2
    assert unreachable(arrays, 9) == []


def test_holes_in_the_network_are_errors(box: str) -> None:
    net = cluster(box, 3, kind="single")
    lost = [link for link in net.links if not link.a.startswith("n1/nic")]
    found = errors(replace(net, links=tuple(lost)))
    assert "no route" in found[0].what
    assert "n1/gpu0" in found[0].what


def test_machines_are_joined_by_nics_and_switches_only(box: str) -> None:
    net = cluster(box, 2, kind="single")
    for a, b in (("n0/nic0", "n1/nic0"), ("n0/gpu0", "switch0"), ("n0/pcie0", "n1/pcie0")):
        with pytest.raises(TopologyError, match="nodes are joined by links from their NICs"):
            arrays_of(replace(net, links=(*net.links, replace(net.links[0], a=a, b=b))))


def test_wires_of_large_fabrics_have_names_when_asked(box: str) -> None:
    arrays = arrays_of(cluster(box, 4, kind="rail"))
    names = list(arrays.wire_names)
    assert len(set(names)) == len(names) == len(arrays.wire_names)
    for wire in (0, 17, len(names) - 1):
        assert arrays.wire_names[wire] == names[wire]
        assert arrays.wire_names.index(names[wire]) == wire
        assert names[wire] in arrays.wire_names
    assert arrays.wire_names[3:5] == names[3:5]
    assert "n9/gpu0->switch0.0" not in arrays.wire_names
    assert "n0/gpu0->n0/nvswitch.3" not in arrays.wire_names
    with pytest.raises(ValueError, match="is not a wire"):
        arrays.wire_names.index("gpu0")
    assert list(arrays.wire_class) == [arrays.wire_class[wire] for wire in range(len(names))]


def test_unreachable_columns_hold_no_group(box: str) -> None:
    net = cluster(box, 2, kind="single")
    arrays = arrays_of(net)
    switch, gpu = net.node_index["switch0"], target_of(arrays, "n0/gpu0")
    assert arrays.group_number(switch, gpu) == NONE
    assert arrays.group_number(net.node_index["n0/gpu0"], target_of(arrays, "n1/nic0")) == NONE


def test_clusters_survive_files_and_graphs(net: Fabric) -> None:
    again = topology.loads(topology.to_yaml(net))
    assert again == net
    assert again.network == net.network
    assert np.array_equal(arrays_of(again).routes, arrays_of(net).routes)
    assert topology.from_networkx(topology.to_networkx(net)) == net


def test_machines_may_have_any_numbers(tmp_path: Path) -> None:
    arrays = arrays_of(topology.loads(box_text().replace("kind:", "zone: 5, kind:")))
    assert arrays.fabric.num_zones == 6
    assert arrays.zone_of(1) == 5
    assert [name(arrays, nic) for nic in arrays.nearest_nics(1)] == []
    assert len(arrays.path(0, 1)) == 2


@pytest.mark.parametrize("shape", [[4, 3], [5, 2, 2], [3, 3, 2]])
def test_tori_take_one_dimension_after_the_other_by_the_shortest_way(
    box: str, shape: list[int]
) -> None:
    count = int(np.prod(shape))
    net = cluster(box, count, kind="torus", switch="any", shape=shape)
    arrays = arrays_of(net)
    for a in range(0, count, 3):
        for b in range(count):
            if a != b:
                path = arrays.path(2 * a, 2 * b)
                dims = [int(dim) for dim in arrays.wires["dim"][path] if dim]
                assert dims == sorted(dims)
                places = zip(
                    np.unravel_index(a, shape), np.unravel_index(b, shape), shape, strict=True
                )
                assert len(dims) == sum(min(abs(x - y), n - abs(x - y)) for x, y, n in places)


def test_dragonflies_take_one_global_link_at_most(box: str) -> None:
    net = cluster(
        box, 24, kind="dragonfly", switch="any", switch_nics=2, group_switches=4, global_links=2
    )
    arrays = arrays_of(net)
    for a in range(0, 48, 5):
        for b in range(48):
            if arrays.zone_of(a) != arrays.zone_of(b):
                path = arrays.path(a, b)
                assert np.count_nonzero(arrays.wires["dateline"][path]) <= 1
                assert np.count_nonzero(arrays.wires["dim"][path]) <= 3
