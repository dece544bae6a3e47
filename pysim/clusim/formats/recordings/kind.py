"""Description of recording formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LAST = 8
"""Place of patterns that are tried after all others except logs."""


@dataclass(frozen=True, slots=True)
class RecordingKind:
    """Recording format.

    Attributes
    ----------
    what : str
        Description, as in ``--kind`` and on pages.
    begins : tuple of (int, bytes)
        Patterns of the start of its files, each with its place among all kinds. Lower places are tried first; patterns
        that may match other formats have a late place, up to `LAST`.
    looks_so : callable or None
        Test of name and first bytes, used if no pattern of any kind matches; True for a file of this kind.
    read_by : str
        Module with ``read(paths) -> Recording``; empty: the module that defines the kind.
    """

    what: str
    begins: tuple[tuple[int, bytes], ...] = ()
    looks_so: Callable[[str, bytes], bool] | None = None
    read_by: str = ""
