"""Writer of the passes of a pipeline stage: steps of its layers, by layer or in blocks that repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from clusim.workload.kernels import Kernel
from clusim.workload.layers import Beside, Comm, Layer, Step, Wait
from clusim.workload.parallel.checkpoints import (
    Away,
    Saving,
)
from clusim.workload.parallel.data import (
    Board,
    DataParallel,
    Replicated,
    Rounds,
    Served,
)
from clusim.workload.parallel.emitter import Block, Emitter
from clusim.workload.parallel.sharded import Sharded
from clusim.workload.pipeline_schedules import Action, before

BLOCK_LAYERS = 2
"""Most layers of a replicated block: the cost of simulating a block grows with them, and two equal layers
are within 0.5 % of many.
"""

Message = tuple[int, int, Action]
"""Sending stage, receiving stage, and the action at the receiver that needs it."""


@dataclass
class PassWriter:
    """Writer of single passes of pipeline stages."""

    emitter: Emitter

    def __post_init__(self) -> None:
        """Read the stages of the plan."""
        plan = self.emitter.plan
        self.plan, self.mesh = plan, plan.mesh
        self.stages, self.layout = plan.mesh.pipeline, plan.layout
        self.chunks = self.layout.chunks
        self.crew = plan.crew
        self.boards = [
            Board(self.crew.of(self.crew.first(s))) for s in range(self.crew.stages)
        ]
        self.data = [self._data_parallel(stage) for stage in range(self.stages)]
        self.away: list[Away] = []
        self.saving: list[Saving] = []
        if plan.workload.offload.activations:
            self.away = [Away(self.emitter, stage) for stage in range(self.stages)]
        self._around: dict[
            tuple[int, str, int], tuple[int | None, tuple[int, int] | None]
        ] = {}
        self._cut: dict[tuple[int, str, int], list[Block]] = {}
        self._written: dict[tuple[int, str, int], list[Step]] = {}

    def _data_parallel(self, stage: int) -> DataParallel:
        board = self.boards[self.crew.stage(stage)]
        if len(board.workers) > 1:
            return Rounds(self.emitter, stage, board)
        if self.plan.zero == 3:
            return Sharded(self.emitter, stage)
        if self.plan.servers:
            return Served(self.emitter, stage)
        return Replicated(self.emitter, stage)

    def _pass(self, stage: int, action: Action, last: bool) -> None:
        """Write a pass over a microbatch, by layer if data parallelism acts during it."""
        emitter, data = self.emitter, self.data[stage]
        kind, microbatch, chunk = action
        prefix = self._gather(stage, action)
        name = (
            f"{kind}{microbatch}.{chunk}"
            if self.chunks > 1
            else f"{kind}{microbatch}"
        )
        if not (self.away or data.writes_layers(kind, microbatch, last)):
            emitter.blocks(stage, self._blocks(stage, kind, chunk), prefix, name)
            return
        layers = self.plan.stages[stage][chunk]
        if prefix:
            emitter.run(stage, prefix, name)
        for index in (
            range(len(layers)) if kind == "F" else range(len(layers) - 1, -1, -1)
        ):
            data.before(kind, chunk, index)
            for away in self.away[stage : stage + 1]:
                away.before(action, index)
            if emitter.folds(in_parallel=True):
                key = (self._pass_key(kind), 0, (id(layers[index]),))
                emitter.block(stage, self._steps_of(layers[index], kind), key, name)
            else:
                emitter.run(stage, self._steps_of(layers[index], kind), name)
            for away in self.away[stage : stage + 1]:
                away.after(action, index)
            for saving in self.saving[stage : stage + 1]:
                saving.turn()
            if data.writes_layers(kind, microbatch, last):
                data.after(kind, chunk, index, last)

    def _blocks(self, stage: int, kind: str, chunk: int) -> list[Block]:
        """Return the steps of a pass in blocks, with keys that are the same for every microbatch."""
        key = stage, kind, chunk
        if key not in self._cut:
            layers = self.plan.stages[stage][chunk]
            forward = kind == "F"
            indices = (
                range(len(layers)) if forward else range(len(layers) - 1, -1, -1)
            )
            self._cut[key] = [
                (
                    [
                        s
                        for i in piece
                        for s in self._tagged_steps(layers[i], kind, i)
                    ],
                    (self._pass_key(kind), tuple(id(layers[i]) for i in piece)),
                )
                for piece in _pieces(layers, indices)
            ]
        return self._cut[key]

    def _tagged_steps(self, layer: Layer, kind: str, index: int) -> list[Step]:
        """Return the steps of a layer in a pass, tagged with its place; equal layers share steps."""
        key = id(layer), kind, index
        if key not in self._written:
            self._written[key] = _tag_steps(self._steps_of(layer, kind), index)
        return self._written[key]

    def _pass_key(self, kind: str) -> str:
        """Return the key that distinguishes passes with different steps."""
        return kind if kind == "F" or self.plan.splits_backward else "FB"

    def _steps_of(self, layer: Layer, kind: str) -> list[Step]:
        """Return the steps of a layer in a pass."""
        if kind == "F":
            return list(layer.forward)
        steps = self.emitter.backward(layer)
        return (
            _part(steps, kind)
            if self.plan.splits_backward and kind != "BW"
            else steps
        )

    def _pair(self, stage: int, actions: list[Action], last: list[bool]) -> None:
        """Write a forward beside a backward pass, in sequence if data parallelism acts during it."""
        data, emitter = self.data[stage], self.emitter
        rows: list[list[Step]] = []
        for action, is_last in zip(actions, last, strict=True):
            if self.away or data.writes_layers(
                action.kind, action.microbatch, is_last
            ):
                for act, own_last in zip(actions, last, strict=True):
                    self._pass(stage, act, own_last)
                return
            layers = self.plan.stages[stage][action.chunk]
            tagged: list[Step] = []
            for index in (
                range(len(layers))
                if action.kind == "F"
                else reversed(range(len(layers)))
            ):
                forward = action.kind == "F"
                steps = (
                    list(layers[index].forward)
                    if forward
                    else emitter.backward(layers[index])
                )
                tagged += _tag_steps(steps, f"{action.kind}{index}")
            rows.append([*self._gather(stage, action), *tagged])
        name = f"{actions[1]}&{actions[0]}"
        talk = all(any(isinstance(step, Comm) for step in row) for row in rows)
        steps = (
            [Beside(tuple(rows[0]), tuple(rows[1]))]
            if talk
            else [*rows[0], *rows[1]]
        )
        if not emitter.folds():
            emitter.run(stage, steps, name)
            return
        ids = [
            id(layer)
            for act in actions
            for layer in self.plan.stages[stage][act.chunk]
        ]
        emitter.block(
            stage, steps, ("pair", *(act.kind for act in actions), tuple(ids)), name
        )

    def _gather(self, stage: int, action: Action) -> list[Step]:
        """Return the gather of an input that arrived in parts from another stage."""
        plan = self.plan
        if plan.shard.tensor == 1 or plan.shard.sequence_parallel:
            return []
        needed = self._needs(stage, [action])
        if not needed or not plan.workload.pipeline.scatter_gather:
            return []
        return [Comm("tensor", "all_gather", self._size(*needed[0]), "stage input")]

    def _needs(self, stage: int, actions: Sequence[Action]) -> list[Message]:
        """Return the messages that passes need from others."""
        result: list[Message] = []
        for action in actions:
            output = action.gives
            source = self._stage_ends(stage, output)[0]
            if source is not None:
                result.append(
                    (self.boards[source].worker(output.microbatch), stage, output)
                )
        return result

    def _stage_ends(
        self, stage: int, action: Action
    ) -> tuple[int | None, tuple[int, int] | None]:
        """Return the input stage of a pass, and stage and part of its output; None: same stage."""
        key = stage, action.kind, action.chunk
        if key not in self._around:
            position, kind = self.crew.stage(stage), action.kind
            source = before(action, position, self.layout)
            step = 1 if kind == "F" else -1
            target = (
                None
                if kind == "W"
                else self.layout.next(position, action.chunk, step)
            )
            self._around[key] = (
                None if source is None or source[0] == position else source[0],
                None if target is None or target[0] == position else target,
            )
        return self._around[key]

    def _size(self, source: int, target: int, action: Action) -> int:
        """Return the bytes of a message of one rank before it is split."""
        if action.kind == "F":
            next_stage = self.layout.next(self.crew.stage(target), action.chunk, -1)
            assert next_stage is not None, (
                "received activations come from a previous chunk"
            )
            return max(16, self.plan.stages[source][next_stage[1]][-1].output_bytes)
        return max(16, self.plan.stages[target][action.chunk][-1].output_bytes)


def _pieces(layers: Sequence[Layer], indices: Iterable[int]) -> list[list[int]]:
    """Split a pass into blocks of at most `BLOCK_LAYERS` equal layers, so that blocks repeat."""
    result: list[list[int]] = []
    for index in indices:
        last = result[-1] if result else []
        if last and layers[last[-1]] is layers[index] and len(last) < BLOCK_LAYERS:
            last.append(index)
        else:
            result.append([index])
    return result


def _tag_steps(steps: list[Step], index: int | str) -> list[Step]:
    """Return steps with keys of open communication that are specific to one layer."""
    return [
        replace(step, key=f"{index}/{step.key}")
        if isinstance(step, Comm | Wait) and step.key
        else step
        for step in steps
    ]


def _part(steps: list[Step], kind: str) -> list[Step]:
    """Return the steps for inputs (B) or for weights (W)."""
    gradient = "weight" if kind == "W" else "input"
    if kind == "W":
        return [
            step
            for step in steps
            if isinstance(step, Kernel) and step.part == gradient
        ]
    return [
        step
        for step in steps
        if not (isinstance(step, Kernel) and step.part == "weight")
    ]
