"""Exchanges in two legs: between ranks at the same place of several nodes, and inside each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clusim.workload.layers import Comm

QUICK_RAILS = 8
"""Channels between nodes for low-latency kernels, whose GPUs post messages themselves: few enough that
channel proxies do not limit them, and enough for the NIC. Assumed, consistent with the times in DeepEP's
README.
"""


class ExchangeLeg(NamedTuple):
    """Collective of some ranks of a group [bytes]; an empty stream is the dimension's."""

    bytes: int
    ranks: tuple[int, ...]
    stream: str = ""
    protocol: str = "simple"
    channels: int = 0


def spread(group: Sequence[int], zones: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the ranks of a group by node, in the order of the group."""
    result: dict[int, list[int]] = {}
    for rank in group:
        result.setdefault(zones[rank], []).append(rank)
    return [tuple(ranks) for ranks in result.values()]


def legs_of(step: Comm, group: tuple[int, ...], zones: Sequence[int]) -> list[ExchangeLeg]:
    """Return the legs of a communication of a group.

    Between nodes a flag follows the data. Legs overlap, as tokens are forwarded one by one.
    """
    protocol = "ll128" if step.flags else "simple"
    if not step.across:
        return [ExchangeLeg(step.bytes, group, "", protocol, step.channels)]
    machines = spread(group, zones)
    inside = [
        ExchangeLeg(step.bytes, ranks, "", protocol, step.channels)
        for ranks in machines
        if len(ranks) > 1
    ]
    channels = min(step.channels, QUICK_RAILS) if step.flags else step.channels
    rails = [
        ExchangeLeg(step.across, ranks, f"{step.dim} rails", "simple", channels)
        for ranks in zip(*machines, strict=True)
    ]
    return [*rails, *inside]
