"""Maximum flow between two sets of graph nodes (Dinic), for the bisection of a topology."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from clusim.topology.arrays import FabricArrays


class _Network:
    """Residual network with parallel wires joined; arcs are in pairs, arc ^ 1 is the reverse."""

    def __init__(self, size: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(size)]
        self.head: list[int] = []
        self.room: list[float] = []
        self.level: list[int] = []
        self.turn: list[int] = []

    def add(self, src: int, dst: int, capacity: float) -> None:
        """Add an arc and its empty reverse."""
        for a, b, room in ((src, dst, capacity), (dst, src, 0.0)):
            self.out[a].append(len(self.head))
            self.head.append(b)
            self.room.append(room)

    def layers(self, source: int, sink: int) -> bool:
        """Number the graph nodes by distance from the source; True if the sink can be reached."""
        self.level = [-1] * len(self.out)
        self.level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for arc in self.out[node]:
                if self.room[arc] > 0.5 and self.level[self.head[arc]] < 0:
                    self.level[self.head[arc]] = self.level[node] + 1
                    queue.append(self.head[arc])
        self.turn = [0] * len(self.out)
        return self.level[sink] >= 0

    def push(self, source: int, sink: int) -> float:
        """Push flow along one path of ascending layers; return 0 if no path remains."""
        path: list[int] = []
        node = source
        while node != sink:
            arc = self._advance(node)
            if arc >= 0:
                path.append(arc)
                node = self.head[arc]
            elif path:
                self.level[node] = -1
                node = self.head[path.pop() ^ 1]
            else:
                return 0.0
        amount = min(self.room[arc] for arc in path)
        for arc in path:
            self.room[arc] -= amount
            self.room[arc ^ 1] += amount
        return amount

    def _advance(self, node: int) -> int:
        arcs = self.out[node]
        while self.turn[node] < len(arcs):
            arc = arcs[self.turn[node]]
            if self.room[arc] > 0.5 and self.level[self.head[arc]] == self.level[node] + 1:
                return arc
            self.turn[node] += 1
        return -1


def max_flow(
    arrays: FabricArrays,
    sources: Iterable[int],
    sinks: Iterable[int],
    *,
    only: NDArray[np.bool_] | None = None,
) -> float:
    """Return the maximum flow from the graph nodes `sources` to the graph nodes `sinks` [B/s].

    `only` restricts it to some wires; all by default.
    """
    count = len(arrays.nodes)
    network = _Network(count + 2)
    wires = arrays.wires if only is None else arrays.wires[only]
    pairs = wires["src"].astype(np.int64) * count + wires["dst"]
    _, first, pair_of = np.unique(pairs, return_index=True, return_inverse=True)
    joined_Bps = np.bincount(pair_of, wires["rate_num"] / wires["rate_den"] * 1e12)
    forwards = [node.forwards for node in arrays.fabric.nodes]
    source_set, sink_set = {int(n) for n in sources}, {int(n) for n in sinks}
    for at in np.argsort(first):
        src, dst = int(wires["src"][first[at]]), int(wires["dst"][first[at]])
        if (forwards[src] or src in source_set) and (forwards[dst] or dst in sink_set):
            network.add(src, dst, float(joined_Bps[at]))
    for node in source_set:
        network.add(count, node, float("inf"))
    for node in sink_set:
        network.add(node, count + 1, float("inf"))
    total = 0.0
    while network.layers(count, count + 1):
        while amount := network.push(count, count + 1):
            total += amount
    return total
