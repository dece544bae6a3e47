"""Pipeline schedules as lists: the forward and backward passes of a stage, in order.

**Hardware** Megatron-LM ``schedules.py``; GPipe (arXiv 1811.06965); PipeDream (SOSP 2019); zero bubble
(arXiv 2401.10241). **Model** The same orders. F is a forward pass, B a backward pass; schedules that
split it have B (input gradients), W (weight gradients) and BW (both).

**Two parts of the model per stage** (ZB-V, DualPipe, DualPipeV). **Hardware** ZB-V (arXiv 2401.10241,
2405.15362): the parts run down the stages and back up, a V, so that the first stage also has the last
part. DualPipe (arXiv 2412.19437): microbatches enter at both ends; each stage has a copy of the part of
the opposite stage. DualPipeV is one half of it folded into a V. A forward pass and a backward pass of
opposite directions run in parallel, so that each computes while the other communicates. **Model** The
orders of the authors' implementations (and of PyTorch's pipelining).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, pairwise
from typing import Literal, NamedTuple

from clusim.base.errors import InputError

Kind = Literal["F", "B", "W", "BW"]

Pass = tuple[Kind, int, int]
"""Action, microbatch, and part of the stage."""


def zero_bubble_v(stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Return the passes of a ZB-V stage; at most as many in flight as in 1F1B's first stage."""
    result: list[Pass] = []
    kinds: tuple[Kind, ...] = ("F", "B", "W")
    numbers = {(kind, part): count() for kind in kinds for part in (0, 1)}
    done = {0: 0, 1: 0}

    def add(kind: Kind, part: int) -> None:
        result.append((kind, next(numbers[kind, part]), part))
        if kind == "F":
            done[part] += 1

    # Microbatches too few to fill the pipeline are the first ones of a number that fills it.
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
        for _ in range(
            filled - sum(1 for item in result if item[0] == "W" and item[2] == part)
        ):
            add("W", part)
    return [item for item in result if item[1] < microbatches]


@dataclass
class TwoWays:
    """Writer of DualPipe (`half`) or DualPipeV for one stage.

    Attributes
    ----------
    passes : list of Pass
        Passes of the stage, in order.
    beside : set of int
        Places of forward passes that run in parallel to the backward pass after them.
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
            # Middle stages have just computed the input of the first backward pass, and forward it first.
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
        """Add a pass; in the second half of the stages, input from the near end travels up."""
        turned = self.half and 2 * self.stage >= self.stages
        part = 1 - phase if turned else phase
        self.passes.append(
            (kind, number + self._each * (part if self.half else 0), part)
        )

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


SCHEDULES = (
    "naive",
    "gpipe",
    "1f1b",
    "interleaved",
    "pipedream",
    "zero-bubble",
    "zb-v",
    "dualpipe",
    "dualpipe-v",
)
"""Names of the schedules."""

CUT = ("zero-bubble", "zb-v", "dualpipe", "dualpipe-v")
"""Schedules with separate passes for weight gradients."""

SHAPES: dict[str, Literal["v", "both"]] = {
    "zb-v": "v",
    "dualpipe-v": "v",
    "dualpipe": "both",
}
"""Order of the two parts of a stage, by schedule."""


class Action(NamedTuple):
    """Pass of a stage over a microbatch: F, B, W or BW; `chunk` is the stage's model part."""

    kind: Literal["F", "B", "W", "BW"]
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """Return the notation of diagrams: ``F3``, ``B0.1``."""
        return f"{self.kind}{self.microbatch}" + (
            f".{self.chunk}" if self.chunk else ""
        )

    @property
    def gives(self) -> Action:
        """Return the pass as its consumers identify it: any backward pass yields input gradients."""
        return self._replace(kind="B") if self.kind == "BW" else self


class StageLayout(NamedTuple):
    """Parts of the model by stage, and their order.

    ``round``: parts cycle through the stages; ``v``: down the stages and back up; ``both``: each stage has
    one part of a model that runs down and one of a copy that runs up.
    """

    stages: int
    chunks: int = 1
    shape: Literal["round", "v", "both"] = "round"

    def part(self, stage: int, chunk: int) -> int:
        """Return the number of a part in the order of the model."""
        back = self.shape != "round" and chunk % 2
        low = 0 if self.shape == "both" else chunk * self.stages
        return low + (self.stages - 1 - stage if back else stage)

    @property
    def parts(self) -> int:
        """Parts that the model is divided into."""
        return self.stages if self.shape == "both" else self.stages * self.chunks

    def next(self, stage: int, chunk: int, step: int = 1) -> tuple[int, int] | None:
        """Return stage and chunk of the part `step` places further, or None if it does not exist."""
        next_part = self.part(stage, chunk) + step
        if not 0 <= next_part < self.parts:
            return None
        next_chunk = chunk if self.shape == "both" else next_part // self.stages
        index = next_part % self.stages
        back = self.shape != "round" and next_chunk % 2
        return (self.stages - 1 - index if back else index), next_chunk


class Crew(NamedTuple):
    """Workers of each pipeline stage, which alternate over microbatches (PipeDream's 1F1B-RR)."""

    replicas: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.replicas)

    def stage(self, worker: int) -> int:
        """Return the stage of a worker."""
        return next(s for s in range(self.stages) if worker < self.first(s + 1))

    def first(self, stage: int) -> int:
        """Return the first worker of a stage."""
        return sum(self.replicas[:stage])

    def of(self, worker: int) -> range:
        """Return the workers of a worker's stage."""
        stage = self.stage(worker)
        return range(self.first(stage), self.first(stage + 1))

    def ahead(self, worker: int) -> int:
        """Return the forward passes before the first backward pass: enough to fill later stages."""
        stage = self.stage(worker)
        return -(-sum(self.replicas[stage + 1 :]) // self.replicas[stage])


def round_robin(crew: Crew, worker: int, microbatches: int) -> list[Action]:
    """Return the actions of a worker: 1F1B with its microbatches in round-robin order."""
    workers = crew.of(worker)
    microbatch_ids = range(worker - workers[0], microbatches, len(workers))
    forward, backward = (
        [Action("F", i) for i in microbatch_ids],
        [Action("B", i) for i in microbatch_ids],
    )
    return _alternate(
        forward, backward, min(crew.ahead(worker), len(microbatch_ids))
    )


def layout_of(schedule: str, stages: int, chunks: int = 1) -> StageLayout:
    """Return the places of the model's parts in a schedule."""
    shape = SHAPES.get(schedule)
    if shape is None or stages == 1:
        return StageLayout(stages, chunks)
    return StageLayout(stages, 2, shape)


def order(
    schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1
) -> list[Action]:
    """Return the actions of `stage` of `stages`, in order."""
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
        return [
            action for pair in zip(forward, backward, strict=True) for action in pair
        ]
    if schedule == "gpipe":
        return forward + backward[::-1]
    if schedule == "pipedream":
        return round_robin(Crew((1,) * stages), stage, m)
    if schedule == "1f1b":
        return _alternate(forward, backward, min(stages - stage - 1, m))
    if schedule == "zero-bubble":
        return _zero_bubble(stage, stages, m)
    if schedule in SHAPES:
        if stages == 1:
            return order("1f1b", stage, stages, m)
        if schedule == "zb-v":
            return [Action(*item) for item in zero_bubble_v(stage, stages, m)]
        return [
            Action(*item) for item in _two_ways(schedule, stage, stages, m).passes
        ]
    return _interleaved_schedule(stage, stages, m, chunks)


def waves(stage: int, stages: int, microbatches: int, pieces: int) -> list[Action]:
    """Return the actions of a recurrent network's stage; microbatches are sequence pieces.

    All pieces of a sequence run forwards before its last one runs backwards; the backward order is reversed.
    """
    wave = order("gpipe", stage, stages, pieces)
    return [
        action._replace(microbatch=first + action.microbatch)
        for first in range(0, microbatches, pieces)
        for action in wave
    ]


def parallel_places(
    schedule: str, stage: int, stages: int, microbatches: int
) -> set[int]:
    """Return the places where a forward pass runs in parallel to the backward pass after it."""
    if SHAPES.get(schedule) is None or schedule == "zb-v" or stages == 1:
        return set()
    return _two_ways(schedule, stage, stages, microbatches).beside


def _two_ways(schedule: str, stage: int, stages: int, m: int) -> TwoWays:
    half = schedule == "dualpipe"
    if half and (stages % 2 or m % 2):
        raise InputError(
            f"pipeline schedule dualpipe: {stages} stages and {m} microbatches; both must be even"
        )
    if m < 2 * stages:
        raise InputError(
            f"pipeline schedule {schedule}: {m} microbatches; {stages} stages need {2 * stages} at least"
        )
    return TwoWays(stage, stages, m, half)


def _alternate(
    forward: list[Action], backward: list[Action], warm_up: int
) -> list[Action]:
    """Return `warm_up` forward passes, then one forward and one backward pass in turn."""
    result = forward[:warm_up]
    for index in range(len(forward) - warm_up):
        result += [forward[warm_up + index], backward[index]]
    return result + backward[len(forward) - warm_up :]


def _interleaved_schedule(
    stage: int, stages: int, m: int, chunks: int
) -> list[Action]:
    if chunks == 1:
        return order("1f1b", stage, stages, m)
    total = m * chunks
    forward, backward = _in_groups(stages, m, chunks)
    largest = max(map(len, _groups(stages, m)))
    warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * largest, total)
    if m <= stages:
        warm_up = total
    return _alternate(forward, backward, warm_up)


@lru_cache(maxsize=8)
def _in_groups(
    stages: int, m: int, chunks: int
) -> tuple[list[Action], list[Action]]:
    """Return forward and backward passes of every stage, by chunk in groups of one per stage."""
    forward: list[Action] = []
    backward: list[Action] = []
    for group in _groups(stages, m):
        forward += [
            Action("F", index, chunk) for chunk in range(chunks) for index in group
        ]
        backward += [
            Action("B", index, chunk)
            for chunk in reversed(range(chunks))
            for index in group
        ]
    return forward, backward


def _groups(stages: int, m: int) -> list[range]:
    """Return the microbatches that a stage passes through a chunk before the next chunk.

    A group has one microbatch per stage; if that does not divide them, groups of about equal size with at
    least that number: with a smaller group a stage would wait for its next chunk.
    """
    count = max(1, m // stages)
    bounds = [number * m // count for number in range(count + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def _zero_bubble(stage: int, stages: int, m: int) -> list[Action]:
    """Return ZB-H1: 1F1B with weight gradients in its gaps.

    No stage holds more than the first one of 1F1B.
    """
    base = order("1f1b", stage, stages, m)
    result: list[Action] = []
    waiting: list[int] = []
    done = 0
    for action in base:
        result.append(action)
        if action.kind == "B":
            done += 1
            waiting.append(action.microbatch)
            # Stage s may defer s weight gradients: its last input gradients are earlier by that number.
            if len(waiting) > stage or done == m:
                result.append(Action("W", waiting.pop(0)))
    return result + [Action("W", index) for index in waiting]


def before(
    action: Action, stage: int, layout: StageLayout
) -> tuple[int, Action] | None:
    """Return the stage and action that produce the input of an action, or None.

    Weight gradients need B of the same stage.
    """
    kind, microbatch, chunk = action.gives
    if kind == "W":
        return stage, Action("B", microbatch, chunk)
    source = layout.next(stage, chunk, -1 if kind == "F" else 1)
    if source is not None:
        return source[0], Action(kind, microbatch, source[1])
    return None if kind == "F" else (stage, Action("F", microbatch, chunk))
