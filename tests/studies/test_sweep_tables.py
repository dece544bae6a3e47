"""Tables of sweeps: CSV needs no package and keeps every type; Parquet says what to install before it runs."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.base.errors import ClusimError
from clusim.studies.sweep import read_grid, sweep
from clusim.studies.sweep.tables import KEYS, read_rows, write_rows
from clusim_cli.main import run

GRID = "run: {topology: dgx-a100, size: [1KiB, 2KiB], nccl_version: ['2.20', '2.27']}"

COMMON = dict.fromkeys(KEYS, "x")
CELLS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1),
    st.sampled_from(("2.27", "true", "null", "NaN", "'x", "=1", "-5", '"', '{"NCCL_ALGO":"Ring"}', "1e3", " 7")),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abc"), CELLS), min_size=1, max_size=4))
def test_csv_keeps_the_type_of_every_value(rows: list[dict[str, object]]) -> None:
    path = Path("rows.csv")
    try:
        write_rows(path, [{**COMMON, **row} for row in rows])
        found = read_rows(path)
    finally:
        path.unlink(missing_ok=True)
    assert [{k: v for k, v in row.items() if k not in KEYS} for row in found] == rows
    assert [[type(row[key]) for key in sorted(row) if key not in KEYS] for row in found] == [
        [type(row[key]) for key in sorted(row)] for row in rows
    ]


def test_a_sweep_without_pyarrow_writes_csv_and_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID, encoding="utf-8")
    first = sweep(read_grid(grid), tmp_path / "grid.csv", jobs=1)
    again = sweep(read_grid(grid), tmp_path / "grid.csv", jobs=1)
    assert (first.known, again.known) == (0, 4)
    assert again.rows == first.rows
    with (tmp_path / "grid.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    assert run(["sweep", str(grid)]) == 0
    assert f"{tmp_path}/grid.csv: 4 points, 0 run now, 4 there already" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_parquet_table_without_pyarrow_is_refused_before_the_sweep_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID, encoding="utf-8")
    assert run(["sweep", str(grid), "-o", str(tmp_path / "r.parquet")]) == 2
    said = capsys.readouterr()
    assert (said.out, [path.name for path in tmp_path.iterdir()]) == ("", ["grid.yaml"])
    words = "sweep: Parquet needs pyarrow; pip install 'clusim-net[parquet]', or use -o NAME.csv"
    assert said.err == f"clusim: {words}\n"


@pytest.mark.parametrize("content", ["mine\n", "a,b\n1,2\n", 'a,"b\n'])
def test_a_file_that_is_no_table_of_a_sweep_is_kept(tmp_path: Path, content: str) -> None:
    target = tmp_path / "out.csv"
    target.write_text(content, encoding="utf-8")
    with pytest.raises(ClusimError, match="would be replaced; choose another file"):
        read_rows(target)
    assert target.read_text(encoding="utf-8") == content


def test_a_sweep_of_a_changed_grid_continues_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for sizes in ("1KiB", "[1KiB, 2KiB]"):
        Path("grid.yaml").write_text(f"run: {{topology: dgx-1v, size: {sizes}}}")
        assert run(["sweep", "grid.yaml", "--jobs", "1"]) == 0
    capsys.readouterr()
    assert len(read_rows(Path("grid.csv"))) == 2
