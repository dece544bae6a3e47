"""What bursts make of buffers, thresholds and errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import build
from clusim.engine.abi import NONE
from clusim.lowering import lower, parse_faults
from clusim.lowering.grain import MOST_GROWTH
from clusim.topology import Fabric, load
from clusim.topology.arrays import arrays_of
from support.machines import cluster_of, pcie_machine

MIB = 1 << 20


@cache
def two() -> Fabric:
    """Return two machines of eight GPUs."""
    return load("dgx-h100", nodes=2)


def test_only_wires_that_carry_bursts_get_larger_buffers() -> None:
    one = load("dgx-h100")
    image = lower(one, build(one, "allreduce", "ring", MIB), 65536).image
    nominal = arrays_of(one).wires["buffer_bytes"]
    nvlink = np.array([name == "nvlink" for name in arrays_of(one).wire_class])
    assert (image.wires["buffer_bytes"][nvlink] > nominal[nvlink]).all()
    assert (image.wires["buffer_bytes"][~nvlink] == nominal[~nvlink]).all()
    image = lower(two(), build(two(), "allreduce", "ring", MIB), 65536).image
    classes = np.array(list(arrays_of(two()).wire_class))
    for name in ("pcie", "infiniband"):
        own = classes == name
        assert (image.wires["buffer_bytes"][own] >= 32 * 65536).all()


def test_buffers_that_reads_share_with_writes_do_not_grow() -> None:
    """32 KiB hold 8 bursts of 16 packets; in 32 of them reads queued after writes, and a ring took 30% longer."""
    fabric = load("rtx3090x8-edr56", nodes=2)
    schedule = build(fabric, "allreduce", "ring", 16 * MIB, channels=2)
    exact, quick = (lower(fabric, schedule, word) for word in ("packet", "quick"))
    pcie = np.array([name == "pcie" for name in arrays_of(fabric).wire_class])
    pcie &= exact.image.wires["buffer_bytes"] == 32 << 10
    assert pcie.any()
    assert quick.image.conns["burst"].max() >= 8
    assert (quick.image.wires["buffer_bytes"][pcie] == 32 << 10).all()


@pytest.mark.parametrize("machine", ["aws-p4d", "dgx-a100", "gcp-a3-mega"])
@pytest.mark.parametrize("word", ["quick", "auto"])
def test_bursts_between_nodes_do_not_let_flows_pass_that_block_each_other(
    machine: str, word: str
) -> None:
    """Flows of one GPU share its PCIe link; in larger buffers, 64 MiB over 2 nodes were up to 27% too short."""
    fabric = load(machine, nodes=2)
    schedule = build(fabric, "alltoall", "direct", 512 * MIB, channels=1)
    exact, bursts = (lower(fabric, schedule, name).image for name in ("packet", word))
    between = exact.conns["via_first"] != NONE
    of_nics = [kind == "nic" for kind in (node.kind for node in fabric.nodes)]
    ends = np.array([of_nics[a] or of_nics[b] for a, b in exact.wires[["src", "dst"]].tolist()])
    growth = bursts.wires["buffer_bytes"] / exact.wires["buffer_bytes"]
    assert bursts.conns["burst"][~between].max() > 1
    assert growth[ends].max() <= MOST_GROWTH


def test_exact_mtu_packets_fit_into_pcie_buffers() -> None:
    image = lower(two(), build(two(), "allreduce", "ring", MIB), "packet").image
    pcie = np.array([name == "pcie" for name in arrays_of(two()).wire_class])
    assert (image.wires["buffer_bytes"][pcie] >= 3 * (4096 + 32 * 20)).all()


def test_thresholds_to_pause_and_to_mark_grow_with_bursts(tmp_path: Path) -> None:
    text = pcie_machine(gpus=1, nic="cx6-roce200").replace("ib-hdr", "roce-200")
    fabric = cluster_of(text.replace("quantum", "spectrum3"), tmp_path)
    schedule = build(fabric, "send", None, 16 * MIB, ranks=(0, 1), channels=2)
    exact = lower(fabric, schedule, "packet").image.wires
    coarse = lower(fabric, schedule, 1 << 18).image.wires
    cables = np.array([name == "roce" for name in arrays_of(fabric).wire_class])
    pausing = cables & (exact["xoff_bytes"] > 0)
    marking = cables & (exact["ecn_max_bytes"] > 0)
    assert pausing.any()
    assert marking.any()
    for name in ("xoff_bytes", "xon_bytes", "buffer_bytes"):
        assert (coarse[name][pausing] > exact[name][pausing]).all()
    assert (coarse["xon_bytes"] <= coarse["xoff_bytes"])[pausing].all()
    room = [
        (w["buffer_bytes"] - w["xoff_bytes"])[pausing].astype(np.int64) for w in (exact, coarse)
    ]
    assert (room[1] >= room[0] + 2 * (1 << 18)).all()
    assert (coarse["ecn_min_bytes"][marking] >= 4 * (1 << 18)).all()
    assert (coarse["ecn_max_bytes"] > coarse["ecn_min_bytes"])[marking].all()
    result = clusim.simulate(fabric, schedule, granularity=1 << 16)
    assert not result.wires.counters["overflows"].any()


def test_a_burst_is_hit_as_often_as_its_packets() -> None:
    one = load("dgx-a100")
    schedule = build(one, "allreduce", "ring", MIB)
    faults = parse_faults(one, ["errors gpu0->nvswitch1.0 1e-7"])
    wire = arrays_of(one).wire_names.index("gpu0->nvswitch1.0")
    exact, coarse = (
        int(lower(one, schedule, size, faults=faults).image.wires["error_threshold"][wire])
        for size in ("packet", 4096)
    )
    assert coarse == pytest.approx(32 * exact, rel=0.01)


def test_rings_over_many_ranks_give_up_a_little_accuracy() -> None:
    fabric = load("superpod-h100:nodes=32")
    lowered = lower(fabric, build(fabric, "allreduce", "ring", 256 * MIB))
    assert lowered.grain.packet_hops > 2_000_000_000
    assert lowered.grain.grant_hops < 165_000_000


def test_nvls_stays_inside_a_machine() -> None:
    with pytest.raises(InputError, match=r"several nodes .* use sharp, ring or tree"):
        build(two(), "allreduce", "nvls", MIB)
    assert build(two(), "allreduce", "nvls", MIB, ranks=range(8, 16)).calls[0].channels == 16
