"""What commands print fits a terminal, whose words and figures stay whole, and is plain in a pipe."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base.tables import WIDTH, wrap_line
from clusim_cli.main import COMMANDS
from support.calls import CALLS
from support.terminal import at_terminal, terminal

Clusim = Callable[..., Any]

CALL = ("run", *CALLS["run"][0])


def words_of(text: str) -> list[str]:
    """Return what was printed as words, without margins of comments and what differs from run to run."""
    plain = " ".join(word for word in text.split() if word != "#")
    plain = re.sub(r"wall time .*?(?=fingerprint|$)", "", plain)
    plain = re.sub(r"simulated( in)? [\d.]+ m?s", "", plain)
    return plain.split()


def call(path: str, files: dict[str, Path]) -> list[str]:
    return [*path.split(), *(str(files.get(str(word), word)) for word in CALLS[path][0])]


@pytest.mark.covering
@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("path", CALLS)
def test_words_and_figures_are_whole_at_any_width(
    path: str, columns: int, files: dict[str, Path], tmp_path: Path, clusim: Clusim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSIM_CACHE", str(tmp_path / "cache"))
    words = call(path, files)
    if path == "sweep":
        pytest.importorskip("pyarrow")
        clusim(*words)  # says how many points it has cached
    piped = clusim(*words)
    monkeypatch.setenv("COLUMNS", str(columns))
    with terminal() as own, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", own.file)
        assert clusim(*words).code == piped.code
    assert "\x1b" not in own.text
    assert words_of(own.text) == words_of(piped.out)
    for line in own.text.splitlines():
        alone = len(line.split()) <= 2
        assert len(line) <= columns or alone, line


WIDE = [
    "run dgx-h100 --nodes 2 --size 64KiB --trace-out run.h5",
    "explain dgx-h100",
    "crossover dgx-1v --size 1KiB --jobs 1",
    "what-if 'run dgx-h100 --size 64KiB' 'nvlink x2' \"--fault 'link gpu3:nvl5 down'\"",
    "analyze congestion run.h5 --top 0",
    "analyze blame run.h5",
    "analyze critical-path run.h5",
    "analyze collectives run.h5",
    "info run.h5",
    "topo list",
    "topo show dgx-h100 --figures",
    "train resnet50-dgx1v --layers",
    "nccl-tests all_reduce_perf dgx-1v -b 8 -e 8 --explain --jobs 1",
]


def test_text_has_at_most_100_columns_in_a_pipe(
    tmp_path: Path, clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of nccl-tests keeps its own width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSIM_CACHE", str(tmp_path / "cache"))
    for command in WIDE:
        done = clusim(*shlex.split(command))
        assert done.code == 0, done.err
        for line in done.out.splitlines():
            foreign = "nccl-tests" in command and re.match(r"# nThread|#? {6}", line)
            assert len(line) <= WIDTH or foreign, f"{command}: {line}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits(name: str) -> None:
    shown = at_terminal([name, "--help"], 60)
    assert shown.code == 0
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown.text.splitlines())


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_pipe_gets_the_same_whatever_the_terminal_is(
    env: dict[str, str], clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim_cli.progress.QUIET_S", 0)
    plain = words_of(clusim(*CALL).out)
    for name, value in (env | {"COLUMNS": "60"}).items():
        monkeypatch.setenv(name, value)
    done = clusim(*CALL)
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert words_of(done.out) == plain
    assert max(map(len, done.out.splitlines())) > 80


def drawn(clusim: Clusim, monkeypatch: pytest.MonkeyPatch, *more: str, **env: str) -> str:
    """Return what a run draws on a terminal of standard errors, without waiting until it has taken long."""
    monkeypatch.setattr("clusim_cli.progress.QUIET_S", 0)
    for name, value in ({"TERM": "xterm-256color"} | env).items():
        monkeypatch.setenv(name, value)
    with terminal() as own:
        monkeypatch.setattr("sys.stderr", own.file)
        assert clusim(*CALL, *more).code == 0
    return own.text


@pytest.mark.parametrize(
    ("env", "more", "codes"),
    [
        ({}, (), True),
        ({"NO_COLOR": "1"}, (), True),
        ({"TERM": "dumb"}, (), False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, (), False),
        ({}, ("--no-progress",), False),
    ],
)
def test_progress_is_drawn_on_a_terminal_that_can(
    env: dict[str, str], more: tuple[str, ...], codes: bool, clusim: Clusim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert ("\x1b[" in drawn(clusim, monkeypatch, *more, **env)) == codes


def test_progress_has_no_colours_where_none_are_wanted(
    clusim: Clusim, monkeypatch: pytest.MonkeyPatch
) -> None:
    colours = re.compile(r"\x1b\[(?:\d+;)*3\d[\d;]*m")
    assert colours.search(drawn(clusim, monkeypatch))
    assert not colours.search(drawn(clusim, monkeypatch, NO_COLOR="1"))


def test_errors_fit_as_well() -> None:
    shown = at_terminal(["run", "dgx-1v", "--algorithm", "foo"], 60)
    assert shown.code == 2
    assert len(shown.text.splitlines()) > 1
    assert max(map(len, shown.text.splitlines())) <= 60


def test_json_and_csv_are_not_folded(files: dict[str, Path]) -> None:
    for form in ("--json", "--csv"):
        shown = at_terminal(["analyze", "memory", str(files["TRACE"]), form], 60)
        assert max(map(len, shown.text.splitlines())) > 60


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("short", ["short"]),
        ("  key  one two three", ["  key  one", "   two three"]),
        ("  it takes 14.5 us now", ["  it takes", "   14.5 us", "   now"]),
        ("# a comment of words", ["# a comment", "#  of words"]),
        ("anunbreakablylongword x", ["anunbreakablylongword", "  x"]),
    ],
)
def test_lines_break_between_words_but_not_before_units(line: str, parts: list[str]) -> None:
    assert wrap_line(line, 12) == parts
