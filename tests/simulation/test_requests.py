"""Requests: they travel to other processes, mean the same in every command, and refuse what has no meaning."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import FrozenInstanceError
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.base.errors import InputError
from clusim.base.terms.operations import Algorithm, Protocol
from clusim.nccl import LATEST
from clusim.nccl.choice import NcclOverrides
from clusim.replays import ReplayRequest
from clusim.simulation.api import result_of
from clusim.simulation.request import Request, ScheduleRequest, TrafficRequest
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic
from clusim.topology.arrays import arrays_of
from clusim.training import TrainRequest
from clusim.training.api import inputs
from clusim_cli.main import cli
from support.studies import study

KIB = 1 << 10
TWO_GPUS = """
nodes:
  gpu0..1: {kind: gpu, chip: h100-sxm5}
links:
  - {from: gpu0, to: gpu1, count: COUNT, base: nvlink4}
"""


TRACES = Path(__file__).resolve().parents[2] / "traces"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Return another process that has nothing of this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


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
            wanted=NcclOverrides(Algorithm.RING, Protocol.SIMPLE),
        ),
        ScheduleRequest(
            Setup("mesh:2x2", faults=("rank 1 slow x2",)),
            clusim.collectives.build(clusim.load("mesh:2x2"), "allreduce", "ring", 4 * KIB),
            engine="reference",
        ),
        TrafficRequest(Setup("mesh:2x2"), Traffic("permutation", 64 * KIB, 4 * KIB, seed=3)),
        TrainRequest(
            *inputs("bert-parameter-server", faults=["rank 1 slow x2"]),
            steps=1,
            granularity=1 << 20,
        ),
        ReplayRequest((str(TRACES / "ring-4.goal"),), "a100x4-mesh", other="dgx-a100"),
    ],
    ids=lambda request_: f"{type(request_).__name__}",
)
def test_a_request_is_the_same_in_another_process(
    request_: Any, elsewhere: ProcessPoolExecutor
) -> None:
    setup = getattr(request_, "setup", None)
    if isinstance(setup, Setup):
        _ = setup.fabric  # what was made of it does not travel
    copy = pickle.loads(pickle.dumps(request_))
    assert copy == request_
    assert hash(copy) == hash(request_)
    if isinstance(setup, Setup):
        assert not {"fabric", "comm"} & vars(copy.setup).keys()
    assert elsewhere.submit(study, request_).result() == study(request_)


def test_requests_that_mean_the_same_are_the_same() -> None:
    setup = Setup("dgx-a100")
    assert Request(
        *(setup, "AllReduce", KIB, "NVLS_TREE"),
        protocol="Simple",
        dtype="FP32",
        redop="SUM",
        granularity="PACKET",
        engine="C",
    ) == Request(*(setup, "allreduce", KIB, "nvlstree"), protocol="simple", granularity="packet")
    one, two = (Traffic(word, KIB, KIB, routing="ECMP") for word in ("Incast", "incast"))
    assert one == two
    assert ReplayRequest(("a",), gap="None") == ReplayRequest(("a",), gap="none")
    work = inputs("bert-parameter-server")
    assert TrainRequest(*work, fold="ALL") == TrainRequest(*work, fold="all")


def test_a_training_run_takes_no_part_of_a_setup_that_it_would_not_use() -> None:
    _, work = inputs("bert-parameter-server")
    with pytest.raises(InputError, match="not supported in training"):
        TrainRequest(Setup("dgx-a100", version="2.18"), work)


def test_words_of_functions_are_known_in_any_case() -> None:
    told: dict[str, Any] = {"redop": "SUM", "dtype": "Float32", "granularity": "Packet"}
    upper = clusim.collective("mesh:2x2", "ALL_REDUCE", "4K", "RING", engine="C", **told)
    lower = clusim.collective("mesh:2x2", "allreduce", "4K", "ring", granularity="packet")
    assert (upper.fingerprint, upper.provenance) == (lower.fingerprint, lower.provenance)
    low = clusim.collective("dgx-a100", "allreduce", "4K", env={"proto": "ll128"})
    assert low.call is not None
    assert low.call.protocol == "ll128"
    incast = clusim.traffic("mesh:2x2", "UNIFORM", duration="1us", routing="ECMP")
    assert incast.messages is not None
    built = clusim.collectives.build(
        clusim.load("mesh:2x2"), "AllReduce", "Ring", 4 * KIB, redop="MAX", dtype="BF16"
    )
    assert (built.calls[0].redop, built.calls[0].dtype) == ("max", "bfloat16")


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
    # NCCL's cost model
    assert run["model_time_us"] == choice["model_time_us"]
    # with launch
    assert line["out_of_place"]["time"] == pytest.approx(run["launched_us"], abs=1e-6)
    assert row["times_us"][chosen] == pytest.approx(run["launched_us"], abs=1e-3)
    # the kernel only is what is left without it
    assert run["time_ps"] / 1e6 < run["launched_us"]
    assert [found["includes"] for found in (run, explained, crossed, table)] == [
        "kernel only",
        "NCCL's cost model",
        "with launch overhead, as nccl-tests reports it",
        "with launch overhead, as nccl-tests reports it",
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
        study(Request(Setup(topology), operation, 64 * KIB, name)) for name in ("", algorithm)
    )
    assert default == named


def test_what_only_a_named_algorithm_leaves_open_is_refused_otherwise() -> None:
    told = Setup("dgx-a100", env=(("NCCL_MAX_NCHANNELS", "2"),))
    with pytest.raises(InputError, match="NCCL_MAX_NCHANNELS and --channels are the same setting"):
        result_of(Request(told, "allreduce", 64 * KIB, channels=2))
    for setup in (
        Setup("dgx-a100", version="2.18"),
        Setup("dgx-a100", env=(("NCCL_ALGO", "Ring"),)),
    ):
        with pytest.raises(InputError, match="is for NCCL's plans"):
            result_of(Request(setup, "allreduce", 64 * KIB, "ring"))
    with pytest.raises(InputError, match="takes no root"):
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


@pytest.mark.parametrize("name", ["per_node", "gpus", "messages", "nonsense"])
def test_only_named_options_are_accepted(name: str) -> None:
    """Fields of `Setup` that are not options of `collective` are refused, like other unknown names."""
    with pytest.raises(TypeError, match=name):
        clusim.collective("dgx-a100", "allreduce", "1MiB", **{name: 4})
