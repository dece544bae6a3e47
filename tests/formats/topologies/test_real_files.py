"""Real topologies: every one is imported, compared with the right answer and with itself, and damaged."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from clusim import topology
from clusim.formats.topologies import Imported, import_file
from formats.topologies.test_mutations import mutate, survives
from support.realfiles import IN_FULL, answers, real_files

FILES = real_files("topo_xml", "smi_topo")
MUTATIONS = 50 if IN_FULL else 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_import(path: Path) -> None:
    found = import_file(path)
    machine = topology.load(path)
    assert machine == found.fabric()
    assert not [item for item in topology.check(machine) if item.level == "error"]
    counts = found.counts
    names = ("gpus", "nics", "nvlink_links", "xgmi_links", "pcie_links", "cpus", "pcie_switches")
    shown = ", ".join(f"{name} {counts.get(name, 0)}" for name in names)
    print(f"{path.name}: {shown}, assumptions {len(found.assumptions)}")
    if path.suffix == ".xml":
        compare_xml(path, found)
    else:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert counts["gpus"] == len(re.findall(r"GPU[0-9]+", first))
        assert counts["nics"] == len(re.findall(r"NIC[0-9]+", first))


@pytest.mark.parametrize("row", answers("imports"), ids=lambda row: row["file"])
def test_what_the_file_says_is_there(row: dict[str, str]) -> None:
    (path,) = (path for path in FILES if path.name == row["file"])
    found = import_file(path)
    ends = Counter[str]()
    for link in found.data["links"]:
        kind = "xgmi_ends" if link["type"].startswith("xgmi-") else "nvlink_ends"
        if kind == "xgmi_ends" or link["type"].startswith("nvlink"):
            on_gpus = sum(link[end].startswith("gpu") for end in ("from", "to"))
            ends[kind] += on_gpus * int(link.get("count", 1))
    counts = found.counts | {name: ends[name] for name in ("nvlink_ends", "xgmi_ends")}
    right = {name: value for name, value in row.items() if name != "file" and value}
    assert {name: str(counts.get(name, 0)) for name in right} == right


def compare_xml(path: Path, found: Imported) -> None:
    """Count what the file says in another way than the importer does."""
    root = ET.fromstring(path.read_text(encoding="utf-8").lstrip())
    if root.tag == "graphs":
        for tag, name in (("gpu", "gpus"), ("net", "nics")):
            assert found.counts[name] == len({e.get("dev") for e in root.iter(tag)})
        return
    if root.find("group") is not None:
        first = root.find("group")
        assert first is not None
        assert found.counts["gpus"] == len(list(first.iter("gpu")))
        assert found.counts["nics"] == len(list(first.iter("nic")))
        return
    leaves = [e for e in root.iter("pci") if e.find("pci") is None]
    gpus = list(root.iter("gpu")) or [e for e in leaves if str(e.get("class")).startswith("0x03")]
    nets = {(e.get("name"), e.get("guid"), e.get("dev")) for e in root.iter("net")}
    cards = [e for e in leaves if str(e.get("class")).startswith("0x02")]
    assert found.counts["gpus"] == len(gpus)
    assert found.counts["nics"] == len(nets or cards)
    assert found.counts["cpus"] == len(list(root.iter("cpu")))
    stated = Counter[int]()
    for index, gpu in enumerate(root.iter("gpu")):
        for link in [*gpu.iter("nvlink"), *gpu.iter("xgmi")]:
            stated[int(gpu.get("dev") or index)] += int(link.get("count") or 1)
    made = Counter[int]()
    for link in found.data["links"]:
        if link["type"].startswith(("nvlink", "xgmi-")):
            for end in (link["from"], link["to"]):
                if end.startswith("gpu"):
                    made[int(end[3:])] += int(link.get("count", 1))
    if stated:
        assert made == stated


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_mutations(path: Path) -> None:
    chance = random.Random(path.name)
    data = path.read_bytes()
    for number in range(MUTATIONS):
        survives(mutate(data, chance).decode("utf-8", "replace"), f"{path.name} {number}")
