"""MSCCL's XML files as schedules: run, checked with data, and timed.

**Hardware**: the interpreter of MSCCL and RCCL runs a thread block per ``tb``: a CTA with at most one connection to
send on and one to receive from. The data are cut into ``nchunksperloop`` equal chunks; a loop covers the next piece, as
large as the protocol's chunk, of every chunk. A step may wait until another thread block of its GPU has done a step of
the same loop. **Model**: the same; waits are flags inside the GPU, one per pair of thread blocks and wait. An in-place
plan runs out of place: the first access to a chunk reads the input, everything after it the output; where this needs a
copy that in-place hardware does not make (a local reduction into untouched input, a chunk that only stays where it is),
the copy is made and timed. **Not modelled**: joining up to ``cnt`` small chunks into one transfer; the fusing of
consecutive local reductions. **Parameters**: those of the plan and of its protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusim.errors import InputError
from clusim.fabric.model import Fabric
from clusim.recording.plans.msccl_xml import Block, MscclPlan, Step, read_plan
from clusim.schedule.builder import Part, Plan
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, Buffer, Prim, Schedule
from clusim.schedule.shapes import MAX_SLOTS, shape_of

__all__ = ["MscclPlan", "build", "load", "read_plan"]

Place = tuple[str, int]
"""A space (``data``, which is input and then output; ``input``, ``output``, ``scratch``) and a chunk of it."""

Key = tuple[int, int]
"""A GPU and one of its thread blocks."""


def load(path: str | Path, fabric: Fabric | None, bytes: int, **options: Any) -> Schedule:
    """Read an MSCCL XML file and return its schedule; `options` as of `build`."""
    return build(read_plan(path), fabric, bytes, **options)


def build(
    plan: MscclPlan,
    fabric: Fabric | None,
    bytes: int,
    *,
    ranks: Sequence[int] | None = None,
    dtype: str = "float32",
    redop: str = "sum",
    root: int | None = None,
    protocol: str = "",
) -> Schedule:
    """Return the schedule of a plan.

    Parameters
    ----------
    bytes : int
        Size as `clusim.schedule.CollectiveCall.bytes` has it; must be a multiple of the chunks of the plan.
    ranks : sequence of int, optional
        Ranks that play the plan's GPUs 0, 1, ...; by default all of the fabric.
    root : int, optional
        Rank that is the root; by default what the plan says, or its GPU 0.
    protocol : str
        Instead of the plan's.
    """
    size = len(plan.gpus)
    count = fabric.num_ranks if fabric is not None else size
    group = tuple(range(count)) if ranks is None else tuple(ranks)
    if len(group) != size:
        raise InputError(
            f"{plan.where}: a plan for {size} GPUs, and {len(group)} take part; choose {size} with --ranks"
        )
    unit = plan.chunks * element(dtype).size_bytes
    if bytes <= 0 or bytes % unit:
        near = max(unit, round(bytes / unit) * unit)
        raise InputError(
            f"{plan.where}: size {bytes} bytes cannot be cut into {plan.chunks} equal chunks of {dtype};"
            f" use a multiple of {unit}, e.g. {near}"
        )
    rooted = plan.operation in ("broadcast", "reduce", "gather", "scatter")
    if root is not None and root not in group:
        raise InputError(f"root {root}: is not among the ranks that take part")
    if rooted and root is not None and group.index(root) != plan.root:
        raise InputError(f"{plan.where}: its root is GPU {plan.root}, rank {group[plan.root]}")
    wanted = protocol or plan.protocol
    written = Plan.create(
        plan.operation,
        bytes,
        ranks=group,
        num_ranks=max(count, max(group, default=0) + 1),
        shape=shape_of(wanted, ring=True, fabric=fabric),
        dtype=dtype,
        redop=redop,
        root=group[plan.root] if rooted else ABSENT,
        algorithm="msccl",
        protocol=wanted,
        channels=plan.channels,
    )
    _Emitter(plan, written, _Program(plan).run()).emit(bytes // plan.chunks)
    return written.schedule()


@dataclass(slots=True)
class _Written:
    """A thread block as primitives; connections 0 and 1 are those to receive and send, flags follow."""

    prims: list[Prim] = field(default_factory=list)
    flags: list[tuple[Key, Key]] = field(default_factory=list)

    def flag(self, pair: tuple[Key, Key]) -> int:
        """Return the slot of a flag between two thread blocks."""
        if pair not in self.flags:
            self.flags.append(pair)
        return 2 + self.flags.index(pair)


class _Program:
    """Goes through all steps in an order that hardware may take, and writes primitives.

    It finds which chunks of an in-place buffer are still the untouched input, and steps that wait for ever.
    """

    def __init__(self, plan: MscclPlan) -> None:
        self.plan = plan
        aliased = plan.in_place and (
            plan.operation != "messages" or not any(gpu.outputs for gpu in plan.gpus)
        )
        self.spaces = ("data", "data") if aliased else ("input", "output")
        self.blocks: dict[Key, Block] = {
            (gpu, number): block
            for gpu, own in enumerate(plan.gpus)
            for number, block in enumerate(own.blocks)
        }
        self.at = dict.fromkeys(self.blocks, 0)
        self.out = {key: _Written() for key in self.blocks}
        self.touched: set[tuple[int, int]] = set()
        self.sent: dict[tuple[int, int, int], int] = {}
        self.waits, self.signals = self._flags()

    def _flags(self) -> tuple[set[tuple[Key, int]], dict[tuple[Key, int], list[Key]]]:
        """Return the steps that wait, and who waits for a step; waits that an earlier one covers are left out."""
        waits: set[tuple[Key, int]] = set()
        signals: dict[tuple[Key, int], list[Key]] = {}
        for key, block in self.blocks.items():
            reached: dict[int, int] = {}
            for number, step in enumerate(block.steps):
                if step.after is None or step.after[0] == key[1]:
                    self._check_own(step, key, number)
                    continue
                other, at = step.after
                if at > reached.get(other, -1):
                    reached[other] = at
                    waits.add((key, number))
                    signals.setdefault(((key[0], other), at), []).append(key)
        return waits, signals

    def _check_own(self, step: Step, key: Key, number: int) -> None:
        if step.after is not None and step.after[1] >= number:
            raise self._bad(step, key, f"waits for step {step.after[1]} of its own thread block")

    def _bad(self, step: Step, key: Key, what: str) -> InputError:
        return InputError(
            f"{self.plan.where}:{step.line}: gpu {key[0]} thread block {key[1]}: {what}"
        )

    def run(self) -> _Program:
        """Go through all steps."""
        queue = deque(self.blocks)
        asleep: dict[object, list[Key]] = {}
        while queue:
            key = queue.popleft()
            blocked = self._advance(key, queue, asleep)
            if blocked is not None:
                asleep.setdefault(blocked, []).append(key)
        for key, block in self.blocks.items():
            if self.at[key] < len(block.steps):
                step = block.steps[self.at[key]]
                raise self._bad(
                    step, key, f"step {self.at[key]} waits for ever; is a step missing?"
                )
        for (src, dst, channel), left in self.sent.items():
            if left:
                raise InputError(
                    f"{self.plan.where}: gpu {src} sends {left} chunks on channel {channel} that gpu {dst} never"
                    " receives"
                )
        return self

    def _advance(
        self, key: Key, queue: deque[Key], asleep: dict[object, list[Key]]
    ) -> object | None:
        """Do the steps of a thread block until one must wait; returns what for."""
        gpu, block = key[0], self.blocks[key]
        while self.at[key] < len(block.steps):
            number = self.at[key]
            step = block.steps[number]
            if (key, number) in self.waits and step.after is not None:
                other = (gpu, step.after[0])
                if self.at[other] <= step.after[1]:
                    return ("step", other)
            source = (block.recv, gpu, block.channel)
            if step.op.receives:
                if self.sent.get(source, 0) < step.count:
                    return ("data", source)
                self.sent[source] -= step.count
            self._write(key, number, step)
            self.at[key] += 1
            woken: list[object] = [("step", key)]
            if step.op.sends:
                target = (gpu, block.send, block.channel)
                self.sent[target] = self.sent.get(target, 0) + step.count
                woken.append(("data", target))
            for event in woken:
                queue.extend(asleep.pop(event, ()))
        return None

    def _place(self, key: Key, step: Step, end: tuple[str, int]) -> Place:
        """Return where the first chunk of an operand is."""
        buffer, first = end
        gpu, size, chunks = key[0], len(self.plan.gpus), self.plan.chunks
        shift, most = 0, chunks
        own = chunks // size
        if buffer == "s":
            most = self.plan.gpus[gpu].scratch
        elif (buffer, self.plan.operation) in (("i", "all_gather"), ("i", "gather")) or (
            (buffer, self.plan.operation) in (("o", "reduce_scatter"), ("o", "scatter"))
        ):
            shift, most = gpu * own, own
        if first < 0 or first + step.count > most:
            raise self._bad(
                step,
                key,
                f"chunks {first}..{first + step.count - 1} of buffer {buffer}, which has {most}",
            )
        space = "scratch" if buffer == "s" else self.spaces[buffer == "o"]
        return space, first + shift

    def _buffer(self, gpu: int, place: Place) -> Buffer:
        """Return the buffer that holds a chunk now."""
        space, chunk = place
        if space == "scratch":
            return "scratch"
        if space == "data":
            return "output" if (gpu, chunk) in self.touched else "input"
        return "input" if space == "input" else "output"

    def _write(self, key: Key, number: int, step: Step) -> None:
        out = self.out[key]
        if (key, number) in self.waits and step.after is not None:
            slot = out.flag(((key[0], step.after[0]), key))
            out.prims.append(Prim("waitSignal", recv=slot, sync=True))
        if step.op.prim:
            self._work(key, step, out)
        for waiting in self.signals.get((key, number), ()):
            out.prims.append(Prim("signal", send=out.flag((key, waiting)), sync=True))

    def _work(self, key: Key, step: Step, out: _Written) -> None:
        """Write the primitives of a step, one per run of chunks that are in the same buffers."""
        gpu, op = key[0], step.op
        src = self._place(key, step, step.src) if op.reads else None
        dst = self._place(key, step, step.dst) if op.writes else None
        if dst is not None and dst[0] == "input":
            raise self._bad(step, key, "writes to its input; only a plan with inplace=1 may")
        first = 0
        while first < step.count:
            run = self._run(gpu, step, src, dst, first)
            out.prims += self._prims(gpu, step, src, dst, first, run)
            if dst is not None and dst[0] == "data":
                self.touched.update((gpu, dst[1] + first + chunk) for chunk in range(run))
            first += run

    def _holders(
        self, gpu: int, src: Place | None, dst: Place | None, chunk: int
    ) -> tuple[Buffer | None, ...]:
        return tuple(
            None if place is None else self._buffer(gpu, (place[0], place[1] + chunk))
            for place in (src, dst)
        )

    def _run(self, gpu: int, step: Step, src: Place | None, dst: Place | None, first: int) -> int:
        """Return for how many chunks the operands stay in the same buffers."""
        if src is not None and dst is not None and src != dst and src[0] == dst[0] == "data":
            return 1  # ranges may overlap
        held = self._holders(gpu, src, dst, first)
        last = first + 1
        while last < step.count and self._holders(gpu, src, dst, last) == held:
            last += 1
        return last - first

    def _prims(
        self, gpu: int, step: Step, src: Place | None, dst: Place | None, first: int, run: int
    ) -> Iterable[Prim]:
        op = step.op
        fields: dict[str, Any] = {"step": 1 if run > 1 else 0, "repeat": run}
        if src is not None:
            fields["src"] = self._buffer(gpu, (src[0], src[1] + first))
            fields["base"] = src[1] + first
        if dst is not None:
            fields["dst"] = "scratch" if dst[0] == "scratch" else "output"
            target = dst[1] + first
            if op.prim == "reduce" and self._buffer(gpu, (dst[0], target)) == "input":
                copied = {"base": target, "step": fields["step"], "repeat": run}
                yield Prim("copy", src="input", dst="output", **copied)
            if src is None:
                fields["base"] = target
            elif target != fields["base"]:
                fields |= {"dst_base": target, "dst_step": fields["step"]}
        yield Prim(
            op.prim,
            recv=0 if op.receives else ABSENT,
            send=1 if op.sends else ABSENT,
            **fields,
        )

    def stays(self, gpu: int) -> list[int]:
        """Return the chunks of an in-place buffer that belong to the result and nothing has written."""
        plan, size = self.plan, len(self.plan.gpus)
        if self.spaces[0] != "data" or plan.operation == "messages":
            return []
        own = plan.chunks // size
        wanted = range(plan.chunks)
        if plan.operation in ("reduce_scatter", "scatter"):
            wanted = range(gpu * own, (gpu + 1) * own)
        elif plan.operation in ("reduce", "gather") and gpu != plan.root:
            wanted = range(0)
        return [chunk for chunk in wanted if (gpu, chunk) not in self.touched]


class _Emitter:
    """Writes the instances of a program."""

    def __init__(self, plan: MscclPlan, written: Plan, program: _Program) -> None:
        self.plan, self.written, self.program = plan, written, program
        self.data: dict[tuple[int, int, int], int] = {}
        self.flags: dict[tuple[Key, Key], int] = {}

    def emit(self, chunk_bytes: int) -> None:
        """Write an instance per thread block; `chunk_bytes` is the size of a chunk of the plan [bytes]."""
        for key, own in self.program.out.items():
            if own.prims:
                self._instance(
                    key[0], self.program.blocks[key].channel, chunk_bytes, *self._bound(key, own)
                )
        for gpu in range(len(self.plan.gpus)):
            prims = [Prim("copy", base=chunk) for chunk in self.program.stays(gpu)]
            if prims:
                self._instance(gpu, 0, chunk_bytes, prims, [])

    def _instance(
        self, gpu: int, channel: int, chunk_bytes: int, prims: list[Prim], bound: list[int]
    ) -> None:
        self.written.program(
            gpu,
            Part(channel, 0, chunk_bytes),
            prims,
            bound,
            nchunks=self.plan.chunks,
            mode="blocked",
            name=f"msccl/{self.plan.name}"[:80],
            stride=chunk_bytes,
        )

    def _bound(self, key: Key, own: _Written) -> tuple[list[Prim], list[int]]:
        """Return the primitives of a thread block and its connections; unused slots are left out."""
        block, gpu = self.program.blocks[key], key[0]
        used = sorted({slot for p in own.prims for slot in (p.recv, p.send) if slot != ABSENT})
        renamed = {slot: at for at, slot in enumerate(used)} | {ABSENT: ABSENT}
        bound = []
        for slot in used:
            if slot >= 2:
                bound.append(self._flag(own.flags[slot - 2]))
            else:
                ends = (block.recv, gpu) if slot == 0 else (gpu, block.send)
                bound.append(self._connection((*ends, block.channel)))
        return [_moved(prim, renamed) for prim in own.prims], bound

    def _connection(self, key: tuple[int, int, int]) -> int:
        if key not in self.data:
            self.data[key] = self.written.connect(*key)
        return self.data[key]

    def _flag(self, pair: tuple[Key, Key]) -> int:
        if pair not in self.flags:
            gpu, channel = pair[0][0], self.program.blocks[pair[0]].channel
            self.flags[pair] = self.written.connect(gpu, gpu, channel, kind="flag", slots=MAX_SLOTS)
        return self.flags[pair]


def _moved(prim: Prim, renamed: dict[int, int]) -> Prim:
    return replace(prim, recv=renamed[prim.recv], send=renamed[prim.send])
