"""A program of nccl-tests from end to end: what it prints, line by line, and what ``-J`` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import localtime, strftime
from typing import Any

from clusim.nccl.env import SYMMETRIC
from clusim.nccltests.operations import Program
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import PerfPlace, devices, library_code, rows
from clusim.nccltests.table import Invocation, PerfLine, foot, head, json_of, table_head
from clusim.report.runreport import said
from clusim.vocabulary.operations import COLLECTIVE_OF
from clusim.vocabulary.times import LAUNCHED

__all__ = ["Table", "table_of"]

NOW = "%Y-%m-%d %H:%M:%S"


@dataclass
class Table:
    """What a program of nccl-tests would print.

    Attributes
    ----------
    lines : list of PerfLine
        One per size, type and reduction: bytes, and times [us] and bandwidths [10^9 bytes/s] out of place and in place.
    printed : list of str
        Everything that the program prints.
    times : (str, str)
        When it started and ended.
    """

    where: PerfPlace
    test: Program
    options: PerfOptions
    lines: list[PerfLine] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    times: tuple[str, str] = ("", "")

    def text(self) -> str:
        """Return what the program prints."""
        return "\n".join(self.printed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be said of NCCL's plans."""
        return self.where.setup.said(COLLECTIVE_OF.get(self.test.of.name), self.options.sizes())

    def to_json(self, args: Sequence[str] = ()) -> dict[str, Any]:
        """Return what ``-J`` writes; `args` is the command line."""
        setup = self.where.setup
        called = Invocation(
            *(self.test.binary, self.options, library_code(setup)),
            args=args,
            env=[f"{name}={value}" for name, value in setup.env if name != SYMMETRIC],
            faults=setup.broken.lines,
            notes=self.notes,
            times=self.times,
        )
        return json_of(called, devices(self.where, self.options), self.lines)


def table_of(
    where: PerfPlace,
    test: Program,
    options: PerfOptions,
    *,
    jobs: int | None = None,
    show: Callable[[str], None] | None = None,
) -> Table:
    """Run a program of nccl-tests.

    Parameters
    ----------
    jobs : int or None
        Worker processes; None is one per core, 1 works in this process.
    show : callable or None
        Called with every line as soon as it is known.
    """
    found = Table(where, test, options)

    def put(line: str) -> None:
        found.printed.append(line)
        if show is not None:
            show(line)

    began = strftime(NOW, localtime())
    setup = where.setup
    note = f"clusim: simulated {setup.name}, {setup.num_nodes} x {where.processes} processes; time {LAUNCHED}"
    notes = [note, *said(setup.broken.lines, found.notes)]
    for text in head(test.binary, options, library_code(setup), devices(where, options), notes):
        put(text)
    for _ in range(options.run_cycles):
        found.lines = []
        for text in table_head(options):
            put(text)
        for line in rows(where, test, options, jobs=jobs):
            put(line.text())
            found.lines.append(line)
        for text in foot(test.binary, found.lines):
            put(text)
    found.times = began, strftime(NOW, localtime())
    return found
