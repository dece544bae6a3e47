"""One job by every command: equal times, apart from the host's.

The simulation of all ranks in bursts is the reference.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from clusim.formats.recordings.chakra_writer import write
from clusim.replays.api import replay, replay_alike
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.topology import load
from clusim.training import train
from clusim.training.estimate import estimate
from clusim.workload import loads_workload
from jobs.cases import CASES, EQUAL, RANKS, RELEASE, SYSTEM, kernel_ps, log, recording
from support.warm_torch import clusim as warm

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

CALLS = ("two calls", "uneven all-to-all")
MESSAGES = ("chain of messages", "chain of pairs")
BESIDE = ("a call beside a kernel", "two calls beside a kernel", "gradient buckets")
THREADS = "two calls of two threads"
LIVE = ("two calls", "chain of messages", "uneven all-to-all")

KERNEL_LIMIT = 0.02
"""Error limit of a player beside kernels; calls without kernels are exact."""

HOST_US = 60.0
"""Largest host and launch time that a command adds to each call in sequence [us]."""


def request(*files: Path, granularity: str = "quick", whole: bool = False) -> ReplayRequest:
    return ReplayRequest(
        tuple(map(str, files)),
        topology=SYSTEM,
        version=RELEASE,
        gap="none",
        granularity=granularity,
        whole=whole,
    )


@cache
def simulated_us(case: str, granularity: str = "quick") -> float:
    """Return the time of a job simulated as a schedule of all ranks [us]."""
    return replay_recording(recording(case), request(granularity=granularity)).total_ps / 1e6


def test_bursts_and_packets_agree() -> None:
    exact_us = simulated_us("two calls", "packet")
    assert simulated_us("two calls") == pytest.approx(exact_us, rel=0.01)


def test_concurrent_calls_slow_each_other_and_kernels() -> None:
    """Two calls move twice the bytes of one; a kernel beside a call has fewer SMs."""
    assert 1.4 * simulated_us("one call") < simulated_us("two calls") < 2 * simulated_us("one call")
    assert simulated_us("a call beside a kernel") > kernel_ps() / 1e6
    assert simulated_us("two calls beside a kernel") > 1.1 * simulated_us("a call beside a kernel")


@pytest.mark.parametrize("case", EQUAL)
def test_one_rank_represents_all(case: str) -> None:
    one_us = replay_alike(recording(case, alike=True), request()).total_ps / 1e6
    limit = 0.0 if case in ("one call", "two calls") else KERNEL_LIMIT
    assert one_us == pytest.approx(simulated_us(case), rel=limit, abs=0)


@pytest.mark.parametrize("case", [*CALLS, *BESIDE[1:], MESSAGES[1]])
def test_a_chakra_trace_is_the_job(tmp_path: Path, case: str) -> None:
    files = write(recording(case), tmp_path / "job.et")
    assert replay(request(*files)).total_ps / 1e6 == simulated_us(case)


@pytest.mark.parametrize("case", CALLS)
def test_a_log_is_the_job_and_its_launches(tmp_path: Path, case: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(log(case), encoding="utf-8")
    check_live(replay(request(path)).total_ps / 1e6, case)


@pytest.mark.parametrize("case", CALLS)
def test_a_log_simulated_as_one_job_is_the_job(tmp_path: Path, case: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(log(case), encoding="utf-8")
    assert replay(request(path, whole=True)).total_ps / 1e6 == simulated_us(case)


def check_live(found_us: float, case: str) -> None:
    """Check the time of a command whose host also needs time."""
    in_sequence = RANKS - 1 if case in MESSAGES else 1
    least_us = simulated_us(case) * (1 - KERNEL_LIMIT)
    most_us = simulated_us(case) * (1 + KERNEL_LIMIT) + in_sequence * HOST_US
    assert least_us <= found_us <= most_us


def times_of(text: str) -> dict[str, float]:
    """Return the latest time of each case that a program printed [us]."""
    result: dict[str, float] = {}
    for line in text.splitlines():
        case, _, time = line.partition(": ")
        if case in (*CASES, THREADS):
            result[case] = max(result.get(case, 0.0), float(time.split(": ")[-1]))
    return result


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return the times of the program that calls NCCL [us]."""
    folder = tmp_path_factory.mktemp("shim")
    make = ["make", "-s", "-C", ROOT, "shim", f"SHIM={folder}"]
    subprocess.run(make, check=True, capture_output=True)
    compiler, program = shutil.which("cc") or "gcc", folder / "program"
    words = [compiler, "-Wall", "-Werror", "-o", program, HERE / "program.c"]
    subprocess.run([*words, folder / "libnccl.so.2"], check=True)
    cases = (*LIVE, MESSAGES[1], THREADS)
    command = [sys.executable, "-m", "clusim", "exec", SYSTEM, str(program), *cases]
    env = {**os.environ, "CLUSIM_SHIM": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return times_of(done.stdout)


@pytest.mark.parametrize("case", [*LIVE, MESSAGES[1]])
def test_a_program_that_calls_nccl_is_the_job(executed: dict[str, float], case: str) -> None:
    check_live(executed[case], case)


def test_calls_of_two_threads_slow_each_other(executed: dict[str, float]) -> None:
    """The clock waits for the call of the other thread, although the first thread already waits for its own."""
    check_live(executed[THREADS], "two calls")
    assert executed[THREADS] <= executed["two calls"]


@cache
def scripted(*cases: str) -> dict[str, float]:
    """Return the times of a PyTorch program by its own clock [us]."""
    words = ("--topology", SYSTEM, "--compare", "off", HERE / "script.py", *cases)
    return times_of(warm("torchrun", *words, check=True).stdout)


@pytest.mark.skipif(find_spec("torch") is None, reason="could not import 'torch'")
@pytest.mark.parametrize("case", [*LIVE, *BESIDE, MESSAGES[1]])
def test_a_pytorch_program_is_the_job(case: str) -> None:
    """Messages of a group that is not bound to a device are in communicators of pairs."""
    found = scripted(*(LIVE + BESIDE if case in LIVE + BESIDE else (case,)))
    check_live(found[case], case)


STEP = """
model: {base: llama3-8b, layers: 4}
sequence: 2048
batch: {global: 16, micro: 1}
precision: bf16
"""

LAYOUTS = {
    "tensor and replicas": ("parallel: {tensor: 2}\ndata: {kind: ddp, overlap: true}", 0.005),
    "shards": ("data: {kind: fsdp}", 0.01),
    "tensor, sequence and shards": (
        "parallel: {tensor: 2}\ntensor: {sequence_parallel: true}\ndata: {kind: fsdp}",
        0.02,
    ),
}
"""Layouts of training steps: YAML, and error limit of an estimate."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_estimate_is_the_step(layout: str) -> None:
    """Kernels, and collectives of several groups that overlap."""
    text, limit = LAYOUTS[layout]
    work, fabric = loads_workload(STEP + text, "step.yaml"), load("dgx-h100")
    step = train(work, fabric, fold="none", steps=1, granularity="quick")
    found = estimate(work, fabric, steps=1, granularity="quick")
    assert found.step_ps[-1] == pytest.approx(step.step_ps[-1], rel=limit)
