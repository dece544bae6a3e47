"""Laws of sends and receives between machines: channels by release, jobs followed from smaller ones, slices to proxies.

A DGX H100 has 16 channels of messages, an adapter of 400 Gb/s beside every GPU, which NCCL counts as 48 GB/s, and
reckons a channel with 14: ceil(48 / 14) = 4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.nccl.programs import CollectivePayload, build
from clusim.simulation.setup import Setup
from support.machines import cluster_of, pcie_machine


@pytest.mark.parametrize(
    ("release", "nodes", "per_peer"),
    [
        # Two by default.
        *(("2.19", nodes, 2) for nodes in (2, 4, 8, 16)),
        # One if twice the ranks are more than four times the channels: 2 x 32 = 4 x 16 are not.
        *(("2.20", 4, 2), ("2.20", 8, 1), ("2.28", 4, 2), ("2.28", 8, 1)),
        # What the adapters take, halved while that many for every eight ranks are more than all channels.
        *(("2.29", 2, 4), ("2.29", 4, 4), ("2.29", 8, 2), ("2.29", 16, 1)),
    ],
)
def test_channels_to_a_peer_by_release(release: str, nodes: int, per_peer: int) -> None:
    comm = Setup("dgx-h100", nodes=nodes, version=release).comm
    assert (comm.p2p_channels, comm.p2p_per_peer) == (16, per_peer)


def test_a_job_followed_from_fewer_machines_keeps_its_channels() -> None:
    whole = Setup("dgx-h100", nodes=16, version="2.29")
    assert Setup("dgx-h100", nodes=2, version="2.29").comm.p2p_per_peer == 4
    assert whole.smaller(2).comm.p2p_per_peer == whole.comm.p2p_per_peer == 1
    assert whole.smaller(2).smaller(2).comm.p2p_per_peer == 1


@pytest.mark.parametrize(("p2p", "near"), [("write", 2), ("read", 1)])
def test_only_slices_pushed_inside_a_machine_share_their_fixed_cost(
    tmp_path: Path, p2p: str, near: int
) -> None:
    """Every program has messages of one distance, so that those to a proxy pay whole beside those that do not."""
    text = pcie_machine(gpus=2, nvlink=True).replace("p2p: write", f"p2p: {p2p}")
    setup = Setup(cluster_of(text, tmp_path))
    comm = setup.comm
    size = comm.group.num_ranks * (4 << 20)
    schedule = build(setup.known, comm, CollectivePayload("alltoall", size, "uint8", "sum", -1))
    machine = {rank: n for n, item in enumerate(comm.machines) for rank in item.ranks}
    seen = set()
    for item in schedule.instances:
        ends = [schedule.connections[number] for number in item.connections]
        distances = {machine[end.src] == machine[end.dst] for end in ends}
        if not ends:
            continue  # a copy to itself
        (same,) = distances
        assert item.fixed_div == (near if same else 1)
        seen.add(same)
    assert seen == {True, False}
