"""Schedules in which a stage has two parts of the model: ZB-V, DualPipe and DualPipeV.

**Hardware** ZB-V (arXiv 2401.10241, 2405.15362): the parts go down the stages and back up, a V, so that the first stage
also has the last part. DualPipe (arXiv 2412.19437): microbatches come in at both ends; each stage has a copy of the
part of the stage opposite. DualPipeV is one half of it folded into a V. A forward pass and a backward pass of opposite
directions run beside each other, so that each computes while the other communicates. **Model** The orders that their
authors' implementations (and PyTorch's pipelining) have: F forward, B input gradients, W weight gradients, BW both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Literal

Kind = Literal["F", "B", "W", "BW"]

Pass = tuple[Kind, int, int]
"""What is done, for which microbatch, by which of the two parts of the stage."""


def zero_bubble_v(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Return the passes of a stage with ZB-V: as many microbatches under way as a first stage of 1F1B has."""
    found: list[Pass] = []
    kinds: tuple[Kind, ...] = ("F", "B", "W")
    numbers = {(kind, part): count() for kind in kinds for part in (0, 1)}
    done = {0: 0, 1: 0}

    def add(kind: Kind, part: int) -> None:
        found.append((kind, next(numbers[kind, part]), part))
        if kind == "F":
            done[part] += 1

    # Fewer microbatches than fill the pipeline are the first ones of as many as do.
    filled = max(2 * stages - 1, microbatches)
    for _ in range(2 * (stages - stage) - 1):
        add("F", 0)
    for _ in range(stage):
        add("F", 1)
        add("F", 0)
    for _ in range(stages - stage):
        for kind in kinds:
            add(kind, 1)
    while done[1] < done[0] or done[0] < filled:
        if done[0] < filled:
            add("F", 0)
        add("B", 0)
        add("W", 0)
        for kind in kinds:
            add(kind, 1)
    for _ in range(stage):
        add("B", 0)
        add("B", 1)
    for _ in range(stages - stage):
        add("B", 0)
        add("W", 0)
    for part in (1, 0):
        for _ in range(filled - sum(1 for own in found if own[0] == "W" and own[2] == part)):
            add("W", part)
    return [own for own in found if own[1] < microbatches]


@dataclass
class TwoWays:
    """Writes DualPipe (`half`) or DualPipeV for one stage.

    Attributes
    ----------
    passes : list of Pass
        What the stage does, in order.
    beside : set of int
        Places of forward passes that run beside the backward pass behind them.
    """

    stage: int
    stages: int
    microbatches: int
    half: bool = False
    passes: list[Pass] = field(default_factory=list)
    beside: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Write the eight phases of a step."""
        stages, stage, count_of = self.stages, self.stage, self.microbatches
        if self.half:
            stages, stage = stages // 2, min(stage, self.stages - 1 - stage)
            count_of //= 2
        self._each = count_of
        self._forward, self._backward = [0, 0], [0, 0]
        self._later: list[tuple[int, int]] = []
        before, after = stages - stage - 1, stage + 1
        for _ in range(2 * before):
            self._f(0)
        for _ in range(after):
            self._f(0)
            self._f(1)
        for _ in range(before):
            self._b(1, later=True)
            self._w()
            self._f(1)
        for turn in range(count_of - 2 * stages + stage + 1):
            # Stages in the middle have just made what the first backward pass needs, and hand on first.
            self._both(0, 1, apart=turn == 0 and not before)
            self._both(1, 0)
        for _ in range(before):
            self._b(1)
            self._both(1, 0)
        for place in range(2 * after):
            self._b(1 - place % 2, later=place >= after)
        for _ in range(before):
            self._w()
            self._b(0, later=True)
        for _ in range(after):
            self._w()

    def _add(self, kind: Kind, number: int, phase: int) -> None:
        """Add a pass; in the second half of the stages what comes from near is going up."""
        turned = self.half and 2 * self.stage >= self.stages
        part = 1 - phase if turned else phase
        self.passes.append((kind, number + self._each * (part if self.half else 0), part))

    def _f(self, phase: int) -> None:
        self._add("F", self._forward[phase], phase)
        self._forward[phase] += 1

    def _b(self, phase: int, *, later: bool = False) -> None:
        number = self._backward[phase]
        self._backward[phase] += 1
        self._add("B" if later else "BW", number, phase)
        if later:
            self._later.append((number, phase))

    def _w(self) -> None:
        self._add("W", *self._later.pop(0))

    def _both(self, forward: int, backward: int, *, apart: bool = False) -> None:
        if not apart:
            self.beside.add(len(self.passes))
        self._f(forward)
        self._b(backward)
