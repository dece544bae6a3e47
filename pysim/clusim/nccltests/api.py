"""Complete run of an nccl-tests program: printed lines, ``-J`` output, curves and bottlenecks.

The bottleneck of a row is found by a simulation of its kernel in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import localtime, strftime
from typing import TYPE_CHECKING, Any

from clusim.base.display import Columns, Shown, Summary
from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.tables import group_values, wrap_line
from clusim.base.terms.operations import COLLECTIVE_OF
from clusim.base.terms.times import LAUNCHED
from clusim.base.units import format_size
from clusim.nccltests.options import PerfOptions, without_effect
from clusim.nccltests.sweep import (
    PerfPlace,
    Program,
    devices,
    library_code,
    row_request,
    rows,
    sized_heads,
)
from clusim.nccltests.table import (
    JSON_VERSION,
    PerfLine,
    config_json,
    foot,
    head,
    results_json,
    table_head,
)
from clusim.report.charts import curves
from clusim.report.runreport import note_lines, verdict_lines
from clusim.results.diagnosis import Verdict
from clusim.simulation.api import result_of
from clusim.simulation.expected import Expected, expected_on
from clusim.simulation.nccl_choice import nccl_choice
from clusim.simulation.plan import idle_notes
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.samples import stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RANKS = 64
"""Maximum ranks of a run that is simulated in full for a verdict."""


def row_verdict(case: Request) -> Verdict:
    """Return the verdict on a row's kernel, simulated in full, without its expected error."""
    if case.setup.num_ranks > MOST_RANKS:
        return Verdict(0, (), basis=f"more than {MOST_RANKS} ranks, not analysed")
    return result_of(full_request(case)).diagnose()


def full_request(case: Request, count: int = 1) -> ScheduleRequest:
    """Return the complete run of a kernel, without extrapolation; of `count` consecutive ones for NCCL's plans."""
    choice = nccl_choice(case)
    return case.of(
        choice.schedule() if count == 1 else stream(case, choice.plan, count)
    )


NOW = "%Y-%m-%d %H:%M:%S"


@dataclass(repr=False)
class Table(Shown):
    """Predicted output of an nccl-tests program.

    Attributes
    ----------
    lines : list of PerfLine
        One per size, type and reduction: bytes, and times [us] and bandwidths [10^9 bytes/s] out of place and in place.
    printed : list of str
        Complete output of the program.
    verdicts : list of Verdict
        Verdicts on the kernels of the rows, if requested.
    times : (str, str)
        Start and end of the run.
    """

    where: PerfPlace
    test: Program
    options: PerfOptions
    lines: list[PerfLine] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    times: tuple[str, str] = ("", "")
    verdicts: list[Verdict] = field(default_factory=list)

    def text(self) -> str:
        """Return the output of the program."""
        return "\n".join(self.printed)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on NCCL's plans and on flags."""
        where, test, options = self.where, self.test, self.options
        plans = where.setup.said(COLLECTIVE_OF.get(test.of.name), options.sizes())
        heads = sized_heads(where, test, options) if where.setup.env else []
        plans += idle_notes(
            row_request(where, test, options, head) for head in heads
        )
        loop = "iterations of a Python loop around torch.distributed"
        by = (loop,) if self.where.kind == "torch" else ()
        return (*plans, *by, *without_effect(self.options))

    @property
    def expected(self) -> dict[Expected, list[int]]:
        """Return the distinct expected errors of the rows, with their sizes [bytes]."""
        return group_values(
            (self._expected_error(line), line.size)
            for line in self.lines
            if line.size
        )

    def _expected_error(self, line: PerfLine) -> Expected:
        return expected_on(self.where.setup, line.size, line.algorithm)

    def summary(self) -> Summary:
        """Return program and place, and the best bandwidth of its rows."""
        sizes = [line.size for line in self.lines]
        parts = [f"{len(sizes)} sizes"]
        if sizes:
            best = max(half.busbw for line in self.lines for half in line.halves)
            parts = [
                f"{format_size(min(sizes))} to {format_size(max(sizes))}",
                f"up to {best:.2f} GB/s of bus bandwidth",
            ]
        title = f"{self.test.binary} on {self.where.setup.name}"
        return Summary(title, tuple(parts), " ".join(self.notes))

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return a row per size: time [us] and bandwidths [10^9 bytes/s] out of and in place."""
        return {"lines": self._columns}

    def _columns(self) -> Columns:
        result: dict[str, list[Any]] = {
            name: [getattr(line, name) for line in self.lines]
            for name in ("size", "count", "type", "redop", "root", "algorithm")
        }
        for number, place in enumerate(("out_of_place", "in_place")):
            halves = [line.halves[number] for line in self.lines]
            result[f"{place}_us"] = [half.time_us for half in halves]
            result[f"{place}_algbw_GBps"] = [half.algbw for half in halves]
            result[f"{place}_busbw_GBps"] = [half.busbw for half in halves]
        return result

    def to_json(self, args: Sequence[str] = ()) -> dict[str, Any]:
        """Return the output of ``-J``; `args` is the command line."""
        setup, options = self.where.setup, self.options
        result = {
            "version": JSON_VERSION,
            "start_time": self.times[0],
            "args": list(args),
            "env": [
                f"{name}={value}"
                for name, value in setup.env
                if name.startswith("NCCL_")
            ],
            "nccl_version": library_code(setup),
            "config": config_json(options, devices(self.where, options)),
            **results_json(self.test.binary, options, self.lines),
            "end_time": self.times[1],
            "includes": LAUNCHED,
        }
        clusim_entries = {
            "faults": list(setup.broken.lines),
            "notes": list(self.notes),
            "expected_errors": [item.error.to_json() for item in self.expected],
            "verdicts": [item.to_json() for item in self.verdicts],
        }
        always = "expected_errors"
        return result | {
            name: entry
            for name, entry in clusim_entries.items()
            if entry or name == always
        }

    def simulated(
        self, *, jobs: Jobs = None
    ) -> Iterator[tuple[str, PerfLine | None]]:
        """Simulate the rows; yield every printed line once it is known, with its row if it has one."""
        began = strftime(NOW, localtime())
        for text, line in self._output_lines(jobs):
            self.printed.append(text)
            yield text, line
        self.times = began, strftime(NOW, localtime())

    def _output_lines(self, jobs: Jobs) -> Iterator[tuple[str, PerfLine | None]]:
        where, test, options = self.where, self.test, self.options
        setup = where.setup
        note = f"clusim: simulated {setup.name}, {setup.num_nodes} x {where.processes} processes; time {LAUNCHED}"
        notes = [note, *note_lines(setup.broken.lines, self.notes)]
        for text in head(
            test.binary, options, library_code(setup), devices(where, options), notes
        ):
            yield text, None
        for _ in range(options.run_cycles):
            self.lines = []
            for text in table_head(options):
                yield text, None
            for line in rows(where, test, options, jobs=jobs):
                self.lines.append(line)
                yield line.text(), line
            expected = [item.text() for item in self.expected]
            for text in foot(test.binary, self.lines, expected):
                yield text, None

    def verdict_comments(self) -> Iterator[str]:
        """Yield the verdicts on the kernels of the last cycle as comment lines, each when known."""
        for line in self.lines:
            if not line.size:
                continue
            head = line.size, line.count, line.type, line.redop
            verdict = row_verdict(
                row_request(self.where, self.test, self.options, head)
            )
            self.verdicts.append(
                replace(verdict, expected=self._expected_error(line).text())
            )
            yield "#"
            for text in verdict_lines(self.verdicts[-1], format_size(line.size)):
                yield from wrap_line(f"#{text}")


def table_of(
    where: PerfPlace,
    test: Program,
    options: PerfOptions,
    *,
    jobs: Jobs = None,
    show: Callable[[str], None] | None = None,
) -> Table:
    """Run a program of nccl-tests.

    Parameters
    ----------
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    show : callable or None
        Called with every line as soon as it is available.
    """
    result = Table(where, test, options)
    for text, _ in result.simulated(jobs=jobs):
        if show is not None:
            show(text)
    return result


def plot_table(
    table: Table,
    figure: str = "",
    measured_us: Mapping[int, float] | None = None,
    **look: Any,
) -> Figure:
    """Draw ``busbw``, the bus bandwidth of every size; and of measured times by size [bytes], if given."""
    if figure not in ("", "busbw"):
        raise InputError(f"figure {figure!r}: unknown; a table has one, 'busbw'")
    rows = [line for line in table.lines if line.size]
    if not rows:
        raise InputError("busbw: no sizes above 0 in the table")
    series = {
        place: [line.halves[number].busbw for line in rows]
        for number, place in enumerate(("out of place", "in place"))
    }
    if measured_us is not None:
        halves = [line.halves[0] for line in rows]
        times = [measured_us[line.size] for line in rows]
        series = {
            "measured": [
                h.busbw * h.time_us / us for h, us in zip(halves, times, strict=True)
            ],
            "predicted": [half.busbw for half in halves],
        }
    return curves(
        [line.size for line in rows], series, table.summary().title, **look
    )
