"""Freedom from deadlock: cycles of the channel dependency graph.

A packet in the input buffer of wire `a` on VC `v` waits for credit of wire `b` on VC `w` if some route uses `b` after
`a` (W. J. Dally and C. L. Seitz, "Deadlock-free message routing in multiprocessor interconnection networks", 1987).
With deterministic or oblivious routing, and with any choice inside the groups of the route table, the topology cannot
deadlock if this relation is acyclic. Packets between nodes are re-steered at NICs: from the route to one NIC onto the
route to another, or to an endpoint. Endpoints use their nearest NICs, host memory the NICs without GPUDirect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from clusim.topology.arrays import FabricArrays
from clusim.topology.check_links import Finding, listed

MAX_DEADLOCK_WORK = 3_000_000
"""Endpoints times wires; above this the search for cycles needs more than some seconds."""


Buffer = tuple[int, int]
"""Input buffer of a wire: wire, VC."""


def dependencies(arrays: FabricArrays) -> set[tuple[Buffer, Buffer]]:
    """Return the pairs (buffer, next buffer) that routes can produce.

    Requests begin on VC 0, and the responses of reads, which stay inside a node, on `Fabric.response_vc`.
    """
    fabric = arrays.fabric
    last, reads = fabric.num_vcs - 1, fabric.p2p == "read" and fabric.num_zones == 1
    firsts = (0, fabric.response_vc) if reads else (0,)

    def buffer(state: int, first: int) -> Buffer:
        return state >> 1, min(first + (state & 1), last)

    return {
        (buffer(one, first), buffer(two, first))
        for one, two in _dependent_states(arrays)
        for first in firsts
    }


def _dependent_states(arrays: FabricArrays) -> set[tuple[int, int]]:
    """Return the pairs (wire * 2 + class, next wire * 2 + next class) that routes can produce.

    The class is 1 after a dateline and 0 before, as the VC rule of the timing contract has it.
    """
    result: set[tuple[int, int]] = set()
    zone = arrays.targets["zone"].tolist()
    users = _users(arrays)
    several = arrays.fabric.num_zones > 1
    leaving = {
        nic: _follow(arrays, nic, _sources(arrays, nic, sources), result)
        for nic, sources in users.items()
    }
    entering: dict[int, set[int]] = {}
    for nic in users:
        others = (o for o in users if o != nic and not (several and zone[o] == zone[nic]))
        onward = [_next(arrays, state, nic, result) for o in others for state in leaving[o]]
        entering[nic] = _follow(arrays, nic, set[int]().union(*onward), result)
    for endpoint in range(len(arrays.endpoints)):
        sources = np.flatnonzero(arrays.targets["zone"][: len(arrays.endpoints)] == zone[endpoint])
        states = _sources(arrays, endpoint, sources.tolist())
        for nic in (nic for nic, near in users.items() if endpoint in near):
            states.update(*(_next(arrays, state, endpoint, result) for state in entering[nic]))
        _follow(arrays, endpoint, states, result)
    return result


def _users(arrays: FabricArrays) -> dict[int, list[int]]:
    """Return the endpoints nearest to every NIC; empty if no packets use NICs."""
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
    """Return the first buffers that packets of `endpoints` enter on the path to a target."""
    nodes = (int(arrays.endpoints["node"][endpoint]) for endpoint in endpoints)
    return {state for node in nodes for state in _starts(arrays, node, target)}


def _starts(arrays: FabricArrays, node: int, target: int) -> set[int]:
    return {wire * 2 + int(arrays.wires["dateline"][wire]) for wire in arrays.group(node, target)}


def _next(arrays: FabricArrays, state: int, target: int, pairs: set[tuple[int, int]]) -> set[int]:
    """Return the buffers that a packet in buffer `state` may wait for on the path to `target`.

    Each pair (state, following state) is added to `pairs`.
    """
    wires = arrays.wires
    wire, late = state >> 1, state & 1
    states: set[int] = set()
    node = int(wires["dst"][wire])
    if node == int(arrays.targets["node"][target]):
        return states
    for after in arrays.group(node, target):
        kept = late if wires["dim"][wire] == wires["dim"][after] else 0
        following = after * 2 + max(kept, int(wires["dateline"][after]))
        pairs.add((state, following))
        states.add(following)
    return states


def _follow(
    arrays: FabricArrays, target: int, states: set[int], pairs: set[tuple[int, int]]
) -> set[int]:
    """Follow packets from `states` to a target; return the states in which they arrive there."""
    goal = int(arrays.targets["node"][target])
    waiting, seen, last = deque(states), set(states), set()
    while waiting:
        state = waiting.popleft()
        if int(arrays.wires["dst"][state >> 1]) == goal:
            last.add(state)
        for following in _next(arrays, state, target, pairs):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return last


def dependency_cycle(arrays: FabricArrays) -> list[tuple[int, int]]:
    """Return the (wire, VC) pairs of a cycle of waiting buffers, or an empty list."""
    import networkx as nx

    graph = nx.DiGraph(dependencies(arrays))
    if nx.is_directed_acyclic_graph(graph):
        return []
    return [one for one, _ in nx.find_cycle(graph)]


def check_deadlock(arrays: FabricArrays) -> list[Finding]:
    """Return whether routes can deadlock, as a finding with the cycle, if there is one."""
    if len(arrays.endpoints) * len(arrays.wires) > MAX_DEADLOCK_WORK:
        return [Finding("info", "too large to look for circles of waiting buffers")]
    cycle = dependency_cycle(arrays)
    if not cycle:
        return [Finding("info", "routes cannot deadlock: buffer dependencies are acyclic")]
    names = [f"{arrays.wire_names[wire]} (VC {vc})" for wire, vc in cycle]
    message = f"routes can deadlock: buffers wait in a circle {listed(names)};"
    return [
        Finding("warning", f"{message} use routing: dimension-order, or more VCs with datelines")
    ]
