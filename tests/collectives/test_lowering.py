"""Lowering: packets, bursts, connections, costs and tasks as the image has them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import InputError, ScheduleError
from clusim.collectives import ScheduleBuilder, build
from clusim.engine.abi import NONE
from clusim.engine.image import OPCODES
from clusim.lowering import Fault, Lowered, lower
from clusim.lowering.grain import EXACT_HOPS, QUICK_ERROR, QUICK_HOPS, TARGET_HOPS
from clusim.schedule import CollectiveWriter, Prim, Schedule
from clusim.topology import Fabric, load
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Link
from clusim.topology.node import Endpoint, Node
from clusim.topology.packets import Format, Protocol
from support.arrays import hop_latency_ps

MIB = 1 << 20


def ring(fabric: Fabric, size_bytes: int = MIB, **options: Any) -> Schedule:
    """Return a ring all-reduce."""
    return build(fabric, "allreduce", "ring", size_bytes, **options)


@pytest.fixture(scope="module")
def a100() -> Fabric:
    """Return a fabric whose connections read."""
    return load("dgx-a100")


@pytest.fixture(scope="module")
def h100() -> Fabric:
    """Return a fabric whose connections write and whose switches reduce."""
    return load("dgx-h100")


def test_only_simple_reads(a100: Fabric, h100: Fabric) -> None:
    assert set(lower(a100, ring(a100)).image.conns["kind"]) == {1}
    assert set(lower(a100, ring(a100, protocol="ll")).image.conns["kind"]) == {0}
    assert set(lower(h100, ring(h100)).image.conns["kind"]) == {0}


def test_counters_fly_for_a_header_and_the_fence(h100: Fabric) -> None:
    latency = hop_latency_ps(arrays_of(h100), 0, 1)
    simple = lower(h100, ring(h100)).image.conns[0]
    fence = h100.protocols["simple"].tail_fence_ps
    assert fence > 0
    assert simple["tail_ps"] == latency + fence
    assert simple["head_ps"] == latency + h100.protocols["simple"].head_fence_ps
    flags_in_data = lower(h100, ring(h100, protocol="ll128")).image.conns[0]
    assert flags_in_data["tail_ps"] == h100.protocols["ll128"].tail_fence_ps
    assert flags_in_data["expand_120"] == 128


def test_small_runs_are_exact_and_large_ones_are_not(h100: Fabric) -> None:
    small = lower(h100, ring(h100))
    assert (small.grain.burst, small.grain.burst_bytes) == (1, (128, 128))
    assert small.grain.packet_hops == small.grain.grant_hops
    assert "exact packets" in small.grain.describe()
    large = lower(h100, ring(h100, 256 * MIB))
    assert not large.grain.exact
    assert large.grain.burst & (large.grain.burst - 1) == 0
    assert large.grain.packet_hops > EXACT_HOPS
    assert large.grain.grant_hops <= TARGET_HOPS
    assert "bursts of" in large.grain.describe()


def test_quick_runs_are_the_same_rule_with_fewer_hops(h100: Fabric) -> None:
    assert lower(h100, ring(h100), "quick").grain.exact
    quick = lower(h100, ring(h100, 16 * MIB), "quick").grain
    assert lower(h100, ring(h100, 16 * MIB)).grain.exact
    assert quick.packet_hops > QUICK_HOPS >= quick.grant_hops
    assert quick.error_bound == QUICK_ERROR


def test_the_estimate_of_packet_hops_is_exact_for_a_ring(h100: Fabric) -> None:
    schedule = ring(h100, 8 * MIB, channels=8)
    assert lower(h100, schedule, "packet").grain.packet_hops == 2 * 14 * 8 * MIB // 128


def test_granularity_can_be_a_size(h100: Fabric) -> None:
    lowered = lower(h100, ring(h100), 4096)
    assert set(lowered.image.conns["burst"]) == {32}
    assert lower(h100, ring(h100), 100).grain.burst == 1
    with pytest.raises(InputError, match="granularity 0: must be at least 1 byte"):
        lower(h100, ring(h100), 0)
    with pytest.raises(InputError, match="too coarse; at most 1 GiB"):
        lower(h100, ring(h100), 1 << 40)
    with pytest.raises(
        InputError, match="'fine': unknown; use packet, auto, quick, step, coarse or a size"
    ):
        lower(h100, ring(h100), "fine")


def test_buffers_units_and_windows_hold_several_bursts(a100: Fabric, h100: Fabric) -> None:
    exact = lower(h100, ring(h100), "packet").image
    assert (exact.wires["buffer_bytes"] == arrays_of(h100).wires["buffer_bytes"]).all()
    coarse = lower(h100, ring(h100), 65536).image
    nvlink = np.array([name.startswith("nvlink") for name in arrays_of(h100).wire_class])
    assert (coarse.wires["buffer_bytes"][nvlink] >= 3 * 65536 * 144 // 128).all()
    assert (coarse.wires["buffer_bytes"] == exact.wires["buffer_bytes"])[~nvlink].all()
    nvls = build(h100, "allreduce", "nvls", MIB)
    assert (lower(h100, nvls, 1 << 19).image.units["capacity_bytes"] >= 3 << 19).all()
    read = lower(a100, ring(a100), 65536).image.conns
    assert (read["window_bytes"] >= 12 * 65536).all()
    assert set(lower(a100, ring(a100), "packet").image.conns["window_bytes"]) == {a100.window_bytes}
    assert set(exact.conns["window_bytes"]) == {0}


def test_small_buffers_stay_small_for_exact_packets() -> None:
    small = load("star:2,buffer=16KiB")
    schedule = build(small, "allreduce", "ring", MIB)
    assert (lower(small, schedule, "packet").image.wires["buffer_bytes"] == 16384).all()
    tiny = load("star:2,buffer=1KiB")
    assert (lower(tiny, schedule, "packet").image.wires["buffer_bytes"] == 3 * (4096 + 64)).all()


def test_costs_are_those_of_the_protocol(h100: Fabric) -> None:
    image = lower(h100, build(h100, "allreduce", "ring", MIB, channels=1)).image
    (row,) = image.costs
    simple = h100.protocols["simple"]
    assert row["fixed_ps"] == simple.fixed_ps
    assert row["op_cost16"][OPCODES["recvReduceSend"].number] == simple.cost16("recvReduceSend")
    assert row["op_cost16"][OPCODES["signal"].number] == 0


def test_nvls_leaves_on_wires_to_reduction_units(h100: Fabric) -> None:
    image = lower(h100, build(h100, "allreduce", "nvls", MIB, ranks=(2, 5, 7))).image
    rows = image.conns[image.conns["kind"] == 3]
    assert len(rows) == 3 * 16
    assert set(rows["mgroup"]) == {0}
    assert image.mgroup_members.tolist() == [2, 5, 7]
    for rank in (2, 5, 7):
        group = int(rows["first_group"][rows["src"] == rank][0])
        low, high = image.group_off[group], image.group_off[group + 1]
        assert image.group_wires[low:high].tolist() == arrays_of(h100).unit_wires(rank)
    assert len(image.costs) == 3  # copies to and from the buffer, and the reducer between them


def test_nvls_cannot_be_lowered_without_units(a100: Fabric, h100: Fabric) -> None:
    with pytest.raises(ScheduleError, match="no switch with a reduction unit"):
        lower(a100, build(h100, "allreduce", "nvls", MIB))


def test_a_schedule_for_more_ranks_is_refused(a100: Fabric) -> None:
    with pytest.raises(ScheduleError, match="needs 9 ranks; dgx-a100 has 8"):
        lower(a100, build(9, "allreduce", "ring", 64))


def test_programs_are_numbered_as_in_the_schedule(h100: Fabric) -> None:
    schedule = ring(h100, 4 * MIB, channels=3)
    image = lower(h100, schedule).image
    assert len(image.instances) == len(schedule.instances)
    for index, task in enumerate(image.tasks):
        assert range(task["inst_lo"], task["inst_hi"]) == schedule.instances_of(index)
    for row, item in zip(image.instances, schedule.instances, strict=True):
        own = image.inst_conns[row["conn_off"] : row["conn_off"] + len(item.connections)]
        assert tuple(own) == item.connections
        assert (row["offset"], row["length"], row["rotation"]) == (
            item.offset,
            item.length,
            item.rotation,
        )


def test_too_many_programs_for_the_cta_slots_are_refused(h100: Fabric) -> None:
    nodes = tuple(
        replace(node, endpoint=replace(node.endpoint, cta_slots=4)) if node.endpoint else node
        for node in h100.nodes
    )
    with pytest.raises(ScheduleError, match="more than its 4 CTAs at once; use fewer channels"):
        lower(replace(h100, nodes=nodes), ring(h100, channels=5))


def chain() -> Fabric:
    """Return three GPUs in a row that do not forward."""
    nodes = tuple(Node(f"g{index}", "gpu", endpoint=Endpoint()) for index in range(3))
    links = (Link("g0", "g1", 2), Link("g1", "g2"))
    return Fabric(
        "chain",
        nodes,
        links,
        {"nvlink": Format("nvlink")},
        protocols={"simple": Protocol("simple")},
    )


def test_ranks_that_cannot_reach_each_other_are_named() -> None:
    with pytest.raises(
        ScheduleError, match="rank 0 cannot reach rank 2 on chain; use an algorithm"
    ):
        lower(chain(), build(chain(), "alltoall", None, 1200))


def test_an_explicit_path_becomes_wires(a100: Fabric) -> None:
    writer = CollectiveWriter.create("send", 4096, ranks=2)
    (part,) = writer.parts()
    names = ("gpu0", "nvswitch3", "gpu1")
    pipe = writer.connect(0, 1, 0, path=names, key=1)
    writer.program(0, part, [Prim("send", send=0)], [pipe])
    writer.program(1, part, [Prim("recv", recv=0)], [pipe])
    image = lower(a100, writer.schedule()).image
    arrays = arrays_of(a100)
    forward = [arrays.parallel_wires(a, b)[1] for a, b in (names[:2], names[1:])]
    backward = [int(arrays.wires["reverse"][wire]) for wire in forward[::-1]]
    row = image.conns[0]
    paths = [
        image.path_wires[image.path_off[number] : image.path_off[number + 1]].tolist()
        for number in (row["path"], row["path_back"])
    ]
    assert paths == [backward, forward]
    bad = replace(writer.schedule().connections[0], path=("gpu0", "gpu1"))
    with pytest.raises(ScheduleError, match="no wire from gpu0 to gpu1"):
        lower(a100, replace(writer.schedule(), connections=(bad,)))


def test_kernels_take_their_time_from_the_gpu(h100: Fabric) -> None:
    endpoint = h100.nodes[h100.node_index["gpu0"]].endpoint
    assert endpoint is not None
    precision, peak = next(iter(endpoint.peak_flops.items()))
    builder = ScheduleBuilder(h100)
    whole = builder.kernel(0, flops=10**12, precision=precision, hbm_bytes=77)
    half = builder.kernel(0, flops=10**12, precision=precision, sms=endpoint.sms // 2)
    given = builder.kernel(1, compute_ps=1234)
    pause = builder.delay(1, 5)
    tasks = lower(h100, builder.build()).image.tasks
    assert tasks[whole]["compute_ps"] == -(-(10**24) // int(peak))
    assert tasks[whole]["sms"] == endpoint.sms
    assert tasks[whole]["mem_bytes"] == 77
    assert tasks[half]["compute_ps"] == pytest.approx(2 * tasks[whole]["compute_ps"], rel=1e-9)
    assert tasks[given]["compute_ps"] == 1234
    assert (tasks[pause]["kind"], tasks[pause]["delay_ps"], tasks[pause]["num_deps"]) == (2, 5, 1)
    builder.kernel(2, flops=1, precision="fp3")
    with pytest.raises(ScheduleError, match="no peak rate for 'fp3'"):
        lower(h100, builder.build())


def test_successors_mirror_dependencies(h100: Fabric) -> None:
    builder = ScheduleBuilder(h100)
    first = builder.kernel(0, compute_ps=1)
    done = builder.collective("allreduce", 4096, after={0: [first]})
    builder.wait(1, done[0])
    last = builder.marker(1, "end")
    image = lower(h100, builder.build()).image
    rows = image.tasks
    assert image.succ[rows[first]["succ_lo"] : rows[first]["succ_hi"]].tolist() == [done[0]]
    assert image.succ[rows[done[0]]["succ_lo"] : rows[done[0]]["succ_hi"]].tolist() == [last]
    assert rows["num_deps"].tolist() == [0, 1, *[0] * 7, 1]


def test_faults_are_rates_and_slow_ranks(h100: Fabric) -> None:
    arrays = arrays_of(h100)
    faults = [
        Fault(500, Fraction(1, 2), wire=arrays.wire_names[3]),
        Fault(100, 0, wire=7),
        Fault(300, 2.5, rank=4),
    ]
    rows = lower(h100, ring(h100), faults=faults).image.faults
    assert rows["time_ps"].tolist() == [100, 300, 500]
    assert rows["kind"].tolist() == [0, 1, 0]
    assert rows["index"].tolist() == [7, 4, 3]
    assert rows[0]["num"] == 0
    assert rows[1]["num"] == 2560
    nominal = Fraction(int(arrays.wires["rate_num"][3]), int(arrays.wires["rate_den"][3]))
    assert Fraction(int(rows[2]["num"]), int(rows[2]["den"])) == nominal / 2
    with pytest.raises(InputError, match="wires are named as"):
        lower(h100, ring(h100), faults=[Fault(0, 0, wire="cable")])
    with pytest.raises(InputError, match="needs a wire or a rank"):
        lower(h100, ring(h100), faults=[Fault(0, 0)])


def test_pinned_rings_of_a_mesh_use_one_wire_each() -> None:
    fabric = load("dgx-1v")
    lowered: Lowered = lower(fabric, ring(fabric, 64 * MIB))
    conns = lowered.image.conns
    assert set(conns["policy"]) == {1}
    assert (conns["first_group"] == NONE).all()
    hops = np.unique(np.stack([conns["src"], conns["dst"], conns["key"]]), axis=1)
    assert hops.shape[1] == 48
