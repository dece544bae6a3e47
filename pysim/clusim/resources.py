"""Find the files shipped with clusim, in a source checkout and in an installed wheel alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["find_topology", "shipped_topologies", "topology_dirs"]


def topology_dirs() -> Iterator[Path]:
    """Yield the directories that may hold shipped topologies, the checkout's first.

    In a checkout they lie beside ``pysim/``; a wheel installs them inside the package.
    """
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    if (checkout / "pysim" / "clusim") == package:
        yield checkout / "topologies"
    yield package / "topologies"


def shipped_topologies() -> dict[str, Path]:
    """Return the shipped topology files by name."""
    found: dict[str, Path] = {}
    for directory in topology_dirs():
        if directory.is_dir():
            for path in sorted(directory.glob("*.yaml")):
                found.setdefault(path.stem, path)
    return found


def find_topology(name: str) -> Path | None:
    """Return the path of the shipped topology called `name`, or None."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        return None
    for directory in topology_dirs():
        path = directory / f"{name}.yaml"
        if path.is_file():
            return path
    return None
