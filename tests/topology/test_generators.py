"""Generated networks: counts, wiring, routes, and the words for wrong arguments."""

from __future__ import annotations

from math import prod

import networkx as nx
import pytest

from clusim import topology, traffic
from clusim.base.errors import TopologyError
from clusim.base.units import parse_rate
from clusim.topology import Fabric, check, generate
from clusim.topology.arrays import arrays_of


def graph_of(net: Fabric) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(node.name for node in net.nodes)
    graph.add_edges_from((link.a, link.b) for link in net.links)
    return graph


@pytest.mark.parametrize(
    ("spec", "hosts", "switches", "links"),
    [
        ("fat-tree:k=4", 16, 20, 48),
        ("fat-tree:k=8", 128, 80, 384),
        ("fat-tree:8", 128, 80, 384),
        ("fat-tree:k=8,oversub=2", 256, 80, 512),
        ("mesh:8x8", 64, 64, 64 + 112),
        ("mesh:5", 5, 5, 5 + 4),
        ("torus:4x4x4", 64, 64, 64 + 192),
        ("torus:2x3", 6, 6, 6 + 3 + 6),
        ("ring:8", 8, 8, 8 + 8),
        ("ring:2", 2, 2, 2 + 1),
        ("star:16", 16, 1, 16),
        ("fully-connected:8", 8, 0, 28),
        ("dragonfly:h=2", 72, 36, 72 + 9 * 6 + 36),
        ("dragonfly:h=1,p=1,a=2,groups=3", 6, 6, 6 + 3 + 3),
    ],
)
def test_counts(spec: str, hosts: int, switches: int, links: int) -> None:
    net = generate(spec)
    assert net.num_ranks == hosts
    assert len(net.nodes) - hosts == switches
    assert sum(link.count for link in net.links) == links
    assert nx.is_connected(graph_of(net))


def test_fat_tree_has_full_bisection_and_six_hops() -> None:
    net = generate("fat-tree:k=4")
    arrays = arrays_of(net)
    assert len(arrays.path(0, 15)) == 6
    assert len(arrays.path(0, 1)) == 2
    assert any("100% of the rate of half" in finding.what for finding in check(net))
    edge = net.node_index["edge0"]
    assert len(arrays.group(edge, 15)) == 2, "two uplinks lead to another pod"


@pytest.mark.parametrize("spec", ["torus:4x4x4", "mesh:4x5", "ring:7", "ring:8", "torus:5x2"])
def test_grids_route_on_shortest_paths(spec: str) -> None:
    net = generate(spec)
    arrays = arrays_of(net)
    lengths = dict(nx.all_pairs_shortest_path_length(graph_of(net)))
    for a, one in enumerate(net.ranks):
        for b, two in enumerate(net.ranks):
            if a != b:
                assert len(arrays.path(a, b)) == lengths[one][two]


@pytest.mark.parametrize("spec", ["dragonfly:h=2", "dragonfly:h=2,groups=5", "dragonfly:h=1,a=4"])
def test_dragonfly_takes_one_global_link_at_most(spec: str) -> None:
    net = generate(spec)
    arrays = arrays_of(net)
    for a in range(net.num_ranks):
        for b in range(net.num_ranks):
            if a != b:
                classes = [arrays.wire_class[wire] for wire in arrays.path(a, b)]
                assert classes.count("global") <= 1
                assert classes.count("local") <= 2


def test_hosts_of_grids_are_never_the_bottleneck() -> None:
    net = generate("torus:4x4x4")
    host = next(link for link in net.links if link.cls == "host")
    assert host.rate == net.links[-1].rate * 6
    assert generate("mesh:3x3,host_rate=400Gb/s").links[0].rate == parse_rate("400Gb/s")


def test_options_are_used() -> None:
    net = generate(
        "star:4,latency=1us,packet=1KiB",
        rate="100 Gb/s",
        switch_latency="300ns",
        buffer="1MiB",
        header=26,
        ack="64B",
        store_and_forward=False,
        vcs=3,
    )
    link, hub, form = net.links[0], net.nodes[-1], net.formats["packet"]
    assert link.rate == parse_rate("100 Gb/s")
    assert link.latency_ps == 1_000_000
    assert link.buffer_bytes == 1 << 20
    assert hub.latency_ps == 300_000
    assert not hub.store_and_forward
    assert form.header_bytes[0] == 26
    assert form.control_256[0] == 64 * 256
    assert form.payload_bytes["nic"] == 1024
    assert net.num_vcs == 3
    assert topology.load(net.name) == net, "the name generates it again"


def test_defaults_are_those_of_packet_level_comparisons() -> None:
    net = generate("fat-tree:k=4")
    link, form = net.links[0], net.formats["packet"]
    assert link.rate == parse_rate("400 Gb/s")
    assert link.latency_ps == 500_000
    assert (form.header_bytes[0], form.payload_bytes["sm"], form.flit_bytes) == (64, 4096, 1)
    assert net.nodes[-1].store_and_forward


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fat-tree:k=7", "k=7: must be even, for example k=8"),
        ("fat-tree", "needs k; for example fat-tree:k=8"),
        ("fat-tree:k=200", "the limit is 65536"),
        ("mesh", "needs sizes; for example mesh:8x8"),
        ("mesh:8xx8", "must be an integer above 0"),
        ("mesh:1", "at least 2 hosts"),
        ("torus:0x4", "must be an integer above 0"),
        ("ring:n=4", "twist; sizes are not named: ring:8"),
        ("ring:-3", "must be an integer above 0"),
        ("star:4,rat=3", "unknown option 'rat'; did you mean 'rate'?"),
        ("star:4,rate=3", "rate: '3': a rate needs a unit"),
        ("star:4,rate=0 GB/s", "zero bandwidth"),
        ("star:4,latency=5", "latency: '5': a time needs a unit"),
        ("star:4,store_and_forward=maybe", "must be yes or no"),
        ("star:4,packet=1GiB", "must be 1..1048576 bytes"),
        ("star:4,5", "must be option=value"),
        ("tree:8:2:2", "must be n:arity; for example tree:8:2"),
        ("tree:8:1", "n=8, arity=1: must be at least 2"),
        ("tree:arity=3", "needs n"),
        ("mesh:4x8,twist=yes", "twist: only of tori, not of mesh"),
        ("torus:4x4,twist=yes", "twist: needs an even longest size and a shorter one above 1"),
        ("dragonfly:h=2,groups=50", "groups=50: must be 2..9"),
        ("cube:3", "no such generator; there are fat-tree"),
    ],
)
def test_wrong_arguments(spec: str, words: str) -> None:
    with pytest.raises(TopologyError) as error:
        generate(spec)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "switches"),
    [
        ("tree:8", [4, 2, 1]),
        ("tree:9:3", [3, 1]),
        ("tree:n=5,arity=2", [3, 2, 1]),
        ("tree:2:4", [1]),
    ],
)
def test_a_tree_has_its_hosts_at_one_depth_and_all_links_of_a_rate(
    spec: str, switches: list[int]
) -> None:
    net = generate(spec)
    levels = [node.name.split(".")[0] for node in net.nodes if node.kind == "switch"]
    assert [levels.count(f"switch{level}") for level in range(len(switches))] == switches
    assert len(net.links) == net.num_ranks + sum(switches) - 1
    assert len({link.rate for link in net.links}) == 1
    arrays = arrays_of(net)
    assert len(arrays.path(0, net.num_ranks - 1)) == 2 * len(switches)


def test_the_root_of_a_tree_limits_traffic_between_its_halves() -> None:
    """Each of n/2 hosts of a half sends 1 MiB to the other: all cross one link of the root."""
    result = traffic("tree:8", "tornado", "1MiB")
    wire_bytes = (
        3 * (1 << 20) * (4096 + 64) // 4096
    )  # of 8 messages to i + 3, three enter the left half
    assert result.time_ps >= wire_bytes * 20


def test_thousand_hosts_lower_quickly() -> None:
    net = generate("fat-tree:k=16")
    arrays = arrays_of(net)
    assert arrays.num_ranks == 1024
    assert len(arrays.path(0, 1023)) == 6
    assert prod(arrays.routes.shape) == len(net.nodes) * 1024 + 1  # and "nowhere"
