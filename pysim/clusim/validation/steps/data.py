"""Writes the file that says what error of a step to expect, from a validation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from clusim.base.errors import InputError
from clusim.base.files import write_text
from clusim.base.version import version
from clusim.training.expected import StepClass
from clusim.validation.steps.cases import framework_of
from clusim.validation.steps.scores import StepPoint, step_score
from clusim.validation.steps.validate import StepReport

LEAST = 4
"""Rows that a class must have."""


def write_step_data(report: StepReport, target: Path, measurements: Sequence[Path]) -> None:
    """Write the classes of a validation and where they are from."""
    found: dict[tuple[str, str], list[StepPoint]] = {}
    for point in report.left_out:
        framework = framework_of(point.row)
        for key in ((point.chip, framework), (point.chip, ""), ("", framework)):
            found.setdefault(key, []).append(point)
    classes = []
    for key, own in sorted(found.items()):
        said = step_score(own)
        if said.n >= LEAST and said.mean_abs_pct is not None and said.bias_pct is not None:
            classes.append([*key, said.n, said.mean_abs_pct, said.bias_pct])
    if not classes:
        raise InputError("too few rows were predicted to say what error to expect")
    about = {
        "written_by": "clusim validate --data",
        "version": version(),
        "granularity": report.granularity,
        "measurements": {path.name: sha256(path.read_bytes()).hexdigest() for path in measurements},
        "rows": len(report.points),
        "left_out": len(report.left_out),
        "columns": [item.name for item in fields(StepClass)],
    }
    rows = ",\n".join(f"    {json.dumps(row)}" for row in classes)
    text = json.dumps(about, indent=2)[:-2]
    write_text(target, f'{text},\n  "classes": [\n{rows}\n  ]\n}}\n')
