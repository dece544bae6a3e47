"""Proof of replicated blocks, and partial results of training steps.

A block is simulated in isolation, with ranks that start together. If the same holds in the complete run, the block is
verified identical: the engine is deterministic and independent of absolute time. Unverified blocks are written out in
full if that is affordable. If the wall-clock limit ends a run, the partial result has the completed steps and the
blocks replicated so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TimeLimitReached
from clusim.base.json_schema import JsonObject, Picoseconds, Round6
from clusim.base.units import format_time
from clusim.results.intervals import Union
from clusim.results.result import Result
from clusim.results.resultjson import Ended, Unfinished
from clusim.training.breakdown import NOTHING, Spans
from clusim.workload.parallel.fold import FoldedBlock, Folder
from clusim.workload.parallel.plan import ParallelPlan

AFFORDABLE = 1 << 26
"""Maximum events of a run for which unverified blocks are written out by default: half a minute."""

INSTANCE_EVENTS = 200
"""Cost of writing and reading one CTA's program, in packet events."""


@dataclass(frozen=True, slots=True)
class FoldReport(JsonObject):
    """Replicated blocks of work.

    `skew_ps` is the greatest difference between the times at which ranks of a replicated block were ready [ps];
    replication starts all at the last one.

    Attributes
    ----------
    simulated, folded : int
        Simulated blocks, and blocks replicated from them, which run as pauses.
    alone, proved_identical : int
        Replicated blocks without other work of their ranks, and the part verified identical to the simulated block.
    disturbed_share : float
        Share of the replicated time with other work of the same ranks.
    """

    simulated: int = 0
    folded: int = 0
    alone: int = 0
    proved_identical: int = 0
    disturbed_share: Round6 = 0.0
    skew_ps: int = 0

    @property
    def text(self) -> str:
        """Text for reports."""
        proved = self.proved_identical
        text = f"{self.folded:,} blocks, {self.simulated} simulated for them: {proved:,} proved identical"
        if self.alone > proved:
            apart = format_time(self.skew_ps)
            text += f", {self.alone - proved:,} with ranks ready within {apart}"
        if self.alone < self.folded:
            unproved = self.folded - self.alone
            text += f", {unproved:,} beside other traffic ({self.disturbed_share:.2%} of the time)"
        if proved < self.folded:
            text += "; --fold proved simulates all but those proved"
        return text


@dataclass(frozen=True, slots=True)
class BlockState:
    """State of a replicated block in a run [ps].

    Spread of its ranks' ready times, and time of their other work.

    `same`: in the same place as where it was simulated, or only in a similar one.
    """

    late_ps: int
    beside_ps: int
    total_ps: int
    same: bool = True

    @property
    def proved(self) -> bool:
        return self.same and not self.late_ps and not self.beside_ps


def states(
    blocks: Sequence[FoldedBlock], spans: Mapping[int, Spans], start: Any, end: Any
) -> list[tuple[FoldedBlock, BlockState]]:
    """Return every replicated block with its state: concurrent work of its ranks and wires."""
    if not blocks:
        return []
    rows = _Rows(blocks, start, end.tolist())
    beside = rows.beside(spans)
    beside += np.where(rows.message, _crossing(blocks, rows), 0)
    same = [block.found.same for block in blocks]
    numbers = zip(rows.late, beside.tolist(), rows.total.tolist(), same, strict=True)
    return [
        (b, BlockState(*numbers_of_block))
        for b, numbers_of_block in zip(blocks, numbers, strict=True)
    ]


class _Rows:
    """Replicated blocks as columns: a row for every block and rank, and sums by block."""

    def __init__(
        self, blocks: Sequence[FoldedBlock], start: Array, end: list[int]
    ) -> None:
        self.message = np.array([block.message for block in blocks], bool)
        self.late = [_late(block, end) if block.coupled else 0 for block in blocks]
        ranks: list[int] = []
        tasks: list[int] = []
        takes: list[int] = []
        for block in blocks:
            ranks.extend(block.tasks)
            tasks.extend(block.tasks.values())
            takes.extend(map(block.found.end_ps.__getitem__, block.tasks))
        self.index = np.repeat(
            np.arange(len(blocks)), [len(block.tasks) for block in blocks]
        )
        self.rank, low = np.array(ranks, np.int64), start[np.array(tasks, np.int64)]
        length = np.array(takes, np.int64)
        self.span = np.stack([low, low + length], axis=1)
        self.total = np.bincount(self.index, length, len(blocks)).astype(np.int64)

    def beside(self, spans: Mapping[int, Spans]) -> Array:
        """Return by block the time of concurrent work, summed over its ranks [ps]."""
        result = np.zeros(len(self.message), np.int64)
        active = (rank_spans.active for rank_spans in spans.values())
        anywhere = Union.of(NOTHING.active, *active).spans
        order = np.argsort(self.rank, kind="stable")
        edges = np.flatnonzero(np.diff(self.rank[order])) + 1
        for rows in np.split(order, edges):
            # A rank whose work is replicated may have no tasks.
            rank_spans = spans.get(int(self.rank[rows[0]]), NOTHING)
            message = self.message[self.index[rows]]
            busy, at = (
                np.concatenate((rank_spans.active, rank_spans.compute)),
                self.span[rows],
            )
            blocks, messages = at[~message], at[message]
            for wanted, others in (
                (~message, (busy, messages)),
                # Other traffic on its wires may be of other ranks.
                (message, (busy, blocks, anywhere)),
            ):
                overlap = Union.of(*others).within(*at[wanted].T)
                np.add.at(result, self.index[rows[wanted]], overlap)
        return result


def _late(block: FoldedBlock, end: list[int]) -> int:
    """Return the spread of the ready times of a block's ranks [ps]."""
    ready = {
        max((end[t] for t in tasks), default=0)
        for tasks in set(block.waits.values())
    }
    return max(ready) - min(ready)


def _crossing(blocks: Sequence[FoldedBlock], rows: _Rows) -> Array:
    """Return by block the time of other replicated messages on the same wires [ps]."""
    result = np.zeros(len(blocks), np.int64)
    kinds: dict[int, list[int]] = {}
    for number in np.flatnonzero(rows.message).tolist():
        # The wires are only known for identical messages; others are never verified.
        if blocks[number].found.same:
            kinds.setdefault(id(blocks[number].found), []).append(number)
    low, high = (np.zeros(len(blocks), np.int64) for _ in "lh")
    low[:] = np.iinfo(np.int64).max
    np.minimum.at(low, rows.index, rows.span[:, 0])
    np.maximum.at(high, rows.index, rows.span[:, 1])
    users: dict[str, list[int]] = {}
    for kind, members in kinds.items():
        for wire in blocks[members[0]].found.wires:
            users.setdefault(wire, []).append(kind)
    spans = {
        kind: np.stack([low[members], high[members]], axis=1)
        for kind, members in kinds.items()
    }
    busy = {kind: Union.of(members) for kind, members in spans.items()}
    pairs = {
        (one, two)
        for users_of in set(map(tuple, users.values()))
        for one in users_of
        for two in users_of
        if one != two
    }
    for one, two in pairs:
        result[kinds[one]] = np.maximum(
            result[kinds[one]], busy[two].within(*spans[one].T)
        )
    return result


def fold_report(
    folder: Folder | None, found_states: Sequence[tuple[FoldedBlock, BlockState]]
) -> FoldReport:
    """Return the report on the replicated blocks of a run."""
    if folder is None or not folder.blocks:
        return FoldReport()
    result = [state for _, state in found_states]
    alone = [state for state in result if not state.beside_ps]
    return FoldReport(
        folder.measured,
        len(result),
        len(alone),
        sum(state.proved for state in result),
        sum(state.beside_ps for state in result)
        / max(1, sum(s.total_ps for s in result)),
        max(state.late_ps for state in result),
    )


def affordable(run_events: int, blocks: Iterable[FoldedBlock]) -> bool:
    """Return True if a run with these blocks written out needs at most `AFFORDABLE` events.

    `run_events` is the number of events of the run with the blocks replicated.
    """
    events = sum(
        b.found.done.hops + INSTANCE_EVENTS * b.found.done.instances for b in blocks
    )
    return run_events + events <= AFFORDABLE


@dataclass(frozen=True)
class WholeSteps(JsonObject):
    """Steps that were simulated to their end: times [s], granularity, and replicated blocks."""

    KEYS = ("steps_s=step_ps", "granularity", "folded=fold")

    step_ps: list[Picoseconds]
    granularity: str
    fold: FoldReport


@dataclass(frozen=True)
class EndedSteps(JsonObject):
    """Partial result of training steps.

    Attributes
    ----------
    steps : int
        Requested steps.
    steps_s : list of float
        Times of the completed steps [s].
    under_way_s : float
        Simulated time of the step in progress [s].
    why : str
        Reason of the end.
    result : Result or None
        Result of the run in progress; None if it had not begun.
    granularity : str
        Granularity of the run in progress.
    blocks_folded : int
        Number of its replicated blocks.
    before : object or None
        Earlier run that was completed: coarser, with more blocks replicated, or without a checkpoint.
    """

    KEYS = (
        "*progress",
        "workload=plan.workload.name",
        "model=plan.model.name",
        "fabric=plan.fabric.name",
        "gpus=plan.mesh.size",
        "steps",
        "steps_s=step_ps",
        "under_way_s",
        "granularity",
        "blocks_folded",
        "before",
    )

    plan: ParallelPlan
    steps: int
    why: str
    step_ps: list[Picoseconds]
    result: Result | None
    blocks_folded: int = 0
    before: WholeSteps | None = None

    @property
    def time_ps(self) -> int:
        """Simulated time of the run in progress [ps]."""
        return 0 if self.result is None else self.result.time_ps

    @property
    def under_way_ps(self) -> Picoseconds:
        """Simulated time of the step in progress [ps]."""
        return self.time_ps - sum(self.step_ps)

    @property
    def granularity(self) -> str:
        """Granularity of the unfinished run."""
        return "" if self.result is None else self.result.provenance.granularity_note

    @property
    def words(self) -> str:
        """Cause and place of the end."""
        if self.result is None:
            return f"{self.why}: ended before the steps were simulated again"
        done = f"{len(self.step_ps)} of {self.steps} steps done"
        return f"{self._unfinished.words(self.time_ps)}, {done}"

    @property
    def _unfinished(self) -> Unfinished:
        unfinished = None if self.result is None else self.result.unfinished
        return unfinished or Unfinished(self.why, 0.0, 0)

    @property
    def progress(self) -> Ended | None:
        """Progress of the run."""
        wall_s = 0.0 if self.result is None else self.result.wall_s
        return self._unfinished.progress_at(self.time_ps, wall_s)


class StepsEnded(TimeLimitReached):
    """Wall-clock limit reached in training steps; `known` is the partial result."""

    def __init__(self, known: EndedSteps) -> None:
        super().__init__(known.words)
        self.known = known


@contextmanager
def knowing(
    plan: ParallelPlan, steps: int, why: str, whole: WholeSteps
) -> Iterator[None]:
    """Add the completed run `whole` to a partial result raised inside, unless it has one."""
    try:
        yield
    except StepsEnded as error:
        if error.known.before is not None:
            raise
        raise StepsEnded(replace(error.known, before=whole)) from None
    except TimeLimitReached:
        raise StepsEnded(
            EndedSteps(plan, steps, why, [], None, before=whole)
        ) from None
