"""Next target, wire and VC of a packet (sections 4, VCs; 5, targets; 6, route choice).

Entry of packets into virtual output queues (section 4): forwarded, or created in the node.
"""

from __future__ import annotations

from clusim.engine.reference.machine import Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import ImageNode
from clusim.engine.reference.wires import Wire


def next_vc(model: Model, packet: Packet, wire: int) -> int:
    """Return the VC of a packet on `wire`, given its previous wire, if any."""
    before, vc = packet.arrived_over, packet.first_vc
    if before is not None and model.wires[before].dim == model.wires[wire].dim:
        vc = packet.vc
    if model.wires[wire].dateline == 1:
        vc = min(packet.first_vc + 1, model.nvc - 1)
    return vc


def targets_at(model: Model, packet: Packet, node: int) -> tuple[int, ...]:
    """Return the remaining targets of a packet that arrived at `node` (section 5, targets)."""
    targets = packet.targets
    while len(targets) > 1 and model.targets[targets[0]].node == node:
        targets = targets[1:]
    return targets


def at_destination(model: Model, packet: Packet, node: int) -> bool:
    """True if the packet's last target is at `node` and the others are passed."""
    targets = targets_at(model, packet, node)
    return len(targets) == 1 and model.targets[targets[0]].node == node


def route_choice(
    machine: Machine, packet: Packet, target: int, arrived_over: Wire
) -> tuple[int, int]:
    """Return the wire towards a target, and the packet's route key after the choice."""
    group = machine.usable(machine.model.route(arrived_over.spec.dst, target))
    if len(group) == 1:
        return group[0], packet.key
    if packet.adaptive:
        queued = [(machine.wires[wire].counters.queued_bytes, wire) for wire in group]
        return min(queued)[1], packet.key
    number = (packet.key + arrived_over.spec.ordinal) % len(group)
    return group[number], packet.key // len(group)


def enter(machine: Machine, out: int, candidate: int, packet: Packet) -> None:
    """Let a packet enter the queue `candidate` of wire `out`."""
    machine.wires[out].enqueue(candidate, packet, machine.model, machine.now_ps)
    machine.examine.add(out)


def forward(machine: Machine, over: Wire, vc: int, out: int, packet: Packet) -> None:
    """Forward a packet, or a copy, that arrived over a wire on `vc`; congestion may mark it."""
    packet.vc = next_vc(machine.model, packet, out)
    enter(machine, out, over.spec.in_local * machine.model.nvc + vc, packet)
    if machine.wires[out].congested(machine.model.seed):
        packet.marked = True


def emit(machine: Machine, node: ImageNode, out: int, packet: Packet) -> None:
    """Enqueue a packet created in a switch, in the queue of wire `out` for such packets."""
    candidate = len(node.incoming) * machine.model.nvc + packet.first_vc
    packet.vc = next_vc(machine.model, packet, out)
    enter(machine, out, candidate, packet)
