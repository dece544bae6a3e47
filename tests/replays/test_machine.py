"""Which machine a log is taken to come from, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.formats.logs.jobranks import add_runs, job_ranks
from clusim.replays.machine_match import Guess, infer_machine
from clusim.topology import load
from clusim.topology.check_links import HOST_CLASSES
from clusim.topology.cluster_names import Traits, machine_traits, superpods
from replays.samples import LogWriter

HEAD = "nodea:1:2 [0] NCCL INFO "


def guess(tmp_path: Path, text: str) -> Guess:
    path = tmp_path / "nccl.log"
    path.write_text(text)
    log = read_logs([str(path)])
    add_runs(log)
    return infer_machine(log, job_ranks(log))


def devices(name: str, count: int = 8, hosts: int = 1) -> str:
    row = "        1024           256     float     sum      -1    11.50    1.25    1.25       0\n"
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n"
    return (
        head
        + "".join(
            f"#  Rank {h * count + r:2} Group  0 Pid {r} on node{h} device {r:2} [0x{16 * r + 1:02x}] {name}\n"
            for h in range(hosts)
            for r in range(count)
        )
        + "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        + row
    )


def test_every_preset_with_gpus_may_be_found() -> None:
    assert {traits.name for traits in machine_traits()} == set(resources.shipped_topologies())


@pytest.mark.parametrize("traits", machine_traits(), ids=lambda traits: traits.name)
def test_what_is_read_off_a_file_is_so_in_its_fabric(traits: Traits) -> None:
    machine = load(traits.name)
    assert traits.gpus == machine.num_ranks
    ends = {node.name: node.kind for node in machine.nodes}
    joins = {frozenset((ends[link.a], ends[link.b])) for link in machine.links
             if link.cls not in HOST_CLASSES and "gpu" in (ends[link.a], ends[link.b])}  # fmt: skip
    kinds = {frozenset({"gpu", "switch"}): "switch", frozenset({"gpu"}): "peer"}
    assert {kinds[join] for join in joins} == {traits.linked_by} - {"pcie"}
    assert traits.chip.preset["sms"].value == machine.nodes[0].endpoint.sms  # type: ignore[union-attr]


def test_no_fabric_is_built_to_find_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("clusim.topology.assemble.assemble", built)
    assert machine_traits()


BOX = """name: lab
nodes:
  gpu0..3: {kind: gpu, chip: mine}
  nic0: {kind: nic, nic: own}
  cpu0: {kind: switch, switch: epyc-genoa}
chips: {mine: {base: l40s, memory: 24GiB}}
nics: {own: {base: efa-200g}}
links:
  - {from: gpu0..3, to: cpu0, type: pcie-gen4-x16-gpu}
  - {from: nic0, to: cpu0, type: pcie-gen4-x16}
superpod: superlab
"""


def test_a_file_in_a_directory_of_ones_own_is_a_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSIM_TOPOLOGIES", str(tmp_path))
    path = tmp_path / "lab.yaml"
    path.write_text(BOX)
    assert load("lab").num_ranks == 4
    assert guess(tmp_path, devices("NVIDIA L40S", 4)).topology == "lab"
    (own,) = (traits for traits in machine_traits() if traits.name == "lab")
    assert (own.gpus, own.linked_by, own.network) == (4, "pcie", "OFI")
    assert superpods()["superlab"] == "lab"
    path.write_text(BOX + "logs: {network: IB, common: 500}\n")
    os.utime(path, ns=(1, 1))
    assert machine_traits()[0].network == "IB"


def test_presets_that_are_only_looked_through_are_no_inputs() -> None:
    assert load("fat-tree:k=4").source_files == ()
    assert [Path(name).name for name in load("superpod-h100:nodes=31").source_files] == [
        "dgx-h100.yaml"
    ]


def test_two_presets_share_no_superpod() -> None:
    named = [
        path.read_text().count("\nsuperpod: ") for path in resources.shipped_topologies().values()
    ]
    assert sum(named) == len(superpods()) == 5


@pytest.mark.parametrize(
    ("name", "count", "topology"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "dgx-h100"),
        ("NVIDIA H200", 8, "dgx-h200"),
        ("NVIDIA A100-SXM4-80GB", 8, "dgx-a100"),
        ("NVIDIA A100-PCIE-40GB", 8, "a100-pcie-x8"),
        ("Tesla V100-SXM2-32GB", 8, "dgx-1v"),
        ("Tesla V100-SXM3-32GB", 16, "dgx-2"),
        ("NVIDIA GeForce RTX 4090", 8, "rtx4090x8-pcie"),
        ("NVIDIA B200", 8, "hgx-b200"),
    ],
)
def test_gpu_names(tmp_path: Path, name: str, count: int, topology: str) -> None:
    found = guess(tmp_path, devices(name, count))
    assert found.topology == topology
    assert name in found.reasons[0]


def test_the_network_tells_clouds_apart(tmp_path: Path) -> None:
    text = devices("NVIDIA H100 80GB HBM3", hosts=2) + f"{HEAD}Using network AWS Libfabric\n"
    assert guess(tmp_path, text).topology == "aws-p5"


def test_bus_addresses_alone_suffice(tmp_path: Path) -> None:
    log = LogWriter(8)
    log.init(buses=(0x7, 0xF, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD))
    assert guess(tmp_path, log.text()).topology == "dgx-a100"


def test_a_topology_print_without_nvlink_is_a_pcie_box(tmp_path: Path) -> None:
    log = LogWriter(2)
    log.init(buses=(1, 2))
    for line in (
        "=== System : maxBw 12.0 totalBw 12.0 ===",
        "CPU/0 (1/1/2)",
        "+ PCI[12.0] - GPU/1000 (0)",
        "+ PCI[12.0] - GPU/2000 (1)",
        "==========================================",
    ):
        log.say(0, line)
    found = guess(tmp_path, log.text())
    assert "pcie" in found.topology or "rtx" in found.topology
    assert any(line.startswith("as likely") for line in found.reasons)


def test_two_low_bus_addresses_are_no_clue(tmp_path: Path) -> None:
    log = LogWriter(2)
    log.init(buses=(2, 3))
    with pytest.raises(InputError, match="set --topology"):
        guess(tmp_path, log.text())
