"""Small jobs that every command can take: as recordings, NCCL logs, programs of C and of PyTorch, training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from clusim.formats.recordings.model import (
    Event,
    EventKind,
    OperatorCall,
    Recording,
    TensorShape,
)
from clusim.topology import load
from clusim.workload.prices import Prices
from replays.samples import LogWriter

SYSTEM, RANKS, SIZE = "a100x4-mesh", 4, 32 << 20
"""System of all jobs, its GPUs, and the size of a call or message [bytes]."""

WIDTH = 4096
"""Rows and columns of the matrices of a kernel, bfloat16."""

BUCKETS = 3
"""All-reduces behind kernels."""

PARTS = (1 << 20, 4 << 20, 8 << 20, 16 << 20)
"""Bytes that rank r receives from each rank in the uneven all-to-all: the r-th."""

RELEASE = "2.27.3"
"""NCCL release of all jobs."""


@cache
def kernel_ps() -> int:
    """Return the time of a product of matrices [ps]."""
    matrix = TensorShape((WIDTH, WIDTH), "bfloat16", 2)
    endpoint = next(node.endpoint for node in load(SYSTEM).nodes if node.endpoint is not None)
    return Prices(endpoint).price(OperatorCall("mm", (matrix, matrix), (matrix,))).time_ps


class RankEvents:
    """Events of a rank, appended to a recording in the order of its program."""

    def __init__(self, recording: Recording, rank: int) -> None:
        self.recording, self.rank = recording, rank
        self._counts: Counter[tuple[int, ...]] = Counter()

    def _append(self, kind: EventKind, stream: str, size: int, **values: Any) -> int:
        event = Event(kind, self.rank, stream, bytes=size, **values)
        self.recording.events.append(event)
        return len(self.recording.events) - 1

    def allreduce(self, stream: str, name: str, *deps: int) -> None:
        """Append an all-reduce of all ranks in the communicator `name`."""
        group = self.recording.group(name, range(RANKS))
        self._counts[group,] += 1
        called = {"operation": "allreduce", "group": group, "sequence": self._counts[group,]}
        self._append("collective", stream, SIZE, deps=deps, **called)

    def kernel(self) -> int:
        """Append a product of matrices."""
        return self._append("compute", "kernels", 0, name="mm", duration_ps=kernel_ps())

    def message(self, source: int, target: int, *, pair: bool) -> None:
        """Append the own end of a message, in a communicator of all ranks or of the two."""
        members = (source, target) if pair else tuple(range(RANKS))
        group = self.recording.group("pair" if pair else "all", members)
        self._counts[group, source, target] += 1
        number = self._counts[group, source, target]
        kind: EventKind = "send" if self.rank == source else "recv"
        peer = members.index(target if self.rank == source else source)
        self._append(kind, "messages", SIZE, group=group, peer=peer, sequence=number)

    def exchange(self) -> None:
        """Append the messages of an uneven all-to-all, as one launch."""
        where = {"group": self.recording.group("all", range(RANKS)), "sequence": 1, "bunch": 1}
        for peer in set(range(RANKS)) - {self.rank}:
            self._append("send", "messages", PARTS[peer], peer=peer, **where)
            self._append("recv", "messages", PARTS[self.rank], peer=peer, **where)


def _one(rank: RankEvents) -> None:
    rank.allreduce("a", "first")


def _two(rank: RankEvents) -> None:
    rank.allreduce("a", "first")
    rank.allreduce("b", "second")


def _beside_kernel(rank: RankEvents) -> None:
    rank.kernel()
    _one(rank)


def _two_beside_kernel(rank: RankEvents) -> None:
    rank.kernel()
    _two(rank)


def _buckets(rank: RankEvents) -> None:
    for _ in range(BUCKETS):
        rank.allreduce("a", "first", rank.kernel())


def _chain(rank: RankEvents, *, pair: bool = False) -> None:
    if rank.rank > 0:
        rank.message(rank.rank - 1, rank.rank, pair=pair)
    if rank.rank < RANKS - 1:
        rank.message(rank.rank, rank.rank + 1, pair=pair)


def _chain_of_pairs(rank: RankEvents) -> None:
    _chain(rank, pair=True)


CASES: dict[str, Callable[[RankEvents], None]] = {
    "one call": _one,
    "two calls": _two,
    "a call beside a kernel": _beside_kernel,
    "two calls beside a kernel": _two_beside_kernel,
    "gradient buckets": _buckets,
    "chain of messages": _chain,
    "chain of pairs": _chain_of_pairs,
    "uneven all-to-all": RankEvents.exchange,
}

EQUAL = (
    "one call",
    "two calls",
    "a call beside a kernel",
    "two calls beside a kernel",
    "gradient buckets",
)
"""Jobs in which every rank does the same work."""


def recording(name: str, *, alike: bool = False) -> Recording:
    """Return a job as a recording of all ranks, or of one that represents them."""
    result = Recording("torch", name, RANKS, alike=alike)
    for rank in range(1 if alike else RANKS):
        CASES[name](RankEvents(result, rank))
    return result.finish()


def log(name: str) -> str:
    """Return a job without kernels, of calls or of one launch of messages, as a log of NCCL."""
    job, result = recording(name), LogWriter(RANKS, release=RELEASE)
    for number in range(len(job.groups)):
        result.init(number, buses=(0x0F, 0x15, 0x50, 0x53))
        if job.events[0].kind == "collective":
            result.call("AllReduce", SIZE // 4, comm=number, stream=number)
    for event in job.events:
        if event.kind != "collective":
            result.message(event.kind.capitalize(), event.rank, event.peer, event.bytes)
    return result.text()
