"""Where NVLinks lead and what they can do, trees of htsim, hosts of lstopo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusim.base.errors import TopologyError
from clusim.formats.topologies import Imported, import_text
from formats.topologies.test_other_formats import status

Sample = Callable[..., Imported]
SAMPLES = Path(__file__).parent / "samples"


def able(name: str, *counts: int, of: int = 12) -> str:
    """Return what -c prints of GPUs of which so many links can be used between GPUs."""
    words = ("P2P is supported", "Access to system memory supported", "Link is supported")
    return "".join(
        f"GPU {n}: {name} (UUID: GPU-{n})\n"
        + "".join(
            f"\t Link {k}, {word}: {str(k < up or word != words[0]).lower()}\n"
            for k in range(of)
            for word in words
        )
        for n, up in enumerate(counts)
    )


def lead(name: str, links: list[list[tuple[str, int]]], *, numbers: bool = True) -> str:
    """Return what -R (or -p) prints: the address, and the number, at the other end of every link."""
    return "".join(
        f"GPU {n}: {name} (UUID: GPU-{n})\n"
        + "".join(
            f"\t Link {k}: Remote Device {bus}: Link {there}\n" if numbers else f"\t Link {k}: {bus}\n"
            for k, (bus, there) in enumerate(own)
        )
        for n, own in enumerate(links)
    )  # fmt: skip


BUSES = ("00000000:17:00.0", "00000000:65:00.0", "00000000:CA:00.0", "00000000:E3:00.0")


def bridged() -> list[list[tuple[str, int]]]:
    """Return the links of four cards with three-way bridges of 4 links between 0 and 2, and between 1 and 3."""
    return [[(BUSES[(n + 2) % 4], k) for k in range(4)] for n in range(4)]


@pytest.mark.parametrize("numbers", [True, False])
def test_where_nvlinks_lead(numbers: bool) -> None:
    found = import_text(lead("NVIDIA H100 NVL", bridged(), numbers=numbers), "x")
    joined = {
        (item["from"], item["to"], item["count"])
        for item in found.data["links"]
        if item["type"].startswith("nvlink")
    }
    assert joined == {("gpu0", "gpu2", 4), ("gpu1", "gpu3", 4)}
    assert found.data["nodes"]["gpu0"]["chip"] == "h100-nvl"
    assert any("counts GPUs in their order" in item.why for item in found.assumptions)


def test_addresses_that_are_no_gpus_are_switches() -> None:
    for buses in (BUSES, ["FFFFFFFF:FF:FF.0"] * 4):
        links = [[(bus, 7 + n) for bus in buses for _ in range(3)] for n in range(4)]
        found = import_text(lead("NVIDIA A100-SXM4-80GB", links), "x")
        assert found.counts["nvlink_links"] == 48
        assert found.counts["nvswitches"] >= 4
    mixed = bridged()
    mixed[0][0] = (BUSES[2], 3)  # comes back as another number: these are ports of switches
    assert import_text(lead("NVIDIA H100 NVL", mixed), "x").counts["nvswitches"] == 4


def test_what_nvlinks_can_do() -> None:
    found = import_text(able("Tesla V100-SXM2-32GB", 6, 6, of=6), "x")
    assert (found.kind, found.counts["nvlink_links"]) == ("smi-nvlink", 6)
    assert any("active links are not in the output of -c" in item.why for item in found.assumptions)
    less = import_text(able("NVIDIA A100-SXM4-80GB", 12, 12, 10, 12), "x")
    assert less.counts["nvlink_links"] == 46
    assert "gpu2: 10 links (2 more cannot be used between GPUs)" in map(str, less.assumptions)


def test_answers_to_several_questions() -> None:
    name = "NVIDIA H100 NVL"
    text = status(name, 2, 4, 2, 4, of=4) + able(name, 4, 4, 4, 4, of=4) + lead(name, bridged())
    found = import_text(text, "x")
    counts = {
        item["to"]: item.get("count", 1)
        for item in found.data["links"]
        if item["type"].startswith("nvlink")
    }
    assert (counts["gpu2"], counts["gpu3"]) == (2, 4)
    assert found.counts["gpus"] == 4
    for twice in (
        text + able(name, 4, of=4),
        "GPU 0: Tesla\n" + status("Tesla", 1),
        status("A", 1) + able("B", 1),
    ):
        with pytest.raises(TopologyError, match="different GPUs"):
            import_text(twice, "x", kind="smi-nvlink")


def test_htsim_trees_have_its_counts(sample: Sample) -> None:
    found = sample("pods.topo")
    assert (found.kind, found.counts["hosts"], found.counts["switches"]) == ("htsim", 8, 12)
    nodes, links = found.data["nodes"], found.data["links"]
    assert nodes["leaf0"] == {
        "kind": "switch",
        "switch": "ethernet",
        "tier": "leaf",
        "latency": "300ns",
    }
    assert {key: sum(item["to"].startswith(key) for item in links) for key in ("leaf", "spine", "core")} == {
        "leaf": 8, "spine": 8, "core": 8,
    }  # fmt: skip
    ups = [(item["from"], item["to"], item["count"]) for item in links if "core" in item["to"]]
    assert ups[:2] == [("spine0", "core0", 2), ("spine0", "core2", 2)]
    assert {item["rate"] for item in links if "core" in item["to"]} == {"100 Gb/s"}
    assert {item["latency"] for item in links if "spine" in item["to"]} == {"800ns"}
    assert len(found.fabric().nodes) == 20


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Nodes 8", "Nodes 9", "hosts of a pod: 4 do not divide 9"),
        ("Nodes 8", "Nodes x", "x.topo:2: 'Nodes x': must be a word and an integer"),
        ("Tiers 3", "Tiers 1", "Tiers 1; must be 2 or 3"),
        ("Tiers 3", "Tiers 2", "with 2 tiers it is Nodes"),
        ("Bundle 2", "Bundle 3", "the Bundle of tier 2: 3 do not divide 4"),
        ("Tier 2", "Tier 7", "Tier 7: must be 0, 1 or 2"),
        ("Radix_Up 2", "", "Radix_up of Tier 0 is missing"),
        ("Radix_Down 4", "Radix_Down 8", "2 pods need 4 ports"),
        ("Podsize 4", "Colour 4", "'Colour' is not known here"),
        ("Bundle 2", "Bundle 0", "begin at 1"),
        ("Nodes 8", "Nodes 999999", "must be 1 to 65536"),
    ],
)
def test_htsim_errors(old: str, new: str, message: str) -> None:
    text = (SAMPLES / "pods.topo").read_text(encoding="utf-8")
    with pytest.raises(TopologyError) as failure:
        import_text(text.replace(old, new, 1), "x.topo", kind="htsim")
    assert message in str(failure.value)


def test_the_host_of_lstopo(sample: Sample) -> None:
    found = sample("lstopo.xml")
    assert (found.kind, found.counts["gpus"], found.counts["nics"]) == ("lstopo", 4, 2)
    assert (found.counts["cpus"], found.counts["pcie_switches"], found.counts["nvlink_links"]) == (
        2,
        2,
        24,
    )
    nodes, links = found.data["nodes"], found.data["links"]
    assert nodes["gpu0"]["chip"] == "a100-sxm4-80gb"
    assert nodes["cpu0"]["switch"] == "epyc-milan"
    assert nodes["nic0"]["nic"] == "cx6-hdr"
    ways = {(item["from"], item["to"]): item["type"] for item in links}
    assert ways["gpu0", "pcie0"] == "pcie-gen4-x16-gpu"
    assert ways["nic1", "pcie1"] == "pcie-gen4-x16"
    assert {item.get("count") for item in links if item["type"] == "nvlink3"} == {4}
    said = [str(item) for item in found.assumptions]
    assert any("2.5 GT/s, as of a GPU at rest" in text for text in said)
    assert found.fabric().num_ranks == 4


def test_lstopo_of_other_releases() -> None:
    """NUMA nodes around packages (1), bits of kinds (3), several NUMA nodes, ports that are down, no NVLinks."""
    text = (SAMPLES / "lstopo.xml").read_text(encoding="utf-8")
    newer = text.replace('version="2.0"', 'version="3.0"').replace(
        'osdev_type="3"', 'osdev_type="32"'
    )
    assert import_text(newer, "x.xml").counts["nics"] == 2
    down = import_text(text.replace('Port1State" value="4"', 'Port1State" value="1"'), "x.xml")
    assert any("it is not active" in item.why for item in down.assumptions)
    alone = import_text(text.replace("NVLinkBandwidth", "NVLinkTwins"), "x.xml")
    assert (alone.counts["nvlink_links"], alone.counts["nvswitches"]) == (48, 6)
    packages = text.replace('type="Package"', 'type="NUMANode"')
    packages = "\n".join(line for line in packages.splitlines() if "local_memory" not in line)
    assert import_text(packages, "x.xml").counts["cpus"] == 2
    shared = text.replace(
        'type="NUMANode" os_index="0" cpuset="0x00000003"',
        'type="NUMANode" os_index="7" cpuset="0x00000001"',
    )
    assert import_text(shared, "x.xml").counts["cpus"] == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="Machine"', 'type="Thing"', "no object of type Machine"),
        ("10de:20b2", "1022:20b2", "no GPU among its PCI devices"),
        ("1000000 100000", "1000000", "13 values of 4 objects"),
        ("1000000 100000", "1000000 x", "NVLinkBandwidth"),
        ('hwloc2.dtd"', 'evil.dtd"', "declares a document type"),
        (
            '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
            "<!DOCTYPE topology [<!ENTITY a 'b'>]>",
            "declares a document type",
        ),
    ],
)
def test_lstopo_errors(old: str, new: str, message: str) -> None:
    text = (SAMPLES / "lstopo.xml").read_text(encoding="utf-8")
    with pytest.raises(TopologyError) as failure:
        import_text(text.replace(old, new), "x.xml")
    assert message in str(failure.value)
