"""Laws of CTAs beside each other: who starts when, how they crowd a memory, whose warps ask for what.

The amounts are derived by hand from the figures, not from an earlier run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

import clusim
from clusim.collectives import build
from clusim.engine.abi import ConnKind
from clusim.engine.image import OPCODES
from clusim.lowering import lower
from clusim.lowering.cta_contention import (
    CROWD_ONE,
    asking_warps,
    crowd_1024,
    exchanging,
    rounds_1024,
    start_order,
    start_ps,
    stores_bytes,
)
from clusim.nccl import communicator, parse_version, programs
from clusim.schedule.ir import Instance, Schedule
from clusim.topology import Fabric

NS = 1_000
US = 1_000 * NS
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def pattern(name: str, operation: str, num_bytes: int, ranks: int = 8) -> tuple[Fabric, Schedule]:
    """Return a launch of NCCL's messages on the first GPUs of a machine."""
    fabric = clusim.load(name)
    comm = communicator(fabric, parse_version("2.29.2"), ranks=tuple(range(ranks)))
    return fabric, programs.build(fabric, comm, programs.CollectivePayload(operation, num_bytes))


def with_simple(fabric: Fabric, **changes: object) -> Fabric:
    """Return a fabric whose protocol Simple differs in this."""
    simple = replace(fabric.protocols["simple"], **changes)
    return replace(fabric, protocols={**fabric.protocols, "simple": simple})


# ---- start ------------------------------------------------------------------------------------------


def test_ctas_start_in_the_order_of_the_channels_that_are_used() -> None:
    """To itself a rank copies on channel 0, to the other of two on channel 16: a kernel of two CTAs, not of 17."""
    fabric, schedule = pattern("dgx-h100", "alltoall", 32 * KIB, 2)
    assert {item.channel for item in schedule.instances} == {0, 16}
    order = start_order(schedule)
    for item, place in zip(schedule.instances, order, strict=True):
        assert place == (item.channel == 16)
    begin = fabric.protocols["ll"].message_start_ps
    starts = lower(fabric, schedule).image.instances["start_ps"]
    later = fabric.cta_skew_ps + fabric.protocols["ll"].grid_start_ps
    assert set(starts.tolist()) == {begin, begin + later}


def test_a_kernel_of_one_cta_starts_at_once_and_of_several_later() -> None:
    """No delay for the first CTA; 1.15 us and 25 ns for each earlier one for the others (A100)."""
    fabric = clusim.load("dgx-a100")
    ll = fabric.protocols["ll"]
    starts = [start_ps(ll, earlier, fabric.cta_skew_ps) for earlier in range(4)]
    assert starts == [0, 1_175 * NS, 1_200 * NS, 1_225 * NS]


# ---- rounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_bytes", "further"), [(8, 0), (4096, 0), (4112, 1), (8192, 1), (21_856, 5), (32_768, 7)]
)
def test_further_rounds_of_ll_last_equally_long_however_few_lines_they_have(
    chunk_bytes: int, further: int
) -> None:
    """The first 4 KiB need 2 x 4096 B at 20 GB/s, 409.6 ns, and every further round of threads 600 ns (H100).

    110 ns of these are the fixed cost of a slice.
    """
    ll = clusim.load("dgx-h100").protocols["ll"]
    linear_ps = chunk_bytes * 100
    expected_ps = linear_ps if not further else 409_600 + further * 490 * NS
    assert linear_ps * rounds_1024(ll, chunk_bytes) / CROWD_ONE == pytest.approx(expected_ps, 1e-3)


@pytest.mark.parametrize(("chunk_bytes", "more_ns"), [(2048, 100), (4096, 200), (32_768, 200)])
def test_bytes_stored_one_by_one_lengthen_the_first_round_of_ll(
    chunk_bytes: int, more_ns: float
) -> None:
    """2 x 4096 B at 41 GB/s, 199.8 ns, for a first round; fewer lines have their share (H100)."""
    ll = clusim.load("dgx-h100").protocols["ll"]
    linear_ps = chunk_bytes * 100
    apart = rounds_1024(ll, chunk_bytes, by_bytes=True) - rounds_1024(ll, chunk_bytes)
    assert linear_ps * apart / CROWD_ONE == pytest.approx(more_ns * NS, rel=0.02)
    # 8 B200 have the same times of all-gather and reduce-scatter.
    ll = clusim.load("hgx-b200").protocols["ll"]
    assert rounds_1024(ll, chunk_bytes, by_bytes=True) == rounds_1024(ll, chunk_bytes)


@pytest.mark.parametrize(
    ("operation", "storing"),
    [("all_gather", 8), ("broadcast", 8), ("reduce_scatter", 0), ("allreduce", 0), ("alltoall", 8)],
)
def test_kernels_without_reduction_store_bytes(operation: str, storing: int) -> None:
    """NCCL runs them as kernels of int8; programs that only send store no data, copies within a rank are of Simple."""
    _, schedule = pattern("dgx-h100", operation, 8 * KIB)
    ranks = {item.rank for item in schedule.instances if stores_bytes(schedule, item)}
    assert len(ranks) == storing
    for item in schedule.instances:
        template = schedule.templates[item.template]
        if {prim.op for prim in template.prims} == {"send"}:
            assert not stores_bytes(schedule, item)


def test_only_ll_has_rounds_of_threads() -> None:
    protocols = clusim.load("dgx-h100").protocols
    assert {name for name, item in protocols.items() if item.round_ps} == {"ll"}
    assert rounds_1024(protocols["simple"], 1 << 20) == CROWD_ONE


def test_a_step_of_ll_of_a_round_more_is_a_round_longer() -> None:
    """Two GPUs, one channel: a round to send, 600 ns, and one to receive: 110 ns, and half as many bytes, 245 ns."""
    fabric = clusim.load("dgx-h100")
    chosen = {"ranks": (0, 1), "channels": 1, "protocol": "ll"}
    times = [
        time_ps(fabric, build(fabric, "allgather", "ring", 2 * size, **chosen))
        for size in (24 * KIB, 28 * KIB)
    ]
    assert times[1] - times[0] == pytest.approx((600 + 355) * NS, abs=10 * NS)


def test_messages_begin_later_than_collectives() -> None:
    """The figure is paid once by a send, whatever its size, and not by an all-reduce."""
    fabric, schedule = pattern("dgx-h100", "sendrecv", 4 * MIB, 2)
    slow = with_simple(
        fabric, message_start_ps=fabric.protocols["simple"].message_start_ps + 5 * US
    )
    _, longer = pattern_on(slow, "sendrecv", 4 * MIB)
    assert time_ps(slow, longer) - time_ps(fabric, schedule) == 5 * US
    _, reduce = pattern_on(fabric, "allreduce", 64 * MIB)
    assert {item.start_ps for item in reduce.instances} == {0}


def pattern_on(fabric: Fabric, operation: str, num_bytes: int) -> tuple[Fabric, Schedule]:
    comm = communicator(fabric, parse_version("2.29.2"), ranks=(0, 1))
    return fabric, programs.build(fabric, comm, programs.CollectivePayload(operation, num_bytes))


def time_ps(fabric: Fabric, schedule: Schedule) -> int:
    return clusim.simulate(fabric, schedule, granularity="packet").time_ps


# ---- crowding ---------------------------------------------------------------------------------------


def test_a_cta_alone_is_not_slowed() -> None:
    simple = clusim.load("dgx-h100").protocols["simple"]
    assert crowd_1024(simple, 1, 3.35e12) == crowd_1024(simple, 0, 3.35e12) == CROWD_ONE


@pytest.mark.parametrize(
    ("name", "ctas", "slower"),
    [
        # 0.9 x 15 x 43 of 3350 GB/s, 0.9 x 23 x 43 of 3350, 0.9 x 23 x 30.1 of 2039.
        ("dgx-h100", 16, 0.1733),
        ("dgx-h100", 24, 0.2657),
        ("dgx-a100", 24, 0.3056),
    ],
)
def test_the_slowdown_grows_with_what_the_others_send_against_the_memory(
    name: str, ctas: int, slower: float
) -> None:
    fabric = clusim.load(name)
    memory_Bps = next(n.endpoint.mem_Bps for n in fabric.nodes if n.kind == "gpu" and n.endpoint)
    found = crowd_1024(fabric.protocols["simple"], ctas, memory_Bps) / CROWD_ONE - 1
    assert found == pytest.approx(slower, abs=1e-3)


def test_flags_in_the_data_are_not_crowded() -> None:
    """The rates of LL and LL128 are those of 24 CTAs at once."""
    for name in ("ll", "ll128", "direct"):
        assert crowd_1024(clusim.load("dgx-h100").protocols[name], 32, 3.35e12) == CROWD_ONE


def test_every_byte_costs_a_crowded_cta_more_and_no_slice() -> None:
    fabric, schedule = pattern("dgx-h100", "all_gather", 64 * MIB)
    assert set(exchanging(schedule).values()) == {24}
    crowded, lone = (
        lower(f, schedule).image.costs for f in (fabric, with_simple(fabric, crowding=0.0))
    )
    copy = OPCODES["recvCopySend"].number
    ratio = crowded["op_cost16"][:, copy] / lone["op_cost16"][:, copy]
    assert ratio == pytest.approx(1.2657, abs=2e-3)
    assert (crowded["fixed_ps"] == lone["fixed_ps"]).all()


def test_copies_of_a_rank_to_itself_crowd_nobody() -> None:
    """Two ranks: 16 channels of the 32 exchange, on the others each copies its own block."""
    _, schedule = pattern("dgx-h100", "alltoall", 64 * MIB, 2)
    assert len({item.channel for item in schedule.instances}) == 32
    assert set(exchanging(schedule).values()) == {16}


# ---- messages that share a program, and reads ---------------------------------------------------------


@pytest.mark.parametrize(("num_bytes", "works"), [(1 * GIB, 2), (2 * GIB, 4), (4 * GIB, 8)])
def test_messages_of_a_program_have_the_warps_of_all_of_them(num_bytes: int, works: int) -> None:
    """However many programs there are: a side of a channel has all its warps, and equally many messages each."""
    _, schedule = pattern("dgx-h100", "alltoall", num_bytes)
    sides: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
    for item in schedule.instances:
        template = schedule.templates[item.template]
        sides[item.rank, item.channel, template.name].append((item.warps, len(template.prims)))
    copies = {(item.rank, item.channel) for item in schedule.instances if _is_copy(schedule, item)}
    for (rank, channel, _), found in sides.items():
        assert len({prims for _, prims in found}) == 1
        for warps, prims in found:
            assert warps == pytest.approx(19 / (2 * works - ((rank, channel) in copies)) * prims)


def _is_copy(schedule: Schedule, item: Instance) -> bool:
    return schedule.templates[item.template].name == "copy"


def test_reads_under_way_are_those_of_the_warps_that_ask() -> None:
    """Nine of a CTA's sixteen warps receive a message, so they have 9/16 of its loads in flight; a ring's have all."""
    fabric, schedule = pattern("dgx-a100", "sendrecv", 64 * MIB)
    assert set(asking_warps(schedule)) == {9}
    conns = lower(fabric, schedule, granularity="packet").image.conns
    assert set(conns["kind"].tolist()) == {ConnKind.READ}
    assert np.unique(conns["window_bytes"]).tolist() == [fabric.window_bytes * 9 // 16]
    _, ring = pattern("dgx-a100", "all_gather", 64 * MIB)
    conns = lower(fabric, ring, granularity="packet").image.conns
    assert np.unique(conns["window_bytes"]).tolist() == [fabric.window_bytes]
