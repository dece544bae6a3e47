"""Topology files of other tools, as far as loading must know of them: is it one, and what does it describe?

`clusim` says at import which package reads them, so that a fabric can be loaded from any file while the packages of
fabrics and of foreign formats know each other in one direction only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Described(Protocol):
    """Description of a file."""

    @property
    def name(self) -> str:
        """Return the name of the system."""
        ...

    def to_yaml(self) -> str:
        """Return it with the keys of topology files."""
        ...


class TopologyReader(Protocol):
    """Reader of other tools' files."""

    def detect(self, text: str) -> str | None:
        """Return the kind of a file, None if it is none of another tool."""
        ...

    def import_text(self, text: str, where: str) -> Described:
        """Return the description in the text of a file called `where`."""
        ...


_found: list[Callable[[], TopologyReader]] = []


def register(found: Callable[[], TopologyReader]) -> None:
    """Say what reads the files of other tools; it is called when the first file is loaded."""
    _found[:] = [found]


def reader() -> TopologyReader:
    """Return the reader of other tools' files."""
    return _found[0]()
