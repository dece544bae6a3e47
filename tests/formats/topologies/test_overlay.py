"""Partial XML files put onto a machine, as NCCL fills in what `NCCL_TOPO_FILE` leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.formats import topologies
from clusim.formats.topologies import Imported
from clusim.formats.topologies.nccl_dump import dump_system
from clusim.nccl import LATEST
from clusim.nccl.topology import build_system
from clusim.topology.checks import check
from clusim.topology.nccl_overrides import told_lines
from clusim.topology.save import to_yaml
from clusim_cli.main import run

GPU, NIC, BRIDGE = "0x030200", "0x020700", "0x060400"


def device(bus: str, *inside: str, **said: object) -> str:
    words = "".join(f' {name.rstrip("_")}="{value}"' for name, value in said.items())
    return f'<pci busid="{bus}"{words}>{"".join(inside)}</pci>'


def system(*cpus: str) -> str:
    inside = (f'<cpu numaid="{number}">{text}</cpu>' for number, text in enumerate(cpus))
    return f'<system version="1">{"".join(inside)}</system>'


def cloud(**said: object) -> str:
    """A vendor's file for a DGX-like virtual machine: two GPUs and two adapters below each of four switches."""
    sides = []
    for cpu in range(2):
        groups = []
        for group in range(2):
            at = 4 * cpu + 2 * group
            inside = [device(f"000{at + i + 1}:00:00.0", class_=GPU, **said) for i in range(2)]
            inside += [device(f"010{at + i + 1}:00:00.0", class_=NIC) for i in range(2)]
            groups.append(device(f"ffff:ff:0{2 * cpu + group}.0", *inside, class_=BRIDGE))
        sides.append("".join(groups))
    return system(*sides)


def onto(tmp_path: Path, text: str, machine: str) -> Imported:
    path = tmp_path / "overlay.xml"
    path.write_text(text)
    return topologies.import_onto(path, machine)


def test_a_vendors_file_takes_links_chips_and_rates_from_a_preset(tmp_path: Path) -> None:
    found = onto(tmp_path, cloud(), "azure-ndv4")
    assert (found.counts["gpus"], found.counts["nics"], found.counts["pcie_switches"]) == (8, 8, 4)
    one, two = (build_system(m, LATEST) for m in (found.fabric(), topology.load("azure-ndv4")))
    assert [gpu.chip for gpu in one.gpus] == [gpu.chip for gpu in two.gpus]
    for a in range(8):
        for b in range(8):
            if a != b:
                mine, other = (
                    one.route(one.gpus[a], one.gpus[b]),
                    two.route(two.gpus[a], two.gpus[b]),
                )
                assert mine is not None
                assert other is not None
                assert (mine.type, mine.rate) == (other.type, other.rate)
    notes = [str(item) for item in found.assumptions]
    assert "8 gpus: identified with azure-ndv4's in the order of addresses" in notes[0]
    assert found.data["sources"]["onto"] == "azure-ndv4"


def test_addresses_alone_are_enough_with_the_machines_own_xml(tmp_path: Path) -> None:
    whole = dump_system(topology.load("dgx-a100"))
    (tmp_path / "whole.xml").write_text(whole)
    machine = topologies.import_text(whole, "w.xml").fabric()
    gpus = [n.name for n in machine.nodes if n.kind == "gpu"]
    assert len(gpus) == 8
    bus = whole.split('class="0x030200"')[0].rpartition('busid="')[2].partition('"')[0]
    # The first GPU, by its address only, moved below the other CPU.
    found = onto(tmp_path, system("", device(bus)), str(tmp_path / "whole.xml"))
    assert found.counts["gpus"] == 8
    assert found.counts["nvlink_links"] == 96
    seen = build_system(found.fabric(), LATEST)
    (near,) = [k.remote.name for k in seen.gpus[0].links if k.kind == "pci"]
    assert near == "cpu1"
    assert all(k.remote.kind == "pci" for g in seen.gpus[1:] for k in g.links if k.kind == "pci")


def test_slots_of_the_file_are_told_and_those_of_the_machine_are_there(tmp_path: Path) -> None:
    """8 GT/s x 16 lanes are 12 GB/s to NCCL, and 16 GT/s are 24 (its table: 60 and 120, times lanes / 80)."""
    found = onto(tmp_path, cloud(link_speed="8 GT/s", link_width=16), "azure-ndv4")
    notes = [str(item) for item in found.assumptions]
    assert (
        "0001:00:00.0: NCCL reads speed 8 GT/s (azure-ndv4 has 16.0 GT/s PCIe, which data use)"
        in notes
    )
    machine, real = found.fabric(), topology.load("azure-ndv4")
    assert set(found.data["told_pcie"].values()) == {"gen3-x16"}
    told = set(found.data["told_pcie"])
    seen, usual = build_system(machine, LATEST), build_system(real, LATEST)
    for number, (gpu, whole) in enumerate(zip(seen.gpus, usual.gpus, strict=True)):
        rates = [next(k.rate for k in d.links if k.kind == "pci") for d in (gpu, whole)]
        assert rates == [12.0 if f"gpu{number}" in told else 24.0, 24.0]
    wires = [
        sorted(k.rate.bytes_per_s for k in one.links if k.cls == "pcie" and "gpu" in k.a + k.b)
        for one in (machine, real)
    ]
    assert wires[0] == wires[1]
    said = [line for line in seen.told if "PCIe slots" in line]
    assert said
    assert all("at gen3-x16, not " in line for line in said)
    assert told_lines(machine) == seen.told
    assert said[0] in [finding.what for finding in check(machine)]
    (tmp_path / "vm.yaml").write_text(to_yaml(machine))
    again = topology.load(tmp_path / "vm.yaml")
    assert again.told_pcie == machine.told_pcie
    assert build_system(again, LATEST).told == seen.told


def test_slots_that_are_the_same_are_not_told(tmp_path: Path) -> None:
    same = onto(tmp_path, cloud(link_speed="16 GT/s", link_width=16), "azure-ndv4")
    assert not [item for item in same.assumptions if "speed" in item.what]


def test_nvlinks_of_the_file_are_told_and_those_of_the_machine_are_there(tmp_path: Path) -> None:
    text = cloud().replace(
        f'class="{GPU}">',
        f'class="{GPU}"><gpu><nvlink target="fffffff:ff:ff.0" count="2" tclass="0x068000"/></gpu>', 1
    )  # fmt: skip
    found = onto(tmp_path, text, "azure-ndv4")
    assert found.data["told"] == {"gpu0": {"switch": 2}}
    assert found.counts["nvlink_links"] == 96
    assert [item.why for item in found.assumptions if item.what == "NCCL reads 2 NVLinks"] == [
        "azure-ndv4 has 12, which data use"
    ]


def test_devices_that_are_not_there_are_dropped_and_others_stay(tmp_path: Path) -> None:
    whole = dump_system(topology.load("dgx-a100"))
    (tmp_path / "whole.xml").write_text(whole)
    bus = whole.split('class="0x030200"')[0].rpartition('busid="')[2].partition('"')[0]
    text = system(device(bus, class_=GPU) + device("0009:00:00.0", class_=GPU))
    found = onto(tmp_path, text, str(tmp_path / "whole.xml"))
    assert found.counts["gpus"] == 8
    assert found.counts["nics"] == 8
    left = [item.where for item in found.assumptions if item.what == "ignored"]
    assert left == ["0009:00:00.0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (system(device("0001:00:00.0")), "addresses differ, and devices are without class"),
        (system(device("0001:00:00.0", class_=GPU)), "has 1 gpus, none at an address of dgx-a100, which has 8"),
        ("<graphs/>", "not a topology XML of one node"),
        ("<system", "not valid XML"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_onto_a_machine_is_one_line(
    text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyError, match=words):
        onto(tmp_path, text, "dgx-a100")


def test_the_command_writes_a_topology_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "vm.xml", tmp_path / "vm.yaml"
    path.write_text(cloud())
    assert run(["topo", "import", str(path), "--onto", "azure-ndv4", "-o", str(out), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["assumptions"]
    assert notes[0]["what"].startswith("identified with azure-ndv4's")
    assert run(["run", str(out), "--size", "1MiB", "--json"]) == 0
    mine = json.loads(capsys.readouterr().out)["time_ps"]
    assert run(["run", "azure-ndv4", "--size", "1MiB", "--json"]) == 0
    assert mine == pytest.approx(json.loads(capsys.readouterr().out)["time_ps"], rel=0.02)
    assert run(["topo", "import", str(path), "--onto", "azure-ndv4", "--group", "0"]) == 2
    empty = tmp_path / "empty.xml"
    empty.write_text(system(device("0001:00:00.0")))
    assert run(["run", str(empty)]) == 2
    assert "--onto TOPOLOGY" in capsys.readouterr().err
