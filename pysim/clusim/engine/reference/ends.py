"""Conservation at the end of a run (section 12)."""

from __future__ import annotations

from clusim.base.errors import InternalError
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.wires import Wire


def check_balance(machine: Machine) -> None:
    """Raise `InternalError` unless credits add up and remaining packets have a cause.

    Accepted causes are a wire that is down, and a packet larger than the buffer it must fit in: packets that wait
    for these, directly or in a queue, stay.
    """
    packets = _packets_left(machine)
    if not may_wait(machine):
        if packets:
            raise InternalError(f"conservation: {len(packets)} packets left; there should be none")
        if any(unit.in_use_bytes or unit.operations for unit in machine.units):
            raise InternalError("conservation: a reduction unit is in use; all should be idle")
        if any(vertex.open for vertex in machine.vertices):
            raise InternalError("conservation: an aggregation is open; all should be finished")
    _check_buffers(machine, packets)


def may_wait(machine: Machine) -> bool:
    """Return True if a packet may wait for ever: wire down or buffer too small."""
    return any(wire.down or _is_stuck(wire, machine) for wire in machine.wires)


def _is_stuck(wire: Wire, machine: Machine) -> bool:
    if wire.pause is not None:
        return False
    heads = [queue[0] for queue in wire.queues.values() if queue]
    room = wire.spec.buffer_bytes
    return any(head.wire_bytes(machine.model, wire.index) > room for head in heads)


def _packets_left(machine: Machine) -> list[Packet]:
    left = [packet for wire in machine.wires for queue in wire.queues.values() for packet in queue]
    left += [packet for unit in machine.units for packet in unit.waiting]
    return left + [packet for vertex in machine.vertices for packet in vertex.waiting]


def _check_buffers(machine: Machine, packets: list[Packet]) -> None:
    held: dict[tuple[int, int], int] = {}
    buffers = {id(p.buffer): p.buffer for p in packets if p.buffer is not None}
    for buffer in buffers.values():
        place = (buffer.wire, buffer.vc)
        held[place] = held.get(place, 0) + buffer.bytes
    for wire in machine.wires:
        for vc in range(machine.model.nvc):
            _check_buffer(wire, vc, held.get((wire.index, vc), 0))


def _check_buffer(wire: Wire, vc: int, packets_bytes: int) -> None:
    """Compare credit, or the bytes held by the receiver, with the remaining packets."""
    where = f"conservation: wire {wire.index} VC {vc}"
    pause = wire.pause
    if pause is None:
        total = wire.credit[vc] + packets_bytes
        if total != wire.spec.buffer_bytes:
            raise InternalError(
                f"{where}: {total} bytes of credit and packets;"
                f" {wire.spec.buffer_bytes} were there at the start"
            )
        return
    if pause.held[vc] != packets_bytes:
        raise InternalError(
            f"{where}: {pause.held[vc]} bytes held; the packets left have {packets_bytes}"
        )
    if pause.asked[vc] != pause.stopped[vc] or (pause.asked[vc] and not packets_bytes):
        raise InternalError(f"{where}: still paused, without a cause")
