"""MSCCL's all-pairs all-reduce of RCCL: its plans by size, their thread blocks, data and times."""

from __future__ import annotations

import pytest

from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl import communicator, parse_version
from clusim.nccl.env import parse_env
from clusim.nccl.graph import CollectivePayload
from clusim.nccl.programs import build
from clusim.nccl.programs.allpairs import all_pairs
from clusim.schedule.semantics import verify
from clusim.simulation.api import collective
from clusim.topology import load

KIB = 1024


def chosen(size: int, release: str, **env: str) -> tuple[Algorithm, Protocol, int]:
    comm = communicator(load("mi300x"), parse_version(release), parse_env(env))
    plan = comm.plan(Collective.ALLREDUCE, size)
    return plan.selection.algorithm, plan.selection.protocol, plan.num_channels


@pytest.mark.parametrize(
    ("size", "release", "protocol", "channels"),
    [
        (64, "2.20", Protocol.LL, 2),
        (32 * KIB, "2.20", Protocol.LL, 4),
        (4 * KIB, "2.22", Protocol.LL, 4),
        (128 * KIB, "2.22", Protocol.LL, 8),
        (512 * KIB, "2.22", Protocol.SIMPLE, 8),
        (16 << 20, "2.27", Protocol.SIMPLE, 8),
    ],
)
def test_sizes_of_the_plans(size: int, release: str, protocol: Protocol, channels: int) -> None:
    assert chosen(size, release) == (Algorithm.MSCCL, protocol, channels)


@pytest.mark.parametrize(
    ("size", "release", "env"),
    [
        (32 << 20, "2.22", {}),
        (100 * KIB + 4, "2.22", {}),
        (1 << 20, "2.18", {}),
        (1 << 20, "2.22", {"RCCL_MSCCL_ENABLE": "0"}),
        (1 << 20, "2.22", {"NCCL_PROTO": "Simple"}),
    ],
)
def test_other_sizes_releases_and_variables_have_a_ring(
    size: int, release: str, env: dict[str, str]
) -> None:
    assert chosen(size, release, **env)[0] is Algorithm.RING


def test_blocks_of_a_channel_wait_for_the_data_of_each_other() -> None:
    """A block sends and receives a share, waits for 7 blocks, adds 7 peers' data, waits again, and hands it out."""
    plan = all_pairs(8, 4, "ll", one_pass=False)
    own, peer = plan.gpus[0].blocks[0], plan.gpus[0].blocks[4]
    assert (plan.chunks, len(plan.gpus[0].blocks)) == (256, 32)
    assert len(own.steps) == 1 + 7 + 7
    assert len(peer.steps) == 2 + 7 + 7 + 7 + 2
    assert {step.after[0] % 4 for step in peer.steps if step.after} == {0}


@pytest.mark.parametrize("size", [2 * KIB, 64 * KIB, 256 * KIB, 1 << 20])
def test_every_rank_has_the_sum(size: int) -> None:
    fabric = load("mi300x")
    comm = communicator(fabric, parse_version("2.20"))
    assert verify(build(fabric, comm, CollectivePayload("allreduce", size))) is not None


def test_more_bytes_cost_no_less_than_their_links() -> None:
    """16 MiB after 8 MiB: a GPU sends 1 MiB more to each peer in either step, over xGMI of 48 GB/s of payload."""
    times_us = [
        collective("mi300x", "allreduce", size, version="2.22", granularity="quick").time_ps / 1e6
        for size in (8 << 20, 16 << 20)
    ]
    link_us = 2 * (1 << 20) / 48e3
    assert link_us < times_us[1] - times_us[0] < 2 * link_us
