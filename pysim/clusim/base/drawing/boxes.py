"""Elements of pictures of systems: boxes of nodes, lines of wires, bars of inner wires."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.base.drawing.machine import DrawnMachine, WireGroups, cut, own_name, span
from clusim.base.terms.links import kind_of

WIDTH = 1000.0
"""Width of a picture; heights follow from the layout. Units are arbitrary."""

LINES = 340
"""Maximum number of directed lines; above it graph nodes are merged for legibility."""

ROW_MOST = 32
"""Boxes in a row."""

BAR_TOP, BAR_PITCH = 29.0, 14.0
"""Distance of the first bar from the box's upper edge, and between bars."""

APART = 2.6
"""Distance of the two directions of a link from its middle."""

INSIDE = " inside the node"
"""Words after the kind of the wires of a bar, in place of the kinds of its ends."""

THIN, EVEN, THICK = 1.0, 2.2, 3.8
"""Line widths: minimal bandwidth, equal bandwidths, maximal bandwidth."""


class PlacedBox(NamedTuple):
    """Box of merged graph nodes, the omitted part of their names, and its position."""

    nodes: list[int]
    prefix: str
    x: float
    y: float
    width: float
    height: float


class Frame(NamedTuple):
    """A node (server) drawn around its boxes, with its upper left corner."""

    label: str
    corner: tuple[float, float]
    width: float
    height: float

    @property
    def text(self) -> tuple[float, float]:
        """Left end and height of its label, at its lower edge."""
        x, top = self.corner
        return x + 9, top + self.height - 12


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or several that are drawn as one, centred at (x, y).

    Attributes
    ----------
    kind : str
        ``endpoint`` or ``switch``.
    tier : str
        Kind of its graph nodes.
    """

    label: str
    name: str
    kind: str
    tier: str
    x: float
    y: float
    width: float
    height: float

    @property
    def corner(self) -> tuple[float, float]:
        """Its upper left corner."""
        return self.x - self.width / 2, self.y - self.height / 2

    @property
    def radius(self) -> float:
        """Radius of its corners."""
        return min(5.0, self.height / 4)

    @property
    def text_y(self) -> float:
        """Height of the label: in the middle, or above the bars."""
        return (
            self.y
            if self.height < BAR_TOP + BAR_PITCH
            else self.y - self.height / 2 + 13
        )


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

    def bar_spans(self) -> list[tuple[float, float, float]]:
        """Return left and right end and height of the lines that are bars."""
        spans = []
        for line, place in enumerate(self.bar, self.num_ways):
            box = self.boxes[self.source[line]]
            x, top = box.corner
            spans.append(
                (x + 3, box.x + box.width / 2 - 3, top + BAR_TOP + BAR_PITCH * place)
            )
        return spans

    def bar_titles(self) -> list[tuple[str, float]]:
        """Return the kinds of links of bars, and where they are."""
        spans = zip(self.bar, self.bar_spans(), strict=True)
        return list({self.bars[place]: y for place, (_, _, y) in spans}.items())

    def line_widths(self, rate_Bps: Array) -> list[float]:
        """Return the width of every line.

        Its area grows with the bandwidth of all its links in its direction.

        Parameters
        ----------
        rate_Bps : ndarray, shape (wires,)
            Nominal rate of every wire [bytes/s].
        """
        if not len(self.lines):
            return []
        rates = self.lines.total(rate_Bps)
        if rates.min() == rates.max():
            return [self.fineness * EVEN] * len(rates)
        part = np.sqrt(rates / float(rates.max()))
        widths: list[float] = (
            self.fineness * (THIN + (THICK - THIN) * part)
        ).tolist()
        return widths

    def label_sizes(self, max_size: float, letters: float) -> dict[float, float]:
        """Return the font size of boxes by width, at most `max_size`, such that the longest label fits.

        `letters` is the number of letters in the width of as many font sizes.
        """
        sizes: dict[float, float] = {}
        for box in self.boxes:
            fitting = letters * (box.width - 4) / max(1, len(box.label))
            sizes[box.width] = min(max_size, fitting, sizes.get(box.width, max_size))
        return sizes

    def bend(self, line: int) -> tuple[tuple[float, float], ...]:
        """Return start, control point and end of a line, to the right of the middle in its direction.

        With `bow`, ways along a row or a column that pass other boxes are bent; with `arc`, ways along a row that
        pass others hang down. All others are straight.
        """
        a, b = self.boxes[self.source[line]], self.boxes[self.target[line]]
        bow = self.bow
        dx, dy = b.x - a.x, b.y - a.y
        far = math.hypot(dx, dy) or 1.0
        nx, ny = -dy / far, dx / far
        out = apart = APART * self.fineness**0.5
        if bow and min(abs(dx), abs(dy)) < 1 and far > 5 * bow:
            # Both directions bend to the same side; the control point of a parabola is twice as far out as its top.
            out += 2 * bow * (1 if (dx, dy) > (0, 0) else -1)
        if self._hangs(a, b):
            out += 2 * min(self.arc, 12 + 0.1 * far) * (1 if dx > 0 else -1)
        middle = ((a.x + b.x) / 2 + nx * out, (a.y + b.y) / 2 + ny * out)
        return (
            (a.x + nx * apart, a.y + ny * apart),
            middle,
            (b.x + nx * apart, b.y + ny * apart),
        )

    def bent(self, line: int) -> bool:
        """Return True if a line is drawn as a curve."""
        a, b = self.boxes[self.source[line]], self.boxes[self.target[line]]
        return bool(self.bow) or self._hangs(a, b)

    def _hangs(self, a: Box, b: Box) -> bool:
        """Return True if the way between two boxes of a row is drawn below those between them."""
        if not self.arc or abs(a.y - b.y) > 1:
            return False
        low, high = sorted((a.x, b.x))
        return any(
            abs(box.y - a.y) < 1 and low + 1 < box.x < high - 1 for box in self.boxes
        )


class BoxLayout(NamedTuple):
    """Positions of boxes and titles, and routes of the lines between them; see `Picture`."""

    height: float
    placed: list[PlacedBox]
    titles: list[tuple[str, float]]
    bow: float = 0.0
    arc: float = 0.0
    frames: tuple[Frame, ...] = ()


def finish(
    machine: DrawnMachine, layout: BoxLayout, bars: tuple[str, ...] = ()
) -> Picture:
    """Create boxes, lines between them, and bars for internal wires of the kinds in `bars`."""
    frames = layout.frames
    box_of = np.zeros(len(machine.nodes), np.int64)
    boxes = []
    for number, (nodes, prefix, *place) in enumerate(layout.placed):
        box_of[nodes] = number
        name = span([machine.nodes[n] for n in nodes])
        label = span([own_name(machine.nodes[n]) for n in nodes]) if frames else name
        label = (
            label.removeprefix(prefix).replace(f" ... {prefix}", "...")
            if prefix
            else label
        )
        kind = "endpoint" if nodes[0] < machine.num_endpoints else "switch"
        boxes.append(Box(label, name, kind, machine.kinds[nodes[0]], *place))
    a, b = box_of[machine.source], box_of[machine.target]
    members = _runs(a != b, a, b)
    source = [int(a[group[0]]) for group in members]
    target = [int(b[group[0]]) for group in members]
    labels = [
        f"{boxes[s].name}->{boxes[t].name}"
        for s, t in zip(source, target, strict=True)
    ]
    classes = [machine.classes[int(group[0])] for group in members]
    bar: list[int] = []
    if bars:
        kinds = map(kind_of, machine.classes)
        place_of = np.array(
            [bars.index(kind) if kind in bars else -1 for kind in kinds]
        )
        for group in _runs((a == b) & (place_of >= 0), a, place_of):
            box, at = int(a[group[0]]), int(place_of[group[0]])
            bar.append(at)
            source.append(box)
            target.append(box)
            members.append(group)
            labels.append(f"{boxes[box].name}: {bars[at]}")
            classes.append(f"{bars[at]}{INSIDE}")
    lines = WireGroups.of(labels, classes, members)
    return Picture(
        WIDTH, layout.height, boxes, layout.titles, source, target, lines, layout.bow,
        len(machine.source) - len(lines.wires), layout.arc, bars, tuple(bar), frames,
    )  # fmt: skip


def _runs(visible: Array, first: Array, second: Array) -> list[Array]:
    """Return sets of the wires in the mask `visible` with one pair of keys each, in the order of keys."""
    keys = np.stack([first, second], axis=1)
    order = np.flatnonzero(visible)
    return cut(order[np.lexsort((second[order], first[order]))], keys)
