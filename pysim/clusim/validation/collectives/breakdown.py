"""Scores of a validation by classes of held-out and calibration rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.base.terms.regimes import ONE, SEVERAL
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS
from clusim.validation.collectives.scores import Point, by, score, statistics


@dataclass(frozen=True, slots=True)
class ClassLine:
    """Rows of a class, and a remark on them."""

    name: str
    points: Sequence[Point]
    remark: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the scores over all sizes and of every regime."""
        regimes = {name: result.to_json() for name, result in statistics(self.points).items()}
        more = {"remark": self.remark} if self.remark else {}
        return {"name": self.name, **score(self.points).to_json(), **regimes, **more}


@dataclass(frozen=True, slots=True)
class ClassTable:
    """Table of several classes of rows.

    Attributes
    ----------
    text : str
        Description of the classes.
    """

    title: str
    text: str
    lines: list[ClassLine]

    def to_json(self) -> dict[str, Any]:
        """Return all lines."""
        return {
            "title": self.title,
            "text": self.text,
            "lines": [line.to_json() for line in self.lines],
        }


def left_out(points: Sequence[Point]) -> list[Point]:
    """Return the points of held-out rows with a known launch."""
    return [point for point in points if not point.row_sets and not point.launch_open]


def calibrated_by(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return the row sets of the points, each with the sources of the parameters calibrated."""
    names = dict.fromkeys(name for point in points for name in point.row_sets)
    result: dict[str, list[str]] = {name: [] for name in ROW_SETS if name in names}
    for figure in all_figures():
        for name in figure.rows:
            if name in result and figure.source not in result[name]:
                result[name].append(figure.source)
    return result


def class_tables(points: Sequence[Point]) -> list[ClassTable]:
    """Return the tables of a validation, without empty ones."""
    out = left_out(points)
    tables = [
        _headline(points, out),
        ClassTable("Left-out rows by system", "", _placed(out, lambda p: p.row.group.system)),
        ClassTable("Left-out rows by source", "", _placed(out, lambda p: p.row.source or "-")),
        ClassTable(
            "Left-out rows by collective", "", _placed(out, lambda p: p.row.group.collective)
        ),
        ClassTable(
            "Left-out rows by algorithm and protocol",
            "As they ran; P2P are sends and receives.",
            _placed(out, lambda p: p.way),
        ),
        ClassTable(
            "Left-out rows by harness",
            "What measured, and how much of the launch is known: processes and threads are (launch known), only GPUs"
            " per process or thread are (threads not given), or nothing is (launch not given).",
            _placed(out, lambda p: p.row.group.launch_class),
        ),
        _launches([p for p in points if not p.row_sets and p.launch_open]),
        ClassTable(
            "Left-out rows by release",
            "",
            _placed(out, lambda p: "release given" if p.row.group.nccl_version else "not given"),
        ),
        ClassTable(
            "Left-out rows by how they were simulated",
            "Followed: along a line from runs of fewer nodes or smaller sizes.",
            _placed(out, lambda p: "followed" if p.followed else "simulated whole"),
        ),
        _calibration(points),
        _without("source", points, lambda p: p.row.source or "-"),
        _without("system", points, lambda p: p.row.group.system),
    ]
    return [table for table in tables if table.lines]


def _placed(points: Sequence[Point], key: Callable[[Point], str]) -> list[ClassLine]:
    """Return a line for every class, separately for one node and for several."""
    result = []
    for name, own in by(points, key).items():
        for place, some in by(own, lambda p: p.place).items():
            result.append(ClassLine(f"{name}, {place}", some))
    return result


def _headline(points: Sequence[Point], out: Sequence[Point]) -> ClassTable:
    lines = []
    for place in (ONE, SEVERAL):
        some = [point for point in out if point.place == place]
        lines += [ClassLine(place, some)] if some else []
    lines += [ClassLine("all", out)] if out else []
    keys: dict[str, Callable[[Point], str]] = {
        "source": lambda p: p.row.source,
        "system": lambda p: p.row.group.system,
    }
    for what, key in keys.items():
        tainted = {key(point) for point in points if point.row_sets}
        clean = [point for point in out if key(point) not in tainted]
        for place, some in by(clean, lambda p: p.place).items():
            lines.append(ClassLine(f"of a {what} that calibrated nothing, {place}", some))
    return ClassTable(
        "Left-out rows",
        "Rows that calibrated no figure, and whose launch is known: predictions.",
        lines,
    )


def _launches(unknown: Sequence[Point]) -> ClassTable:
    """Return the rows with an unknown launch, for each possible launch."""
    if not unknown:
        return ClassTable("Left-out rows of an unknown launch", "", [])
    inside = sum(point.within_launches for point in unknown)
    return ClassTable(
        "Left-out rows of an unknown launch",
        "The same rows by the launches that they may have had. They are in no other table of held-out rows.",
        [
            ClassLine("the likeliest launch", unknown, f"{inside} measured times lie in the span"),
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
    known = [point for point in points if point.row_sets]
    lines = [ClassLine("all", known)] if known else []
    for name, sources in calibrated_by(known).items():
        own = [point for point in known if name in point.row_sets]
        count = f"{len(sources)} figure{'s' * (len(sources) > 1)}"
        lines.append(ClassLine(f"{name}: {ROW_SETS[name].text}", own, count))
    return ClassTable(
        "Calibration rows",
        "Rows that figures were taken from or fitted to. Agreement with them is by construction, and says nothing of"
        " other nodes.",
        lines,
    )


def _without(what: str, points: Sequence[Point], key: Callable[[Point], str]) -> ClassTable:
    """Return every source or system with a remark on its calibrations, scored by all its rows."""
    lines = []
    for name, own in by(points, key).items():
        names = [row_set for row_set in ROW_SETS if any(row_set in p.row_sets for p in own)]
        if names:
            share = sum(bool(point.row_sets) for point in own)
            remark = f"not left out: {share} of its rows calibrated figures ({', '.join(names)})"
        else:
            remark = f"left out: nothing of this {what} calibrated a figure"
        lines.append(ClassLine(name, own, remark))
    return ClassTable(
        f"Leave one {what} out",
        f"All rows of every {what}. Figures are read off by hand and are not fitted anew without a {what}, so a line"
        f" is a prediction only where no figure was calibrated on the {what}; the remark says so. Where some were, the"
        " line is an error of agreement, and what leaving it out would cost is not known.",
        lines,
    )
