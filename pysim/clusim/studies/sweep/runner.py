"""Execution of the points of a grid that its table does not contain yet, on any workers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from clusim.base.errors import EnvironmentFailure
from clusim.base.executors import Jobs, Workers, workers
from clusim.base.files import Lock, LockedError, append_line, check_place
from clusim.studies.sweep.grid import SweepGrid, SweepPoint, answer_point, still_true
from clusim.studies.sweep.tables import Row, read_rows, write_rows

Progress = Callable[[int, int], None]

SAVE_S = 10.0
"""Interval at which the table is replaced [s].

Later rows are lines of its journal, and survive a SIGKILL.
"""

AHEAD = 2
"""Points submitted per worker at a time: one runs, the others are queued."""


@dataclass(frozen=True)
class SweepReport:
    """Result of a sweep.

    Attributes
    ----------
    rows : list of dict
        A row per point, in the order of the grid.
    known : int
        Points already in the table.
    outdated : int
        Rows of another clusim or of files that have changed since; their points ran again.
    """

    grid: SweepGrid
    rows: list[Row]
    known: int
    outdated: int

    @property
    def failures(self) -> list[Row]:
        """Return the rows without a result."""
        return [row for row in self.rows if row.get("error")]

    def reasons(self) -> list[tuple[str, int]]:
        """Return errors and their number of points, in descending order."""
        return Counter(str(row["error"]) for row in self.failures).most_common()

    def to_json(self) -> dict[str, Any]:
        """Return the rows and counts."""
        return {
            "grid": self.grid.name,
            "axes": list(self.grid.axes),
            "known": self.known,
            "outdated": self.outdated,
            "failed": len(self.failures),
            "rows": self.rows,
        }


def sweep(
    grid: SweepGrid,
    target: Path,
    *,
    jobs: Jobs = None,
    again: bool = False,
    progress: Progress | None = None,
) -> SweepReport:
    """Run all points of a grid and store their results in a table: CSV, or Parquet if the file ends in ``.parquet``.

    An existing file is continued: its points are not run again, unless clusim or one of their input files has changed.
    Rows of points outside this grid stay. The file is replaced every ten seconds and at the end, also after an
    interrupt; until then each row is a line of ``FILE.journal``, which the next sweep of this file reads.

    Parameters
    ----------
    jobs : int or Executor or None
        Worker processes, or an executor; None is one per core, 1 runs in this process.
    again : bool
        Run failed points again.
    progress : callable or None
        Called with the number of points completed and their total.

    Raises
    ------
    InputError
        The file is not the table of a sweep.
    EnvironmentFailure
        The file cannot be written, or another sweep writes it.
    """
    check_place(target)
    lock = _lock_target(target)
    try:
        table = _SweepTable(target, grid, again)
        tell = progress or (lambda done, total: None)
        todo = [point for point in grid.points if point.name not in table.found]
        num_done = len(grid.points) - len(todo)
        tell(num_done, len(grid.points))
        try:
            with workers(jobs, len(todo)) as spread:
                for count, row in enumerate(_answers(todo, spread), num_done + 1):
                    table.add(row)
                    tell(count, len(grid.points))
        finally:
            table.save()
        rows = [table.found[point.name] for point in grid.points]
        return SweepReport(grid, rows, num_done, table.outdated)
    finally:
        lock.release()


def _lock_target(target: Path) -> Lock:
    try:
        return Lock(Path(f"{target}.lock"))
    except LockedError as error:
        raise EnvironmentFailure(
            f"{target}: another sweep (process {error.holder}) writes it; wait, or choose another file"
        ) from None
    except OSError as error:
        raise EnvironmentFailure(
            f"{target}.lock: cannot be written: {error.strerror}"
        ) from None


def _answers(todo: Sequence[SweepPoint], spread: Workers | None) -> Iterator[Row]:
    """Yield rows in order of completion."""
    if spread is None:
        yield from map(answer_point, todo)
        return
    remaining = iter(todo)
    waiting = {
        spread.submit(answer_point, point)
        for point in islice(remaining, AHEAD * spread.count)
    }
    while waiting:
        for future in spread.done(waiting):
            waiting.remove(future)
            yield spread.outcome(future)
            waiting |= {
                spread.submit(answer_point, point) for point in islice(remaining, 1)
            }


class _SweepTable:
    """Rows found so far, by the names of their points, with their file."""

    def __init__(self, target: Path, grid: SweepGrid, again: bool) -> None:
        self._target = target
        self.found: dict[str, Row] = {}
        self.outdated = 0
        names = {point.name for point in grid.points}
        self._journal = Path(f"{target}.journal")
        noted = _read_journal(self._journal)
        self._changed = bool(noted)
        for row in [*read_rows(target), *noted]:
            name = str(row["point"])
            if name not in names or (
                still_true(row) and not (again and row.get("error"))
            ):
                self.found[name] = row
            else:
                self.outdated += not still_true(row)
        self._saved_s = time.monotonic()

    def add(self, row: Row) -> None:
        """Add a row to the journal, and replace the table every `SAVE_S`."""
        self.found[str(row["point"])] = row
        append_line(self._journal, json.dumps(row).encode())
        self._changed = True
        if time.monotonic() - self._saved_s >= SAVE_S:
            self.save()

    def save(self) -> None:
        """Write all rows."""
        if self._changed:
            write_rows(self._target, list(self.found.values()))
            self._journal.unlink(missing_ok=True)
        self._changed = False
        self._saved_s = time.monotonic()


def _read_journal(journal: Path) -> list[Row]:
    """Return the rows of a killed sweep's journal; a truncated last line is ignored."""
    try:
        lines = journal.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows: list[Row] = []
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "point" in row:
                rows.append(row)
    return rows
