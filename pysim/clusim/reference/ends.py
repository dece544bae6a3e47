"""Conservation at the end of a run (section 12)."""

from __future__ import annotations

from clusim.errors import InternalError
from clusim.reference.machine import Machine
from clusim.reference.packets import Packet

__all__ = ["check_balance"]


def check_balance(machine: Machine) -> None:
    """Raise `InternalError` unless every credit is accounted for and nothing is left without a cause.

    The only cause accepted is a wire that is down: what waits for it, or behind it, stays.
    """
    packets = _packets_left(machine)
    if not any(wire.down for wire in machine.wires):
        if packets:
            raise InternalError(f"conservation: {len(packets)} packets left; there should be none")
        if any(unit.in_use_bytes or unit.operations for unit in machine.units):
            raise InternalError("conservation: a reduction unit is in use; all should be idle")
    _check_credits(machine, packets)


def _packets_left(machine: Machine) -> list[Packet]:
    queues = [queue for wire in machine.wires for queue in wire.queues.values()]
    queues += [unit.waiting for unit in machine.units]
    return [packet for queue in queues for packet in queue]


def _check_credits(machine: Machine, packets: list[Packet]) -> None:
    held: dict[tuple[int, int], int] = {}
    buffers = {id(p.buffer): p.buffer for p in packets if p.buffer is not None}
    for buffer in buffers.values():
        place = (buffer.wire, buffer.vc)
        held[place] = held.get(place, 0) + buffer.bytes
    for wire in machine.wires:
        for vc, credit in enumerate(wire.credit):
            total = credit + held.get((wire.index, vc), 0)
            if total != wire.spec.buffer_bytes:
                raise InternalError(
                    f"conservation: wire {wire.index} VC {vc}: {total} bytes of credit and packets;"
                    f" {wire.spec.buffer_bytes} were there at the start"
                )
