"""Can buffers wait for each other in a circle? The channel dependency graph of Dally and Seitz.

A packet in the input buffer of wire `a` on VC `v` waits for credit of wire `b` on VC `w` if some route takes `b` after
`a`. With deterministic or oblivious routing the fabric cannot deadlock if this relation has no cycle.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from clusim.fabric.arrays import FabricArrays
from clusim.fabric.routing import NONE

__all__ = ["dependencies", "dependency_cycle"]


def dependencies(arrays: FabricArrays) -> set[tuple[int, int]]:
    """Return the pairs (wire * 2 + class, next wire * 2 + next class) that routes can produce.

    The class is 1 after a dateline and 0 before, as the VC rule of the timing contract has it.
    """
    table = arrays.routes.reshape(len(arrays.nodes), -1)
    wires = arrays.wires
    found: set[tuple[int, int]] = set()
    for endpoint in range(len(arrays.endpoints)):
        column = table[:, endpoint]
        own = int(arrays.endpoints["node"][endpoint])
        states: deque[int] = deque()
        seen: set[int] = set()
        for node in arrays.endpoints["node"]:
            for wire in _members(arrays, int(column[node])):
                _enter(wire * 2 + int(wires["dateline"][wire]), seen, states)
        while states:
            state = states.popleft()
            wire, late = state >> 1, state & 1
            node = int(wires["dst"][wire])
            if node == own:
                continue
            for after in _members(arrays, int(column[node])):
                kept = late if wires["dim"][wire] == wires["dim"][after] else 0
                following = after * 2 + max(kept, int(wires["dateline"][after]))
                found.add((state, following))
                _enter(following, seen, states)
    return found


def _enter(state: int, seen: set[int], states: deque[int]) -> None:
    if state not in seen:
        seen.add(state)
        states.append(state)


def _members(arrays: FabricArrays, group: int) -> list[int]:
    if group == NONE:
        return []
    lo, hi = int(arrays.group_off[group]), int(arrays.group_off[group + 1])
    return [int(wire) for wire in arrays.group_wires[lo:hi]]


def dependency_cycle(arrays: FabricArrays) -> list[int]:
    """Return the wires of a circle of waiting buffers, or an empty list."""
    edges = dependencies(arrays)
    if not edges:
        return []
    after: dict[int, list[int]] = {}
    pending: dict[int, int] = {}
    for one, two in edges:
        after.setdefault(one, []).append(two)
        pending[two] = pending.get(two, 0) + 1
        pending.setdefault(one, 0)
    free = [state for state, count in pending.items() if not count]
    while free:
        state = free.pop()
        del pending[state]
        for following in after.get(state, ()):
            pending[following] -= 1
            if not pending[following]:
                free.append(following)
    if not pending:
        return []
    return _walk(after, set(pending))


def _walk(after: dict[int, list[int]], left: set[int]) -> list[int]:
    """Follow edges inside `left`, of which every state has a predecessor there, until one repeats."""
    before: dict[int, int] = {}
    for state in sorted(left):
        for following in after.get(state, ()):
            if following in left:
                before.setdefault(following, state)
    state = min(left)
    order: dict[int, int] = {}
    path: list[int] = []
    while state not in order:
        order[state] = len(path)
        path.append(state)
        state = before[state]
    circle = path[order[state] :][::-1]
    return [int(wire) for wire in np.array(circle) >> 1]
