"""Writer of complete steps: passes of every pipeline stage, messages between stages, optimiser.

**Hardware** Megatron-LM ``schedules.py`` and ``p2p_communication.py``. Between two passes a stage sends
the result of the last one and receives the input of the next one. *Blocking*: the next pass starts when
all of this is complete, and a message moves when both sides are ready. *Overlapped*: a message moves as
soon as its data exist, and only the pass that needs it waits. **Model** The same. With tensor
parallelism every rank sends its part, and the receivers gather (``scatter_gather``), unless sequence
parallelism leaves parts anyway. **Not modelled** SMs held by receives that only wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.workload.parallel.checkpoints import (
    Saving,
    checkpoint_of,
    save_behind,
)
from clusim.workload.parallel.exchanges import Exchange
from clusim.workload.parallel.passes import Message, PassWriter
from clusim.workload.pipeline_schedules import CUT, Action, parallel_places


class _Way(NamedTuple):
    """Common part of messages between two stages: bytes per rank, stream, senders, receivers."""

    size_bytes: int
    stream: str
    groups: list[list[tuple[int, int]]]


@dataclass
class StepWriter(PassWriter):
    """Writer of consecutive steps.

    Attributes
    ----------
    steps : list of dict
        Last tasks by step and rank.
    """

    steps: list[dict[int, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read the pipeline settings of the plan."""
        super().__post_init__()
        pipeline, host = self.plan.workload.pipeline, self.emitter.host
        asynchronous = pipeline.schedule in (
            "interleaved",
            "pipedream",
            "wavefront",
            *CUT,
        )
        self.blocking = (
            pipeline.messages or ("overlapped" if asynchronous else "blocking")
        ) == "blocking"
        self.waits = host.host.framework.waits if host is not None else "step"
        self._posted: set[Message] = set()
        self._sent: dict[Message, dict[int, tuple[int, ...]]] = {}
        self._ready: set[int] = set()
        self._summed: set[int] = set()
        self._ways: dict[tuple[int, int, str, int], _Way] = {}

    def write(self, steps: int, *, saved: bool = False) -> None:
        """Write a number of steps, the last one with the workload's checkpoint if it is `saved`."""
        if self.plan.schedule == "pipedream":
            self._write(self.plan.microbatches * steps, steps)
            return
        for index in range(steps):
            if saved and index == steps - 1:
                self._write_saved()
            else:
                self._write(self.plan.microbatches, 1)

    def _write_saved(self) -> None:
        """Write a step with a checkpoint, during its passes or after it."""
        checkpoint, spec = checkpoint_of(self.plan), self.plan.workload.checkpoints
        assert checkpoint is not None
        assert spec is not None
        if spec.overlap:
            self.saving = [
                Saving(self.emitter, stage, checkpoint)
                for stage in range(self.stages)
            ]
        self._write(self.plan.microbatches, 1)
        self.saving = []
        if spec.overlap:
            return
        save_behind(self.emitter, checkpoint, is_written=not spec.asynchronous)
        for stage in range(self.stages):
            ranks = self.emitter.ranks(stage)
            self.emitter.synchronize(ranks, "end of checkpoint")
            self.steps[-1] |= {
                rank: self.emitter.tail.get(rank, ()) for rank in ranks
            }

    def _write(self, microbatches: int, steps: int) -> None:
        """Write one step, or several without a flush in between (PipeDream)."""
        schedule = self.plan.schedule
        orders = [
            self.plan.passes(stage, microbatches) for stage in range(self.stages)
        ]
        self._posted, self._sent, self._ready, self._summed = set(), {}, set(), set()
        for data in self.data:
            data.begin()
        for order, saving in zip(orders, self.saving, strict=False):
            saving.begin(order)
        running = [
            self._stage(stage, orders[stage], steps) for stage in range(self.stages)
        ]
        alive = set(range(self.stages))
        ends: list[dict[int, tuple[int, ...]]] = [{} for _ in range(steps)]
        while alive:
            moved, progress = False, self._progress()
            for stage in sorted(alive):
                for task in running[stage]:
                    if task is None:
                        break
                    moved = True
                    if task >= 0:
                        ends[task] |= {
                            r: self.emitter.tail.get(r, ())
                            for r in self.emitter.ranks(stage)
                        }
                else:
                    alive.discard(stage)
                    moved = True
            if not moved and progress == self._progress():
                raise InputError(
                    f"pipeline schedule {schedule}: stages {sorted(alive)} wait for each other"
                )
        self.steps += ends

    def _progress(self) -> tuple[int, int, int]:
        """Return the progress of all stages: messages posted, messages sent, buckets posted."""
        return (
            len(self._posted),
            len(self._sent),
            sum(board.given for board in self.boards),
        )

    def _stage(
        self, stage: int, actions: list[Action], steps: int
    ) -> Iterator[int | None]:
        """Write the passes of a stage; yield None to wait for others, a step number at its end."""
        per_step = len(actions) // steps
        done_backward = 0
        sends: list[Message] = []
        last = {
            ("W" if act.kind == "BW" else act.kind, act.chunk): index
            for index, act in enumerate(actions)
            if act.kind != "F"
        }
        lasts = set(last.values())
        pipedream = self.plan.schedule == "pipedream"
        pairs = parallel_places(
            self.plan.schedule, stage, self.stages, self.plan.microbatches
        )
        for index, action in enumerate(actions):
            if index - 1 in pairs:
                continue
            group = actions[index : index + 2] if index in pairs else [action]
            receives = self._needs(stage, group)
            if sends or receives:
                yield from self._exchange(sends, receives)
            for act in group:
                self._microbatch(stage, act)
            is_last = pipedream or index in lasts
            if len(group) == 2:
                self._pair(stage, group, [is_last, pipedream or index + 1 in lasts])
            else:
                self._pass(stage, action, is_last)
            if self.waits == "pass":
                self.emitter.synchronize(self.emitter.ranks(stage))
            sends = self._makes(stage, group)
            if not self.blocking:
                for message in sends:
                    self._send(message)
                sends = []
            yield -1
            if pipedream and action.kind == "B":
                # Every backward pass is followed by a step of the optimiser, on the newest weights.
                self.data[stage].post()
                while not self.data[stage].ready():
                    yield None
                self.data[stage].finish()
                self.data[stage].begin()
                done_backward += 1
                if done_backward % (per_step // 2) == 0:
                    yield done_backward // (per_step // 2) - 1
        yield from self._exchange(sends, [])
        if not pipedream:
            self.data[stage].complete()
            yield from self._sum_copies(stage)
            self._sum_whole(stage)
            yield from self._tie(stage)
            self._before_optimizer(stage)
            for saving in self.saving[stage : stage + 1]:
                saving.end()
            self.data[stage].step()
            self.emitter.synchronize(self.emitter.ranks(stage), "end of step")
            yield 0

    def _microbatch(self, stage: int, action: Action) -> None:
        """Add host work of a microbatch outside its layers: data (first stage), loss (last stage)."""
        if self.emitter.host is None or action.kind != "F" or action.chunk:
            return
        position = self.crew.stage(stage)
        ends = (position == 0) + (position == self.crew.stages - 1)
        time_ps = self.emitter.host.host.microbatch_ps * (1 + ends) // 3
        self.emitter.busy(
            self.emitter.ranks(stage), time_ps, f"microbatch {action.microbatch}"
        )

    def _before_optimizer(self, stage: int) -> None:
        """Add host work before the optimiser: wait for the gradient norm, pass over tensors."""
        if self.emitter.host is None:
            return
        host, ranks = self.emitter.host.host, self.emitter.ranks(stage)
        self.emitter.synchronize(ranks)
        tensors = sum(
            len(layer.tensors)
            for chunk in self.plan.stages[stage]
            for layer in chunk
        )
        self.emitter.busy(
            ranks, host.step_ps + tensors * host.tensor_ps, "optimizer"
        )

    def _sum_whole(self, stage: int) -> None:
        """Sum gradients of weights that tensor parallelism does not split over the tensor ranks."""
        size = self.plan.whole_bytes(stage)
        if not size:
            return
        dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
        exchange = Exchange(
            "tensor", "allreduce", size, "norm gradients", dtype=dtype
        )
        groups = self.emitter.groups("tensor", stage)
        self.emitter.join(self.emitter.collectives(exchange, groups))

    def _sum_copies(self, stage: int) -> Iterator[int | None]:
        """Sum the gradients of the two model copies in opposite stages."""
        size, other = self.plan.copied_bytes(stage), self.stages - 1 - stage
        if not size:
            return
        self._summed.add(stage)
        if other in self._summed:
            dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
            ends = (
                self.mesh.stage(min(stage, other)),
                self.mesh.stage(max(stage, other)),
            )
            exchange = Exchange("data", "allreduce", size, "copies", dtype=dtype)
            pairs = list(zip(*ends, strict=True))
            self.emitter.join(self.emitter.collectives(exchange, pairs, "copies"))
        while other not in self._summed:
            yield None

    def _tie(self, stage: int) -> Iterator[int | None]:
        """Sum the gradients of an embedding with copies in the first and the last stage."""
        size, ends = self.plan.tied_bytes, (0, self.stages - 1)
        if not size or stage not in ends:
            return
        self._ready.add(stage)
        if len(self._ready) == len(ends):
            dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
            first, last = (self.mesh.stage(end) for end in ends)
            exchange = Exchange(
                "embedding", "allreduce", size, "tied embedding", dtype=dtype
            )
            pairs = list(zip(first, last, strict=True))
            self.emitter.join(self.emitter.collectives(exchange, pairs))
        while len(self._ready) < len(ends):
            yield None

    def _makes(self, stage: int, actions: Sequence[Action]) -> list[Message]:
        """Return the messages with the results of passes for other stages."""
        result: list[Message] = []
        for action in actions:
            output = action.gives
            target = self._stage_ends(stage, output)[1]
            if target is not None:
                worker = self.boards[target[0]].worker(output.microbatch)
                result.append(
                    (
                        stage,
                        worker,
                        Action(output.kind, output.microbatch, target[1]),
                    )
                )
        return result

    def _exchange(
        self, sends: list[Message], receives: list[Message]
    ) -> Iterator[int | None]:
        """Send and receive between two passes, after a wait for the other sides."""
        if self.blocking:
            for message in (*sends, *receives):
                if message in self._posted:
                    self._send(message)
                else:
                    self._posted.add(message)
        for message in (*sends, *receives) if self.blocking else receives:
            while message not in self._sent:
                yield None
            received = not self.blocking or message in receives
            ranks = self.emitter.ranks(message[1] if received else message[0])
            done = self._sent[message]
            self.emitter.join({rank: done[rank] for rank in ranks})
            if self.waits in ("receive", "pass") and received and self.blocking:
                self.emitter.synchronize(ranks)

    def _send(self, message: Message) -> None:
        """Write a message between all ranks of two stages."""
        source, target, action = message
        key = source, target, action.kind, action.chunk
        if key not in self._ways:
            size = self._part(self._size(source, target, action))
            stream = f"pipeline {source}>{target} {action.kind}"
            self._ways[key] = _Way(size, stream, self._pairs(source, target))
        size, stream, groups = self._ways[key]
        done: dict[int, tuple[int, ...]] = {}
        for pairs in groups:
            done |= self.emitter.between(
                pairs, size, action, stream, both=self.blocking
            )
        self._sent[message] = done

    def _part(self, size: int) -> int:
        """Return the bytes that one rank sends of a message of `size` bytes."""
        plan, tensor = self.plan, self.mesh.tensor
        cut = (
            not plan.shard.sequence_parallel
            and plan.workload.pipeline.scatter_gather
        )
        return -(-size // tensor) if tensor > 1 and cut else size

    def _pairs(self, source: int, target: int) -> list[list[tuple[int, int]]]:
        """Return the rank pairs of two stages, grouped by the senders that communicate."""
        to = dict(zip(self.mesh.stage(source), self.mesh.stage(target), strict=True))
        return [
            [(src, to[src]) for src in senders]
            for senders in self.emitter.coupled_ranks(source)
        ]
