"""Placement of nodes in a picture, in rows, a grid or a circle, and the wires of each line."""

from __future__ import annotations

import math
import re

import numpy as np

from clusim.base.arrays import Array
from clusim.base.drawing.boxes import (
    BAR_PITCH,
    BAR_TOP,
    LINES,
    ROW_MOST,
    WIDTH,
    BoxLayout,
    Picture,
    PlacedBox,
    finish,
)
from clusim.base.drawing.machine import (
    DrawnMachine,
    common_prefix,
    span,
)
from clusim.base.drawing.panels import panels
from clusim.base.terms.links import kind_of

HOST_TIERS = frozenset(("pcie", "root", "memory", "nic"))
"""Tiers of the part of a node around its CPUs."""

MOST_PANELS = 4
"""Machines above which each is drawn as one box."""

GRID_LINES = 1400
"""Limit like `LINES` for a grid, where lines do not cross."""

MOST_BESIDE = 3
"""Endpoints that are drawn one by one beside their router in a grid."""

FOLDED_LINES = 640
"""Limit like `LINES` between nodes drawn as boxes and their switches; lines are parallel."""

MOST_BARS = 4
"""Maximum number of link-class bars in the box of a node."""


def draw(machine: DrawnMachine) -> Picture:
    """Return the picture of a system: rows by distance from the endpoints, a grid, or a circle.

    A few nodes are drawn with their interior, many as boxes with a bar for each kind of internal links.
    """
    zones = machine.zones()
    if len(zones) <= MOST_PANELS and (
        zones or not HOST_TIERS.isdisjoint(machine.kinds)
    ):
        picture = panels(machine)
        if picture is not None:
            return picture
    if not zones:
        return finish(machine, _plan(machine, 0))
    folded = machine.collapse_cluster()
    between = folded.source != folded.target
    inner = dict.fromkeys(
        kind_of(folded.classes[wire]) for wire in np.flatnonzero(~between)
    )
    bars = tuple(inner)[:MOST_BARS]
    plan = _plan(folded.part(between), len(bars))
    return finish(folded, plan, bars if plan.titles else ())


def _plan(machine: DrawnMachine, bars: int) -> BoxLayout:
    """Place the nodes; endpoints have room for `bars` in their boxes where these lie in a row."""
    depth = _depths(machine)
    inside = depth[machine.source] == depth[machine.target]
    rows = [
        np.flatnonzero(depth == level).tolist()
        for level in range(max(depth, default=0) + 1)
    ]
    if not inside.any():
        return _in_rows(machine, [machine.in_order(row) for row in rows], bars)
    halves = _halves(machine, depth, inside)
    if halves is not None and not bars:
        return _in_rows(machine, halves, 0)
    grid = _grid(machine, rows)
    if (
        grid is not None
        and machine.num_lines([[[n] for row in rows for n in row]]) <= GRID_LINES
    ):
        return grid
    return _circle(machine, rows)


def _depths(machine: DrawnMachine) -> Array:
    """Return the distance of every node from the nearest endpoint [hops]."""
    neighbours, depth = machine.neighbours, np.zeros(len(machine.nodes), np.int64)
    edge = visited = set(range(machine.num_endpoints))
    level = 0
    while edge:
        level += 1
        edge = {other for node in edge for other in neighbours[node]} - visited
        visited = visited | edge
        depth[list(edge)] = level
    return depth


def _halves(
    machine: DrawnMachine, depth: Array, inside: Array
) -> list[list[int]] | None:
    """Return rows for two equal nodes (servers) joined at their top: one upright, one inverted."""
    if depth.max(initial=0) < 1:
        return None
    neighbours = machine.part(~inside).neighbours
    parts: list[set[int]] = []
    for first in range(len(machine.nodes)):
        if any(first in part for part in parts):
            continue
        part = edge = {first}
        while edge:
            edge = {other for node in edge for other in neighbours[node]} - part
            part = part | edge
        parts.append(part)
    if len(parts) != 2 or len(parts[0]) != len(parts[1]):
        return None
    one, two = (
        [
            [n for n in sorted(part) if depth[n] == level]
            for level in range(int(depth.max()) + 1)
        ]
        for part in parts
    )
    return [*one, *reversed(two)]


def _in_rows(machine: DrawnMachine, rows: list[list[int]], bars: int) -> BoxLayout:
    """Draw rows from the bottom to the top, with merged nodes in rows that are too long."""
    chunk = [max(1, -(-len(row) // ROW_MOST)) for row in rows]
    while True:
        cells = [
            [row[i : i + size] for i in range(0, len(row), size)]
            for row, size in zip(rows, chunk, strict=True)
        ]
        if machine.num_lines(cells) <= (FOLDED_LINES if bars else LINES):
            break
        longest = max(range(len(rows)), key=lambda r: (len(cells[r]), -r))
        if len(cells[longest]) <= 2:
            break
        chunk[longest] *= 2
    left_x, boxes, titles = 120.0, [], []
    gap = min(420.0, max(128.0, 480.0 / max(1, len(cells) - 1)))
    lowest = BAR_TOP + BAR_PITCH * bars if bars else 30.0
    height = gap * (len(cells) - 1) + lowest + 46.0
    for level, row in enumerate(cells):
        tall = 30.0 if level else lowest
        y = (
            height - 23.0 - lowest / 2
            if not level
            else height - lowest - 8.0 - gap * level
        )
        prefix = common_prefix([machine.nodes[n] for cell in row for n in cell])
        if bars and not level:
            titles.append((machine.kinds[row[0][0]], y - tall / 2 + 13))
        else:
            titles.append((prefix or machine.kinds[row[0][0]], y))
        pitch = (WIDTH - left_x - 10) / len(row)
        for place, cell in enumerate(row):
            x = left_x + pitch * (place + 0.5)
            boxes.append(
                PlacedBox(cell, prefix, x, y, min(74.0, pitch * 0.84), tall)
            )
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
    sizes = [
        max(place[axis] for place in at.values()) + 1
        for axis in range(len(at[rows[1][0]]))
    ]
    if len({len(place) for place in at.values()}) != 1 or len(sizes) > 3:
        return None
    pairs = list(zip(machine.source.tolist(), machine.target.tolist(), strict=True))
    between = [(at[a], at[b]) for a, b in pairs if a in at and b in at]
    if any(sum(x != y for x, y in zip(a, b, strict=True)) != 1 for a, b in between):
        return None
    across, down = sizes[-1], sizes[-2]
    sheets = sizes[0] if len(sizes) == 3 else 1
    total = across * sheets + (sheets - 1) * 0.5
    pitch = min(120.0, (WIDTH - 40.0) / total)
    box, size = pitch * 0.4, pitch * 0.17
    shift = (WIDTH - pitch * total) / 2
    prefix = common_prefix([machine.nodes[n] for n in rows[1]])
    first: dict[int, int] = {}
    for a, b in (*pairs, *((b, a) for a, b in pairs)):
        first.setdefault(a, b)
    attached: dict[int, list[int]] = {}
    for node in rows[0]:
        attached.setdefault(first[node], []).append(node)
    routers, hanging = [], []
    for node, place in at.items():
        sheet = place[0] if len(sizes) == 3 else 0
        x = shift + pitch * (place[-1] + 0.5 + sheet * (across + 0.5))
        y = pitch * (place[-2] + 0.62)
        routers.append(PlacedBox([node], prefix, x, y, box, box * 0.62))
        endpoints = attached.get(node, [])
        cells = (
            [[end] for end in endpoints]
            if len(endpoints) <= MOST_BESIDE
            else [endpoints]
        )
        for turn, cell in enumerate(cells):
            name = span([machine.nodes[n] for n in cell])
            left_x, top = x + pitch * (0.34 - 0.2 * turn), y - pitch * 0.34
            hanging.append(PlacedBox(cell, name, left_x, top, size, size))
    return BoxLayout(pitch * (down + 0.24), routers + hanging, [], 0.3 * pitch)


def _circle(machine: DrawnMachine, rows: list[list[int]]) -> BoxLayout:
    """Draw the innermost graph nodes on a circle and their attached nodes around it."""
    *outer, core = rows
    chunk = max(1, -(-len(core) // 48))
    while True:
        cells = [core[i : i + chunk] for i in range(0, len(core), chunk)]
        outer_cells = [[[n] for n in row] for row in outer]
        if machine.num_lines([cells, *outer_cells]) <= LINES * 2 or len(cells) <= 4:
            break
        chunk *= 2
    size, margin = (600.0, 88.0) if outer else (520.0, 44.0)
    boxes = []
    rings = [cells, _near_core(machine, rows, cells)] if outer else [cells]
    for ring, row in enumerate(rings):
        reach = size / 2 - margin + 62.0 * ring
        prefix = (
            common_prefix([machine.nodes[n] for cell in row for n in cell])
            if outer
            else ""
        )
        width = min(74.0, 2 * math.pi * reach / max(1, len(row)) * 0.72)
        for place, cell in enumerate(row):
            angle = 2 * math.pi * (place + 0.5) / len(row) - math.pi / 2
            x, y = (
                WIDTH / 2 + 1.35 * reach * math.cos(angle),
                size / 2 + reach * math.sin(angle),
            )
            boxes.append(
                PlacedBox(cell, prefix, x, y, width, min(28.0, width * 0.62))
            )
    return BoxLayout(size, boxes, [])


def _near_core(
    machine: DrawnMachine, rows: list[list[int]], cells: list[list[int]]
) -> list[list[int]]:
    """Return the nodes outside the core in as many cells as the core has.

    Each cell is placed beside its attachment.
    """
    cell_of = {node: number for number, cell in enumerate(cells) for node in cell}
    neighbours = machine.neighbours
    outer: list[list[int]] = [[] for _ in cells]
    for node in (n for row in rows[:-1] for n in row):
        hooks = sorted(neighbours[node] & cell_of.keys())
        outer[cell_of[hooks[0]] if hooks else 0].append(node)
    return [cell for cell in outer if cell]
