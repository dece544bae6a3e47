"""`clusim report`, `plot`, `export` and `view` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import traces

Clusim = Callable[..., Any]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_training(tmp_path_factory.mktemp("traces") / "step.h5")


def test_report_writes_a_page_beside_the_trace(clusim: Clusim, trace: Path, tmp_path: Path) -> None:
    assert clusim("report", trace).code == 0
    assert trace.with_suffix(".html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    done = clusim("report", trace, "-o", tmp_path / "r.html")
    assert done.out.startswith(f"{tmp_path / 'r.html'}: ")
    assert (tmp_path / "r.html").read_bytes() == trace.with_suffix(".html").read_bytes()


def test_report_reads_what_an_interrupted_run_left(
    clusim: Clusim, trace: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "step.h5.partial"
    partial.write_bytes(trace.read_bytes())
    assert clusim("report", partial).code == 0
    assert (tmp_path / "step.html").exists()


@pytest.mark.parametrize("form", ["perfetto", "kineto", "chrome", "csv", "nccl-log"])
def test_export_names_its_file_after_the_trace(clusim: Clusim, trace: Path, form: str) -> None:
    done = clusim("export", trace, "--format", form)
    assert done.code == 0
    written = Path(done.out.partition(": ")[0])
    assert written.parent == trace.parent
    assert written.exists()


def test_plot_writes_a_figure(
    clusim: Clusim, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert clusim("plot", trace, "overlap").out == "overlap.png\n"
    assert (tmp_path / "overlap.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("report", "nothing.h5"), "nothing.h5: no such file"),
     (("view", "nothing.h5"), "nothing.h5: no such file"),
     (("plot", "nothing.h5", "heatmap"), "nothing.h5: no such file"),
     (("export", "nothing.h5"), "nothing.h5: no such file"),
     (("export", "TRACE", "--format", "csv", "--table", "x"), "table 'x': not in"),
     (("export", "TRACE", "--table", "tasks"), "--table: not with --format perfetto"),
     (("export", "TRACE", "--format", "csv", "--no-slices"), "not with --format csv"),
     (("export", "TRACE", "-o", "TRACE"), "is an input and would be replaced"),
     (("report", "TRACE", "-o", "TRACE"), "is an input and would be replaced"),
     (("plot", "TRACE", "heatmap", "-o", "TRACE"), "is an input and would be replaced"),
     (("plot", "TRACE", "heatmap", "-o", "x.bmp"), "pictures are .png, .svg or .pdf")],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, clusim: Clusim, trace: Path
) -> None:
    before = trace.read_bytes()
    done = clusim(*(str(trace) if word == "TRACE" else word for word in arguments))
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert trace.read_bytes() == before


def test_a_place_that_cannot_be_written_is_one_line(
    clusim: Clusim, trace: Path, tmp_path: Path
) -> None:
    for command in ("report", "export"):
        done = clusim(command, trace, "-o", tmp_path / "missing" / "file")
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
