"""How far predictions are from measurements: a cost that changes moves the errors of a table out of their place.

``rows.csv`` has 72 rows of nccl-tests (and of two programs of authors' own) with their sources; some calibrated
figures of `clusim.hardware` (`clusim.hardware.calibration` says which), some did not. `ERRORS` is what predictions
were off when they were last looked at, and no promise: who improves the model writes the better number here, and says
under *Model changes* in CHANGELOG.md why.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from clusim.base.terms.times import REGIMES
from clusim.nccl import launch
from clusim.simulation.residuals import (
    DATA,
    Campaign,
    known_campaigns,
)
from clusim.validation.collectives.measurements import Row, read_measurements
from clusim.validation.collectives.validate import validate

TABLE = Path(__file__).with_name("rows.csv")
LARGE_BYTES = 64 << 20
BURST_BYTES = 1 << 10
WITHIN = 1.5
"""By how much a mean error may differ from its place [percentage points]."""

ERRORS = {
    ("superbench", "dgx-a100"): (1.6, -4.2, -8.0),
    ("simllm", "a100x4-mesh"): (-1.0, -1.9, -4.7),
    ("simllm", "gh200x4-mesh"): (-2.8, -4.8, -4.8),
    ("wayne", "dgx-h100"): (-4.4, 0.1, 3.3),
    ("ncclgauge", "aws-p5en"): (3.4, 2.8, None),
    ("aiconfigurator", "dgx-a100"): (-5.1, -10.1, 1.7),
    ("aiconfigurator", "dgx-h100"): (0.7, -3.0, -2.6),
    ("aiconfigurator", "hgx-b200"): (-3.7, 1.5, -2.6),
    ("aiconfigurator", "gb200-nvl72"): (-1.3, -2.1, 9.4),
    ("nccl-collectives-bench", "dgx-h100"): (0.8, 2.5, -0.2),
}
"""Source and system -> mean error of the time of its rows below 1 MiB, below 64 MiB and above [%]; + is too long."""


def table() -> dict[tuple[str, str], list[Row]]:
    """Return the rows of every source and system."""
    with TABLE.open(encoding="utf-8") as file:
        sources = [row["source"] for row in csv.DictReader(file)]
    found = defaultdict(list)
    for source, row in zip(sources, read_measurements([TABLE]), strict=True):
        found[source, row.group.system].append(row)
    return dict(found)


def errors(rows: list[Row]) -> list[float | None]:
    """Return the mean error of every regime of size [%], None where there is no row."""
    found = []
    for low, high in REGIMES.values():
        own = [row for row in rows if low <= row.size_bytes < high]
        # Large ones in small bursts, which move them by less than 1% and take an eighth of the time.
        grain = "auto" if low < LARGE_BYTES else BURST_BYTES
        report = validate(own, jobs=1, granularity=grain)
        assert report.unpredicted == []
        found.append(fmean(p.error_pct for p in report.points) if own else None)
    return found


@pytest.mark.parametrize("group", ERRORS, ids=" ".join)
def test_predictions_are_as_far_off_as_they_were(group: tuple[str, str]) -> None:
    for found, expected in zip(errors(table()[group]), ERRORS[group], strict=True):
        if expected is None:
            assert found is None
        else:
            assert found == pytest.approx(expected, abs=WITHIN)


SHIPPED = Path(__file__).with_name("shipped.csv")
"""Rows of one source (aiconfigurator) at 1 MiB whose residuals are shipped."""

STALE = 0.1
"""Largest difference of a shipped residual from the present model's [percentage points]: shipped are tenths."""


def test_a_sample_of_the_shipped_residuals_is_that_of_the_present_model() -> None:
    """`clusim validate --errors` writes them; a model that changes them is scored again."""
    points = validate(read_measurements([SHIPPED]), jobs=1).points
    assert len({point.row.group.system for point in points}) == 3
    for point in points:
        shipped = [
            error
            for item in known_campaigns(DATA, Campaign)
            if (item.source_name, item.system) == (point.row.source, point.row.group.system)
            for size_bytes, error in item.rows
            if size_bytes == point.row.size_bytes
        ]
        assert min(abs(point.error_pct - error) for error in shipped) <= STALE, point.row


def test_pages_of_measurements_have_their_date_commit_and_command() -> None:
    page = (TABLE.parents[2] / "docs" / "accuracy.md").read_text("utf-8")
    found = re.search(
        r"last written on (\d{4}-\d\d-\d\d), at commit (\w{8})\+?, by\n\n```\nclusim validate ",
        page,
    )
    assert found, "the page that clusim validate --markdown writes"
    data = json.loads(DATA.read_text("utf-8"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["date"])
    assert re.fullmatch(r"\w{8}\+?", data["commit"])


def test_many_of_the_rows_calibrated_nothing() -> None:
    rows = read_measurements([TABLE])
    assert set(table()) == set(ERRORS)
    assert sum(not row.row_sets for row in rows) >= len(rows) / 2.5
    assert len(rows) >= 60


def test_a_launch_that_costs_half_as_much_again_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: with another cost the errors leave their places."""
    usual = launch.overhead_ps
    monkeypatch.setattr(launch, "overhead_ps", lambda *words: usual(*words) * 3 // 2)
    small = [row for row in table()["aiconfigurator", "dgx-a100"] if row.size_bytes < 1 << 20]
    found = errors(small)[0]
    assert found is not None
    assert abs(found - ERRORS["aiconfigurator", "dgx-a100"][0]) > 2 * WITHIN
