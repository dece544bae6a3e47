"""Clusters by name, by file and from the command line, and the words for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import clusim
from clusim import topology
from clusim.base import resources
from clusim.base.errors import TopologyError
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.topology.cluster_names import superpods
from clusim.topology.loading import from_data
from clusim.topology.schema import NetworkSpec
from clusim_cli import options
from support.boxes import box_text, cluster, cluster_data


@pytest.fixture
def box(tmp_path: Path) -> str:
    (tmp_path / "box.yaml").write_text(box_text())
    return str(tmp_path / "box.yaml")


def count(net: Fabric, tier: str) -> int:
    return sum(node.tier == tier for node in net.nodes)


@pytest.mark.parametrize("name", resources.shipped_topologies())
def test_every_preset_can_be_a_cluster(name: str) -> None:
    alone, net = topology.load(name), topology.load(name, nodes=3)
    assert net.num_ranks == 3 * alone.num_ranks
    assert net.num_zones == 3
    assert net.network["link"]
    arrays = arrays_of(net)
    last = net.num_ranks - 1
    kinds = [net.nodes[int(node)].kind for node in arrays.wires["dst"][arrays.path(0, last)]]
    assert kinds.count("nic") == 2
    assert kinds[-1] == "gpu"


@pytest.mark.parametrize(
    ("name", "leaves", "spines", "cores"),
    [
        ("superpod-a100:nodes=140", 56, 80, 28),
        ("superpod-h100:nodes=31", 8, 4, 0),
        ("superpod-h200:nodes=127", 32, 16, 0),
        ("superpod-b200:nodes=64", 16, 8, 0),
        ("superpod-b300:nodes=288", 32, 18, 0),
    ],
)
def test_superpods_by_name(name: str, leaves: int, spines: int, cores: int) -> None:
    net = clusim.load(name)
    assert net.name == name
    assert (count(net, "leaf"), count(net, "spine"), count(net, "core")) == (leaves, spines, cores)


def test_names_say_the_same_as_arguments_and_files(box: str) -> None:
    one = topology.load(box, nodes=3)
    two = topology.load(f"{box}:nodes=3")
    assert one == two
    assert one.name == f"{box}:nodes=3"
    assert topology.load(one.name) == one, "the name makes it again"
    assert topology.load(f"{box}:nodes=3", nodes=5) == topology.load(box, nodes=5), "nodes wins"
    assert topology.load(box, nodes=1) == topology.load(box)


def test_options_in_names_are_those_of_files(box: str) -> None:
    name = f"{box}:nodes=12,kind=fat-tree,link=ib-hdr,switch=generic,radix=8,oversubscription=3:1,spine_length=30m"
    net = topology.load(name)
    data = {
        "name": name.replace("3:1", "3:1"),
        "cluster": {
            "node": box,
            "nodes": 12,
            "network": {
                "kind": "fat-tree",
                "link": "ib-hdr",
                "switch": "generic",
                "radix": 8,
                "oversubscription": 3.0,
                "lengths": {"spine": "30 m"},
            },
        },
    }
    assert from_data(data) == net
    assert topology.load(f"rail:node={box},nodes=4").description.startswith("4 x box, rail network")
    torus = topology.load(f"torus:node={box},nodes=6,shape=3x2")
    assert "torus 3x2" in torus.description
    assert topology.load(torus.name) == torus
    assert topology.load("torus:3x2").num_zones == 1, "synthetic networks keep their names"


def test_what_a_machine_says_of_its_network_is_the_default(tmp_path: Path) -> None:
    text = "{kind: fat-tree, link: ib-edr, switch: generic, radix: 8, oversubscription: 3, lengths: {nic: 4 m}}"
    (tmp_path / "box.yaml").write_text(box_text(network=f"network: {text}"))
    path = str(tmp_path / "box.yaml")
    assert topology.load(path).network["radix"] == 8
    net = topology.load(path, nodes=9)
    assert count(net, "leaf") == 3
    assert {node.ports for node in net.nodes if node.tier == "leaf"} == {8}
    other = topology.load(f"{path}:nodes=9,kind=rail")
    assert (other.network["radix"], "oversubscription" in other.network) == (8, False)
    faster = topology.load(f"{path}:nodes=9,link=ib-hdr")
    assert (faster.network["switch"], faster.network["oversubscription"]) == ("quantum", 3)


def test_types_of_the_machines_file_are_known(tmp_path: Path) -> None:
    own = "link_types: {mine: {base: ib-hdr, latency: 1us}}\nnetwork: {kind: single, link: mine, switch: generic}"
    (tmp_path / "box.yaml").write_text(box_text(network=own))
    net = topology.load(str(tmp_path / "box.yaml"), nodes=2)
    assert {link.latency_ps for link in net.links if link.b == "switch0"} == {1_000_000}


def test_a_machine_without_word_gets_rails_as_fast_as_its_slots(box: str) -> None:
    net = topology.load(box, nodes=2)
    assert (net.network["kind"], net.network["link"], net.network["switch"]) == (
        "rail",
        "ib-hdr",
        "quantum",
    )


def test_files_have_clusters_of_presets_and_of_files_beside_them(tmp_path: Path) -> None:
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "box.yaml").write_text(box_text())
    data = cluster_data("boxes/box.yaml", 4, kind="rail") | {
        "description": "mine",
        "channels": {"default": 5},
        "faults": ["link n0/nic0-leaf0.0 down at 1ms"],
        "vcs": 4,
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(data))
    net = topology.load(tmp_path / "pod.yaml")
    assert (net.name, net.description, net.num_zones, net.num_vcs) == ("cluster", "mine", 4, 4)
    assert net.num_channels("ring") == 5
    assert net.faults == ("link n0/nic0-leaf0.0 down at 1ms",)
    assert net.source_text.startswith("channels:")
    assert topology.load(tmp_path / "pod.yaml", nodes=7).num_zones == 7
    (tmp_path / "preset.yaml").write_text("cluster: {node: dgx-a100, nodes: 2}")
    assert topology.load(tmp_path / "preset.yaml").num_ranks == 16


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"kind": "single"}, "one switch has 8 ports, needs 12; use kind rail or fat-tree"),
        ({"kind": "ring"}, "cluster.network.kind: 'ring' is not known"),
        ({"link": "ib-nrd"}, "cluster.network.link: unknown link type 'ib-nrd'; did you mean 'ib-ndr'?"),
        ({"switch": "quantm"}, "cluster.network.switch: unknown switch 'quantm'; did you mean 'quantum'"),
        ({"nics": 3}, "nics=3: box has 2"),
        ({"rails": 4}, "rails=4: does not divide the 2 NICs of a node"),
        ({"unit": 8}, "a leaf has 8 ports, needs 16: 8 for NICs and 8 uplinks"),
        ({"unit": 5}, "a leaf has 8 ports, needs 10: 5 for NICs and 5 uplinks"),
        ({"unit": 4, "spines": 3}, "spines=3: 4 uplinks of a leaf do not spread over them evenly"),
        ({"unit": 4, "spines": 1}, "a spine has 8 ports, needs 16: 4 for each of 4 leaves"),
        ({"unit": 4, "spines": 0}, "without spines there are at most 4 nodes"),
        ({"levels": 1}, "levels=1: 4 leaves need spines"),
        ({"levels": 3, "unit": 4, "cores": 7}, "cores=7: "),
        ({"kind": "fat-tree", "unit": 1, "levels": 2, "spine_switch": "four"}, "needs 6: one for each leaf"),
        ({"kind": "torus", "shape": [4, 2]}, "shape 4x2: has 8 places, needs 6"),
        ({"kind": "torus", "torus_links": 3}, "a switch has 8 ports, needs "),
        ({"kind": "dragonfly", "groups": 2, "group_switches": 1}, "groups=2: 1 switch in each hold"),
        ({"kind": "dragonfly", "switch_nics": 4, "group_switches": 2, "global_links": 9},
         "needs 14: 4 for NICs, 1 local and"),
        ({"oversubscription": 0}, "cluster.network.oversubscription: 0: must be greater than or equal to 0.01"),
        ({"spine": 3}, "cluster.network.spine: unknown key; did you mean 'spines'?"),
        ({"lengths": {"leaf": 3}}, "cluster.network.lengths.leaf: unknown key"),
        ({"lengths": {"nic": "3 miles"}}, "not a length"),
    ],
    ids=str,
)  # fmt: skip
def test_impossible_networks_are_one_clear_line(
    box: str, network: dict[str, Any], words: str
) -> None:
    data = cluster_data(box, 6, **network)
    data["switches"]["four"] = {"ports": 4, "latency": "1us"}
    with pytest.raises(TopologyError) as error:
        from_data(data)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("superpod-h100", "needs nodes; for example superpod-h100:nodes=32"),
        ("superpod-h100:nodes=0", "must be greater than or equal to 1"),
        ("superpod-h100:nodes=-4", "must be an integer"),
        ("superpod-h100:nodes=2,nodes=3", "nodes: given twice"),
        ("superpod-x100:nodes=2", "no such preset or file"),
        (
            "dgx-h100:nodes=4,oversub=2",
            "unknown option 'oversub'; did you mean 'oversubscription'?",
        ),
        ("dgx-h100:nodes=4,oversubscription=much", "must be a number such as 2 or 3:1"),
        ("dgx-h100:nodes=4,kind", "must be option=value"),
        ("dgx-h100:nodes=4,kind=tree", "'tree' is not known"),
        ("dgx-h100:nodes=99999", "99999"),
        ("rail:node=dgx-h999,nodes=4", "no such preset or file"),
        ("fat-tree:k=4,nodes=2", "unknown option"),
    ],
)
def test_bad_names_are_one_clear_line(name: str, words: str) -> None:
    with pytest.raises(TopologyError) as error:
        topology.load(name)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_machines_that_cannot_be_joined(tmp_path: Path, box: str) -> None:
    lonely = tmp_path / "lonely.yaml"
    lonely.write_text(
        "nodes: {gpu0..1: {kind: gpu, chip: h100-sxm5}}\nlinks: [{from: gpu0, to: gpu1, type: nvlink4}]"
    )
    with pytest.raises(TopologyError, match="is without NICs, so its nodes cannot be"):
        topology.load(lonely, nodes=2)
    with pytest.raises(TopologyError, match="nodes need a preset or file with NICs"):
        topology.load("fat-tree:k=4", nodes=2)
    with pytest.raises(TopologyError, match="is a cluster itself"):
        cluster(f"{box}:nodes=2", 2)
    with pytest.raises(TopologyError, match="must be at least 1"):
        topology.load(box, nodes=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cluster: {node: dgx-a100}", "cluster: 'nodes' is missing"),
        ("cluster: {nodes: 2}", "cluster: 'node' is missing"),
        ("cluster: {node: dgx-a100, nodes: 2}\nnodes: {a: {kind: host}}", "either a cluster or nodes and links"),
        ("cluster: {node: dgx-a100, nodes: 2}\nrings: [[0]]", "rings: belongs to one node"),
        ("cluster: {node: nowhere.yaml, nodes: 2}", "nowhere.yaml"),
        ("cluster: {node: 7, nodes: 2}", "cluster.node: 7"),
        ("name: x", "'nodes' is missing; write for example nodes: {gpu0..7"),
    ],
)  # fmt: skip
def test_files_say_where_they_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pod.yaml").write_text(text)
    with pytest.raises(TopologyError) as error:
        topology.load(tmp_path / "pod.yaml")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert "pod.yaml" in str(error.value)


def test_the_option_of_commands() -> None:
    @click.command()
    @options.nodes()
    def command(nodes: int | None) -> None:
        click.echo(repr(nodes))

    runner = CliRunner()
    assert runner.invoke(command, []).output == "None\n"
    assert runner.invoke(command, ["--nodes", "4"]).output == "4\n"
    assert "not in the range" in runner.invoke(command, ["--nodes", "0"]).output


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    for key in NetworkSpec.model_fields:
        assert f"`{key}`" in page, key
    for tier in ("nic", "spine", "core", "local", "global", "torus"):
        assert f"`{tier}`" in page, tier


def test_every_superpod_is_in_the_page_on_clusters() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text(
        encoding="utf-8"
    )
    for name in superpods():
        assert name in page or f"`{name.removeprefix('superpod')}`" in page, name
