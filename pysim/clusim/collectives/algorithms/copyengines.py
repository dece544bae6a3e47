"""Transfers without CTAs: a put by a copy engine or NIC, messages around a ring, and NCCL's all-gather and all-to-all.

**Hardware**: ``ncclPutSignal`` (2.29) writes to a window of another rank, over NVLink by a copy engine
(``src/rma/rma_ce.cc``), between nodes by the RMA proxy (``rma_proxy.cc``). NCCL's collectives by copy engines (2.28,
``src/ce_coll.cc``) synchronise the ranks by flags, copy a block to each peer, side by side, and synchronise again.
**Model**: per pair of ranks a program without SM and without a CTA's rate writes the block in pieces as fast as wires
allow. The receiver's memory has room for the pieces of a block, so that no sender waits for it; a signal follows the
last piece. **Not modelled**: collectives over several nodes, which are refused; the number of copy engines; the
interleaving of copies of 512 MiB and more; commands of streams and their launch; the acknowledgement for which a copy
engine waits before a signal. **Parameters**: the protocol ``direct``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from clusim.base.errors import InputError
from clusim.collectives.algorithms import loadstore
from clusim.collectives.entry import algorithm
from clusim.schedule.collective_writer import CollectiveWriter, Part, ProgramFields
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import MAX_SLOTS, Shape
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

PIECES = MAX_SLOTS // 2
"""Most pieces of a copy."""


LEAST_PIECE = 64 << 10
"""Least piece of a copy [bytes]."""


def _free(name: str) -> ProgramFields:
    """Return the fields of a program without a CTA."""
    fields = {**loadstore.FREE, "name": name}
    return cast(ProgramFields, fields)


def engine_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return a shape with one chunk for a complete block, in pieces that fit the FIFO."""
    chunk = max(16, -(-call.bytes // 16) * 16)
    return Shape(chunk, PIECES, MAX_SLOTS, 1, min(chunk, LEAST_PIECE))


def _one(call_bytes: int, num_ranks: int) -> int:
    """Return the channels of a copy, which needs a single one."""
    return 1


_copies = partial(
    algorithm,
    shape=engine_shape,
    blocks=_one,
    many_peers=True,
    protocols=("simple",),
)


@_copies("send", "put")
def write_put(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write a message from position 0 into the memory of position 1, where no CTA receives it."""
    writer.shape = engine_shape(writer.call, fabric)
    for part in writer.parts():
        _put(writer, part, (0, 1))


@_copies("sendrecv", "copy-engines")
def write_sendrecv(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write everybody's message into the memory of the next position."""
    _check_reach(writer, fabric)
    writer.shape = engine_shape(writer.call, fabric)
    for part in writer.parts():
        for position in range(writer.size):
            _put(writer, part, (position, (position + 1) % writer.size))


def _put(writer: CollectiveWriter, part: Part, ends: tuple[int, int]) -> None:
    """Write a message between two positions, and its arrival in memory."""
    pipe = writer.connect(*ends, part.channel, slots=MAX_SLOTS)
    writer.program(ends[0], part, [Prim("send", send=0)], [pipe], **_free("put"))
    writer.program(
        ends[1], part, [Prim("recv", recv=0)], [pipe], **_free("put/memory")
    )


def write_signal(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write a flag from position 0 to the memory of position 1."""
    flag = writer.connect(0, 1, 0, kind="flag", protocol="direct")
    prims = Prim("signal", send=0, sync=True), Prim("waitSignal", recv=0, sync=True)
    for position, prim in enumerate(prims):
        writer.program(position, Part(0, 0, 0), [prim], [flag], **_free("signal"))


@_copies("all_gather", "copy-engines")
def write_all_gather(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-gather by copies: all ready, each rank's block to each, all done."""
    _check_reach(writer, fabric)
    _write(writer, exchange=False)


@_copies("alltoall", "copy-engines")
def write_alltoall(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write all-to-all by copies: all ready, a block to each rank, all done."""
    _check_reach(writer, fabric)
    _write(writer, exchange=True)


def _check_reach(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Raise `InputError` if ranks are on several nodes, whose memory copy engines cannot address."""
    if fabric is None:
        return
    arrays = arrays_of(fabric)
    nodes = len({arrays.zone_of(rank) for rank in writer.call.ranks})
    if nodes > 1:
        raise InputError(
            f"copy-engines: {nodes} nodes; copy engines reach GPUs of a node or NVLink rack only, use direct or ring"
        )


def _write(writer: CollectiveWriter, *, exchange: bool) -> None:
    """Write the programs; a copy moves the block of its sender, or of its receiver if `exchange`."""
    writer.shape = engine_shape(writer.call, None)
    for part in writer.parts(blocked=True):
        copies = _Copies(writer, part)
        for position in range(writer.size):
            copies.write(position, exchange=exchange)


Flags = dict[tuple[int, int], int]


class _Copies:
    """The copies of one part of the blocks, and their flags: between ranks, and of a rank to its copies and back."""

    def __init__(self, writer: CollectiveWriter, part: Part) -> None:
        self.writer, self.part = writer, part
        everybody = range(writer.size)
        pairs = [(a, b) for a in everybody for b in everybody]
        self.ready = {(a, b): self._flag(a, b) for a, b in pairs if a != b}
        self.done = {(a, b): self._flag(a, b, "simple") for a, b in pairs if a != b}
        self.begun = {(a, hop): self._flag(a, a) for a, hop in pairs}
        self.over = {(a, hop): self._flag(a, a) for a, hop in pairs}

    def _flag(self, src: int, dst: int, protocol: str = "direct") -> int:
        return self.writer.connect(
            src, dst, self.part.channel, kind="flag", protocol=protocol
        )

    def write(self, position: int, *, exchange: bool) -> None:
        """Write the copies of a rank between two barriers, and their arrivals."""
        size = self.writer.size
        begun, over = (
            [flags[position, hop] for hop in range(size)]
            for flags in (self.begun, self.over)
        )
        self._sync(position, self.ready, [], begun)
        for hop in range(size):
            peer = (position + hop) % size
            pipes, copy = [begun[hop], over[hop]], Prim("copy", coef=1)
            if hop:
                fields: dict[str, Any] = {"slots": MAX_SLOTS, "protocol": "direct"}
                data = self.writer.connect(
                    position, peer, self.part.channel, **fields
                )
                pipes.append(data)
                copy = Prim("send", send=2, base=hop if exchange else 0, coef=1)
                arrive = Prim(
                    "recv",
                    0,
                    base=0 if exchange else -hop,
                    coef=1,
                    dst_base=-hop,
                    dst_coef=1,
                )
                self._run(peer, self.part, [arrive], [data])
            prims = [Prim("waitSignal", recv=0, sync=True), copy]
            self._run(
                position,
                self.part,
                [*prims, Prim("signal", send=1, sync=True)],
                pipes,
            )
        self._sync(position, self.done, over, [])

    def _sync(
        self, position: int, flags: Flags, after: list[int], begin: list[int]
    ) -> None:
        """Write a barrier of a rank: after copies that signal `after`, before copies that wait for `begin`."""
        size = self.writer.size
        sent = [flags[position, (position + hop) % size] for hop in range(1, size)]
        waits = [flags[(position - hop) % size, position] for hop in range(1, size)]
        steps = [("waitSignal", pipe) for pipe in after] + [
            ("signal", pipe) for pipe in sent
        ]
        steps += [("waitSignal", pipe) for pipe in waits] + [
            ("signal", pipe) for pipe in begin
        ]
        prims = [
            Prim(op, send=index, sync=True)
            if op == "signal"
            else Prim(op, recv=index, sync=True)
            for index, (op, _) in enumerate(steps)
        ]
        self._run(
            position,
            self.part._replace(length=0),
            prims,
            [pipe for _, pipe in steps],
        )

    def _run(
        self, position: int, part: Part, prims: list[Prim], pipes: list[int]
    ) -> None:
        fields: ProgramFields = {**_free("copy"), "mode": "blocked"}
        self.writer.add_rotated(position, part, prims, pipes, **fields)
