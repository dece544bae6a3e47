"""Replicated blocks of a run: work simulated once, as columns, and its positions in time.

A *part* is a simulated block: its tasks by *slot* (the ranks that executed it, in order), with times from its start.
A *place* is a part at given ranks and wires. A *block* is a place at a given time, the start of its pauses. Reports,
analyses and exports show the tasks of blocks instead of their pauses, so a run with replicated blocks adds up to
the same totals as a run that is simulated in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.results.intervals import Union

Array = NDArray[Any]

KINDS = ("kernel", "program", "delay", "marker")
"""Kinds of tasks, by the numbers that columns have for them."""

MOVING = (" pace", " to host", " from host")
"""Suffixes of the stream names of pauses that represent moving data."""

SUFFIX = " [folded]"
"""Suffix of the names of pauses that represent blocks."""

OWN_NAME = -1
"""Name of a task that is called like the pause of its block."""


class FoldedCall(NamedTuple):
    """Collective of a part; fields as in `clusim.schedule.CollectiveCall`.

    But `ranks` is a number, and `root` a slot.
    """

    operation: str
    algorithm: str
    protocol: str
    dtype: str
    redop: str
    bytes: int
    channels: int
    root: int
    ranks: int


class RankPattern(NamedTuple):
    """Kernels and transfers of a rank in a block: (start, end) from the block's start [ps]."""

    compute: Array
    moving: Array
    end_ps: int


@dataclass(frozen=True, eq=False)
class BlockTasks:
    """Tasks of ranks in a block, a row each, and their traffic.

    Attributes
    ----------
    ranks : int
        Ranks of the block.
    slot, kind : ndarray
        Slot of its rank, and the number of the kind in `KINDS`.
    stream, name : list of str
        An empty name is replaced by the name of the pause.
    start_ps, moves_ps, end_ps : ndarray
        From the start of the block [ps]; data of a program move from when its last rank has started.
    call : ndarray
        Row of `calls`, or -1.
    memory_bytes : ndarray
        Memory traffic of kernels [bytes].
    counters : ndarray
        Counters of each wire of the block, as `clusim.engine.abi.WIRE_COUNTERS`.
    hbm_bytes : ndarray, shape (ranks,)
        Memory traffic that communication causes by slot [bytes].
    """

    ranks: int
    slot: Array
    kind: Array
    stream: Sequence[str]
    name: Sequence[str]
    start_ps: Array
    moves_ps: Array
    end_ps: Array
    call: Array
    memory_bytes: Array
    calls: Sequence[FoldedCall]
    counters: Array
    hbm_bytes: Array

    @classmethod
    def of_kernels(cls, ranks: int, time_ps: int, memory_bytes: int) -> BlockTasks:
        """Return kernels that every rank does for itself, as long on each."""
        zeros, ends = np.zeros(ranks, np.int64), np.full(ranks, time_ps, np.int64)
        return cls(
            ranks=ranks,
            slot=np.arange(ranks),
            kind=zeros,
            stream=["compute"] * ranks,
            name=[""] * ranks,
            start_ps=zeros,
            moves_ps=zeros,
            end_ps=ends,
            call=zeros - 1,
            memory_bytes=np.full(ranks, memory_bytes, np.int64),
            calls=(),
            counters=np.zeros(0, np.int64),
            hbm_bytes=zeros,
        )


@dataclass(frozen=True, eq=False)
class FoldedBlocks:
    """Replicated blocks of a run as columns, the same as in ``/folded`` of a trace.

    Offsets have one row more than the column that they divide: row `i` has ``off[i] .. off[i+1]-1``.

    Attributes
    ----------
    stream, name : list of str
        Texts that tasks number.
    parts_ranks, parts_tasks_off, parts_calls_off : ndarray
        By part: its ranks, its tasks and its calls.
    tasks_slot, tasks_kind, tasks_stream, tasks_name, tasks_start, tasks_moves, tasks_end, tasks_call, tasks_memory
        By task, as in `BlockTasks`; `tasks_call` counts within the part.
    calls_operation, calls_algorithm, calls_protocol, calls_dtype, calls_redop, calls_bytes, calls_channels,
    calls_root, calls_ranks
        By call, as in `FoldedCall`.
    places_part, places_ranks_off, places_wires_off : ndarray
        By place: its part, its ranks and its wires.
    ranks_rank, ranks_endpoint, ranks_hbm : ndarray
        By rank of a place: the rank, its endpoint, and the memory traffic that communication causes there [bytes].
    wires_wire : ndarray
        By wire of a place: its row in the wires of the system.
    counters : dict
        By wire of a place: its counters, by name.
    blocks_place, pauses_task : ndarray
        The place of every block; for every rank of every block in turn, the task that represents it.
    """

    stream: list[str]
    name: list[str]
    parts_ranks: Array
    parts_tasks_off: Array
    parts_calls_off: Array
    tasks_slot: Array
    tasks_kind: Array
    tasks_stream: Array
    tasks_name: Array
    tasks_start: Array
    tasks_moves: Array
    tasks_end: Array
    tasks_call: Array
    tasks_memory: Array
    calls_operation: list[str]
    calls_algorithm: list[str]
    calls_protocol: list[str]
    calls_dtype: list[str]
    calls_redop: list[str]
    calls_bytes: Array
    calls_channels: Array
    calls_root: Array
    calls_ranks: Array
    places_part: Array
    places_ranks_off: Array
    places_wires_off: Array
    ranks_rank: Array
    ranks_endpoint: Array
    ranks_hbm: Array
    wires_wire: Array
    counters: dict[str, Array]
    blocks_place: Array
    pauses_task: Array

    def columns(self) -> dict[str, Array | list[str]]:
        """Return all columns by the names that they have below ``/folded/``."""
        result: dict[str, Array | list[str]] = {}
        for item in fields(self):
            if item.name != "counters":
                result[item.name.replace("_", "/", 1)] = getattr(self, item.name)
        return result | {f"wires/{name}": values for name, values in self.counters.items()}

    @cached_property
    def sizes(self) -> Array:
        """Return the ranks of every place."""
        return np.diff(self.places_ranks_off)

    @cached_property
    def off(self) -> Array:
        """Return where the pauses of every block begin in `pauses_task`."""
        return np.append(0, np.cumsum(self.sizes[self.blocks_place]))

    @cached_property
    def place_calls_off(self) -> Array:
        """Return where the collectives of every place begin if they are counted place by place."""
        return _offsets(np.diff(self.parts_calls_off)[self.places_part])

    @cached_property
    def by_place(self) -> list[Array]:
        """Return for every place the pauses of its blocks, shape (blocks, ranks)."""
        order = np.argsort(self.blocks_place, kind="stable")
        bounds = np.searchsorted(
            self.blocks_place[order], np.arange(len(self.places_part) + 1)
        ).tolist()
        result = []
        for place, size in enumerate(self.sizes.tolist()):
            first = self.off[order[bounds[place] : bounds[place + 1]]]
            result.append(self.pauses_task[first[:, None] + np.arange(size)])
        return result

    @cached_property
    def of_rank(self) -> dict[int, list[tuple[int, int]]]:
        """Return for every rank the places it is at, with its slot there."""
        result: dict[int, list[tuple[int, int]]] = {}
        ranks, off = self.ranks_rank.tolist(), self.places_ranks_off.tolist()
        for place in range(len(self.places_part)):
            for slot, rank in enumerate(ranks[off[place] : off[place + 1]]):
                result.setdefault(rank, []).append((place, slot))
        return result

    @cached_property
    def _rows(self) -> dict[tuple[int, int], Array]:
        """Return the rows of the tasks of every part and slot."""
        result = {}
        for part, ranks in enumerate(self.parts_ranks.tolist()):
            low, high = self.parts_tasks_off[part : part + 2].tolist()
            order = np.argsort(self.tasks_slot[low:high], kind="stable") + low
            bounds = np.searchsorted(self.tasks_slot[order], np.arange(ranks + 1))
            for slot in range(ranks):
                result[part, slot] = order[bounds[slot] : bounds[slot + 1]]
        return result

    def rows(self, place: int, slot: int) -> Array:
        """Return the rows of the tasks of a rank at a place."""
        return self._rows[int(self.places_part[place]), slot]

    @cached_property
    def moving(self) -> Array:
        """Return a mask of the tasks that move data: programs, and pauses that represent programs."""
        paces = np.array([name.endswith(MOVING) for name in self.stream], bool)
        return np.asarray(
            (self.tasks_kind == 1) | ((self.tasks_kind == 2) & paces[self.tasks_stream])
        )

    @cached_property
    def _patterns(self) -> dict[tuple[int, int], RankPattern]:
        return {}

    def pattern(self, place: int, slot: int) -> RankPattern:
        """Return the tasks of a rank at a place."""
        key = int(self.places_part[place]), slot
        if key not in self._patterns:
            rows = self.rows(place, slot)
            kernels, moving = rows[self.tasks_kind[rows] == 0], rows[self.moving[rows]]
            self._patterns[key] = RankPattern(
                Union(self.tasks_start[kernels], self.tasks_end[kernels]).spans,
                Union(self.tasks_moves[moving], self.tasks_end[moving]).spans,
                int(self.tasks_end[rows].max(initial=0)),
            )
        return self._patterns[key]

    def done(self, rank: int, start_ps: Array) -> list[tuple[Array, RankPattern]]:
        """Return the patterns of a rank with their block starts, given all task starts [ps]."""
        result = []
        for place, slot in self.of_rank.get(rank, ()):
            starts = start_ps[self.by_place[place][:, slot]]
            result.append((starts[starts >= 0], self.pattern(place, slot)))
        return result


class FoldedBuilder:
    """Puts blocks into columns.

    Parameters
    ----------
    wires : sequence of str
        Names of all wires of the fabric.
    rank_endpoint : ndarray
        Endpoint of every rank.
    counters : sequence of str
        Counters of wires that are kept.
    """

    def __init__(self, wires: Sequence[str], rank_endpoint: Array, counters: Sequence[str]) -> None:
        self._wire = {name: row for row, name in enumerate(wires)}
        self._endpoint = rank_endpoint.tolist()
        self._counters = counters
        self._texts: dict[str, dict[str, int]] = {"stream": {}, "name": {}}
        self._parts: dict[int, int] = {}
        self._own: list[BlockTasks] = []
        self._places: dict[int, int] = {}
        self._place_rows: list[tuple[int, tuple[int, ...], tuple[str, ...]]] = []
        self._blocks: list[int] = []
        self._pauses: list[int] = []

    def add(
        self, done: BlockTasks, place: object, ranks: tuple[int, ...], wires: Iterable[str]
    ) -> None:
        """See a place, which is the same object for all its blocks, on these ranks and wires."""
        if id(place) in self._places:
            return
        if id(done) not in self._parts:
            self._parts[id(done)] = len(self._own)
            self._own.append(done)
        self._places[id(place)] = len(self._place_rows)
        self._place_rows.append((self._parts[id(done)], ranks, tuple(wires)))

    def block(self, place: object, pauses: Iterable[int]) -> None:
        """Add a block at a known place, with the task that represents each of its ranks."""
        self._blocks.append(self._places[id(place)])
        self._pauses.extend(pauses)

    def _numbered(self, kind: str, texts: Iterable[str]) -> list[int]:
        known = self._texts[kind]
        return [known.setdefault(text, len(known)) for text in texts]

    def build(self) -> FoldedBlocks:
        """Return the columns."""
        parts = self._own
        streams = [row for part in parts for row in self._numbered("stream", part.stream)]
        names = [
            row
            for part in parts
            for text in part.name
            for row in (self._numbered("name", [text]) if text else [OWN_NAME])
        ]
        calls = [call for part in parts for call in part.calls]
        result: dict[str, Any] = {
            "stream": list(self._texts["stream"]),
            "name": list(self._texts["name"]),
            "parts_ranks": _numbers([part.ranks for part in parts]),
            "parts_tasks_off": _offsets([len(part.slot) for part in parts]),
            "parts_calls_off": _offsets([len(part.calls) for part in parts]),
            "tasks_stream": _numbers(streams),
            "tasks_name": _numbers(names),
        }
        for column, name in _TASKS.items():
            result[f"tasks_{column}"] = _joined([getattr(part, name) for part in parts])
        for name in FoldedCall._fields:
            values = [getattr(call, name) for call in calls]
            result[f"calls_{name}"] = values if name in _TEXTS else _numbers(values)
        return FoldedBlocks(
            **result,
            **self._placed(),
            blocks_place=_numbers(self._blocks),
            pauses_task=_numbers(self._pauses),
        )

    def _placed(self) -> dict[str, Any]:
        """Return the columns of places."""
        parts, places = self._own, self._place_rows
        ranks = [rank for _, own_ranks, _ in places for rank in own_ranks]
        return {
            "places_part": _numbers([part for part, _, _ in places]),
            "places_ranks_off": _offsets([len(own_ranks) for _, own_ranks, _ in places]),
            "places_wires_off": _offsets([len(wires) for _, _, wires in places]),
            "ranks_rank": _numbers(ranks),
            "ranks_endpoint": _numbers([self._endpoint[rank] for rank in ranks]),
            "ranks_hbm": _joined([parts[part].hbm_bytes for part, _, _ in places]),
            "wires_wire": _numbers([self._wire[name] for _, _, wires in places for name in wires]),
            "counters": {
                name: _joined([parts[part].counters[name] for part, _, wires in places if wires])
                for name in self._counters
            },
        }


_TEXTS = ("operation", "algorithm", "protocol", "dtype", "redop")
"""Columns of calls that are texts."""

_TASKS = {
    **{"slot": "slot", "kind": "kind", "call": "call", "memory": "memory_bytes"},
    **{"start": "start_ps", "moves": "moves_ps", "end": "end_ps"},
}
"""Columns of tasks that are numbers: name, and where `BlockTasks` has them."""


def _numbers(values: Sequence[int]) -> Array:
    return np.array(values, np.int64)


def _offsets(sizes: Sequence[int] | Array) -> Array:
    return np.append(0, np.cumsum(np.array(sizes, np.int64)))


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int64), *arrays]).astype(np.int64)
