"""Blocks of a step as columns: what each does, from the run in which it was simulated alone, and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.engine.abi import WIRE_COUNTERS
from clusim.results.replicated import KINDS, BlockTasks, FoldedBlocks, FoldedBuilder, FoldedCall
from clusim.results.result import Result
from clusim.schedule.ir import Schedule
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.training.breakdown import starts_of_calls
from clusim.workload.parallel.fold import FoldedBlock

Array = NDArray[Any]

ALONE = "block"
"""Name of what is named after its pass in a step, in a schedule of a block alone."""


def block_tasks(
    schedule: Schedule, ranks: tuple[int, ...], result: Result, rank_endpoint: Array
) -> BlockTasks:
    """Return what ranks did in the run of a block alone."""
    tasks, slots = schedule.tasks, {rank: slot for slot, rank in enumerate(ranks)}
    start, end = result.tasks.start_ps, result.tasks.end_ps
    moving = starts_of_calls(schedule, start)
    moves = np.array([moving.get(task.call, 0) for task in tasks], np.int64)
    used = np.flatnonzero(result.wires.counters["busy_ps"])
    traffic = result.bins.hbm_bytes.sum(axis=1)
    return BlockTasks(
        ranks=len(ranks),
        slot=np.array([slots[task.rank] for task in tasks], np.int64),
        kind=np.array([KINDS.index(task.kind) for task in tasks], np.int64),
        stream=[task.stream for task in tasks],
        name=["" if task.name == ALONE else task.name for task in tasks],
        start_ps=start,
        moves_ps=np.clip(moves, start, end),
        end_ps=end,
        call=np.array([task.call for task in tasks], np.int64),
        memory_bytes=np.array([task.mem_bytes for task in tasks], np.int64),
        calls=[
            FoldedCall(
                *(call.operation, call.algorithm, call.protocol, call.dtype, call.redop),
                *(call.bytes, call.channels, slots.get(call.root, -1), len(call.ranks)),
            )
            for call in schedule.calls
        ],
        counters=result.wires.counters[used],
        hbm_bytes=traffic[rank_endpoint[list(ranks)]].astype(np.int64),
    )


def folded_blocks(blocks: Sequence[FoldedBlock], fabric: Fabric) -> FoldedBlocks:
    """Return the blocks of a schedule on a fabric as columns."""
    arrays = arrays_of(fabric)
    counters = WIRE_COUNTERS.names or ()
    builder = FoldedBuilder(arrays.wire_names, arrays.rank_endpoint, counters)
    for block in blocks:
        found = block.found
        builder.add(found.done, found, found.ranks, found.wires)
        builder.block(found, map(block.tasks.__getitem__, found.ranks))
    return builder.build()
