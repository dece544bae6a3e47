"""Every mechanism acts at every door: a system or option that differs changes the answer of each command.

The system is two nodes of two GPUs, a PCIe switch and a RoCE NIC. Its network marks every packet that waits, so that
rate control acts in any traffic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Clusim = Callable[..., Any]
TRACES = Path(__file__).resolve().parents[2] / "traces"

SYSTEM = """\
name: node
p2p_level: pxb
nics:
  n: {base: cx6-roce200, rate_control: dcqcn-200}
link_types:
  net: {base: roce-200, ecn: {min: 1B, max: 2B, probability: 1}}
nodes:
  gpu0..1: {kind: gpu, chip: a100-pcie-80gb}
  pcie0: {kind: switch, switch: pex88096}
  nic0: {kind: nic, nic: n}
  cpu0: {kind: switch, switch: xeon-icx}
  mem0: {kind: memory, chip: ddr4-3200x8}
links:
  - {from: gpu0..1, to: pcie0, type: pcie-gen4-x16-gpu}
  - {from: nic0, to: pcie0, type: pcie-gen4-x16}
  - {from: pcie0, to: cpu0, type: pcie-gen4-x16}
  - {from: cpu0, to: mem0, type: dram-ddr4-3200x8}
network: {kind: rail, link: net, switch: spectrum3}
"""

MECHANISMS = {
    "rate control": ("rate_control: dcqcn-200", "rate_control: none"),
    "marks": ("ecn: {min: 1B, max: 2B, probability: 1}", "ecn: none"),
    "acs": ("p2p_level: pxb", "p2p_level: pxb\nacs: true"),
    "gpudirect": ("p2p_level: pxb", "p2p_level: pxb\ngdr_level: loc"),
    "peer access": ("p2p_level: pxb", "p2p_level: loc"),
}
"""Text of the system, and its replacement.

Pauses are compared without rate control, which avoids them, with a slow slot of the NIC behind a long cable.
"""

OPTIONS = {"--fault": ("rank 1 slow x1", "rank 1 slow x20"), "--seed": ("1", "2")}
"""Options, and two values with different answers."""

ACCEPTED = {
    "run": {"--fault", "--seed"},
    "traffic": {"--seed"},
    "train": {"--fault", "--seed"},
    "train --estimate": {"--fault", "--seed"},
    "replay": {"--fault"},
}
"""Options of commands; the others refuse them."""

WORKLOAD = """
topology: {path}
model: {{base: gpt3-1.3b, layers: 1, hidden: {hidden}, heads: 8, head_size: {head}, kv_heads: 8, vocab: 1024}}
sequence: 128
batch: {{global: 4, micro: 1}}
parallel: {{data: 4}}
"""

GRID = "run: {{topology: {path}, size: {size}}}\n"


def _calls(folder: Path, system: Path, size_bytes: int) -> dict[str, list[object]]:
    """Return a small call of each command."""
    head = 32 if size_bytes <= 1 << 16 else 128
    (folder / "step.yaml").write_text(WORKLOAD.format(path=system, hidden=8 * head, head=head))
    (folder / "grid.yaml").write_text(GRID.format(path=system, size=size_bytes))
    rows = "system,n_nodes,n_gpus,collective,size_bytes,time_us\n"
    (folder / "rows.csv").write_text(f"{rows}{system},2,4,all_reduce,{size_bytes},100\n")
    return {
        "run": ["run", system, "--size", size_bytes, "--json"],
        "traffic": ["traffic", system, "--pattern", "alltoall", "--message", "64KiB", "--json"],
        "train": ["train", folder / "step.yaml", "--json"],
        "train --estimate": ["train", folder / "step.yaml", "--estimate", "--json"],
        "replay": ["replay", TRACES / "ring-4.goal", system, "--json"],
        "sweep": ["sweep", folder / "grid.yaml", "--jobs", "1", "--json"],
        "nccl-tests": [
            "nccl-tests",
            "all_reduce_perf",
            system,
            "-b",
            size_bytes,
            "-e",
            size_bytes,
            "--jobs",
            "1",
        ],
        "crossover": ["crossover", system, "--size", size_bytes, "--jobs", "1", "--json"],
        "what-if": ["what-if", f"run {system} --size {size_bytes}", "pcie x2", "--json"],
        "validate": ["validate", folder / "rows.csv", "--jobs", "1", "--json"],
    }


DOORS = (
    "run", "traffic", "train", "train --estimate", "replay", "sweep", "nccl-tests", "crossover", "what-if", "validate"
)  # fmt: skip

OF_THE_RUN = ("wall", "fingerprint", "sha", "hash", "seconds", "point")


def _numbers(value: object) -> list[float]:
    """Return the numbers of a JSON value, without wall times and fingerprints."""
    if isinstance(value, dict):
        kept = [item for key, item in value.items() if not any(w in key for w in OF_THE_RUN)]
        return _numbers(kept)
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, (int, float)) else []


def _answer(
    clusim: Clusim,
    folder: Path,
    door: str,
    text: str,
    options: tuple[str, ...] = (),
    size_bytes: int = 1 << 16,
) -> list[object]:
    """Return the numbers of a call on a system; none if the command does not have the options."""
    folder.mkdir(exist_ok=True)
    (folder / "node.yaml").write_text(text)
    system = folder / "doors.yaml"
    system.write_text("name: doors-2\ncluster: {node: node.yaml, nodes: 2}\n")
    done = clusim(*_calls(folder, system, size_bytes)[door], *options, "--no-progress")
    if done.code == 2 and options and f"no option '{options[0]}'" in done.err:
        return []
    assert done.code == 0, f"{door}: {done.err or done.out}"
    rows = [line.split() for line in done.out.splitlines() if line.strip()[:1].isdigit()]
    found = _numbers(json.loads(done.out)) if done.out.startswith(("{", "[")) else rows
    assert found, done.out
    return list(found)


@pytest.mark.parametrize("door", DOORS)
def test_every_mechanism_changes_the_answer_of_a_command(
    clusim: Clusim, tmp_path: Path, door: str
) -> None:
    base = _answer(clusim, tmp_path, door, SYSTEM)
    unchanged = []
    for mechanism, (old, new) in MECHANISMS.items():
        assert SYSTEM.count(old) == 1
        if _answer(clusim, tmp_path, door, SYSTEM.replace(old, new)) == base:
            unchanged.append(mechanism)
    free = SYSTEM.replace(*MECHANISMS["rate control"])
    free = free.replace(
        "nic0, to: pcie0, type: pcie-gen4-x16", "nic0, to: pcie0, type: pcie-gen4-x4"
    )
    free = free.replace("switch: spectrum3", "switch: spectrum3, lengths: {nic: 1 km}")
    paused = free.replace("probability: 1}", "probability: 1}, pfc: {xoff: 2B, xon: 1B}")
    long = [_answer(clusim, tmp_path, door, item, size_bytes=1 << 21) for item in (free, paused)]
    if long[0] == long[1]:
        unchanged.append("pauses")
    assert unchanged == []


@pytest.mark.parametrize("door", [door for door in DOORS if door != "what-if"])
def test_faults_and_seeds_change_the_answer_of_a_command_or_are_refused(
    clusim: Clusim, tmp_path: Path, door: str
) -> None:
    """Seeds decide which packets have errors. The options of a what-if are those of its baseline."""
    text = SYSTEM.replace(
        "ecn: {min: 1B, max: 2B, probability: 1}", "error_rate: 0.05, replay: 2us"
    )
    found = {
        option: [_answer(clusim, tmp_path, door, text, (option, value)) for value in values]
        for option, values in OPTIONS.items()
    }
    accepted = {option for option, answers in found.items() if answers[0]}
    assert accepted == ACCEPTED.get(door, set())
    assert all(found[option][0] != found[option][1] for option in accepted)
