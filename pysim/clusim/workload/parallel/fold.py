"""Replicated blocks: a block that repeats in isolation is simulated once, on its nodes.

Two blocks are equal if they have the same steps and their ranks are at the same positions of equally
wired nodes. The engine, which is deterministic and independent of absolute time, then computes the same
times for both as long as the ranks start together and no other work uses their wires and memory. A block
of kernels only lasts the sum of their times. Both conditions are verified after the run for every block:
`clusim.training` reports the number of blocks proven identical, and can write the others in full and run
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.results.replicated import (
    BLOCK_COLUMNS,
    SUFFIX,
    BlockRows,
    BlockTasks,
    RankPattern,
)
from clusim.schedule.ir import CollectiveCall, Schedule
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.workload.parallel.symmetry import EqualPlaces
from clusim.workload.parallel.volumes import Volume

MOST_ROWS = 1 << 21
"""Most tasks of replicated blocks in a trace."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Block written in isolation: schedule, each rank's last tasks, traffic, operations."""

    schedule: Schedule
    tail: dict[int, tuple[int, ...]]
    traffic: dict[str, Volume]
    flops: int


Measure = Callable[[Schedule, tuple[int, ...]], BlockTasks]
"""Function that simulates the schedule of a block on these ranks."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Block at some ranks: end times from the common start [ps] and work, by place in `ranks`.

    It is the `same` block where it was simulated; at other ranks it may only be equivalent.
    """

    ranks: tuple[int, ...]
    end_ps: dict[int, int]
    done: BlockTasks
    traffic: dict[str, Volume]
    flops: int
    wires: tuple[str, ...] = ()
    same: bool = True


@dataclass(frozen=True, slots=True)
class FoldedBlock:
    """Block in a schedule: its task by rank, the dependencies of each rank, and its result.

    Attributes
    ----------
    number : int
        Number of the block in the schedule, unreplicated blocks included.
    coupled : bool
        True if its ranks communicate, so that it matters that they are ready at the same time.
    message : bool
        True for messages, and for collectives parallel to kernels.
    """

    tasks: dict[int, int]
    waits: dict[int, tuple[int, ...]]
    found: Folded
    number: int = 0
    coupled: bool = True
    message: bool = False


@dataclass
class Folder:
    """Simulator that runs each distinct block once.

    Attributes
    ----------
    blocks : list of FoldedBlock
        Replicated blocks, in the order of the schedule.
    measured : int
        Blocks that were simulated.
    written : frozenset of int
        Numbers of blocks written in full, because they differed when they were replicated.
    last : int
        Number of the last requested block.
    messages : bool
        True if messages between stages are blocks.
    reductions : bool
        True if collectives of data parallelism are blocks, with the layers of the passes parallel to them.
    """

    fabric: Fabric
    measure: Measure
    blocks: list[FoldedBlock] = field(default_factory=list)
    measured: int = 0
    written: frozenset[int] = frozenset()
    last: int = -1
    messages: bool = False
    reductions: bool = False
    _found: dict[Any, tuple[tuple[int, ...], Folded]] = field(default_factory=dict)
    _alias: dict[Any, Folded] = field(default_factory=dict)
    _kernels: dict[Any, Folded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the equal nodes."""
        self.places = EqualPlaces(self.fabric)
        self.zone = self.places.zone
        self._wires = frozenset(arrays_of(self.fabric).wire_names)

    def restart(self, blocks_written: frozenset[int]) -> None:
        """Begin another schedule with these blocks written in full; keep the simulated blocks."""
        self.blocks, self.last = [], -1
        self.written = blocks_written

    def replicates_next(self) -> bool:
        """Count a block; True if it is to be replicated."""
        self.last += 1
        return self.last not in self.written

    def find(
        self, key: Any, ranks: tuple[int, ...], alone: Callable[[], Alone]
    ) -> Folded:
        """Return the block on these ranks; simulate the schedule of `alone` if no equal one was."""
        exact = (key, ranks)
        if exact in self._alias:
            return self._alias[exact]
        place = self.places.of(ranks)
        if (key, place.key) not in self._found:
            self._found[key, place.key] = (ranks, self._simulate(ranks, alone()))
        origin, result = self._found[key, place.key]
        if origin != ranks:
            result = replace(
                self._move_block(result, origin, ranks), same=place.proved
            )
        self._alias[exact] = result
        return result

    def kernels(
        self, ranks: tuple[int, ...], counts: tuple[int, int, int]
    ) -> Folded:
        """Return a block of kernels, the same on each rank.

        `counts` is time [ps], memory traffic [bytes] and operations of a rank.
        """
        key = (ranks, counts)
        if key not in self._kernels:
            time_ps, memory_bytes, flops = counts
            done = BlockTasks.of_kernels(ranks, time_ps, memory_bytes)
            ends = dict.fromkeys(ranks, time_ps)
            self._kernels[key] = Folded(ranks, ends, done, {}, flops * len(ranks))
        return self._kernels[key]

    def _simulate(self, ranks: tuple[int, ...], block: Alone) -> Folded:
        done = self.measure(block.schedule, ranks)
        self.measured += 1
        end = {
            rank: max(int(done.end[task]) for task in block.tail[rank])
            for rank in ranks
        }
        return Folded(ranks, end, done, block.traffic, block.flops, done.wires)

    def _move_block(
        self, block: Folded, origin: tuple[int, ...], ranks: tuple[int, ...]
    ) -> Folded:
        """Return a block moved to other ranks, on equal nodes."""
        image = dict(zip(origin, ranks, strict=True))
        names = self.places.renaming(
            {self.zone[old]: self.zone[new] for old, new in image.items()}
        )

        def local_name(wire: str) -> str:
            source, _, destination = wire.partition("->")
            target, _, number = destination.rpartition(".")
            block = f"{names(source)}->{names(target)}.{number}"
            # The choice of packets between several equal paths there is not known.
            return block if block in self._wires else wire

        end = {image[rank]: value for rank, value in block.end_ps.items()}
        return replace(
            block, ranks=ranks, end_ps=end, wires=tuple(map(local_name, block.wires))
        )


def by_kind(blocks: Iterable[FoldedBlock]) -> list[tuple[Folded, list[FoldedBlock]]]:
    """Return the blocks of a schedule by the result that they repeat."""
    kinds: dict[int, tuple[Folded, list[FoldedBlock]]] = {}
    for block in blocks:
        kinds.setdefault(id(block.found), (block.found, []))[1].append(block)
    return list(kinds.values())


def pauses_of(folded: Folded, blocks: Iterable[FoldedBlock]) -> Array:
    """Return the tasks that represent blocks of a kind, shape (blocks, ranks)."""
    return np.array(
        [[block.tasks[rank] for rank in folded.ranks] for block in blocks], np.int64
    )


def repetitions(
    blocks: Iterable[FoldedBlock], start_ps: Array
) -> dict[int, list[tuple[Array, RankPattern]]]:
    """Return the patterns of every rank with the starts of their blocks, given all task starts [ps]."""
    result: dict[int, list[tuple[Array, RankPattern]]] = {}
    for block, repeated in by_kind(blocks):
        starts = start_ps[pauses_of(block, repeated)]
        for slot, rank in enumerate(block.ranks):
            at = starts[:, slot]
            result.setdefault(rank, []).append(
                (at[at >= 0], block.done.patterns[slot])
            )
    return result


def block_rows(
    blocks: Sequence[FoldedBlock], schedule: Schedule
) -> BlockRows | None:
    """Return the tasks of the blocks of a schedule for a trace; None if they exceed `MOST_ROWS`."""
    if sum(len(block.found.done.slot) for block in blocks) > MOST_ROWS:
        return None
    streams: dict[str, int] = {}
    names: dict[str, int] = {}
    calls: list[CollectiveCall] = []
    parts: list[list[Array]] = []
    for folded, repeated in by_kind(blocks):
        done, image = (
            folded.done,
            dict(zip(folded.done.ranks, folded.ranks, strict=True)),
        )
        first = len(schedule.calls) + len(calls)
        for call in done.calls:
            ranks = tuple(image[rank] for rank in call.ranks)
            calls.append(replace(call, ranks=ranks, root=image.get(call.root, -1)))
        stream = _number_texts(streams, done.stream)
        fixed = np.array(folded.ranks)[done.slot], done.kind, stream
        call_rows = np.where(done.call < 0, -1, done.call + first)
        values = call_rows, done.start, done.moves, done.end, done.memory
        for block, pauses in zip(repeated, pauses_of(folded, repeated), strict=True):
            pass_name = schedule.tasks[
                next(iter(block.tasks.values()))
            ].name.removesuffix(SUFFIX)
            name = _number_texts(
                names, [block_name or pass_name for block_name in done.name]
            )
            parts.append([pauses[done.slot], *fixed, name, *values])
    texts: dict[str, Any] = {"streams": list(streams), "names": list(names)}
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return BlockRows.of(
        texts | dict(zip(BLOCK_COLUMNS[2:], columns, strict=True)), calls
    )


def _number_texts(numbers: dict[str, int], texts: Iterable[str]) -> Array:
    return np.array(
        [numbers.setdefault(text, len(numbers)) for text in texts], np.int64
    )
