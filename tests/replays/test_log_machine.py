"""The machine that a log prints, and what makes a replay doubtful."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.formats.logs.jobranks import add_runs, job_ranks
from clusim.nccl import LATEST, Version, parse_version
from clusim.nccl.constants import nvlink_GBps
from clusim.replays import ReplayRequest, replay
from clusim.replays.logmachine import LogMachine, machine_of_log, printed_machine
from clusim.replays.machine_match import infer_machine
from support.realfiles import real_files

BUSES = [0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF]
HEAD = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n"
TITLE = "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"


def tree(gpus: int, links: str, *, pci: float = 24.0, sockets: float = 16.0) -> list[str]:
    """Return the tree of a machine with two AMD sockets; `links` follows every GPU."""
    rows = ["=== System : maxBw 24.0 totalBw 24.0 ==="]
    half = -(-gpus // 2)
    for cpu, own in enumerate((range(half), range(half, gpus))):
        rows.append(f"CPU/0-{cpu} (1/2/-1)")
        for gpu in own:
            rows.append(f"+ PCI[{pci}] - GPU/0-{BUSES[gpu]:x}000 ({gpu})")
            rows += [f"              {line}" for line in links.splitlines()]
        rows.append(f"+ SYS[{sockets}] - CPU/0-{1 - cpu}")
    return [*rows, "=========================================="]


def text(tmp_path: Path, name: str, rows: list[str], *, gpus: int = 8, time: float = 100.0) -> Path:
    """Write a log of nccl-tests in which NCCL printed the machine."""
    lines = [HEAD.replace("nGpus 8", f"nGpus {gpus}").rstrip()]
    for gpu in range(gpus) if name else ():
        lines.append(
            f"#  Rank {gpu:2} Group  0 Pid 7 on node device {gpu:2} [0000:{BUSES[gpu]:02x}:00] {name}"
        )
    for gpu in range(gpus):
        lines.append(
            f"node:7:{8 + gpu} [{gpu}] NCCL INFO ncclCommInitAll comm 0x5{gpu}0 rank {gpu} nranks {gpus} cudaDev {gpu}"
            f" nvmlDev {gpu} busId {BUSES[gpu]:x}000 commId 0xab - Init COMPLETE"
        )
    lines += [f"node:7:8 [0] NCCL INFO {row}" for row in rows]
    lines += [
        "node:7:8 [0] NCCL INFO NCCL version 2.27.3+cuda12.6",
        TITLE.rstrip(),
        f"    16777216       4194304     float     sum      -1   {time}   10.0   17.5       0",
        "# Out of bounds values : 0 OK",
    ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def machine(path: Path, version: Version = LATEST) -> LogMachine:
    log = read_logs([str(path)])
    add_runs(log)
    ranks = job_ranks(log)
    return machine_of_log(log, ranks, infer_machine(log, ranks), version)


def test_gpus_of_one_name_are_that_chip_whatever_the_presets_are(tmp_path: Path) -> None:
    """A100 80GB PCIe was replayed on four A100 with NVLinks: the machine is what the log prints."""
    found = machine(text(tmp_path, "NVIDIA A100 80GB PCIe", tree(4, ""), gpus=4))
    assert isinstance(found.topology, topology.Fabric)
    chips = {
        node.endpoint.chip for node in found.topology.nodes if node.endpoint and node.kind == "gpu"
    }
    assert chips == {"a100-pcie-80gb"}
    assert not any(link.cls == "nvlink" for link in found.topology.links)
    assert any("unlike a100-pcie-x8" in line for line in found.lines)
    assert any("not in the log: mem0..1" in line for line in found.lines)
    assert found.doubts == []


def test_what_is_printed_of_a_preset_is_the_preset(tmp_path: Path) -> None:
    links = f"+ NVL[{12 * nvlink_GBps(80, LATEST)}] - NVS/0"
    path = text(tmp_path, "NVIDIA A100-SXM4-80GB", tree(8, links))
    found = machine(path)
    assert found.topology == "dgx-a100"
    assert any("is the same" in line for line in found.lines)
    half = machine(text(tmp_path, "NVIDIA A100-SXM4-80GB", tree(8, links.replace("240", "120"))))
    assert isinstance(half.topology, topology.Fabric)
    wires = {link.count for link in half.topology.links if link.cls == "nvlink"}
    assert wires == {1}
    assert any("unlike dgx-a100: GPUs 0 and 1 are NVL at 120 GB/s, not" in x for x in half.lines)


def test_direct_links_and_nothing_beyond_what_is_printed(tmp_path: Path) -> None:
    pair = "+ NVL[80.0] - GPU/0-{}000"
    rows = tree(2, "", pci=12.0)
    at = [i for i, row in enumerate(rows) if "- GPU/" in row]
    rows.insert(at[1] + 1, "              " + pair.format("1b"))
    rows.insert(at[0] + 1, "              " + pair.format("43"))
    found = machine(text(tmp_path, "NVIDIA A100-SXM4-40GB", rows, gpus=2))
    assert isinstance(found.topology, topology.Fabric)
    (link,) = (link for link in found.topology.links if link.cls == "nvlink")
    assert link.count == 4
    assert any("pcie-gen3-x16" in link.name for link in found.topology.links)


def test_several_machines_are_joined_by_what_is_printed(tmp_path: Path) -> None:
    rows = tree(2, "")
    rows.insert(2, "+ PCI[24.0] - NIC/0-5000")
    rows.insert(3, "              + NET[25.0] - NET/0 (1234/1/25.0)")
    path = text(tmp_path, "NVIDIA A100 80GB PCIe", rows, gpus=2)
    one = path.read_text()
    other = one.replace("node:", "peer:").replace("on node", "on peer")
    for rank in (0, 1):
        one = one.replace(f"rank {rank} nranks 2", f"rank {rank} nranks 4")
        other = other.replace(f"rank {rank} nranks 2", f"rank {rank + 2} nranks 4")
    lines = [line for line in other.splitlines() if "NCCL INFO" in line and "===" not in line]
    path.write_text(one + "\n".join(line for line in lines if "Init COMPLETE" in line) + "\n")
    found = machine(path)
    assert isinstance(found.topology, topology.Fabric)
    assert (found.topology.num_ranks, found.topology.num_zones) == (4, 2)
    nics = [node for node in found.topology.nodes if node.kind == "nic"]
    assert len(nics) == 2


def test_a_print_that_makes_no_sense_is_not_used(tmp_path: Path) -> None:
    rows = ["=== System : maxBw 24.0 totalBw 24.0 ===", "+ PCI[24.0] - GPU/0-1b000 (0)"]
    found = machine(text(tmp_path, "NVIDIA A100-SXM4-80GB", rows))
    assert found.topology == "dgx-a100"


def test_far_from_what_was_measured_is_said_first_and_strict_fails(tmp_path: Path) -> None:
    links = f"+ NVL[{12 * nvlink_GBps(80, LATEST)}] - NVS/0"
    path = text(tmp_path, "NVIDIA A100-SXM4-80GB", tree(8, links), time=9000.0)
    found = replay(ReplayRequest((str(path),)))
    assert "off the measured ones" in found.doubts[0]
    assert "--topology" in found.doubts[0]
    with pytest.raises(InputError, match="off the measured ones"):
        replay(ReplayRequest((str(path),), strict=True))
    near = text(
        tmp_path, "NVIDIA A100-SXM4-80GB", tree(8, links), time=found.calls[0].time_ps / 1e6
    )
    assert replay(ReplayRequest((str(near),), strict=True)).doubts == []


def test_more_ranks_than_gpus_are_doubtful(tmp_path: Path) -> None:
    path = text(tmp_path, "NVIDIA A100-SXM4-80GB", [], time=150.0)
    found = replay(ReplayRequest((str(path),), topology="a100x4-mesh"))
    assert "8 ranks on 1 node, but one of a100x4-mesh:nodes=2 has 4 GPUs" in found.doubts[0]


def test_an_assumed_chip_is_doubtful(tmp_path: Path) -> None:
    table = tmp_path / "smi.txt"
    table.write_text("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n")
    path = text(tmp_path, "", [], gpus=2)
    found = replay(
        ReplayRequest((str(path),), topology=str(table), asked=(("allreduce", 1 << 20),))
    )
    assert "an assumption decides: gpu0..1: chip" in found.doubts[0]
    assert "--chip" in found.doubts[0]


LOGS = real_files("nccl_logs")


KNOWN = {
    "alcf": "polaris",
    "cybertron": "aws-p3dn",
    "keitaw_p5": "aws-p5",
    "msccltools": "azure-ndv4",
    "panlichen_3090": "rtx3090x8-edr56",
    "wayne_h100": "dgx-h100",
}
"""Machines of real logs that their sources name, by the beginnings of their files' names."""


def named(path: Path) -> str | None:
    return next((preset for start, preset in KNOWN.items() if path.name.startswith(start)), None)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_the_machine_of_a_real_log_is_the_preset_in_all_that_both_say(path: Path) -> None:
    log = read_logs([str(path)])
    add_runs(log)
    ranks = job_ranks(log)
    try:
        guess = infer_machine(log, ranks)
    except InputError:
        assert named(path) is None, "the log tells less than its source"
        return
    assert named(path) in (guess.topology, None)
    version = parse_version(max(log.facts.versions)) if log.facts.versions else LATEST
    printed = printed_machine(log, guess.topology, version)
    found = machine_of_log(log, ranks, guess, version)
    if printed is None or named(path) is not None:
        # Where the log prints the machine it is that preset's: the same GPUs, paths, rates, adapters.
        assert found.topology == guess.topology
        assert not any("unlike" in line for line in found.lines)
        return
    # A machine that no source names is what the log prints, and where it differs from the preset is said.
    assert not isinstance(found.topology, str)
    assert any("unlike" in line for line in found.lines)
    assert found.topology.num_ranks == printed[1].counts["gpus"]
