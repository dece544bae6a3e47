"""Files shipped with clusim, in a source checkout or an installed wheel."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TOPOLOGIES = "CLUSIM_TOPOLOGIES"
"""Environment variable with directories of user presets."""

CLUSTERS = "traces/clusters"
"""Workloads of clusters too large to simulate, which are estimated.

Runs over all shipped workloads exclude them.
"""


_FOLDERS = ("clusters", "serving", "sweeps")
"""Folders of ``traces`` without recordings."""

cached = False
"""True if shipped topologies are cached on disk: in processes of the command line."""


def _dirs(kind: str) -> Iterator[Path]:
    """Yield the directories of shipped files: the checkout's, the package's, the user's.

    In a checkout they are next to ``pysim/``; a wheel installs them inside the package.
    """
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    if (checkout / "pysim" / "clusim") == package:
        yield checkout / kind
    yield package / kind
    if kind == "topologies":
        yield from (
            Path(part)
            for part in os.environ.get(TOPOLOGIES, "").split(os.pathsep)
            if part
        )


def shipped_topologies() -> dict[str, Path]:
    """Return the topology files by name: the shipped, then those of ``CLUSIM_TOPOLOGIES``."""
    return _shipped_files("topologies")


def shipped_workloads() -> dict[str, Path]:
    """Return the shipped workload files by name, with large clusters last."""
    return _shipped_files("traces") | cluster_workloads()


def cluster_workloads() -> dict[str, Path]:
    """Return the shipped workload files of clusters too large to simulate in full, by name."""
    return _shipped_files(CLUSTERS)


def shipped_sweeps() -> dict[str, Path]:
    """Return the shipped grids of sweeps by name."""
    return _shipped_files("traces/sweeps")


def shipped_serving() -> dict[str, Path]:
    """Return the shipped serving files by name."""
    return _shipped_files("traces/serving")


def shipped_jobs() -> dict[str, Path]:
    """Return the shipped files of several jobs by name."""
    return _shipped_files("traces/jobs")


def shipped_recordings() -> dict[str, Path]:
    """Return the shipped recordings, logs and other files of ``traces/`` by name.

    A name is complete, or ends before a dot if only one file begins with it: ``nccl-8xh100`` is ``nccl-8xh100.log``.
    """
    paths: dict[str, Path] = {}
    for directory in _dirs("traces"):
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if path.suffix != ".yaml" and path.name not in _FOLDERS:
                paths.setdefault(path.name, path)
    shorter = Counter(
        name[:at] for name in paths for at, sign in enumerate(name) if sign == "."
    )
    named = {
        name[:at]: path
        for name, path in paths.items()
        for at, sign in enumerate(name)
        if sign == "." and shorter[name[:at]] == 1
    }
    return named | paths


def or_shipped(name: str) -> str:
    """Return a path that exists unchanged; otherwise the path of the shipped recording of that name, if it is one."""
    if os.path.lexists(name) or os.sep in name:
        return name
    return str(shipped_recordings().get(name, name))


def _shipped_files(kind: str) -> dict[str, Path]:
    result: dict[str, Path] = {}
    for directory in _dirs(kind):
        if directory.is_dir():
            for path in sorted(directory.glob("*.yaml")):
                result.setdefault(path.stem, path)
    return result


def find_topology(name: str) -> Path | None:
    """Return the path of the shipped topology called `name`, or None."""
    return _find("topologies", name)


def find_workload(name: str) -> Path | None:
    """Return the path of the shipped workload called `name`, or None."""
    return _find("traces", name) or _find(CLUSTERS, name)


def _find(kind: str, name: str) -> Path | None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        return None
    for directory in _dirs(kind):
        path = directory / f"{name}.yaml"
        if path.is_file():
            return path
    return None
