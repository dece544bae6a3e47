"""MSCCL's XML files as schedules: run, checked with data, and timed.

**Hardware**: the interpreter of MSCCL and RCCL runs a thread block per ``tb``: a CTA with at most one connection to
send and one to receive. The data are divided into ``nchunksperloop`` equal chunks; a loop processes the next part of
every chunk, with the size of the protocol's chunk. A step may wait until another thread block of its GPU has completed
a step of the same loop. Of its ``cnt`` chunks, those that together fit into the protocol's chunk are one operation:
they are contiguous, and occupy the slots of one chunk (half of a connection's with Simple, where a chunk is 4 of 8
steps). Consecutive reductions into the same chunk are also one operation. **Model**: the same; waits are flags inside
the GPU, one per pair of thread blocks and wait. If communicating thread blocks have operations of different numbers of
chunks, the larger operations are written as several of the largest common size, their connections have proportionally
more slots (64 at most), and they share a fixed cost, as do fused reductions. Sizes that the chunks do not divide are
rounded up (MSCCL leaves such calls to NCCL's algorithms). An operation occupies the slots of a chunk for any number of
bytes: slices without data are posted as well (``genericOp``). **Not modelled**: the time of the barriers around waits;
the slots of the last loop's slices without data if this loop is smaller than the others. **Parameters**: those of the
plan and of its protocol.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clusim.base.errors import DeadlockError, InputError
from clusim.formats.algorithms.layout import (
    SMALL,
    Key,
    Place,
    WantedPlan,
    place_chunks,
    start,
)
from clusim.formats.algorithms.msccl_xml import (
    MscclBlock,
    MscclPlan,
    MscclStep,
    read_plan,
)
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import ABSENT, Prim, Schedule
from clusim.schedule.shapes import MAX_SLOTS
from clusim.topology.model import Fabric

MAX_COUNT = 71
"""Most chunks that the interpreter moves at once.

One less than MSCCL_MAX_COUNT (RCCL's ``msccl_setup.cc``).
"""


def load(
    path: str | Path, fabric: Fabric | None, bytes: int, **options: Any
) -> Schedule:
    """Read an MSCCL XML file and return its schedule.

    `options` are those of `clusim.formats.algorithms.layout.WantedPlan`.
    """
    return build(read_plan(path), fabric, WantedPlan(bytes, **options))


def build(plan: MscclPlan, fabric: Fabric | None, request: WantedPlan) -> Schedule:
    """Return the schedule of a plan.

    Raises
    ------
    DeadlockError
        A step never completes, for any buffer size.
    """
    if plan.operation == "messages" and any(gpu.chunks["o"] for gpu in plan.gpus):
        plan = replace(plan, in_place=False)
    request = replace(request, protocol=request.protocol or plan.protocol)
    writer, chunk_bytes = start(plan, fabric, request)
    write_plan(plan, writer, chunk_bytes)
    return writer.schedule()


def write_plan(plan: MscclPlan, writer: CollectiveWriter, chunk_bytes: int) -> None:
    """Write the programs of a plan with chunks of a size [bytes]."""
    _Emitter(plan, writer, _Program(plan).run(), chunk_bytes).emit()


@dataclass(slots=True)
class _Written:
    """A thread block as primitives; connection 0 receives, 1 sends, and flags follow.

    `counts` has the chunks of each operation that the interpreter executes at once if they are small enough.
    """

    prims: list[Prim] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    flags: list[tuple[Key, Key]] = field(default_factory=list)
    reduced: tuple[Place | None, int] | None = None

    def flag(self, pair: tuple[Key, Key]) -> int:
        """Return the slot of a flag between two thread blocks."""
        if pair not in self.flags:
            self.flags.append(pair)
        return 2 + self.flags.index(pair)


class _Program:
    """Traversal of all steps in an order that hardware may use, which writes primitives.

    It detects deadlocked steps, and chunks outside their buffers.
    """

    def __init__(self, plan: MscclPlan) -> None:
        self.plan = plan
        self.blocks: dict[Key, MscclBlock] = plan.thread_blocks()
        self.at = dict.fromkeys(self.blocks, 0)
        self.out = {key: _Written() for key in self.blocks}
        self.sent: dict[tuple[int, int, int], int] = {}
        self.waits, self.signals = self._flags()

    def _flags(
        self,
    ) -> tuple[set[tuple[Key, int]], dict[tuple[Key, int], list[Key]]]:
        """Return the waiting steps, and the waiters of each step, without implied waits."""
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

    def _check_own(self, step: MscclStep, key: Key, number: int) -> None:
        if step.after is not None and step.after[1] >= number:
            raise self._bad(
                step, key, f"waits for step {step.after[1]} of the same thread block"
            )

    def _bad(self, step: MscclStep, key: Key, message: str) -> InputError:
        return self.plan.bad(
            step.line, f"gpu {key[0]} thread block {key[1]}: {message}"
        )

    def run(self) -> _Program:
        """Traverse all steps."""
        queue = deque(self.blocks)
        asleep: dict[object, list[Key]] = {}
        while queue:
            key = queue.popleft()
            blocked = self._advance(key, queue, asleep)
            if blocked is not None:
                asleep.setdefault(blocked, []).append(key)
        for key, block in self.blocks.items():
            if self.at[key] < len(block.steps):
                raise self._stuck(key, block)
        for (src, dst, channel), unreceived in self.sent.items():
            if unreceived:
                raise InputError(
                    f"{self.plan.where}: gpu {src} sends {unreceived} chunks on channel {channel} that gpu {dst} never"
                    " receives"
                )
        return self

    def _stuck(self, key: Key, block: MscclBlock) -> DeadlockError:
        step = block.steps[self.at[key]]
        waits = f"a chunk from gpu {block.recv} on channel {block.channel}"
        if (key, self.at[key]) in self.waits and step.after is not None:
            other, at = step.after
            if self.at[key[0], other] <= at:
                waits = f"step {at} of thread block {other}"
        return DeadlockError(
            f"{self.plan.where}:{step.line}: the plan deadlocks: gpu {key[0]} thread block {key[1]} step"
            f" {self.at[key]} waits for ever for {waits}"
        )

    def _advance(
        self, key: Key, queue: deque[Key], asleep: dict[object, list[Key]]
    ) -> object | None:
        """Execute the steps of a thread block until one must wait; return the missing event."""
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

    def _place(self, key: Key, step: MscclStep, end: tuple[str, int]) -> Place:
        """Return the first chunk of an operand."""
        buffer, first = end
        gpu, size, chunks = key[0], len(self.plan.gpus), self.plan.chunks
        shift, limit = 0, chunks
        share = chunks // size
        if buffer == "s":
            limit = self.plan.gpus[gpu].chunks["s"]
        elif (buffer, self.plan.operation) in SMALL:
            shift, limit = gpu * share, share
        if first < 0 or first + step.count > limit:
            raise self._bad(
                step,
                key,
                f"chunks {first}..{first + step.count - 1} of buffer {buffer}, which has {limit}",
            )
        if buffer == "s":
            return "scratch", first
        return (
            "input" if buffer == "i" and not self.plan.in_place else "output",
            first + shift,
        )

    def _write(self, key: Key, number: int, step: MscclStep) -> None:
        out = self.out[key]
        if (key, number) in self.waits and step.after is not None:
            slot = out.flag(((key[0], step.after[0]), key))
            out.prims.append(Prim("waitSignal", recv=slot, sync=True))
        if step.op.prim:
            self._work(key, step, out)
        for waiting in self.signals.get((key, number), ()):
            out.prims.append(
                Prim("signal", send=out.flag((key, waiting)), sync=True)
            )

    def _work(self, key: Key, step: MscclStep, out: _Written) -> None:
        """Write the primitive of a step."""
        op = step.op
        src = self._place(key, step, step.src) if op.reads else None
        dst = self._place(key, step, step.dst) if op.writes else None
        if dst is not None and dst[0] == "input":
            raise self._bad(
                step, key, "writes to its input; only a plan with inplace=1 may"
            )
        recv, send = (0 if op.receives else ABSENT), (1 if op.sends else ABSENT)
        out.prims.append(
            Prim(op.prim, recv=recv, send=send, **place_chunks(step.count, src, dst))
        )
        if (
            op.prim == "reduce"
            and out.reduced == (dst, step.count)
            and step.after is None
        ):
            return
        out.reduced = (dst, step.count) if op.prim == "reduce" else None
        out.counts.append(step.count)


class _Grain(NamedTuple):
    """Granularity of connected thread blocks: `chunks` at once, up to `pieces` per operation."""

    chunks: int
    pieces: int


class _Emitter:
    """Writer of a program's instances; `chunk_bytes` is the size of a plan's chunk [bytes]."""

    def __init__(
        self,
        plan: MscclPlan,
        writer: CollectiveWriter,
        program: _Program,
        chunk_bytes: int,
    ) -> None:
        self.plan, self.written, self.program = plan, writer, program
        self.chunk_bytes = chunk_bytes
        self.at_once = max(
            1, min(writer.shape.chunk_bytes // chunk_bytes, MAX_COUNT)
        )
        self.data: dict[tuple[int, int, int], int] = {}
        self.flags: dict[tuple[Key, Key], int] = {}
        self.senders = {
            (key[0], block.send, block.channel): key
            for key, block in program.blocks.items()
            if any(step.op.sends for step in block.steps)
        }
        self.grains = self._grains()
        self.taken, self.cut = self._shape()

    def emit(self) -> None:
        """Write an instance per thread block."""
        for key, out in self.program.out.items():
            if out.prims:
                self._instance(key, out)

    def _grains(self) -> dict[Key, _Grain]:
        """Return the granularity of each thread block, equal at both ends of a connection."""
        result: dict[Key, _Grain] = {}
        for keys in _talking(self.program.blocks, self.senders):
            prims = [
                prim
                for key in keys
                for prim in self.program.out[key].prims
                if not prim.sync
            ]
            sizes = {
                size for prim in prims for size in self._operations(prim.repeat)
            }
            chunks = math.gcd(*sizes) or 1
            grain = _Grain(chunks, max(sizes, default=1) // chunks)
            result |= dict.fromkeys(keys, grain)
        return result

    def _operations(self, count: int) -> list[int]:
        """Return the distinct sizes of the operations that move `count` chunks [chunks].

        The number of operations is MSCCL's; they are equal if it divides the chunks (MSCCL's last is smaller).
        """
        number = -(-count // self.at_once)
        if count % number == 0:
            return [count // number]
        return [self.at_once, count % self.at_once]

    def _instance(self, key: Key, out: _Written) -> None:
        grain = self.grains[key].chunks
        length = grain * self.chunk_bytes
        prims, bound = self._bound(key, out)
        prims = [_in_pieces(prim, grain) for prim in prims]
        self.written.program(
            key[0],
            Part(self.program.blocks[key].channel, 0, length),
            prims,
            bound,
            nchunks=self.plan.room,
            mode="blocked",
            name=f"msccl/{self.plan.name}"[:80],
            stride=self.chunk_bytes,
            limit=self.plan.room * self.chunk_bytes,
            fixed_div=self._slices_per_cost(out, prims, length),
            slices=self.cut,
            slots_per_slice=self.taken // self.cut,
        )

    def _in_flight(self, pieces: int) -> int:
        """Return the limit of operations of `pieces` pieces in flight on a connection [pieces]."""
        shape = self.written.shape
        return shape.slots // (shape.slices * shape.slots_per_slice) * pieces

    def _shape(self) -> tuple[int, int]:
        """Return the slots of a piece, for any number of bytes, and its number of slices.

        Slices without data occupy slots as well. Flags join thread blocks, so that these are the same for all.
        """
        shape = self.written.shape
        grains = set(self.grains.values()) or {_Grain(1, 1)}
        room = MAX_SLOTS // max(self._in_flight(grain.pieces) for grain in grains)
        slots = max(1, min(shape.slices * shape.slots_per_slice, room))
        length = max(grain.chunks for grain in grains) * self.chunk_bytes
        max_slices = max(1, min(shape.slices, -(-length // shape.slice_min)))
        return slots, next(n for n in range(max_slices, 0, -1) if slots % n == 0)

    def _slices_per_cost(
        self, out: _Written, prims: Sequence[Prim], length: int
    ) -> int:
        """Return the slices per fixed cost, with one fixed cost per operation of a thread block."""
        slices = max(1, min(self.cut, -(-length // self.written.shape.slice_min)))
        paid = sum(-(-count // self.at_once) for count in out.counts) * slices
        done = sum(1 if prim.sync else prim.repeat * slices for prim in prims)
        return max(1, round(done / max(1, paid)))

    def _bound(self, key: Key, out: _Written) -> tuple[list[Prim], list[int]]:
        """Return the primitives of a thread block and its connections, without unused slots."""
        block, gpu = self.program.blocks[key], key[0]
        used = sorted(
            {slot for p in out.prims for slot in (p.recv, p.send) if slot != ABSENT}
        )
        renamed = {slot: at for at, slot in enumerate(used)} | {ABSENT: ABSENT}
        bound = []
        for slot in used:
            if slot >= 2:
                bound.append(self._flag(out.flags[slot - 2]))
            else:
                ends = (block.recv, gpu) if slot == 0 else (gpu, block.send)
                bound.append(self._connection((*ends, block.channel)))
        return [_move_prim(prim, renamed) for prim in out.prims], bound

    def _connection(self, key: tuple[int, int, int]) -> int:
        if key not in self.data:
            pieces = self.grains[self.senders[key]].pieces
            slots = self._in_flight(pieces) * self.taken
            self.data[key] = self.written.connect(*key, slots=min(slots, MAX_SLOTS))
        return self.data[key]

    def _flag(self, pair: tuple[Key, Key]) -> int:
        if pair not in self.flags:
            gpu, channel = pair[0][0], self.program.blocks[pair[0]].channel
            self.flags[pair] = self.written.connect(
                gpu, gpu, channel, kind="flag", slots=MAX_SLOTS
            )
        return self.flags[pair]


def _move_prim(prim: Prim, renamed: dict[int, int]) -> Prim:
    return replace(prim, recv=renamed[prim.recv], send=renamed[prim.send])


def _in_pieces(prim: Prim, grain: int) -> Prim:
    """Return a primitive that moves `grain` chunks at once."""
    if prim.sync or grain == 1:
        return prim
    repeat = prim.repeat // grain
    step = grain if repeat > 1 else 0
    moved = replace(prim, step=step, repeat=repeat)
    return moved if prim.dst_base is None else replace(moved, dst_step=step)


def _talking(
    blocks: Mapping[Key, MscclBlock], senders: Mapping[tuple[int, int, int], Key]
) -> list[list[Key]]:
    """Return the sets of thread blocks that are joined by connections."""
    first: dict[Key, Key] = {key: key for key in blocks}

    def root(key: Key) -> Key:
        while first[key] != key:
            first[key] = key = first[first[key]]
        return key

    for key, block in blocks.items():
        if any(step.op.receives for step in block.steps):
            first[root(key)] = root(senders[block.recv, key[0], block.channel])
    result: dict[Key, list[Key]] = {}
    for key in blocks:
        result.setdefault(root(key), []).append(key)
    return list(result.values())
