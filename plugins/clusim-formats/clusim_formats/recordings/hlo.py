"""Programs compiled by XLA (HLO text): computation and communication of every device.

All devices run one program, in the order of its schedule. Background communication (``-start`` to ``-done``) has a
separate stream, all other steps run in sequence; dependencies are the operands. A program does not contain times:
matrix products are timed by their floating-point operations, other steps by the memory that they read and write. The
text has computations of instructions, each with shape, operands and attributes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.match import MatchCounts, by_order
from clusim.base.terms.dtypes import find_dtype
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_BYTES,
    Event,
    EventKind,
    Recording,
)
from clusim.formats.recordings.source import Paths, only_file
from clusim_formats.recordings.hlo_text import (
    HloInstruction,
    HloModule,
    HloTensor,
    read_module,
    replica_groups,
)

KIND = "hlo"
MOST_EVENTS = 1_000_000
"""Maximum number of events of all devices."""

_MOST_FLOPS = 1 << 60
_DEPTH = 32
"""Deepest nesting of computations."""

_COLLECTIVES = {
    "all-reduce": "allreduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "alltoall",
    "ragged-all-to-all": "alltoall", "collective-broadcast": "broadcast",
}  # fmt: skip
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "all-reduce-done", "all-gather-done", "collective-permute-done", "async-done", "async-update", "copy-done",
    "opt-barrier", "add-dependency", "send-done", "recv-done", "domain",
}  # fmt: skip
_INNER = re.compile(
    r"(?:body|to_apply|calls|true_computation|branch_computations=\{)=?%?([\w.$-]+)"
)
_TRIPS = re.compile(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*:\s*"?(\d{1,12})')
_ENDS: Final[tuple[EventKind, EventKind]] = ("send", "recv")
_SYNC = re.compile(r'"is_sync"\s*:\s*true')
_PAIRS = re.compile(
    r"source_target_pairs=\{\s*((?:\{\s*\d+\s*,\s*\d+\s*\}\s*,?\s*)*)\}"
)
_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{[^a-z]*")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([0-9,]*)\}")


@dataclass(slots=True)
class _Step:
    """Event of all devices; its `deps` are indices of steps, `pairs` those of a permutation."""

    event: Event
    groups: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()


Ready = tuple[int, int]
"""Last foreground step and last background step of a dependency."""

_NOTHING: Ready = (ABSENT, ABSENT)

Shapes = dict[str, tuple[HloTensor, ...]]
"""Instruction -> its arrays."""


def read(paths: Paths, *, num_ranks: int | None = None) -> Recording:
    """Read a module.

    Parameters
    ----------
    num_ranks : int or None
        GPUs of the topology, for modules without a number of devices.

    Raises
    ------
    InputError
        The module is invalid, or contains neither communication nor computation.
    """
    name = only_file(paths, "a module")
    module = read_module(name)
    result = Recording(KIND, name, _devices(module, num_ranks, name))
    result.assume(
        "no times in the program: matrix products are timed by their operations, other steps by their memory traffic"
    )
    program = _Program(result, module)
    program.run(module.entry, _NOTHING, 0)
    total = len(program.steps) * result.num_ranks
    if total > MOST_EVENTS:
        raise InputError(
            f"{name}: {result.num_ranks} devices with {len(program.steps)} steps each are {total} events; at most"
            f" {MOST_EVENTS}"
        )
    _write(result, program)
    return result.finish()


def _devices(module: HloModule, num_ranks: int | None, name: str) -> int:
    """Return the number of devices of the program."""
    result = 1
    for key in ("replica_count", "num_partitions"):
        match = re.search(rf"{key}=(\d{{1,9}})", module.header)
        result *= int(match[1]) if match else 1
    for items in module.computations.values():
        for item in items:
            if item.opcode.partition("-start")[0] in (
                *_COLLECTIVES,
                "collective-permute",
            ):
                listed = _LISTED.search(item.attributes) or [""]
                result = max(
                    [
                        result,
                        *(int(n) + 1 for n in re.findall(r"\d{1,9}", listed[0])),
                    ]
                )
    if result == 1 and num_ranks is not None:
        result = num_ranks
    if result > MOST_RANKS:
        raise InputError(f"{name}: {result} devices; at most {MOST_RANKS}")
    return result


def _latest(several: list[Ready]) -> Ready:
    return (
        max((a for a, _ in several), default=ABSENT),
        max((b for _, b in several), default=ABSENT),
    )


@dataclass(slots=True)
class _Program:
    """Content read so far; `steps` in the order of the schedule."""

    recording: Recording
    module: HloModule
    steps: list[_Step] = field(default_factory=list)
    turns: int = 0
    flops: dict[str, int] = field(default_factory=dict)

    def add(
        self, item: HloInstruction, kind: EventKind, before: Ready, **fields: Any
    ) -> _Step:
        """Append the step of an instruction."""
        deps = tuple(at for at in before if at != ABSENT)
        where = f"{self.recording.name}:{item.line}"
        event = Event(kind, 0, name=item.name[:80], deps=deps, where=where, **fields)
        self.steps.append(_Step(event))
        return self.steps[-1]

    def run(self, name: str, inputs: Ready, depth: int) -> Ready:
        """Append the steps of a computation; return the steps that its result depends on.

        Its parameters depend on the steps in `inputs`.
        """
        items = self.module.computations.get(name)
        if items is None or depth > _DEPTH:
            self.recording.skipped[
                "computations that are missing or nested too deep"
            ] += 1
            return _NOTHING
        self.turns += 1
        if self.turns > MOST_EVENTS:
            raise InputError(
                f"{self.recording.name}: more than {MOST_EVENTS} computations are run"
            )
        ready: dict[str, Ready] = {}
        shapes = {item.name: item.shape for item in items}
        last = _NOTHING
        for item in items:
            if len(self.steps) > MOST_EVENTS:
                raise InputError(
                    f"{self.recording.name}:{item.line}: more than {MOST_EVENTS} steps"
                )
            before = _latest(
                [ready.get(operand, _NOTHING) for operand in item.operands]
            )
            if item.opcode == "parameter":
                before = inputs
            last = ready[item.name] = self._step(item, before, shapes, depth)
        return last

    def _step(
        self, item: HloInstruction, before: Ready, shapes: Shapes, depth: int
    ) -> Ready:
        """Append the step of an instruction; return the steps that its result depends on."""
        base = item.opcode.removesuffix("-start")
        if item.opcode in _FREE:
            return before
        if item.opcode in ("while", "call", "conditional", "async-start"):
            return self._inner(item, before, depth)
        if base in _COLLECTIVES or base == "collective-permute":
            return self._communicate(item, base, before)
        reads = [
            tensor for operand in item.operands for tensor in shapes.get(operand, ())
        ]
        size = min(sum(t.bytes for t in (*reads, *item.shape)), MOST_BYTES)
        flops = min(self._flops(item, shapes, depth), _MOST_FLOPS)
        self.add(
            item, "compute", before, stream="compute", dtype="bfloat16", flops=flops, mem_bytes=size
        )  # fmt: skip
        return (len(self.steps) - 1, ABSENT)

    def _inner(self, item: HloInstruction, before: Ready, depth: int) -> Ready:
        """Run the computation that an instruction calls, as many times as it does."""
        names = [
            name
            for name in _INNER.findall(item.attributes)
            if name in self.module.computations
        ]
        trips = _TRIPS.search(item.attributes)
        times = int(trips[1]) if trips else 1
        if item.opcode == "while" and trips is None:
            self.recording.assume("loops without a number of iterations: run once")
        if item.opcode == "conditional":
            self.recording.assume("of branches the first is taken")
        if times > MOST_EVENTS:
            raise InputError(
                f"{self.recording.name}:{item.line}: a loop of {times} turns"
            )
        first = len(self.steps)
        for _ in range(times):
            num_steps = len(self.steps)
            done = self.run(names[0], before, depth + 1) if names else before
            if len(self.steps) == num_steps:
                break  # an empty computation stays empty
            before = _latest([before, done])
        if item.opcode == "async-start" and len(self.steps) > first:
            for step in self.steps[first:]:
                step.event = replace(step.event, stream="background")
            return (ABSENT, len(self.steps) - 1)
        return before

    def _communicate(self, item: HloInstruction, base: str, before: Ready) -> Ready:
        started = item.opcode.endswith("-start")
        background = started and not _SYNC.search(item.attributes)
        shape = item.shape
        if (
            started
            and base in ("all-gather", "collective-permute")
            and len(shape) > 1
        ):
            shape = shape[len(shape) // 2 :] if base == "all-gather" else shape[:1]
        size = min(sum(tensor.bytes for tensor in shape), MOST_BYTES)
        data_type = find_dtype(shape[0].kind) if shape else None
        pairs: tuple[tuple[int, int], ...] = ()
        groups: list[tuple[int, ...]] = []
        if base == "collective-permute":
            match = _PAIRS.search(item.attributes)
            listed = [
                (int(a[:9]), int(b[:9]))
                for a, b in _PAIR.findall(match[1] if match else "")
            ]
            pairs = tuple((a, b) for a, b in listed if a != b)
            bad = any(max(pair) >= self.recording.num_ranks for pair in listed)
            useful = bool(pairs) and not bad
            useful &= all(
                len(set(end)) == len(listed) for end in zip(*listed, strict=True)
            )
        else:
            groups = replica_groups(item.attributes, self.recording.num_ranks) or []
            size *= len(groups[0]) if base == "reduce-scatter" and groups else 1
            equal = len({len(group) for group in groups}) == 1
            groups = [group for group in groups if len(group) > 1]
            useful = bool(groups) and equal
        if not useful or not size:
            self.recording.skipped[
                f"{base} without bytes or groups of several devices"
            ] += 1
            return before
        step = self.add(
            item,
            "collective",
            before,
            stream="background" if background else "compute",
            dtype=data_type.carrier if data_type else "uint8",
            bytes=min(size, MOST_BYTES),
            operation=_COLLECTIVES.get(base, ""),
            root=0 if base == "collective-broadcast" else ABSENT,
        )
        step.groups, step.pairs = tuple(groups), pairs
        at = len(self.steps) - 1
        return (ABSENT, at) if background else (at, ABSENT)

    def _flops(self, item: HloInstruction, shapes: Shapes, depth: int) -> int:
        """Return the floating-point operations of the matrix products of an instruction."""
        out = item.shape[0].elements if item.shape else 0
        sides = [shapes.get(operand, ())[:1] for operand in item.operands[:2]]
        if item.opcode == "dot" and sides and sides[0]:
            dims = _CONTRACTING.search(item.attributes)
            lhs, depth_of = sides[0][0].dims, 1
            for word in dims[1].split(",") if dims else []:
                depth_of *= (
                    lhs[int(word)] if word and int(word[:4]) < len(lhs) else 1
                )
            return 2 * out * depth_of
        gemm = item.opcode == "custom-call" and "gemm" in item.attributes
        if gemm and all(sides) and len(sides) == 2:
            a, b = sides[0][0].elements, sides[1][0].elements
            return int(2 * out * (a * b / max(1, out)) ** 0.5)
        if item.opcode == "fusion" and depth < _DEPTH:
            names = _INNER.findall(item.attributes)
            return self._inside(names[0], depth + 1) if names else 0
        return 0

    def _inside(self, name: str, depth: int) -> int:
        """Return the floating-point operations of the matrix products of a fusion."""
        if name not in self.flops:
            self.flops[name] = (
                0  # ends the recursion of a computation that calls itself
            )
            items = self.module.computations.get(name, [])
            shapes = {part.name: part.shape for part in items}
            parts = (part for part in items if part.opcode in ("dot", "fusion"))
            total = sum(self._flops(part, shapes, depth) for part in parts)
            self.flops[name] = min(total, _MOST_FLOPS)
        return self.flops[name]


def _write(recording: Recording, program: _Program) -> None:
    """Add the steps of every device."""
    everyone = recording.group("all devices", range(recording.num_ranks))
    members: dict[tuple[tuple[int, ...], ...], dict[int, int]] = {}
    counts = MatchCounts()
    for step in program.steps:
        if step.groups not in members:
            members[step.groups] = {
                rank: at
                for group in step.groups
                for at in (recording.group("", group),)
                for rank in group
            }
    ends = [
        (dict(step.pairs), {b: a for a, b in step.pairs}) for step in program.steps
    ]
    events = recording.events
    for rank in range(recording.num_ranks):
        first = [0] * (len(program.steps) + 1)
        for at, step in enumerate(program.steps):
            first[at] = len(events)
            deps = tuple(
                n for d in step.event.deps for n in range(first[d], first[d + 1])
            )
            event = replace(step.event, rank=rank, deps=deps)
            group = members[step.groups].get(rank)
            if event.kind == "compute":
                events.append(event)
            elif group is not None:
                number = counts.add(by_order(group, rank))
                events.append(replace(event, group=group, sequence=number))
            for kind, peer in zip(
                _ENDS, (side.get(rank) for side in ends[at]), strict=True
            ):
                if peer is not None:
                    events.append(
                        replace(
                            event,
                            kind=kind,
                            group=everyone,
                            tag=at,
                            peer=peer,
                            bunch=at,
                        )
                    )
            first[at + 1] = len(events)
