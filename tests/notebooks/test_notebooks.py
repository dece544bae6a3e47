"""The notebooks of docs/ run, and say what they said when they were written."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from support.covering import THOROUGH
from support.notebooks import NEEDS, NOTEBOOKS, execute, said

CODE = """
import clusim
import clusim.simulation.session
clusim.simulation.session.QUIET_S = clusim.simulation.session.SLICE_S = 0
clusim.collective("a100x4-mesh", "allreduce", "1MiB", "ring"{more})
"""

FEW = ("first-run", "own-algorithm")
RUN = [path for path in NOTEBOOKS if path.stem in FEW or THOROUGH]
"""Notebooks that are run: pages of documentation try what the others do, too."""


def test_there_is_a_notebook_for_each_of_the_first_questions() -> None:
    names = {path.stem for path in NOTEBOOKS}
    assert names == {
        "congestion-control",
        "first-run",
        "jobs",
        "own-algorithm",
        "own-program",
        "own-topology",
        "replay",
        "serving",
        "training-plan",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_notebook_says_what_comes_out(path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    written = said(nbformat.read(path, as_version=4))
    assert written
    assert said(execute(path)) == written


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_no_place_of_whoever_ran_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for place in ("/home/", "/root/", "/tmp/", "site-packages"):
        assert place not in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_shows_progress_and_takes_it_away(tmp_path: Path) -> None:
    """The bar is one output, empty in the end, and only where nobody else is told of progress."""
    cells = [CODE.format(more=""), CODE.format(more=", progress=lambda part, now_ps: None")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    shown, told = (cell["outputs"] for cell in execute(tmp_path / "a.ipynb").cells)
    assert [output["output_type"] for output in shown] == ["display_data", "execute_result"]
    assert shown[0]["data"]["text/html"] == ""
    assert [output["output_type"] for output in told] == ["execute_result"]
