"""Time breakdown of one measured row: launch, kernel, and the kernel's critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clusim.analysis.blame import alike, blame
from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round6
from clusim.base.tables import ColumnTable, text_table
from clusim.base.units import format_size
from clusim.nccl.launch import host_of, overhead_ps, period_ps
from clusim.nccltests.api import MOST_RANKS, full_request
from clusim.nccltests.jobs import kernel
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.validation.collectives.accuracypage import group_title
from clusim.validation.collectives.breakdown import Point
from clusim.validation.collectives.measurements import Row
from clusim.validation.collectives.systems import setup_of
from clusim.validation.collectives.validate import case_of, point_of

ORDER = ("cost", "work", "stall")
"""Parts of a kernel: latencies and fixed costs, data movement, and waiting."""


@dataclass(frozen=True, slots=True)
class Term(JsonObject):
    """A part of an iteration's time.

    Attributes
    ----------
    part : str
        ``launch``, ``host``, or of the kernel ``stall``, ``cost``, ``work`` or ``followed``.
    us : float
        Duration [us].
    counted : bool
        Whether it is part of the sum; host time hidden by the GPU is not.
    """

    part: str
    what: str
    us: float
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Explained(JsonObject):
    """Time breakdown of one measured row.

    Attributes
    ----------
    spread_pct : float or None
        Spread of its repetitions [%].
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    ran : str
        Algorithm and protocol.
    terms : list
        Parts of the prediction; the counted parts add up to it.
    """

    KEYS = (
        "where=point.row.where",
        "group",
        "size_bytes=point.row.size_bytes",
        "measured_us=point.row.time_us",
        "spread_pct=point.row.spread_pct?",
        "predicted_us",
        "error_pct=point.signed_pct",
        "ran=point.executed",
        "calibrated=point.calibration_sets",
        "notes=point.notes",
        "terms",
    )

    point: Point
    terms: list[Term]

    @property
    def group(self) -> str:
        """Return the name of the row's curve."""
        return group_title(self.point.row.group)

    @property
    def predicted_us(self) -> Round6:
        """Return the predicted time of an iteration [us]."""
        return self.point.predicted_us

    def lines(self) -> list[str]:
        """Return the parts as text."""
        row, point = self.point.row, self.point
        sets = ", ".join(point.calibration_sets)
        lines = [
            f"{self.group} {format_size(row.size_bytes)} ({row.where})",
            "",
            f"  measured   {row.time_us:>12,.3f} us" + _spread(row),
            f"  predicted  {point.predicted_us:>12,.3f} us  {point.error_pct:+.1f}%  {point.executed}",
            f"  {'calibrated ' + sets if sets else 'held out of every calibration'}",
            "",
        ]
        rows = [
            (
                term.us,
                term.us / point.predicted_us if term.counted else "",
                term.part,
                term.what,
            )
            for term in self.terms
        ]
        lines += text_table("  {:>12,.3f} us {:>7.1%}  {:<9} {}", rows)
        return [*lines, "", *(f"  {note}" for note in point.notes)]


def _spread(row: Row) -> str:
    return f"  repetitions differ by {row.spread_pct:g}%" if row.spread_pct else ""


def row_named(rows: Sequence[Row], name: str) -> Row:
    """Return the row of a number, from 1, or of a file and line: ``table.csv:17`` or ``:17``."""
    if name.isdecimal() and 1 <= int(name) <= len(rows):
        return rows[int(name) - 1]
    result = [row for row in rows if row.where.endswith(name)] if ":" in name else []
    if not result:
        raise InputError(f"row {name!r}: choose 1 to {len(rows)}, or FILE:LINE")
    return result[0]


def explain_row(row: Row, granularity: str | int) -> Explained:
    """Return the parts of a row's time."""
    case = case_of(row, setup_of(row.group), granularity)
    result = kernel(case)
    point = point_of(row, case, result)
    host = result.host or host_of(case.setup.comm)
    launch = row.harness.launch
    launch_us = overhead_ps(host, launch) / 1e6
    host_us = period_ps(host, case.operation, launch, result.channels) / 1e6
    kernel_us = result.time_ps / 1e6
    waits_us = point.predicted_us - launch_us - kernel_us
    terms = [
        Term(
            "launch",
            "from the end of a kernel to the start of the next on all GPUs",
            launch_us,
        ),
        Term(
            "host",
            "the host's thread for one iteration, ahead of the GPU",
            host_us,
            False,
        ),
    ]
    if abs(waits_us) > 1e-9:
        terms.append(
            Term(
                "host",
                "waiting for it, and its share of the start and end of all iterations",
                waits_us,
            )
        )
    if case.setup.num_ranks > MOST_RANKS:
        reason = f"{result.time_ps / 1e6:.3f} us, of more than {MOST_RANKS} ranks: no time breakdown"
        return Explained(point, [*terms, Term("followed", reason, kernel_us)])
    return Explained(point, [*terms, *_kernel_terms(case, kernel_us)])


def _merge_terms(table: ColumnTable) -> list[Term]:
    """Return equal entries of all ranks and wires as one term, longest first.

    A term contains its number of path segments.
    """
    ordered = sorted(alike(table), key=lambda row: ORDER.index(row["group"]))
    return [
        Term(
            row["group"],
            f"{row['kind']}: {row['reason']}, {_times(row['steps'])}",
            row["time_ps"] / 1e6,
        )
        for row in ordered
    ]


def _times(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _kernel_terms(case: Any, kernel_us: float) -> list[Term]:
    """Return the causes on the kernel's critical path, and the rest of its time.

    The kernel is simulated in full for the path.
    """
    with TemporaryDirectory() as place:
        trace = Path(place) / "row.h5"
        how = RunOptions(bins=2, trace_out=trace, trace_primitives=True)
        result_of(full_request(case), how)
        table = blame(trace)
    terms = _merge_terms(table)
    rest_us = kernel_us - table.facts["time_ps"] / 1e6
    if abs(rest_us) > 1e-9:
        reason = "further time of the kernel compared with a single run: consecutive iterations, or extrapolation"
        terms.append(Term("followed", reason, rest_us))
    return terms
