"""Arrival of packets at graph nodes, their next wire, delivery at endpoints, and responses (sections 4 and 6)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference import units
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.order import (
    ask,
    keeps,
    receiver_of,
    refuse,
    takes,
)
from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.repeats import watch
from clusim.engine.reference.specs import ImageNode
from clusim.engine.reference.spreads import turn
from clusim.engine.reference.units import (
    at_destination,
    enter,
    forward,
    next_vc,
    route_choice,
    targets_at,
)
from clusim.engine.reference.wires import Wire

_RESPONSES: dict[int, int] = {
    Kind.READ_REQ: Kind.READ_RESP,
    Kind.RED_FETCH: Kind.RED_DATA,
}
_STORED = (Kind.WRITE, Kind.FETCH, Kind.MCAST, Kind.AGG_DOWN)


def deliver(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Deliver a packet at its destination endpoint (section 6, delivery)."""
    endpoint = machine.model.nodes[wire.spec.dst].endpoint
    assert endpoint is not None
    assert packet.buffer is not None
    spec = machine.model.endpoints[endpoint]
    reads = packet.kind in _RESPONSES
    if packet.transfer.spread is not None and packet.transfer.spread.ordered:
        _deliver_in_order(machine, wire, packet, endpoint)
        return
    size_256 = packet.p * (spec.read_256 if reads else spec.deliver_256)
    accepted_ps = machine.accept_ps(endpoint, size_256)
    machine.release(packet.buffer, accepted_ps)
    if reads:
        response = _response(packet)
        _respond_at(machine, accepted_ps + spec.read_latency_ps, wire, response)
        return
    transfer = _transfer_of(machine, packet)
    if packet.kind in (Kind.READ_RESP, Kind.RED_RESULT, Kind.AGG_DOWN):
        _open_window(machine, packet, transfer)
    if packet.kind in _STORED:
        _answer_mark(machine, packet, transfer)
        _count_delivery(
            machine,
            transfer,
            packet.p,
            accepted_ps + spec.write_latency_ps,
            wire.index,
        )
        return
    visible_ps = accepted_ps + spec.response_latency_ps
    if packet.kind == Kind.RED_RESULT and transfer.terms.multicast_result:
        _respond_at(machine, visible_ps, wire, _multicast(packet))
    else:
        _count_delivery(machine, transfer, packet.p, visible_ps, wire.index)


def _deliver_in_order(
    machine: Machine, wire: Wire, packet: Packet, endpoint: int
) -> None:
    """Accept the expected packet and kept packets that follow it; keep or refuse others."""
    transfer, spec = packet.transfer, machine.model.endpoints[endpoint]
    pair, number = transfer.place(packet.number)
    assert packet.buffer is not None
    machine.payload.relayed = True
    if packet.kind == Kind.TRIMMED:
        machine.release(packet.buffer, machine.now_ps)
        receiver_of(machine, transfer).trimmed += 1
        if transfer.rate is not None:
            transfer.rate.notice_trimmed(packet)
        if not pair.knows(number):
            ask(machine, pair, transfer, range(number, number + 1))
        return
    packet.unneeded = packet.has_retransmission and not takes(packet)
    _answer_mark(machine, packet, transfer)
    receiver = receiver_of(machine, transfer)
    receiver.packets += 1
    machine.payload.arrived += packet.p
    if number != pair.expected:
        receiver.early += 1
        machine.release(packet.buffer, machine.now_ps)
        if keeps(machine, packet):
            pair.kept[number] = (packet, wire.index)
        return
    accepted_ps = machine.accept_ps(endpoint, packet.p * spec.deliver_256)
    machine.release(packet.buffer, accepted_ps)
    pair.accept(machine.now_ps)
    _count_delivery(
        machine, transfer, packet.p, accepted_ps + spec.write_latency_ps, wire.index
    )
    while pair.expected in pair.kept:
        kept, over = pair.kept.pop(pair.expected)
        pair.kept_bytes -= kept.p
        receiver.keep(-kept.p)
        pair.accept(machine.now_ps)
        accepted_ps = machine.accept_ps(endpoint, kept.p * spec.deliver_256)
        _count_delivery(
            machine, kept.transfer, kept.p, accepted_ps + spec.write_latency_ps, over
        )
    if pair.lost:
        refuse(machine, pair)


def _transfer_of(machine: Machine, packet: Packet) -> Transfer:
    """Return the transfer of a delivery: for an AGG_DOWN, the member's present one."""
    if packet.vertex is None:
        return packet.transfer
    present = machine.vertices[packet.vertex].transfer
    assert present is not None
    return present


def _open_window(machine: Machine, packet: Packet, transfer: Transfer) -> None:
    wire = packet.request_wire if packet.vertex is None else transfer.wires[0]
    transfer.outstanding[wire] -= 1
    machine.examine.update(transfer.wires)


def _answer_mark(machine: Machine, packet: Packet, transfer: Transfer) -> None:
    """Let a delivered packet of a flow with rate control notify its sender (section 5)."""
    if transfer.rate is not None:
        transfer.rate.notice_delivery(packet)


def _count_delivery(
    machine: Machine, transfer: Transfer, size_bytes: int, visible_ps: int, wire: int
) -> None:
    """Count a delivery; the last one completes the transfer at the greatest visible time."""
    transfer.delivered += 1
    transfer.delivered_bytes += size_bytes
    transfer.note_visible(visible_ps, wire)
    if transfer.delivered == transfer.deliveries:
        v_ps = transfer.visible_ps
        who = (Beyond.ENDPOINT, transfer.terms.requester)
        machine.at(v_ps, lambda: _complete(machine, transfer, v_ps), who)


def _complete(machine: Machine, transfer: Transfer, v_ps: int) -> None:
    machine.payload.complete(transfer)
    transfer.owner.note_completion(transfer, v_ps)


def _response(request: Packet) -> Packet:
    """Return the packet that answers a READ_REQ or RED_FETCH."""
    terms = request.transfer.terms
    to_requester = request.kind == Kind.READ_REQ
    return Packet(
        transfer=request.transfer,
        kind=_RESPONSES[request.kind],
        p=request.p,
        targets=(terms.requester,) if to_requester else (),
        key=request.key,
        first_vc=terms.vc_response,
        vc=request.vc,
        request_wire=request.request_wire,
        path=terms.path_back if to_requester else None,
        operation=request.operation,
    )


def _multicast(result: Packet) -> Packet:
    """Return the MCAST packet for the result of a REDUCE_MCAST."""
    return Packet(
        transfer=result.transfer,
        kind=Kind.MCAST,
        p=result.p,
        targets=(),
        key=result.key,
        first_vc=result.transfer.terms.vc,
        vc=result.vc,
        request_wire=result.request_wire,
    )


def _respond_at(machine: Machine, time_ps: int, wire: Wire, packet: Packet) -> None:
    """Let a turned-round packet enter a queue of the reverse wire (RESPOND).

    Until then `packet.vc` is the VC of the packet that it answers.
    """
    out = wire.spec.reverse if packet.path is None else packet.path[0]
    assert out is not None
    candidate = wire.spec.in_local * machine.model.nvc + packet.vc
    packet.vc = next_vc(machine.model, packet, out)
    endpoint = machine.model.nodes[wire.spec.dst].endpoint
    assert endpoint is not None
    who, order = (Beyond.ENDPOINT, endpoint), (wire.index, 0)
    machine.plan(
        time_ps,
        Class.RESPOND,
        lambda: enter(machine, out, candidate, packet),
        who,
        order,
    )


def _is_multicast(packet: Packet) -> bool:
    """True if a packet is multicast and was not copied yet."""
    return packet.kind == Kind.MCAST and not packet.targets


def _at_unit(node: ImageNode, packet: Packet) -> bool:
    return node.endpoint is None and packet.kind in (Kind.RED_REQ, Kind.RED_DATA)


def _kind_beyond(node: ImageNode, packet: Packet) -> int:
    """Return a packet's kind after `node`: bridges turn a FETCH into a WRITE (section 3)."""
    return Kind.WRITE if node.bridge and packet.kind == Kind.FETCH else packet.kind


def arrival_ps(
    machine: Machine, wire: Wire, packet: Packet, head_tail: tuple[int, int]
) -> int:
    """Return when a packet granted on `wire` arrives at the far end (section 4, 6.)."""
    head_ps, tail_ps = head_tail
    model, node = machine.model, machine.model.nodes[wire.spec.dst]
    if at_destination(model, packet, wire.spec.dst):
        return tail_ps
    if _at_unit(node, packet) or units.goes_up(packet):
        return tail_ps
    if node.endpoint is not None or node.store_and_forward:
        return tail_ps + node.latency_ps
    onward = _fastest_onward(machine, wire, packet)
    header = wire.spec.format.header_on_wire(packet.kind)
    by_head_ps = head_ps + wire.estimate_ps(header) + node.latency_ps
    occupancy = packet.occupancy(model, onward.index, _kind_beyond(node, packet))
    return max(by_head_ps, tail_ps + node.latency_ps - onward.estimate_ps(occupancy))


def _fastest_onward(machine: Machine, wire: Wire, packet: Packet) -> Wire:
    """Return the wire `q` of section 4, 6.: the packet's fastest next wire, by the image."""
    if units.goes_down(machine, packet):
        return machine.wires[units.first_onward(machine, packet)]
    if _is_multicast(packet):
        target = packet.transfer.terms.members[0]
    elif packet.path is not None:
        return machine.wires[packet.path[packet.hop + 1]]
    else:
        target = targets_at(machine.model, packet, wire.spec.dst)[0]
    return machine.wires[
        machine.model.fastest(machine.model.route(wire.spec.dst, target))
    ]


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
    elif units.goes_up(packet):
        units.up_arrives(machine, packet)
    elif units.goes_down(machine, packet):
        units.copies_down(machine, wire, packet)
    elif _is_multicast(packet):
        _fan_out(machine, wire, packet)
    else:
        _forward(machine, wire, packet)


def _owe_control_bytes(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Add the control bytes owed for a packet (section 3, owed control bytes)."""
    if wire.spec.reverse is not None:
        reverse = machine.wires[wire.spec.reverse]
        machine.check_owed(reverse)
        reverse.drain(machine.now_ps)
        m = packet.exact_packets(machine.model, wire.index)
        reverse.owed += m * wire.spec.format.control_256[packet.kind]


def _forward(machine: Machine, wire: Wire, packet: Packet) -> None:
    machine.payload.relayed |= (
        machine.model.nodes[wire.spec.dst].endpoint is not None
    )
    vc = packet.vc
    turn(machine, packet, wire.spec.dst)
    if packet.path is not None:
        packet.hop += 1
        out = packet.path[packet.hop]
    else:
        out, packet.key = route_choice(machine, packet, packet.targets[0], wire)
    if not forward(machine, wire, vc, out, packet):
        watch(machine, packet)


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
