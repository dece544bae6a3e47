"""HTML and SVG with escaped text, and page templates with ``{{name}}`` placeholders.

Only `Markup` is not escaped, and only constants become `Markup`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib import resources


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
