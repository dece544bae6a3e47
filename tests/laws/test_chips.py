"""Law: a chip says what it is; no name and no default decides for it, and what nobody knows is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusim import topology
from clusim.base import resources
from clusim.base.errors import ClusimError, TopologyError
from clusim.base.units import parse_time
from clusim.hardware import ARCHITECTURES, CHIPS, CPUS, FAMILIES, GPUS, PROCESSORS
from clusim.nccl import communicator
from clusim.nccl.communicator import Communicator
from clusim.nccl.launch import Launch, host_of, overhead_ps
from clusim.simulation.expected import RunPlace, expected_error
from clusim.topology import loads, to_yaml
from clusim.workload.chips import chip_of
from clusim.workload.kernels import PRECISIONS
from support.nccl_lines import log_totals


def text_of(name: str) -> str:
    path = resources.find_topology(name)
    assert path is not None
    return path.read_text(encoding="utf-8")


def renamed(name: str, chip: str) -> str:
    """Return a preset whose GPUs have a name of the user's own, with the preset's chip as base."""
    text = text_of(name)
    assert f"chip: {chip}" in text
    return (
        text.replace(f"chip: {chip}", "chip: my-gpu") + f"\nchips: {{my-gpu: {{base: {chip}}}}}\n"
    )


def decisions(comm: Communicator) -> list[object]:
    """Return what NCCL decides by chips and adapters."""
    return [log_totals(comm), comm.group, comm.graphs, comm.channels, comm.table.costs]


@pytest.mark.parametrize("name", GPUS)
def test_every_chip_has_the_figures_that_used_to_be_guessed(name: str) -> None:
    preset = CHIPS[name]
    assert preset["architecture"].value in ARCHITECTURES
    for key in ("compute_capability", "peer_access", "memory", "gemm_fraction"):
        assert preset[key].source
    assert preset["architecture"].value in FAMILIES


@pytest.mark.parametrize(
    ("name", "architecture", "capability"),
    [
        ("b200-sxm", "blackwell", 10.0),
        ("b300-sxm", "blackwell", 10.3),
        ("vr200", "rubin", 10.7),
        ("rtx-pro-6000", "blackwell", 12.0),
        ("rtx-6000-ada", "ada", 8.9),
        ("rtx-2080ti", "volta", 7.5),
        ("a30", "ampere", 8.0),
        ("a10", "ampere", 8.6),
        ("mi300x", "cdna3", 8.0),
    ],
)
def test_architecture_and_capability_are_those_published(
    name: str, architecture: str, capability: float
) -> None:
    assert CHIPS[name]["architecture"].value == architecture
    assert CHIPS[name]["compute_capability"].value == capability


def test_an_architecture_without_measurements_assumes_the_figures_of_another() -> None:
    rubin, blackwell = FAMILIES["rubin"], FAMILIES["blackwell"]
    assert (rubin.like, blackwell.like) == ("blackwell", "")
    pairs = list(zip(rubin.all_figures(), blackwell.all_figures(), strict=True))
    assert [own.value for own, _ in pairs] == [other.value for _, other in pairs]
    assert any(other.mark == "calibrated" for _, other in pairs)
    for own, other in pairs:
        if other.mark == "calibrated":
            assert (own.mark, own.rows) == ("assumed", ())
            assert own.source == f"as Blackwell: {other.source}"
            assert own.limits in (other.limits, None)
        else:
            assert own == other
    for figure in GPUS["vr200"].all_figures():
        assert figure.mark != "calibrated"


def test_a_plan_for_a_gpu_without_measurements_says_so() -> None:
    comm = communicator(topology.load("vera-rubin-nvl72"))
    assert comm.notes == ("vr200: not measured; planned and timed as Blackwell",)
    assert communicator(topology.load("gb300-nvl72")).notes == ()
    setup = RunPlace.of_name("vera-rubin-nvl72", comm.architecture, 1)
    assert expected_error(setup, 1 << 20, "NVLS").nearest is None
    assert expected_error(RunPlace.of_name("hgx-b200", "blackwell", 1), 1 << 20, "NVLS").nearest


def test_the_key_architecture_changes_nothing_where_chips_say_it() -> None:
    text = text_of("dgx-a100")
    assert not re.search(r"^architecture:", text, re.MULTILINE)
    assert loads("architecture: ampere\n" + text) == loads(text)
    assert loads(text).p2p == "read", "A100 pull"


def test_a_contradicting_architecture_is_an_error_with_its_place() -> None:
    with pytest.raises(TopologyError) as error:
        loads("architecture: hopper\n" + text_of("dgx-a100"), "mine.yaml")
    assert str(error.value).startswith(
        "mine.yaml:1:15: architecture: 'hopper', but chip 'a100-sxm4"
    )


TWO = "nodes: {{gpu0..1: {{kind: gpu, chip: {0}}}}}\nlinks: [{{from: gpu0, to: gpu1, type: nvlink4}}]\n"
BARE = (
    "chips: {mine: {sms: 8, cta_slots: 8, write_latency: 1ns, read_latency: 1ns, response_latency: 1ns,"
    " memory_rate: 1 TB/s, memory_efficiency: 0.9, memory_per_delivered: 1, memory_per_read: 1,"
    " memory_per_injected: 1%s}}\n"
)


def test_a_chip_nobody_knows_must_say_its_architecture() -> None:
    with pytest.raises(TopologyError, match=r"x:3:9: chips.mine: 'architecture' is missing; set a"):
        loads(TWO.format("mine") + BARE % "", "x")
    assert loads(TWO.format("mine") + BARE % ", architecture: ampere").p2p == "read"


def test_a_chip_without_base_takes_nothing_from_another_chip() -> None:
    with pytest.raises(TopologyError, match=r"chips.mine: without base and cta_slots"):
        loads(TWO.format("mine") + "chips: {mine: {architecture: hopper, sms: 8}}\n", "x")


def test_nccl_and_training_ask_for_what_a_chip_does_not_say() -> None:
    net = loads(TWO.format("mine") + BARE % ", architecture: ampere, peak_flops: {bf16: 1e12}")
    with pytest.raises(ClusimError, match=r"chip 'mine' of gpu0: unknown compute_capability"):
        communicator(net)
    with pytest.raises(ClusimError, match=r"chip 'mine' of gpu0: gemm_fraction missing"):
        chip_of(net, PRECISIONS["bf16"])


def test_gpus_of_several_architectures_need_the_key() -> None:
    text = (
        "nodes: {gpu0: {kind: gpu, chip: a100-sxm4-80gb}, gpu1: {kind: gpu, chip: h100-sxm5}}\n"
        "links: [{from: gpu0, to: gpu1, type: nvlink4}]\n"
    )
    with pytest.raises(
        TopologyError, match=r"choose the protocols of all ranks with 'architecture: am"
    ):
        loads(text)
    assert loads("architecture: ampere\n" + text).p2p == "read"


@pytest.mark.parametrize(
    ("name", "chip"),
    [("hgx-b200", "b200-sxm"), ("rtx4090x8-pcie", "rtx-4090"), ("a100x4-mesh", "a100-sxm4-80gb")],
)
def test_a_chip_of_ones_own_name_is_planned_and_timed_as_its_base(name: str, chip: str) -> None:
    own, known = loads(renamed(name, chip)), topology.load(name)
    mine, theirs = communicator(own), communicator(known)
    assert decisions(mine) == decisions(theirs)
    assert host_of(mine) == host_of(theirs)
    assert own.protocols == known.protocols
    here, there = (chip_of(net, PRECISIONS["bf16"]) for net in (own, known))
    assert here.gemm_fraction == there.gemm_fraction
    assert here.memory_bytes == there.memory_bytes > 0


def test_b200_by_another_name_keeps_the_nvls_channels_of_blackwell() -> None:
    assert communicator(loads(renamed("hgx-b200", "b200-sxm"))).nvls_channels == 24


def test_a_root_complex_of_ones_own_name_is_still_the_processor_of_its_base() -> None:
    text = text_of("dgx-a100")
    assert "switch: epyc-rome" in text
    own = text.replace("switch: epyc-rome", "switch: my-root")
    own += "\nswitches: {my-root: {base: epyc-rome}}\n"
    assert communicator(loads(own)).systems[0].cpu == communicator(loads(text)).systems[0].cpu
    assert {str(cpu.figures["cpu"].value) for cpu in PROCESSORS.values()} == set(CPUS)


def test_an_unknown_processor_is_said() -> None:
    text = text_of("a100-pcie-x8")
    root = re.search(r"switch: (xeon-\w+)", text)
    assert root is not None
    comm = communicator(loads(text.replace(root[1], "root-complex")))
    assert any("NCCL's defaults for unknown processors" in note for note in comm.notes)


def test_an_adapter_of_ones_own_name_is_shown_to_nccl_as_its_base(tmp_path: Path) -> None:
    text = text_of("aws-p4d")
    nic = re.search(r"nic: (efa-[\w-]+)", text)
    assert nic is not None
    own = text.replace(f"nic: {nic[1]}", "nic: mine") + f"\nnics: {{mine: {{base: {nic[1]}}}}}\n"
    for name, content in (("own", own), ("known", text)):
        (tmp_path / f"{name}.yaml").write_text(content, encoding="utf-8")
    seen = [
        [(a.speed_GBps, a.latency_us, len(a.members)) for a in communicator(
            topology.load(tmp_path / f"{name}.yaml", nodes=2), ranks=(0, 1, 8, 9)
        ).systems[0].adapters]
        for name in ("own", "known")
    ]  # fmt: skip
    assert seen[0] == seen[1]
    assert seen[1][0][1] == 75.0


def test_a_machine_written_out_in_full_is_planned_alike() -> None:
    known = topology.load("a100-pcie-x8")
    again = loads(to_yaml(known))
    assert again == known
    assert decisions(communicator(again)) == decisions(communicator(known))


def test_launching_on_mi300x_costs_what_cdna_does() -> None:
    host = host_of(communicator(topology.load("mi300x")))
    assert host.architecture == "cdna3"
    cost = parse_time(str(FAMILIES["cdna3"].kernel_overhead.value))
    assert overhead_ps(host, Launch()) == cost == 12_000_000


def test_a_plan_for_amd_says_whose_it_is() -> None:
    comm = communicator(topology.load("mi300x"))
    assert comm.library == "RCCL 2.27 (ROCm 7.1, gfx942)"
    (note,) = comm.notes
    assert "MSCCL's all-to-all, its default" in note
    old = loads(
        text_of("mi300x")
        .replace("chip: mi300x", "chip: mi100")
        .replace("xgmi-mi300x", "xgmi-mi100")
    )
    (note,) = communicator(old).notes
    assert note.startswith("mi100: runs RCCL, with a different tuner; the plan is NCCL's")


def test_a_near_name_is_suggested_for_a_short_one() -> None:
    with pytest.raises(TopologyError, match=r"unknown chip 'h100'; did you mean 'h100-sxm5', "):
        loads(TWO.format("h100"))
