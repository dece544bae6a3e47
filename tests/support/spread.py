"""Run tests wherever an executor has workers, which see this checkout under the same path: ``make thorough``.

``CLUSIM_THOROUGH=1 python tests/support/spread.py --executor dask://host:8786 tests/engine/reference``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from clusim.base.errors import ClusimError
from clusim.base.executors import connect_executor, workers

ROOT = Path(__file__).resolve().parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]

BATCHES = 8
"""Pieces of work per worker: as many as even out, as few as start seldom."""


def tests_of(paths: Sequence[str]) -> list[str]:
    """Return the names of the tests in files."""
    words = [*PYTEST, "--collect-only", *paths]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    names = [line for line in found.stdout.splitlines() if "::" in line]
    if found.returncode or not names:
        raise SystemExit(found.stdout + found.stderr)
    return names


def run_all(names: Sequence[str], executor: str | None) -> int:
    """Run tests, print what failing ones say, and return how many pieces of work failed."""
    # What workers call is of the standard library: they need not find this file.
    work = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))
    bad = done = 0
    here = nullcontext(max(2, len(os.sched_getaffinity(0))))
    with (
        connect_executor(executor) if executor else here as pool,
        workers(pool, max(2, len(names))) as spread,
    ):
        assert spread is not None
        size = max(1, len(names) // (BATCHES * spread.count))
        pieces = [names[at : at + size] for at in range(0, len(names), size)]
        waiting = {spread.submit(work, [*PYTEST, *piece]): len(piece) for piece in pieces}
        while waiting:
            for future in spread.done(waiting):
                outcome = spread.outcome(future)
                done += waiting.pop(future)
                bad += outcome.returncode != 0
                print(f"{done} of {len(names)} tests", outcome.stdout if outcome.returncode else "")
    return bad


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description="Run tests wherever there are workers.")
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--executor", help="dask://HOST:PORT, dask:SCHEDULER_FILE, or mpi")
    given = parser.parse_args()
    try:
        return int(run_all(tests_of(given.paths), given.executor) > 0)
    except ClusimError as error:
        print(f"spread: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
