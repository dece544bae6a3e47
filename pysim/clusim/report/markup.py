"""HTML and SVG with escaped text, and page templates with ``{{name}}`` placeholders.

Only `Markup` is not escaped, and only constants become `Markup`. SVG pictures are the system and the distribution of
latencies.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.units import format_time
from clusim.report.boxes import Box, Picture
from clusim.results.result import Messages


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML text; not a `str`, so that text and HTML cannot be confused."""

    html: str


Content = str | Markup
"""Content of an element: text, which is escaped, or elements."""

_NOT_SHOWN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_VOID = {"br", "rect", "path", "line"}
"""Elements that are written without an end."""


def safe(content: Content) -> str:
    """Return HTML for text or markup; characters invalid in HTML or UTF-8 are replaced by a mark."""
    if isinstance(content, Markup):
        return content.html
    encodable = content.encode("utf-8", "backslashreplace").decode()
    return escape(_NOT_SHOWN.sub("\ufffd", encodable))


def joined(parts: Iterable[Content], between: str = "") -> Markup:
    """Return several one after the other."""
    return Markup(safe(between).join(map(safe, parts)))


def element(name: str, *children: Content, **attributes: str | float) -> Markup:
    """Return an element; ``aria_label`` is the attribute ``aria-label`` and ``class_`` is ``class``."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(str(value))}"'
        for key, value in attributes.items()
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{joined(children).html}</{name}>")


def hashed(text: str) -> str:
    """Return the source expression that allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def shipped(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("clusim.report") / "page" / name).read_text(encoding="utf-8")


def fill(name: str, **parts: Content) -> Markup:
    """Return a template with its placeholders filled.

    Text is escaped; placeholders in filled text are not expanded.
    """
    first, *pieces = shipped(name).rstrip("\n").split("{{")
    text = [first]
    for piece in pieces:
        place, _, rest = piece.partition("}}")
        text += [safe(parts[place]), rest]
    return Markup("".join(text))


APART = 2.6
"""Distance of the two directions of a link from its middle."""


THIN, EVEN, THICK = 1.0, 2.2, 3.8
"""Line widths: minimal bandwidth, equal bandwidths, maximal bandwidth."""


def line_widths(picture: Picture, rate_Bps: NDArray[Any]) -> list[float]:
    """Return the width of every line.

    Its area grows with the bandwidth of all its links in its direction.

    Parameters
    ----------
    rate_Bps : ndarray, shape (wires,)
        Nominal rate of every wire [bytes/s].
    """
    if not len(picture.lines):
        return []
    rates = picture.lines.total(rate_Bps)
    if rates.min() == rates.max():
        return [picture.fineness * EVEN] * len(rates)
    part = np.sqrt(rates / float(rates.max()))
    widths: list[float] = (picture.fineness * (THIN + (THICK - THIN) * part)).tolist()
    return widths


def machine_svg(picture: Picture, rate_Bps: NDArray[Any]) -> Markup:
    """Return the system, with `rate_Bps` of its wires [bytes/s].

    Its script colours ``path.seen``, in the order of ``picture.lines``.
    """
    widths = line_widths(picture, rate_Bps)
    parts: list[Markup] = []
    for frame in picture.frames:
        parts += [
            element(
                "rect",
                class_="frame",
                x=f"{frame.x:.1f}",
                y=f"{frame.y:.1f}",
                width=f"{frame.width:.1f}",
                height=f"{frame.height:.1f}",
                rx=8,
            ),
            element(
                "text",
                frame.label,
                class_="frame",
                x=f"{frame.x + 9:.1f}",
                y=f"{frame.y + frame.height - 12:.1f}",
            ),
        ]
    ways = [_way(picture, line) for line in range(picture.num_ways)]
    parts += [
        element("path", class_="seen", d=way, stroke_width=f"{width:.2f}")
        for way, width in zip(ways, widths, strict=False)
    ]
    parts += [element("path", class_="hit", d=way) for way in ways]
    for kind, titles in (("title", picture.titles), ("title small", picture.bar_titles())):
        parts += [element("text", text, class_=kind, x=6, y=f"{y:.0f}") for text, y in titles]
    sizes: dict[float, float] = {}
    for box in picture.boxes:
        fitting = 1.75 * (box.width - 4) / max(1, len(box.label))
        sizes[box.width] = min(13.0, fitting, sizes.get(box.width, 13.0))
    parts += [_box(box, sizes[box.width]) for box in picture.boxes]
    bars = [picture.bar_span(line) for line in range(picture.num_ways, len(picture.lines))]
    ways = [f"M{left:.1f} {y:.1f}H{right:.1f}" for left, right, y in bars]
    parts += [element("path", class_="seen bar", d=way) for way in ways]
    parts += [element("path", class_="hit", d=way) for way in ways]
    return element(
        "svg",
        joined(parts, "\n"),
        id="machine",
        viewBox=f"0 0 {picture.width:.0f} {picture.height:.0f}",
        tabindex=0,
        role="application",
        aria_roledescription="machine",
        aria_label=f"System: {len(picture.boxes)} boxes, {len(picture.lines)} lines coloured by load; "
        "use the arrow keys",
    )


def bend(picture: Picture, line: int) -> tuple[tuple[float, float], ...]:
    """Return start, control point and end of a line, to the right of the middle in its direction.

    With `bow`, ways along a row or a column that pass other boxes are bent; with `arc`, ways along a row that pass
    others hang down. All others are straight.
    """
    a, b = picture.boxes[picture.source[line]], picture.boxes[picture.target[line]]
    bow = picture.bow
    dx, dy = b.x - a.x, b.y - a.y
    far = math.hypot(dx, dy) or 1.0
    nx, ny = -dy / far, dx / far
    out = apart = APART * picture.fineness**0.5
    if bow and min(abs(dx), abs(dy)) < 1 and far > 5 * bow:
        # Both directions bend to the same side; the control point of a parabola is twice as far out as its top.
        out += 2 * bow * (1 if (dx, dy) > (0, 0) else -1)
    if _hangs(picture, a, b):
        out += 2 * min(picture.arc, 12 + 0.1 * far) * (1 if dx > 0 else -1)
    middle = ((a.x + b.x) / 2 + nx * out, (a.y + b.y) / 2 + ny * out)
    return (a.x + nx * apart, a.y + ny * apart), middle, (b.x + nx * apart, b.y + ny * apart)


def bent(picture: Picture, line: int) -> bool:
    """Return True if a line is drawn as a curve."""
    a, b = picture.boxes[picture.source[line]], picture.boxes[picture.target[line]]
    return bool(picture.bow) or _hangs(picture, a, b)


def _hangs(picture: Picture, a: Box, b: Box) -> bool:
    """Return True if the way between two boxes of a row is drawn below those between them."""
    if not picture.arc or abs(a.y - b.y) > 1:
        return False
    low, high = sorted((a.x, b.x))
    return any(abs(box.y - a.y) < 1 and low + 1 < box.x < high - 1 for box in picture.boxes)


def _way(picture: Picture, line: int) -> str:
    (x1, y1), (cx, cy), (x2, y2) = bend(picture, line)
    if not bent(picture, line):
        return f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"


def _box(box: Box, size: float) -> Markup:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    rect = element(
        "rect",
        class_=box.kind,
        x=f"{left:.1f}",
        y=f"{top:.1f}",
        width=f"{box.width:.1f}",
        height=f"{box.height:.1f}",
        rx=f"{min(5.0, box.height / 4):.1f}",
    )
    # The size is an attribute: styles of elements are not allowed to the page.
    text = element(
        "text", box.label, x=f"{box.x:.1f}", y=f"{box.text_y:.1f}", font_size=f"{size:.1f}"
    )
    return element("g", element("title", box.name), rect, text)


def latency_svg(messages: Messages, bars: int = 48) -> Content:
    """Return a histogram of latencies; empty if no message arrived."""
    done = messages.end_ps >= 0
    latency = (messages.end_ps - messages.start_ps)[done]
    if not len(latency):
        return ""
    low, high = int(latency.min()), int(latency.max())
    counts, edges = np.histogram(latency, bins=bars, range=(low, max(high, low + bars)))
    width, height, left, base = 720.0, 190.0, 8.0, 160.0
    pitch = (width - 2 * left) / bars
    tallest = max(1, int(counts.max()))
    parts: list[Markup] = []
    for i, count in enumerate(counts.tolist()):
        if not count:
            continue
        tall = max(1.0, 136.0 * count / tallest)
        span = f"{format_time(int(edges[i]))} to {format_time(int(edges[i + 1]))}"
        bar = element(
            "rect",
            element("title", f"{span}: {count:,} messages"),
            x=f"{left + pitch * i + 0.5:.1f}",
            y=f"{base - tall:.1f}",
            width=f"{pitch - 1:.1f}",
            height=f"{tall:.1f}",
        )
        parts.append(bar)
    parts.append(element("line", x1=left, x2=width - left, y1=base, y2=base))
    anchors = {0.0: "start", 0.25: "middle", 0.5: "middle", 0.75: "middle", 1.0: "end"}
    for part, anchor in anchors.items():
        x = left + part * (width - 2 * left)
        at = format_time(round(low + part * (float(edges[-1]) - low)))
        parts.append(element("text", at, x=f"{x:.1f}", y=base + 18, text_anchor=anchor))
    parts.append(element("text", f"messages (most in one bar: {tallest:,})", x=left, y=14))
    return element(
        "svg",
        joined(parts, "\n"),
        class_="histogram",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"Histogram of message latencies from {format_time(low)} to {format_time(high)}",
    )
