"""Deadlock of a topology: a cycle of buffers, each of which waits for the next.

Cycles of the channel dependency graph. A packet in the input buffer of wire `a` on VC `v` waits for credit
of wire `b` on VC `w` if some route uses `b` after `a` (W. J. Dally and C. L. Seitz, "Deadlock-free message routing in
multiprocessor interconnection networks", 1987). With deterministic or oblivious routing, and with any choice inside the
groups of the route table, the topology cannot deadlock if this relation is acyclic. Packets between nodes are
re-steered at NICs: from the route to one NIC onto the route to another, or to an endpoint. Endpoints use their nearest
NICs, host memory the NICs without GPUDirect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from clusim.engine.abi import NONE
from clusim.topology.arrays import FabricArrays
from clusim.topology.check_links import Finding, list_names

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
        nic: _follow(
            arrays,
            nic,
            _sources(arrays, nic, sources) | _entries(arrays, nic),
            result,
        )
        for nic, sources in users.items()
    }
    entering: dict[int, set[int]] = {}
    for nic in users:
        peers = (
            o for o in users if o != nic and not (several and zone[o] == zone[nic])
        )
        onward = [
            _next(arrays, state, nic, result) for o in peers for state in leaving[o]
        ]
        entering[nic] = _follow(arrays, nic, set[int]().union(*onward), result)
    for endpoint in range(len(arrays.endpoints)):
        sources = np.flatnonzero(
            arrays.targets["zone"][: len(arrays.endpoints)] == zone[endpoint]
        )
        states = _sources(arrays, endpoint, sources.tolist()) | _entries(
            arrays, endpoint
        )
        for nic in (
            nic for nic, neighbours in users.items() if endpoint in neighbours
        ):
            states.update(
                *(_next(arrays, state, endpoint, result) for state in entering[nic])
            )
        _follow(arrays, endpoint, states, result)
    return result


def _entries(arrays: FabricArrays, target: int) -> set[int]:
    """Return the first buffers of packets that escape from minimal paths at any router on the way to a target.

    Packets on minimal paths (``choice: minimal``) hold credit for their next buffer, or wait for the escape channels,
    which they enter at any router: dimension order with datelines. They cannot deadlock if the relation of the escape
    channels is acyclic (J. Duato, "A new theory of deadlock-free adaptive routing in wormhole networks", 1993): a
    packet with credit moves on, one without waits for an escape channel only.
    """
    if arrays.fabric.forwarding.choice != "minimal":
        return set()
    routers = [
        node for node, row in enumerate(arrays.fabric.nodes) if row.kind == "switch"
    ]
    return {
        state
        for node in routers
        if arrays.group_number(node, target) != NONE
        for state in _starts(arrays, node, target)
    }


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
        distances = [(arrays.distance(node, nic), nic) for nic in nics]
        best = min(
            (distance for distance, _ in distances if distance >= 0), default=-1
        )
        for distance, nic in distances:
            if distance == best >= 0:
                users[nic].append(endpoint)
    return users


def _gpudirect(arrays: FabricArrays, target: int) -> bool:
    nic = arrays.fabric.nodes[int(arrays.targets["node"][target])].nic
    return nic is None or nic.gpudirect


def _sources(
    arrays: FabricArrays, target: int, endpoints: Iterable[int]
) -> set[int]:
    """Return the first buffers that packets of `endpoints` enter on the path to a target."""
    nodes = (int(arrays.endpoints["node"][endpoint]) for endpoint in endpoints)
    return {state for node in nodes for state in _starts(arrays, node, target)}


def _starts(arrays: FabricArrays, node: int, target: int) -> set[int]:
    return {
        wire * 2 + int(arrays.wires["dateline"][wire])
        for wire in arrays.group(node, target)
    }


def _next(
    arrays: FabricArrays, state: int, target: int, pairs: set[tuple[int, int]]
) -> set[int]:
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
        late_state = late if wires["dim"][wire] == wires["dim"][after] else 0
        following = after * 2 + max(late_state, int(wires["dateline"][after]))
        pairs.add((state, following))
        states.add(following)
    return states


def _follow(
    arrays: FabricArrays, target: int, states: set[int], pairs: set[tuple[int, int]]
) -> set[int]:
    """Follow packets from `states` to a target; return the states in which they arrive there."""
    goal = int(arrays.targets["node"][target])
    waiting, visited, last = deque(states), set(states), set()
    while waiting:
        state = waiting.popleft()
        if int(arrays.wires["dst"][state >> 1]) == goal:
            last.add(state)
        for following in _next(arrays, state, target, pairs):
            if following not in visited:
                visited.add(following)
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
        escape = (
            "escape channels"
            if arrays.fabric.forwarding.choice == "minimal"
            else "routes"
        )
        return [
            Finding(
                "info", f"{escape} cannot deadlock: buffer dependencies are acyclic"
            )
        ]
    names = [f"{arrays.wire_names[wire]} (VC {vc})" for wire, vc in cycle]
    message = f"routes can deadlock: buffers wait in a circle {list_names(names)};"
    return [
        Finding(
            "warning",
            f"{message} use routing: dimension-order, or more VCs with datelines",
        )
    ]
