"""Sweeps: every row is what the command says, a table is continued where it ended, and nothing in it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import ClusimError
from clusim.studies.sweep import SweepReport, grid, keys, read_grid, sweep
from clusim.studies.sweep.grid import answer_point
from clusim.studies.sweep.tables import read_rows, write_rows
from clusim_cli.main import run

pytest.importorskip("pyarrow")

GRID = "run: {topology: dgx-a100, size: [1KiB, 2KiB, 4KiB], collective: [allreduce, allgather]}"


def swept(folder: Path, text: str = GRID, **options: Any) -> SweepReport:
    path = folder / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    return sweep(read_grid(path), folder / "out.parquet", **({"jobs": 1} | options))


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what depends on the computer."""
    return [{k: v for k, v in row.items() if k != "simulated_in_s"} for row in rows]


def test_a_row_is_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = swept(tmp_path, "run: {topology: dgx-a100, size: 1MiB}").rows[0]
    assert run(["run", "dgx-a100", "--size", "1MiB", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert row["time_us"] == said["time_ps"] / 1e6
    assert row["iteration_us"] == said["launched_us"]
    assert (row["busbw_GBps"], row["fingerprint"]) == (said["busbw_GBps"], said["fingerprint"])
    assert (row["busiest_wires"], row["gpus"]) == (said["limit"]["wire_class"], said["ranks"])
    assert row["expected_error_pct"] == said["expected_error"]["median_abs_pct"]


def test_a_row_of_training_is_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "train: {workload: bert-parameter-server, steps: 1, change: {model.layers: 1}}"
    row = swept(tmp_path, text).rows[0]
    shipped = Path(grid.shipped_workloads()["bert-parameter-server"])
    own = tmp_path / "bert-parameter-server.yaml"
    own.write_text(
        shipped.read_text(encoding="utf-8").replace(
            "model: bert-large", "model: {base: bert-large, layers: 1}"
        ),
        encoding="utf-8",
    )
    assert run(["train", str(own), "--steps", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert row["step_time_s"] == said["step_time_s"]
    assert (row["mfu"], row["memory_GiB"]) == (said["mfu"], said["memory_GiB"]["total"])


def test_a_table_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = swept(tmp_path)
    assert (whole.known, len(whole.rows), whole.failures) == (0, 6, [])
    (tmp_path / "out.parquet").unlink()
    made: list[str] = []

    def counted(point: grid.SweepPoint) -> dict[str, keys.Cell]:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(point.name)
        return answer_point(point)

    monkeypatch.setattr("clusim.studies.sweep.runner.answer_point", counted)
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path)
    assert [row["point"] for row in read_rows(tmp_path / "out.parquet")] == made
    monkeypatch.setattr("clusim.studies.sweep.runner.answer_point", answer_point)
    rest = swept(tmp_path)
    assert rest.known == 4
    assert timeless(rest.rows) == timeless(whole.rows)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "grid.yaml", tmp_path / "out.parquet"]


def test_progress_is_saved_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.studies.sweep.runner.SAVE_S", 0)
    seen = []

    def look(point: grid.SweepPoint) -> dict[str, keys.Cell]:
        seen.append(len(read_rows(tmp_path / "out.parquet")))
        return answer_point(point)

    monkeypatch.setattr("clusim.studies.sweep.runner.answer_point", look)
    swept(tmp_path)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    alone = swept(tmp_path)
    (tmp_path / "out.parquet").unlink()
    assert timeless(swept(tmp_path, jobs=2).rows) == timeless(alone.rows)


def test_rows_of_other_grids_stay(tmp_path: Path) -> None:
    swept(tmp_path)
    after = swept(tmp_path, "run: {topology: dgx-a100, size: [2KiB, 8KiB]}")
    # The collective is named in one grid and the default in the other: another point.
    assert (after.known, len(after.rows)) == (0, 2)
    assert len(read_rows(tmp_path / "out.parquet")) == 8


def test_what_was_made_of_other_files_or_another_clusim_runs_again(tmp_path: Path) -> None:
    from clusim.base.resources import shipped_topologies

    machine = tmp_path / "mine.yaml"
    machine.write_bytes(shipped_topologies()["dgx-a100"].read_bytes())
    text = "run: {topology: mine.yaml, size: 1KiB}"
    assert swept(tmp_path, text).known == 0
    assert swept(tmp_path, text).known == 1
    machine.write_text(machine.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    again = swept(tmp_path, text)
    assert (again.known, again.outdated) == (0, 1)
    rows = read_rows(tmp_path / "out.parquet")
    write_rows(tmp_path / "out.parquet", [row | {"clusim": "another"} for row in rows])
    again = swept(tmp_path, text)
    assert (again.known, again.outdated) == (0, 1)


def test_failures_are_rows_and_run_again_when_asked(tmp_path: Path) -> None:
    text = "run: {topology: dgx-a100, size: 1KiB, ranks: [0-7, 0-8]}"
    first = swept(tmp_path, text)
    assert [bool(row.get("error")) for row in first.rows] == [False, True]
    assert first.reasons()[0][1] == 1
    assert swept(tmp_path, text).known == 2
    assert swept(tmp_path, text, again=True).known == 1


@pytest.mark.parametrize("content", [b"mine", None])
def test_what_is_no_table_of_a_sweep_is_left_alone(tmp_path: Path, content: bytes | None) -> None:
    target = tmp_path / "out.parquet"
    if content is None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"a": [1]}), target)
        content = target.read_bytes()
    target.write_bytes(content)
    with pytest.raises(ClusimError, match="would be replaced; choose another file"):
        swept(tmp_path)
    assert target.read_bytes() == content


def test_two_sweeps_do_not_write_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(point: grid.SweepPoint) -> dict[str, keys.Cell]:
        with pytest.raises(ClusimError, match="another sweep"):
            swept(tmp_path)
        return answer_point(point)

    monkeypatch.setattr("clusim.studies.sweep.runner.answer_point", second)
    assert len(swept(tmp_path).rows) == 6


def test_columns_have_one_type(tmp_path: Path) -> None:
    common = {"point": "p", "kind": "run", "clusim": "c", "files": "{}"}
    rows = [common | {"a": 1, "b": 1, "c": True}, common | {"a": 1.5, "b": "auto"}, common]
    write_rows(tmp_path / "t.parquet", rows)
    found = read_rows(tmp_path / "t.parquet")
    assert [row.get("a") for row in found] == [1.0, 1.5, None]
    assert [row.get("b") for row in found] == ["1", "auto", None]
    assert [row.get("c") for row in found] == [True, None, None]


def test_the_command_prints_the_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("run: {topology: dgx-a100, size: [1KiB, 2KiB], ranks: [0-7, 0-8]}", "utf-8")
    target = tmp_path / "out.parquet"
    arguments = ["sweep", str(path), "-o", str(target), "--jobs", "1"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{target}: 4 points, 4 run now, 0 there already" in " ".join(printed.split())
    lines = printed[printed.index("there already") :].splitlines()
    assert lines[1].split()[:3] == ["size", "ranks", "time_us"]
    assert [line.split()[:3] for line in lines[2:4]] == [["1", "KiB", "0-7"], ["2", "KiB", "0-7"]]
    assert lines[4].startswith("  2 failed: ")
    assert run([*arguments, "--strict"]) == 2
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["known"], found["failed"], len(found["rows"])) == (4, 2, 4)
