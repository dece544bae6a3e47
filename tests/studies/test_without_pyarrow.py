"""A sweep without pyarrow runs nothing, and says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusim_cli.main import run


def test_a_sweep_without_pyarrow_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    grid = tmp_path / "grid.yaml"
    grid.write_text("run: {topology: dgx-a100, size: [1KiB, 2KiB]}", encoding="utf-8")
    assert run(["sweep", str(grid)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "clusim: sweep: needs pyarrow; pip install 'clusim-net[parquet]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["grid.yaml"]
