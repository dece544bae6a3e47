"""Recordings and grids have bare names, as presets and workloads, wherever such a file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import ClusimError, InputError
from clusim.base.resources import or_shipped, shipped_recordings, shipped_sweeps
from clusim.formats.recordings.kinds import kind_of
from clusim.studies.sweep import read_grid
from clusim.topology.loading import names_machine
from clusim_cli.commands.sweep import _beside
from clusim_cli.main import run
from clusim_formats.recordings.pluginlines import read as read_minimal

TRACES = Path(__file__).resolve().parents[2] / "traces"


def test_every_shipped_file_that_is_not_yaml_has_a_bare_name() -> None:
    files = {p for p in TRACES.iterdir() if p.suffix != ".yaml"}
    files -= {TRACES / "clusters", TRACES / "serving", TRACES / "sweeps"}
    assert set(shipped_recordings().values()) == files
    assert shipped_recordings()["nccl-8xh100"].name == "nccl-8xh100.log"
    # Of ring-4.goal and ring-4.goal.bin, neither has the shorter name.
    assert "ring-4" not in shipped_recordings()
    for name, path in shipped_recordings().items():
        assert or_shipped(name) == str(path)
        assert not names_machine(name) or path.suffix == ".xml"
        assert _kind(name) == _kind(str(path))


def _kind(name: str) -> str:
    """Return the kind of a recording, or the error of a file of another kind without its name."""
    try:
        return kind_of(name)
    except InputError as error:
        return str(error).removeprefix(or_shipped(name))


def test_a_file_of_the_user_precedes_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nccl-8xh100").touch()
    assert or_shipped("nccl-8xh100") == "nccl-8xh100"
    assert or_shipped("nccl-8xh100.log") == str(TRACES / "nccl-8xh100.log")


def test_commands_and_readers_accept_bare_names_and_suggest_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        "log summary nccl-8xh100",
        "replay minimal-2ranks dgx-a100",
        "replay kineto-2ranks --topology dgx-a100",
        "topo import nvlink-4xh100nvl -o -",
        "run dgx-a100 --ranks 0-3 --algorithm allpairs-4.xml --size 64KiB",
        "run dgx-a100 --ranks 0-3 --algorithm allpairs-4.mscclpp.json --size 64KiB",
    ):
        assert run(words.split()) == 0, capsys.readouterr().err
    assert read_minimal("minimal-2ranks").num_ranks == 2
    capsys.readouterr()
    assert run(["log", "summary", "nccl-8xh10.log"]) == 2
    assert "nccl-8xh10.log: no such file; did you mean 'nccl-8xh100.log'" in capsys.readouterr().err
    assert run(["validate", "nccl-tests-6xh100", "--system", "dgx-h100"]) == 2
    assert f"{TRACES / 'nccl-tests-6xh100.txt'}:3: cannot identify" in capsys.readouterr().err
    assert run(["validate", "nccl-tests-8xh10"]) == 2
    assert "no such file; did you mean 'nccl-tests-8xh100'" in capsys.readouterr().err
    assert run(["log", "summary", "unlike-any.name"]) == 2
    assert capsys.readouterr().err == "clusim: unlike-any.name: no such file\n"


def test_shipped_grids_are_read_by_name_and_their_tables_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, path in shipped_sweeps().items():
        assert read_grid(path).points
        assert _beside(path) == Path(f"{name}.csv")
    own = tmp_path / "own.yaml"
    assert _beside(own) == tmp_path / "own.csv"
    (tmp_path / "own.parquet").touch()
    assert _beside(own) == tmp_path / "own.parquet"
    assert run(["sweep", "all-reduce"]) == 2
    assert "did you mean 'allreduce'" in capsys.readouterr().err
    with pytest.raises(ClusimError):
        read_grid(tmp_path / "absent.yaml")
