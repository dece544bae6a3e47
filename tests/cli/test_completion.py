"""What shells complete, what help lists, and what is suggested for words that are none."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from clusim.base.resources import shipped_topologies, shipped_workloads
from clusim.base.terms.dtypes import DTYPES
from clusim.collectives import ALGORITHMS
from clusim.hardware import GPUS
from clusim_cli.main import _MEANT, COMMANDS, cli
from clusim_cli.params import RUNNABLE

Clusim = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]


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
        ("run dgx-h100 --fault ra", ["rank RANK slow x1.3"]),
        ("run dgx-h100 --nccl-version 2.29", ["2.29"]),
        ("run superpod-h", ["superpod-h100", "superpod-h200"]),
        ("topo import x --chip mi3", ["mi300a", "mi300x", "mi355x", "mi325x", "mi350x"]),
        ("topo import x --kind smi", ["smi", "smi-nvlink"]),
        ("topo check dgx-1v dgx-2", ["dgx-2"]),
        ("replay x --kind ki", ["kineto"]),
        ("replay x --as dgx-2", ["dgx-2"]),
        ("calibrate gpu --preset l40", ["l40", "l40s"]),
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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("run",), ["clusim topo list", *ALGORITHMS["allreduce"], "rank RANK slow x1.3"]),
        (("train",), [*shipped_workloads(), "clusim topo list"]),
        (("topo", "import"), [*GPUS, "clusim topo list"]),
        (("calibrate", "gpu"), list(GPUS)),
    ],
)
def test_help_lists_what_parameters_take(
    command: tuple[str, ...], words: list[str], clusim: Clusim
) -> None:
    text = " ".join(clusim(*command, "--help").out.partition("Words:")[2].split())
    for word in words:
        assert re.search(rf"(^|[ ;]){re.escape(word)}[,; ]?", text), word


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_by_the_script(shell: str, clusim: Clusim, tmp_path: Path) -> None:
    """The script passes the shell's own check, where there is one, and names the variable that `clusim` looks at."""
    done = clusim("completion", shell)
    assert done.code == 0
    assert f"_CLUSIM_COMPLETE={shell}_complete" in done.out
    (tmp_path / "script").write_text(done.out, encoding="utf-8")
    if program := shutil.which(shell):
        subprocess.run([program, "-n", tmp_path / "script"], check=True)


TYPED = [
    ("run dgx-1", ["dgx-1p", "dgx-1v"]),
    ("run dgx-1v --fa", ["--fault"]),
    ("run dgx-1v --collective reduce_", ["reduce_scatter"]),
    ("run dgx-1v --algorithm two", ["twoshot", "twoshot-ll", "twoshot-pull"]),
    ("train bert-p", ["bert-parameter-server"]),
    ("topo import x --chip h100-n", ["h100-nvl"]),
    ("analyze bl", ["blame"]),
]

# What a shell does when the tab key is pressed behind a line.
TABS = {
    "bash": """eval "$(clusim completion bash)"
        COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        $(complete -p clusim | sed 's/.*-F \\([^ ]*\\).*/\\1/') clusim; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "fish": "clusim completion fish | source; complete -C '{line}'",
}


@pytest.mark.parametrize("shell", TABS)
def test_a_real_shell_offers_the_words(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line, offered in TYPED:
        command = [program, "-c", TABS[shell].format(line=f"clusim {line}")]
        done = subprocess.run(
            command, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert [found.split("\t")[0] for found in done.stdout.split("\n")[:-1]] == offered, (
            done.stderr
        )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run dgx-h", "did you mean 'dgx-h100' or 'dgx-h200'?"),
        ("run h100", "did you mean 'dgx-h100'?"),
        ("run H200", "did you mean 'dgx-h200'?"),
        ("run v100", "did you mean 'dgx-1v'?"),
        ("explain dgxa100", "did you mean 'dgx-a100'?"),
        ("topo show mega", "did you mean 'gcp-a3-mega'?"),
        ("traffic fattree", "did you mean 'fat-tree'?"),
        ("train llama", "did you mean 'llama3-70b-fsdp' or 'llama3-405b-16k'?"),
        ("run dgx-1v -c all", "did you mean 'allreduce', 'all_gather' or 'alltoall'?"),
        ("run dgx-1v -c ar", "did you mean 'allreduce'?"),
        ("crossover dgx-1v -c a2a_", "did you mean 'alltoall'?"),
        ("run dgx-1v -c p2p", "did you mean 'sendrecv'?"),
        ("run dgx-1v --algorithm oneshot-", "'oneshot-lamport', 'oneshot-ll' or 'oneshot-pull'?"),
        (
            "run dgx-1v --algorithm foo",
            "(nccl is NCCL's choice); there are ring, ",
        ),
        ("run dgx-1v --protocol simpl", "did you mean 'simple'?"),
        ("run dgx-1v --redop mean", "did you mean 'avg'?"),
        ("run dgx-1v --dtype floa32", "did you mean 'float32'?"),
        ("run dgx-1v --gpus 4", "no option '--gpus'; did you mean '--ranks'?"),
        ("crossover dgx-1v --ranks 4", "no option '--ranks'; did you mean '--gpus'?"),
        ("run dgx-1v -n 2", "no option '-n'; did you mean '--nodes'?"),
        ("run dgx-1v --algo ring", "did you mean '--algorithm'?"),
        ("traffic ring:4 --bytes 1M", "did you mean '--message'?"),
        ("run dgx-1v --trace x.h5", "did you mean '--trace-out'?"),
        ("replay x.log --machine dgx-1v", "did you mean '--topology'?"),
        ("run dgx-1v --iters 3", "no option '--iters'; clusim run --help lists them"),
        ("run dgx-1v --fault 'gpu3 down'", "unknown kind 'gpu3'; did you mean 'node'?"),
        ("run dgx-1v --fault 'cable gpu0-gpu1 down'", "did you mean 'link'?"),
        ("export x.h5 --format pftrace", "did you mean 'perfetto'?"),
        ("plot x.h5 heat", "did you mean 'heatmap'?"),
        ("traffic ring:4 --pattern random", "did you mean 'uniform'?"),
        ("topo import LOG --chip h100s", "did you mean 'h100-sxm5'?"),
        ("nccl-tests all_reduce_pref dgx-1v", "did you mean 'all_reduce_perf'?"),
        ("analyze blam x.h5", "Did you mean 'blame'?"),
        ("simulate", "did you mean 'run'?"),
        ("blame", "did you mean 'analyze'?"),
        ("calib", "did you mean 'calibrate'?"),
    ],
)
def test_words_are_suggested_by_their_beginning_and_meaning(
    line: str, hint: str, clusim: Clusim
) -> None:
    log = ROOT / "traces" / "nvlink-4xh100nvl.txt"
    done = clusim(*(log if word == "LOG" else word for word in shlex.split(line)))
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert hint in done.err


def test_words_that_are_meant_are_commands() -> None:
    assert set(_MEANT.values()) <= set(COMMANDS)
    assert not _MEANT.keys() & set(COMMANDS)
