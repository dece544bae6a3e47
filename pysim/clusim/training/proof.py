"""Whether a folded block is the same as the simulated one it stands for, and what it costs to write out the others.

A block is simulated alone, with ranks that start together. Where that is so in the whole run, too, it was proved
identical: the engine is deterministic and knows no absolute time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.training.breakdown import Spans, merge
from clusim.workload.parallel.fold import FoldedBlock, Folder

__all__ = ["AFFORDABLE", "BlockState", "FoldReport", "affordable", "fold_report", "states"]

Array = NDArray[Any]

AFFORDABLE = 1 << 26
"""Events of a run in which the default writes out blocks that were not proved: about half a minute."""

INSTANCE_EVENTS = 200
"""What writing and reading one CTA's program costs, in events of packets."""


@dataclass(frozen=True, slots=True)
class FoldReport:
    """Blocks that were not simulated one by one.

    Attributes
    ----------
    simulated, folded : int
        Blocks that were, and that stand for themselves as pauses.
    alone : int
        Folded blocks at whose ranks nothing else was under way.
    proved : int
        Those of them whose ranks were ready at the same picosecond: identical to the simulated one.
    disturbed_share : float
        Part of the folded time in which something else was under way at the same ranks.
    skew_ps : int
        Greatest difference between the times at which ranks of a folded block were ready; folding lets all wait for
        the last one [ps].
    """

    simulated: int = 0
    folded: int = 0
    alone: int = 0
    proved: int = 0
    disturbed_share: float = 0.0
    skew_ps: int = 0


@dataclass(frozen=True, slots=True)
class BlockState:
    """What a run says of a folded block: how far apart its ranks were ready, how long they did other things [ps]."""

    late_ps: int
    beside_ps: int
    total_ps: int

    @property
    def proved(self) -> bool:
        return not self.late_ps and not self.beside_ps


def states(
    folder: Folder, spans: Mapping[int, Spans], start: Any, end: Any
) -> list[tuple[FoldedBlock, BlockState]]:
    """Return every folded block and what was under way at its ranks meanwhile; for messages also on their wires."""
    if not folder.blocks:
        return []
    rows = _Rows(folder.blocks, start.tolist(), end.tolist())
    beside = rows.beside(spans)
    beside += np.where(rows.message, _crossing(folder.blocks, rows), 0)
    late, total = rows.late, rows.total
    numbers = zip(late, beside.tolist(), total.tolist(), strict=True)
    return [(b, BlockState(*own)) for b, own in zip(folder.blocks, numbers, strict=True)]


class _Rows:
    """Folded blocks as columns: a row for every block and rank, and sums by block."""

    def __init__(self, blocks: Sequence[FoldedBlock], start: list[int], end: list[int]) -> None:
        self.message = np.array([block.message for block in blocks], bool)
        self.late, index, ranks, low, high = [], [], [], [], []
        for number, block in enumerate(blocks):
            self.late.append(_late(block, end) if block.coupled else 0)
            for rank, task in block.tasks.items():
                index.append(number)
                ranks.append(rank)
                low.append(start[task])
                high.append(start[task] + block.found.end_ps[rank])
        self.index, self.rank = np.array(index, np.int64), np.array(ranks, np.int64)
        self.span = np.stack([np.array(low, np.int64), np.array(high, np.int64)], axis=1)
        length = self.span[:, 1] - self.span[:, 0]
        self.total = np.bincount(self.index, length, len(blocks)).astype(np.int64)

    def beside(self, spans: Mapping[int, Spans]) -> Array:
        """Return by block how long its ranks did something else meanwhile, summed over them [ps]."""
        found = np.zeros(len(self.message), np.int64)
        anywhere = merge(np.concatenate([own.active for own in spans.values()]))
        order = np.argsort(self.rank, kind="stable")
        edges = np.flatnonzero(np.diff(self.rank[order])) + 1
        for rows in np.split(order, edges):
            own, message = spans[int(self.rank[rows[0]])], self.message[self.index[rows]]
            busy, at = np.concatenate((own.active, own.compute)), self.span[rows]
            blocks, messages = at[~message], at[message]
            for wanted, others in (
                (~message, (busy, messages)),
                # What else is on its wires may come from other ranks.
                (message, (busy, blocks, anywhere)),
            ):
                overlap = _overlap(merge(np.concatenate(others)), at[wanted])
                np.add.at(found, self.index[rows[wanted]], overlap)
        return found


def _late(block: FoldedBlock, end: list[int]) -> int:
    """Return how far apart the ranks of a block were ready [ps]."""
    ready = {max((end[t] for t in tasks), default=0) for tasks in set(block.waits.values())}
    return max(ready) - min(ready)


def _overlap(busy: Array, spans: Array) -> Array:
    """Return how much of each of `spans` is in disjoint intervals in their order [ps]."""
    if not len(busy) or not len(spans):
        return np.zeros(len(spans), np.int64)
    before = np.concatenate(([0], np.cumsum(busy[:, 1] - busy[:, 0])))

    def until(times: Array) -> Array:
        at = np.searchsorted(busy[:, 0], times, side="right")
        last = np.maximum(at - 1, 0)
        part = np.clip(times - busy[last, 0], 0, busy[last, 1] - busy[last, 0])
        return np.where(at > 0, before[last] + part, 0)

    found: Array = until(spans[:, 1]) - until(spans[:, 0])
    return found


def _crossing(blocks: Sequence[FoldedBlock], rows: _Rows) -> Array:
    """Return by block how long other folded messages used the same wires meanwhile [ps]."""
    found = np.zeros(len(blocks), np.int64)
    kinds: dict[int, list[int]] = {}
    for number in np.flatnonzero(rows.message).tolist():
        kinds.setdefault(id(blocks[number].found), []).append(number)
    low, high = (np.zeros(len(blocks), np.int64) for _ in "lh")
    low[:] = np.iinfo(np.int64).max
    np.minimum.at(low, rows.index, rows.span[:, 0])
    np.maximum.at(high, rows.index, rows.span[:, 1])
    users: dict[str, list[int]] = {}
    for kind, own in kinds.items():
        for wire in blocks[own[0]].found.wires:
            users.setdefault(wire, []).append(kind)
    spans = {kind: np.stack([low[own], high[own]], axis=1) for kind, own in kinds.items()}
    pairs = {(one, two) for kind in set(map(tuple, users.values())) for one in kind for two in kind}
    for one, two in pairs:
        if one != two:
            overlap = _overlap(merge(spans[two]), spans[one])
            found[kinds[one]] = np.maximum(found[kinds[one]], overlap)
    return found


def fold_report(
    folder: Folder | None, spans: Mapping[int, Spans], start: Any, end: Any
) -> FoldReport:
    if folder is None or not folder.blocks:
        return FoldReport()
    found = [state for _, state in states(folder, spans, start, end)]
    alone = [state for state in found if not state.beside_ps]
    return FoldReport(
        folder.measured,
        len(found),
        len(alone),
        sum(state.proved for state in found),
        sum(state.beside_ps for state in found) / max(1, sum(s.total_ps for s in found)),
        max(state.late_ps for state in found),
    )


def affordable(run_events: int, blocks: Iterable[FoldedBlock]) -> bool:
    """Return whether it takes no more than `AFFORDABLE` to write out these blocks and run again.

    `run_events` are those of the run in which they were folded.
    """
    events = sum(block.found.hops + INSTANCE_EVENTS * block.found.instances for block in blocks)
    return run_events + events <= AFFORDABLE
