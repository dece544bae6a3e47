"""Placement of nodes in a picture, and the wires of each line."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.report.boxes import (
    BAR_PITCH,
    BAR_TOP,
    LINES,
    ROW_MOST,
    WIDTH,
    BoxLayout,
    Picture,
    PlacedBox,
    common_prefix,
    count_lines,
    finish,
    link_kinds,
)
from clusim.report.drawnmachine import DrawnMachine, natural_key, span
from clusim.report.panels import HOST_TIERS, MOST_PANELS, panels
from clusim.results.result import Wires

Array = NDArray[Any]

GRID_LINES = 1400
"""Limit like `LINES` for a grid, where lines do not cross."""


MOST_BESIDE = 3
"""Endpoints that are drawn one by one beside their router in a grid."""

FOLDED_LINES = 640
"""Limit like `LINES` between nodes drawn as boxes and their switches; lines are parallel."""

MOST_BARS = 4
"""Maximum number of link-class bars in the box of a node."""


def draw(machine: DrawnMachine, wires: Wires) -> Picture:
    """Return the picture of a system: rows by distance from the endpoints, a grid, or a circle.

    A few nodes are drawn with their interior, many as boxes with a bar for each kind of internal links.
    """
    zones = machine.zones()
    if len(zones) <= MOST_PANELS and (zones or not HOST_TIERS.isdisjoint(machine.kinds)):
        picture = panels(machine, wires)
        if picture is not None:
            return picture
    if not zones:
        plan = _plan(machine, 0)
        return finish(machine, wires, plan)
    folded = machine.folded()
    between = folded.source != folded.target
    kinds = link_kinds(wires)
    bars = tuple(dict.fromkeys(kinds[w] for w in np.flatnonzero(~between)))[:MOST_BARS]
    plan = _plan(folded.part(between), len(bars))
    if not plan.titles:
        bars = ()
    return finish(folded, wires, plan, bars=bars)


def _plan(machine: DrawnMachine, bars: int) -> BoxLayout:
    """Place the nodes; endpoints have room for `bars` in their boxes where these lie in a row."""
    depth = _depths(machine)
    inside = depth[machine.source] == depth[machine.target]
    rows = [
        [int(n) for n in np.flatnonzero(depth == level)]
        for level in range(int(depth.max(initial=0)) + 1)
    ]
    if not inside.any():
        return _in_rows(machine, [_by_neighbour(machine, row) for row in rows], bars)
    halves = _halves(machine, depth, inside)
    if halves is not None and not bars:
        return _in_rows(machine, halves, 0)
    grid = _grid(machine, rows)
    if grid is not None and len(_pairs(machine)) <= GRID_LINES:
        return grid
    return _circle(machine, rows)


def _depths(machine: DrawnMachine) -> Array:
    """Return the distance of every node from the nearest endpoint [hops]."""
    count = len(machine.nodes)
    near: list[list[int]] = [[] for _ in range(count)]
    for a, b in zip(machine.source.tolist(), machine.target.tolist(), strict=True):
        near[a].append(b)
    depth = np.full(count, -1, np.int64)
    depth[: machine.num_endpoints] = 0
    todo = deque(range(machine.num_endpoints))
    while todo:
        node = todo.popleft()
        for other in near[node]:
            if depth[other] < 0:
                depth[other] = depth[node] + 1
                todo.append(other)
    depth[depth < 0] = 0
    return depth


def _by_neighbour(machine: DrawnMachine, row: list[int]) -> list[int]:
    return sorted(row, key=lambda node: natural_key(machine.nodes[node]))


def _halves(machine: DrawnMachine, depth: Array, inside: Array) -> list[list[int]] | None:
    """Return rows for two equal nodes (servers) joined at their top: one upright, one inverted."""
    if depth.max(initial=0) < 1:
        return None
    root = np.arange(len(machine.nodes))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = int(root[node])
        return node

    for a, b in zip(machine.source[~inside], machine.target[~inside], strict=True):
        root[find(int(a))] = find(int(b))
    parts: dict[int, list[int]] = {}
    for node in range(len(machine.nodes)):
        parts.setdefault(find(node), []).append(node)
    if len(parts) != 2 or len({len(part) for part in parts.values()}) != 1:
        return None
    rows: list[list[int]] = []
    for upside_down, part in enumerate(parts.values()):
        levels = [[n for n in part if depth[n] == level] for level in range(int(depth.max()) + 1)]
        rows += reversed(levels) if upside_down else levels
    return rows


def _pairs(machine: DrawnMachine) -> Array:
    return np.unique(np.stack([machine.source, machine.target], axis=1), axis=0)


def _in_rows(machine: DrawnMachine, rows: list[list[int]], bars: int) -> BoxLayout:
    """Draw rows from the bottom to the top, with merged nodes in rows that are too long."""
    chunk = [max(1, -(-len(row) // ROW_MOST)) for row in rows]
    while True:
        cells = [
            [row[i : i + size] for i in range(0, len(row), size)]
            for row, size in zip(rows, chunk, strict=True)
        ]
        if count_lines(machine, cells) <= (FOLDED_LINES if bars else LINES):
            break
        longest = max(range(len(rows)), key=lambda r: (len(cells[r]), -r))
        if len(cells[longest]) <= 2:
            break
        chunk[longest] *= 2
    left, boxes, titles = 120.0, [], []
    gap = min(420.0, max(128.0, 480.0 / max(1, len(cells) - 1)))
    lowest = BAR_TOP + BAR_PITCH * bars if bars else 30.0
    height = gap * (len(cells) - 1) + lowest + 46.0
    for level, row in enumerate(cells):
        tall = 30.0 if level else lowest
        y = height - 23.0 - lowest / 2 if not level else height - lowest - 8.0 - gap * level
        prefix = common_prefix([machine.nodes[n] for cell in row for n in cell])
        if bars and not level:
            titles.append((machine.kinds[row[0][0]], y - tall / 2 + 13))
        else:
            titles.append((prefix or machine.kinds[row[0][0]], y))
        pitch = (WIDTH - left - 10) / len(row)
        for place, cell in enumerate(row):
            x = left + pitch * (place + 0.5)
            boxes.append(PlacedBox(cell, prefix, x, y, min(74.0, pitch * 0.84), tall))
    return BoxLayout(height, boxes, titles)


def _grid(machine: DrawnMachine, rows: list[list[int]]) -> BoxLayout | None:
    """Place routers on a grid by the coordinates in their names.

    Endpoints are placed beside their router.

    It is a grid if the ends of every link between routers differ in one coordinate.
    """
    if len(rows) != 2:
        return None
    at: dict[int, tuple[int, ...]] = {}
    for node in rows[1]:
        match = re.search(r"(\d+(?:\.\d+)+)$", machine.nodes[node])
        if match is None:
            return None
        at[node] = tuple(int(part) for part in match[1].split("."))
    sizes = [max(place[axis] for place in at.values()) + 1 for axis in range(len(at[rows[1][0]]))]
    if len({len(place) for place in at.values()}) != 1 or len(sizes) > 3:
        return None
    pairs = zip(machine.source.tolist(), machine.target.tolist(), strict=True)
    between = [(at[a], at[b]) for a, b in pairs if a in at and b in at]
    if any(sum(x != y for x, y in zip(a, b, strict=True)) != 1 for a, b in between):
        return None
    across, down = sizes[-1], sizes[-2]
    sheets = sizes[0] if len(sizes) == 3 else 1
    pitch = min(120.0, (WIDTH - 40.0) / (across * sheets + (sheets - 1) * 0.5))
    box = pitch * 0.4
    prefix = common_prefix([machine.nodes[n] for n in rows[1]])
    boxes, spots = [], {}
    shift = (WIDTH - pitch * (across * sheets + (sheets - 1) * 0.5)) / 2
    for node, place in at.items():
        sheet = place[0] if len(sizes) == 3 else 0
        x = shift + pitch * (place[-1] + 0.5 + sheet * (across + 0.5))
        y = pitch * (place[-2] + 0.62)
        spots[node] = (x, y)
        boxes.append(PlacedBox([node], prefix, x, y, box, box * 0.62))
    hanging: dict[int, list[int]] = {}
    for node in rows[0]:
        router = int(machine.target[np.flatnonzero(machine.source == node)[0]])
        hanging.setdefault(router, []).append(node)
    size = pitch * 0.17
    for router, nodes in hanging.items():
        x, y = spots[router]
        cells = [[node] for node in nodes] if len(nodes) <= MOST_BESIDE else [nodes]
        for turn, cell in enumerate(cells):
            name = span([machine.nodes[n] for n in cell])
            left, top = x + pitch * (0.34 - 0.2 * turn), y - pitch * 0.34
            boxes.append(PlacedBox(cell, name, left, top, size, size))
    return BoxLayout(pitch * (down + 0.24), boxes, [], 0.3 * pitch)


def _circle(machine: DrawnMachine, rows: list[list[int]]) -> BoxLayout:
    """Draw the innermost graph nodes on a circle and their attached nodes around it."""
    core = rows[-1]
    chunk = max(1, -(-len(core) // 48))
    while True:
        cells = [core[i : i + chunk] for i in range(0, len(core), chunk)]
        others = [[[n] for n in row] for row in rows[:-1]]
        if count_lines(machine, [cells, *others]) <= LINES * 2 or len(cells) <= 4:
            break
        chunk *= 2
    size = 520.0 if len(rows) == 1 else 600.0
    radius = size / 2 - (44.0 if len(rows) == 1 else 88.0)
    boxes = []
    for ring, row in enumerate([cells, *([_near_core(machine, rows, cells)] if rows[:-1] else [])]):
        reach = radius + 62.0 * ring
        prefix = common_prefix([machine.nodes[n] for cell in row for n in cell])
        width = min(74.0, 2 * math.pi * reach / max(1, len(row)) * 0.72)
        for place, cell in enumerate(row):
            angle = 2 * math.pi * (place + 0.5) / len(row) - math.pi / 2
            x, y = WIDTH / 2 + 1.35 * reach * math.cos(angle), size / 2 + reach * math.sin(angle)
            boxes.append(
                PlacedBox(
                    cell, "" if len(rows) == 1 else prefix, x, y, width, min(28.0, width * 0.62)
                )
            )
    return BoxLayout(size, boxes, [])


def _near_core(
    machine: DrawnMachine, rows: list[list[int]], cells: list[list[int]]
) -> list[list[int]]:
    """Return the nodes outside the core in as many cells as the core has.

    Each cell is placed beside its attachment.
    """
    cell_of = {node: number for number, cell in enumerate(cells) for node in cell}
    near: list[list[int]] = [[] for _ in cells]
    for node in (n for row in rows[:-1] for n in row):
        ways = machine.target[np.flatnonzero(machine.source == node)].tolist()
        near[next((cell_of[way] for way in ways if way in cell_of), 0)].append(node)
    return [cell for cell in near if cell]
