"""``clusim explain`` and the data behind it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from clusim import topology
from clusim.nccl import Collective, communicator, parse_version
from clusim.nccl.explain import explain, render, switch_points, traffic
from clusim_cli.commands.explain import command


def run(*args: str) -> str:
    result = CliRunner().invoke(command, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_text_says_channels_and_switch_points() -> None:
    text = run("dgx-h100", "--collective", "all_reduce")
    assert "24 ring channels (coll), 16 NVLS channels" in text
    assert "0-23        0 1 2 3 4 5 6 7" in text
    assert "Ring LL" in text
    assert "NVLS Simple" in text
    assert "fewer" not in text.split("choice by size")[0]


def test_json_is_complete() -> None:
    data = json.loads(
        run("dgx-a100", "--size", "64KiB", "--size", "1GiB", "--nccl-version", "2.20", "--json")
    )
    assert [choice["size_bytes"] for choice in data["choices"]] == [65_536, 1 << 30]
    assert data["channels"]["coll"] == 24
    assert len(data["rings"]) == len(data["trees"]) == 24
    large = data["choices"][1]
    assert (large["algorithm"], large["protocol"], large["channels"]) == ("Ring", "Simple", 24)
    assert large["gpu_bytes"] == pytest.approx((1 << 30) * 14 / 8)
    assert len(data["costs"]) == 21


def test_environment_decides() -> None:
    data = json.loads(run("dgx-h100", "--env", "NCCL_ALGO=^NVLS", "--size", "1GiB", "--json"))
    assert data["choices"][0]["algorithm"] == "Ring"


@pytest.mark.parametrize(
    "args",
    [["--nccl-version", "1.0"], ["--env", "NCCL_ALGO=Rnig"], ["--collective", "alltoallv"]],
)
def test_bad_input_is_one_line(args: list[str]) -> None:
    result = CliRunner().invoke(command, ["dgx-a100", *args])
    assert result.exit_code != 0


def test_switch_points_are_exact_to_the_byte() -> None:
    comm = communicator(topology.load("dgx-h100"), parse_version("2.29"))
    points = switch_points(comm, Collective.ALLREDUCE)
    assert [point["choice"] for point in points] == ["Ring LL", "NVLS Simple"]
    edge = points[1]["from_bytes"]
    assert comm.select(Collective.ALLREDUCE, edge - 1).algorithm.value == "Ring"
    assert comm.select(Collective.ALLREDUCE, edge).algorithm.value == "NVLS"


def test_several_nodes_use_every_adapter_evenly() -> None:
    comm = communicator(topology.load("hgx-h100-ndr", nodes=2), parse_version("2.27"))
    data = explain(comm, Collective.ALLGATHER, [1 << 30])
    assert "NET/7" in render(data)
    plan = comm.plan(Collective.ALLGATHER, 1 << 30)
    sent = traffic(comm, Collective.ALLGATHER, plan)
    assert sent is not None
    assert sent.adapter_bytes is not None
    low, high = sent.adapter_bytes
    # 15/16 of the data leave the machine, over eight adapters.
    assert low == pytest.approx((1 << 30) * 15 / 16 / 8, rel=0.01)
    assert high == pytest.approx(low, rel=0.01)
    ranks = {rank for part in plan.parts for rank in comm.channels[part.channel].ring}
    assert ranks == set(range(16))
