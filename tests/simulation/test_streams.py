"""Long streams that two shorter ones stand for: as long as the whole, whatever the algorithm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.nccl.choice import choose
from clusim.nccl.programs import filling_bytes
from clusim.simulation.extrapolate import kernel_time, timed
from clusim.simulation.laws import FOLLOWED
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from support.covering import THOROUGH


@pytest.mark.parametrize("machine", ["dgx-h100", *(["hgx-b200"] if THOROUGH else [])])
def test_two_shorter_streams_stand_for_a_long_one(machine: str) -> None:
    """A loop of NVLS has a chunk for every head: streams below that are all start, and no line leads on from them."""
    setup = Setup(machine, env=(("NCCL_ALGO", "NVLS"),))
    request = Request(setup, "allreduce", 256 << 20, granularity="quick")
    plan = choose(setup.comm, "allreduce", request.size_bytes).plan
    assert plan is not None
    followed = kernel_time(request, plan)
    assert any(note.startswith(FOLLOWED) for note in followed.notes)
    whole = kernel_time(replace(request, granularity="auto"), plan)
    assert not any(note.startswith(FOLLOWED) for note in whole.notes)
    assert followed.time_ps == pytest.approx(whole.time_ps, rel=0.03)


@pytest.mark.parametrize(
    ("nodes", "algorithm", "protocol", "mebibytes"),
    [(2, "Ring", "LL", 96), (4 if THOROUGH else 2, "Tree", "LL128", 516)],
)
def test_streams_between_nodes_are_extrapolated_from_full_pipelines(
    nodes: int, algorithm: str, protocol: str, mebibytes: int
) -> None:
    """The senders of a tree run ahead at first: 64 MiB of four nodes are half as fast again as later ones."""
    setup = Setup("aws-p5en", nodes, env=(("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)))
    request = Request(setup, "allreduce", mebibytes << 20, granularity="quick")
    plan = choose(setup.comm, "allreduce", request.size_bytes).plan
    followed, whole = (timed(request, plan, streams=streams) for streams in (True, False))
    assert any(note.startswith(FOLLOWED) for note in followed.notes)
    assert followed.time_ps == pytest.approx(whole.time_ps, rel=0.03)


@pytest.mark.parametrize(
    ("machine", "nodes", "algorithm", "heads", "loops"),
    [
        ("dgx-h100", None, "NVLS", 8, 2),
        ("gb200-nvl72", None, "NVLS", 72, 2),
        ("dgx-h100", 4, "NVLSTree", 8, 8),
    ],
)
def test_a_loop_of_heads_has_a_chunk_for_each(
    machine: str, nodes: int | None, algorithm: str, heads: int, loops: int
) -> None:
    """Over machines it takes as many loops as connections have slots until senders wait for receivers."""
    setup = Setup(machine, nodes, env=(("NCCL_ALGO", algorithm),))
    plan = choose(setup.comm, "allreduce", 1 << 30).plan
    assert plan is not None
    loop = plan.num_channels * heads * plan.chunks.chunk_bytes
    assert filling_bytes(setup.known, setup.comm, plan) == loops * loop


def test_a_loop_of_heads_copies_one_after_the_other() -> None:
    """Eight copies of 1.1 us and their bytes at 24.5 GB/s: 19.7 us for each of the four loops from 16 to 32 MiB."""
    setup = Setup("dgx-h100", env=(("NCCL_ALGO", "NVLS"),))
    times_us = []
    for size in (16 << 20, 32 << 20):
        plan = choose(setup.comm, "allreduce", size).plan
        assert plan is not None
        assert plan.chunks.chunk_bytes == 32 << 10
        times_us.append(kernel_time(Request(setup, "allreduce", size), plan).time_ps / 1e6)
    loop_us = (times_us[1] - times_us[0]) / 4
    assert loop_us == pytest.approx(9 + 8 * 32.768 / 24.5, rel=0.06)
