"""Payload that every GPU and every adapter sends for a collective, from the channels NCCL would use."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.terms.algorithms import Algorithm
from clusim.base.terms.operations import Collective, bus_factor
from clusim.nccl.communicator import Communicator, NcclPlan


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """Payload sent [bytes].

    Attributes
    ----------
    gpu_bytes : tuple of float
        Least and most that a GPU sends to GPUs of its machine, or to its NVLink switch.
    adapter_bytes : tuple of float or None
        Least and most that an adapter sends to other machines; None on one machine.
    """

    gpu_bytes: tuple[float, float]
    adapter_bytes: tuple[float, float] | None = None


def traffic(comm: Communicator, collective: Collective, plan: NcclPlan) -> RankTraffic | None:
    """Return what GPUs and adapters send, None for an algorithm whose traffic is not derived."""
    algorithm, size = plan.selection.algorithm, float(plan.selection.num_bytes)
    n = comm.group.num_ranks
    if algorithm is Algorithm.NVLS and comm.group.num_nodes == 1:
        # Every GPU sends its data to the switch, and its head's share of the results.
        share = size / n
        if collective is Collective.ALLREDUCE:
            return RankTraffic((size + share, size + share))
        only = size if collective is Collective.REDUCESCATTER else share
        return RankTraffic((only, only))
    if algorithm not in (Algorithm.RING, Algorithm.TREE):
        return None
    machine_of = [0] * n
    for number, machine in enumerate(comm.machines):
        for rank in machine.ranks:
            machine_of[rank] = number
    inside = [0.0] * n
    outside: dict[tuple[int, int], float] = {
        (number, index): 0.0
        for number, machine in enumerate(comm.machines)
        for index in range(len(machine.adapters))
    }
    shares = [float(part.num_bytes) for part in plan.parts]
    total = sum(shares) or 1.0
    channels = comm.channels[: plan.num_channels]
    weights = [share / total for share in shares] or [1 / len(channels)] * len(channels)
    for channel, weight in zip(channels, weights, strict=False):
        if algorithm is Algorithm.RING:
            adapters = channel.ring_adapters
            per_hop = size * bus_factor(collective.operation, n) * weight
            hops = [
                (rank, channel.ring[(place + 1) % n], per_hop)
                for place, rank in enumerate(channel.ring)
            ]
            if collective in (Collective.BROADCAST, Collective.REDUCE):
                hops = hops[:-1]
        else:
            adapters = channel.tree_adapters
            hops = [
                (rank, other, size * weight)
                for rank, parent in enumerate(channel.parent)
                for other in (
                    (parent, *channel.children[rank]) if parent >= 0 else channel.children[rank]
                )
            ]
        for sender, receiver, amount in hops:
            number = machine_of[sender]
            if machine_of[receiver] == number:
                inside[sender] += amount
            else:
                outside[number, adapters[number][1]] += amount
    if comm.group.num_nodes == 1:
        return RankTraffic((min(inside), max(inside)))
    used = list(outside.values())
    return RankTraffic((min(inside), max(inside)), (min(used), max(used)))
