"""Played training steps: their work as intervals, with the inner work of blocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.jobs.model import KernelWork
from clusim.results.intervals import Union
from clusim.results.replicated import RankPattern, dimension_unions
from clusim.training.breakdown import Spans, spans_of, unfolded
from clusim.training.step_job import StepBlock, StepWork
from clusim.training.step_timing import StepTiming
from clusim.training.switches import Sharing

if TYPE_CHECKING:
    from clusim.training.step_calls import StepTimer


class PlayedWork(NamedTuple):
    """Start and end of every task [ps], as a result of the engine."""

    start_ps: Array
    end_ps: Array
    unfinished: None = None

    @classmethod
    def of(cls, work: StepWork, timer: StepTimer) -> PlayedWork:
        """Play work; a task starts when those before it have ended."""
        ends = timer.play(work)
        starts = [
            max((int(ends[dep]) for dep in task.deps), default=0)
            for task in work.tasks
        ]
        return cls(np.array(starts, np.int64), ends)

    @property
    def tasks(self) -> PlayedWork:
        """Times of the tasks."""
        return self

    @property
    def time_ps(self) -> int:
        """End of the last task [ps]."""
        return int(self.end_ps.max(initial=0))


@dataclass(frozen=True, kw_only=True)
class PlayedTiming(StepTiming):
    """Steps of one rank of every stage.

    Attributes
    ----------
    shown : tuple of int
        The ranks.
    """

    schedule: StepWork  # type: ignore[assignment]
    result: PlayedWork  # type: ignore[assignment]
    timer: StepTimer
    shown: tuple[int, ...]
    _patterns: dict[int, RankPattern] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks with spans."""
        return self.shown

    @cached_property
    def spans(self) -> dict[int, Spans]:
        """Return the work of every rank over time."""
        repeated: dict[int, dict[tuple[StepBlock, int], list[int]]] = defaultdict(
            dict
        )
        starts, ends = (times.tolist() for times in self.result[:2])
        for at, block in enumerate(self.schedule.works):
            if isinstance(block, StepBlock):
                key = block, ends[at] - starts[at]
                repeated[self.schedule.tasks[at].rank].setdefault(key, []).append(
                    starts[at]
                )
        result = spans_of(self.schedule, *self.result[:2])  # type: ignore[arg-type]
        for rank, rows in repeated.items():
            folded = [
                (np.array(begins, np.int64), _lasting(self._pattern(block), time_ps))
                for (block, time_ps), begins in rows.items()
            ]
            result[rank] = replace(result[rank], folded=folded)
        return result

    @property
    def sharing(self) -> Sharing:
        """Return the time of kernels, with and without communication."""
        kernel_ps = sum(
            int(np.diff(unfolded(spans)[0]).sum()) for spans in self.spans.values()
        )
        uses = self.schedule.uses().items()
        alone = (
            work.time_ps * count
            for work, count in uses
            if isinstance(work, KernelWork)
        )
        return Sharing(kernel_ps, sum(alone))

    def _pattern(self, block: StepBlock) -> RankPattern:
        """Return the work in a block in isolation."""
        number = self.timer.class_of(block)
        if number not in self._patterns:
            played = PlayedWork.of(block.inner, self.timer)
            (spans,) = spans_of(block.inner, *played[:2]).values()  # type: ignore[arg-type]
            compute, moving = (
                Union.of(spans.compute).spans,
                dimension_unions(spans.moving),
            )
            self._patterns[number] = RankPattern(compute, moving, played.time_ps)
        return self._patterns[number]


def _lasting(pattern: RankPattern, time_ps: int) -> RankPattern:
    """Return the work of a block that is evenly slowed to a time [ps]."""
    factor = time_ps / max(1, pattern.end_ps)
    moving = np.rint(pattern.moving * (factor, factor, 1)).astype(np.int64)
    return RankPattern(
        np.rint(pattern.compute * factor).astype(np.int64), moving, time_ps
    )
