"""Collectives with multimem instructions on symmetric memory: barrier, work of the switch, barrier.

**Hardware**: PyTorch's ``multimem_all_reduce_``, vLLM's symmetric-memory all-reduce and NCCL's kernels for registered
windows: the users' buffers are bound to a multicast address, so nothing is copied. After a barrier of all GPUs each
reads its share of the sum through the switch (``multimem.ld_reduce``) and stores it to all (``multimem.st``); a
second barrier, after a fence, tells that all shares have been stored. **Model**: flags after a multicast store
are visible when the memory of all members has accepted it. One program per rank and channel; a barrier is a
flag to and from every rank, with one fixed cost. **Not modelled**: packets of the flags. **Parameters**: channels
(CTAs).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from clusim.collectives.algorithms.nvls import (
    by_switches,
    check_units,
    connect_switch,
)
from clusim.collectives.entry import connect_flags
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import CollectiveCall, Mode, Prim
from clusim.schedule.shapes import Shape
from clusim.topology.model import Fabric


def multimem_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return chunks so large that a channel needs one loop: its warps meet only at the barriers."""
    part = -(-call.bytes // (16 * call.channels))
    return Shape(-(-part // len(call.ranks)) * 16)


_by_switches = partial(by_switches, shape=multimem_shape)


@_by_switches("allreduce", "multimem")
def write_allreduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the program of every rank and channel."""
    _write(
        writer,
        fabric,
        Prim("reduceLoadStore", coef=1, send=0, src="input", dst="output"),
    )


@_by_switches("reduce_scatter", "multimem")
def write_reduce_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the same for a reduce-scatter: each rank loads the sum of its block."""
    _write(writer, fabric, Prim("reduceLoad", coef=1, send=0, src="input"))


@_by_switches("all_gather", "multimem")
def write_all_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write the same for an all-gather: each rank stores its block to all."""
    _write(writer, fabric, Prim("multicastStore", coef=1, send=0, dst="output"))


def _write(writer: CollectiveWriter, fabric: Fabric | None, work: Prim) -> None:
    """Write barrier, work and barrier."""
    if fabric is not None:
        check_units(fabric, writer.call.ranks, "multimem")
    size = writer.size
    blocked = writer.call.operation != "allreduce"
    barriers = []
    for first in (0, 2 * size):
        barrier = [
            Prim("signal", send=first + slot, sync=True) for slot in range(size)
        ]
        barrier += [
            Prim("waitSignal", recv=first + size + slot, sync=True)
            for slot in range(size)
        ]
        barriers.append(barrier)
    prims = [*barriers[0], replace(work, send=4 * size), *barriers[1]]
    for part in writer.parts(blocked=blocked):
        flags = [connect_flags(writer, part.channel) for _ in barriers]
        for position in range(size):
            pipes = []
            for flag in flags:
                pipes += [flag[position, peer] for peer in range(size)]
                pipes += [flag[peer, position] for peer in range(size)]
            pipes.append(connect_switch(writer, position, part.channel))
            fields: dict[str, Any] = {"fixed_div": 2 * size + 1, "name": "multimem"}
            mode: Mode = "blocked" if blocked else "interleaved"
            writer.add_rotated(position, part, prims, pipes, mode=mode, **fields)
