"""Large messages reach the rates that links, headers and slots allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.collectives import build
from clusim.results.result import Result
from clusim.topology import Fabric, load, loads
from support.machines import cluster_of, pcie_machine

MIB = 1 << 20


def message(fabric: Fabric, src: int, dst: int, size_mib: int = 64, **options: Any) -> Result:
    """Send one large message with real data checked, if it is small, and return the result."""
    schedule = build(fabric, "send", None, size_mib * MIB, ranks=(src, dst), channels=8)
    return clusim.simulate(fabric, schedule, **options)


def steady_GBps(result: Result, wire_class: str) -> float:
    """Return the payload rate of the busiest wire of a class while it was busy [10^9 bytes/s]."""
    rows = [i for i, name in enumerate(result.wires.classes) if name == wire_class]
    wire = max(rows, key=lambda i: result.wires.counters["busy_ps"][i])
    counters = result.wires.counters[wire]
    return float(counters["payload"] / counters["busy_ps"] * 1e3)


@pytest.mark.parametrize(
    ("gen", "chip", "expected"), [(4, "a100-pcie-40gb", 26.2), (5, "h100-pcie", 52.4)]
)
def test_gpus_below_a_switch_reach_what_128_byte_packets_allow(
    gen: int, chip: str, expected: float
) -> None:
    fabric = loads(pcie_machine(gen=gen, chip=chip), "m")
    assert message(fabric, 0, 1).algbw_GBps == pytest.approx(expected, rel=0.02)


def test_peers_through_a_root_complex_pay_for_64_byte_packets() -> None:
    fabric = loads(pcie_machine(below="cpu", extra="p2p_level: phb"), "m")
    result = message(fabric, 0, 1)
    # a header of 24 bytes for 64 instead of 128
    assert result.algbw_GBps == pytest.approx(26.2 * (64 / 88) / (128 / 152), rel=0.02)


def test_staged_data_cross_the_root_complex_twice() -> None:
    fabric = loads(pcie_machine(below="cpu"), "m")
    result = message(fabric, 0, 1)
    names = {name: i for i, name in enumerate(result.wires.names)}
    payload = result.wires.counters["payload"]
    for name in ("gpu0->cpu0.0", "cpu0->mem0.0", "mem0->cpu0.0", "cpu0->gpu1.0"):
        assert payload[names[name]] == 64 * MIB
    assert 22 < result.algbw_GBps < 26.2


def test_an_ndr_wire_is_full() -> None:
    result = message(load("dgx-h100", nodes=2), 0, 8)
    assert steady_GBps(result, "infiniband nic->leaf") == pytest.approx(49.7, rel=0.005)
    assert result.algbw_GBps == pytest.approx(49.7, rel=0.03)
    assert steady_GBps(result, "pcie gpu->pcie") == pytest.approx(53, rel=0.03)


def test_a_bounce_is_slower_than_gpudirect(tmp_path: Path) -> None:
    direct = message(cluster_of(pcie_machine(gpus=1), tmp_path), 0, 1)
    bounced = message(cluster_of(pcie_machine(gpus=1, below="cpu"), tmp_path), 0, 1)
    assert direct.algbw_GBps == pytest.approx(24.8, rel=0.02)
    assert 20 < bounced.algbw_GBps < 0.95 * direct.algbw_GBps
    for wire_class, crossings in (("dram root->memory", 2), ("dram memory->root", 2)):
        rows = [i for i, name in enumerate(bounced.wires.classes) if name == wire_class]
        assert bounced.wires.counters["payload"][rows].sum() == crossings * 64 * MIB
    rows = [i for i, name in enumerate(direct.wires.classes) if name.startswith("dram")]
    assert not direct.wires.counters["payload"][rows].any()


def test_pxn_costs_nvlink_and_no_bandwidth() -> None:
    fabric = load("dgx-h100", nodes=2)
    own, other = message(fabric, 1, 9), message(fabric, 0, 9)
    assert other.algbw_GBps == pytest.approx(own.algbw_GBps, rel=0.01)
    nvlink = [i for i, name in enumerate(own.wires.classes) if name.startswith("nvlink")]
    assert not own.wires.counters["payload"][nvlink].any()
    assert other.wires.counters["payload"][nvlink].sum() == 2 * 64 * MIB


def test_all_rails_of_two_machines_are_full() -> None:
    fabric = load("dgx-h100", nodes=2)
    schedule = build(fabric, "allreduce", "ring", 256 * MIB)
    result = clusim.simulate(fabric, schedule)
    rows = [i for i, name in enumerate(result.wires.classes) if name == "infiniband nic->leaf"]
    busy = result.utilisation[rows]
    assert len(busy) == 16
    assert busy.min() > 0.85
    assert busy.max() - busy.min() < 0.01


def test_real_data_arrive_over_every_kind_of_way(tmp_path: Path) -> None:
    fabrics = [
        loads(pcie_machine(), "m"),
        loads(pcie_machine(below="cpu"), "m"),
        cluster_of(pcie_machine(gpus=2), tmp_path),
        cluster_of(pcie_machine(gpus=2, nvlink=True), tmp_path),
        cluster_of(pcie_machine(gpus=2, below="cpu"), tmp_path),
    ]
    for fabric in fabrics:
        for operation in ("allreduce", "alltoall", "sendrecv"):
            schedule = build(fabric, operation, None, 300_004, channels=2)
            result = clusim.simulate(fabric, schedule, verify=True)
            assert result.verified, (fabric.name, operation, result.verify_note)


def test_both_engines_agree_on_every_kind_of_way(tmp_path: Path) -> None:
    fabrics = [
        loads(pcie_machine(below="cpu"), "m"),
        cluster_of(pcie_machine(gpus=2, nvlink=True), tmp_path),
        cluster_of(pcie_machine(gpus=2, below="cpu"), tmp_path),
    ]
    for fabric in fabrics:
        schedule = build(fabric, "allreduce", "ring", 20_000, channels=2)
        fast = clusim.simulate(fabric, schedule)
        slow = clusim.simulate(fabric, schedule, engine="reference")
        assert fast.fingerprint == slow.fingerprint, fabric.name
