"""Which wire and which VC a packet takes next (section 6, route choice; section 4, VCs)."""

from __future__ import annotations

from clusim.reference.machine import Machine
from clusim.reference.model import Model
from clusim.reference.packets import Packet
from clusim.reference.wires import Wire

__all__ = ["next_vc", "route_choice"]


def next_vc(model: Model, packet: Packet, wire: int) -> int:
    """Return the VC that a packet has on `wire`, given the wire it came over, if any."""
    before, vc = packet.arrived_over, packet.first_vc
    if before is not None and model.wires[before].dim == model.wires[wire].dim:
        vc = packet.vc
    if model.wires[wire].dateline == 1:
        vc = min(packet.first_vc + 1, model.nvc - 1)
    return vc


def route_choice(machine: Machine, packet: Packet, dst: int, arrived_over: Wire) -> tuple[int, int]:
    """Return the wire towards endpoint `dst`, and the packet's route key after the choice."""
    group = machine.usable(machine.model.route(arrived_over.spec.dst, dst))
    if len(group) == 1:
        return group[0], packet.key
    if packet.adaptive:
        queued = [(machine.wires[wire].counters.queued_bytes, wire) for wire in group]
        return min(queued)[1], packet.key
    number = (packet.key + arrived_over.spec.ordinal) % len(group)
    return group[number], packet.key // len(group)
