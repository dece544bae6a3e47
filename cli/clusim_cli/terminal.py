"""Word wrap of text at the width of a terminal; pipes and files are not wrapped."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import TextWrapper
from typing import TextIO

MOST_INDENT = 12
"""Columns by which the rest of a line is indented at most."""


class _Words(TextWrapper):
    """Breaks lines between words, but never between a number and its unit."""

    wordsep_simple_re = re.compile(
        r"((?<!\d)\s+|\s{2,}|\s(?!(?:[pnum]?s|[KMGT]?i?B|[GT][Bb]/s|%|x)(?:\W|$)))"
    )


def draws(stream: TextIO) -> bool:
    """Return True if a stream is a terminal on which something can be drawn and taken back."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def fitted(text: str, stream: TextIO) -> str:
    """Return text wrapped to the terminal `stream`; unchanged without a terminal."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def _folded(line: str, width: int) -> list[str]:
    """Return the parts of a wrapped line.

    All parts of a comment line begin with #. Words and numbers are not split.
    """
    if len(line) <= width:
        return [line]
    margin = "# " if line.startswith("#") else ""
    indent = len(line) - len(line.lstrip(" #")) + 2
    below = f"{margin:<{min(indent, MOST_INDENT, width // 4)}}"
    words = _Words(
        width,
        subsequent_indent=below,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return words.wrap(line)


class _Fitting(io.TextIOWrapper):
    def write(self, text: str) -> int:
        """Write text, wrapped; return the length of the given text."""
        super().write(fitted(text, self))
        return len(text)


@contextmanager
def fitting() -> Iterator[None]:
    """Wrap text printed within this context to the terminal."""
    plain = sys.stdout
    if not plain.isatty():
        yield
        return
    plain.flush()
    sys.stdout = _Fitting(
        plain.buffer, encoding=plain.encoding, errors=plain.errors, line_buffering=True
    )
    try:
        yield
    finally:
        sys.stdout.detach()
        sys.stdout = plain
