"""Tables of classes of predicted rows: systems by standing, calibration rows, and classes of held-out rows.

Classes are of rows below 1 MiB, below 64 MiB and above, on one node or several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from clusim.base.tables import group_values
from clusim.base.terms.times import SEVERAL
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS
from clusim.validation.collectives.breakdown import (
    ClassLine,
    ClassTable,
    Point,
)
from clusim.validation.collectives.standing import (
    CALIBRATION,
    EXCLUDED,
    INDEPENDENT,
    LAUNCH,
    PLAN,
    SAME_SOURCE,
    UNEVEN,
    left_out,
    standings,
)
from clusim.validation.measured import by


def calibrated_by(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return the row sets of the points, each with the sources of the parameters calibrated."""
    names = dict.fromkeys(
        name for point in points for name in point.calibration_sets
    )
    result: dict[str, list[str]] = {name: [] for name in ROW_SETS if name in names}
    for figure in all_figures():
        for name in figure.rows:
            if name in result and figure.source not in result[name]:
                result[name].append(figure.source)
    return result


_CLASSES: dict[str, tuple[str, Callable[[Point], str]]] = {
    "collective": ("", lambda p: p.row.group.collective),
    "algorithm and protocol": (
        "As they ran; P2P are sends and receives.",
        lambda p: p.executed,
    ),
    "method of simulation": (
        "Followed: extrapolated from runs of fewer nodes or smaller sizes.",
        lambda p: "followed" if p.followed else "simulated in full",
    ),
}
"""Properties that divide held-out rows into classes -> a remark, and the class of a row."""


def class_tables(points: Sequence[Point]) -> list[ClassTable]:
    """Return the tables of a validation, the systems first, without empty ones."""
    reasons = standings(points)
    held_out = [
        point for point in points if reasons[point] in (INDEPENDENT, SAME_SOURCE)
    ]
    tables = [
        _systems(points, reasons),
        _left_out(points, reasons),
        _counts(points, reasons),
        _excluded_rows(points, reasons),
        _launches([point for point in points if reasons[point] == LAUNCH]),
        *(
            ClassTable(f"Held-out rows by {noun}", text, _class_lines(held_out, key))
            for noun, (text, key) in _CLASSES.items()
        ),
        _calibration(points),
    ]
    return [table for table in tables if table.lines]


def _class_lines(
    points: Sequence[Point], key: Callable[[Point], str]
) -> list[ClassLine]:
    """Return a line for every class, separately for one node and for several."""
    return [
        ClassLine(f"{name}, {place}", some)
        for name, class_points in by(points, key).items()
        for place, some in by(class_points, lambda p: p.place).items()
    ]


def _sources(points: Sequence[Point]) -> str:
    return ", ".join(sorted({point.row.campaign for point in points}))


def _systems(points: Sequence[Point], reasons: dict[Point, str]) -> ClassTable:
    """Return the rows of every system by standing, with their sources."""
    lines = []
    for name, some in by(
        points, lambda p: f"{p.row.group.system}, {p.place}"
    ).items():
        kinds = group_values((reasons[point], point) for point in some)
        for kind in (INDEPENDENT, SAME_SOURCE, CALIBRATION):
            if kind in kinds:
                lines.append(
                    ClassLine(f"{name}, {kind}", kinds[kind], _sources(kinds[kind]))
                )
        excluded = [point for kind in EXCLUDED for point in kinds.get(kind, ())]
        if excluded:
            why = ", ".join(kind for kind in EXCLUDED if kind in kinds)
            lines.append(
                ClassLine(
                    f"{name}, excluded", excluded, f"{_sources(excluded)} ({why})"
                )
            )
    return ClassTable(
        "Systems",
        f"{INDEPENDENT}: rows of a source that calibrated no parameter of the system. {SAME_SOURCE}: held-out rows of a"
        f" source with other rows that calibrated one. {CALIBRATION}: rows that parameters were fitted to. excluded:"
        " rows that judge no prediction. Only independent rows show the error of a new measurement.",
        lines,
    )


def _left_out(points: Sequence[Point], reasons: dict[Point, str]) -> ClassTable:
    """Return the rows with a source or a system without calibration rows, and each of these systems."""
    lines = []
    for what, some in left_out(points, reasons).items():
        lines += _class_lines(some, partial(_uncalibrated_reason, what))
        if what == "system":
            lines += _class_lines(some, lambda p: f"no rows of {p.row.group.system}")
    return ClassTable(
        "Sources and systems without calibration rows",
        "Rows with no parameter calibrated on their source, or on their system. Parameters are not fitted again, so"
        " systems with calibrated parameters of their architecture or host have no rows.",
        lines,
    )


def _uncalibrated_reason(what: str, _: Point) -> str:
    return f"no calibration rows of the {what}"


def _counts(points: Sequence[Point], reasons: dict[Point, str]) -> ClassTable:
    """Return the rows of campaigns on several numbers of nodes, by number, if one of them was calibrated on."""
    lines = []
    some = [p for p in points if p.place == SEVERAL and reasons[p] not in EXCLUDED]
    for name, campaign in by(
        some, lambda p: f"{p.row.group.system} ({p.row.campaign})"
    ).items():
        counts = group_values((p.row.group.n_nodes, p) for p in campaign)
        fitted = {p.row.group.n_nodes for p in campaign if p.calibration_sets}
        if not fitted or len(counts) < 2:
            continue
        for count, rows in sorted(counts.items()):
            remark = "with calibration rows" if count in fitted else "not calibrated"
            lines.append(ClassLine(f"{name}, {count} nodes", rows, remark))
    return ClassTable(
        "Numbers of nodes without calibration rows",
        "Campaigns that calibrated parameters on some numbers of nodes only: all rows, by number.",
        lines,
    )


def _excluded_rows(points: Sequence[Point], reasons: dict[Point, str]) -> ClassTable:
    """Return the rows by which no prediction can be judged, by reason and system."""
    some = [point for point in points if reasons[point] in EXCLUDED]
    lines = _class_lines(
        some, lambda point: f"{reasons[point]}: {point.row.group.system}"
    )
    return ClassTable(
        "Excluded rows",
        f"{UNEVEN}: slower by 15% than one of the next three sizes. {LAUNCH}: no processes or threads. {PLAN}:"
        " algorithm, protocol and channels are not forced, and NCCL's release or the release of the network plugin is"
        " not given. No other table of held-out rows contains them.",
        lines,
    )


def _launches(unknown: Sequence[Point]) -> ClassTable:
    """Return the rows with an unknown launch, for each possible launch."""
    if not unknown:
        return ClassTable("Held-out rows of an unknown launch", "", [])
    inside = sum(point.within_launches for point in unknown)
    return ClassTable(
        "Held-out rows of an unknown launch",
        "The same rows for each possible launch.",
        [
            ClassLine(
                "the likeliest launch",
                unknown,
                f"{inside} measured times are in the span",
            ),
            ClassLine("the shortest of all", [_at(point, 0) for point in unknown]),
            ClassLine("the longest of all", [_at(point, 1) for point in unknown]),
        ],
    )


def _at(point: Point, end: int) -> Point:
    """Return a point with the shortest (0) or longest (1) time of its span."""
    assert point.span is not None
    time_us = (point.span.low_us, point.span.high_us)[end]
    return replace(point, predicted_us=time_us)


def _calibration(points: Sequence[Point]) -> ClassTable:
    """Return the calibration rows, by their row sets; a row may be in several."""
    calibrated = [point for point in points if point.calibration_sets]
    lines = [ClassLine("all", calibrated)] if calibrated else []
    for name, sources in calibrated_by(calibrated).items():
        members = [point for point in calibrated if name in point.calibration_sets]
        count = f"{len(sources)} parameter{'s' * (len(sources) > 1)}"
        lines.append(ClassLine(f"{name}: {ROW_SETS[name].text}", members, count))
    return ClassTable(
        "Calibration rows",
        "Rows used to set or fit parameters. Their agreement is by construction and does not predict the error of"
        " other systems.",
        lines,
    )
