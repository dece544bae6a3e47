"""Nodes: when packets arrive and where they go next (sections 4, 6. and 6)."""

from __future__ import annotations

from clusim.engine.abi import Kind
from clusim.engine.reference import aggregation, units
from clusim.engine.reference.delivery import deliver
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.queues import forward
from clusim.engine.reference.routing import at_destination, route_choice, targets_at
from clusim.engine.reference.specs import ImageNode
from clusim.engine.reference.wires import Wire


def _is_multicast(packet: Packet) -> bool:
    """Say whether a packet is multicast and was not copied yet."""
    return packet.kind == Kind.MCAST and not packet.targets


def _at_unit(node: ImageNode, packet: Packet) -> bool:
    return node.endpoint is None and packet.kind in (Kind.RED_REQ, Kind.RED_DATA)


def _kind_beyond(node: ImageNode, packet: Packet) -> int:
    """Return the kind of a packet behind `node`: a bridge makes a WRITE of a FETCH (section 3)."""
    return Kind.WRITE if node.bridge and packet.kind == Kind.FETCH else packet.kind


def arrival_ps(machine: Machine, wire: Wire, packet: Packet, head_tail: tuple[int, int]) -> int:
    """Return when a packet granted on `wire` arrives at the far end (section 4, 6.)."""
    head_ps, tail_ps = head_tail
    model, node = machine.model, machine.model.nodes[wire.spec.dst]
    if at_destination(model, packet, wire.spec.dst):
        return tail_ps
    if _at_unit(node, packet) or aggregation.goes_up(packet):
        return tail_ps
    if node.endpoint is not None or node.store_and_forward:
        return tail_ps + node.latency_ps
    onward = _fastest_onward(machine, wire, packet)
    header = wire.spec.format.header_on_wire(packet.kind)
    by_head_ps = head_ps + wire.estimate_ps(header) + node.latency_ps
    occupancy = packet.occupancy(model, onward.index, _kind_beyond(node, packet))
    return max(by_head_ps, tail_ps + node.latency_ps - onward.estimate_ps(occupancy))


def _fastest_onward(machine: Machine, wire: Wire, packet: Packet) -> Wire:
    """Return the wire `q` of section 4, 6.: the fastest, by the image, that the packet may take next."""
    if aggregation.goes_down(machine, packet):
        return machine.wires[aggregation.first_onward(machine, packet)]
    if _is_multicast(packet):
        target = packet.transfer.terms.members[0]
    elif packet.path is not None:
        return machine.wires[packet.path[packet.hop + 1]]
    else:
        target = targets_at(machine.model, packet, wire.spec.dst)[0]
    return machine.wires[machine.model.fastest(machine.model.route(wire.spec.dst, target))]


def arrive(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Let a packet arrive at the end of `wire` (ARRIVE, section 6)."""
    assert packet.buffer is not None
    machine.take_in(wire, packet.vc, packet.buffer.bytes)
    packet.arrived_over = wire.index
    _owe_control_bytes(machine, wire, packet)
    node = machine.model.nodes[wire.spec.dst]
    packet.kind = _kind_beyond(node, packet)
    packet.targets = targets_at(machine.model, packet, wire.spec.dst)
    if at_destination(machine.model, packet, wire.spec.dst):
        deliver(machine, wire, packet)
    elif _at_unit(node, packet) and packet.kind == Kind.RED_REQ:
        units.request_arrives(machine, node, packet)
    elif _at_unit(node, packet):
        units.data_arrive(machine, node, packet)
    elif aggregation.goes_up(packet):
        aggregation.up_arrives(machine, packet)
    elif aggregation.goes_down(machine, packet):
        aggregation.copies_down(machine, wire, packet)
    elif _is_multicast(packet):
        _fan_out(machine, wire, packet)
    else:
        _forward(machine, wire, packet)


def _owe_control_bytes(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Section 3, owed control bytes."""
    if wire.spec.reverse is not None:
        reverse = machine.wires[wire.spec.reverse]
        machine.check_owed(reverse)
        reverse.drain(machine.now_ps)
        m = packet.exact_packets(machine.model, wire.index)
        reverse.owed += m * wire.spec.format.control_256[packet.kind]


def _forward(machine: Machine, wire: Wire, packet: Packet) -> None:
    machine.payload.relayed |= machine.model.nodes[wire.spec.dst].endpoint is not None
    if packet.path is not None:
        packet.hop += 1
        out = packet.path[packet.hop]
    else:
        out, packet.key = route_choice(machine, packet, packet.targets[0], wire)
    forward(machine, wire, packet.vc, out, packet)


def _fan_out(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Copy a multicast packet towards each member; the copies share its input buffer."""
    members = packet.transfer.terms.members
    assert packet.buffer is not None
    packet.buffer.holders = len(members)
    for member in members:
        out, key = route_choice(machine, packet, member, wire)
        copy = Packet(
            transfer=packet.transfer,
            kind=Kind.MCAST,
            p=packet.p,
            targets=(member,),
            key=key,
            first_vc=packet.first_vc,
            vc=packet.first_vc,
            request_wire=packet.request_wire,
            buffer=packet.buffer,
            marked=packet.marked,
        )
        forward(machine, wire, packet.vc, out, copy)
