"""Replicated blocks of a run: work simulated once, at each of its positions in time.

A *block* is work of some ranks that pauses of a schedule represent. Its tasks are known from a run in isolation, with
times from its start (`BlockTasks`). A trace has the tasks of all its blocks as rows beside its pauses (`BlockRows`), so
that analyses and exports show tasks instead of pauses. Counters and histories of wires exclude blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.results.intervals import Union

KINDS = ("kernel", "program", "delay", "marker")
"""Kinds of tasks, by the numbers that columns have for them."""

MOVING = (" pace", " to host", " from host")
"""Suffixes of the stream names of pauses that represent moving data."""

DIMENSIONS = (
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "norm",
    "embedding",
    "host",
)
"""Dimensions of parallelism that move data, and copies to and from the host; the first word of a stream's name."""

SUFFIX = " [folded]"
"""Suffix of the names of pauses that represent blocks."""


class RankPattern(NamedTuple):
    """Kernels and transfers of a rank in a block: (start, end) from the block's start [ps].

    Transfers also have the number of their dimension in `DIMENSIONS`.
    """

    compute: Array
    moving: Array
    end_ps: int


@dataclass(frozen=True, eq=False)
class BlockTasks:
    """Tasks of a block, a row each, and its traffic, where it was simulated.

    Attributes
    ----------
    ranks : tuple of int
        Ranks of the block.
    slot, kind : ndarray
        Place of its rank in `ranks`, and the number of the kind in `KINDS`.
    stream, name : list of str
        An empty name is replaced by the name of the pause.
    start, moves, end : ndarray
        From the start of the block [ps]; data of a program move from when its last rank has started.
    call : ndarray
        Row of `calls`, or -1.
    memory : ndarray
        Memory traffic of kernels [bytes].
    calls : sequence of CollectiveCall
        Its collectives.
    wires, busy_ps : tuple of str, ndarray
        Wires in use, and the busy time of each [ps].
    sharing : tuple of int
        `clusim.training.switches.Sharing` as numbers.
    hops, instances : int
        Cost of the simulation: burst-hops, and programs.
    """

    ranks: tuple[int, ...]
    slot: Array
    kind: Array
    stream: Sequence[str]
    name: Sequence[str]
    start: Array
    moves: Array
    end: Array
    call: Array
    memory: Array
    calls: Sequence[Any]
    wires: tuple[str, ...]
    busy_ps: Array
    sharing: tuple[int, int, int, int]
    hops: int = 0
    instances: int = 0

    @classmethod
    def of_kernels(
        cls, ranks: tuple[int, ...], time_ps: int, memory_bytes: int
    ) -> BlockTasks:
        """Return kernels that every rank does for itself, as long on each."""
        zeros = np.zeros(len(ranks), np.int64)
        return cls(
            ranks=ranks,
            slot=np.arange(len(ranks)),
            kind=zeros,
            stream=["compute"] * len(ranks),
            name=[""] * len(ranks),
            start=zeros,
            moves=zeros,
            end=zeros + time_ps,
            call=zeros - 1,
            memory=zeros + memory_bytes,
            calls=(),
            wires=(),
            busy_ps=zeros[:0],
            sharing=(time_ps * len(ranks), time_ps * len(ranks), 0, 0),
        )

    @cached_property
    def patterns(self) -> list[RankPattern]:
        """Kernels and transfers by slot."""
        moving = is_moving(self.kind, np.arange(len(self.kind)), self.stream)
        spans = np.stack([self.moves, self.end, np.zeros_like(self.end)], axis=1)
        spans[moving, 2] = [
            dimension_of(self.stream[row]) for row in np.flatnonzero(moving).tolist()
        ]
        order = np.argsort(self.slot, kind="stable")
        bounds = np.searchsorted(self.slot[order], np.arange(1, len(self.ranks)))
        result = []
        for rows in np.split(order, bounds):
            kernels, moves = rows[self.kind[rows] == 0], rows[moving[rows]]
            result.append(
                RankPattern(
                    Union(self.start[kernels], self.end[kernels]).spans,
                    dimension_unions(spans[moves]),
                    int(self.end[rows].max(initial=0)),
                )
            )
        return result


def dimension_of(stream: str) -> int:
    """Return the number in `DIMENSIONS` of the dimension that moves data on a stream."""
    if stream.endswith(MOVING[1:]):
        return DIMENSIONS.index("host")
    word = stream.partition(" ")[0]
    return DIMENSIONS.index("data" if word == "copies" else word)


def dimension_unions(moving: Array) -> Array:
    """Return the union in each dimension of rows of (start, end, dimension) [ps]."""
    parts = [np.zeros((0, 3), np.int64)]
    for dimension in np.unique(moving[:, 2]):
        spans = Union.of(moving[moving[:, 2] == dimension, :2]).spans
        parts.append(np.insert(spans, 2, dimension, axis=1))
    return np.concatenate(parts)


def is_moving(kind: Array, stream: Array, streams: Sequence[str]) -> Array:
    """Return a mask of the tasks that move data: programs, and pauses that represent programs."""
    paces = np.array([name.endswith(MOVING) for name in streams], bool)
    return np.asarray((kind == 1) | ((kind == 2) & paces[stream]))


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Tasks of all replicated blocks of a run, a row each, as in ``/blocks`` of a trace.

    Attributes
    ----------
    streams, names : list of str
        Texts that `stream` and `name` number.
    pause : ndarray
        Task of the schedule that represents the block.
    rank, kind, stream, name : ndarray
        Rank, number of the kind in `KINDS`, and texts.
    call : ndarray
        Collective of the schedule, or -1. Blocks at the same ranks share their collectives.
    start, moves, end : ndarray
        From the start of the pause [ps].
    memory : ndarray
        Memory traffic of kernels [bytes].
    calls : sequence of CollectiveCall
        Collectives that follow those of the schedule.
    """

    streams: list[str]
    names: list[str]
    pause: Array
    rank: Array
    kind: Array
    stream: Array
    name: Array
    call: Array
    start: Array
    moves: Array
    end: Array
    memory: Array
    calls: Sequence[Any] = ()

    @classmethod
    def of(cls, columns: Mapping[str, Any], calls: Sequence[Any] = ()) -> BlockRows:
        """Return the tasks with columns by name."""
        return cls(**columns, calls=calls)

    def columns(self) -> dict[str, Array | list[str]]:
        """Return all columns of tasks by name."""
        return {name: getattr(self, name) for name in BLOCK_COLUMNS}


BLOCK_COLUMNS = tuple(
    item.name for item in fields(BlockRows) if item.name != "calls"
)
"""Names of the columns of tasks of replicated blocks."""

BLOCK_TEXTS = ("streams", "names")
"""Columns of texts."""

NO_BLOCKS = BlockRows.of(
    {
        name: [] if name in BLOCK_TEXTS else np.zeros(0, np.int64)
        for name in BLOCK_COLUMNS
    }
)
"""Run without replicated blocks."""
