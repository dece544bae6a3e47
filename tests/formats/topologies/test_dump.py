"""A machine written as NCCL writes it and read again is the same in everything that NCCL sees."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim import topology
from clusim.base import resources
from clusim.base.errors import TopologyError
from clusim.formats import topologies
from clusim.formats.topologies.nccl_dump import dump_system
from clusim.hardware import GPUS
from clusim.nccl import LATEST, communicator
from clusim.nccl.constants import Version
from clusim.nccl.system import System
from clusim.nccl.system_paths import direct_rdma
from clusim.nccl.topology import build_system
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.topology.loading import join_nodes
from clusim.topology.rails import PathType, Rails
from clusim_cli.main import run
from support.covering import few_racks

PRESETS = few_racks(resources.shipped_topologies())

SEARCHED = ("dgx-a100", "dgx-1v", "aws-p5", "polaris", "alps-gh200", "a100-pcie-nvlink-pair")
"""Machines of several kinds whose search is quick."""


def chip_of(machine: Fabric) -> str:
    return next(
        node.endpoint.chip for node in machine.nodes if node.kind == "gpu" and node.endpoint
    )


def again(machine: Fabric) -> Fabric:
    """Return what is read of a machine's XML; a chip without a PCI identity has to be named."""
    chip = chip_of(machine)
    named = chip if not (GPUS[chip].pci_ids or GPUS[chip].gfx) else None
    return topologies.import_text(dump_system(machine), "x.xml", chip=named).fabric()


def seen(system: System) -> dict[str, Any]:
    """Return everything that the search and the tuner look at."""
    ends = (*system.gpus, *system.adapters)
    routes = {
        f"{a.kind}{a.index} {b.kind}{b.index}": (route.type, round(route.rate, 3), route.hops)
        for a in ends
        for b in (*ends, *system.cpus)
        if (route := system.route(a, b)) is not None
    }
    return routes | {
        "gpus": [(gpu.capability, gpu.chip, gpu.peer_access) for gpu in system.gpus],
        "cpus": [cpu.cpu for cpu in system.cpus],
        "adapters": [
            (round(net.speed_GBps, 3), net.gpudirect, len(net.members), net.latency_us)
            for net in system.adapters
        ],
    }


def whole(name: str) -> Fabric:
    """Return a preset, with what its adapters are joined to where it is one of many."""
    alone = topology.load(name)
    rails = any(node.kind == "nic" for node in alone.nodes)
    return topology.load(name, nodes=2) if rails and "nvl72" not in name else alone


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_after_its_own_dump(name: str) -> None:
    machine = whole(name)
    own, given = (build_system(one, LATEST) for one in (again(machine), machine))
    assert seen(own) == seen(given)


def time_ps(machine: Fabric, nodes: int) -> int:
    """Return the time of an all-reduce; of four GPUs of a rack, whose search over all is slow."""
    ranks = range(4) if "nvl72" in machine.name or len(machine.ranks) == 72 else None
    return clusim.collective(join_nodes(machine, nodes), "allreduce", "64KiB", ranks=ranks).time_ps


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_on_an_export_takes_as_long_as_on_its_preset(name: str) -> None:
    one = topology.load(name)
    nodes = 1 if "nvl72" in name or not any(node.kind == "nic" for node in one.nodes) else 2
    assert time_ps(again(one), nodes) == time_ps(one, nodes)


def nameless(text: str) -> str:
    """Return an XML whose processors have an architecture only, as in dumps of arm64 hosts."""
    return re.sub(r' (vendor="(NVIDIA|ARM)"|familyid="[^"]*"|modelid="[^"]*")', "", text)


@pytest.mark.parametrize("name", ["alps-gh200", "gh200x4-mesh", "dgx-spark"])
def test_processors_without_a_name_beside_a_superchip_are_its_own(name: str) -> None:
    text = nameless(dump_system(topology.load(name)))
    assert 'arch="arm64"' in text
    assert "modelid" not in text
    read = topologies.import_text(text, "x.xml").fabric()
    assert time_ps(read, 2) == time_ps(topology.load(name), 2)


def test_a_nic_beside_a_superchip_writes_to_the_gpu_itself() -> None:
    text = nameless(dump_system(topology.load("alps-gh200")))
    text = text.replace(
        'link_speed="" link_width="0"', 'link_speed="32.0 GT/s PCIe" link_width="16"'
    )
    machine = topologies.import_text(text, "x.xml").fabric()
    for release in (Version(2, 22), Version(2, 27), LATEST):
        system = build_system(machine, release)
        assert direct_rdma(system, system.gpus[0], system.adapters[0])
    assert Rails(arrays_of(machine)).path(0, 0)[0] == PathType.C2C


def test_an_element_of_the_file_wins_over_the_comment() -> None:
    text = dump_system(topology.load("gcp-a3-mega")).replace('gdr="1"', 'gdr="0"')
    nics = [node.nic for node in topologies.import_text(text, "x.xml").fabric().nodes if node.nic]
    assert nics
    assert not any(nic.gpudirect for nic in nics)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"network": {"kind"', '"network": [{"kind"', "not the JSON that"),
        (
            '"network": {"kind": "rail"',
            '"nics": {"a": 7}, "network": {"kind": "rail"',
            "not the JSON",
        ),
        ("cx7-ndr", "cx99", "no NIC and no switch is called 'cx99'"),
        ('"upi', '"nvlink4", 1], [1, 0, "upi', "is not a link of class numa"),
    ],
)
def test_a_damaged_comment_is_named(old: str, new: str, message: str) -> None:
    text = dump_system(topology.load("dgx-h100"))
    assert old in text
    with pytest.raises(TopologyError, match=message):
        topologies.import_text(text.replace(old, new), "x.xml")


@pytest.mark.parametrize("name", SEARCHED)
def test_nccl_finds_the_same_channels(name: str) -> None:
    machine = whole(name)
    own = join_nodes(again(machine), machine.num_zones)
    assert communicator(own).machines == communicator(machine).machines


def test_what_nccl_is_told_is_what_is_dumped() -> None:
    text = dump_system(topology.load("a100x4-mesh"))
    found = topologies.import_text(text.replace('count="4"', 'count="3"', 1), "x.xml").fabric()
    assert len(found.told) == 1
    assert again(found).told == found.told


def test_the_command_writes_what_the_command_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "box.xml"
    assert run(["topo", "export", "dgx-h100", "-o", str(path)]) == 0
    assert "8 GPUs, 8 NICs" in capsys.readouterr().out
    assert run(["topo", "export", "dgx-h100"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert run(["run", str(path), "--size", "1MiB", "--json"]) == 0
    mine = capsys.readouterr().out
    assert run(["run", "dgx-h100", "--size", "1MiB", "--json"]) == 0
    times = [json.loads(text)["time_ps"] for text in (mine, capsys.readouterr().out)]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_device_names_of_nics_come_back() -> None:
    named = replace(topology.load("dgx-a100"), nic_names={"nic0": "mlx5_9", "nic3": "mlx5_2:2"})
    again = topologies.import_text(dump_system(named), "box.xml").fabric()
    assert again.nic_names["nic0"] == "mlx5_9"
    assert again.nic_names["nic3"] == "mlx5_2:2"
