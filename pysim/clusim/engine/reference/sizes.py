"""Limits of an image's counts and sizes, checked before a run (section 1)."""

from __future__ import annotations

from clusim.base.errors import ScheduleError
from clusim.engine.abi import (
    FaultKind,
    Op,
)
from clusim.engine.image import OP_FLAGS
from clusim.engine.ranges import (
    OFFSET_END_BYTES,
    PACKETS_END,
    SLICES_END,
    WIRE_BYTES_END,
    packets_refused,
)
from clusim.engine.reference.instances import loop_count
from clusim.engine.reference.model import Model
from clusim.engine.reference.specs import (
    ConnSpec,
    InstanceSpec,
    PrimSpec,
    SourceSpec,
    ceil_div,
    round_up,
)

_FLAGS = OP_FLAGS.tolist()
_FLAG_CONN = 2


def _refuse(table: str, row: int, problem: str) -> None:
    raise ScheduleError(f"image: {table}[{row}]: {problem}")


def check_sizes(model: Model) -> None:
    """Raise `ScheduleError` for an image with too many packets, bytes or slices."""
    data = [
        (i, conn) for i, conn in enumerate(model.conns) if conn.kind != _FLAG_CONN
    ]
    for i, conn in data:
        _check_burst(model, "conns", i, conn)
    for i, source in enumerate(model.sources):
        _check_burst(model, "sources", i, source)
    _check_rates(model)
    for source in model.sources:
        for message in range(source.msg_lo, source.msg_hi):
            packet_bytes = source.packet_bytes * source.burst
            why = packets_refused(model.messages[message].bytes, packet_bytes)
            if why:
                _refuse("messages", message, why)
    for i, instance in enumerate(model.instances):
        _check_instance(model, i, instance)


def _check_burst(
    model: Model, table: str, row: int, flow: ConnSpec | SourceSpec
) -> None:
    full, packet_bytes = flow.packet_bytes * flow.burst, flow.packet_bytes
    for form in model.formats:
        for kind in range(len(form.header_bytes)):
            if form.wire_bytes(kind, full, packet_bytes) >= WIRE_BYTES_END:
                problem = "a burst of 2^29 bytes or more on a wire, headers included"
                _refuse(table, row, f"{problem}: a smaller burst, or larger packets")


def _check_rates(model: Model) -> None:
    """Refuse rates at which the smallest packet of a wire's format lasts less than 1 ps."""
    rates = [
        ("wires", i, wire, wire.rate_num, wire.rate_den)
        for i, wire in enumerate(model.wires)
    ]
    rates += [
        ("faults", i, model.wires[fault.index], fault.num, fault.den)
        for i, fault in enumerate(model.faults)
        if fault.kind == FaultKind.RATE
    ]
    for table, row, wire, num, den in rates:
        if wire.format.least_occupancy * den < num:
            _refuse(table, row, "a packet would last less than 1 ps; a lower rate")


def _largest_slice(spec: InstanceSpec) -> int:
    piece = min(spec.chunk_bytes, spec.length)
    even = round_up(ceil_div(piece, spec.slices), 16)
    return min(piece, max(even, spec.slice_min))


def _most_packets(model: Model, spec: InstanceSpec, prim: PrimSpec) -> int:
    flags = _FLAGS[prim.opcode]
    locals_ = [prim.recv] if flags & Op.RECV else []
    locals_ += [prim.send] if flags & ~Op.RECV else []
    most = 0
    for local in locals_:
        assert local is not None
        conn = model.conns[model.inst_conns[spec.conn_off + local]]
        if conn.kind != _FLAG_CONN:
            size = ceil_div(_largest_slice(spec) * conn.expand_120, 120)
            most = max(most, ceil_div(size, conn.packet_bytes * conn.burst))
    return most


def _check_instance(model: Model, row: int, spec: InstanceSpec) -> None:
    template = spec.template
    last = template.nchunks * (spec.stride if template.mode else spec.chunk_bytes)
    if template.mode:
        last += spec.offset + spec.length + spec.chunk_bytes
    if last >= OFFSET_END_BYTES:
        _refuse("instances", row, "chunks at or beyond 2^62 bytes")
    for prim in template.prims:
        packets = _most_packets(model, spec, prim)
        if packets >= PACKETS_END:
            _refuse("instances", row, packets_refused(packets, 1))
    per_piece = min(spec.slices, min(spec.chunk_bytes, spec.length) // 16 + 1)
    slices = max(1, loop_count(spec)) * sum(prim.repeat for prim in template.prims)
    if slices * per_piece >= SLICES_END:
        _refuse("instances", row, "2^32 slices or more; larger chunks")
