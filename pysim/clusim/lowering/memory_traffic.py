"""Memory traffic of programs by primitive: the cost of a byte on the wires for the memory of each GPU.

**Hardware** A primitive reads its operand from the user's buffer, stores its result there, or both: NCCL's
``recvReduceSend`` reads once, ``recvCopySend`` stores once, ``recvReduceCopySend`` does both; a load over a multimem
connection reads the memory of every member, a store writes it. Data for another rank pass a FIFO in the memory of the
GPU that receives (push) or sends (pull), and with a NIC in both. A GPU's L2 is the only cache in front of its memory
and holds the lines that peers and NICs write. **Model** Reads and stores of buffers are traffic of memory. A FIFO is
written once per byte and read soon after, from L2. Its lines stay in L2 until the next round of the FIFO if
the FIFOs of a call fit; of larger FIFOs the part that exceeds L2 is written back to memory before. The bytes
of all programs of an endpoint, divided by the bytes of its packets, are the share that each packet charges
(contract, section 8). **Assumed** L2 holds all that fits, as an ideal cyclic replacement does: measurements
of the replacement are missing; an LRU cache would write back every FIFO above its size, and no FIFO below.
**Not modelled** Shares by call: in a run with several kinds of collectives a packet charges their mean; user
buffers that are still in L2; FIFOs in host memory; copies by programs of ranks without packets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE, ConnKind, Op
from clusim.engine.image import OPCODES
from clusim.lowering.hops import CarriedTraffic, protocol_of
from clusim.lowering.links import LinkLowering
from clusim.lowering.proxies import slices_of
from clusim.schedule.ir import ABSENT, Instance, Prim
from clusim.schedule.iteration import prim_totals

ONE = 256
"""A share of one byte per byte, in the unit of the image."""

MOST_SHARE = 256 * ONE
"""Largest share that an image may contain."""

Access = tuple[str, str, int, int, int, int]
"""``read`` or ``store``, the buffer, and base, coefficient, step and number of its chunks."""


def user_accesses(prim: Prim) -> list[Access]:
    """Return the reads and stores of its rank's user buffers by a primitive.

    ``scratch`` is a buffer of NCCL or registers, and a `sendMore` sends data that its CTA holds.
    """
    op, flags = prim.op, OPCODES[prim.op].flags
    source = prim.base, prim.coef, prim.step, prim.repeat
    target = source
    if prim.dst_base is not None:
        target = prim.dst_base, prim.dst_coef, prim.dst_step, prim.repeat
    result: list[Access] = []
    if prim.sync or op in ("sendMore", "signal", "waitSignal"):
        return result
    loads = flags & Op.REDUCE or (flags & Op.RECV and "Reduce" not in op)
    if not loads and prim.src != "scratch":
        result.append(("read", prim.src, *source))
    if prim.dst != "scratch":
        if op == "reduce":
            result.append(("read", prim.dst, *target))
        if op not in ("send", "recvReduceSend") and not flags & Op.MCAST:
            result.append(("store", prim.dst, *target))
    return result


def fills_scratch(prim: Prim) -> bool:
    """Return True if a primitive stores its result in a buffer of NCCL that others read."""
    stores = prim.op in ("copy", "copySend", "recv", "recvCopy", "recvCopySend")
    return stores and prim.dst == "scratch" and not prim.sync


_Sums = tuple[int, int, list[tuple[Prim, int]]]


class MemoryTraffic:
    """Bytes of memory and of packets of every endpoint, summed over the programs of a schedule.

    Attributes
    ----------
    needed, moved : array
        Bytes of memory traffic, and payload that packets carry from, to and out of the endpoint [bytes].
    """

    def __init__(
        self, links: LinkLowering, traffic: Sequence[CarriedTraffic]
    ) -> None:
        self.links, self.schedule, self.arrays = links, links.schedule, links.arrays
        count = len(self.arrays.endpoints)
        self.needed, self.moved = np.zeros(count), np.zeros(count)
        self._buffers: dict[tuple[int, int], list[float]] = defaultdict(
            lambda: [0.0, 0.0]
        )
        self._known: dict[tuple[object, ...], _Sums] = {}
        for leg, item in zip(links.leg_of, traffic, strict=True):
            if leg.kind in (ConnKind.WRITE, ConnKind.READ, ConnKind.AGGREGATION):
                self.moved[leg.src] += item.wire_bytes
                self.moved[leg.dst] += item.wire_bytes
        for instance in self.schedule.instances:
            self._add(instance)

    def shares_256(self, l2_bytes: Array) -> Array:
        """Return the memory bytes per byte of payload of every endpoint [1/256]; without programs 1."""
        needed = self.needed.copy()
        for (_, end), (size, stored) in self._buffers.items():
            needed[end] += stored * max(0.0, 1 - int(l2_bytes[end]) / max(1.0, size))
        share = np.ceil(ONE * needed / np.maximum(1, self.moved))
        return np.where(self.moved > 0, np.minimum(share, MOST_SHARE), ONE).astype(
            np.uint32
        )

    def _add(self, instance: Instance) -> None:
        """Add the traffic of a program."""
        endpoint = int(self.arrays.rank_endpoint[instance.rank])
        accessed_bytes, stored_bytes, sends = self._sums(instance)
        self.needed[endpoint] += accessed_bytes
        if stored_bytes:
            slots = max(
                self.schedule.connections[number].slots
                for number in instance.connections
            )
            self._add_buffer(
                instance, endpoint, stored_bytes, slots * len(instance.connections)
            )
        for prim, size_bytes in sends:
            number = instance.connections[prim.send]
            kind = self.schedule.connections[number].kind
            if kind == "multimem":
                self._add_multimem(instance, prim, size_bytes)
            elif kind == "data":
                self._add_fifos(instance, number, size_bytes)

    def _sums(self, instance: Instance) -> _Sums:
        """Return the bytes of a program's primitives: user buffers, stores to scratch, and each that sends.

        A chunk that several primitives of a loop use is read and stored once: L2 holds it in between.
        """
        template = self.schedule.templates[instance.template]
        shape = (
            instance.length,
            instance.chunk_bytes,
            instance.stride,
            instance.limit,
        )
        # Interleaved chunks of equal ranges have equal sizes at any offset.
        offset = 0 if template.mode == "interleaved" else instance.offset
        key = instance.template, offset, instance.rotation, *shape
        if key not in self._known:
            prims = [prim for prim in template.prims if not prim.sync]
            sizes = [prim_totals(instance, template, prim)[0] for prim in prims]
            accessed: dict[Access, int] = {}
            for prim, size in zip(prims, sizes, strict=True):
                accessed |= dict.fromkeys(user_accesses(prim), size)
            stored = sum(
                size
                for p, size in zip(prims, sizes, strict=True)
                if fills_scratch(p)
            )
            sends = [
                (p, size)
                for p, size in zip(prims, sizes, strict=True)
                if p.send != ABSENT
            ]
            self._known[key] = sum(accessed.values()), stored, sends
        return self._known[key]

    def _add_multimem(self, instance: Instance, prim: Prim, size_bytes: int) -> None:
        """Add loads from and stores to the memory of all members."""
        endpoint = int(self.arrays.rank_endpoint[instance.rank])
        connection = self.schedule.connections[instance.connections[prim.send]]
        members = self.arrays.rank_endpoint[list(connection.members)]
        for flag, buffer in ((Op.REDUCE, prim.src), (Op.MCAST, prim.dst)):
            if not OPCODES[prim.op].flags & flag:
                continue
            self.moved[members] += size_bytes
            if buffer != "scratch":
                self.needed[members] += size_bytes
            elif flag == Op.MCAST:
                slots = 0 if prim.src == "scratch" == prim.dst else connection.slots
                for member in members.tolist():
                    self._add_buffer(instance, member, size_bytes, slots)
        self.moved[endpoint] += size_bytes

    def _add_fifos(self, instance: Instance, number: int, size_bytes: int) -> None:
        """Add the FIFOs of a connection, in the memory of the ends that have one."""
        connection, leg = (
            self.schedule.connections[number],
            self.links.leg_of[number],
        )
        if connection.protocol == "direct" or leg.stage != NONE:
            return
        expand_120 = protocol_of(self.arrays, connection.protocol).expand_120
        ends = [leg.src if leg.kind == ConnKind.READ else leg.dst]
        if number in self.links.links:
            ends = [
                int(self.arrays.rank_endpoint[end])
                for end in (connection.src, connection.dst)
            ]
        for end in ends:
            self._add_buffer(
                instance, end, size_bytes * expand_120 / 120, connection.slots
            )

    def _add_buffer(
        self, instance: Instance, end: int, stored_bytes: float, slots: int
    ) -> None:
        """Add stores to a buffer of NCCL with a number of slots, in the memory of an endpoint."""
        _, slice_bytes = slices_of(
            instance, self.schedule.templates[instance.template]
        )
        size_bytes = slots // max(1, instance.slots_per_slice) * slice_bytes
        buffer = self._buffers[self.schedule.tasks[instance.task].call, end]
        buffer[0] += min(size_bytes, stored_bytes)
        buffer[1] += stored_bytes
