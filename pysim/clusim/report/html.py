"""One self-contained page about a run: numbers and tables as text, plots by a script from embedded data."""

from __future__ import annotations

from html import escape

from clusim.report.feed import Feed
from clusim.report.frames import fill, shipped
from clusim.report.message import embed
from clusim.report.sections import sections
from clusim.report.words import title

__all__ = ["LIMIT_BYTES", "page", "served_page"]

LIMIT_BYTES = 1_000_000
"""What a report is made to fit [bytes]."""

SCRIPTS = ("data.js", "colour.js", "plots.js", "detail.js", "main.js")

_DETAIL = ((512, 400), (384, 300), (256, 240), (160, 160), (96, 96), (48, 48))
"""Columns and rows, tried until the page is small enough."""


def page(feed: Feed) -> str:
    """Return the report of a run, with its data, as coarse as it takes to stay below `LIMIT_BYTES`."""
    text = ""
    for columns, rows in _DETAIL:
        fitted = feed if len(feed.rows) <= rows else feed.with_rows(rows)
        text = _fill(fitted, _embedded(fitted, columns), live=False)
        if len(text.encode()) < LIMIT_BYTES:
            break
    return text


def served_page(feed: Feed) -> str:
    """Return the page without data; it asks the server for what it shows."""
    return _fill(feed, "", live=True)


def _embedded(feed: Feed, columns: int) -> str:
    end = feed.result.time_ps
    messages = {
        "overview": feed.overview(live=False),
        "wires": feed.wires(0, end, columns),
        "lines": feed.lines(0, end, columns),
        "tasks": feed.tasks(0, end, 4 * columns),
    }
    return "\n".join(
        f'<script type="text/plain" id="data-{name}">{embed(data)}</script>'
        for name, data in messages.items()
    )


def _fill(feed: Feed, data: str, *, live: bool) -> str:
    origin = feed.result.provenance
    return fill(
        "page.html",
        live=str(live).lower(),
        version=escape(origin.version),
        title=escape(title(feed.result, feed.name)),
        subtitle=f"<code>{escape(origin.command)}</code>" if origin.command else "",
        style=shipped("style.css"),
        body=sections(feed),
        data=data,
        script="(() => {\n" + "\n".join(shipped(name) for name in SCRIPTS) + "\n})();",
    )
