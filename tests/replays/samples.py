"""Logs as NCCL writes them, made here: what a job of one machine says with INIT, GRAPH, TUNING and COLL."""

from __future__ import annotations

import random
from collections.abc import Sequence

H100_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
TYPES = {"float32": 7, "float16": 6, "bfloat16": 9, "uint8": 1}


class LogWriter:
    """Writes the log of ranks on one host, every line with the head its release gives it."""

    def __init__(self, ranks: int = 8, *, host: str = "nodea", release: str = "2.27.3") -> None:
        self.ranks, self.host = ranks, host
        self.lines = [f"{self.head(0)} NCCL version {release}+cuda12.6"]
        self.calls: list[tuple[str, int, int]] = []
        self._op_count: dict[int, int] = {}

    def head(self, rank: int) -> str:
        return f"{self.host}:{4000 + rank}:{4100 + rank} [{rank}] NCCL INFO"

    def say(self, rank: int, text: str) -> None:
        self.lines.append(f"{self.head(rank)} {text}")

    def init(
        self,
        comm: int = 0,
        *,
        members: Sequence[int] | None = None,
        rings: Sequence[Sequence[int]] = (),
        trees: Sequence[Sequence[int]] = (),
        buses: Sequence[int] = H100_BUSES,
    ) -> None:
        """Write a communicator; `trees` are the parents of its ranks."""
        members = list(range(self.ranks)) if members is None else list(members)
        n = len(members)
        for rank, own in enumerate(members):
            self.say(
                own,
                f"ncclCommInitRankConfig comm {self.pointer(comm, own)} rank {rank} nranks {n} cudaDev {own}"
                f" nvmlDev {own} busId {buses[own]:x}000 commId 0x{0xABC0 + comm:x} - Init START",
            )
        for channel, ring in enumerate(rings):
            order = " ".join(f"{rank:3}" for rank in ring)
            self.say(members[0], f"Channel {channel:02}/{len(rings):02} : {order}")
        for rank, own in enumerate(members if trees else ()):
            parts = []
            for channel, parent in enumerate(trees):
                down = [r for r, up in enumerate(parent) if up == rank]
                down = [*down, -1, -1, -1][:3]
                parts.append(f"[{channel}] {'/'.join(map(str, down))}->{rank}->{parent[rank]}")
            self.say(own, f"Trees {' '.join(parts)}")
        for rank, own in enumerate(members):
            if rings:
                self.say(
                    own,
                    f"{len(rings)} coll channels, {len(rings)} collnet channels, 16 nvls channels,"
                    " 32 p2p channels, 32 p2p channels per peer",
                )
            self.say(
                own,
                f"ncclCommInitRankConfig comm {self.pointer(comm, own)} rank {rank} nranks {n} cudaDev {own}"
                f" nvmlDev {own} busId {buses[own]:x}000 commId 0x{0xABC0 + comm:x} - Init COMPLETE",
            )

    @staticmethod
    def pointer(comm: int, rank: int) -> str:
        return f"0x5500{comm:02x}{rank:04x}00"

    def call(
        self,
        name: str,
        count: int,
        *,
        comm: int = 0,
        members: Sequence[int] | None = None,
        dtype: str = "float32",
        op: int = 0,
        root: int = 0,
        tuned: str = "",
        stream: int = 1,
    ) -> None:
        """Write a collective of all members; `tuned` is what rank 0's tuner said."""
        members = list(range(self.ranks)) if members is None else list(members)
        number = self._op_count[comm] = self._op_count.get(comm, -1) + 1
        for own in members:
            self.say(
                own,
                self._line(name, number, count, dtype, op, root, comm, own, len(members), stream),
            )
            if tuned and own == members[0]:
                self.say(own, f"{name}: {tuned}")

    def exchange(self, count: int, distance: int = 1, *, comm: int = 0) -> None:
        """Write a group in which every rank sends to the next one and receives from the one before."""
        number = self._op_count[comm] = self._op_count.get(comm, -1) + 1
        n = self.ranks
        for own in range(n):
            for name, peer in (("Send", (own + distance) % n), ("Recv", (own - distance) % n)):
                self.say(own, self._line(name, number, count, "uint8", 0, peer, comm, own, n, 1))

    def message(self, name: str, own: int, peer: int, size: int) -> None:
        """Write one end of a message of the first launch, ``Send`` or ``Recv``, in bytes."""
        self.say(own, self._line(name, 0, size, "uint8", 0, peer, 0, own, self.ranks, 1))

    def one_sided(self, name: str, own: int, peer: int = 0, count: int = 0) -> None:
        """Write a put (of bytes), signal or wait of a rank, with the format and arguments of NCCL 2.30.7."""
        local = f"0x7f00{own:02x}000000" if name == "PutSignal" else "(nil)"
        kind = 2 if name == "WaitSignal" else 0
        self.say(
            own,
            f"{name}: opCount {self._op_count.get(0, 0):x} sendbuff {local} recvbuff (nil) count {count}"
            f" datatype {kind} op 0 root {peer} comm {self.pointer(0, own)} [nranks={self.ranks}] stream 0x9901",
        )

    def _line(
        self, name: str, number: int, count: int, dtype: str, op: int, root: int, comm: int, own: int, n: int,
        stream: int,
    ) -> str:  # fmt: skip
        return (
            f"{name}: opCount {number:x} sendbuff 0x7f00{own:02x}000000 recvbuff 0x7f10{own:02x}000000 count {count}"
            f" datatype {TYPES[dtype]} op {op} root {root} comm {self.pointer(comm, own)} [nranks={n}]"
            f" stream 0x{0x9900 + stream:x}"
        )

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def job(ranks: int = 8) -> LogWriter:
    """Return the log of a small job on eight H100: two rings, a tree each, five collectives and an exchange."""
    log = LogWriter(ranks)
    order = list(range(ranks))
    back = [0, *reversed(order[1:])]
    chain = [-1, *order[:-1]]
    log.init(rings=[order, back], trees=[chain, chain])
    log.call(
        "AllReduce", 1 << 20, tuned="4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"
    )
    log.call(
        "AllReduce", 1 << 20, tuned="4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}"
    )
    log.call("AllGather", 65536, dtype="bfloat16")
    log.call("ReduceScatter", 65536, dtype="bfloat16")
    log.call("Broadcast", 4096, root=3, dtype="float16")
    log.exchange(1 << 16)
    return log


def damaged(lines: Sequence[str], seed: int, *, how: str) -> list[str]:
    """Return lines that were dropped, shuffled between ranks, spliced or cut."""
    draw = random.Random(seed)
    lines = list(lines)
    if how == "dropped":
        return [line for line in lines if draw.random() > 0.2]
    if how == "shuffled":
        order = sorted(range(len(lines)), key=lambda i: i + draw.uniform(0, 12))
        return [lines[i] for i in order]
    for _ in range(max(1, len(lines) // 10)):
        at = draw.randrange(len(lines))
        cut = draw.randrange(len(lines[at]) + 1)
        if how == "cut":
            lines[at] = lines[at][:cut]
        elif at + 1 < len(lines):
            lines[at] = lines[at][:cut] + lines.pop(at + 1)
    return lines
