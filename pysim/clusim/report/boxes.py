"""Elements of pictures of systems: boxes of nodes, lines of wires, bars of inner wires."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.report.drawnmachine import DrawnMachine, WireGroups, own_name, span
from clusim.results.result import Wires

Array = NDArray[Any]

WIDTH = 1000.0
"""Width of a picture; heights follow from the layout. Units are arbitrary."""

LINES = 340
"""Maximum number of directed lines; above it graph nodes are merged for legibility."""

ROW_MOST = 32
"""Boxes in a row."""

BAR_TOP, BAR_PITCH = 29.0, 14.0
"""Distance of the first bar from the box's upper edge, and between bars."""


class PlacedBox(NamedTuple):
    """Box of merged graph nodes, the omitted part of their names, and its position."""

    nodes: list[int]
    prefix: str
    x: float
    y: float
    width: float
    height: float


class Frame(NamedTuple):
    """A node (server) drawn around its boxes; (x, y) is the upper left corner."""

    label: str
    x: float
    y: float
    width: float
    height: float


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

    @property
    def text_y(self) -> float:
        """Height of the label: in the middle, or above the bars."""
        return self.y if self.height < BAR_TOP + BAR_PITCH else self.y - self.height / 2 + 13


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes, titles of rows, and lines.

    Attributes
    ----------
    titles : list of (str, float)
        Title of a row of boxes and its y; empty without rows.
    source, target : list of int
        Boxes at the ends of every line; the same box for a bar inside it. Bars come last.
    lines : WireGroups
        The wires of every line; one line for each direction.
    bow : float
        Bend of a line that would cross other boxes, such as wrap-around links of a torus.
    hidden : int
        Wires between nodes that are drawn as one box.
    arc : float
        Maximum sag of lines between boxes of one row; 0 for straight lines.
    bars : list of str
        Link classes of the bars inside a box, from the top.
    bar : list of int
        Place among `bars` of the lines that are bars, in their order.
    frames : list of Frame
        Nodes (servers) drawn around their boxes.
    """

    width: float
    height: float
    boxes: list[Box]
    titles: list[tuple[str, float]]
    source: list[int]
    target: list[int]
    lines: WireGroups
    bow: float = 0.0
    hidden: int = 0
    arc: float = 0.0
    bars: tuple[str, ...] = ()
    bar: tuple[int, ...] = ()
    frames: tuple[Frame, ...] = ()

    @property
    def fineness(self) -> float:
        """Factor of line width; many lines are drawn thinner for legibility."""
        return min(1.0, max(0.4, math.sqrt(160 / max(1, self.num_ways))))

    @property
    def num_ways(self) -> int:
        """Number of lines without bars."""
        return len(self.lines) - len(self.bar)

    def bar_span(self, line: int) -> tuple[float, float, float]:
        """Return left and right end and height of a line that is a bar."""
        box = self.boxes[self.source[line]]
        y = box.y - box.height / 2 + BAR_TOP + BAR_PITCH * self.bar[line - self.num_ways]
        return box.x - box.width / 2 + 3, box.x + box.width / 2 - 3, y

    def bar_titles(self) -> list[tuple[str, float]]:
        """Return the kinds of links of bars, and where they are."""
        at = {self.bars[p]: self.bar_span(self.num_ways + i)[2] for i, p in enumerate(self.bar)}
        return list(at.items())


def count_lines(machine: DrawnMachine, cells: list[list[list[int]]]) -> int:
    """Return the number of directed lines if each cell of graph nodes is one box."""
    cell_of = np.zeros(len(machine.nodes), np.int64)
    for number, cell in enumerate(cell for row in cells for cell in row):
        cell_of[cell] = number
    pairs = np.stack([cell_of[machine.source], cell_of[machine.target]], axis=1)
    return len(np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0))


def common_prefix(names: list[str]) -> str:
    """Return the common prefix of names that are followed by numbers: ``gpu`` of ``gpu0``, ``gpu1``."""
    matches = [re.fullmatch(r"(.*?)([\d.]+)", name) for name in names]
    prefixes = {match[1] for match in matches if match}
    return prefixes.pop() if all(matches) and len(prefixes) == 1 else ""


class BoxLayout(NamedTuple):
    """Positions of boxes and titles, and routes of the lines between them; see `Picture`."""

    height: float
    placed: list[PlacedBox]
    titles: list[tuple[str, float]]
    bow: float = 0.0
    arc: float = 0.0
    frames: tuple[Frame, ...] = ()


def finish(
    machine: DrawnMachine,
    wires: Wires,
    layout: BoxLayout,
    *,
    bars: tuple[str, ...] = (),
) -> Picture:
    """Create boxes, lines between them, and bars for internal wires of the kinds in `bars`."""
    placed, frames = layout.placed, layout.frames
    box_of = np.zeros(len(machine.nodes), np.int64)
    boxes = []
    for number, cell in enumerate(placed):
        box_of[cell.nodes] = number
        name = span([machine.nodes[n] for n in cell.nodes])
        label = span([own_name(machine.nodes[n]) for n in cell.nodes]) if frames else name
        prefix = cell.prefix
        label = label.removeprefix(prefix).replace(f" ... {prefix}", "...") if prefix else label
        kind = "endpoint" if cell.nodes[0] < machine.num_endpoints else "switch"
        boxes.append(Box(label, name, kind, *cell[2:]))
    a, b = box_of[machine.source], box_of[machine.target]
    members = _runs(np.flatnonzero(a != b), np.stack([a, b], axis=1))
    source = [int(a[group[0]]) for group in members]
    target = [int(b[group[0]]) for group in members]
    labels = [f"{boxes[s].name}->{boxes[t].name}" for s, t in zip(source, target, strict=True)]
    classes = [wires.classes[int(group[0])] for group in members]
    bar: list[int] = []
    if bars:
        kind_of = np.array([bars.index(k) if k in bars else -1 for k in link_kinds(wires)])
        for group in _runs(
            np.flatnonzero((a == b) & (kind_of >= 0)), np.stack([a, kind_of], axis=1)
        ):
            box, place = int(a[group[0]]), int(kind_of[group[0]])
            bar.append(place)
            source.append(box)
            target.append(box)
            members.append(group)
            labels.append(f"{boxes[box].name}: {bars[place]}")
            classes.append(f"{bars[place]} inside the machine")
    lines = WireGroups.of(labels, classes, members)
    return Picture(
        WIDTH, layout.height, boxes, layout.titles, source, target, lines, layout.bow,
        len(machine.source) - len(lines.wires), layout.arc, bars, tuple(bar), frames,
    )  # fmt: skip


def link_kinds(wires: Wires) -> list[str]:
    """Return the kind of link of every wire: ``nvlink`` of the class ``nvlink gpu->switch``."""
    return [name.rpartition(" ")[0] or name for name in wires.classes]


def _runs(shown: Array, keys: Array) -> list[Array]:
    """Return sets of the wires in `shown` with one key each, in the order of keys."""
    order = shown[np.lexsort((keys[shown, 1], keys[shown, 0]))]
    changes = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
    bounds = [0, *changes.tolist(), len(order)]
    return [order[low:high] for low, high in pairwise(bounds) if high > low]
