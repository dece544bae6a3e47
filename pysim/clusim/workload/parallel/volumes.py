"""Traffic of collectives, and exchanges in two legs, between nodes and inside each node.

Traffic is the bytes sent by all ranks of a group together, by algorithm. **Model** Payload that leaves
the GPUs on the shortest path: copies through the memory of another GPU to reach a NIC are not counted,
nor are the flags of LL and LL128. In-switch reduction moves N + 1 times the size for an all-reduce, a
ring 2 (N - 1) times. The legs of an exchange are between ranks at the same place of several nodes, and
inside each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clusim.base.terms.operations import COLLECTIVE_OF, Algorithm
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


def legs_of(
    step: Comm, group: tuple[int, ...], zones: Sequence[int]
) -> list[ExchangeLeg]:
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


IN_SWITCH = (
    Algorithm.NVLS.key,
    Algorithm.NVLS_TREE.key,
    Algorithm.COLLNET_DIRECT.key,
    Algorithm.COLLNET_CHAIN.key,
    "sharp",
    "multimem",
)
"""Algorithms with reduction or copies in switches."""


class SpannedMachines(NamedTuple):
    """Nodes spanned by a group, and a flag for in-switch reduction inside them."""

    number: int = 1
    adding: bool = True


ONE = SpannedMachines()


@dataclass(frozen=True, slots=True)
class Switched:
    """Kind of in-switch collective.

    `nccl_dtype` is the element type if NCCL chose the algorithm, otherwise empty.
    """

    operation: str
    algorithm: str
    bytes: int
    ranks: int
    nccl_dtype: str = ""


@dataclass(slots=True)
class Volume:
    """Traffic of the collectives of a dimension.

    Attributes
    ----------
    calls, sent_bytes : int
        Calls, and bytes sent by all ranks together [bytes].
    switched : dict
        Collectives reduced in switches: their count, and the group of the first.
    """

    calls: int = 0
    sent_bytes: int = 0
    switched: dict[Switched, tuple[int, tuple[int, ...]]] = field(
        default_factory=dict
    )

    def add(self, other: Volume, times: int = 1) -> None:
        """Add the counts of another volume."""
        self.calls += other.calls * times
        self.sent_bytes += other.sent_bytes * times
        for kind, (count, group) in other.switched.items():
            self._count(kind, count * times, group)

    def call(
        self, kind: Switched, group: Sequence[int], machines: SpannedMachines
    ) -> None:
        """Count a collective of a group; only in-switch collectives are counted by kind."""
        self.calls += 1
        size, ranks = kind.bytes, kind.ranks
        self.sent_bytes += sent_bytes(
            kind.operation, kind.algorithm, size, ranks, machines
        )
        if kind.algorithm in IN_SWITCH:
            self._count(kind, 1, tuple(group))

    def _count(self, kind: Switched, count: int, group: tuple[int, ...]) -> None:
        before, first = self.switched.get(kind, (0, group))
        self.switched[kind] = (before + count, first)


def sent_bytes(
    operation: str,
    algorithm: str,
    size: int,
    ranks: int,
    machines: SpannedMachines = ONE,
) -> int:
    """Return the bytes that all ranks of a group send together."""
    if operation == "allreduce":
        return round(_allreduce(algorithm, ranks, machines) * size)
    if operation in ("all_gather", "reduce_scatter"):
        if algorithm in IN_SWITCH:
            return size if operation == "all_gather" else ranks * size
        return (ranks - 1) * size
    if operation in (*COLLECTIVE_OF, "alltoall"):
        return (ranks - 1) * size
    return size * (ranks if operation == "sendrecv" else 1)


def _allreduce(algorithm: str, ranks: int, machines: SpannedMachines) -> int:
    """Return the number of times that the size of an all-reduce is sent."""
    inside = ranks // machines.number
    if algorithm == "nvlstree":
        return machines.number * (inside + 1) + 2 * (machines.number - 1)
    if algorithm in ("nvls", "multimem") and machines.number == 1:
        return ranks + 1
    if algorithm in ("oneshot", "oneshot-ll", "naive"):
        return ranks * (ranks - 1)
    if algorithm in IN_SWITCH:
        return machines.number * (
            inside + 2 if machines.adding and inside > 1 else 2 * inside - 1
        )
    return 2 * (ranks - 1)
