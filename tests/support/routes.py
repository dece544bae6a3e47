"""Shortest paths and route rows for the image builder."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from clusim.engine.abi import NONE
from clusim.engine.image import Image

__all__ = ["NETWORK", "ShortestPaths", "route_rows", "wires_of"]

NETWORK = NONE
"""The zone of switches between machines; no target has it."""

Row = dict[str, Any]
Rows = dict[str, list[Row]]


class ShortestPaths:
    """Distances over switches and relays; `rows` must not get more wires."""

    def __init__(self, rows: Rows, relays: set[int]) -> None:
        self._nodes, self._wires = rows["nodes"], rows.get("wires", [])
        self._relays = relays
        self._known: dict[tuple[int, int | None], dict[int, int]] = {}

    def wires(self, node: int, goal: int, anywhere: bool) -> list[int]:
        """Return the wires out of `node` that lie on a shortest path to the node `goal`."""
        zone = None if anywhere else self._zone_between(node, goal)
        distance = self._distances(goal, zone)
        if node not in distance or distance[node] == 0:
            return []
        return [
            i
            for i, wire in enumerate(self._wires)
            if wire["src"] == node
            and distance.get(wire["dst"]) == distance[node] - 1
            and (distance[node] == 1 or self._forwards(wire["dst"], zone))
        ]

    def _zone_between(self, node: int, goal: int) -> int:
        """Packets stay in a machine, or in the network between two."""
        here, there = self._nodes[node]["zone"], self._nodes[goal]["zone"]
        return here if here == there else NETWORK

    def _forwards(self, node: int, zone: int | None) -> bool:
        row = self._nodes[node]
        forwards = row["endpoint"] == NONE or node in self._relays
        return forwards and (zone is None or row["zone"] == zone)

    def _distances(self, goal: int, zone: int | None) -> dict[int, int]:
        if (goal, zone) in self._known:
            return self._known[goal, zone]
        distance = self._known[goal, zone] = {goal: 0}
        todo = deque([goal])
        while todo:
            node = todo.popleft()
            if node != goal and not self._forwards(node, zone):
                continue
            for wire in self._wires:
                if wire["dst"] == node and wire["src"] not in distance:
                    distance[wire["src"]] = distance[node] + 1
                    todo.append(wire["src"])
        return distance


def route_rows(rows: Rows, nics: list[int], group: Callable[[int, int], int]) -> list[int]:
    """Return the array of routes; fill in `targets`, and where each node's rows are.

    `group(node, goal)` is the route group between two nodes. Only NICs are seen from other machines.
    """
    targets = rows["targets"] = _targets(rows, nics)
    several = len({row["zone"] for row in rows["nodes"]}) > 1
    routes = [NONE]
    for node, row in enumerate(rows["nodes"]):
        local = [target for target in targets if target["zone"] == row["zone"]]
        row["route_lo"] = len(routes)
        routes += [group(node, target["node"]) for target in local]
        stride = row.get("wide_stride", 0) if row["zone"] != NETWORK else 1
        row.update(wide_lo=0, wide_stride=0)  # the NONE at the start
        if several and stride:
            row.update(wide_lo=len(routes), wide_stride=1)
            routes += [NONE, *(group(node, nic) for nic in nics)]
        elif several and node in nics:
            away = [nic for nic in nics if rows["nodes"][nic]["zone"] != row["zone"]]
            row["wide_lo"] = len(routes)
            routes.append(group(node, away[0]) if away else NONE)
    return routes


def _targets(rows: Rows, nics: list[int]) -> list[Row]:
    """Return the rows of `targets`: endpoints, which share a wide column of NONE, then NICs."""
    places = [(row["node"], 0) for row in rows["endpoints"]]
    places += [(nic, 1 + i) for i, nic in enumerate(nics)]
    columns: dict[int, int] = {}
    found = []
    for node, wide in places:
        zone = rows["nodes"][node]["zone"]
        local = columns[zone] = columns.get(zone, -1) + 1
        found.append({"node": node, "zone": zone, "local": local, "wide": wide})
    return found


def wires_of(image: Image, row: np.void) -> list[int]:
    """Follow the route choice of section 6 of the contract from NIC to NIC."""
    key, ordinal, visited = int(row["key"]), 0, []
    targets = [int(t) for t in (row["via_first"], row["via_last"]) if t != NONE]
    node = int(image.endpoints["node"][row["src"]])
    for target in targets:
        while node != int(image.targets["node"][target]):
            near, goal = image.nodes[node], image.targets[target]
            at = near["route_lo"] + goal["local"]
            if near["zone"] != goal["zone"]:
                at = near["wide_lo"] + goal["wide"] * near["wide_stride"]
            group = int(image.routes[at])
            low, high = image.group_off[group : group + 2].tolist()
            size = high - low
            wire = int(image.group_wires[low + ((key + ordinal) % size if size > 1 else 0)])
            key = key // size if size > 1 else key
            ordinal, node = int(image.wires["ordinal"][wire]), int(image.wires["dst"][wire])
            visited.append(wire)
    return visited
