"""Communicators with the rings and trees that a log contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.formats.logs import Log
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Tree
from clusim.formats.logs.summary import channels_of
from clusim.nccl.choice import Members
from clusim.nccl.communicator import Communicator
from clusim.nccl.connect import Channel

NONE = -1


def with_logged(members: Members, log: Log, logged: LoggedCommunicator) -> Members:
    """Return a communicator with the rings and trees of `logged`.

    Ranks are given in the order of the log.
    """
    comm, position = members.comm, members.position
    rings = _whole_rings(log.rings(logged), len(position))
    trees = _whole_trees(log.trees_of(logged), len(position))
    if not rings and not trees:
        return Members(
            comm, position, "no complete ring or tree in the log: re-planned"
        )
    counts = channels_of(log.members(logged))
    number = min(max(len(rings), len(trees), counts.get("coll", 0)), 64)
    adapters = (
        _Adapters(log, logged, comm, position) if comm.group.num_nodes > 1 else None
    )
    planned = comm.channels
    channels = []
    for c in range(number):
        base = planned[c % len(planned)]
        if rings:
            order = rings[c % len(rings)]
            at = order.index(position.index(0))
            order = [*order[at:], *order[:at]]
            ring = tuple(position[rank] for rank in order)
            result = (
                adapters.of(c % len(rings), order) if adapters is not None else ()
            )
            base = replace(
                base, ring=ring, ring_adapters=result or base.ring_adapters
            )
        if trees:
            base = _with_tree(base, trees[c % len(trees)], position)
        channels.append(base)
    searched = number // 2 if number % 2 == 0 and _halves_equal(channels) else number
    nvls = counts.get("nvls", 0) if comm.nvls_channels else 0
    made = replace(
        comm,
        num_channels=number,
        num_searched=searched,
        nvls_channels=nvls or comm.nvls_channels,
        p2p_channels=counts.get("p2p", 0) or comm.p2p_channels,
        p2p_per_peer=counts.get("p2p per peer", 0) or comm.p2p_per_peer,
    )
    made.__dict__["channels"] = channels
    words = [
        f"{len(rings)} rings" if rings else "",
        f"{len(trees)} trees" if trees else "",
    ]
    return Members(
        made, position, f"{' and '.join(w for w in words if w)} of the log"
    )


def _halves_equal(channels: Sequence[Channel]) -> bool:
    half = len(channels) // 2
    return all(channels[c].ring == channels[c + half].ring for c in range(half))


def _whole_rings(rings: dict[int, list[int]], count: int) -> list[list[int]]:
    """Return the complete rings (every rank once), ordered by channel."""
    return [
        order
        for _, order in sorted(rings.items())
        if sorted(order) == list(range(count))
    ]


def _whole_trees(trees: dict[int, Tree], count: int) -> list[tuple[int, ...]]:
    """Return the parents in the trees that reach every rank, by channel."""
    result = []
    for _, tree in sorted(trees.items()):
        parent = [NONE] * count
        for rank, (up, children) in tree.items():
            if not (
                0 <= rank < count
                and up < count
                and all(0 <= c < count for c in children)
            ):
                break
            if up != NONE:
                parent[rank] = up
            for child in children:
                parent[child] = rank
        else:
            if _is_tree(parent):
                result.append(tuple(parent))
    return result


def _is_tree(parent: Sequence[int]) -> bool:
    if sum(up == NONE for up in parent) != 1:
        return False
    for rank in range(len(parent)):
        at, steps = rank, 0
        while parent[at] != NONE and steps <= len(parent):
            at, steps = parent[at], steps + 1
        if steps > len(parent):
            return False
    return True


def _with_tree(
    base: Channel, parent: tuple[int, ...], position: tuple[int, ...]
) -> Channel:
    parents = [NONE] * len(parent)
    children: list[list[int]] = [[] for _ in parent]
    for rank, up in enumerate(parent):
        if up != NONE:
            parents[position[rank]] = position[up]
            children[position[up]].append(position[rank])
    return replace(
        base, parent=tuple(parents), children=tuple(tuple(c) for c in children)
    )


class _Adapters:
    """NICs in the connections of a log, by channel and pair of ranks."""

    def __init__(
        self,
        log: Log,
        logged: LoggedCommunicator,
        comm: Communicator,
        position: tuple[int, ...],
    ) -> None:
        self._comm = comm
        self._position = position
        self._known: dict[tuple[int, int, int, int], int] = {}
        columns = log.connections
        names = ("member", "channel", "source", "target", "route", "side")
        handles = set(logged.handles)
        for member, *where, route, side in zip(
            *(columns[n].tolist() for n in names), strict=True
        ):
            nic = log.facts.routes[route].nic
            if member in handles and nic >= 0 and side:
                self._known[where[0], where[1], where[2], side] = nic

    def of(self, channel: int, order: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return, per node, the NICs by which a ring enters and leaves; empty if one is unknown."""
        enter: dict[int, int] = {}
        leave: dict[int, int] = {}
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            source_node, target_node = (
                self._comm.machine_of[self._position[rank]] for rank in (a, b)
            )
            if source_node == target_node:
                continue
            places = [(channel, a, b, side) for side in (1, 2)]
            nics = [self._known[place] for place in places if place in self._known]
            if not nics:
                return ()
            leave[source_node], enter[target_node] = nics[0], nics[-1]
        machines = range(len(self._comm.machines))
        if len(enter) < len(machines):
            return ()
        counts = [max(1, len(self._comm.machines[m].adapters)) for m in machines]
        return tuple((enter[m] % counts[m], leave[m] % counts[m]) for m in machines)
