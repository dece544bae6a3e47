"""The files of the page, and how their places ``{{name}}`` are filled."""

from __future__ import annotations

from importlib import resources

__all__ = ["fill", "shipped"]


def shipped(name: str) -> str:
    """Return a file of the page."""
    return (resources.files("clusim.report") / "page" / name).read_text(encoding="utf-8")


def fill(name: str, **parts: str) -> str:
    """Return a file with its places filled; what is filled in is never taken for a place."""
    first, *pieces = shipped(name).rstrip("\n").split("{{")
    text = [first]
    for piece in pieces:
        place, _, rest = piece.partition("}}")
        text += [parts[place], rest]
    return "".join(text)
