"""Printed error limits hold on machines, collectives, sizes and grains that nobody chose.

Each case is drawn from its number, and the limit that the result carries is compared with exact packets, or, for
times extrapolated over nodes, with the whole run in the same bursts, as the limit says. 500 cases of collectives and
100 of each other kind with CLUSIM_THOROUGH=1.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import clusim
from clusim import collectives
from clusim.base.errors import InputError
from clusim.lowering import grain
from clusim.simulation import anchors, extrapolate
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.training import train
from support.covering import THOROUGH
from support.workloads import tiny

KIB, MIB = 1 << 10, 1 << 20

MACHINES = [
    *(("dgx-h100", n) for n in (1, 1, 2)),
    *(("dgx-a100", n) for n in (1, 2, 4)),
    *(("azure-ndv2", n) for n in (1, 2)),
    *((name, 1) for name in ("dgx-1v", "hgx-b200", "gcp-a3-mega", "a100x4-mesh", "mi300x")),
    *((name, 1) for name in ("a100-pcie-x8", "rtx3090x8-edr56", "rtx4090x8-pcie", "l40s-x8")),
    *((name, None) for name in ("star:6", "ring:8", "mesh:3x3", "fat-tree:k=4", "torus:2x2x2")),
]
COLLECTIVES = {
    "allreduce": ("nccl", "ring", "tree", "butterfly", "direct"),
    "allgather": ("nccl", "ring"),
    "reducescatter": ("nccl", "ring"),
    "broadcast": ("nccl", "ring", "tree"),
    "alltoall": ("nccl", "direct"),
}


def drawn(number: int) -> tuple[Any, str, str, random.Random]:
    """Return the machine, operation and algorithm of a case."""
    draw = random.Random(number)
    name, nodes = draw.choice(MACHINES)
    operation = draw.choice(list(COLLECTIVES))
    fabric = clusim.load(name) if nodes in (1, None) else clusim.load(name, nodes=nodes)
    algorithms = COLLECTIVES[operation][nodes is None :]
    return fabric, operation, draw.choice(algorithms), draw


def run(case: tuple[Any, ...], size: int, granularity: str) -> Any:
    fabric, operation, algorithm, _ = case
    return clusim.collective(fabric, operation, size, algorithm=algorithm, granularity=granularity)


def sized(case: tuple[Any, ...], hops: int) -> int:
    """Return a ragged size at which a case has about so many packet-hops."""
    step = 4 * case[0].num_ranks
    size = 4 * MIB // step * step
    for _ in range(3):
        found = run(case, size, "coarse").packet_hops
        size = max(1, round(size * hops / max(1, found)) // step) * step
    return size


@pytest.mark.parametrize("number", range(500) if THOROUGH else (1,))
def test_limits_of_bursts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn(number)
    try:
        run(case, 64 * KIB, "packet")
    except InputError:
        pytest.skip("the algorithm is not for these ranks")
    # Bursts begin at fewer hops than usual, so that exact packets are cheap: they are as large in parts of a slice.
    scale = 8 if number % 4 else 1
    for word, rule in grain.RULES.items():
        smaller = {
            name: getattr(rule, name) // scale
            for name in ("exact_hops", "target_hops", "most_hops")
        }
        monkeypatch.setitem(grain.RULES, word, replace(rule, **smaller))
    size = sized(case, round(case[3].uniform(1.1, 2.5) * grain.EXACT_HOPS / scale))
    exact = run(case, size, "packet").time_ps
    seen = {}
    for word in ("auto", "quick", "coarse", "step"):
        found = run(case, size, word)
        limit = found.provenance.error_bound
        assert ("error limit" in found.provenance.granularity_note) == bool(limit)
        seen[word] = limit, found.time_ps / exact - 1
    print("limits", number, case[0].name, *case[1:3], size, seen)
    for word, (limit, error) in seen.items():
        assert limit is None or abs(error) <= limit, (word, seen)


@pytest.mark.parametrize("number", range(100 if THOROUGH else 2))
def test_limits_of_traffic(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(number)
    rule = grain.RULES["auto"]
    monkeypatch.setitem(grain.RULES, "auto", replace(rule, exact_hops=400_000, target_hops=200_000))
    fabric = clusim.load(draw.choice(["fat-tree:k=4", "mesh:4x4", "ring:8", "star:8", "dgx-a100"]))
    asked = {
        "pattern": draw.choice(["permutation", "uniform", "alltoall", "incast"]),
        "message": draw.choice(["256KiB", "1MiB", "2MiB"]),
    }
    found, exact = (
        clusim.traffic(fabric, granularity=word, **asked) for word in ("auto", "packet")
    )
    error = found.time_ps / exact.time_ps - 1
    print("traffic", number, fabric.name, asked, found.provenance.error_bound, error)
    limit = found.provenance.error_bound
    assert limit is None or abs(error) <= limit


@pytest.mark.parametrize("number", range(100 if THOROUGH else 1))
def test_limits_of_extrapolated_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(number)
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 100_000)
    monkeypatch.setattr(anchors, "MOST_RANKS", 16)
    name = draw.choice(["dgx-a100", "dgx-h100", "hgx-b200", "aws-p5", "aws-p4d"])
    operation = draw.choice(["allreduce", "allreduce", "allgather", "reducescatter", "broadcast"])
    algorithms = ["Ring"] if operation != "allreduce" else ["Ring", "Tree", "NVLSTree"]
    env = (("NCCL_ALGO", draw.choice(algorithms)), ("NCCL_PROTO", "Simple"))
    size = round(draw.uniform(2, 12) * MIB) // 4 * 4
    asked = Request(Setup(name, draw.randint(5, 12), env=env), operation, size)
    _compare(asked, number)


@pytest.mark.parametrize("number", range(100) if THOROUGH else (2,))
def test_limits_of_extrapolated_named_algorithms(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(number)
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 100_000)
    monkeypatch.setattr(anchors, "MOST_RANKS", 16)
    name = draw.choice(["dgx-a100", "dgx-h100", "hgx-b200", "aws-p5", "azure-ndv2", "dgx-spark"])
    laws = [key for key, entry in collectives.REGISTRY.items() if entry.growth]
    operation, algorithm = draw.choice(laws)
    size = round(draw.uniform(1, 64 if THOROUGH else 4) * MIB) // 4 * 4
    setup = Setup(name, draw.randint(9, 16 if THOROUGH else 10))
    protocol = draw.choice(["", "", "ll128", "ll"])
    _compare(Request(setup, operation, size, algorithm=algorithm, protocol=protocol), number)


@pytest.mark.parametrize("number", range(60 if THOROUGH else 1))
def test_limits_of_long_streams(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in full needs seconds to a minute, because only these many chunks are extrapolated."""
    case = drawn(number)
    setup = Setup(case[0])
    asked = Request(setup, *case[1:2], 256 * MIB, algorithm=case[2])
    try:
        hops = job_of(asked).grain.packet_hops
    except InputError:
        pytest.skip("the algorithm is not for these ranks")
    size = round(asked.size_bytes * case[3].uniform(1e9, 2e9) / hops) // 16 * 16
    _compare(replace(asked, size_bytes=size), number)


def _compare(asked: Request, number: int) -> None:
    """Compare an extrapolated time with the run in full, if there is one."""
    brief = RunOptions(histories=False)
    try:
        found = result_of(asked, brief)
    except InputError:
        pytest.skip("the algorithm is not for this machine")
    if not found.followed:
        pytest.skip("simulated in full")
    whole = run_job(job_of(asked, brief), brief)
    error = found.time_ps / whole.time_ps - 1
    said = asked.setup.name, asked.setup.nodes, asked.setup.env, asked.operation, asked.algorithm
    print("extrapolated", number, *said, asked.protocol, asked.size_bytes, error)
    assert found.provenance.error_bound is not None
    assert abs(error) <= found.provenance.error_bound


PLANS = [
    "parallel: {tensor: 8}\n",
    "parallel: {tensor: 4}\ntensor: {sequence_parallel: true}\n",
    "parallel: {data: 8}\ndata: {kind: zero2}\n",
    "parallel: {data: 8}\ndata: {kind: fsdp}\n",
    "parallel: {tensor: 2, pipeline: 2, data: 2}\n",
    "parallel: {pipeline: 4, data: 2}\n",
]


@pytest.mark.parametrize("number", range(100 if THOROUGH else 1))
def test_limits_of_training_steps(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(number)
    work = tiny(draw.choice(PLANS), batch="{global: 8, micro: 1}", collectives="nccl")
    work.model.hidden = draw.choice([512, 1024, 2048] if THOROUGH else [256, 512, 1024])
    work.model.intermediate, work.sequence = 4 * work.model.hidden, draw.choice([256, 512])
    fabric = clusim.load(draw.choice(["dgx-a100", "dgx-h100", "hgx-b200", "a100-pcie-x8"]))
    exact = train(work, fabric, steps=1, granularity="packet")
    for word, hops in (("coarse", 1), ("step", 100_000)):
        rule = grain.RULES[word]
        finest = replace(rule, exact_hops=hops, target_hops=hops, most_hops=2 * hops)
        monkeypatch.setitem(grain.RULES, word, finest)
        found = train(work, fabric, steps=1, granularity=word)
        error = found.step_ps[-1] / exact.step_ps[-1] - 1
        print("steps", number, fabric.name, word, error, found.error_bound)
        assert found.error_bound is not None
        assert abs(error) <= found.error_bound
