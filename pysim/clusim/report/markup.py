"""HTML and SVG with escaped text, and page templates with ``{{name}}`` placeholders.

Only `Markup` is not escaped, and only constants become `Markup`. SVG pictures are the system and the distribution of
latencies.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.drawing.boxes import Box, Frame, Picture
from clusim.base.units import format_time
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


def join_markup(parts: Iterable[Content], between: str = "") -> Markup:
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
    return Markup(f"<{name}{words}>{join_markup(children).html}</{name}>")


def csp_hash(text: str) -> str:
    """Return the source expression that allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def read_page_file(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("clusim.report") / "page" / name).read_text(
        encoding="utf-8"
    )


def fill(name: str, **parts: Content) -> Markup:
    """Return a template with its placeholders filled.

    Text is escaped; placeholders in filled text are not expanded.
    """
    first, *pieces = read_page_file(name).rstrip("\n").split("{{")
    text = [first]
    for piece in pieces:
        place, _, text_after = piece.partition("}}")
        text += [safe(parts[place]), text_after]
    return Markup("".join(text))


def machine_svg(picture: Picture, rate_Bps: NDArray[Any]) -> Markup:
    """Return the system, with `rate_Bps` of its wires [bytes/s].

    Its script colours ``path.seen``, in the order of ``picture.lines``.
    """
    widths = picture.line_widths(rate_Bps)
    parts: list[Markup] = []
    for frame in picture.frames:
        x, y = frame.text
        parts += [
            _rect("frame", frame, "8"),
            element("text", frame.label, class_="frame", x=f"{x:.1f}", y=f"{y:.1f}"),
        ]
    paths = [_line_path(picture, line) for line in range(picture.num_ways)]
    parts += [
        element("path", class_="seen", d=path, stroke_width=f"{width:.2f}")
        for path, width in zip(paths, widths, strict=False)
    ]
    parts += [element("path", class_="hit", d=path) for path in paths]
    for kind, titles in (
        ("title", picture.titles),
        ("title small", picture.bar_titles()),
    ):
        parts += [
            element("text", text, class_=kind, x=6, y=f"{y:.0f}")
            for text, y in titles
        ]
    sizes = picture.label_sizes(13.0, 1.75)
    parts += [_box(box, sizes[box.width]) for box in picture.boxes]
    paths = [f"M{x1:.1f} {y:.1f}H{x2:.1f}" for x1, x2, y in picture.bar_spans()]
    parts += [element("path", class_="seen bar", d=path) for path in paths]
    parts += [element("path", class_="hit", d=path) for path in paths]
    return element(
        "svg",
        join_markup(parts, "\n"),
        id="machine",
        viewBox=f"0 0 {picture.width:.0f} {picture.height:.0f}",
        tabindex=0,
        role="application",
        aria_roledescription="machine",
        aria_label=f"System: {len(picture.boxes)} boxes, {len(picture.lines)} lines coloured by load; "
        "use the arrow keys",
    )


def _line_path(picture: Picture, line: int) -> str:
    (x1, y1), (cx, cy), (x2, y2) = picture.bend(line)
    if not picture.bent(line):
        return f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"


def _rect(kind: str, shape: Box | Frame, radius: str) -> Markup:
    x, y = shape.corner
    place = {"x": x, "y": y, "width": shape.width, "height": shape.height}
    texts = {key: f"{value:.1f}" for key, value in place.items()}
    return element("rect", class_=kind, **texts, rx=radius)


def _box(box: Box, size: float) -> Markup:
    rect = _rect(box.kind, box, f"{box.radius:.1f}")
    # The size is an attribute: styles of elements are not allowed to the page.
    text = element(
        "text",
        box.label,
        x=f"{box.x:.1f}",
        y=f"{box.text_y:.1f}",
        font_size=f"{size:.1f}",
    )
    return element("g", element("title", box.name), rect, text)


def latency_svg(messages: Messages, bars: int = 48) -> Content:
    """Return a histogram of latencies; empty if no message arrived."""
    done = messages.end_ps >= 0
    latency = (messages.end_ps - messages.start_ps)[done]
    return histogram_svg(latency, "messages", bars) if len(latency) else ""


def histogram_svg(latency: NDArray[Any], counted: str, bars: int = 48) -> Markup:
    """Return a histogram of some latencies of `counted` objects [ps]."""
    low, high = int(latency.min()), int(latency.max())
    counts, edges = np.histogram(
        latency, bins=bars, range=(low, max(high, low + bars))
    )
    width, height, margin, base = 720.0, 190.0, 8.0, 160.0
    pitch = (width - 2 * margin) / bars
    tallest = max(1, int(counts.max()))
    parts: list[Markup] = []
    for i, count in enumerate(counts.tolist()):
        if not count:
            continue
        tall = max(1.0, 136.0 * count / tallest)
        span = f"{format_time(int(edges[i]))} to {format_time(int(edges[i + 1]))}"
        bar = element(
            "rect",
            element("title", f"{span}: {count:,} {counted}"),
            x=f"{margin + pitch * i + 0.5:.1f}",
            y=f"{base - tall:.1f}",
            width=f"{pitch - 1:.1f}",
            height=f"{tall:.1f}",
        )
        parts.append(bar)
    parts.append(element("line", x1=margin, x2=width - margin, y1=base, y2=base))
    anchors = {
        0.0: "start",
        0.25: "middle",
        0.5: "middle",
        0.75: "middle",
        1.0: "end",
    }
    for part, anchor in anchors.items():
        x = margin + part * (width - 2 * margin)
        at = format_time(round(low + part * (float(edges[-1]) - low)))
        parts.append(
            element("text", at, x=f"{x:.1f}", y=base + 18, text_anchor=anchor)
        )
    parts.append(
        element("text", f"{counted} (most in one bar: {tallest:,})", x=margin, y=14)
    )
    return element(
        "svg",
        join_markup(parts, "\n"),
        class_="histogram",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"Histogram of {counted} from {format_time(low)} to {format_time(high)}",
    )


Cells = Sequence[str | int | float]


def table(head: Sequence[str], rows: Iterable[Cells], kind: str = "wide") -> Markup:
    """Return a table; a leading `#` in a heading marks a column of numbers."""
    kinds = [{"class_": "n"} if name.startswith("#") else {} for name in head]
    top = (
        element("th", name.lstrip("#"), scope="col", **numbers)
        for name, numbers in zip(head, kinds, strict=True)
    )
    body = (
        element(
            "tr",
            *(
                element("td", str(cell), **numbers)
                for cell, numbers in zip(row, kinds, strict=True)
            ),
        )
        for row in rows
    )
    content = element(
        "table", element("thead", element("tr", *top)), element("tbody", *body)
    )
    return element("div", content, class_=kind)
