"""InfraGraph files: what components mean, errors by line and key, and presets that come back as they were."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import ClusimError
from clusim.formats.topologies import Imported, detect, import_text
from clusim.simulation.api import collective
from clusim.topology import Fabric
from clusim_formats.topologies.infragraphdump import dump_infragraph

SAMPLE = (Path(__file__).parent / "samples" / "infragraph.yaml").read_text(encoding="utf-8")


def links(found: Imported) -> Counter[tuple[str, str, str]]:
    return Counter(
        (*sorted((link["from"], link["to"])), str(link["type"])) for link in found.data["links"]
    )


def test_components_become_hardware_and_passive_ones_edges() -> None:
    found = import_text(SAMPLE, "two.yaml")
    assert detect(SAMPLE) == found.kind == "infragraph"
    nodes = found.data["nodes"]
    assert Counter(keys["kind"] for keys in nodes.values()) == {
        "gpu": 8, "nic": 4, "switch": 7, "memory": 2,
    }  # fmt: skip
    assert nodes["n1/gpu3"] == {"kind": "gpu", "chip": "a100-sxm4-40gb", "zone": 1}
    assert nodes["n0/cpu0"]["switch"] == "epyc-milan"
    assert nodes["n0/nic1"]["nic"] == "cx6-roce200"
    assert nodes["leaf0"]["zone"] == -1
    at = links(found)
    assert at["n0/gpu0", "n0/gpu3", "nvlink3"] == 1
    assert at["n1/gpu2", "n1/pcie1", "pcie-gen4-x16-gpu"] == 1
    assert at["n0/nic1", "n0/pcie1", "pcie-gen4-x16"] == 1
    assert at["leaf0", "n1/nic0", "roce-200"] == 1
    mesh = next(k for k in found.data["links"] if {k["from"], k["to"]} == {"n0/gpu0", "n0/gpu1"})
    assert mesh["rate"] == "100 GB/s"
    cable = next(k for k in found.data["links"] if "leaf0" in (k["from"], k["to"]))
    assert cable["latency"] in ("30000ps", "30ns")
    said = [str(item) for item in found.assumptions]
    assert any("box bmc: ignored" in item for item in said)
    assert any("no latency in the file" in item for item in said)
    assert found.fabric().num_ranks == 8


def test_annotations_say_chips_and_bandwidths() -> None:
    notes = """annotations:
  nodes:
    - {name: "box[1]acc[0:2]", attributes: [{attribute: model, value: NVIDIA A100-SXM4-80GB}]}
  links:
    - {name: cable, attributes: [{attribute: bandwidth, value: 100 Gbps}]}
  edges:
    - {ep1: "box[0]acc[0]", ep2: "box[0]acc[1]", attributes: [{attribute: bandwidth, value: 75 GBps}]}
"""
    found = import_text(SAMPLE + notes, "two.yaml")
    chips = [found.data["nodes"][f"n{z}/gpu{g}"]["chip"] for z in (0, 1) for g in range(3)]
    assert chips == ["a100-sxm4-40gb"] * 3 + ["a100-sxm4-80gb"] * 2 + ["a100-sxm4-40gb"]
    assert links(found)["leaf0", "n0/nic0", "roce-100"] == 1
    rates = {(k["from"], k["to"]): k["rate"] for k in found.data["links"] if k["type"] == "nvlink3"}
    assert rates["n0/gpu0", "n0/gpu1"] == "75 GB/s"
    assert rates["n1/gpu0", "n1/gpu1"] == "100 GB/s"
    wrong = notes.replace("NVIDIA A100-SXM4-80GB", "NVIDIA A16")
    with pytest.raises(ClusimError, match="the GPU NVIDIA A16 is not known; the nearest is a10"):
        import_text(SAMPLE + wrong, "two.yaml")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("choice: xpu", "choice: gpu", r"devices\[0\]\.components\[1\]\.choice: unknown 'gpu'; choose one of"),
        ("count: 4, desc", "count: many, desc", r"components\[1\]\.count: must be a number"),
        ('"acc[0:2]"', '"acc[0:9]"', r"edges\[1\]\.ep1\.component: \[0:9\] exceeds the count of 4"),
        ('"bridge[1]"', '"bridge[x]"', r"edges\[2\]\.ep2\.component: \[x\]: must be an index"),
        ('"bridge[1]"', '"bridge[2]"', r"index 2 is not below the count of 2"),
        ("device: eth, count", "device: eht, count", r"instances\[1\]\.device: no device is called 'eht'"),
        ("link: cable", "link: cabel", r"edges\[0\]\.link: no link is called 'cabel'"),
        ("scheme: one2one\n", "scheme: one2two\n", r"edges\[0\]\.scheme: unknown 'one2two'; choose one of"),
        ("gigabits_per_second: 200", "gigabits_per_second: -1", r"links\[0\]\.physical\.bandwidth\.gigabits_per"),
        ("choice: ns", "choice: s", r"links\[0\]\.physical\.latency: choice 's' needs a value"),
        ("box[0:2]", "bex[0:2]", r"edges\[0\]\.ep1\.instance: no instance is called 'bex'"),
        ("card[0:2].plug", "card[0:2]", r"ep1\.component: "),
        ("edges:\n  - ep1", "connections: [a]\nedges:\n  - ep1", r"connections: of a draft of the format"),
    ],
)  # fmt: skip
def test_errors_name_line_and_key(old: str, new: str, what: str) -> None:
    line = SAMPLE[: SAMPLE.index(old)].count("\n") + 1
    with pytest.raises(ClusimError, match=rf"^two\.yaml:{line}: .*{what}"):
        import_text(SAMPLE.replace(old, new, 1), "two.yaml")


def test_devices_without_an_infrastructure_and_missing_components() -> None:
    device = """name: pair
components:
- {name: xpu, choice: xpu, count: 2, description: NVIDIA H100 SXM5}
- {name: sw, choice: switch, count: 4, description: NVSwitch}
links:
- {name: nv, description: nvlink_4}
edges:
- {ep1: {component: xpu}, ep2: {component: sw}, scheme: many2many, link: nv}
- {ep1: {component: xpu}, ep2: {component: cpu}, scheme: many2many, link: nv}
"""
    found = import_text(device, "pair.yaml")
    counts = [link["count"] for link in found.data["links"] if link["from"] == "gpu0"]
    assert counts == [5, 4, 4, 5]
    (left,) = [item for item in found.assumptions if "edges ignored" in item.what]
    assert str(left).startswith("line 9: ")
    assert left.settles
    with pytest.raises(ClusimError, match="no component with choice xpu"):
        import_text(device.replace("choice: xpu", "choice: nic"), "pair.yaml")


def shape(machine: Fabric) -> tuple[Counter[tuple[str, ...]], Counter[tuple[object, ...]]]:
    """Return the kinds of nodes, and of links with their rates and latencies."""
    kind = {n.name: (n.kind, n.endpoint.chip if n.endpoint else n.model) for n in machine.nodes}
    wires = Counter(
        (
            *sorted((kind[a.a], kind[a.b])),
            a.label,
            a.count,
            a.rate.num / a.rate.den,
            a.latency_ps,
        )
        for a in machine.links
    )
    return Counter(kind.values()), wires


@pytest.mark.parametrize(
    "name",
    ["dgx-a100:nodes=2", "polaris", "gb200-nvl72", "dgx-1v", "mi300x", "l40s-x8", "aws-p5", "alps-gh200:nodes=3"],
)  # fmt: skip
def test_a_preset_comes_back_with_its_nodes_links_and_rates(name: str) -> None:
    first = topology.load(name)
    text = dump_infragraph(first)
    found = import_text(text, "x.yaml")
    second = found.fabric()
    assert shape(second) == shape(first)
    assert [n.name for n in second.nodes if n.kind == "gpu"] == [
        n.name for n in first.nodes if n.kind == "gpu"
    ]
    assert dump_infragraph(second).partition("devices:")[2] == text.partition("devices:")[2]


def test_an_exported_node_takes_as_long_as_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "dgx.yaml"
    path.write_text(import_text(dump_infragraph(topology.load("dgx-a100")), "x.yaml").to_yaml())
    times = [collective(where, "allreduce", "1MiB").time_ps for where in ("dgx-a100", str(path))]
    assert times[0] == times[1]
