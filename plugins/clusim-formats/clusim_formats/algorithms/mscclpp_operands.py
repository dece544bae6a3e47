"""Operands of an MSCCL++ plan: the grains of its operations, and their places in buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusim.base.errors import InputError
from clusim.formats.algorithms.layout import SMALL, Place
from clusim_formats.algorithms.mscclpp_json import MscclppOp, MscclppPlan, Ref
from clusim_formats.algorithms.mscclpp_parts import (
    Knowledge,
    MscclppBlock,
    MscclppTask,
)


class MscclppOperands(Knowledge):
    """Thread blocks of a plan, and operands of their operations; a chunk has `grain` grains."""

    def __init__(
        self,
        plan: MscclppPlan,
        grain: int,
        batch: int,
        turns: dict[tuple[int, int], int],
    ) -> None:
        super().__init__(batch)
        self.plan, self.grain, self.turns = plan, grain, turns
        for key, block in plan.thread_blocks().items():
            self.blocks[key] = MscclppBlock(key, self._tasks(block.ops))

    def _tasks(self, ops: Iterable[MscclppOp]) -> list[MscclppTask]:
        tasks = []
        for op in ops:
            if op.name != "pipeline":
                tasks.append(MscclppTask(op))
                continue
            turns = self.turns[op.unit_bytes, op.unit_chunks]
            grains = op.unit_chunks * self.grain // turns
            tasks += [
                MscclppTask(one, turn, grains)
                for turn in range(turns)
                for one in op.inner
            ]
        return tasks

    def _span(self, task: MscclppTask, ref: Ref) -> tuple[int, int]:
        """Return the first grain of an operand in its buffer, and its number of grains."""
        total = ref.size * self.grain
        low, high = (
            total * part // task.op.parts
            for part in (task.op.part, task.op.part + 1)
        )
        if task.grains:
            low, high = (
                low + task.turn * task.grains,
                min(low + (task.turn + 1) * task.grains, high),
            )
        return ref.index * self.grain + low, max(0, high - low)

    def _place(self, ref: Ref, grain: int) -> Place:
        """Return the buffer of a grain, and its position in the buffers of the call."""
        if ref.buffer == "s":
            return "scratch", grain
        plan = self.plan
        count = plan.gpus[ref.gpu].chunks[ref.buffer]
        if (ref.buffer, plan.operation) in SMALL and 0 < count < plan.chunks:
            grain += ref.gpu * (plan.chunks // len(plan.gpus)) * self.grain
        return "output" if plan.in_place or ref.buffer == "o" else "input", grain

    def _target(self, task: MscclppTask, ref: Ref) -> tuple[Place, int]:
        first, count = self._span(task, ref)
        place = self._place(ref, first)
        if place[0] == "input":
            raise self.bad(
                task.op, "writes to an input; only a plan with inplace=true may"
            )
        return place, count

    def bad(self, op: MscclppOp, message: str) -> InputError:
        """Return an error that names the line of an operation."""
        return self.plan.bad(op.line, f"{op.name}: {message}")

    def _read_often(self) -> set[tuple[int, int]]:
        """Return the grains of scratch buffers with packets that are read more often than written."""
        balance: Counter[tuple[int, int]] = Counter()
        for key, block in self.blocks.items():
            for task in block.tasks:
                for refs, change in ((task.op.sources, -1), (task.op.targets, 1)):
                    for ref in refs:
                        if ref.kind in "pP":
                            low, count = self._span(task, ref)
                            gpu = ref.gpu if ref.kind == "P" else key[0]
                            for grain in range(low, low + count):
                                balance[gpu, grain] += change
        return {where for where, remaining in balance.items() if remaining < 0}

    # Going through
