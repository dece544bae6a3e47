"""Whether a folded block is the same as the simulated one it stands for, and what it costs to write out the others.

A block is simulated alone, with ranks that start together. Where that is so in the whole run, too, it was proved
identical: the engine is deterministic and knows no absolute time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.training.breakdown import Spans, covered, merge
from clusim.workload.parallel.fold import FoldedBlock, Folder

__all__ = ["AFFORDABLE", "BlockState", "FoldReport", "affordable", "fold_report", "states"]

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
) -> Iterator[tuple[FoldedBlock, BlockState]]:
    """Give every folded block and what was under way at its ranks meanwhile."""
    active = {rank: merge(np.concatenate((own.active, own.compute))) for rank, own in spans.items()}
    for block in folder.blocks:
        ready = [max((int(end[t]) for t in tasks), default=0) for tasks in block.waits.values()]
        late = max(ready) - min(ready) if block.coupled else 0
        beside = total = 0
        for rank, task in block.tasks.items():
            low, high = int(start[task]), int(start[task]) + block.found.end_ps[rank]
            own = active[rank]
            first = np.searchsorted(own[:, 1], low, side="right")
            last = np.searchsorted(own[:, 0], high, side="left")
            if last > first:
                beside += covered(own[first:last], np.array([[low, high]], np.int64))
            total += high - low
        yield block, BlockState(late, beside, total)


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
