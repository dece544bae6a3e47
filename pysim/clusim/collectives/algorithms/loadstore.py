"""Kernels that load from and store to the memory of other GPUs between barriers, without staging buffers.

**Hardware**: the all-reduce of vLLM and SGLang (``cross_device_reduce_1stage`` and ``_2stage``) and NCCL's kernels for
symmetric memory (``ReduceScatter_LD``, ``AllGather_ST``, ``AllReduce_RSxLD_AGxST``). Each CTA synchronises with the
CTAs of the same number on all ranks at a barrier: a flag to and from every peer. Then 512 threads load 16 bytes each
from every rank at once, add them, store the sum, and continue with the next pass. Stores to others are fenced before
the last barrier.
**Model**: per rank and channel a program of loads and stores, and one for each barrier, which signals it to begin. A
load is a flag to its owner and the data's return path; answers of the owner's memory need no CTA. A CTA has one pass
in flight from every rank; warps advance independently, so that the arrival of a piece starts the next request.
**Not modelled**: packets of flags and requests (a request is as long as the acknowledgement of the store that
replaces its answer). **Parameters**: the protocol ``direct``, and the fence of ``simple``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from clusim.base.records import dataclass
from clusim.collectives.algorithms.direct import reduce_arrivals, reduce_in_order
from clusim.collectives.entry import algorithm
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import Buffer, CollectiveCall, Mode, Prim
from clusim.schedule.shapes import MAX_SLOTS, Shape
from clusim.topology.model import Fabric

PASS_BYTES = 8192
"""Bytes that 512 threads load from one rank at once, 16 bytes each."""

PIECES = 4
"""Pieces of a pass: the number of warp groups that advance independently."""

MOST_LOOPS = MAX_SLOTS
"""Most loops before pieces become larger: a barrier signals all loops at once."""

MOST_BLOCKS = 36
"""Most CTAs of the kernels of vLLM and SGLang."""

FREE: dict[str, int] = {"sm": 0, "fixed_div": 1 << 20, "warps": 1 << 10}
"""Fields of programs without a CTA: memory that answers remote loads and stores."""


def blocks_of_oneshot(call_bytes: int, num_ranks: int) -> int:
    """Return the CTAs of vLLM and SGLang that have something to do: a pass each, 36 at most."""
    return max(1, min(MOST_BLOCKS, -(-call_bytes // PASS_BYTES)))


def blocks_of_twoshot(call_bytes: int, num_ranks: int) -> int:
    """Return the same where each rank has its part."""
    return blocks_of_oneshot(-(-call_bytes // num_ranks), num_ranks)


def pass_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return a shape whose chunks are pieces and whose FIFO holds one pass."""
    ranks = 1 if call.algorithm == "oneshot-pull" else len(call.ranks)
    part = -(-call.bytes // (call.channels * ranks)) + 16
    return Shape(
        max(PASS_BYTES // PIECES, -(-part // (16 * MOST_LOOPS)) * 16), slots=PIECES
    )


Pipes = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The CTAs of one number on all ranks.

    Attributes
    ----------
    nchunks : int
        Chunks of a loop: 1, or one for each rank.
    """

    writer: CollectiveWriter
    part: Part
    nchunks: int
    mode: Mode = "interleaved"

    @property
    def loops(self) -> int:
        """Return the number of loops of a program."""
        chunks = 1 if self.mode == "blocked" else self.nchunks
        return max(
            1, -(-self.part.length // (chunks * self.writer.shape.chunk_bytes))
        )

    def peers(self, position: int) -> list[int]:
        """Return all other positions, beginning with the next one."""
        return [
            (position + hop) % self.writer.size for hop in range(1, self.writer.size)
        ]

    def flags(self, protocol: str = "direct") -> Pipes:
        """Return a flag from every position to every other."""
        return self._connect(protocol=protocol, kind="flag", slots=MAX_SLOTS)

    def data(self) -> Pipes:
        """Return a connection for data from every position to every other."""
        return self._connect(protocol="direct")

    def _connect(self, **fields: Any) -> Pipes:
        writer, every = self.writer, range(self.writer.size)
        pairs = [(a, b) for a in every for b in every if a != b]
        return {
            (a, b): writer.connect(a, b, self.part.channel, **fields)
            for a, b in pairs
        }

    def self_flags(self) -> list[int]:
        """Return a flag from every position to itself, which may be raised ahead of time."""
        fields: dict[str, Any] = {
            "kind": "flag",
            "protocol": "direct",
            "slots": MAX_SLOTS,
        }
        every = range(self.writer.size)
        return [
            self.writer.connect(p, p, self.part.channel, **fields) for p in every
        ]

    def run(
        self,
        position: int,
        prims: Sequence[Prim],
        pipes: Sequence[int],
        name: str,
        **more: int,
    ) -> None:
        """Add a program at a position; its primitives share one fixed cost."""
        fields: dict[str, Any] = {
            "fixed_div": len(prims),
            "rotation": position,
            **more,
        }
        part = self.part._replace(length=fields.pop("length", self.part.length))
        fields.update(nchunks=self.nchunks, mode=self.mode, protocol="direct")
        self.writer.program(
            position, part, prims, pipes, name=f"loadstore/{name}", **fields
        )

    def barrier(
        self,
        flags: Pipes,
        *,
        after: Sequence[int] = (),
        go: Sequence[int] = (),
        ask: Pipes | None = None,
    ) -> None:
        """Write a barrier of all ranks: after loops that signal `after`, before loops of `go` or answers to `ask`."""
        for position in range(self.writer.size):
            peers = self.peers(position)
            sent = [flags[position, peer] for peer in peers]
            waits = [flags[peer, position] for peer in peers]
            pipes = [*sent, *waits]
            prims = [Prim("signal", send=i, sync=True) for i in range(len(sent))]
            prims += [
                Prim("waitSignal", recv=len(sent) + i, sync=True)
                for i in range(len(waits))
            ]
            if after:
                prims.insert(
                    0,
                    Prim(
                        "waitSignal", recv=len(pipes), sync=True, repeat=self.loops
                    ),
                )
                pipes.append(after[position])
            begun = [go[position]] if go else []
            begun += [ask[position, peer] for peer in peers] if ask else []
            for flag in begun:
                prims.append(
                    Prim("signal", send=len(pipes), sync=True, repeat=self.loops)
                )
                pipes.append(flag)
            self.run(position, prims, pipes, "barrier", sm=0, length=0)

    def answers(
        self, ask: Pipes, data: Pipes, *, own_chunk: bool, src: Buffer = "input"
    ) -> None:
        """Write the answers of every memory to `ask`: that of its rank or, without `own_chunk`, the requester's."""
        for position in range(self.writer.size):
            prims: list[Prim] = []
            pipes: list[int] = []
            for hop, peer in enumerate(self.peers(position), 1):
                base = 0 if own_chunk else hop
                prims.append(Prim("waitSignal", recv=len(pipes), sync=True))
                prims.append(
                    Prim("send", send=len(pipes) + 1, base=base, coef=1, src=src)
                )
                pipes += [ask[peer, position], data[position, peer]]
            self.run(position, prims, pipes, "memory", **FREE)

    def arrivals(self, data: Pipes) -> None:
        """Write the arrival in every memory of the chunks that others store to it."""
        size = self.writer.size
        prims = [
            Prim("recv", recv=hop - 1, base=-hop, coef=1) for hop in range(1, size)
        ]
        for position in range(size):
            pipes = [
                data[(position - hop) % size, position] for hop in range(1, size)
            ]
            self.run(position, prims, pipes, "memory", **FREE)


def _kernels(
    writer: CollectiveWriter, nchunks: int, mode: Mode = "interleaved"
) -> list[_Kernel]:
    """Return the CTAs of every number; chunks are large enough for a barrier to signal all loops."""
    parts = writer.parts(blocked=mode == "blocked")
    chunks = 1 if mode == "blocked" else nchunks
    longest = max((part.length for part in parts), default=0)
    min_chunk = -(-longest // (16 * chunks * MOST_LOOPS)) * 16
    writer.shape = replace(
        writer.shape, chunk_bytes=max(writer.shape.chunk_bytes, min_chunk)
    )
    return [_Kernel(writer, part, nchunks, mode) for part in parts]


_loads = partial(
    algorithm,
    shape=pass_shape,
    channels="twoshot",
    many_peers=True,
    protocols=("simple",),
)


@_loads("allreduce", "oneshot-pull", blocks=blocks_of_oneshot, prelude_ps=0)
def write_oneshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce in which every rank loads everything of everybody: barrier, loads, barrier."""
    size = writer.size
    for kernel in _kernels(writer, 1):
        ask, data, done = kernel.flags(), kernel.data(), kernel.self_flags()
        kernel.barrier(kernel.flags(), ask=ask)
        kernel.answers(ask, data, own_chunk=True)
        for position in range(size):
            prims = reduce_in_order(list(range(size)), position)
            prims.append(Prim("signal", send=size - 1, sync=True))
            pipes = [
                data[peer, position] for peer in range(size) if peer != position
            ]
            kernel.run(position, prims, [*pipes, done[position]], "oneshot")
        kernel.barrier(kernel.flags(), after=done)


def _reduce(kernel: _Kernel, ask: Pipes, done: Sequence[int], out: Pipes) -> None:
    """Write that every rank adds up its chunk of everybody, and stores the sum to all over `out`, if there are any."""
    size = kernel.writer.size
    data = kernel.data()
    kernel.answers(ask, data, own_chunk=False)
    for position in range(size):
        prims = reduce_arrivals(size - 1, 0)
        pipes = [data[peer, position] for peer in kernel.peers(position)]
        for peer in kernel.peers(position) if out else ():
            prims.append(Prim("send", send=len(pipes), coef=1, src="output"))
            pipes.append(out[position, peer])
        prims.append(Prim("signal", send=len(pipes), sync=True))
        kernel.run(position, prims, [*pipes, done[position]], "reduce")


@_loads("allreduce", "twoshot-pull", blocks=blocks_of_twoshot, prelude_ps=0)
def write_twoshot(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce by loads: barrier, each rank's chunk, fenced barrier, all other chunks."""
    for kernel in _kernels(writer, writer.size):
        first, second, data, done = (
            kernel.flags(),
            kernel.flags(),
            kernel.data(),
            kernel.self_flags(),
        )
        kernel.barrier(kernel.flags(), ask=first)
        _reduce(kernel, first, done, {})
        kernel.barrier(kernel.flags("simple"), after=done, ask=second)
        kernel.answers(second, data, own_chunk=True, src="output")
        for position in range(writer.size):
            peers = kernel.peers(position)
            prims = [
                Prim("recvCopy", recv=i, base=1 + i, coef=1)
                for i in range(len(peers))
            ]
            kernel.run(
                position,
                prims,
                [data[peer, position] for peer in peers],
                "gather",
                sm=0,
            )


@_loads("allreduce", "ld-st")
def write_allreduce(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-reduce by loads and stores: barrier, each rank's chunk, stored to all, fenced barrier."""
    for kernel in _kernels(writer, writer.size):
        ask, done, out = kernel.flags(), kernel.self_flags(), kernel.data()
        kernel.barrier(kernel.flags(), ask=ask)
        _reduce(kernel, ask, done, out)
        kernel.arrivals(out)
        kernel.barrier(kernel.flags("simple"), after=done)


@_loads("reduce_scatter", "ld")
def write_reduce_scatter(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write reduce-scatter by loads: barrier, each rank's block, barrier."""
    for kernel in _kernels(writer, writer.size, "blocked"):
        ask, done = kernel.flags(), kernel.self_flags()
        kernel.barrier(kernel.flags(), ask=ask)
        _reduce(kernel, ask, done, {})
        kernel.barrier(kernel.flags(), after=done)


@_loads("all_gather", "st")
def write_all_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-gather by stores: barrier, each rank's block to all, fenced barrier."""
    size = writer.size
    for kernel in _kernels(writer, size, "blocked"):
        go, done, out = kernel.self_flags(), kernel.self_flags(), kernel.data()
        kernel.barrier(kernel.flags(), go=go)
        kernel.arrivals(out)
        prims = [
            Prim("waitSignal", recv=0, sync=True),
            Prim("copySend", send=1, coef=1),
        ]
        prims += [Prim("send", send=i, coef=1) for i in range(2, size)]
        prims.append(Prim("signal", send=size, sync=True))
        for position in range(size):
            pipes = [out[position, peer] for peer in kernel.peers(position)]
            kernel.run(
                position, prims, [go[position], *pipes, done[position]], "store"
            )
        kernel.barrier(kernel.flags("simple"), after=done)
