"""Reads one file with the reader of a target, with a bound on memory; prints what it took and what it said.

``main(TARGET, FOLDER, BYTES)`` prints the memory at its peak beyond what was held before [KiB] and the time [s].
"""

from __future__ import annotations

import resource
from pathlib import Path

from clusim.base.errors import ClusimError
from fuzz import targets

__all__ = ["main"]


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main(arguments: list[str]) -> None:
    """Read the file."""
    name, folder, limit = arguments[0], Path(arguments[1]), int(arguments[2])
    use = targets.read_kineto if name == "kernels" else targets.TARGETS[name].use
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + limit, pages + limit))
    held, before = _peak(), resource.getrusage(resource.RUSAGE_SELF)
    try:
        use(folder)
        said = "result"
    except ClusimError as error:
        said = str(error).splitlines()[0]
    after = resource.getrusage(resource.RUSAGE_SELF)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(_peak() - held, took, said)
