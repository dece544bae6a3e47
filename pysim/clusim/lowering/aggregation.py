"""Aggregation trees: switches between nodes that reduce for a group of ranks.

**Hardware** SHARP: the subnet manager lays trees over the InfiniBand switches; leaves reduce the data of their hosts,
switches above reduce the results of the leaves, and the root's result returns along the tree. **Model** One tree per
group: the members' leaf switches, and above them the switches with a reduction unit from which all leaves are reached
over the fewest hops; groups take turns among equal roots and parallel cables. Switches with a single branch are not
vertices of the tree. A member may have as many packets in flight as a vertex has slots, so that trees never wait for
each other in a circle. **Not modelled** Limits on the number of trees. **Parameters** The units' slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE
from clusim.engine.image import empty
from clusim.lowering.paths import remember_result
from clusim.topology.arrays import FabricArrays

DEFAULT_SLOTS = 64
"""Open packets of a tree at a switch with a unit that does not define `slots`."""


class Trees:
    """The aggregation trees of a schedule.

    Attributes
    ----------
    paths : list of list of int
        Explicit paths of the image; the paths of trees are appended here.
    """

    def __init__(self, arrays: FabricArrays, paths: list[list[int]]) -> None:
        self.arrays = arrays
        self.paths = paths
        self._rows: list[dict[str, int]] = []

    def add(self, members: Sequence[tuple[int, int]], turn: int) -> list[int]:
        """Add the tree of (endpoint, NIC target) members and return the vertex of each."""
        ups = [self.way_up(endpoint, nic) for endpoint, nic in members]
        leaves = [int(self.arrays.wires["dst"][path[-1]]) for path in ups]
        shapes = self._shapes(tuple(sorted(set(leaves))))
        parents = shapes[turn % len(shapes)]
        root = next(node for node in parents if parents[node] == node)
        below: dict[int, list[int]] = {}
        for node, parent in parents.items():
            if node != parent:
                below.setdefault(parent, []).append(node)
        hanging: dict[int, list[int]] = {}
        for number, leaf in enumerate(leaves):
            hanging.setdefault(leaf, []).append(number)
        vertex_of = [NONE] * len(members)
        waiting = deque([(root, self._vertex(root, NONE, []))])
        while waiting:
            node, vertex = waiting.popleft()
            low = len(self._rows)
            for number in hanging.get(node, ()):
                vertex_of[number] = self._member(
                    members[number][0], vertex, ups[number]
                )
            for child in below.get(node, ()):
                path = [child]
                while (
                    not hanging.get(path[-1]) and len(below.get(path[-1], ())) == 1
                ):
                    path.append(below[path[-1]][0])
                wires = self._wires([*path[::-1], node], turn)
                waiting.append((path[-1], self._vertex(path[-1], vertex, wires)))
            self._rows[vertex]["child_lo"], self._rows[vertex]["child_hi"] = (
                low,
                len(self._rows),
            )
        return vertex_of

    def slots(self) -> int:
        """Return the least number of slots of any vertex so far."""
        return min(
            (row["slots"] for row in self._rows if row["unit"] != NONE), default=1
        )

    def rows(self, slots: int | None = None) -> Array:
        """Return the vertices; with `slots`, no vertex has fewer or more."""
        result = empty("vertices", len(self._rows))
        for name in result.dtype.names or ():
            result[name] = [row[name] for row in self._rows]
        if slots is not None and len(result):
            result["slots"] = np.where(result["unit"] == NONE, 1, slots)
        return result

    def _member(self, endpoint: int, parent: int, path: list[int]) -> int:
        row = self._row(parent, path)
        row["endpoint"] = endpoint
        return len(self._rows) - 1

    def _vertex(self, node: int, parent: int, wires: list[int]) -> int:
        unit = int(self.arrays.nodes["unit"][node])
        row = self._row(parent, wires)
        row["unit"] = unit
        described = self.arrays.fabric.nodes[node].unit
        row["slots"] = max(1, int(getattr(described, "slots", 0) or DEFAULT_SLOTS))
        return len(self._rows) - 1

    def _row(self, parent: int, wires: list[int]) -> dict[str, int]:
        row = {"parent": parent, "unit": NONE, "endpoint": NONE, "path_up": NONE}
        row |= {"path_down": NONE, "child_lo": 0, "child_hi": 0, "slots": 1}
        if parent != NONE:
            row["path_up"] = self._path(wires)
            reverse = self.arrays.wires["reverse"]
            row["path_down"] = self._path(
                [int(reverse[wire]) for wire in reversed(wires)]
            )
        self._rows.append(row)
        return row

    def _path(self, wires: list[int]) -> int:
        self.paths.append(wires)
        return len(self.paths) - 1

    @remember_result
    def way_up(self, endpoint: int, nic: int) -> list[int]:
        """Return the wires from a member over its NIC to the leaf switch."""
        arrays = self.arrays
        path = arrays.steps(int(arrays.endpoints["node"][endpoint]), (nic,))
        adapter = int(arrays.targets["node"][nic])
        away = arrays.wires_from(adapter)
        switches = arrays.nodes[arrays.wires["dst"][away]]
        usable = away[(switches["zone"] == NONE) & (switches["unit"] != NONE)]
        if not len(usable):
            name = arrays.fabric.nodes[adapter].name
            raise ScheduleError(
                f"{arrays.fabric.name}: the switch at NIC {name} lacks a reduction unit; use ring or tree"
            )
        return [*path, int(usable[0])]

    @cached_property
    def _graph(self) -> dict[int, dict[int, list[int]]]:
        """Wires between switches with a unit: node -> neighbour -> wires."""
        arrays = self.arrays
        src, dst = arrays.wires["src"], arrays.wires["dst"]
        useful = (arrays.nodes["zone"] == NONE) & (arrays.nodes["unit"] != NONE)
        result: dict[int, dict[int, list[int]]] = {}
        for wire in np.flatnonzero(useful[src] & useful[dst]).tolist():
            result.setdefault(int(src[wire]), {}).setdefault(
                int(dst[wire]), []
            ).append(wire)
        return result

    @remember_result
    def _reach_switches(self, start: int) -> dict[int, tuple[int, int]]:
        """Return the distance from `start` and the node before it on a shortest path, of every reachable switch."""
        reached, queue = {start: (0, start)}, deque([start])
        while queue:
            node = queue.popleft()
            for other in sorted(self._graph.get(node, ())):
                if other not in reached:
                    reached[other] = reached[node][0] + 1, node
                    queue.append(other)
        return reached

    @remember_result
    def _shapes(self, leaves: tuple[int, ...]) -> list[dict[int, int]]:
        """Return the equally good trees over leaf switches as parents by node; the root's parent is the root."""
        if len(leaves) == 1:
            return [{leaves[0]: leaves[0]}]
        maps = [self._reach_switches(leaf) for leaf in leaves]
        common = set(maps[0]).intersection(*maps[1:])
        if not common:
            names = ", ".join(
                self.arrays.fabric.nodes[leaf].name for leaf in leaves[:4]
            )
            raise ScheduleError(
                f"{self.arrays.fabric.name}: no switch with a reduction unit joins {names}; use ring or tree"
            )
        costs = {}
        for node in common:
            distances = [reached[node][0] for reached in maps]
            costs[node] = max(distances), sum(distances)
        best = min(costs.values())
        roots = sorted(node for node, cost in costs.items() if cost == best)
        return [self._from_root(root, leaves) for root in roots]

    def _from_root(self, root: int, leaves: tuple[int, ...]) -> dict[int, int]:
        """Return the shortest-path tree from `root`, cut to the branches to `leaves`."""
        reached, parents = self._reach_switches(root), {root: root}
        for leaf in leaves:
            node = leaf
            while node not in parents:
                parent = reached[node][1]
                parents[node] = parent
                node = parent
        return parents

    def _wires(self, nodes: Sequence[int], turn: int) -> list[int]:
        result = []
        for a, b in pairwise(nodes):
            parallel = self._graph[a][b]
            result.append(parallel[turn % len(parallel)])
        return result
