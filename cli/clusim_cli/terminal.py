"""Word wrap of printed text at 100 columns, and at the width of a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from clusim.base.tables import WIDTH, wrap_line


def draws(stream: TextIO) -> bool:
    """Return True if a stream is a terminal on which something can be drawn and taken back."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def fitted(text: str, stream: TextIO, most: int | None = None) -> str:
    """Return text wrapped to `most` columns, and to the width of `stream` if it is a terminal."""
    terminal = shutil.get_terminal_size().columns if stream.isatty() else None
    width = min(
        (columns for columns in (most, terminal) if columns is not None),
        default=None,
    )
    if width is None:
        return text
    return "\n".join(
        part for line in text.split("\n") for part in wrap_line(line, width)
    )


class _Fitting:
    """Standard output that wraps text."""

    def __init__(self, plain: TextIO, most: int | None) -> None:
        self._plain = plain
        self._most = most

    def write(self, text: str) -> int:
        """Write text, wrapped; return the length of the given text."""
        self._plain.write(fitted(text, self._plain, self._most))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@contextmanager
def fitting(most: int | None = WIDTH) -> Iterator[None]:
    """Wrap text printed within this context to `most` columns, and to the terminal."""
    plain = sys.stdout
    sys.stdout = cast(TextIO, _Fitting(plain, most))
    try:
        yield
    finally:
        sys.stdout = plain
