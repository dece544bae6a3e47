"""What bursts make of buffers, thresholds and errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.collectives import build
from clusim.engine.abi import NONE
from clusim.lowering import lower, parse_faults
from clusim.lowering.buffers import (
    PACKETS_PER_BUFFER,
    Packets,
    burst_bytes,
    roomy_units,
    roomy_wires,
)
from clusim.lowering.grain import MOST_GROWTH, RULES, STEP_ERROR
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import grain_of
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


def test_steps_limit_the_buffers_of_senders_to_many_ranks_only() -> None:
    """A ring has one receiver per NIC: no message of it blocks another."""
    fabric = load("dgx-a100", nodes=2)
    growth = {}
    for operation, algorithm in (("alltoall", "direct"), ("allreduce", "ring")):
        schedule = build(fabric, operation, algorithm, 512 * MIB, channels=1)
        exact, bursts = (lower(fabric, schedule, name).image for name in ("packet", "step"))
        between = exact.conns["via_first"] != NONE
        growth[operation] = int(bursts.conns["burst"][between].max())
    assert growth["alltoall"] < growth["allreduce"]


def test_steps_too_large_for_such_limits_have_the_error_of_coarse_bursts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = load("dgx-a100", nodes=2)
    schedule = build(fabric, "alltoall", "direct", 512 * MIB, channels=1)
    limited = lower(fabric, schedule, "step").grain
    monkeypatch.setattr("clusim.lowering.api.MOST_HOPS", limited.grant_hops // 2)
    free = lower(fabric, schedule, "step").grain
    assert (limited.requested, free.requested) == ("step", "coarse")
    assert limited.step_error == STEP_ERROR < (free.step_error or 0)
    assert free.grant_hops < limited.grant_hops


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


@pytest.mark.parametrize(
    ("pfc", "ecn", "packets"),
    [
        # 32 bursts fill three times 512 KiB in the largest power of two; single packets of 4,166 B.
        ("{xoff: 512KiB}", "none", 8),
        ("{xoff: 128KiB}", "none", 2),
        ("{xoff: 20KiB, xon: 8KiB}", "none", 1),
        # Four bursts fill three times 40 KiB.
        ("none", "{min: 40KiB, max: 80KiB, probability: 1}", 4),
        ("none", "{min: 1B, max: 2B, probability: 1}", 1),
    ],
)
def test_named_granularities_let_thresholds_grow_threefold(
    pfc: str, ecn: str, packets: int, tmp_path: Path
) -> None:
    net = f"{{base: roce-200, pfc: {pfc}, ecn: {ecn}, buffer: 8MiB}}"
    text = pcie_machine(gpus=1, nic="cx6-roce200", extra=f"link_types: {{net: {net}}}")
    fabric = cluster_of(
        text.replace("ib-hdr", "net").replace("quantum", "spectrum3"), tmp_path, nodes=3
    )
    schedule = build(fabric, "alltoall", "direct", 2048 * MIB, channels=1)
    bursts = {
        word: lower(fabric, schedule, f"{word}/32").image.conns["burst"].max() for word in RULES
    }
    assert max(bursts.values()) == bursts["coarse"] == packets
    traffic, arrays = Traffic("alltoall", 64 * MIB, packet_bytes=4096), arrays_of(fabric)
    assert grain_of(arrays, traffic, traffic.plan(arrays).messages, "coarse/32").burst == packets


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


def _rows(**columns: int) -> Array:
    """Return one wire of the first format, with these columns."""
    wires = arrays_of(load("dgx-h100")).wires[:1].copy()
    for name, value in columns.items():
        wires[name] = value
    wires["format"] = 0
    return wires


PACKET = 128
BURST = 4


def _burst_bytes() -> int:
    """Return a burst by hand: four packets of 128 B, each with the largest header of 16 B flits, in whole flits."""
    form = arrays_of(load("dgx-h100")).formats[0]
    flit = int(form["flit_bytes"])
    return max(BURST * -(-(int(header) + PACKET) // flit) * flit for header in form["header_bytes"])


def _roomy(burst: int, **columns: int) -> dict[str, int]:
    packets = [Packets(PACKET, burst, frozenset([0]))]
    wires = roomy_wires(arrays_of(load("dgx-h100")), _rows(**columns), packets)
    return {name: int(wires[name][0]) for name in wires.dtype.names}


def test_a_burst_is_the_bytes_of_its_packets_in_whole_flits() -> None:
    form = arrays_of(load("dgx-h100")).formats[0]
    assert burst_bytes(form, PACKET, BURST) == _burst_bytes()
    # A packet of a kind with a limit is cut: 300 B at 128 B are two full packets and one of 44 B.
    cut = form.copy()
    cut["flit_bytes"], cut["header_bytes"][0], cut["limit_bytes"][0] = 16, 16, 128
    assert burst_bytes(cut, 300, 1, kinds=(0,)) == 144 + 144 + 64


def test_a_buffer_holds_32_bursts_or_its_own_size() -> None:
    least = 32 * _burst_bytes()
    for size, expected in ((1, least), (least - 1, least), (least, least), (least + 1, least + 1)):
        assert _roomy(BURST, buffer_bytes=size, xoff_bytes=0)["buffer_bytes"] == expected
    # Single packets need room for PACKETS_PER_BUFFER of them only.
    single = PACKETS_PER_BUFFER * _burst_bytes() // BURST
    assert _roomy(1, buffer_bytes=1, xoff_bytes=0)["buffer_bytes"] == single


def test_pause_thresholds_grow_together_and_the_headroom_by_three_bursts() -> None:
    least, before = (
        32 * _burst_bytes(),
        {"buffer_bytes": 9000, "xoff_bytes": 5000, "xon_bytes": 3000},
    )
    found, grown = _roomy(BURST, **before), least - 5000
    assert found["xoff_bytes"] == least
    assert found["xon_bytes"] == 3000 + grown
    assert found["buffer_bytes"] == 9000 + grown + 3 * _burst_bytes()
    # Thresholds that are large enough stay, also at equality.
    for xoff in (least, least + 16):
        found = _roomy(BURST, buffer_bytes=2 * least, xoff_bytes=xoff, xon_bytes=xoff - 16)
        assert (found["xoff_bytes"], found["xon_bytes"]) == (xoff, xoff - 16)
        assert found["buffer_bytes"] == 2 * least + 3 * _burst_bytes()


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_mark_thresholds_are_at_least_four_bursts(excess: int) -> None:
    """At equality they are unchanged; the range between them always is."""
    least = 4 * _burst_bytes()
    found = _roomy(BURST, ecn_min_bytes=least + excess, ecn_max_bytes=least + excess + 777)
    assert found["ecn_min_bytes"] == max(least, least + excess)
    assert found["ecn_max_bytes"] == found["ecn_min_bytes"] + 777
    exact = _roomy(1, ecn_min_bytes=5, ecn_max_bytes=9)
    assert (exact["ecn_min_bytes"], exact["ecn_max_bytes"]) == (5, 9)
    never = _roomy(BURST, ecn_min_bytes=0, ecn_max_bytes=0)
    assert (never["ecn_min_bytes"], never["ecn_max_bytes"]) == (0, 0)


def test_reduction_units_hold_32_bursts_or_their_own_capacity() -> None:
    arrays = arrays_of(load("dgx-h100"))
    capacity = int(arrays.units["capacity_bytes"].max())
    burst = capacity // (32 * PACKET) + 1
    for packets, expected in ((burst, 32 * PACKET * burst), (burst - 1, capacity)):
        found = roomy_units(arrays, [Packets(PACKET, packets, frozenset())])
        assert int(found["capacity_bytes"].max()) == expected
    assert (roomy_units(arrays, []) == arrays.units).all()
    # The largest bursts count, and the larger of one unit's size and theirs.
    mixed = [Packets(PACKET, burst, frozenset()), Packets(PACKET, 2 * burst, frozenset())]
    for order in (mixed, mixed[::-1]):
        found = roomy_units(arrays, order)
        assert int(found["capacity_bytes"].min()) == 64 * PACKET * burst
