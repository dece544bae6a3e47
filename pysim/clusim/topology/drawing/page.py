"""Elements of a picture: boxes, lines, arcs and texts, with colours by link class, and the legend.

All positions are in units of a box's height. A box computes its width from its text before placement, so
labels never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusim.base.units import format_rate, format_time
from clusim.topology.model import Link
from clusim.topology.node import Node
from clusim.topology.outline import link_name

CHAR = 0.155
"""Width of a character of a label."""

GAP = 0.35
ROW = 2.1
"""Gap between boxes, and distance between rows."""

COLOURS = {
    "nvlink": "#2a9d3a",
    "xgmi": "#b5179e",
    "c2c": "#0a7f7f",
    "pcie": "#6a51a3",
    "numa": "#1f4e9e",
    "dram": "#8c8c8c",
    "infiniband": "#c1440e",
    "roce": "#d9822b",
    "efa": "#d9822b",
    "slingshot": "#a6611a",
    "ethernet": "#c1440e",
}
SPARE = ("#c1440e", "#1f4e9e", "#6a51a3", "#2a9d3a", "#8c564b", "#e377c2", "#17becf")


@dataclass(slots=True)
class DrawnBox:
    """A rectangle with lines of text."""

    lines: list[str]
    kind: str
    x: float = 0.0
    y: float = 0.0
    height: float = 1.0
    dashed: bool = False

    @property
    def width(self) -> float:
        """Width of the text."""
        return max(1.3, 0.3 + CHAR * max(len(line) for line in self.lines))


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A straight link between two rows."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float


@dataclass(frozen=True, slots=True)
class Arch:
    """A link between two boxes of one row, bent upward or downward by `height`."""

    x1: float
    x2: float
    y: float
    height: float
    colour: str
    width: float
    up: bool

    @property
    def end(self) -> float:
        """Height of its far point."""
        return self.y + self.height if self.up else self.y - self.height


@dataclass(frozen=True, slots=True)
class Text:
    """Words beside the boxes.

    ``title``, ``note`` at the left edge, ``small`` centred, ``right`` ending at `x`.
    """

    x: float
    y: float
    words: str
    style: str

    @property
    def width(self) -> float:
        """Approximate width of the text."""
        return len(self.words) * (0.26 if self.style == "title" else 0.19)


@dataclass(slots=True)
class Page:
    """Elements placed so far."""

    boxes: list[DrawnBox] = field(default_factory=list)
    lines: list[DrawnLine] = field(default_factory=list)
    arches: list[Arch] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=dict)
    colours: dict[str, str] = field(default_factory=dict)

    def colour(self, link: Link) -> str:
        """Return the colour of a link, and add its type to the legend."""
        name = f"{link_name(link)}: {format_rate(link.rate)}, {format_time(link.latency_ps)}"
        cls = link.cls.rstrip("0123456789")
        colour = COLOURS.get(cls) or self.colours.get(cls)
        if colour is None:
            colour = SPARE[len(self.colours) % len(SPARE)]
            self.colours[cls] = colour
        self.legend.setdefault(name, colour)
        return colour

    def join(self, low: DrawnBox, high: DrawnBox, link: Link, width: float = 1.2) -> None:
        """Draw a link between the facing edges of two boxes of different rows."""
        below, above = (low, high) if high.y >= low.y else (high, low)
        y1, y2 = below.y + below.height / 2, above.y - above.height / 2
        self.lines.append(DrawnLine(below.x, y1, above.x, y2, self.colour(link), width))

    def text(self, x: float, y: float, words: str, style: str) -> None:
        """Write words."""
        self.texts.append(Text(x, y, words, style))


def label(node: Node) -> list[str]:
    """Return the lines of a graph node's box: its name and kind."""
    name = node.name.partition("/")[2] or node.name
    what = node.endpoint.chip if node.endpoint is not None else node.model
    return [name, what] if what and what not in ("generic", "host") else [name]
