"""What shells complete, what help lists, and what is suggested for words that are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from clusim.collectives import ALGORITHMS
from clusim.resources import shipped_topologies, shipped_workloads
from clusim.vocabulary.dtypes import DTYPES
from clusim_cli.main import _MEANT, COMMANDS, cli
from clusim_cli.params import RUNNABLE

Clusim = Callable[..., Any]


def completed(line: str) -> list[str]:
    """Return what is offered at the end of a line."""
    *words, last = line.split(" ")
    found = ShellComplete(cli, {}, "clusim", "_CLUSIM_COMPLETE").get_completions(words, last)
    return [item.value if item.type == "plain" else f"({item.type})" for item in found]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tr", ["traffic", "train"]),
        ("run dgx-a", ["dgx-a100"]),
        ("run DGX-A", ["dgx-a100"]),
        ("run fat", ["fat-tree:"]),
        ("run ./mine", ["(file)"]),
        ("topo diff dgx-h100 dgx-h2", ["dgx-h200"]),
        ("run dgx-h100 -c all", ["allreduce", "all_gather", "alltoall"]),
        ("run dgx-h100 --algorithm mine.x", ["(file)"]),
        ("run dgx-h100 --protocol ll", ["ll", "ll128"]),
        ("run dgx-h100 --dtype bf", ["bfloat16"]),
        ("run dgx-h100 --redop m", ["max", "min"]),
        ("run dgx-h100 --engine r", ["reference"]),
        ("train bert-p", ["bert-parameter-server"]),
        ("replay log --topology dgx-2", ["dgx-2"]),
        ("completion f", ["fish"]),
    ],
)
def test_words_are_completed(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_algorithms_are_those_of_the_operation() -> None:
    offered = completed("run dgx-h100 --collective all_gather --algorithm ")
    assert offered == ["nccl", *ALGORITHMS["all_gather"]]
    assert completed("run dgx-h100 --algorithm ") == ["nccl", *ALGORITHMS["allreduce"]]


def test_all_that_is_shipped_is_offered() -> None:
    assert set(shipped_topologies()) <= set(completed("run "))
    assert completed("train ") == list(shipped_workloads())
    assert completed("") == list(COMMANDS)
    assert completed("run dgx-h100 --dtype ") == list(DTYPES)


def test_what_is_offered_can_be_run() -> None:
    assert set(RUNNABLE) <= set(ALGORITHMS)


def test_help_lists_operations_and_types(clusim: Clusim) -> None:
    text = " ".join(clusim("run", "--help").out.split())
    for name in (*RUNNABLE, *DTYPES):
        assert f" {name}" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_by_the_script(shell: str, clusim: Clusim, tmp_path: Path) -> None:
    """The script passes the shell's own check, where there is one, and names the variable that `clusim` looks at."""
    done = clusim("completion", shell)
    assert done.code == 0
    assert f"_CLUSIM_COMPLETE={shell}_complete" in done.out
    (tmp_path / "script").write_text(done.out, encoding="utf-8")
    if program := shutil.which(shell):
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


def test_bash_gets_the_presets_that_begin_as_what_was_typed() -> None:
    asked = {
        "_CLUSIM_COMPLETE": "bash_complete",
        "COMP_WORDS": "clusim run dgx-1",
        "COMP_CWORD": "2",
    }
    command = [sys.executable, "-m", "clusim"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,dgx-1p", "plain,dgx-1v"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("run", "dgx-h"), "did you mean 'dgx-h100' or 'dgx-h200'?"),
        (("run", "h100"), "did you mean 'dgx-h100'?"),
        (("run", "dgx-1v", "-c", "all"), "did you mean 'allreduce', 'all_gather' or 'alltoall'?"),
        (("run", "dgx-1v", "--algorithm", "oneshot-"), "'oneshot-ll', 'oneshot-lamport' or 'oneshot-pull'?"),
        (("run", "dgx-1v", "--algorithm", "foo"), "besides nccl, which is what NCCL would run; there are ring, "),
        (("simulate",), "did you mean 'run'?"),
        (("blame",), "did you mean 'analyze'?"),
        (("calib",), "did you mean 'calibrate'?"),
    ],
)  # fmt: skip
def test_words_are_suggested_by_their_beginning_and_meaning(
    words: tuple[str, ...], hint: str, clusim: Clusim
) -> None:
    done = clusim(*words)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert hint in done.err


def test_words_that_are_meant_are_commands() -> None:
    assert set(_MEANT.values()) <= set(COMMANDS)
    assert not _MEANT.keys() & set(COMMANDS)
