"""Can buffers wait for each other in a circle? The channel dependency graph of Dally and Seitz.

A packet in the input buffer of wire `a` on VC `v` waits for credit of wire `b` on VC `w` if some route takes `b` after
`a`. With deterministic or oblivious routing the fabric cannot deadlock if this relation has no cycle. Packets between
machines go on at NICs: from the way to one onto the way to another, or to an endpoint. Endpoints use the NICs that are
nearest to them, host memory those without GPUDirect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from clusim.topology.arrays import FabricArrays


def dependencies(arrays: FabricArrays) -> set[tuple[int, int]]:
    """Return the pairs (wire * 2 + class, next wire * 2 + next class) that routes can produce.

    The class is 1 after a dateline and 0 before, as the VC rule of the timing contract has it.
    """
    found: set[tuple[int, int]] = set()
    zone = arrays.targets["zone"].tolist()
    users = _users(arrays)
    several = arrays.fabric.num_zones > 1
    leaving = {
        nic: _follow(arrays, nic, _sources(arrays, nic, own), found) for nic, own in users.items()
    }
    entering: dict[int, set[int]] = {}
    for nic in users:
        others = (o for o in users if o != nic and not (several and zone[o] == zone[nic]))
        onward = [_next(arrays, state, nic, found) for o in others for state in leaving[o]]
        entering[nic] = _follow(arrays, nic, set[int]().union(*onward), found)
    for endpoint in range(len(arrays.endpoints)):
        own = np.flatnonzero(arrays.targets["zone"][: len(arrays.endpoints)] == zone[endpoint])
        states = _sources(arrays, endpoint, own.tolist())
        for nic in (nic for nic, near in users.items() if endpoint in near):
            states.update(*(_next(arrays, state, endpoint, found) for state in entering[nic]))
        _follow(arrays, endpoint, states, found)
    return found


def _users(arrays: FabricArrays) -> dict[int, list[int]]:
    """Return for every NIC the endpoints that it is nearest to, if any packets go over NICs at all."""
    fabric = arrays.fabric
    steered = (arrays.vias(0, rank) is not None for rank in range(arrays.num_ranks))
    if fabric.num_zones == 1 and not any(steered):
        return {}
    users: dict[int, list[int]] = {
        nic: [] for z in range(fabric.num_zones) for nic in arrays.nics(z)
    }
    for endpoint, node in enumerate(arrays.endpoints["node"].tolist()):
        nics = arrays.nics(int(arrays.nodes["zone"][node]))
        if fabric.nodes[node].kind == "memory":
            nics = [nic for nic in nics if not _gpudirect(arrays, nic)]
        ways = [(arrays.distance(node, nic), nic) for nic in nics]
        best = min((way for way, _ in ways if way >= 0), default=-1)
        for way, nic in ways:
            if way == best >= 0:
                users[nic].append(endpoint)
    return users


def _gpudirect(arrays: FabricArrays, target: int) -> bool:
    nic = arrays.fabric.nodes[int(arrays.targets["node"][target])].nic
    return nic is None or nic.gpudirect


def _sources(arrays: FabricArrays, target: int, endpoints: Iterable[int]) -> set[int]:
    """Return what packets of `endpoints` enter first on the way to a target."""
    nodes = (int(arrays.endpoints["node"][endpoint]) for endpoint in endpoints)
    return {state for node in nodes for state in _starts(arrays, node, target)}


def _starts(arrays: FabricArrays, node: int, target: int) -> set[int]:
    return {wire * 2 + int(arrays.wires["dateline"][wire]) for wire in arrays.group(node, target)}


def _next(arrays: FabricArrays, state: int, target: int, found: set[tuple[int, int]]) -> set[int]:
    """Return what a packet in buffer `state` may wait for on the way to `target`, and note the pairs."""
    wires = arrays.wires
    wire, late = state >> 1, state & 1
    states: set[int] = set()
    node = int(wires["dst"][wire])
    if node == int(arrays.targets["node"][target]):
        return states
    for after in arrays.group(node, target):
        kept = late if wires["dim"][wire] == wires["dim"][after] else 0
        following = after * 2 + max(kept, int(wires["dateline"][after]))
        found.add((state, following))
        states.add(following)
    return states


def _follow(
    arrays: FabricArrays, target: int, states: set[int], found: set[tuple[int, int]]
) -> set[int]:
    """Follow packets from `states` to a target; returns the states in which they arrive there."""
    goal = int(arrays.targets["node"][target])
    waiting, seen, last = deque(states), set(states), set()
    while waiting:
        state = waiting.popleft()
        if int(arrays.wires["dst"][state >> 1]) == goal:
            last.add(state)
        for following in _next(arrays, state, target, found):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return last


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
