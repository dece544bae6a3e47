"""Untimed aggregation at run time: reductions for a group of ranks in switches between nodes.

Every member of a group performs its aggregates in the same order. The result of the n-th exists when all members
have reached their n-th. It is reduced in member order; each member reads it when it advances.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from clusim.engine.abi import Op
from clusim.engine.opcodes import OPCODES
from clusim.schedule.ir import Schedule

Array = NDArray[Any]


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
        result, left = self._results.pop(number)
        if left > 1:
            self._results[number] = (result, left - 1)
        self.done[rank] += 1
        return result


def find_groups(schedule: Schedule) -> dict[int, AggregationGroup]:
    """Return the group of every aggregation connection of a schedule, by connection."""
    by_key: dict[int, AggregationGroup] = {}
    groups: dict[int, AggregationGroup] = {}
    for index, connection in enumerate(schedule.connections):
        if connection.kind == "aggregation":
            group = by_key.setdefault(connection.key, AggregationGroup(connection.members))
            group.connections[connection.src] = index
            groups[index] = group
    if not groups:
        return groups
    slots = [
        [prim.send for prim in template.prims if OPCODES[prim.op].flags & Op.AGGREGATE]
        for template in schedule.templates
    ]
    for index, instance in enumerate(schedule.instances):
        for slot in slots[instance.template]:
            groups[instance.connections[slot]].users[instance.rank] = index
    return groups
