"""The files of the page, and how their places ``{{name}}`` are filled."""

from __future__ import annotations

from importlib import resources

from clusim.report.markup import Content, Markup, safe


def shipped(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("clusim.report") / "page" / name).read_text(encoding="utf-8")


def fill(name: str, **parts: Content) -> Markup:
    """Return a file with its places filled; text is escaped, and nothing filled in is taken for a place."""
    first, *pieces = shipped(name).rstrip("\n").split("{{")
    text = [first]
    for piece in pieces:
        place, _, rest = piece.partition("}}")
        text += [safe(parts[place]), rest]
    return Markup("".join(text))
