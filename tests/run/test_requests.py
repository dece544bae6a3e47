"""Requests: they travel to other processes, mean the same in every command, and refuse what has no meaning."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import FrozenInstanceError
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.errors import InputError
from clusim.fabric.arrays import arrays_of
from clusim.nccl import LATEST
from clusim.nccl.calls.choice import Wanted
from clusim.run.request import Request
from clusim.run.setup import Setup
from clusim.run.simulate import result_of
from clusim.vocabulary.algorithms import Algorithm, Protocol
from clusim_cli.main import cli

KIB = 1 << 10
TWO_GPUS = """
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
links:
  - {from: gpu0, to: gpu1, count: COUNT, base: nvlink4}
"""


def fingerprint(request: Request) -> int:
    return result_of(request).fingerprint


def data(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, (*words, "--json"))
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "request_",
    [
        Request(Setup("dgx-a100"), "allreduce", 64 * KIB),
        Request(Setup("dgx-h100", ranks=(1, 3, 4)), "broadcast", 32 * KIB, root=3, verify=True),
        Request(Setup(clusim.load("mesh:2x2")), "allreduce", 64 * KIB, "ring", channels=2),
        Request(
            Setup("dgx-h100", env=(("NCCL_BUFFSIZE", "1048576"),)),
            "all_gather",
            64 * KIB,
            wanted=Wanted(Algorithm.RING, Protocol.SIMPLE),
        ),
    ],
    ids=lambda request_: f"{request_.setup.name} {request_.operation}",
)
def test_a_request_is_the_same_in_another_process(request_: Request) -> None:
    _ = request_.setup.fabric  # what was made of it does not travel
    copy = pickle.loads(pickle.dumps(request_))
    assert copy == request_
    assert hash(copy) == hash(request_)
    assert not {"fabric", "comm"} & vars(copy.setup).keys()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(fingerprint, request_).result() == fingerprint(request_)


def test_a_request_does_not_change() -> None:
    request_ = Request(Setup("dgx-a100"), "allreduce", 64 * KIB)
    with pytest.raises(FrozenInstanceError):
        request_.size_bytes = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        request_.setup.nodes = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("topology", "size"),
    [
        ("dgx-a100", 8 * KIB),
        ("dgx-h100", 1024 * KIB),
        ("hgx-b200", 2400 * KIB),
        ("dgx-1v", 256 * KIB),
        ("a100x4-mesh", 64 * KIB),
    ],
)
def test_four_commands_agree_where_they_mean_the_same(topology: str, size: int) -> None:
    where, what = (topology,), ("--size", str(size))
    run = data("run", *where, *what, "--no-progress")
    explained = data("explain", *where, *what)
    crossed = data("crossover", *where, *what, "--jobs", "1", "--no-progress")
    table = data(
        *("nccl-tests", "all_reduce_perf", topology, "--jobs", "1"),
        *("-b", str(size), "-e", str(size), "-c", "0"),
    )
    (choice,), (row,), (line,) = explained["choices"], crossed["sizes"], table["results"]
    chosen = f"{choice['algorithm']} {choice['protocol']}"
    assert (run["algorithm"], run["protocol"]) == tuple(chosen.lower().split())
    assert row["nccl_chooses"] == chosen
    assert run["channels"] == choice["channels"]
    # NCCL's own estimate
    assert run["model_time_us"] == choice["model_time_us"]
    # with launch
    assert line["out_of_place"]["time"] == pytest.approx(run["launched_us"], abs=1e-6)
    assert row["times_us"][chosen] == pytest.approx(run["launched_us"], abs=1e-3)
    # the kernel only is what is left without it
    assert run["time_ps"] / 1e6 < run["launched_us"]
    assert [found["includes"] for found in (run, explained, crossed, table)] == [
        "kernel only",
        "NCCL's own estimate",
        "with launch, as nccl-tests reports it",
        "with launch, as nccl-tests reports it",
    ]


def test_every_command_has_the_newest_release_by_default() -> None:
    assert Setup("dgx-a100").release == LATEST
    assert data("explain", "dgx-a100", "--size", "1K")["nccl_version"] == str(LATEST)
    found = data("crossover", "a100x4-mesh", "--size", "1K", "--jobs", "1", "--no-progress")
    assert found["nccl_version"] == str(LATEST)


@pytest.mark.parametrize(
    ("topology", "operation", "algorithm"),
    [
        ("dgx-h100", "allreduce", "nccl"),
        ("mi300x", "all_gather", "nccl"),
        ("dgx-h100", "barrier", "dissemination"),
        ("mesh:2x2", "allreduce", "ring"),
        ("fully-connected:4", "alltoall", "direct"),
    ],
)
def test_what_nccl_drives_runs_as_nccl_would(topology: str, operation: str, algorithm: str) -> None:
    default, named = (
        fingerprint(Request(Setup(topology), operation, 64 * KIB, name)) for name in ("", algorithm)
    )
    assert default == named


def test_what_only_a_named_algorithm_leaves_open_is_refused_otherwise() -> None:
    told = Setup("dgx-a100", env=(("NCCL_MAX_NCHANNELS", "2"),))
    with pytest.raises(InputError, match="NCCL_MAX_NCHANNELS and --channels say the same thing"):
        result_of(Request(told, "allreduce", 64 * KIB, channels=2))
    for setup in (
        Setup("dgx-a100", version="2.18"),
        Setup("dgx-a100", env=(("NCCL_ALGO", "Ring"),)),
    ):
        with pytest.raises(InputError, match="for what NCCL chooses"):
            result_of(Request(setup, "allreduce", 64 * KIB, "ring"))
    with pytest.raises(InputError, match="has no root"):
        result_of(Request(Setup("dgx-a100"), "allreduce", 64 * KIB, root=3))
    with pytest.raises(InputError, match="one of them twice"):
        result_of(Request(Setup("dgx-a100", ranks=(0, 0)), "allreduce", 64 * KIB))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = "name: mine\nchannels: {default: 1}\n" + TWO_GPUS
    path.write_text(text.replace("COUNT", "1"), encoding="utf-8")
    before = len(arrays_of(Setup(str(path)).fabric).wires)
    path.write_text(text.replace("COUNT", "4  "), encoding="utf-8")
    assert len(arrays_of(Setup(str(path)).fabric).wires) == 4 * before
