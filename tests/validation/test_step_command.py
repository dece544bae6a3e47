"""Validation of tables of steps: chosen rows, the command, and its end by a signal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusim.validation.measured import rows_by_source
from clusim.validation.steps.predict import StepPoint
from clusim.validation.steps.rows import StepRow
from clusim.validation.steps.validate import HEADING, validate_steps
from clusim_cli.main import run
from support.measured_steps import GPT, table


def row(**changes: Any) -> StepRow:
    return StepRow(**(GPT | changes))


def test_rows_are_spread_over_the_table() -> None:
    rows = [row(id=str(number), hardware="none") for number in range(10)]
    seen: list[str] = []
    found = validate_steps(
        rows,
        limit=2,
        jobs=1,
        tell=lambda item, done, total: seen.append(f"{item.row.id} {done} of {total}"),
    )
    assert [text.partition(" ")[2] for text in seen] == ["1 of 2", "2 of 2"]
    assert [item.row.id for item in found.unpredicted] == ["0", "5"]
    assert found.skipped == 8


def test_rows_of_steps_are_spread_over_each_source() -> None:
    """Ten rows of two sources in turn, the last two on 16 GPUs."""
    rows = [row(id=str(n), source="ab"[n % 2], n_gpus=8 if n < 8 else 16) for n in range(10)]
    assert [item.id for item in rows_by_source(rows, 2)] == ["0", "4", "1", "5"]
    small = rows_by_source([row for row in rows if row.n_gpus <= 8], 9)
    assert [item.id for item in small] == ["0", "2", "4", "6", "1", "3", "5", "7"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "steps.csv", {}, {"hardware": "TPU v4", "id": "other"})
    page = tmp_path / "page.md"
    words = ["validate", str(path), "--json", "--jobs", "1", "--no-progress", "--markdown"]
    assert run([*words, str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"]["n"] == 1
    assert found["points"][0]["id"] == "row"
    assert 0 < found["points"][0]["host_wait_s"] < found["points"][0]["predicted_s"]
    assert found["unpredicted"][0]["id"] == "other"
    assert HEADING in page.read_text(encoding="utf-8")
    assert run([*words[:-1], "--strict"]) == 2
    assert run(["validate", str(path), "--sizes", "3"]) == 2
    assert run(["validate", str(path), "--max-gpus", "8"]) == 2
    capsys.readouterr()
    table(path, {"hardware": "TPU v4"})
    assert run(words[:-1]) == 2
    none = capsys.readouterr()
    assert (none.out, none.err.count("\n")) == ("", 1)
    assert "no row could be scored: 1 rows failed: hardware 'TPU v4'" in none.err


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_rows_before_a_signal_are_reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
    code: int,
) -> None:
    """The third of four rows is interrupted: two are scored, and no page is written."""
    path = table(tmp_path / "steps.csv", *({"id": str(number)} for number in range(4)))
    page = tmp_path / "page.md"

    def predict(item: StepRow, granularity: str) -> StepPoint:
        if item.id == "2":
            raise end
        return StepPoint(item, 1.0, 1.1)

    monkeypatch.setattr("clusim.validation.steps.validate.predict_row", predict)
    words = ["validate", str(path), "--json", "--jobs", "1", "--no-progress"]
    assert run([*words, "--markdown", str(page)]) == code
    written = capsys.readouterr()
    found = json.loads(written.out)
    assert [point["id"] for point in found["points"]] == ["0", "1"]
    assert found["skipped"] == 2
    assert "interrupted after 2 of 4 rows" in written.err
    assert not page.exists()
