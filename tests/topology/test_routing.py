"""Routes: exactly the shortest paths, dimension order where asked for, no circle of waiting buffers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim import topology
from clusim.base.errors import InputError, TopologyError
from clusim.base.units import Rate
from clusim.engine.abi import NONE
from clusim.topology import Endpoint, Fabric, FabricArrays, Format, Link, Node, generate, zones
from clusim.topology.arrays import arrays_of
from clusim.topology.deadlock import dependency_cycle
from clusim.topology.routing import route
from support.arrays import hop_latency_ps
from support.covering import examples

HOST = Endpoint()


def network(nodes: list[Node], links: list[Link]) -> Fabric:
    return Fabric("test", tuple(nodes), tuple(links), {"nvlink": Format("nvlink")})


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """Connected random graphs of endpoints (some relaying), switches and parallel links."""
    switches = draw(st.integers(1, 6))
    hosts = draw(st.one_of(st.integers(2, 9), st.integers(60, 70)))
    nodes = [Node(f"s{i}", "switch") for i in range(switches)]
    links = [
        Link(f"s{i}", f"s{draw(st.integers(0, i - 1))}", draw(st.integers(1, 3)))
        for i in range(1, switches)
    ]
    for i in range(hosts):
        nodes.append(Node(f"h{i}", "host", endpoint=HOST, relay=draw(st.booleans())))
        links.append(
            Link(f"h{i}", f"s{draw(st.integers(0, switches - 1))}", draw(st.integers(1, 2)))
        )
    for _ in range(draw(st.integers(0, 12))):
        a, b = draw(st.sampled_from(nodes)).name, draw(st.sampled_from(nodes)).name
        if a != b:
            links.append(Link(a, b))
    return network(nodes, links)


def forwarding_graph(net: Fabric, target: str) -> nx.DiGraph[str]:
    """Directed graph of what may carry packets to `target`: through nodes that forward, from anywhere."""
    forwards = {node.name for node in net.nodes if node.forwards} | {target}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node.name for node in net.nodes)
    for link in net.links:
        for a, b in ((link.a, link.b), (link.b, link.a)):
            if b in forwards:
                graph.add_edge(a, b)
    return graph


@settings(max_examples=examples(10))
@given(fabrics())
def test_groups_are_all_wires_on_shortest_paths(net: Fabric) -> None:
    arrays = arrays_of(net)
    ends = [(int(row["src"]), int(row["dst"])) for row in arrays.wires]
    names = [node.name for node in net.nodes]
    for endpoint, target in enumerate(net.ranks):
        graph = forwarding_graph(net, target)
        distance = nx.shortest_path_length(graph, target=target)
        far = len(names)
        expected: list[set[int]] = [set() for _ in names]
        for wire, (src, dst) in enumerate(ends):
            near = distance.get(names[dst], far)
            if graph.has_edge(names[src], names[dst]) and near + 1 == distance[names[src]]:
                expected[src].add(wire)
        found = [set(arrays.group(index, endpoint)) for index in range(len(names))]
        assert found == expected


@settings(max_examples=examples(10))
@given(fabrics())
def test_wires_come_in_pairs_and_groups_keep_parallel_wires_together(net: Fabric) -> None:
    arrays = arrays_of(net)
    wires = arrays.wires
    assert np.array_equal(wires["reverse"], np.arange(len(wires)) ^ 1)
    assert np.array_equal(wires["src"], wires["dst"][wires["reverse"]])
    assert len(set(arrays.wire_names)) == len(wires)
    for lo, hi in zip(arrays.group_off[:-1], arrays.group_off[1:], strict=True):
        group = arrays.group_wires[lo:hi]
        targets = [int(wires["dst"][wire]) for wire in group]
        assert len(set(group.tolist())) == len(group)
        changes = sum(a != b for a, b in pairwise(targets))
        assert changes == len(set(targets)) - 1, "wires to one neighbour are consecutive"
        for target in set(targets):
            ordinals = [
                int(wires["ordinal"][w]) for w, t in zip(group, targets, strict=True) if t == target
            ]
            assert ordinals == list(range(len(ordinals)))


def test_groups_are_stored_once() -> None:
    arrays = arrays_of(topology.load("dgx-a100"))
    stored = [tuple(arrays.group_wires[lo:hi]) for lo, hi in pairwise(arrays.group_off)]
    assert len(stored) == len(set(stored))
    assert arrays.first_wires(0, 5) == arrays.first_wires(0, 3)
    ends = [int(arrays.wires["dst"][wire]) for wire in arrays.first_wires(0, 5)]
    switches = [f"nvswitch{plane}" for plane in range(6)]
    assert [arrays.fabric.nodes[end].name for end in ends] == [s for s in switches for _ in "ab"]


def test_latency_of_a_header_is_the_sum_of_its_parts() -> None:
    arrays = arrays_of(topology.load("dgx-a100"))
    serialisation_ps = 16 * 40  # one flit at 25 GB/s
    assert hop_latency_ps(arrays, 0, 1) == 2 * (150_000 + serialisation_ps) + 110_000


def test_parallel_wires_by_name_and_index() -> None:
    arrays = arrays_of(topology.load("dgx-h100"))
    wires = arrays.parallel_wires("gpu1", "nvswitch3")
    assert [arrays.wire_names[wire] for wire in wires] == [f"gpu1->nvswitch3.{i}" for i in range(5)]
    assert arrays.parallel_wires(1, 8 + 3) == wires
    assert len(arrays.unit_wires(3)) == 18
    with pytest.raises(InputError, match="no such node"):
        arrays.parallel_wires("gpu9", "nvswitch0")
    with pytest.raises(InputError, match="rank 8: no such rank"):
        arrays.first_wires(8, 0)


def test_dgx2_crosses_the_trunk_once() -> None:
    arrays = arrays_of(topology.load("dgx-2"))
    classes = [arrays.wire_class[wire] for wire in arrays.path(0, 15)]
    assert classes == ["nvlink", "trunk", "nvlink"]
    assert len(arrays.group(16, 15)) == 8


def test_endpoints_do_not_forward_unless_they_relay() -> None:
    nodes = [Node(name, "host", endpoint=HOST) for name in "abc"]
    links = [Link("a", "b"), Link("b", "c")]
    arrays = arrays_of(network(nodes, links))
    assert arrays.group(0, 2) == []
    with pytest.raises(TopologyError, match="no path from rank 0 to rank 2"):
        hop_latency_ps(arrays, 0, 2)
    nodes[1] = Node("b", "host", endpoint=HOST, relay=True)
    assert len(arrays_of(network(nodes, links)).path(0, 2)) == 2


def test_weights_count_as_hops() -> None:
    nodes = [
        Node("a", "host", endpoint=HOST),
        Node("b", "host", endpoint=HOST),
        Node("s", "switch"),
    ]
    links = [Link("a", "b", weight=3), Link("a", "s"), Link("s", "b")]
    assert len(arrays_of(network(nodes, links)).path(0, 1)) == 2
    links[0] = Link("a", "b", weight=2)
    assert len(arrays_of(network(nodes, links)).first_wires(0, 1)) == 2


def crossings(arrays: FabricArrays, a: int, b: int) -> list[int]:
    return [int(arrays.wires["dim"][wire]) for wire in arrays.path(a, b)]


@pytest.mark.parametrize("spec", ["mesh:4x3x2", "torus:4x5"])
def test_dimension_order(spec: str) -> None:
    arrays = arrays_of(generate(spec))
    for a in range(arrays.num_ranks):
        for b in range(arrays.num_ranks):
            if a != b:
                dims = crossings(arrays, a, b)[1:-1]
                assert dims == sorted(dims)


@pytest.mark.parametrize("name", ["dgx-1p", "dgx-1v"])
def test_cube_mesh_relays_once_inside_the_quad(name: str) -> None:
    arrays = arrays_of(topology.load(name))
    for a in range(8):
        for b in range(8):
            if a != b:
                assert crossings(arrays, a, b) in ([1], [2], [1, 2])


@pytest.mark.parametrize(
    "spec",
    [
        "mesh:8x8",
        "mesh:3x3x3",
        "torus:4x4",
        "torus:5x3x2",
        "ring:9",
        "dragonfly:h=2",
        "fat-tree:k=4",
    ],
)
def test_generated_networks_cannot_deadlock(spec: str) -> None:
    assert dependency_cycle(arrays_of(generate(spec))) == []


def test_a_circle_of_waiting_buffers_is_found() -> None:
    nodes: list[Node] = []
    links: list[Link] = []
    for i in range(6):
        nodes += [Node(f"h{i}", "host", endpoint=HOST), Node(f"s{i}", "switch")]
        links += [Link(f"h{i}", f"s{i}"), Link(f"s{i}", f"s{(i + 1) % 6}")]
    arrays = arrays_of(network(nodes, links))
    circle = [wire for wire, _ in dependency_cycle(arrays)]
    ends = [(int(arrays.wires["src"][w]), int(arrays.wires["dst"][w])) for w in circle]
    assert len(circle) >= 3
    assert all(one[1] == two[0] for one, two in zip(ends, ends[1:] + ends[:1], strict=True))


def test_isolated_nodes_have_no_routes() -> None:
    nodes = [
        Node("a", "host", endpoint=HOST),
        Node("b", "host", endpoint=HOST),
        Node("s", "switch"),
    ]
    arrays = arrays_of(network(nodes, [Link("a", "s", rate=Rate(1, 20))]))
    table = arrays.routes[:-1].reshape(3, 2)  # the last one is "nowhere"
    assert (table == NONE).tolist() == [[True, True], [True, True], [False, True]]


def test_routes_of_a_node_are_found_once_for_all_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []
    monkeypatch.setattr(
        zones, "route", lambda *given, **how: found.append(1) or route(*given, **how)
    )
    links = [Link("h0", "s0", latency_ps=1000), Link("h1", "s0"), Link("h2", "s0")]
    nodes = [Node("s0", "switch"), *(Node(f"h{i}", "host", endpoint=HOST) for i in range(3))]
    zones._table.cache_clear()
    first, again = (arrays_of(network(nodes, links)) for _ in range(2))
    assert np.array_equal(first.routes, again.routes)
    slower = [replace(links[0], latency_ps=2000), *links[1:]]
    assert np.array_equal(arrays_of(network(nodes, slower)).routes, first.routes)
    assert len(found) == 1
    arrays_of(network(nodes, [*links, Link("h0", "h1")]))
    assert len(found) == 2
    monkeypatch.setattr(zones, "KEPT_BYTES", 0)
    for _ in range(2):
        arrays_of(network(nodes, links))
    assert len(found) == 4
