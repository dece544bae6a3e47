"""Call size from which the channels are in a steady stream."""

from __future__ import annotations

from clusim.base.terms.algorithms import Algorithm
from clusim.nccl.communicator import LOOPS_OVER_HEADS, Communicator, NcclPlan
from clusim.nccl.programs.context import tree_of
from clusim.nccl.programs.messages import LONGEST, shape_of_message
from clusim.topology.model import Fabric

FILLS = 2
"""Chunks of a channel until further ones take equal times."""


def filling_bytes(fabric: Fabric, comm: Communicator, plan: NcclPlan | None) -> int:
    """Return from what size on a call of this plan takes as long for every further byte [bytes].

    Channels of a tree go on with the next chunk from the beginning, but the way up and that down are busy at once only
    with as many chunks as the tree has stages. A channel by heads takes a chunk for each of them, which are as many as
    the GPUs of a machine at most, before it goes on; over machines its senders run ahead until the slots of their
    connections are full. Without a plan the call is one of sends and receives.
    """
    if plan is None:
        same = comm.group.num_nodes == 1
        chunk = shape_of_message(comm, fabric, LONGEST, same)[1].chunk_bytes
        return FILLS * chunk * comm.group.num_ranks * comm.p2p_per_peer
    algorithm, chunks = plan.selection.algorithm, FILLS
    if algorithm is Algorithm.RING:
        chunks = FILLS * comm.group.num_ranks
    elif algorithm is Algorithm.TREE:
        chunks = max(FILLS, tree_of(comm.channels[0]).depth())
    elif algorithm in LOOPS_OVER_HEADS:
        loops = FILLS if comm.group.num_nodes == 1 else fabric.protocols["simple"].slots
        chunks = loops * max(1, comm.group.num_ranks // comm.group.num_nodes)
    return plan.chunks.chunk_bytes * plan.num_channels * chunks
