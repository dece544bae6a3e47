"""Calls of NCCL in a group: the collective that a group of sends and receives is, and its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

from clusim.base.terms.dtypes import BY_NUMBER, REDUCTIONS, DataType
from clusim.base.terms.operations import OPERATIONS, full_bytes, weighted_bytes
from clusim.base.units import parse_rate
from clusim.hardware import GPUS
from clusim.jobs.joint import JointTimes
from clusim.jobs.model import CallWork, LaunchWork
from clusim.jobs.player import CallBundle
from clusim.jobs.times import Times
from clusim.nccl.env import windows
from clusim.nccl.launch import (
    Host,
    Launch,
    empty_ps,
    messages_ps,
    overhead_ps,
    period_ps,
)
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

MESSAGES = ("send", "recv")
SCALED = len(REDUCTIONS)
"""Number of a sum with a scalar, NCCL's ``PreMulSum``."""


@dataclass(frozen=True, slots=True)
class NcclCall:
    """A call of one rank.

    Attributes
    ----------
    operation : str
        In clusim: ``all_gather``, or ``send``, ``recv``.
    send, receive : int
        Addresses in the process.
    count : int
        Elements as in NCCL's function.
    number, redop : int
        NCCL's numbers of the type and of the reduction.
    root : int
        Root, or peer.
    scalar : int
        Bits of the factor of a `SCALED` reduction.
    """

    operation: str
    send: int
    receive: int
    count: int
    number: int
    redop: int
    root: int
    scalar: int = 0

    @property
    def dtype(self) -> DataType:
        """Return the type of the elements."""
        return BY_NUMBER[self.number]

    @property
    def bytes(self) -> int:
        """Return the size of `count` elements."""
        return self.count * self.dtype.size_bytes

    @property
    def same(self) -> tuple[object, ...]:
        """Return the part that is equal on all ranks."""
        return self.operation, self.count, self.number, self.redop, self.root

    def text(self) -> str:
        """Return the call in a few words."""
        name = OPERATIONS[self.operation].nccl or self.operation
        root = f", root {self.root}" if OPERATIONS[self.operation].rooted else ""
        return f"{name} of {self.count} x {self.dtype.name}{root}"


@dataclass(frozen=True, slots=True)
class MessagePattern:
    """Operation that a group of messages of all ranks is, its size [bytes], root, and repetitions."""

    operation: str
    size: int
    root: int = 0
    times: int = 1


Peers = Counter[tuple[str, int, int]]
"""Number of messages of a rank by ``send`` or ``recv``, peer and size [bytes]."""


def peers_of(calls: Sequence[NcclCall]) -> Peers:
    """Return the messages of a rank."""
    return Counter((call.operation, call.root, call.bytes) for call in calls)


def pattern_of(messages: Mapping[int, Peers]) -> MessagePattern | None:
    """Return the operation of the messages of all ranks 0 to n-1; None for other messages."""
    number = len(messages)
    times = reduce(
        gcd, (n for peers in messages.values() for n in peers.values()), 0
    )
    if times == 0:
        return None
    once = {
        rank: Counter({key: n // times for key, n in peers.items()})
        for rank, peers in messages.items()
    }
    sizes = [size for peers in once.values() for _, _, size in peers]
    smallest, root = (
        min(sizes),
        max(once, key=lambda rank: (sum(once[rank].values()), -rank)),
    )
    for name, blocks in (
        ("alltoall", number),
        ("sendrecv", 1),
        ("gather", number),
        ("scatter", number),
        ("hypercube", number),
    ):
        if once == {
            rank: _required_peers(name, rank, (number, root, smallest))
            for rank in range(number)
        }:
            return MessagePattern(name, smallest * blocks, root, times)
    weighted = max(sizes) * number // 2
    if once == {
        rank: _alltoallv_peers(rank, number, weighted) for rank in range(number)
    }:
        return MessagePattern("weighted_alltoall", weighted, times=times)
    return None


def _alltoallv_peers(rank: int, number: int, size_bytes: int) -> Peers:
    """Return the messages of a rank in nccl-tests' alltoallv."""
    hops = [
        (hop, size)
        for hop, size in enumerate(weighted_bytes(size_bytes, number))
        if size
    ]
    return Counter(
        (kind, (rank + (hop if kind == "send" else -hop)) % number, size)
        for kind in MESSAGES
        for hop, size in hops
    )


def _required_peers(name: str, rank: int, case: tuple[int, int, int]) -> Peers:
    """Return the messages of a rank in an operation; `case` is (ranks, root, size of a message)."""
    number, root, size = case
    everyone = range(number)
    if name == "alltoall":
        return Counter((kind, peer, size) for kind in MESSAGES for peer in everyone)
    if name == "sendrecv":
        return Counter(
            [
                ("send", (rank + 1) % number, size),
                ("recv", (rank - 1) % number, size),
            ]
        )
    if name == "hypercube":
        masks = [1 << bit for bit in range((number - 1).bit_length())]
        return Counter(
            (kind, rank ^ mask, size * mask) for kind in MESSAGES for mask in masks
        )
    far, root_call = ("send", "recv") if name == "gather" else ("recv", "send")
    result = Counter([(far, root, size)])
    result.update((root_call, peer, size) for peer in everyone if rank == root)
    return result


class CommTimes(Times):
    """Times of calls on one communicator."""

    def __init__(self, setup: Setup, host: Host) -> None:
        super().__init__()
        self.setup, self.host = setup, host

    def request(self, call: NcclCall, *, symmetric: bool = False) -> Request:
        """Return the request of a collective call."""
        setup = self.setup
        if symmetric:
            setup = replace(setup, env=(*setup.env, *windows(True)))
        size = full_bytes(call.operation, call.bytes, self.host.num_ranks)
        return self._request(
            setup, MessagePattern(call.operation, size, call.root), call
        )

    def _request(
        self, setup: Setup, pattern: MessagePattern, call: NcclCall | None = None
    ) -> Request:
        operation = OPERATIONS[pattern.operation]
        fields: dict[str, object] = {}
        if call is not None:
            fields["dtype"] = call.dtype.carrier
            reduction = (
                call.redop if operation.reduces and call.redop < SCALED else 0
            )
            fields["redop"] = REDUCTIONS[reduction]
        if operation.rooted:
            fields["root"] = self.setup.comm.ranks[pattern.root]
        return Request(setup, pattern.operation, pattern.size, **fields)  # type: ignore[arg-type]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the topology's ranks."""
        return tuple(self.setup.comm.ranks)

    def bundle(self, request: Request, root: int, time_ps: int) -> CallBundle:
        """Return a collective of a known time in isolation for the clock."""
        rooted = () if request.root is None else (root,)
        kind = request.operation, request.size_bytes, request.dtype, request.redop
        return CallBundle(
            (self.ranks,),
            CallWork(*kind, *rooted),
            time_ps,
        )

    def pattern_ps(self, pattern: MessagePattern) -> int:
        """Return the time of a group of messages that is an operation [ps]."""
        return (
            pattern.times * self.kernel(self._request(self.setup, pattern)).time_ps
        )

    def other_ps(self, messages: Sequence[tuple[int, int, int]]) -> int:
        """Return the time of other messages (source, target, bytes) as one launch [ps]."""
        work = LaunchWork(tuple(sorted(messages)))
        return JointTimes(self.setup, self).isolated_ps(
            CallBundle((self.ranks,), work)
        )

    def gap_ps(self, *, graph: bool) -> int:
        """Return the time of a launch beside its kernels [ps]."""
        return overhead_ps(self.host, Launch(graph=graph))

    def issue_ps(self, calls: Sequence[NcclCall], gpus: int, channels: int) -> int:
        """Return the time of a host thread for a group on `gpus` GPUs [ps]; `calls` is the part of one GPU."""
        launch = Launch(gpus_per_thread=gpus)
        if not any(call.bytes for call in calls):
            return empty_ps(self.host, launch)
        first = calls[0].operation
        if first not in MESSAGES:
            return period_ps(self.host, first, launch, channels)
        pattern = _guess(peers_of(calls), self.host.num_ranks)
        if pattern:
            return period_ps(self.host, pattern, launch)
        return messages_ps(self.host, gpus, gpus * len(calls))


def _guess(peers: Peers, number: int) -> str:
    """Return the operation of the messages of one rank."""
    sends = len([key for key in peers if key[0] == "send"])
    receives = len(peers) - sends
    if sends == receives == number:
        return "alltoall"
    if sends == receives == number - 1 > 1:
        return "weighted_alltoall"
    if {sends, receives} == {1, number}:
        return "gather"
    return "sendrecv" if sends == receives == 1 else ""


def copy_ps(chip: str, size: int) -> int:
    """Return the time in which a GPU moves bytes through its memory [ps]."""
    gpu = GPUS.get(chip)
    if gpu is None or size == 0:
        return 0
    rate = parse_rate(str(gpu.figures["memory_rate"].value)).bytes_per_s
    return round(
        size / (rate * float(str(gpu.figures["memory_efficiency"].value))) * 1e12
    )
