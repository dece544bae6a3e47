"""Programs that call NCCL and the CUDA runtime, compiled here and run on simulated systems."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from clusim.base.errors import EnvironmentFailure
from clusim.base.terms.operations import weighted_bytes
from clusim.nccltests.options import parse_flags
from clusim.nccltests.sweep import place, program_named, rows
from clusim.shim import launcher
from clusim.shim.calls import MessagePattern, NcclCall, pattern_of, peers_of
from clusim.shim.launcher import library_folder
from clusim.shim.memory import Work, without_dead
from clusim.shim.reductions import reduce_inputs
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

Peers = Callable[[int], Iterable[int]]

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BINARIES = os.environ.get("CLUSIM_NCCL_TESTS", "")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library, as `make shim` builds it."""
    folder = tmp_path_factory.mktemp("shim")
    target = f"SHIM={folder}"
    subprocess.run(["make", "-s", "-C", ROOT, "shim", target], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def program(shim: Path) -> Path:
    """Return the compiled test program."""
    result = shim / "program"
    compiler = shutil.which("cc") or "gcc"
    words = [compiler, "-Wall", "-Werror", "-o", result, HERE / "program.c", shim / "libnccl.so.2"]
    subprocess.run(words, check=True)
    return result


def run(shim: Path, *words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``clusim exec``."""
    command = [sys.executable, "-m", "clusim", "exec", *map(str, words)]
    env = {**os.environ, "CLUSIM_SHIM": str(shim)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def found(text: str) -> dict[str, str]:
    """Return the values that the test program printed, by name."""
    return dict(line.split(" ", 1) for line in text.splitlines())


def predicted_us(topology: str, program: str, **flags: str) -> float:
    """Return the time of the first row of a predicted table [us]."""
    options = parse_flags(flags | {"check": "0"})
    where = place(Setup(topology), options)
    return next(rows(where, program_named(program), options, jobs=1)).halves[0].time_us


def test_the_installed_library_is_found_from_any_folder(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program finds it by NCCL's name and by those of the CUDA runtime."""
    monkeypatch.delenv("CLUSIM_SHIM", raising=False)
    engine = find_spec("clusim._engine")
    assert engine is not None
    assert engine.origin is not None
    assert library_folder() == Path(engine.origin).resolve().parent / "shim"
    words = [sys.executable, "-m", "clusim", "exec", "dgx-h100", program, "groups"]
    there = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found(there.stdout)
    loads = "import ctypes; [ctypes.CDLL(f'libcudart.so.{n}').cudaGetDeviceCount for n in ('11.0', '12', '13')]"
    subprocess.run([*words[:5], sys.executable, "-c", loads], cwd=tmp_path, check=True)


def test_the_variable_names_a_folder_and_errors_say_so(
    shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSIM_SHIM", str(shim))
    assert library_folder() == shim.resolve()
    for wrong in (shim / "libnccl.so.2", tmp_path):
        monkeypatch.setenv("CLUSIM_SHIM", str(wrong))
        with pytest.raises(
            EnvironmentFailure, match="set it to the folder of the library, or unset"
        ):
            library_folder()
    monkeypatch.delenv("CLUSIM_SHIM")
    monkeypatch.setattr(launcher, "LIBRARY", "libabsent.so")
    with pytest.raises(EnvironmentFailure, match="not found; install clusim again"):
        library_folder()


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-a100"])
def test_groups_of_eight_gpus_add_and_last_as_many_ticks_of_the_clock_as_predicted(
    topology: str, shim: Path, program: Path
) -> None:
    got = found(run(shim, topology, program, "groups").stdout)
    assert (got["wrong"], float(got["varies"])) == ("0", pytest.approx(0, abs=0.0001))
    size = {"minbytes": "4000", "maxbytes": "4000"}
    wanted = predicted_us(topology, "all_reduce", ngpus="8", iters="5", **size)
    assert float(got["us"]) == pytest.approx(wanted, abs=0.00006)


def test_messages_meet_across_streams_with_and_without_groups(shim: Path, program: Path) -> None:
    got = found(run(shim, "dgx-h100", program, "messages").stdout)
    assert (got["wrong"], got["pending"]) == ("0", "600")
    assert 10 < float(got["us"]) < 40


def test_events_order_streams_and_measure_their_time(shim: Path, program: Path) -> None:
    got = found(run(shim, "dgx-h100", program, "events").stdout)
    assert (got["sum"], got["later"], got["slept"]) == ("36 44", "1", "2000000")
    assert 20 < float(got["us"]) < 60


@pytest.mark.parametrize("case", ["graph", "split", "processes"])
def test_data_are_right(case: str, shim: Path, program: Path) -> None:
    got = found(run(shim, "dgx-h100", program, case).stdout)
    wanted = {
        "graph": {"wrong": "0"},
        "split": {"none": "1", "ranks": "3", "rank": "2", "wrong": "0"},
        "processes": {"wrong": "0", "child": "0"},
    }
    assert got == wanted[case]


def test_errors_are_those_of_cuda_and_nccl_and_have_a_reason(shim: Path, program: Path) -> None:
    result = run(shim, "dgx-h100", program, "failures")
    assert found(result.stdout) == {
        **{"rank": "4", "type": "5", "device": "101", "last": "101 0", "memory": "85520809984"},
        **{"full": "2", "absent": "801", "text": "out of memory; invalid usage"},
        **{"other": "5", "host": "5"},
    }
    for text in (
        "clusim: cudaMallocManaged is not simulated",
        "clusim: rank 2 calls Broadcast of 1000 x float32, root 0, rank 1 calls AllReduce",
        "are not in memory of cudaMalloc",
        "clusim: rank 2 of 2: not one of the ranks",
    ):
        assert text in result.stderr


def test_a_program_without_a_server_and_an_unknown_one_say_so(shim: Path, program: Path) -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": str(shim)}
    alone = subprocess.run([program, "groups"], env=env, capture_output=True, text=True)
    assert (alone.returncode, "start the program with `clusim exec" in alone.stderr) == (2, True)
    assert (
        "no-such-program: not a program" in run(shim, "dgx-h100", "no-such-program", code=2).stderr
    )


def test_sums_have_the_bits_of_the_plan_s_order() -> None:
    setup = Setup("dgx-h100", env=(("NCCL_ALGO", "Ring"),))
    request = Request(setup, "allreduce", 1 << 16)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(1 << 14).astype(np.float32) for _ in range(8)]
    calls = [NcclCall("allreduce", 0, 0, 1 << 14, 7, 0, 0)] * 8
    ring = reduce_inputs(calls, inputs, request)
    assert all(np.array_equal(part, ring[0]) for part in ring)
    in_order = inputs[0]
    for values in inputs[1:]:
        in_order = in_order + values
    np.testing.assert_allclose(ring[0], in_order, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(ring[0], in_order)


@pytest.mark.parametrize(
    ("send", "receive", "wanted"),
    [
        (lambda r: range(4), lambda r: range(4), "alltoall"),
        (lambda r: [(r + 1) % 4], lambda r: [(r - 1) % 4], "sendrecv"),
        (lambda r: [2], lambda r: range(4) if r == 2 else [], "gather"),
        (lambda r: range(4) if r == 2 else [], lambda r: [2], "scatter"),
        (lambda r: [r ^ 1], lambda r: [r ^ 1], ""),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_messages_are_recognised(send: Peers, receive: Peers, wanted: str, times: int) -> None:
    def calls(rank: int) -> list[NcclCall]:
        ends = [("send", peer) for peer in send(rank)] + [("recv", peer) for peer in receive(rank)]
        return [NcclCall(kind, 0, 0, 10, 7, 0, peer) for kind, peer in ends] * times

    pattern = pattern_of({rank: peers_of(calls(rank)) for rank in range(4)})
    assert (pattern.operation if pattern else "") == wanted
    if pattern is not None:
        assert pattern.times == times
        assert pattern.root == (2 if wanted in ("gather", "scatter") else 0)


def test_messages_that_grow_with_distance_are_alltoallv() -> None:
    """alltoallv.cu: 4 ranks and a count of 48 floats, 768 B in all: 0, 128, 256 and 384 B."""
    sizes = [0, 128, 256, 384]
    assert weighted_bytes(768, 4) == sizes
    peers = {
        rank: peers_of(
            [NcclCall("send", 0, 0, sizes[hop] // 4, 7, 0, (rank + hop) % 4) for hop in (1, 2, 3)]
            + [NcclCall("recv", 0, 0, sizes[hop] // 4, 7, 0, (rank - hop) % 4) for hop in (1, 2, 3)]
        )
        for rank in range(4)
    }
    assert pattern_of(peers) == MessagePattern("weighted_alltoall", 768)
    peers[0].update([("send", 1, 128), ("recv", 3, 128)])
    assert pattern_of(peers) is None
    two = {
        rank: peers_of([NcclCall(kind, 0, 0, 64, 7, 0, 1 - rank) for kind in ("send", "recv")])
        for rank in (0, 1)
    }
    assert pattern_of(two) == MessagePattern("sendrecv", 256)


def test_work_is_dropped_only_if_its_result_is_overwritten_unread() -> None:
    def work(reads: list[tuple[int, int]], writes: list[tuple[int, int]]) -> Work:
        return Work(reads, writes, lambda: None)

    a, b, c = work([], [(0, 8)]), work([(0, 4)], [(8, 12)]), work([], [(0, 6)])
    d = work([], [(6, 8)])
    assert without_dead([a, c, d]) == [c, d]
    assert without_dead([a, b, c, d]) == [a, b, c, d]
    assert without_dead([a, c]) == [a, c]


@pytest.mark.skipif(not BINARIES, reason="CLUSIM_NCCL_TESTS: no folder of nccl-tests binaries")
@pytest.mark.parametrize(
    "flags", ["-g 8", "-t 8", "-g 2 -t 4", "-g 4", "-g 8 -G 2", "-g 8 -m 3", "-g 8 -z 1"]
)
@pytest.mark.parametrize(
    "name", ["all_reduce", "all_gather", "alltoall", "alltoallv", "broadcast", "scatter"]
)
def test_tables_of_nccl_tests_are_the_predicted_ones(name: str, flags: str, shim: Path) -> None:
    words = f"-b 1K -e 256K -f 16 -c 1 {flags}".split()
    ran = run(shim, "dgx-h100", Path(BINARIES) / f"{name}_perf", *words).stdout
    command = [sys.executable, "-m", "clusim", "nccl-tests", f"{name}_perf", "dgx-h100", *words]
    predicted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert numbers(ran) == numbers(predicted)


def numbers(table: str) -> list[list[str]]:
    """Return sizes, times and bandwidths, and wrong elements where they are counted, of the rows."""
    lines = [line.split() for line in table.splitlines() if line.strip() and line[0] != "#"]
    return [[line[0], *line[-8:]] for line in lines]
