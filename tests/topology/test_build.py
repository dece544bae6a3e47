"""Builder, networkx, YAML out: the same fabric by every way; checks and the text for people."""

from __future__ import annotations

import json
import subprocess
import sys

import networkx as nx
import pytest

from clusim import topology, traffic
from clusim.base import resources
from clusim.base.errors import DeadlockError, TopologyError
from clusim.topology import (
    Fabric,
    FabricBuilder,
    check,
    describe,
    from_networkx,
    generate,
    loads,
    schema,
    to_networkx,
    to_yaml,
)
from clusim.topology.arrays import arrays_of
from clusim.topology.check_flow import bisection_Bps
from clusim.topology.keys import LinkKeys, NodeKeys, SwitchKeys, TopologyKeys
from clusim.topology.render import ranges
from clusim.topology.rows import classes_of
from support.covering import few_racks

EVERYTHING = [
    *resources.shipped_topologies(),
    "torus:3x3",
    "dragonfly:h=2",
    "fat-tree:k=4",
    "star:3",
]


def two_planes() -> FabricBuilder:
    net = FabricBuilder("two-planes", channels={"default": 4})
    net.define("switches", "plane", base="nvswitch3", latency="90ns")
    net.gpu("gpu0..3", chip="h100-sxm5")
    net.switch("sw0..1", switch="plane")
    net.link("gpu0..3", "sw0..1", count=9, type="nvlink4")
    return net


def test_builder_makes_what_the_file_says() -> None:
    net = two_planes().build()
    assert net.ranks == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert net.nodes[4].latency_ps == 90_000
    assert len(arrays_of(net).unit_wires(0)) == 18
    assert loads(net.source_text) == net, "the text it carries is a topology file"
    assert "given in the description" in describe(net)


@pytest.mark.parametrize(
    ("keys", "spec", "without"),
    [
        (TopologyKeys, schema.Topology, {"name", "nodes", "links", "base", "figures"}),
        (NodeKeys, schema.NodeSpec, {"kind", "chip", "switch", "nic", "store_and_forward"}),
        (SwitchKeys, schema.NodeSpec, {"kind", "chip", "nic", "relay"}),
        (LinkKeys, schema.LinkSpec, {"from", "to"}),
    ],
)
def test_named_arguments_of_the_builder_are_the_keys_of_a_file(keys, spec, without) -> None:
    fields = {info.alias or name for name, info in spec.model_fields.items()}
    assert set(keys.__annotations__) == fields - without


def ring_of_gpus(**keys: bool) -> FabricBuilder:
    net = FabricBuilder("ring")
    net.gpu("gpu0..3", chip="h100-sxm5", **keys)
    for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)):
        net.link(f"gpu{a}", f"gpu{b}", type="nvlink4")
    return net


def test_gpus_that_do_not_forward_are_an_error_with_the_keyword() -> None:
    with pytest.raises(TopologyError, match=r"no route .*; add links, or .*relay=True in Python"):
        ring_of_gpus().build()
    assert ring_of_gpus(relay=True).build().num_ranks == 4


def test_a_deadlock_of_shortest_routes_names_the_key_of_routing() -> None:
    """Each host of a ring sends to the opposite one, with buffers of a packet."""
    net = FabricBuilder("circle")
    net.host("host0..4", relay=True)
    net.define("formats", "large", header="64B", flit="1B")
    for a in range(5):
        link = {"rate": "50 GB/s", "latency": "500ns", "format": "large", "buffer": "20KiB"}
        net.link(f"host{a}", f"host{(a + 1) % 5}", **link)
    with pytest.raises(DeadlockError, match="use routing: dimension-order"):
        traffic(net.build(), "stride", "4MiB", span=2)


def test_builder_says_what_is_wrong() -> None:
    net = two_planes()
    net.link("gpu0", "sw7", rate="25 GB/s", latency="1us")
    with pytest.raises(
        TopologyError, match=r"two-planes: links\[1\]\.to: unknown node 'sw7'; did you mean"
    ):
        net.build()
    with pytest.raises(TopologyError, match=r"'sw0\.\.1' exists already"):
        net.switch("sw0..1")


@pytest.mark.parametrize("name", few_racks(EVERYTHING))
def test_round_trips(name: str) -> None:
    net = topology.load(name)
    graph = to_networkx(net)
    assert sum(count for _, _, count in graph.edges(data="count")) == sum(
        link.count for link in net.links
    )
    assert from_networkx(graph) == net
    text = json.dumps(nx.node_link_data(graph, edges="links"))
    assert from_networkx(nx.node_link_graph(json.loads(text), edges="links")) == net
    assert loads(to_yaml(net)) == net


def test_any_graph_with_defaults() -> None:
    cube = nx.hypercube_graph(3)
    net = from_networkx(
        cube,
        node={"kind": "host", "relay": True, "latency": "1us"},
        link={"rate": "50 GB/s", "latency": "500ns", "format": "ethernet"},
        name="cube",
    )
    assert (net.name, net.num_ranks, len(net.links)) == ("cube", 8, 12)
    assert net.ranks[1] == "n0.0.1"
    levels = {finding.level: finding.what for finding in check(net)}
    assert "routes can deadlock" in levels["warning"]
    with pytest.raises(TopologyError, match="directed"):
        from_networkx(nx.DiGraph([(0, 1)]))
    with pytest.raises(TopologyError, match="'kind' is missing"):
        from_networkx(nx.path_graph(2))


def findings(net: Fabric) -> str:
    return "\n".join(f"{finding.level}: {finding.what}" for finding in check(net))


def test_check_sees_what_is_unusual() -> None:
    net = FabricBuilder("odd")
    net.gpu("gpu0..2", chip="a100-sxm4-80gb")
    net.switch("sw", switch="nvswitch1")
    net.link("gpu0..1", "sw", type="nvlink3", count=12)
    net.link("gpu2", "sw", type="nvlink3", count=4)
    text = findings(net.build())
    assert "warning: gpu2: 4 links, but a100-sxm4-80gb has 12" in text
    assert "warning: sw: 28 links on 18 ports" in text
    assert "warning: asymmetric: gpu2 has 100 GB/s of nvlink, gpu0 has 300 GB/s" in text


def test_bisection() -> None:
    assert bisection_Bps(arrays_of(topology.load("dgx-h100"))) == pytest.approx(4 * 450e9)
    assert bisection_Bps(arrays_of(topology.load("dgx-1v"))) == pytest.approx(6 * 25.78125e9)
    assert bisection_Bps(arrays_of(generate("mesh:4x4"))) == pytest.approx(4 * 50e9)
    assert bisection_Bps(arrays_of(generate("fat-tree:k=4,oversub=2"))) == pytest.approx(8 * 50e9)


def test_ranges() -> None:
    assert ranges(["gpu0", "gpu1", "gpu2", "host", "sw3", "sw4"]) == "gpu0..2, host, sw3..4"
    assert ranges(["a", "n01", "n02"]) == "a, n01, n02"
    assert ranges([f"x{2 * i}" for i in range(9)]) == "x0, x2, x4, x6, x8, ... x16"


def test_describe_is_a_tree_people_can_read() -> None:
    text = describe(topology.load("dgx-a100"), sources=False)
    assert text.splitlines()[0].startswith("dgx-a100: NVIDIA DGX A100")
    assert "gpu0..7 - nvswitch0..5 (48 pairs): 2 x 25 GB/s, 150 ns" in text
    assert (
        "gpu0..7: 12 nvlink, 300 GB/s in each direction; 1 pcie, 31.42 GB/s in each direction"
        in text
    )
    assert "nic0..7 (8): nic, 150 ns, cut-through, 1 ports, MTU 4096 B, GPUDirect" in text
    assert "owed to the opposite wire per packet: 3 B write, 5.801 B read_response" in text
    assert "at most per packet: 128 B others, 512 B read_request" in text
    assert "point to point by read" in text


def test_loading_a_preset_imports_nothing_heavy() -> None:
    code = "import sys; from clusim import topology; from clusim.topology.arrays import arrays_of;"
    code += "arrays_of(topology.load('dgx-a100'));"
    code += "print([m for m in ('networkx', 'h5py', 'rich', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_topology_without_links_has_one_class_of_traffic() -> None:
    fabric = loads("name: alone\nnodes: {cpu0: {kind: host}}\nlinks: []\n", "alone.yaml")
    assert classes_of(fabric) == 1
