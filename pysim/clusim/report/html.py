"""Self-contained page of a run: text and tables, and plots by a script from embedded data.

Columns as one block of bytes that a browser reads without parsing numbers.

Four bytes give the length of a JSON header; then the header; then the columns it lists, each aligned to
eight bytes. All is little-endian. The page of a report carries such messages compressed, `clusim view`
serves the same messages.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.report.markup import Content, Markup, element, fill, hashed, joined, shipped
from clusim.report.page_data import Feed
from clusim.report.sections import sections
from clusim.report.summary_text import title

Array = NDArray[Any]

ALIGN = 8

TYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "float64": "<f8"}
"""Column types with a JavaScript array type.

64-bit integers are sent as float64, exact to 2^53.
"""


def pack(header: dict[str, Any], columns: dict[str, Array]) -> bytes:
    """Return the message with `header` and `columns`."""
    blocks, table, offset = [], [], 0
    for name, values in columns.items():
        kind = values.dtype.name
        if kind not in TYPES:
            kind = "float64"
        data = np.ascontiguousarray(values, TYPES[kind]).tobytes()
        table.append({"name": name, "type": kind, "offset": offset, "count": values.size})
        data += bytes(-len(data) % ALIGN)
        blocks.append(data)
        offset += len(data)
    text = json.dumps({**header, "columns": table}, separators=(",", ":"), allow_nan=False)
    head = text.encode()
    head += b" " * (-(4 + len(head)) % ALIGN)
    return b"".join([len(head).to_bytes(4, "little"), head, *blocks])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the argument of `pack`; columns are flat."""
    start = 4 + int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4:start])
    columns = {
        row["name"]: np.frombuffer(data, TYPES[row["type"]], row["count"], start + row["offset"])
        for row in header.pop("columns")
    }
    return header, columns


def embed(data: bytes) -> str:
    """Return a message as text for a page: compressed, then base64."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


LIMIT_BYTES = 1_000_000
"""Size limit of a report [bytes]."""

SCRIPTS = (
    "theme.js",
    "data.js",
    "colour.js",
    "plots.js",
    "path.js",
    "machine.js",
    "detail.js",
    "search.js",
    "main.js",
)

MOST_BARS = 1 << 22
"""Most bars that a timeline is drawn of: lanes times columns."""

_DETAIL = ((512, 400), (384, 300), (256, 240), (160, 160), (96, 96), (48, 48))
"""Columns and rows, tried until the page is small enough."""

_BARS = 4
"""Columns of the timeline for one of a heatmap."""


def page(feed: Feed) -> str:
    """Return the report of a run with data coarse enough to stay below `LIMIT_BYTES`."""
    text, lanes = "", len(feed.lanes.ranks)
    drawn = [own for own in _DETAIL if lanes * _BARS * own[0] <= MOST_BARS] or _DETAIL[-1:]
    for columns, rows in drawn:
        fitted = feed if len(feed.rows) <= rows else feed.with_rows(rows)
        text = _fill(fitted, _embedded(fitted, columns), live=False).html
        if len(text.encode()) < LIMIT_BYTES:
            break
    return text


def served_page(feed: Feed) -> str:
    """Return the page without data, which it requests from the server."""
    return _fill(feed, "", live=True).html


@cache
def page_style() -> str:
    """Return the style of all pages."""
    return shipped("style.css")


@cache
def _script() -> str:
    return "\n".join(['"use strict";', "(() => {", *map(shipped, SCRIPTS), "})();"])


def policy(*, live: bool) -> str:
    """Return the Content-Security-Policy of the page.

    It allows only the page's script and style, and, if `live`, its server.
    """
    return page_policy(_script()) + ("; connect-src 'self'" if live else "")


def page_policy(script: str) -> str:
    """Return the Content-Security-Policy of a page with this script and the style of all pages."""
    rules = {
        "default-src": "'none'",
        "script-src": hashed(script),
        "style-src": hashed(page_style()),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _embedded(feed: Feed, columns: int) -> Markup:
    end = feed.result.time_ps
    messages = {
        "overview": feed.overview(live=False),
        "wires": feed.wires(0, end, columns),
        "lines": feed.lines(0, end, columns),
        "tasks": feed.tasks(0, end, _BARS * columns),
    }
    if feed.path is not None:
        messages["steps"] = feed.steps(0, end, 4 * columns)
    # Base64 has no characters with a meaning in HTML.
    parts = (
        element("script", embed(data), type="text/plain", id=f"data-{name}")
        for name, data in messages.items()
    )
    return joined(parts, "\n")


def _fill(feed: Feed, data: Content, *, live: bool) -> Markup:
    origin = feed.result.provenance
    return fill(
        "page.html",
        live=str(live).lower(),
        policy=policy(live=live),
        version=origin.version,
        search=fill("search.html") if len(feed.result.wires.names) else "",
        title=title(feed.result, feed.name),
        subtitle=element("code", origin.command) if origin.command else "",
        style=Markup(page_style()),
        body=sections(feed),
        data=data,
        script=Markup(_script()),
    )
