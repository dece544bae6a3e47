"""Bad input: one clear line on stderr, nothing on stdout, the right exit code, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base.kept import PLACE
from clusim.results.trace.reader import read_result

Clusim = Callable[..., Any]

GOOD = """
name: pair
architecture: hopper
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
links:
  - {from: gpu0, to: gpu1, count: 2, type: nvlink4}
"""

FILES = {
    "not YAML": ("{" * 50, "yaml"),
    "not a mapping": ("- 1\n- 2\n", ""),
    "unknown key": (GOOD.replace("count:", "cuont:"), "count"),
    "bad unit": (GOOD + "window: 64 parsecs\n", "parsecs"),
    "ambiguous unit": (GOOD + "window: 64K\n", "64KiB"),
    "disconnected": (GOOD + "  - {from: gpu2, to: gpu3, type: nvlink4}\n", "gpu2"),
    "zero bandwidth": (
        GOOD.replace("count: 2", "rate: 0 GB/s"),
        "0",
    ),
    "no nodes": ("name: nothing\nnodes: {}\nlinks: []\n", ""),
    "binary": ("\x00\x01\x02", ""),
}


def one_line(done: Any, code: int, *words: str) -> None:
    assert done.code == code, done.err
    assert done.out == ""
    assert len(done.err.splitlines()) == 1, done.err
    assert done.err.startswith("clusim: ")
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("what", FILES)
def test_a_bad_topology_file(clusim: Clusim, tmp_path: Path, what: str) -> None:
    text, word = FILES[what]
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    for command in (("run",), ("topo", "check"), ("traffic",)):
        done = clusim(*command, tmp_path / "bad.yaml")
        assert done.code == 2
        assert done.out == ""
        assert "bad.yaml" in done.err
        assert word.lower() in done.err.lower()
        assert "Traceback" not in done.err


def test_a_good_file_is_good(clusim: Clusim, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD, encoding="utf-8")
    assert clusim("topo", "check", tmp_path / "good.yaml").out.startswith(
        str(tmp_path / "good.yaml: ok")
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "dgx-a101"], ["dgx-a100"]),
        (["run", "/no/such/file.yaml"], ["no such file"]),
        (["run", "dgx-a100", "--size", "0"], ["size 0"]),
        (["run", "dgx-a100", "--size", "-4"], []),
        (["run", "dgx-a100", "--size", "64MiBB"], ["MiB"]),
        (["run", "dgx-a100", "--size", "1e30"], []),
        (["run", "dgx-a100", "--size", "8000000GiB"], []),
        (["run", "dgx-a100", "--size", "7"], ["multiple of 4"]),
        (["run", "dgx-a100", "--ranks", "0-8"], ["8"]),
        (["run", "dgx-a100", "--ranks", "0,0"], []),
        (["run", "dgx-a100", "--ranks", "3"], []),
        (["run", "dgx-a100", "--ranks", "5-2"], ["ascending"]),
        (["run", "dgx-a100", "--ranks", "a-b"], ["0-7"]),
        (["run", "dgx-a100", "--algorithm", "nvls"], []),
        (["run", "dgx-a100", "--algorithm", "rnig"], ["ring"]),
        (["run", "dgx-a100", "--collective", "allredcue"], ["allreduce"]),
        (["run", "dgx-a100", "--dtype", "float33"], ["float32"]),
        (["run", "dgx-a100", "--redop", "mean"], ["avg"]),
        (["run", "dgx-a100", "--channels", "0"], ["0"]),
        (["run", "dgx-a100", "--protocol", "complex"], ["simple"]),
        (["run", "dgx-a100", "--granularity", "0"], []),
        (["run", "dgx-a100", "--granularity", "soon"], []),
        (["run", "dgx-a100", "--seed", "-1"], []),
        (
            ["run", "dgx-a100", "--collective", "broadcast", "--root", "9", "--size", "1K"],
            ["root 9"],
        ),
        (["run", "dgx-a100", "--verify", "--size", "8GiB"], ["smaller size"]),
        (["run", "dgx-a100", "--size", "1000TiB"], ["at most 1 TiB"]),
        (["run", "dgx-a100", "--granularity", "1TiB"], ["at most 1 GiB"]),
        (["run", "dgx-a100", "--root", "3"], ["allreduce: takes no root"]),
        (["run", "dgx-a100", "--trace-primitives"], ["--trace-out"]),
        (["run"], ["TOPOLOGY"]),
        (["run", "dgx-a100", "--speed", "9"], ["--speed"]),
        (["topo", "show", "dgx"], []),
        (["topo", "frobnicate"], ["frobnicate"]),
        (["info", "/no/such/file.h5"], ["no such file"]),
        (["info", __file__], ["not a readable trace"]),
        (["info", "/tmp"], ["is a directory"]),
        (["info", "/dev/null"], ["no regular file"]),
        (["traffic", "fat-tree:k=3"], []),
        (["traffic", "fat-tree:q=4"], ["unknown option 'q'", "oversub"]),
        (["traffic", "star:99999999"], ["too large"]),
        (["traffic", "mesh:4x4", "--message", "100TiB"], ["at most 1 TiB"]),
        (["traffic", "mesh:0x4"], []),
        (["traffic", "mesh:4x4", "--load", "0.5"], ["uniform"]),
        (["traffic", "mesh:4x4", "--pattern", "uniform", "--load", "-1"], ["load"]),
        (["traffic", "mesh:4x4", "--pattern", "uniform", "--load", "nan"], ["load"]),
        (["traffic", "mesh:4x4", "--packet", "0"], ["packet"]),
        (["traffic", "mesh:4x4", "--message", "0"], ["message"]),
        (["traffic", "mesh:4x4", "--pattern", "uniform", "--duration", "5 parsecs"], ["parsecs"]),
        (["traffic", "mesh:4x4", "--pattern", "uniform", "--duration", "3000s"], ["shorten"]),
        (["traffic", "mesh:4x4", "--pattern", "spiral"], ["permutation"]),
        (["fly"], ["run"]),
    ],
    ids=" ".join,
)
def test_bad_arguments(clusim: Clusim, arguments: list[str], words: list[str]) -> None:
    one_line(clusim(*arguments), 2, *words)


@pytest.mark.parametrize("place", ["missing/run.h5", "file/run.h5", "."])
def test_an_unwritable_trace(clusim: Clusim, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    done = clusim("run", "dgx-a100", "--size", "8K", "--trace-out", tmp_path / place)
    one_line(done, 1, "cannot write the trace")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_trace_never_takes_the_place_of_a_device_or_a_pipe(
    clusim: Clusim, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    one_line(
        clusim("run", "dgx-a100", "--size", "8K", "--trace-out", pipe), 1, "not a regular file"
    )
    assert pipe.is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
    one_line(clusim("run", "dgx-a100", "--size", "8K", "--trace-out", ""), 1, "cannot write")


def test_of_several_problems_the_first_is_named_and_the_others_are_counted(
    clusim: Clusim, tmp_path: Path
) -> None:
    text = GOOD.replace("name:", "nmae:").replace("count:", "cuont:")
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    done = clusim("topo", "check", tmp_path / "bad.yaml")
    one_line(done, 2, "did you mean 'name'?", "(and 1 more)")


@pytest.mark.parametrize("arguments", [[], ["topo"]])
def test_a_command_without_arguments_prints_its_help(clusim: Clusim, arguments: list[str]) -> None:
    done = clusim(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: clusim")
    assert len(done.err.splitlines()) > 5


def in_shell(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command line in a process of its own, after running `code` there."""
    program = f"{code}\nfrom clusim_cli.main import main\nmain()"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **pipes)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on file size makes writes fail as a full disk does, in the middle of the file.

    The empty cache cannot be written either: that does not end the run.
    """
    cache = tmp_path / "cache"
    monkeypatch.setenv(PLACE, str(cache))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    process = in_shell(
        limit, "run", "dgx-a100", "--size", "64K", "--trace-out", str(tmp_path / "run.h5")
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert "cannot write the trace" in err
    assert [path for path in tmp_path.iterdir() if path != cache] == []


def test_a_full_disk_under_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        process = in_shell("", "run", "dgx-a100", "--size", "8K", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert len(err.splitlines()) == 1, err


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    process = in_shell("", "topo", "show", "dgx-a100", stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=60)
    assert err == ""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_a_stopped_run_leaves_a_readable_partial_trace(
    tmp_path: Path, number: int, code: int
) -> None:
    path, partial = tmp_path / "run.h5", tmp_path / "run.h5.partial"
    often = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)  # not inherited\n"
        "from clusim.results.trace import writer; writer.FLUSH_S = 0.0"
    )
    process = in_shell(often, "run", "dgx-a100", "--size", "1TiB", "--granularity", "packet",
                       "--trace-out", str(path))  # fmt: skip
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if partial.exists() and partial.stat().st_size > 10_000 and _has_begun(partial):
            break
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    assert not path.exists()
    result = read_result(partial)
    assert not result.complete
    assert result.time_ps > 0
    assert result.packet_hops > 0
    assert len(err.splitlines()) == (0 if number == signal.SIGKILL else 1), err
    assert number == signal.SIGKILL or f"the partial trace is {partial}" in err


def _has_begun(partial: Path) -> bool:
    from clusim.base.errors import TraceError

    try:
        return read_result(partial).packet_hops > 0
    except TraceError:
        return False
