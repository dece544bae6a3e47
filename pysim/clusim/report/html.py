"""Self-contained page of a run: text and tables, and plots by a script from embedded data."""

from __future__ import annotations

from functools import cache

from clusim.report.markup import (
    Content,
    Markup,
    csp_hash,
    element,
    fill,
    join_markup,
    read_page_file,
)
from clusim.report.page_data import Feed, base64_text
from clusim.report.sections import sections
from clusim.report.summary_text import title

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
    details = [
        detail for detail in _DETAIL if lanes * _BARS * detail[0] <= MOST_BARS
    ]
    for columns, rows in details or _DETAIL[-1:]:
        fitted = feed if len(feed.rows) <= rows else feed.with_rows(rows)
        text = _fill(fitted, _embed_messages(fitted, columns), live=False).html
        if len(text.encode()) < LIMIT_BYTES:
            break
    return text


def served_page(feed: Feed) -> str:
    """Return the page without data, which it requests from the server."""
    return _fill(feed, "", live=True).html


@cache
def page_style() -> str:
    """Return the style of all pages."""
    return read_page_file("style.css")


@cache
def page_script(*names: str) -> str:
    """Return the script of a page, with shipped scripts."""
    return "\n".join(
        ['"use strict";', "(() => {", *map(read_page_file, names), "})();"]
    )


def policy(*, live: bool) -> str:
    """Return the Content-Security-Policy of the page.

    It allows only the page's script and style, and, if `live`, its server.
    """
    return page_policy(page_script(*SCRIPTS)) + (
        "; connect-src 'self'" if live else ""
    )


def page_policy(script: str) -> str:
    """Return the Content-Security-Policy of a page with this script and the style of all pages."""
    rules = {
        "default-src": "'none'",
        "script-src": csp_hash(script),
        "style-src": csp_hash(page_style()),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _embed_messages(feed: Feed, columns: int) -> Markup:
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
        element("script", base64_text(data), type="text/plain", id=f"data-{name}")
        for name, data in messages.items()
    )
    return join_markup(parts, "\n")


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
        script=Markup(page_script(*SCRIPTS)),
    )
