"""Nodes of Chakra graphs by dependencies, and matching of the ranks' calls.

Nodes without dependencies between them, and calls of a communicator, follow each other by their numbers, as in the
program. `clusim.jobs.ready` finds the order in which they start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from clusim.base.errors import InputError
from clusim.base.match import (
    MatchCounts,
    by_number,
    by_pair,
    find_cycle,
)
from clusim.formats.recordings.model import ABSENT, OperatorCall

CALLS = ("collective", "send", "recv")
MOST_NODES = 4_000_000
"""Maximum number of nodes per rank."""


@dataclass(slots=True)
class ChakraNode:
    """Node of a graph.

    Attributes
    ----------
    kind : str
        ``compute`` on the GPU, ``host`` on a CPU, ``memory``, ``collective``, ``send``, ``recv``, or ``none``: empty.
    deps, calls : list of int
        Identifiers of nodes that must be complete first: by data, and by control.
    lane : str
        Of computation: the unit that executes one node at a time.
    group, peer, tag, root : int
        Of a call: index of the communicator; peer and root are positions in it.
    sequence : int
        Number of the call in its communicator, or of the message in its pair.
    eager : bool
        True for a message that is transferred when it is sent.
    whole_bytes : int
        Size of the largest buffer of a collective, if it is not `bytes` of each rank [bytes].
    dtype, redop, operator, bunch
        As in `clusim.formats.recordings.model.Event`; an empty `dtype` is unknown.
    preserved : dict
        Further fields of the event that this project wrote.
    """

    id: int
    name: str
    kind: str
    where: str
    deps: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    lane: str = ""
    duration_ps: int = ABSENT
    flops: int = 0
    mem_bytes: int = 0
    operation: str = ""
    bytes: int = 0
    comm: str = ""
    dims: tuple[bool, ...] = ()
    group: int = ABSENT
    peer: int = ABSENT
    tag: int = 0
    root: int = ABSENT
    eager: bool = False
    sequence: int = ABSENT
    chained: bool = True
    bunch: int = ABSENT
    whole_bytes: int = 0
    dtype: str = ""
    redop: str = "sum"
    operator: OperatorCall | None = None
    preserved: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Rank:
    """Graph of a rank; `order` lists its nodes by identifier, subject to dependencies.

    `num_ranks` is the number of ranks of the job, 0 if not in the file; `represents_all` is True if every rank does
    the same work, and `represents` lists ranks with the same work. `nccl_version` and `hosts` are as in
    `clusim.formats.recordings.model.Recording`.
    """

    number: int
    name: str
    nodes: dict[int, ChakraNode] = field(default_factory=dict)
    communicators: dict[str, tuple[int, ...]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    num_ranks: int = 0
    represents_all: bool = False
    represents: tuple[int, ...] = ()
    nccl_version: str = ""
    hosts: tuple[str, ...] = ()

    def add(self, node: ChakraNode) -> None:
        """Add a node; raise `InputError` for a second one of the same number, or too many."""
        if node.id in self.nodes:
            raise InputError(
                f"{self.name}: node {node.id} occurs twice; ids must be unique"
            )
        if len(self.nodes) == MOST_NODES:
            raise InputError(
                f"{self.name}: more than {MOST_NODES} nodes; record fewer steps"
            )
        self.nodes[node.id] = node


def sort_nodes(rank: Rank) -> bool:
    """Sort the nodes of a rank; return True if control dependencies were ignored.

    Raises
    ------
    InputError
        Nodes wait for each other in a circle.
    """
    for node in rank.nodes.values():
        node.deps = list(dict.fromkeys(node.deps))
        node.calls = [
            dep for dep in dict.fromkeys(node.calls) if dep not in node.deps
        ]
    rank.order = _topological_order(
        {n.id: [*n.deps, *n.calls] for n in rank.nodes.values()}
    )
    ignored = False
    if len(rank.order) < len(rank.nodes):
        ignored = True
        rank.order = _topological_order({n.id: n.deps for n in rank.nodes.values()})
    if len(rank.order) < len(rank.nodes):
        stuck = set(rank.nodes) - set(rank.order)
        circle = find_cycle(
            min(stuck), lambda at: stuck.intersection(rank.nodes[at].deps)
        )
        listing = " -> ".join(str(at) for at in circle[:8]) + (
            " -> ..." if len(circle) > 8 else ""
        )
        raise InputError(
            f"{rank.nodes[circle[0]].where}: nodes wait for each other in a circle: {listing}; expected no cycle"
        )
    for node in rank.nodes.values():
        node.deps = node.deps if ignored else [*node.deps, *node.calls]
        node.calls = []
    return ignored


def _topological_order(waits: dict[int, list[int]]) -> list[int]:
    """Return nodes in topological order, the smallest number first."""
    wakes: dict[int, list[int]] = defaultdict(list)
    for node, deps in waits.items():
        for dep in deps:
            wakes[dep].append(node)
    waiting_count = {node: len(deps) for node, deps in waits.items()}
    ready = [node for node, count in waiting_count.items() if not count]
    heapify(ready)
    result = []
    while ready:
        node = heappop(ready)
        result.append(node)
        for other in wakes[node]:
            waiting_count[other] -= 1
            if not waiting_count[other]:
                heappush(ready, other)
    return result


def number_calls(ranks: list[Rank]) -> Counter[str]:
    """Number the calls of every communicator and pair; matching calls have equal numbers.

    Returns
    -------
    Counter
        Assumption -> number of cases.
    """
    notes: Counter[str] = Counter()
    members: dict[int, dict[int, list[ChakraNode]]] = defaultdict(dict)
    messages = MatchCounts()
    for rank in ranks:
        for node in (rank.nodes[at] for at in rank.order):
            if node.kind == "collective":
                members[node.group].setdefault(rank.number, []).append(node)
            elif node.kind in CALLS:
                end = by_pair(
                    node.group, node.kind, rank.number, node.peer, node.tag
                )
                node.sequence = messages.add(end)
    for lists in members.values():
        ordered = _by_position([*lists.values()])
        counts = MatchCounts()
        for rank_number, node in (
            (number, node) for number in lists for node in lists[number]
        ):
            node.chained = ordered
            content = None if ordered else (node.operation, node.bytes)
            node.sequence = counts.number(
                by_number(node.group, content, rank_number)
            )
        if not ordered:
            notes[
                "communicators with a different order of calls per rank: calls of one size are matched"
            ] += 1
    return notes


def _by_position(lists: list[list[ChakraNode]]) -> bool:
    """Return True if the n-th call of every rank is the n-th of all."""
    contents = [[(node.operation, node.bytes) for node in nodes] for nodes in lists]
    if all(content == contents[0] for content in contents):
        return True
    if all(Counter(content) == Counter(contents[0]) for content in contents):
        return False
    names = [[node.operation for node in nodes] for nodes in lists]
    return all(name == names[0] for name in names)
