"""The file that says what error to expect: written from a validation, read by `clusim.simulation.expected`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from clusim.base.files import write_text
from clusim.base.terms.regimes import regime_of
from clusim.base.version import version
from clusim.simulation.expected import ANY, ErrorClass, places_of
from clusim.validation.collectives.breakdown import left_out
from clusim.validation.collectives.scores import Point, by, score
from clusim.validation.collectives.validate import Report

LEAST = 8
"""Rows that a class must have."""


def _classes(points: Sequence[Point]) -> list[ErrorClass]:
    """Return the errors of every class that has rows enough."""
    found: dict[tuple[str, str, str, str, str], list[Point]] = {}
    for point in left_out(points):
        group = point.row.group
        place, regime = point.place, regime_of(point.row.size_bytes)
        for system, family, where in places_of(point.family, group.system, place):
            for algorithm in (point.algorithm, ANY):
                found.setdefault((system, family, where, regime, algorithm), []).append(point)
    classes = []
    for key, own in sorted(found.items()):
        if len(own) >= LEAST:
            said = score(own)
            errors = (said.median_abs_pct, said.mean_abs_pct, said.bias_pct)
            classes.append(ErrorClass(*key, said.n, *(error or 0.0 for error in errors)))
    return classes


def write_data(report: Report, target: Path, measurements: Sequence[Path]) -> None:
    """Write the classes of a validation and where they are from.

    Parameters
    ----------
    measurements : sequence of Path
        The files whose rows were predicted.
    """
    names = [item.name for item in fields(ErrorClass)]
    classes = [[getattr(item, name) for name in names] for item in _classes(report.points)]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in classes)
    about = {
        "written_by": "clusim validate --data",
        "version": version(),
        "granularity": report.granularity,
        "measurements": {path.name: sha256(path.read_bytes()).hexdigest() for path in measurements},
        "rows": len(report.points),
        "left_out": len(left_out(report.points)),
        "sources": {name: len(own) for name, own in by(report.points, _source).items()},
        "columns": names,
    }
    text = json.dumps(about, indent=2)[:-2]
    write_text(target, f'{text},\n  "classes": [\n{rows}\n  ]\n}}\n')


def _source(point: Point) -> str:
    return point.row.source or "-"
