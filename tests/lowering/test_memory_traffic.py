"""Memory traffic of collectives by primitive, in both directions of every law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.errors import ScheduleError
from clusim.collectives import ALGORITHMS, ScheduleBuilder
from clusim.lowering.memory_traffic import fills_scratch, user_accesses
from clusim.schedule.ir import Prim
from clusim.topology import loads
from clusim.topology.arrays import arrays_of
from clusim.topology.save import to_yaml

H100, A100 = clusim.load("dgx-h100"), clusim.load("dgx-a100")
MIB = 1 << 20
NO_CACHE, ALL_CACHE = "1B", "1GiB"


def with_l2(size: str, ranks: int = 4) -> Any:
    """Return GPUs on a switch with an L2 of a size."""
    return loads(
        f"chips: {{mine: {{base: h100-sxm5, l2: {size}}}}}\n"
        f"nodes: {{gpu0..{ranks - 1}: {{kind: gpu, chip: mine}}, switch0: {{kind: switch, switch: nvswitch3}}}}\n"
        f"links: [{{from: gpu0..{ranks - 1}, to: switch0, type: nvlink4, count: 18}}]\n"
    )


def traffic(fabric: Any, operation: str, algorithm: str, size: int, **options: Any) -> Any:
    """Return the memory traffic of every rank in a collective, over its size."""
    builder = ScheduleBuilder(fabric, "one")
    builder.collective(operation, size, algorithm=algorithm, **options)
    result = clusim.simulate(fabric, builder.build())
    return result.bins.hbm_bytes.sum(axis=1)[: fabric.num_ranks] / size


@pytest.mark.parametrize(
    ("prim", "reads", "stores"),
    [
        (Prim("send", send=0), 1, 0),
        (Prim("recv", recv=0), 0, 1),
        (Prim("recvCopySend", recv=0, send=0), 0, 1),
        (Prim("recvReduceSend", recv=0, send=0), 1, 0),
        (Prim("recvReduceCopy", recv=0), 1, 1),
        (Prim("recvReduceCopySend", recv=0, send=0), 1, 1),
        (Prim("copySend", send=0), 1, 1),
        (Prim("copy"), 1, 1),
        (Prim("reduce"), 2, 1),
        (Prim("reduceLoad", send=0), 0, 1),
        (Prim("multicastStore", send=0), 1, 0),
        (Prim("reduceLoadStore", send=0), 0, 0),
        (Prim("sendMore", send=0, src="output"), 0, 0),
        (Prim("recvReduceMore", recv=0, dst="scratch"), 1, 0),
        (Prim("recvReduceSend", recv=0, send=0, src="scratch"), 0, 0),
        (Prim("signal", send=0, sync=True), 0, 0),
    ],
)
def test_a_primitive_reads_its_operand_and_stores_its_result(
    prim: Prim, reads: int, stores: int
) -> None:
    kinds = [access[0] for access in user_accesses(prim)]
    assert (kinds.count("read"), kinds.count("store")) == (reads, stores)
    assert not fills_scratch(prim)


@pytest.mark.parametrize(("l2", "written_back"), [(ALL_CACHE, 0), (NO_CACHE, 1)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_reads_and_stores_the_vector_once_and_writes_fifos_back(
    l2: str, written_back: int, ranks: int
) -> None:
    """Operands: S read, S stored. FIFO: each received byte, if L2 does not hold it."""
    received = 2 * (ranks - 1) / ranks
    fabric = with_l2(l2, ranks)
    found = traffic(fabric, "allreduce", "ring", 8 * MIB)
    assert found == pytest.approx(2 + written_back * received, rel=0.01)
    gathered = traffic(fabric, "all_gather", "ring", 8 * MIB)
    assert gathered == pytest.approx(1 + 1 / ranks + written_back * received / 2, rel=0.01)
    scattered = traffic(fabric, "reduce_scatter", "ring", 8 * MIB)
    assert scattered == pytest.approx(gathered, rel=0.01)


def test_a_message_is_read_at_one_end_and_stored_at_the_other() -> None:
    """Also between nodes, where both ends have a FIFO."""
    inside, across = with_l2(ALL_CACHE, 2), clusim.load("dgx-h100", nodes=2)
    for fabric, pair in ((inside, (0, 1)), (across, (0, 8))):
        builder = ScheduleBuilder(fabric, "one")
        builder.collective("send", 4 * MIB, ranks=pair)
        result = clusim.simulate(fabric, builder.build())
        ends = arrays_of(fabric).rank_endpoint[list(pair)]
        found = result.bins.hbm_bytes.sum(axis=1)[ends] / (4 * MIB)
        assert found == pytest.approx(1, rel=0.01)


def test_the_part_of_a_fifo_that_fits_the_cache_is_not_written_back() -> None:
    """Twice the cache holds twice the part; a cache of the FIFO's size holds all of it."""

    def held(size: int) -> float:
        found = traffic(with_l2(f"{size}B", 2), "allreduce", "ring", 64 * MIB)
        return float(3 - found.mean())

    some = held(4 * MIB)
    assert 0 < some < 0.5
    assert held(8 * MIB) == pytest.approx(2 * some, rel=0.02)
    assert held(round(4.1 * MIB / some)) == pytest.approx(1, rel=0.01)


OPERANDS = {
    "allreduce": (1, 1),
    "all_gather": (1 / 8, 1),
    "reduce_scatter": (1, 1 / 8),
    "alltoall": (1, 1),
}
"""Least read and stored by every rank, over the size."""


@pytest.mark.parametrize("operation", OPERANDS)
def test_no_algorithm_moves_less_than_its_data_need(operation: str) -> None:
    """In-switch reductions too: every member's vector is read and stored."""
    seen = []
    for algorithm in ALGORITHMS[operation]:
        try:
            found = traffic(H100, operation, algorithm, MIB)
        except (clusim.ClusimError, ScheduleError):
            continue
        seen.append(algorithm)
        assert found.min() >= sum(OPERANDS[operation]) * 0.995, algorithm
    assert {"ring"} <= set(seen) or operation == "alltoall"
    if operation != "alltoall":
        assert any(name.startswith("nvls") for name in seen)


def test_switches_free_no_memory_that_the_data_need() -> None:
    """NCCL's copies to and from the multicast buffer pass L2; the vector is read and stored once."""
    switch, ring = (traffic(H100, "allreduce", name, MIB) for name in ("nvls", "ring"))
    assert switch == pytest.approx(2, rel=0.01)
    assert ring == pytest.approx(2, rel=0.02)


def test_kernels_beside_a_collective_lose_the_memory_that_it_moves() -> None:
    """A kernel limited by memory lasts longer by the collective's bytes, over the rate of memory."""
    times = {}
    for l2 in (ALL_CACHE, NO_CACHE):
        fabric = with_l2(l2)
        builder = ScheduleBuilder(fabric, "beside")
        for rank in range(4):
            builder.kernel(rank, hbm_bytes=1 << 31, sms=16)
        builder.collective("allreduce", 64 * MIB, algorithm="ring")
        result = clusim.simulate(fabric, builder.build())
        ends = result.tasks.end_ps - result.tasks.start_ps
        times[l2] = int(np.max(ends[:4]))
    chip = with_l2(NO_CACHE).nodes[0].endpoint
    assert chip is not None
    more = 1.5 * 64 * MIB / (chip.mem_Bps * chip.mem_efficiency) * 1e12
    assert times[NO_CACHE] - times[ALL_CACHE] == pytest.approx(more, rel=0.1)


def test_shares_of_a_chip_replace_its_cache() -> None:
    text = (
        "chips: {{mine: {{base: h100-sxm5, {}}}}}\n"
        "nodes: {{gpu0..1: {{kind: gpu, chip: mine}}}}\n"
        "links: [{{from: gpu0, to: gpu1, type: nvlink4}}]\n"
    )
    shares = "memory_per_delivered: 0.5, memory_per_read: 0.5, memory_per_injected: 0.5"
    fixed = loads(text.format(shares))
    assert traffic(fixed, "allreduce", "ring", MIB) == pytest.approx(1, rel=0.01)
    assert loads(to_yaml(fixed)) == fixed
    cached = loads(text.format("l2: 20MiB"))
    assert loads(to_yaml(cached)) == cached
    assert A100.nodes[0].endpoint != cached.nodes[0].endpoint
