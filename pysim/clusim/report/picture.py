"""Where to draw the nodes of a machine, and which wires make one line."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.report.machine import Groups, Machine, natural_key, span
from clusim.result import Wires

__all__ = ["WIDTH", "Box", "Picture", "draw"]

Array = NDArray[Any]

WIDTH = 1000.0
"""Width of a picture; heights follow from the layout. Units are arbitrary."""

LINES = 340
"""Directed lines above which nodes are drawn together: more of them only make a tangle."""

GRID_LINES = 1400
"""The same for a grid, whose lines do not cross."""

ROW_MOST = 32
"""Boxes in a row."""

_Placed = tuple[list[int], str, float, float, float, float]
"""Nodes, the part of their names that is left out, x, y, width, height."""


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or several that are drawn as one, centred at (x, y)."""

    label: str
    name: str
    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes, titles of rows, and lines.

    Attributes
    ----------
    titles : list of (str, float)
        Title of a row of boxes and its y; empty where there are no rows.
    source, target : list of int
        Boxes at the ends of every line.
    lines : Groups
        The wires of every line; one line for each direction.
    bow : float
        How far to bend a line that would run through other boxes, as those around a torus.
    hidden : int
        Wires between nodes that are drawn as one box.
    """

    width: float
    height: float
    boxes: list[Box]
    titles: list[tuple[str, float]]
    source: list[int]
    target: list[int]
    lines: Groups
    bow: float
    hidden: int


def draw(machine: Machine, wires: Wires) -> Picture:
    """Return the picture of a machine: rows by distance from the endpoints, a grid, or a circle."""
    depth = _depths(machine)
    inside = depth[machine.source] == depth[machine.target]
    rows = [
        [int(n) for n in np.flatnonzero(depth == level)]
        for level in range(int(depth.max(initial=0)) + 1)
    ]
    if not inside.any():
        return _in_rows(machine, wires, [_by_neighbour(machine, row) for row in rows])
    halves = _halves(machine, depth, inside)
    if halves is not None:
        return _in_rows(machine, wires, halves)
    grid = _grid(machine, rows)
    if grid is not None and len(_pairs(machine)) <= GRID_LINES:
        height, pitch, boxes = grid
        return _finish(machine, wires, height, boxes, [], bow=0.3 * pitch)
    return _circle(machine, wires, rows)


def _depths(machine: Machine) -> Array:
    """Return how far every node is from the nearest endpoint [hops]."""
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


def _by_neighbour(machine: Machine, row: list[int]) -> list[int]:
    return sorted(row, key=lambda node: natural_key(machine.nodes[node]))


def _halves(machine: Machine, depth: Array, inside: Array) -> list[list[int]] | None:
    """Return rows for two like machines joined at their top: one upwards, the other upside down."""
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


def _pairs(machine: Machine) -> Array:
    return np.unique(np.stack([machine.source, machine.target], axis=1), axis=0)


def _in_rows(machine: Machine, wires: Wires, rows: list[list[int]]) -> Picture:
    """Draw rows from the bottom to the top, with nodes drawn together where they would be too many."""
    chunk = [max(1, -(-len(row) // ROW_MOST)) for row in rows]
    while True:
        cells = [
            [row[i : i + size] for i in range(0, len(row), size)]
            for row, size in zip(rows, chunk, strict=True)
        ]
        if _count_lines(machine, cells) <= LINES:
            break
        longest = max(range(len(rows)), key=lambda r: (len(cells[r]), -r))
        if len(cells[longest]) <= 2:
            break
        chunk[longest] *= 2
    left, boxes, titles = 120.0, [], []
    gap = min(420.0, max(128.0, 480.0 / max(1, len(cells) - 1)))
    height = gap * (len(cells) - 1) + 76.0
    for level, row in enumerate(cells):
        y = height - 38.0 - gap * level
        prefix = _common_prefix([machine.nodes[n] for cell in row for n in cell])
        titles.append((prefix or machine.kinds[row[0][0]], y))
        pitch = (WIDTH - left - 10) / len(row)
        for place, cell in enumerate(row):
            x = left + pitch * (place + 0.5)
            boxes.append((cell, prefix, x, y, min(74.0, pitch * 0.84), 30.0))
    return _finish(machine, wires, height, boxes, titles)


def _count_lines(machine: Machine, cells: list[list[list[int]]]) -> int:
    cell_of = np.zeros(len(machine.nodes), np.int64)
    for number, cell in enumerate(cell for row in cells for cell in row):
        cell_of[cell] = number
    pairs = np.stack([cell_of[machine.source], cell_of[machine.target]], axis=1)
    return len(np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0))


def _common_prefix(names: list[str]) -> str:
    """Return what all names start with, if numbers follow: ``gpu`` of ``gpu0``, ``gpu1``."""
    matches = [re.fullmatch(r"(.*?)([\d.]+)", name) for name in names]
    prefixes = {match[1] for match in matches if match}
    return prefixes.pop() if all(matches) and len(prefixes) == 1 else ""


def _grid(machine: Machine, rows: list[list[int]]) -> tuple[float, float, list[_Placed]] | None:
    """Place routers with coordinates in their names on a grid of a pitch, and endpoints beside their router.

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
    prefix = _common_prefix([machine.nodes[n] for n in rows[1]])
    boxes, spots = [], {}
    shift = (WIDTH - pitch * (across * sheets + (sheets - 1) * 0.5)) / 2
    for node, place in at.items():
        sheet = place[0] if len(sizes) == 3 else 0
        x = shift + pitch * (place[-1] + 0.5 + sheet * (across + 0.5))
        y = pitch * (place[-2] + 0.62)
        spots[node] = (x, y)
        boxes.append(([node], prefix, x, y, box, box * 0.62))
    taken: dict[int, int] = {}
    for node in rows[0]:
        router = int(machine.target[np.flatnonzero(machine.source == node)[0]])
        turn = taken[router] = taken.get(router, 0) + 1
        x, y = spots[router]
        size = pitch * 0.17
        boxes.append(
            (
                [node],
                machine.nodes[node],
                x + pitch * (0.34 - 0.2 * (turn - 1)),
                y - pitch * 0.34,
                size,
                size,
            )
        )
    return pitch * (down + 0.24), pitch, boxes


def _circle(machine: Machine, wires: Wires, rows: list[list[int]]) -> Picture:
    """Draw the innermost nodes on a circle and what hangs on them around it."""
    core = rows[-1]
    chunk = max(1, -(-len(core) // 48))
    while True:
        cells = [core[i : i + chunk] for i in range(0, len(core), chunk)]
        others = [[[n] for n in row] for row in rows[:-1]]
        if _count_lines(machine, [cells, *others]) <= LINES * 2 or len(cells) <= 4:
            break
        chunk *= 2
    size = 520.0 if len(rows) == 1 else 600.0
    radius = size / 2 - (44.0 if len(rows) == 1 else 88.0)
    boxes = []
    for ring, row in enumerate([cells, *([_near_core(machine, rows, cells)] if rows[:-1] else [])]):
        reach = radius + 62.0 * ring
        prefix = _common_prefix([machine.nodes[n] for cell in row for n in cell])
        width = min(74.0, 2 * math.pi * reach / max(1, len(row)) * 0.72)
        for place, cell in enumerate(row):
            angle = 2 * math.pi * (place + 0.5) / len(row) - math.pi / 2
            x, y = WIDTH / 2 + 1.35 * reach * math.cos(angle), size / 2 + reach * math.sin(angle)
            boxes.append(
                (cell, "" if len(rows) == 1 else prefix, x, y, width, min(28.0, width * 0.62))
            )
    return _finish(machine, wires, size, boxes, [])


def _near_core(machine: Machine, rows: list[list[int]], cells: list[list[int]]) -> list[list[int]]:
    """Return the nodes outside the core in as many cells as the core has, each beside what it hangs on."""
    cell_of = {node: number for number, cell in enumerate(cells) for node in cell}
    near: list[list[int]] = [[] for _ in cells]
    for node in (n for row in rows[:-1] for n in row):
        ways = machine.target[np.flatnonzero(machine.source == node)].tolist()
        near[next((cell_of[way] for way in ways if way in cell_of), 0)].append(node)
    return [cell for cell in near if cell]


def _finish(
    machine: Machine,
    wires: Wires,
    height: float,
    placed: list[_Placed],
    titles: list[tuple[str, float]],
    bow: float = 0.0,
) -> Picture:
    """Make boxes, and lines between them."""
    box_of = np.zeros(len(machine.nodes), np.int64)
    boxes = []
    for number, (cell, prefix, x, y, width, tall) in enumerate(placed):
        box_of[cell] = number
        name = span([machine.nodes[n] for n in cell])
        label = name[len(prefix) :] if prefix and name.startswith(prefix) else name
        label = label.replace(f" ... {prefix}", "...") if prefix else label
        kind = "endpoint" if cell[0] < machine.num_endpoints else "switch"
        boxes.append(Box(label, name, kind, x, y, width, tall))
    a, b = box_of[machine.source], box_of[machine.target]
    shown = np.flatnonzero(a != b)
    order = shown[np.lexsort((b[shown], a[shown]))]
    ends = np.stack([a, b], axis=1)
    bounds = [0, *(np.flatnonzero((np.diff(ends[order], axis=0) != 0).any(axis=1)) + 1), len(order)]
    members = [order[low:high] for low, high in pairwise(bounds) if high > low]
    source = [int(a[group[0]]) for group in members]
    target = [int(b[group[0]]) for group in members]
    labels = [f"{boxes[s].name}->{boxes[t].name}" for s, t in zip(source, target, strict=True)]
    classes = [wires.classes[int(group[0])] for group in members]
    lines = Groups.of(labels, classes, members)
    return Picture(WIDTH, height, boxes, titles, source, target, lines, bow, int((a == b).sum()))
