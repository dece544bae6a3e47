"""Time breakdown of one measured row: launch, kernel, and the kernel's critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from clusim.analysis.blame import alike, blame
from clusim.base.errors import InputError
from clusim.base.json_schema import FieldsOf
from clusim.base.tables import ColumnTable
from clusim.base.units import format_size
from clusim.nccl.launch import host_of, overhead_ps, period_ps
from clusim.nccltests.api import MOST_RANKS, whole
from clusim.nccltests.jobs import kernel
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.validation.collectives.accuracypage import group_title
from clusim.validation.collectives.breakdown import Point, Score
from clusim.validation.collectives.measurements import Row, setup_of
from clusim.validation.collectives.validate import case_of, point_of

ORDER = ("cost", "work", "stall")
"""Parts of a kernel: latencies and fixed costs, data movement, and waiting."""


@dataclass(frozen=True, slots=True)
class Term:
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
class Explained:
    """A row and the parts of its prediction; the counted parts add up to it."""

    point: Point
    terms: list[Term]

    def lines(self) -> list[str]:
        """Return the parts as text."""
        row, point = self.point.row, self.point
        sets = ", ".join(point.row_sets)
        lines = [
            f"{group_title(row.group)} {format_size(row.size_bytes)} ({row.where})",
            "",
            f"  measured   {row.time_us:>12,.3f} us" + _spread(row),
            f"  predicted  {point.predicted_us:>12,.3f} us  {point.error_pct:+.1f}%  {point.way}",
            f"  {'calibrated ' + sets if sets else 'held out of every calibration'}",
            "",
        ]
        for term in self.terms:
            share = f"{term.us / point.predicted_us:>7.1%}" if term.counted else "       "
            lines.append(f"  {term.us:>12,.3f} us {share}  {term.part:9} {term.what}")
        return [*lines, "", *(f"  {note}" for note in point.notes)]

    def to_json(self) -> dict[str, Any]:
        """Return row, prediction and parts."""
        row, point = self.point.row, self.point
        return {
            "where": row.where,
            "group": group_title(row.group),
            "size_bytes": row.size_bytes,
            "measured_us": row.time_us,
            "spread_pct": row.spread_pct or None,
            "predicted_us": round(point.predicted_us, 6),
            "error_pct": round(point.error_pct, 2),
            "ran": point.way,
            "calibrated": list(point.row_sets),
            "notes": list(point.notes),
            "terms": [
                {"part": term.part, "what": term.what, "us": term.us, "counted": term.counted}
                for term in self.terms
            ],
        }


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


def explained(row: Row, granularity: str | int) -> Explained:
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
        Term("launch", "from the end of a kernel to the start of the next on all GPUs", launch_us),
        Term("host", "the host's thread for one iteration, ahead of the GPU", host_us, False),
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
        what = f"{result.time_ps / 1e6:.3f} us, of more than {MOST_RANKS} ranks: no time breakdown"
        return Explained(point, [*terms, Term("followed", what, kernel_us)])
    return Explained(point, [*terms, *_kernel_terms(case, kernel_us)])


def _merged(table: ColumnTable) -> list[Term]:
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
        result_of(whole(case), how)
        table = blame(trace)
    terms = _merged(table)
    rest_us = kernel_us - table.facts["time_ps"] / 1e6
    if abs(rest_us) > 1e-9:
        what = "further time of the kernel compared with a single run: consecutive iterations, or extrapolation"
        terms.append(Term("followed", what, rest_us))
    return terms


_Scored = Annotated[dict[str, Any], FieldsOf(Score)]


class RegimesJson(TypedDict):
    """Scores below 1 MiB, below 64 MiB and above."""

    small: _Scored
    mid: _Scored
    large: _Scored


class ClassNameJson(TypedDict):
    """A class of rows, and a remark on it."""

    name: str
    remark: NotRequired[str]


class ClassTableJson(TypedDict):
    """Classes of rows, each with the score of all its rows and of every regime of size.

    Attributes
    ----------
    text : str
        Description of the classes.
    """

    title: str
    text: str
    lines: list[Annotated[dict[str, Any], FieldsOf(Score, ClassNameJson, RegimesJson)]]


class CurveJson(TypedDict):
    """Common properties of rows; None if the rows do not contain them.

    Attributes
    ----------
    gpus_per_process, threads_per_process : int or None
        As ``-g`` and ``-t`` of nccl-tests.
    """

    system: str
    n_nodes: int
    n_gpus: int
    collective: str
    algorithm: str
    protocol: str
    channels: int | None
    nccl_version: str
    gpus_per_process: int | None
    threads_per_process: int | None
    harness: str | None
    cuda_graph: bool


class CurveScoresJson(CurveJson, RegimesJson):
    """Errors of a group of rows.

    Attributes
    ----------
    points : int
        Number of rows.
    notes : list of str
        Assumptions, and approximations of the simulation.
    """

    points: int
    notes: list[str]


class PointRowJson(CurveJson):
    """A measured row and its prediction.

    Attributes
    ----------
    spread_pct : float or None
        Spread of its repetitions [%].
    predicted_low_us, predicted_high_us : float or None
        Range over all possible values of properties that the row does not give, which are `unknown` [us].
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    ran : str
        Algorithm and protocol.
    calibrated : list of str
        The sets of rows that calibrated parameters and contain this row.
    followed : bool
        Whether the time was extrapolated from other runs.
    where : str
        File and line.
    """

    source: str
    iters: int | None
    size_bytes: int
    measured_us: float
    spread_pct: float | None
    predicted_us: float
    predicted_low_us: float | None
    predicted_high_us: float | None
    unknown: str | None
    error_pct: float
    ran: str
    calibrated: list[str]
    followed: bool
    notes: list[str]
    where: str


class LeftOutRowJson(TypedDict):
    """A row without a prediction, and the reason."""

    where: str
    reason: str


class ValidationJson(TypedDict):
    """Errors of predicted collectives.

    Attributes
    ----------
    tables : list
        Scores by class.
    groups : list
        Rows of one system, collective and launch.
    overall, single_node, multi_node : object
        Scores of all rows, of rows on one node and of rows on several nodes.
    calibrated_by : dict
        Sets of the rows that calibrated parameters -> the sources of these parameters.
    worst : list
        The rows with the largest error, as a ratio.
    thinned : int
        Rows omitted to limit the sizes per group.
    granularity : str
        Granularity of the simulated kernels.
    unknown, failed, unusable : list
        Rows with an unknown word, that could not be simulated, or without a time or size.
    """

    tables: list[ClassTableJson]
    groups: list[CurveScoresJson]
    overall: RegimesJson
    single_node: RegimesJson
    multi_node: RegimesJson
    calibrated_by: dict[str, list[str]]
    worst: list[PointRowJson]
    points: list[PointRowJson]
    thinned: int
    granularity: str
    unknown: list[LeftOutRowJson]
    failed: list[LeftOutRowJson]
    unusable: list[LeftOutRowJson]


class ExplainedJson(TypedDict):
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

    where: str
    group: str
    size_bytes: int
    measured_us: float
    spread_pct: float | None
    predicted_us: float
    error_pct: float
    ran: str
    calibrated: list[str]
    notes: list[str]
    terms: list[Annotated[dict[str, Any], FieldsOf(Term)]]
