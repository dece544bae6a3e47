"""Interface of the reader of other tools' topology files: detection and import.

`clusim` registers the reader at import. A fabric can then be loaded from any file, although the package
of topologies does not import that of foreign formats.
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
        """Return the kind of a file, None if it is not from another tool."""
        ...

    def detect_extension(self, text: str) -> str | None:
        """Return the kind of a file that an extension claims, None if there is none."""
        ...

    def import_text(self, text: str, where: str) -> Described:
        """Return the description in the text of a file called `where`."""
        ...


_found: list[Callable[[], TopologyReader]] = []


def register(load: Callable[[], TopologyReader]) -> None:
    """Register the reader of other tools' files; `load` is called when a file is loaded."""
    _found[:] = [load]


def reader() -> TopologyReader:
    """Return the reader of other tools' files."""
    return _found[0]()
