"""State of an untimed execution: buffers, FIFOs, running programs, aggregation groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.schedule.definition import buffer_bytes
from clusim.schedule.dtypes import Element, element
from clusim.schedule.ir import CollectiveCall, Schedule
from clusim.schedule.iteration import Slice


class AggregationGroup:
    """State of one aggregation group.

    Attributes
    ----------
    members : tuple of int
        Ranks, in the order in which their operands are reduced.
    connections, users : dict
        Connection of each member, and the instance that aggregates over it.
    done : dict
        Number of finished aggregates of each member.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.connections: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.done = dict.fromkeys(members, 0)
        self._results: dict[int, tuple[Array, int]] = {}

    def has_result(self, rank: int) -> bool:
        """Return True if the aggregate that `rank` is at has been reduced."""
        return self.done[rank] in self._results

    def put(self, rank: int, result: Array) -> None:
        """Store the result of the aggregate that `rank` is at, for all members."""
        self._results[self.done[rank]] = (result, len(self.members))

    def take(self, rank: int) -> Array:
        """Return the result for `rank` and step it to its next aggregate."""
        number = self.done[rank]
        result, readers = self._results.pop(number)
        if readers > 1:
            self._results[number] = (result, readers - 1)
        self.done[rank] += 1
        return result


def find_groups(schedule: Schedule) -> dict[int, AggregationGroup]:
    """Return the group of every aggregation connection of a schedule, by connection."""
    by_key: dict[int, AggregationGroup] = {}
    groups: dict[int, AggregationGroup] = {}
    for index, connection in enumerate(schedule.connections):
        if connection.kind == "aggregation":
            group = by_key.setdefault(
                connection.key, AggregationGroup(connection.members)
            )
            group.connections[connection.src] = index
            groups[index] = group
    if not groups:
        return groups
    slots = [
        [
            prim.send
            for prim in template.prims
            if OPCODES[prim.op].flags & Op.AGGREGATE
        ]
        for template in schedule.templates
    ]
    for index, instance in enumerate(schedule.instances):
        for slot in slots[instance.template]:
            groups[instance.connections[slot]].users[instance.rank] = index
    return groups


POISON = 0x5A
"""Content of buffers before the first write."""


@dataclass(slots=True)
class SliceFifo:
    """A connection at run time: the counters of the contract and the data in flight."""

    slots: int
    issued: int = 0
    tail: int = 0
    head: int = 0
    items: deque[tuple[Array | None, int]] = field(default_factory=deque)


class Runner:
    """An instance at run time: current slice and number of finished slices."""

    __slots__ = ("done", "iterator", "next", "seq")

    def __init__(self, iterator: Iterator[Slice]) -> None:
        self.iterator = iterator
        self.next: Slice | None = next(iterator, None)
        self.seq = 0
        self.done = self.next is None


class CallBuffers:
    """Input, output and scratch of all positions of a call, at least `room` bytes, allocated on first use."""

    def __init__(
        self, call: CollectiveCall, inputs: Sequence[Array], room: int = 0
    ) -> None:
        self.call = call
        self.kind: Element = element(call.dtype)
        self.inputs = [
            np.ascontiguousarray(values, self.kind.storage) for values in inputs
        ]
        self._bytes = max(buffer_bytes(call), room)
        self._views = {}
        for rank, values in zip(call.ranks, self.inputs, strict=True):
            raw = values.view(np.uint8)
            self._views["input", rank] = (
                np.pad(raw, (0, max(0, room - len(raw)))) if room else raw
            )
        self.entered = {
            rank: 1 << position for position, rank in enumerate(call.ranks)
        }

    def view(self, name: str, rank: int) -> Array:
        """Return a buffer as bytes."""
        result = self._views.get((name, rank))
        if result is None:
            result = np.full(self._bytes, POISON, np.uint8)
            if name == "output" and self.call.in_place:
                view = self._views["input", rank]
                result[: len(view)] = view
            self._views[name, rank] = result
        return result

    def read(self, name: str, rank: int, offset: int, size: int) -> Array:
        """Return the elements at a place of a buffer, not copied."""
        return self.view(name, rank)[offset : offset + size].view(self.kind.storage)

    def write(self, name: str, rank: int, offset: int, values: Array) -> None:
        """Store elements."""
        raw = values.view(np.uint8)
        self.view(name, rank)[offset : offset + len(raw)] = raw
