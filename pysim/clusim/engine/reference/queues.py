"""Entry of packets into virtual output queues (section 4): forwarded, or created in the node."""

from __future__ import annotations

from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.routing import next_vc
from clusim.engine.reference.specs import ImageNode
from clusim.engine.reference.wires import Wire


def enter(machine: Machine, out: int, candidate: int, packet: Packet) -> None:
    """Let a packet enter the queue `candidate` of wire `out`."""
    machine.wires[out].enqueue(candidate, packet, machine.model, machine.now_ps)
    machine.examine.add(out)


def forward(machine: Machine, over: Wire, vc: int, out: int, packet: Packet) -> None:
    """Let a packet, or a copy of one, that came over a wire on `vc` go on; congestion may mark it."""
    packet.vc = next_vc(machine.model, packet, out)
    enter(machine, out, over.spec.in_local * machine.model.nvc + vc, packet)
    if machine.wires[out].congested(machine.model.seed):
        packet.marked = True


def emit(machine: Machine, node: ImageNode, out: int, packet: Packet) -> None:
    """Let a packet made in a switch enter the queue for such packets of wire `out`."""
    candidate = len(node.incoming) * machine.model.nvc + packet.first_vc
    packet.vc = next_vc(machine.model, packet, out)
    enter(machine, out, candidate, packet)
