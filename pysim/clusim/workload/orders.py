"""Pipeline schedules as lists: which forward and backward passes a stage does, one after the other.

**Hardware** Megatron-LM ``schedules.py``; GPipe (arXiv 1811.06965); PipeDream (SOSP 2019); zero bubble (arXiv
2401.10241). **Model** The same orders. F is a forward pass, B a backward pass; zero-bubble schedules cut B into B
(input gradients) and W (weight gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clusim.errors import InputError

__all__ = ["SCHEDULES", "Action", "Timeline", "order", "timeline"]

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "pipedream", "zero-bubble")
"""Names of the schedules."""


class Action(NamedTuple):
    """A pass of a stage over a microbatch: F, B or W; `chunk` counts the stage's parts of the model."""

    kind: Literal["F", "B", "W"]
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """Write it as diagrams do: ``F3``, ``B0.1``."""
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


def order(
    schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1
) -> list[Action]:
    """Return what `stage` of `stages` does, in order."""
    if schedule not in SCHEDULES:
        raise InputError(
            f"pipeline schedule {schedule!r}: unknown; use one of {', '.join(SCHEDULES)}"
        )
    if chunks > 1 and schedule != "interleaved":
        raise InputError(
            f"pipeline schedule {schedule}: {chunks} chunks per stage need schedule interleaved"
        )
    m = microbatches
    forward = [Action("F", i) for i in range(m)]
    backward = [Action("B", i) for i in range(m)]
    if schedule == "naive":
        return [action for pair in zip(forward, backward, strict=True) for action in pair]
    if schedule == "gpipe":
        return forward + backward[::-1]
    if schedule in ("1f1b", "pipedream"):
        return _alternate(forward, backward, min(stages - stage - 1, m))
    if schedule == "zero-bubble":
        return _zero_bubble(stage, stages, m)
    return _interleaved(stage, stages, m, chunks)


def _alternate(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forward passes, then one forward and one backward pass in turn."""
    found = forward[:warm_up]
    for index in range(len(forward) - warm_up):
        found += [forward[warm_up + index], backward[index]]
    return found + backward[len(forward) - warm_up :]


def _interleaved(stage: int, stages: int, m: int, chunks: int) -> list[Action]:
    if chunks > 1 and m % stages:
        raise InputError(
            f"interleaved schedule: {m} microbatches are no multiple of {stages} stages; change the batch or use 1f1b"
        )
    if chunks == 1:
        return order("1f1b", stage, stages, m)
    total = m * chunks

    def place(kind: Literal["F", "B"], index: int) -> Action:
        group, inside = divmod(index, stages * chunks)
        chunk, microbatch = divmod(inside, stages)
        return Action(
            kind, group * stages + microbatch, chunk if kind == "F" else chunks - 1 - chunk
        )

    forward = [place("F", index) for index in range(total)]
    backward = [place("B", index) for index in range(total)]
    warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    if m == stages:
        warm_up = total
    return _alternate(forward, backward, warm_up)


def _zero_bubble(stage: int, stages: int, m: int) -> list[Action]:
    """Return ZB-H1: 1F1B whose weight gradients fill the gaps; no stage holds more than the first of 1F1B."""
    base = order("1f1b", stage, stages, m)
    found: list[Action] = []
    waiting: list[int] = []
    done = 0
    for action in base:
        found.append(action)
        if action.kind == "B":
            done += 1
            waiting.append(action.microbatch)
            # Stage s may be s weight gradients behind: its last input gradients come that much earlier.
            if len(waiting) > stage or done == m:
                found.append(Action("W", waiting.pop(0)))
    return found + [Action("W", index) for index in waiting]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Passes with times, on an ideal machine: nothing but passes takes time.

    Attributes
    ----------
    start, end : list of dict
        By stage: action -> slot.
    slots : int
        Length of the step.
    """

    start: list[dict[Action, int]]
    end: list[dict[Action, int]]
    slots: int

    def busy(self, stage: int) -> int:
        """Return the slots in which a stage works."""
        return sum(
            self.end[stage][action] - self.start[stage][action] for action in self.end[stage]
        )

    @property
    def idle(self) -> int:
        """Idle slots of all stages together."""
        return sum(self.slots - self.busy(stage) for stage in range(len(self.end)))

    @property
    def idle_fraction(self) -> float:
        """Idle slots of all slots."""
        return self.idle / (self.slots * len(self.end))


def timeline(
    orders: Sequence[Sequence[Action]], *, forward: int = 1, backward: int = 2, weight: int = 1
) -> Timeline:
    """Let the stages do their orders on an ideal machine; passes take these slots.

    With W in the orders `backward` is the time of the input gradients alone. Raises `InputError` if stages wait for
    each other.
    """
    stages = len(orders)
    length = {"F": forward, "B": backward, "W": weight}
    chunks = 1 + max((action.chunk for own in orders for action in own), default=0)
    start: list[dict[Action, int]] = [{} for _ in orders]
    end: list[dict[Action, int]] = [{} for _ in orders]
    at = [0] * stages
    clock = [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, own in enumerate(orders):
            while at[stage] < len(own):
                action = own[at[stage]]
                source = before(action, stage, stages, chunks)
                if source is not None and source[1] not in end[source[0]]:
                    break
                ready = end[source[0]][source[1]] if source is not None else 0
                start[stage][action] = max(clock[stage], ready)
                clock[stage] = end[stage][action] = start[stage][action] + length[action.kind]
                at[stage] += 1
                moved = True
    for stage, own in enumerate(orders):
        if at[stage] < len(own):
            raise InputError(
                f"pipeline orders: stage {stage} waits for ever to do {own[at[stage]]}"
            )
    return Timeline(start, end, max(clock))


def before(action: Action, stage: int, stages: int, chunks: int) -> tuple[int, Action] | None:
    """Return the stage and action whose result an action needs, or None; weight gradients need their own stage's B."""
    kind, microbatch, chunk = action
    if kind == "W":
        return stage, Action("B", microbatch, chunk)
    if kind == "F":
        if stage > 0:
            return stage - 1, Action("F", microbatch, chunk)
        return (stages - 1, Action("F", microbatch, chunk - 1)) if chunk else None
    if stage < stages - 1:
        return stage + 1, Action("B", microbatch, chunk)
    if chunk < chunks - 1:
        return 0, Action("B", microbatch, chunk + 1)
    return stage, Action("F", microbatch, chunk)
