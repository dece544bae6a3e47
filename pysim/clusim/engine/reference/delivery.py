"""Delivery of packets at endpoints, and the packets that are turned round there (section 6)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference.agenda import Class
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.queues import enter
from clusim.engine.reference.routing import next_vc
from clusim.engine.reference.wires import Wire

_RESPONSES: dict[int, int] = {Kind.READ_REQ: Kind.READ_RESP, Kind.RED_FETCH: Kind.RED_DATA}
_STORED = (Kind.WRITE, Kind.FETCH, Kind.MCAST, Kind.AGG_DOWN)


def deliver(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Deliver a packet at its destination endpoint (section 6, delivery)."""
    endpoint = machine.model.nodes[wire.spec.dst].endpoint
    assert endpoint is not None
    assert packet.buffer is not None
    spec = machine.model.endpoints[endpoint]
    reads = packet.kind in _RESPONSES
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
        _delivered(machine, transfer, packet.p, accepted_ps + spec.write_latency_ps, wire.index)
        return
    visible_ps = accepted_ps + spec.response_latency_ps
    if packet.kind == Kind.RED_RESULT and transfer.terms.multicast_result:
        _respond_at(machine, visible_ps, wire, _multicast(packet))
    else:
        _delivered(machine, transfer, packet.p, visible_ps, wire.index)


def _transfer_of(machine: Machine, packet: Packet) -> Transfer:
    """Return the transfer that a delivery belongs to: for an AGG_DOWN, the member's present one."""
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
    """Let a marked packet of a flow with rate control notify its sender (section 5)."""
    rate, now_ps = transfer.rate, machine.now_ps
    if rate is not None and packet.marked and rate.answers_mark(now_ps):
        time_ps = now_ps + rate.spec.cnp_delay_ps
        machine.plan(time_ps, Class.NOTIFY, lambda: rate.notify(time_ps), rate.who)


def _delivered(
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
    transfer.owner.completed(transfer, v_ps)


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
    """Return the MCAST packet that a REDUCE_MCAST makes of its result."""
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

    Until then `packet.vc` is the VC on which the packet it answers came.
    """
    out = wire.spec.reverse if packet.path is None else packet.path[0]
    assert out is not None
    candidate = wire.spec.in_local * machine.model.nvc + packet.vc
    packet.vc = next_vc(machine.model, packet, out)
    endpoint = machine.model.nodes[wire.spec.dst].endpoint
    assert endpoint is not None
    who, order = (Beyond.ENDPOINT, endpoint), (wire.index, 0)
    machine.plan(time_ps, Class.RESPOND, lambda: enter(machine, out, candidate, packet), who, order)
