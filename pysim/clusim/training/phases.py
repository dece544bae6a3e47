"""Phases of a training step: fill, steady state and drain of the pipeline, and update.

The ``warm-up`` ends when the last rank begins its first pass, the ``drain`` begins when the first rank has finished its
last one, as in Megatron-LM's schedules (warm-up, steady state, cool-down); ``optimizer`` is everything after the last
pass: the rest of the gradient reduction, and the optimiser. Without a pipeline there is no filling and draining; ranks
that begin late are the ``start``, ranks that end late the ``tail``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clusim.results.diagnosis import LEAST_PHASE, CauseKind, Phase
from clusim.training.breakdown import NOTHING, Breakdown, Spans, blocks_of, breakdown
from clusim.training.step_diagnosis import Culprits, Parts, parts_of

_Window = tuple[str, int, int]
"""Name, begin and end of a phase [ps]."""


@dataclass(frozen=True)
class StepSpans:
    """Work of ranks in a step.

    Attributes
    ----------
    begin_ps, passed_ps, end_ps : int
        When it begins, when its last pass is done, and when it ends [ps].
    pipeline : bool
        Whether it has stages, which wait for each other.
    """

    spans: Mapping[int, Spans]
    ranks: Sequence[int]
    begin_ps: int
    passed_ps: int
    end_ps: int
    pipeline: bool

    @property
    def whole(self) -> list[Breakdown]:
        """Breakdown of ranks in the step."""
        return self._rows[0]

    @property
    def by_phase(self) -> list[tuple[_Window, list[Breakdown]]]:
        """Its phases, each with the breakdown of its ranks."""
        return list(zip(self._phases, self._rows[1:], strict=True))

    @cached_property
    def _rows(self) -> list[list[Breakdown]]:
        """Breakdown of ranks in the step and each phase.

        Computed together, as expanded blocks need much memory.
        """
        passed = self.passed_ps if self.pipeline else 0
        windows = [(self.begin_ps, self.end_ps), *(own[1:] for own in self._phases)]
        return breakdown(self.spans, self.ranks, windows, passed)

    @cached_property
    def _phases(self) -> list[_Window]:
        """Sufficiently long phases; short ones are part of the steady state."""
        low, passed, high = self.begin_ps, self.passed_ps, self.end_ps
        works = [_working(self.spans.get(rank, NOTHING), low, passed) for rank in self.ranks]
        known = [own for own in works if own is not None]
        if not known:
            return []
        least = max(1.0, LEAST_PHASE * (high - low))
        done = passed if high - passed >= least else high
        full = max(first for first, _ in known)
        empty = max(full, min(last for _, last in known))
        full = full if full - low >= least else low
        empty = empty if done - empty >= least else done
        fill, drain = ("warm-up", "drain") if self.pipeline else ("start", "tail")
        edges = (low, full, empty, done, high)
        every = zip((fill, "steady state", drain, "optimizer"), edges, edges[1:], strict=False)
        return [own for own in every if own[2] - own[1] >= least]


def step_phases(step: StepSpans, culprits: Culprits) -> tuple[Phase, ...]:
    """Return the phases of a step and the largest part of each."""
    return tuple(_phase(*own, parts_of(rows, culprits)) for own, rows in step.by_phase)


def _working(own: Spans, low: int, high: int) -> tuple[int, int] | None:
    """Return the begin and end of a rank's compute in a window [ps]; None without compute."""
    busy = np.clip(np.concatenate((own.compute, blocks_of(own))), low, high)
    busy = busy[busy[:, 1] > busy[:, 0]]
    return (int(busy[:, 0].min()), int(busy[:, 1].max())) if len(busy) else None


def _phase(name: str, first: int, last: int, parts: Parts) -> Phase:
    kind, what = max(parts, key=lambda key: (parts[key], key))
    # A pipeline fills and drains with any load of its stages.
    return Phase(name, first, last, kind, "" if kind is CauseKind.BUBBLE else what)
