"""Placement of the graph nodes of a few servers: a panel each, with rows of boxes below their switches."""

from __future__ import annotations

from typing import NamedTuple

from clusim.base.drawing.boxes import (
    ROW_MOST,
    WIDTH,
    BoxLayout,
    Frame,
    Picture,
    PlacedBox,
    finish,
)
from clusim.base.drawing.machine import (
    DrawnMachine,
    common_prefix,
    own_name,
    zone_of,
)

PANEL_LINES = 520
"""Maximum number of directed lines in panels; above it graph nodes are merged.

The limit is high because the lines of adjacent nodes (servers) do not cross.
"""

LEFT = 104.0
GAP = 104.0
BOX = 30.0
PAD = 12.0
FOOT = 26.0
"""Layout distances.

Title width, row pitch, box height, space above the boxes of a panel, and space below them for its name.
"""

ARC = 46.0
"""Largest sag of lines between boxes of one row."""

_SWITCH, _ENDPOINT, _PCIE, _UPPER_PCIE, _ROOT, _MEMORY, _NIC, _NETWORK = range(8)
_LEVELS = {
    "gpu": _ENDPOINT,
    "host": _ENDPOINT,
    "root": _ROOT,
    "memory": _MEMORY,
    "nic": _NIC,
}


class _Row(NamedTuple):
    """Graph nodes of one level and server, in cells that are drawn as one box each."""

    level: int
    zone: str
    cells: list[list[int]]


def panels(machine: DrawnMachine) -> Picture | None:
    """Return a picture with a panel per node; None if the network has no hierarchical tiers."""
    neighbours = machine.neighbours
    levels = _levels(machine, neighbours)
    network = [n for n, level in enumerate(levels) if level >= _NETWORK]
    if any(levels[n] == levels[m] for n in network for m in neighbours[n]):
        return None
    zones = machine.zones() or [""]
    members: dict[tuple[int, str], list[int]] = {}
    for node, level in enumerate(levels):
        zone = "" if level >= _NETWORK else zone_of(machine.nodes[node])
        members.setdefault((level, zone), []).append(node)
    rows = [
        _Row(
            level,
            zone,
            _cells(
                neighbours, machine.in_order(members[level, zone]), ROW_MOST // share
            ),
        )
        for level in range(max(levels) + 1)
        for share, zone in (
            [(1, "")] if level >= _NETWORK else [(len(zones), z) for z in zones]
        )
        if (level, zone) in members
    ]
    return _draw_rows(machine, neighbours, _fewer(machine, rows), zones)


def _levels(machine: DrawnMachine, neighbours: list[set[int]]) -> list[int]:
    """Return the row of every node, from the bottom; rows may be empty."""
    clustered = bool(machine.zones())
    levels = []
    for node, (name, kind) in enumerate(
        zip(machine.nodes, machine.kinds, strict=True)
    ):
        if clustered and not zone_of(name):
            levels.append(-1)
        elif kind == "pcie":
            ends = {machine.kinds[other] for other in neighbours[node]}
            levels.append(_PCIE if ends & {"gpu", "nic", "host"} else _UPPER_PCIE)
        else:
            levels.append(_LEVELS.get(kind, _SWITCH))
    # Network switches by their distance from the nodes.
    edge, level = (
        {n for n, node_level in enumerate(levels) if node_level >= 0},
        _NETWORK,
    )
    while edge:
        edge = {other for n in edge for other in neighbours[n] if levels[other] < 0}
        for node in edge:
            levels[node] = level
        level += 1
    return [_NETWORK if node_level < 0 else node_level for node_level in levels]


def _cells(
    neighbours: list[set[int]], nodes: list[int], max_width: int
) -> list[list[int]]:
    """Return at most `max_width` cells of graph nodes.

    A cell is a single node, nodes with a common neighbour, or adjacent nodes.
    """
    if len(nodes) <= max_width:
        return [[node] for node in nodes]
    mine = set(nodes)
    alike: dict[int, list[int]] = {}
    for node in nodes:
        # Attachments within a node have few neighbours, network nodes have many.
        hook = min(
            neighbours[node] - mine,
            key=lambda hook: (len(neighbours[hook]), hook),
            default=-1,
        )
        alike.setdefault(hook, []).append(node)
    cells = list(alike.values())
    if not 1 < len(cells) <= max_width:
        min_cells = -(-len(nodes) // max_width)
        even = [
            size
            for size in range(min_cells, 2 * min_cells + 1)
            if len(nodes) % size == 0
        ]
        size = even[0] if even else min_cells
        cells = [nodes[i : i + size] for i in range(0, len(nodes), size)]
    return cells


def _fewer(machine: DrawnMachine, rows: list[_Row]) -> list[_Row]:
    """Merge graph nodes, in the same way on all servers, until there are few enough lines."""
    while machine.num_lines([row.cells for row in rows]) > PANEL_LINES:
        longest = max(rows, key=lambda row: len(row.cells))
        if len(longest.cells) <= 4:
            break
        rows = [
            row._replace(cells=_join_neighbours(row.cells))
            if row.level == longest.level
            else row
            for row in rows
        ]
    return rows


def _join_neighbours(cells: list[list[int]]) -> list[list[int]]:
    """Join every two neighbours."""
    return [
        [n for cell in cells[i : i + 2] for n in cell]
        for i in range(0, len(cells), 2)
    ]


def _draw_rows(
    machine: DrawnMachine,
    neighbours: list[set[int]],
    rows: list[_Row],
    zones: list[str],
) -> Picture:
    levels: dict[int, list[int]] = {}
    for row in rows:
        for cell in row.cells:
            levels.setdefault(row.level, []).extend(cell)
    clustered = zones != [""]
    lowest = set(levels[min(levels)])
    hanging = any(neighbours[node] & lowest for node in lowest)
    floor = (FOOT if clustered else 12.0) + (ARC if hanging else 0.0)
    height = floor + BOX + GAP * (len(levels) - 1) + PAD + 6
    y_of = {
        level: height - floor - BOX / 2 - GAP * i
        for i, level in enumerate(sorted(levels))
    }
    share = (WIDTH - LEFT - 6) / len(zones)
    placed: list[PlacedBox] = []
    x_of: dict[int, float] = {}
    for row in sorted(rows, key=lambda row: (row.level == _SWITCH, row.level)):
        low, wide = LEFT, WIDTH - LEFT - 6
        if row.level < _NETWORK and clustered:
            low, wide = LEFT + share * zones.index(row.zone) + 8, share - 16
        width = min(74.0, wide / len(row.cells) * 0.84)
        preferred = [
            _preferred_x(neighbours, cell, x_of, low + wide / 2)
            for cell in row.cells
        ]
        if row.level in (_SWITCH, _ENDPOINT) or row.level >= _NETWORK:
            preferred = [
                low + wide * (i + 0.5) / len(row.cells)
                for i in range(len(row.cells))
            ]
        if row.level == _MEMORY and _NIC in levels:
            # Lines that continue to the NICs pass beside it.
            preferred = [x + 0.7 * width + 8 for x in preferred]
        order = sorted(range(len(row.cells)), key=lambda i: (preferred[i], i))
        spots = _apart([preferred[i] for i in order], width / 0.84, low, low + wide)
        prefix = common_prefix(
            [own_name(machine.nodes[n]) for cell in row.cells for n in cell]
        )
        for i, x in zip(order, spots, strict=True):
            x_of |= dict.fromkeys(row.cells[i], x)
            placed.append(
                PlacedBox(row.cells[i], prefix, x, y_of[row.level], width, BOX)
            )
    inside = [y_of[level] for level in levels if level < _NETWORK]
    frames = tuple(
        Frame(zone, (LEFT + share * i + 3, min(inside) - BOX / 2 - PAD), share - 6,
              max(inside) - min(inside) + BOX + PAD + floor - 2)
        for i, zone in enumerate(zones)
    ) if clustered else ()  # fmt: skip
    titles = [
        (_level_title(machine, nodes), y_of[level])
        for level, nodes in sorted(levels.items())
    ]
    return finish(machine, BoxLayout(height, placed, titles, arc=ARC, frames=frames))


def _level_title(machine: DrawnMachine, nodes: list[int]) -> str:
    """Return the common start of the names of a level's graph nodes, or their kind."""
    prefix = common_prefix([own_name(machine.nodes[n]) for n in nodes])
    return prefix or machine.kinds[nodes[0]]


def _preferred_x(
    neighbours: list[set[int]],
    cell: list[int],
    x_of: dict[int, float],
    middle: float,
) -> float:
    """Return the preferred position of a box: above the middle of its attachments."""
    result = [
        x_of[other] for node in cell for other in neighbours[node] if other in x_of
    ]
    return sum(result) / len(result) if result else middle


def _apart(
    preferred: list[float], pitch: float, low: float, high: float
) -> list[float]:
    """Return positions at least `pitch` apart, as close as possible to `preferred` (ascending)."""
    blocks: list[tuple[float, int]] = []
    for i, want in enumerate(preferred):
        mean, count = want - i * pitch, 1
        while blocks and blocks[-1][0] > mean:
            other, size = blocks.pop()
            mean, count = (
                (mean * count + other * size) / (count + size),
                count + size,
            )
        blocks.append((mean, count))
    right_limit = high - pitch / 2 - (len(preferred) - 1) * pitch
    starts = [
        min(max(mean, low + pitch / 2), right_limit)
        for mean, count in blocks
        for _ in range(count)
    ]
    return [start + i * pitch for i, start in enumerate(starts)]
