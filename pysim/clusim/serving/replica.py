"""A replica of a served model: its schedulers, and the stages that its steps pass.

**Model** A replica has one scheduler for each copy of attention, which step together: a step lasts until the
slowest copy ends, and experts get the tokens of all. With a pipeline, as many batches are in flight as there are
stages; a batch passes the stages one after the other, and a stage serves one batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from clusim.hardware.engines import ServingEngine
from clusim.serving.forward import StepShape
from clusim.serving.scheduler import Portion, Sequence, SequenceScheduler
from clusim.serving.times import (
    ServedStepTime,
    ServedStepTimes,
    pad_tokens,
    round_tokens,
)
from clusim.serving.verdict import PROMPTS, StepLedger, add_times


@dataclass(frozen=True, slots=True)
class ServingHost:
    """Times of the engine's host [ps]: of a step, of a sequence in it, of a request."""

    step_ps: int
    sequence_ps: int
    request_ps: int

    @classmethod
    def of(cls, engine: ServingEngine) -> ServingHost:
        """Return the figures of an engine."""
        return cls(*map(engine.host_ps, ("step", "sequence", "request")))


class StepRecord(NamedTuple):
    """A step of a replica.

    Attributes
    ----------
    start_ps, end_ps : int
        Its time, or of equal steps one after the other [ps].
    number : int
        Equal steps.
    decodes, prompt_tokens : int
        Sequences that decode, and tokens of prompts, on all copies of attention.
    cached : int
        Tokens in the caches of decoding sequences.
    used_blocks : int
        Blocks in use.
    """

    start_ps: int
    end_ps: int
    number: int
    decodes: int
    prompt_tokens: int
    cached: int
    used_blocks: int


@dataclass(eq=False)
class FlightBatch:
    """Sequences of a batch in flight: a scheduler for each copy of attention."""

    schedulers: list[SequenceScheduler]
    portions: list[list[Portion]] = field(default_factory=list)
    is_busy: bool = False
    steps: int = 1
    step_ps: int = 0

    @property
    def sequences(self) -> int:
        """Return the number of its sequences."""
        return sum(len(item.running) + len(item.waiting) for item in self.schedulers)


@dataclass(eq=False)
class Replica:
    """Batches in flight on the ranks of a replica.

    Attributes
    ----------
    spent_s : dict
        Time of all steps by part [s].
    ledger : StepLedger
        Time of sequences in steps.
    """

    times: ServedStepTimes
    host: ServingHost
    batches: list[FlightBatch]
    steps: list[StepRecord] = field(default_factory=list)
    spent_s: dict[str, float] = field(default_factory=dict)
    ledger: StepLedger = field(default_factory=StepLedger)
    _stages_ps: list[int] = field(default_factory=list)

    def add(self, sequence: Sequence) -> FlightBatch:
        """Assign a request to the copy of attention with the fewest sequences; return its batch."""
        batch = min(self.batches, key=lambda item: item.sequences)
        scheduler = min(
            batch.schedulers, key=lambda item: len(item.running) + len(item.waiting)
        )
        scheduler.add(sequence)
        return batch

    @property
    def sequences(self) -> int:
        """Return the number of its sequences."""
        return sum(batch.sequences for batch in self.batches)

    def place_of(self, number: int) -> int:
        """Return the first rank of the copy of attention of a request, in turn; **assumed**, for its transfer."""
        layout = self.times.forward.layout
        return self.times.first + number % layout.attention_data * layout.tensor

    def start_step(
        self, batch: FlightBatch, now_ps: int, next_ps: int | None = None
    ) -> int | None:
        """Begin the next steps of a batch; return their end [ps], or None without work.

        Equal steps of decoding sequences are one, up to the next event of the clock [ps], the end of a sequence, and
        the cache's limits.
        """
        batch.portions = [item.plan_step() for item in batch.schedulers]
        count = sum(map(len, batch.portions))
        if not count:
            return None
        shapes = shapes_of(batch.portions)
        parts = max(map(self.times.find, shapes), key=lambda time: time.time_ps)
        host_ps = self.host.step_ps + count * self.host.sequence_ps
        batch.step_ps = self._pass_stages(now_ps, parts.time_ps) + host_ps - now_ps
        batch.steps = self._equal_steps(batch, shapes, now_ps, next_ps)
        end_ps = now_ps + batch.steps * batch.step_ps
        if batch.steps > 1:
            self._stages_ps = [end_ps - host_ps]
        self._note(batch, (now_ps, end_ps), parts, host_ps)
        batch.is_busy = True
        return end_ps

    def _equal_steps(
        self,
        batch: FlightBatch,
        shapes: list[StepShape],
        now_ps: int,
        next_ps: int | None,
    ) -> int:
        """Return the number of steps that are equal, and allocate the cache of all."""
        every = [portion for portions in batch.portions for portion in portions]
        pipelined = self.times.forward.layout.pipeline > 1
        if pipelined or not all(portion.decodes for portion in every):
            return 1
        steps = min(item.sequence.output - item.sequence.generated for item in every)
        if next_ps is not None:
            steps = min(steps, 1 + max(0, next_ps - 1 - now_ps) // batch.step_ps)
        for shape in shapes:
            while steps > 1 and round_tokens(
                shape.cached + (steps - 1) * shape.sequences
            ) != round_tokens(shape.cached):
                steps = steps * 3 // 4
        rows = zip(batch.schedulers, batch.portions, strict=True)
        return min(item.extend(portions, max(1, steps)) for item, portions in rows)

    def end_step(self, batch: FlightBatch, now_ps: int) -> list[Sequence]:
        """End the steps of a batch; return the complete sequences."""
        batch.is_busy = False
        rows = zip(batch.schedulers, batch.portions, strict=True)
        ends = range(
            now_ps - (batch.steps - 1) * batch.step_ps, now_ps + 1, batch.step_ps
        )
        return [
            sequence
            for scheduler, portions in rows
            for sequence in scheduler.finish_steps(portions, ends)
        ]

    def _pass_stages(self, now_ps: int, stage_ps: int) -> int:
        """Return the time at which a batch has passed all stages [ps]."""
        stages = self.times.forward.layout.pipeline
        self._stages_ps = self._stages_ps or [0] * stages
        for stage in range(stages):
            now_ps = max(now_ps, self._stages_ps[stage]) + stage_ps
            self._stages_ps[stage] = now_ps
        return now_ps

    def _note(
        self,
        batch: FlightBatch,
        interval: tuple[int, int],
        parts: ServedStepTime,
        host_ps: int,
    ) -> None:
        stages = self.times.forward.layout.pipeline
        host = {"host": host_ps * 1e-12}
        add_times(self.spent_s, parts, batch.steps * stages)
        add_times(self.spent_s, host, batch.steps)
        self._note_waits(batch)
        every = [portion for portions in batch.portions for portion in portions]
        decoding = [portion.sequence for portion in every if portion.decodes]
        if decoding:
            decode = parts if len(decoding) == len(every) else self._decoding(batch)
            more_s = stages * (parts.time_ps - decode.time_ps) * 1e-12
            passed = {name: stages * seconds for name, seconds in decode.items()}
            parts_s = {**passed, **host, PROMPTS: more_s}
            self.ledger.add_decoding(batch.steps, len(decoding), parts_s)
        self.steps.append(
            StepRecord(
                *interval,
                batch.steps,
                len(decoding),
                sum(portion.tokens for portion in every if not portion.decodes),
                sum(sequence.computed for sequence in decoding),
                sum(item.used_blocks for item in batch.schedulers),
            )
        )

    def _decoding(self, batch: FlightBatch) -> ServedStepTime:
        """Return the time of a step of a batch without its prompts."""
        rows = [
            [portion for portion in portions if portion.decodes]
            for portions in batch.portions
        ]
        return max(
            map(self.times.find, shapes_of(rows)), key=lambda one: one.time_ps
        )

    def _note_waits(self, batch: FlightBatch) -> None:
        """Add a step to the times of waiting sequences and of prompts without a token."""
        step_ps = batch.steps * batch.step_ps
        for item in batch.schedulers:
            count = sum(not sequence.generated for sequence in item.waiting)
            add_times(self.ledger.waits_s, {item.stopped: count * step_ps * 1e-12})
        for portions in batch.portions:
            for sequence, _ in portions:
                if not sequence.generated:
                    sequence.prompt_ps += step_ps


def shapes_of(rows: list[list[Portion]]) -> list[StepShape]:
    """Return the shape of a step on each copy of attention; all have the tokens of the fullest."""
    shapes = [_shape(portions) for portions in rows]
    fullest = max(shape.tokens for shape in shapes)
    everywhere = sum(shape.tokens for shape in shapes)
    return [
        shape._replace(tokens=fullest, everywhere=everywhere) for shape in shapes
    ]


def _shape(portions: list[Portion]) -> StepShape:
    decoding = [portion for portion in portions if portion.decodes]
    chunks = tuple(
        (portion.tokens, portion.sequence.computed)
        for portion in portions
        if not portion.decodes
    )
    tokens = sum(portion.tokens for portion in portions)
    return StepShape(
        tokens=pad_tokens(tokens),
        sequences=len(decoding),
        cached=sum(portion.sequence.computed for portion in decoding),
        chunks=chunks,
        outputs=sum(portion.completes for portion in portions),
        everywhere=tokens,
    )
