"""Runs mutations of one target in a process of its own, whose memory and time are bounded.

``python -m fuzz.child TARGET FIRST COUNT`` with tests/ on the path. Prints the number of each mutation before it is
tried, so that it is known which one ended the process, and ``bad NUMBER TEXT`` for those that broke the law: a result,
or one `ClusimError` that says in a line what is wrong. ``--keep FOLDER`` writes the files of these.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from clusim.base.errors import ClusimError, TopologyError
from fuzz.targets import TARGETS, Target

__all__ = ["check", "main", "put"]

MEMORY_BYTES = 1 << 30
"""What a reader may take beyond what the process had before."""

CPU_S = 30
"""Time of the processor that one mutation may take; a hang otherwise [s]."""


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _bound_time() -> None:
    spent = int(time.process_time()) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + CPU_S, hard))


def put(files: dict[str, bytes], folder: Path) -> None:
    """Write files into a folder that has no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check(
    target: Target, files: dict[str, bytes], folder: Path, use: Callable[[Path], object]
) -> str:
    """Return what is wrong with how `use` of a target takes these files, empty if nothing is."""
    put(files, folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(folder)
    except ClusimError as error:
        lines = str(error).splitlines()
        if error.exit_code not in target.codes:
            return f"exit code {error.exit_code}: {error}"
        if len(lines) != 1 and not isinstance(error, TopologyError):
            return f"{len(lines)} lines: {error}"
        if not all(line.isprintable() for line in lines):
            return f"unprintable: {error!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        last = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(last))
        return f"{type(error).__name__}: {str(error)[:200]} at {where}"
    return ""


def main(arguments: list[str] | None = None) -> None:
    """Try mutations ``FIRST .. FIRST + COUNT - 1``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args(arguments)
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)
    target = TARGETS[given.target]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        for sample in target.samples:  # what is imported late is there before memory is bounded
            put(sample, folder)
            target.use(folder)
        _bound_memory()
        for seed in range(given.first, given.first + given.count):
            sys.stdout.write(f"{seed}\n")
            sys.stdout.flush()
            _bound_time()
            files = target.mutated(seed)
            wrong = check(target, files, folder, target.way(seed))
            if wrong:
                sys.stdout.write(f"bad {seed} {' '.join(wrong.split())}\n")
                if given.keep:
                    shutil.copytree(
                        folder, given.keep / f"{given.target}-{seed}", dirs_exist_ok=True
                    )
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
