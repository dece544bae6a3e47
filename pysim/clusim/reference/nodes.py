"""Nodes: when packets arrive, where they go next, how they are delivered (sections 4, 5. 6. and 6)."""

from __future__ import annotations

from clusim.reference import units
from clusim.reference.agenda import Class
from clusim.reference.machine import Machine
from clusim.reference.model import Kind, Model
from clusim.reference.packets import Packet, Transfer
from clusim.reference.routing import next_vc, route_choice
from clusim.reference.wires import Wire

__all__ = ["arrival_ps", "arrive", "next_vc"]

_RESPONSES = {Kind.READ_REQ: Kind.READ_RESP, Kind.RED_FETCH: Kind.RED_DATA}


def _fans_out(packet: Packet) -> bool:
    return packet.kind == Kind.MCAST and packet.dst is None


def arrival_ps(machine: Machine, wire: Wire, packet: Packet, head_tail: tuple[int, int]) -> int:
    """Return when a packet granted on `wire` arrives at the far end (section 4, 6.)."""
    head_ps, tail_ps = head_tail
    node = machine.model.nodes[wire.spec.dst]
    if node.endpoint is not None and packet.dst == node.endpoint:
        return tail_ps
    if node.endpoint is None and packet.kind in (Kind.RED_REQ, Kind.RED_DATA):
        return tail_ps
    if node.endpoint is not None or node.store_and_forward:
        return tail_ps + node.latency_ps
    onward = _fastest_onward(machine, wire, packet)
    header = wire.spec.format.header_on_wire(packet.kind)
    by_head_ps = head_ps + wire.estimate_ps(header) + node.latency_ps
    there_ps = onward.estimate_ps(packet.occupancy(machine.model, onward.index))
    return max(by_head_ps, tail_ps + node.latency_ps - there_ps)


def _fastest_onward(machine: Machine, wire: Wire, packet: Packet) -> Wire:
    """Return the wire `q` of section 4, 6.: the fastest, by the image, that the packet may take next."""
    if packet.path is not None and not _fans_out(packet):
        return machine.wires[packet.path[packet.hop + 1]]
    dst = packet.transfer.terms.members[0] if _fans_out(packet) else packet.dst
    assert dst is not None
    return machine.wires[machine.model.fastest(machine.model.route(wire.spec.dst, dst))]


def arrive(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Let a packet arrive at the end of `wire` (ARRIVE, section 6)."""
    packet.arrived_over = wire.index
    _owe_control_bytes(machine, wire, packet)
    node = machine.model.nodes[wire.spec.dst]
    if node.endpoint is not None and packet.dst == node.endpoint:
        _deliver(machine, wire, packet)
    elif node.endpoint is None and packet.kind == Kind.RED_REQ:
        units.request_arrives(machine, node, packet)
    elif node.endpoint is None and packet.kind == Kind.RED_DATA:
        units.data_arrive(machine, node, packet)
    elif _fans_out(packet):
        _fan_out(machine, wire, packet)
    else:
        _forward(machine, wire, packet)


def _owe_control_bytes(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Section 3, owed control bytes."""
    if wire.spec.reverse is not None:
        reverse = machine.wires[wire.spec.reverse]
        reverse.drain(machine.now_ps)
        reverse.owed += packet.m * wire.spec.format.control_256[packet.kind]


def _forward(machine: Machine, wire: Wire, packet: Packet) -> None:
    candidate = wire.spec.in_local * machine.model.nvc + packet.vc
    if packet.path is not None:
        packet.hop += 1
        out = packet.path[packet.hop]
    else:
        assert packet.dst is not None
        out, packet.key = route_choice(machine, packet, packet.dst, wire)
    packet.vc = next_vc(machine.model, packet, out)
    machine.wires[out].enqueue(candidate, packet, machine.model, machine.now_ps)
    machine.examine.add(out)


def _fan_out(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Copy a multicast packet towards each member; the copies share its input buffer."""
    candidate = wire.spec.in_local * machine.model.nvc + packet.vc
    members = packet.transfer.terms.members
    assert packet.buffer is not None
    packet.buffer.holders = len(members)
    for member in members:
        out, key = route_choice(machine, packet, member, wire)
        copy = Packet(
            transfer=packet.transfer,
            kind=Kind.MCAST,
            p=packet.p,
            dst=member,
            key=key,
            first_vc=packet.first_vc,
            vc=packet.first_vc,
            request_wire=packet.request_wire,
            buffer=packet.buffer,
        )
        copy.vc = next_vc(machine.model, copy, out)
        machine.wires[out].enqueue(candidate, copy, machine.model, machine.now_ps)
        machine.examine.add(out)


def _deliver(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Deliver a packet at its destination endpoint (section 6, delivery)."""
    assert packet.dst is not None
    assert packet.buffer is not None
    spec = machine.model.endpoints[packet.dst]
    memory = machine.memories[packet.dst]
    reads = packet.kind in _RESPONSES
    size_256 = packet.p * (spec.read_256 if reads else spec.deliver_256)
    accepted_ps = memory.accept_ps(size_256, machine.now_ps)
    machine.release(packet.buffer, accepted_ps)
    if reads:
        response = _response(machine.model, wire, packet)
        _respond_at(machine, accepted_ps + spec.read_latency_ps, wire, response)
        return
    if packet.kind in (Kind.READ_RESP, Kind.RED_RESULT):
        _open_window(machine, packet)
    if packet.kind in (Kind.WRITE, Kind.MCAST):
        _delivered(machine, packet.transfer, accepted_ps + spec.write_latency_ps, wire.index)
        return
    visible_ps = accepted_ps + spec.response_latency_ps
    if packet.kind == Kind.RED_RESULT and packet.transfer.terms.multicast_result:
        _respond_at(machine, visible_ps, wire, _multicast(packet))
    else:
        _delivered(machine, packet.transfer, visible_ps, wire.index)


def _open_window(machine: Machine, packet: Packet) -> None:
    packet.transfer.outstanding[packet.request_wire] -= 1
    machine.examine.update(packet.transfer.wires)


def _delivered(machine: Machine, transfer: Transfer, visible_ps: int, wire: int) -> None:
    """Count a delivery; the last one completes the transfer at the greatest visible time."""
    transfer.delivered += 1
    transfer.note_visible(visible_ps, wire)
    if transfer.delivered == transfer.deliveries:
        v_ps = transfer.visible_ps
        machine.at(v_ps, lambda: transfer.owner.completed(transfer, v_ps))


def _response(model: Model, wire: Wire, request: Packet) -> Packet:
    """Return the packet that answers a READ_REQ or RED_FETCH which came over `wire`."""
    terms = request.transfer.terms
    to_requester = request.kind == Kind.READ_REQ
    return Packet(
        transfer=request.transfer,
        kind=_RESPONSES[request.kind],
        p=request.p,
        dst=terms.requester if to_requester else None,
        key=request.key,
        first_vc=terms.vc_response,
        vc=request.vc,
        request_wire=request.request_wire,
        path=terms.path_back if to_requester else None,
        operation=request.operation,
    )


def _multicast(result: Packet) -> Packet:
    """Return the MCAST packet that a REDUCE_MCAST makes of its result."""
    return Packet(
        transfer=result.transfer,
        kind=Kind.MCAST,
        p=result.p,
        dst=None,
        key=result.key,
        first_vc=result.transfer.terms.vc,
        vc=result.vc,
        request_wire=result.request_wire,
    )


def _respond_at(machine: Machine, time_ps: int, wire: Wire, packet: Packet) -> None:
    """Let a turned-round packet enter a queue of the reverse wire (RESPOND).

    Until then `packet.vc` is the VC on which the packet it answers came.
    """
    out = wire.spec.reverse if packet.path is None else packet.path[0]
    assert out is not None
    candidate = wire.spec.in_local * machine.model.nvc + packet.vc
    packet.vc = next_vc(machine.model, packet, out)

    def enter() -> None:
        machine.wires[out].enqueue(candidate, packet, machine.model, machine.now_ps)
        machine.examine.add(out)

    machine.agenda.add(time_ps, Class.RESPOND, enter, (wire.index, 0))
