"""Description of a recording format by its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LAST = 8
"""Place of what is tried after everything but logs."""


@dataclass(frozen=True, slots=True)
class RecordingKind:
    """A format.

    Attributes
    ----------
    what : str
        What it is, as ``--kind`` and pages say it.
    begins : tuple of (int, bytes)
        Patterns of what its files begin with, each with its place among those of all kinds: the lower is tried
        first, and what other formats could begin with as well comes late, up to `LAST`.
    looks_so : callable or None
        Whether a file is of this kind, by its name and first bytes, if no pattern of any kind was found.
    read_by : str
        Module with ``read(paths) -> Recording``; empty: the one that says this.
    """

    what: str
    begins: tuple[tuple[int, bytes], ...] = ()
    looks_so: Callable[[str, bytes], bool] | None = None
    read_by: str = ""
