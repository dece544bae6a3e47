"""Every mechanism acts at every door: a system or option that differs changes the answer of each command.

The first system is two nodes of two GPUs, a PCIe switch and a RoCE NIC. Its network marks every packet that waits, so
that rate control acts in any traffic. The second one has NVLink, a NIC per GPU, and switches that reduce.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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

OMITTED = {
    "traffic": "without NCCL: no PXN, in-switch reductions or kernels, and no copies in host memory"
}
"""Words in the help of a command about what it omits."""

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
{more}
"""

EXPERTS = """
topology: {path}
model: {{base: mixtral-8x7b, layers: 1, hidden: {hidden}, heads: 8, head_size: {head}, kv_heads: 8, intermediate: 512,
  vocab: 1024, experts: 4}}
sequence: 128
batch: {{global: 4, micro: 1}}
parallel: {{data: 4, expert: 4}}
"""

RING = (TRACES / "ring-4.goal").read_text()

REDUCED = """\
DATA
1
layer -1 9000 NONE 0 9000 NONE 0 8000 ALLREDUCE 1048576 0
"""
"""Recording of a layer of each rank, whose gradients are reduced, as in ASTRA-sim."""


class Work(NamedTuple):
    """Work of the commands on some nodes: a collective, a workload, and a recording with its suffix."""

    size_bytes: int = 1 << 16
    collective: str = "all_reduce"
    variables: tuple[str, ...] = ()
    workload: str = WORKLOAD
    more: str = ""
    recording: tuple[str, str] = ("goal", RING)
    nodes: int = 2


SMALL = Work()


def _calls(folder: Path, system: Path, work: Work) -> dict[str, list[object]]:
    """Return a small call of each command."""
    size_bytes, collective = work.size_bytes, work.collective
    head = 32 if size_bytes <= 1 << 16 else 48
    step, grid, steps = (folder / name for name in ("step.yaml", "grid.yaml", "steps.yaml"))
    step.write_text(work.workload.format(path=system, hidden=8 * head, head=head, more=work.more))
    variables = dict(item.split("=") for item in work.variables)
    run = {"topology": str(system), "collective": collective, "size": size_bytes, "env": variables}
    grid.write_text(json.dumps({"run": run}))
    steps.write_text(json.dumps({"train": {"workload": str(step)}}))
    rows = "system,n_nodes,n_gpus,collective,size_bytes,time_us,environment\n"
    row = f"{system},{work.nodes},4,{collective},{size_bytes},100,{' '.join(work.variables)}\n"
    (folder / "rows.csv").write_text(rows + row)
    suffix, text = work.recording
    (folder / f"job.{suffix}").write_text(text)
    env = [word for item in work.variables for word in ("--env", item)]
    sized = ["--collective", collective, "--size", str(size_bytes), *env]
    return {
        "run": ["run", system, *sized, "--json"],
        "traffic": ["traffic", system, "--pattern", "alltoall", "--message", "1MiB", "--json"],
        "train": ["train", step, "--json"],
        "train --estimate": ["train", step, "--estimate", "--json"],
        "replay": ["replay", folder / f"job.{suffix}", system, *env, "--json"],
        "sweep": ["sweep", grid, "-o", folder / "run.csv", "--jobs", "1", "--json"],
        "sweep train": ["sweep", steps, "-o", folder / "train.csv", "--jobs", "1", "--json"],
        "nccl-tests": [
            *("nccl-tests", f"{collective}_perf", system, "-b", size_bytes, "-e", size_bytes),
            *(*env, "--jobs", "1"),
        ],
        "crossover": ["crossover", system, *sized, "--jobs", "1", "--json"],
        "what-if": ["what-if", " ".join(["run", str(system), *sized]), "pcie x2", "--json"],
        "what-if train": ["what-if", f"train {step}", "pcie x2", "--json"],
        "validate": ["validate", folder / "rows.csv", "--jobs", "1", "--json"],
    }


DOORS = (
    *("run", "traffic", "train", "train --estimate", "replay", "sweep", "nccl-tests", "crossover"),
    *("what-if", "validate"),
)

TRAINING = ("train", "train --estimate", "sweep train", "what-if train")
EVERY_DOOR = tuple(dict.fromkeys(DOORS + TRAINING))

OF_THE_RUN = (
    *("wall", "fingerprint", "sha", "hash", "seconds", "point", "hops_per_s", "grants_per_s"),
    *("parts", "known", "outdated", "simulated_in"),
)
"""Words of keys whose values may differ between equal calls."""


def help_of(clusim: Clusim, door: str) -> str:
    """Return the help of a command on one line."""
    return " ".join(clusim(door.split()[0], "--help").out.split())


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
    work: Work = SMALL,
) -> list[object]:
    """Return the numbers of a call on a system; none if the command does not have the options."""
    folder.mkdir(exist_ok=True)
    (folder / "node.yaml").write_text(text)
    system = folder / "doors.yaml"
    system.write_text(f"name: doors\ncluster: {{node: node.yaml, nodes: {work.nodes}}}\n")
    done = clusim(*_calls(folder, system, work)[door], *options, "--no-progress")
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
    assert _answer(clusim, tmp_path, door, SYSTEM) == base
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
    work = Work(1 << 21)
    long = [_answer(clusim, tmp_path, door, item, work=work) for item in (free, paused)]
    if long[0] == long[1]:
        unchanged.append("pauses")
    omitted = []
    if door in OMITTED and OMITTED[door] in help_of(clusim, door):
        omitted = ["gpudirect", "peer access"]
    assert unchanged == omitted


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


REDUCING = """\
name: node
chips: {c: {base: h100-sxm5, sms: 132}}
switches:
  inside: {base: nvswitch3, reduction_rate: 1.6 TB/s}
  between: {base: quantum2, reduction_rate: 3.2 TB/s}
channels: {default: 2}
nodes:
  gpu0..N: {kind: gpu, chip: c}
  nvswitch0: {kind: switch, switch: inside}
  pcie0..N: {kind: switch, switch: pex89144}
  nic0..N: {kind: nic, nic: cx7-ndr}
  cpu0: {kind: switch, switch: xeon-spr}
  mem0: {kind: memory, chip: ddr5-4800x8}
links:
  - {from: gpu0..N, to: nvswitch0, count: 4, type: nvlink4}
  - {from: gpu0..N, to: pcie0..N, pair: zip, type: pcie-gen5-x16-gpu}
  - {from: nic0..N, to: pcie0..N, pair: zip, type: pcie-gen5-x16}
  - {from: pcie0..N, to: cpu0, type: pcie-gen5-x16}
  - {from: cpu0, to: mem0, type: dram-ddr5-4800x8}
network: {kind: rail, link: ib-ndr, switch: between}
"""

PAIRS, FOUR = REDUCING.replace("N", "1"), REDUCING.replace("N", "3")
"""Nodes of two GPUs, and of four."""


class Mechanism(NamedTuple):
    """A replacement in the text of a system, work, and words of commands that cannot have the mechanism."""

    text: str
    change: tuple[str, str]
    work: Work
    without: dict[str, str]


WITHOUT_NCCL = {"traffic": OMITTED["traffic"]}
SWITCHED = {
    "pxn": Mechanism(
        *(PAIRS, ("channels:", "pxn: false\nchannels:")),
        Work(collective="alltoall", workload=EXPERTS),
        {**WITHOUT_NCCL, "crossover": "no choice of algorithms"},
    ),
    "nvls": Mechanism(
        *(FOUR, ("reduction_rate: 1.6 TB/s", "reduction_rate: 4 GB/s")),
        Work(
            *(1 << 20, "all_reduce", ("NCCL_ALGO=NVLS",)),
            more="communicators: {data: {algorithm: {allreduce: nvls}}}",
            recording=("txt", REDUCED),
            nodes=1,
        ),
        WITHOUT_NCCL,
    ),
    "sharp": Mechanism(
        *(PAIRS, ("reduction_rate: 3.2 TB/s", "reduction_rate: 4 GB/s")),
        Work(
            *(1 << 20, "all_reduce", ("NCCL_COLLNET_ENABLE=1", "NCCL_ALGO=CollnetDirect")),
            more="communicators: {data: {algorithm: {allreduce: sharp}}}",
            recording=("txt", REDUCED),
        ),
        WITHOUT_NCCL,
    ),
}
"""Mechanisms of NVLink and of switches that reduce; a slow reduction unit shows whether they reduce."""


@pytest.mark.covering
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", SWITCHED)
def test_nics_of_other_gpus_and_reducing_switches_change_the_answer_of_a_command(
    clusim: Clusim, tmp_path: Path, name: str, door: str
) -> None:
    """A command without the mechanism says so in its help, or refuses its collective."""
    text, (old, new), work, without = SWITCHED[name]
    assert text.count(old) == 1
    if door in without and without[door] in help_of(clusim, door):
        return
    if door in without:
        with pytest.raises(AssertionError, match=without[door]):
            _answer(clusim, tmp_path, door, text, work=work)
        return
    found = [
        _answer(clusim, tmp_path, door, item, work=work) for item in (text, text.replace(old, new))
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_kernels_share_sms_with_communication_where_a_command_has_kernels(
    clusim: Clusim, tmp_path: Path, door: str
) -> None:
    """Half the SMs are a larger share for the channels; kernels of recordings last as recorded."""
    work = Work(recording=("txt", REDUCED), nodes=1)
    fewer = FOUR.replace("sms: 132", "sms: 66")
    found = [_answer(clusim, tmp_path, door, text, work=work) for text in (FOUR, fewer)]
    assert (found[0] != found[1]) == (door in TRAINING)


LITTLE = Work(more="hardware: {memory: 256MiB}")


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_insufficient_memory_is_reported_by_every_command_that_trains(
    clusim: Clusim, tmp_path: Path, door: str
) -> None:
    """With strict memory it is an error; other commands refuse the option."""
    (tmp_path / "node.yaml").write_text(SYSTEM)
    system = tmp_path / "doors.yaml"
    system.write_text("name: doors\ncluster: {node: node.yaml, nodes: 2}\n")
    words = _calls(tmp_path, system, LITTLE)[door]
    if door not in TRAINING:
        refused = clusim(*words, "--strict-memory")
        assert (refused.code, "no option '--strict-memory'" in refused.err) == (2, True)
        return
    plain = clusim(*words, "--no-progress")
    assert plain.code == 0, plain.err
    assert "too little" in plain.out + plain.err or '"fits": false' in plain.out
    if door == "sweep train":
        grid = tmp_path / "steps.yaml"
        given = json.loads(grid.read_text())
        grid.write_text(json.dumps({"train": given["train"] | {"strict_memory": True}}))
    elif door == "what-if train":
        words[1] = f"{words[1]} --strict-memory"
    else:
        words.append("--strict-memory")
    strict = clusim(*words, "--no-progress")
    assert (strict.code == 0, "too little" in strict.out + strict.err) == (False, True)
