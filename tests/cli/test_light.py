"""Installations without what may be left out: the same results, or one line that says what is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("matplotlib", "google.protobuf", "rich")

PROGRAM = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None
from clusim_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def light(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command where the heavy libraries cannot be imported."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the trace of a run without the heavy libraries."""
    found = tmp_path_factory.mktemp("light")
    done = light("run", "a100x4-mesh", "--size", "64KiB", "--trace-out", "run.h5", folder=found)
    assert done.returncode == 0, done.stderr
    return found


def test_a_report_is_written_without_them(folder: Path) -> None:
    assert light("report", "run.h5", "-o", "run.html", folder=folder).returncode == 0
    assert "<html" in (folder / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("plot", "run.h5", "heatmap"),
            "pictures: needs matplotlib; pip install 'clusim-net[plot]'",
        ),
        (
            ("topo", "show", "dgx-1v", "--png", "a.png"),
            "pictures: needs matplotlib; pip install 'clusim-net[plot]'",
        ),
        (
            ("replay", ROOT / "traces" / "chakra-4ranks", "dgx-a100"),
            "Chakra traces in protobuf: needs protobuf; pip install 'clusim-net[chakra]'",
        ),
    ],
)
def test_what_needs_them_says_so(words: tuple[object, ...], line: str, folder: Path) -> None:
    done = light(*words, folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"clusim: {line}"]


def test_the_core_is_what_the_rest_is_left_out_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    heavy = {*extras["chakra"], *extras["plot"], *extras["progress"]}
    lines = (ROOT / "requirements-core.txt").read_text(encoding="utf-8").splitlines()
    core = {line for line in lines if line and not line.startswith("#")}
    assert core | heavy == set(project["dependencies"])
    assert not core & heavy
