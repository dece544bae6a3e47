"""Predictions and measurements of collectives, and the rows without a prediction.

A validation also writes the file of expected errors that `clusim.simulation.expected` reads, and a figure of time over
size with one panel per system: lines are predicted, dots measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from clusim.base.display import picture_format
from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.files import Staging, replacing
from clusim.base.tables import group_values
from clusim.base.terms.operations import COLLECTIVE_OF
from clusim.base.terms.times import ONE, SEVERAL, regime_of
from clusim.base.units import format_size
from clusim.lowering import QUICK
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import Failure, PerfKernel, each_kernel
from clusim.nccltests.sweep import TESTS
from clusim.simulation.expected import (
    ANY,
    P2P,
    MeasuredError,
    RunPlace,
    expected_error,
)
from clusim.simulation.request import Request
from clusim.simulation.residuals import (
    COLLECTIVE,
    MESSAGES,
    Campaign,
    Scale,
    SystemClass,
)
from clusim.simulation.setup import Setup, loaded
from clusim.validation.collectives.breakdown import (
    Point,
    launch_span,
    regime_scores,
)
from clusim.validation.collectives.classtables import calibrated_by, class_tables
from clusim.validation.collectives.measurements import CurveGroup, Row, groups
from clusim.validation.collectives.narrowing import narrow_rows, thin_rows
from clusim.validation.collectives.standing import INDEPENDENT, UNEVEN, standings
from clusim.validation.collectives.systems import plugin_notes, setup_of
from clusim.validation.collectives.validationjson import (
    CurveScores,
    ExpectedRows,
)
from clusim.validation.measured import (
    FAILED,
    UNKNOWN,
    UNUSABLE,
    Report,
    Tell,
    Unpredicted,
    by,
)

PANEL_IN = 3.4
"""Width of a panel [inch]."""
SMALL_DPI = 75
"""Dots per inch of figures embedded in a page."""
SHOWN = 8
"""Curves that the legend of a panel names."""


Curve = Sequence[Point]
"""Predictions of one group of a system by size."""


def save_accuracies(curves: Iterable[Curve], target: Path) -> list[tuple[str, Path]]:
    """Draw curves into one file, or a figure per system into a directory (no extension).

    Returns
    -------
    list of (str, Path)
        Content and file of every figure.
    """
    if target.suffix and not target.is_dir():
        save_accuracy(curves, target)
        return [("all systems", target)]
    result = []
    with Staging() as staging:
        staging.folder(target)
        for system, system_curves in _split(
            curves, lambda group: group.system
        ).items():
            # System names come from external tables and may contain path characters.
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", system).strip("-") or "system"
            result.append((system, target / f"{name}.png"))
            with staging.open(result[-1][1]) as out:
                _draw(_panels(system_curves), out, "png", SMALL_DPI)
    return result


def save_accuracy(curves: Iterable[Curve], target: Path, *, dpi: int = 150) -> None:
    """Draw curves, one panel per system, into a file; its extension selects the format."""
    form = picture_format(target)
    panels = _split(curves, lambda group: group.system)
    if not panels:
        raise InputError("no row was predicted, so the figure would be empty")
    with replacing(target) as out:
        _draw(panels, out, form, dpi)


def _panels(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Return the curves by panel; a panel with too many curves is split by system name prefix."""
    result: dict[str, list[Curve]] = {}
    for panel, kind_curves in _split(curves, lambda group: group.kind).items():
        if len(kind_curves) <= SHOWN:
            result[panel] = kind_curves
            continue
        for machines, some in _split(
            kind_curves, lambda group: group.title.partition(" ")[0]
        ).items():
            result[f"{panel} {machines}"] = some
    return result


def _split(
    curves: Iterable[Curve], key: Callable[[CurveGroup], str]
) -> dict[str, list[Curve]]:
    """Return the curves by a key of their group; curves of one size are omitted if others are longer."""
    keys = list(curves)
    longer = [
        curve for curve in keys if len({point.row.size_bytes for point in curve}) > 1
    ]
    return group_values((key(curve[0].row.group), curve) for curve in longer or keys)


def _draw(
    panels: Mapping[str, Sequence[Curve]], out: BinaryIO, form: str, dpi: int
) -> None:
    """Draw a panel for each of several lists of curves."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    style: Any = {
        "font.size": 7,
        "axes.linewidth": 0.5,
        "svg.fonttype": "none",
        "text.parse_math": False,
    }
    with matplotlib.rc_context({**style, "svg.hashsalt": "clusim"}):
        size = (PANEL_IN * columns, PANEL_IN * 0.8 * lines)
        figure = Figure(figsize=size, layout="constrained")
        places = list(figure.subplots(lines, columns, squeeze=False).flat)
        for axes, (title, curves) in zip(places, panels.items(), strict=False):
            _panel(axes, title, curves)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel("size [bytes]")
        figure.supylabel("time [us]: dots measured, lines predicted")
        # No date or library version: equal curves write equal files.
        metadata = {
            "svg": {"Date": None},
            "pdf": {"CreationDate": None},
            "png": {"Software": None},
        }
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata[form])


def _panel(axes: Any, title: str, curves: Sequence[Curve]) -> None:
    axes.set_title(title)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    # The library's default power labels are formulas, but names of tables must not be parsed as formulas.
    axes.xaxis.set_major_locator(LogLocator(2, numticks=5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda size, _: format_size(max(1, round(size))))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:,g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    title_words = set(title.split())
    for number, curve in enumerate(curves):
        colour = f"C{number % 10}"
        words = [
            word
            for word in curve[0].row.group.title.split()
            if word not in title_words
        ]
        label = " ".join(words) if number < SHOWN else None
        # A single point draws no line.
        mark = "_" if len(curve) == 1 else None
        style: Any = {"color": colour, "linewidth": 0.8, "marker": mark}
        sizes = [point.row.size_bytes for point in curve]
        measured, predicted = zip(*(point.times for point in curve), strict=True)
        axes.plot(sizes, predicted, label=label, **style)
        axes.plot(sizes, measured, ".", color=colour, markersize=3)
    if len(curves) > SHOWN:
        axes.plot([], [], " ", label=f"and {len(curves) - SHOWN} more")
    axes.grid(visible=True, linewidth=0.3, alpha=0.5)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=5, frameon=False)


@dataclass(frozen=True)
class CollectiveReport(Report[Point]):
    """All points, and the rows without one; granularity is of the simulated kernels."""

    class_form = Campaign

    @property
    def independent(self) -> list[Point]:
        """Return the points of campaigns that calibrated no parameter of their system."""
        reasons = standings(self.points)
        return [point for point in self.points if reasons[point] == INDEPENDENT]

    def by_group(self) -> dict[CurveGroup, list[Point]]:
        """Return the points by their common properties."""
        return group_values((point.row.group, point) for point in self.points)

    def further_lines(self) -> list[str]:
        """Return the number of rows within their spread."""
        points = [point for point in self.points if point.row.spread_pct > 0]
        met = sum(point.met for point in points)
        return (
            [f"{met} of {len(points)} rows with a known spread are within it"]
            if points
            else []
        )

    def classes_of(self, point: Point) -> Iterator[tuple[str, ...]]:
        """Return the words of the campaign of a row, without its standing."""
        group = point.row.group
        about = system_class(group.system, point.family)
        kind = MESSAGES if point.algorithm == P2P else COLLECTIVE
        words = about.library, about.family, about.links, about.network
        yield point.row.campaign, group.system, *words, point.place, kind

    def campaigns(self) -> list[list[Any]]:
        """Return the errors of all rows of even curves by campaign and standing, as fields of `Campaign`."""
        reasons = standings(self.points)
        even_points = [point for point in self.points if reasons[point] != UNEVEN]
        some = group_values(
            (key, point) for point in even_points for key in self.classes_of(point)
        )
        result = []
        for key, points in sorted(some.items()):
            sizes = [point.row.size_bytes for point in points]
            for kind, rows in by(points, lambda point: reasons[point]).items():
                pairs = sorted(
                    [p.row.size_bytes, round(p.error_pct, 1)] for p in rows
                )
                result.append([*key, kind, min(sizes), max(sizes), pairs])
        return result

    def expectations(self) -> Iterator[ExpectedRows]:
        """Yield expected and found errors by system, place and regime."""
        some = [point for point in self.points if not point.calibration_sets]
        some.sort(key=lambda p: (p.row.group.system, p.place, p.row.size_bytes))
        for key, rows in group_values(
            ((p.row.group.system, p.place, regime_of(p.row.size_bytes), _kind(p)), p)
            for p in some
        ).items():
            system, place, regime, algorithm = key
            first = rows[0]
            about = system_class(system, first.family)
            where = RunPlace(
                system, about, first.machines or first.row.group.n_nodes
            )
            campaigns = {point.row.campaign for point in rows}
            expected = expected_error(
                where, first.row.size_bytes, algorithm, campaigns
            )
            error = MeasuredError.of(point.error_pct for point in rows)
            yield ExpectedRows(system, place, regime, expected, error)

    def facts(self) -> dict[str, Any]:
        """Return the number of rows of every source, and the factors with which expected errors hold."""
        sources = by(self.points, lambda point: point.row.source or "-")
        campaigns = [Campaign(*row) for row in self.campaigns()]
        return {
            "sources": {name: len(some) for name, some in sources.items()},
            "scale": {
                place: asdict(Scale.of(campaigns, place)) for place in (ONE, SEVERAL)
            },
        }

    def to_json(self) -> dict[str, Any]:
        """Return every point, groups, scores by class, and omitted rows."""
        return {
            "tables": [table.to_json() for table in class_tables(self.points)],
            "expected": [rows.to_json() for rows in self.expectations()],
            "groups": [
                _group_json(group, points)
                for group, points in self.by_group().items()
            ],
            "overall": regime_scores(self.points).to_json(),
            "single_node": regime_scores(
                [p for p in self.points if p.place == ONE]
            ).to_json(),
            "multi_node": regime_scores(
                [p for p in self.points if p.place == SEVERAL]
            ).to_json(),
            "calibrated_by": calibrated_by(self.points),
            "worst": [point.to_json() for point in self.worst()],
            "points": [point.to_json() for point in self.points],
            "thinned": self.skipped,
            "granularity": self.granularity,
            **{
                name: [
                    {"where": item.row.where, "reason": item.reason}
                    for item in self.unpredicted
                    if item.why == why
                ]
                for name, why in (
                    ("unknown", UNKNOWN),
                    ("failed", FAILED),
                    ("unusable", UNUSABLE),
                )
            },
        }


def _kind(point: Point) -> str:
    return P2P if point.algorithm == P2P else ANY


@lru_cache(64)
def system_class(system: str, family: str) -> SystemClass:
    """Return the class of a measured system with GPUs of an architecture."""
    return SystemClass.of(loaded(system, None), family)


def _group_json(group: CurveGroup, points: list[Point]) -> dict[str, Any]:
    notes = sorted({note for point in points for note in point.notes})
    return CurveScores(group, len(points), regime_scores(points), notes).to_json()


def by_campaign(rows: Sequence[Row], limit: int, *, gpus: int = 0) -> list[Row]:
    """Return at most `limit` rows of a source on a system with a number of nodes, spread over sizes and curves.

    Sends and receives are counted separately. Rows that calibrated a parameter are omitted, if there are others.

    Parameters
    ----------
    gpus : int
        Most GPUs of a row; 0 is all.
    """
    some = [row for row in rows if not gpus or row.group.n_gpus <= gpus]
    parts = group_values(
        ((row.campaign, row.group.system, row.group.n_nodes, _is_p2p(row)), row)
        for row in some
    )
    result: list[Row] = []
    for part in parts.values():
        result += thin_rows([row for row in part if not row.row_sets] or part, limit)
    return result


def _is_p2p(row: Row) -> bool:
    return TESTS[row.group.collective].of.name not in COLLECTIVE_OF


def validate(
    rows: Sequence[Row],
    *,
    sizes: int = 0,
    jobs: Jobs = None,
    granularity: str | int = QUICK,
    tell: Tell[Point] | None = None,
) -> CollectiveReport:
    """Predict measured rows and return both.

    Parameters
    ----------
    sizes : int
        Most sizes of a group; 0 is all.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core.
    tell : callable or None
        Called with every completed row, in any order.
    """
    if sizes < 0:
        raise InputError(
            f"sizes per group {sizes}: must be at least 1, or 0 for all"
        )
    usable: list[Row] = []
    without: list[Unpredicted] = []
    for row in rows:
        if row.size_bytes == 0:
            without.append(Unpredicted(row, "size 0", UNUSABLE))
        elif not (isfinite(row.time_us) and row.time_us > 0):
            without.append(Unpredicted(row, f"time {row.time_us}", UNUSABLE))
        else:
            usable.append(row)
    requested: list[Row] = []
    cases: dict[Request, list[Row]] = {}
    skipped = 0
    usable = narrow_rows(usable, granularity=granularity, jobs=jobs)
    for group, group_rows in groups(usable).items():
        try:
            setup = setup_of(group)
        except InputError as error:
            without += [Unpredicted(row, str(error), UNKNOWN) for row in group_rows]
            continue
        chosen = thin_rows(group_rows, sizes) if sizes else group_rows
        skipped += len(group_rows) - len(chosen)
        requested += chosen
        for row in chosen:
            cases.setdefault(case_of(row, setup, granularity), []).append(row)
    points: dict[Row, Point | Unpredicted] = {}
    for case, kernel in each_kernel(cases, jobs=jobs):
        for row in cases[case]:
            if isinstance(kernel, Failure):
                points[row] = Unpredicted(row, kernel.reason)
            else:
                points[row] = point_of(row, case, kernel)
            if tell is not None:
                tell(points[row], len(points), len(requested))
    predicted = [*without, *(points[row] for row in requested)]
    return CollectiveReport.of(predicted, skipped, str(granularity))


def case_of(row: Row, setup: Setup, granularity: str | int = QUICK) -> Request:
    """Return the request for the kernel that a row measured."""
    operation = TESTS[row.group.collective].of.name
    return Request(setup, operation, row.size_bytes, granularity=granularity)


def point_of(row: Row, case: Request, kernel: PerfKernel) -> Point:
    """Return a row with the time that its harness would report for a kernel."""
    host = kernel.host or host_of(case.setup.comm)
    time_ps = row.harness.time_ps(host, case.operation, kernel)
    return Point(
        row,
        time_ps / 1e6,
        kernel.algorithm,
        kernel.protocol,
        (
            *kernel.notes,
            *row.group.assumptions,
            *plugin_notes(row.group, case.setup.fabric),
            *row.unused,
        ),
        family=host.architecture,
        followed=kernel.followed,
        machines=case.setup.num_nodes,
        span=launch_span(row, host, case.operation, kernel),
    )
