"""Phase B: idle wires grant packets (section 4); flows inject their packets (section 5).

Also: arrival of packets at graph nodes and their next wire (sections 4, 6. and 6); delivery at endpoints, and
responses (section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusim.engine.abi import MOST_HOPS, Beyond, Kind, Policy
from clusim.engine.reference import units
from clusim.engine.reference.classes import Eligible
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.order import (
    ask,
    join,
    keeps,
    receiver_of,
    refuse,
    takes,
)
from clusim.engine.reference.packets import Buffer, Packet, Transfer
from clusim.engine.reference.repeats import count_repeat, watch
from clusim.engine.reference.specs import ImageNode, hash32
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
from clusim.policies.sender import SwitchHop

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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A ready candidate of a wire: the head of a queue, or the next packet of a flow."""

    index: int
    packet: Packet
    flow: Transfer | None = None
    slot: int = 0


def phase_b(machine: Machine) -> None:
    """Grant one packet on every idle wire that can, in ascending wire id, until no wire can."""
    position = -1
    while machine.examine:
        ahead = [wire for wire in machine.examine if wire > position]
        if not ahead:
            position = -1
            continue
        position = min(ahead)
        machine.examine.discard(position)
        _try_grant(machine, machine.wires[position])


def start_transfer(
    machine: Machine, endpoint: int, slot: int, transfer: Transfer
) -> None:
    """Let the flow in a CTA slot inject a transfer from now on (section 5)."""
    machine.flows[endpoint][slot] = transfer
    if transfer.spread is not None and transfer.spread.ordered:
        join(machine, transfer)
    if transfer.rate is not None:
        transfer.rate.start(transfer)
    for wire in transfer.wires:
        machine.expect(transfer, wire)


def _try_grant(machine: Machine, wire: Wire) -> None:
    if wire.free_at_ps > machine.now_ps or wire.down:
        return
    ready = _ready_candidates(machine, wire)
    if not ready:
        return
    eligible = [c for c in ready if _has_credit(machine.model, wire, c.packet)]
    if not eligible:
        wire.note_credit_stall(machine.now_ps)
        return
    ranks = [_rank(machine.model, wire, c) for c in eligible]
    if wire.classes is not None:
        heads = [
            _head(machine.model, wire, *pair)
            for pair in zip(eligible, ranks, strict=True)
        ]
        index = wire.classes.choose(heads)
        _grant(machine, wire, next(c for c in eligible if c.index == index))
        return
    eligible = [
        c for c, rank in zip(eligible, ranks, strict=True) if rank == min(ranks)
    ]
    after = [c for c in eligible if c.index > wire.last_granted]
    _grant(machine, wire, min(after or eligible, key=lambda c: c.index))


def _head(model: Model, wire: Wire, candidate: _Candidate, rank: int) -> Eligible:
    packet = candidate.packet
    return Eligible(
        packet.vc, rank, candidate.index, packet.wire_bytes(model, wire.index)
    )


def _rank(model: Model, wire: Wire, candidate: _Candidate) -> int:
    """Return the rank of a candidate (section 4, arbitration); lower ranks are granted first."""
    node, local = model.nodes[wire.spec.src], candidate.index // model.nvc
    before = (
        model.wires[node.incoming[local]].dim if local < len(node.incoming) else 0
    )
    if not wire.spec.dim or before == wire.spec.dim or node.endpoint is not None:
        return 0
    return 1 if before else 2


def _has_credit(model: Model, wire: Wire, packet: Packet) -> bool:
    return wire.can_take(packet.vc, packet.wire_bytes(model, wire.index))


def _ready_candidates(machine: Machine, wire: Wire) -> list[_Candidate]:
    """Return the ready candidates of a wire (section 4, candidates)."""
    ready = [_Candidate(index, queue[0]) for index, queue in wire.queues.items()]
    node = machine.model.nodes[wire.spec.src]
    if node.endpoint is not None:
        first = (len(node.incoming) + 1) * machine.model.nvc
        for slot, transfer in machine.flows[node.endpoint].items():
            i = transfer.next_packet(wire.index)
            if i is None or transfer.available_ps(i) > machine.now_ps:
                continue
            if transfer.window_open(wire.index):
                packet = _make_packet(machine.model, transfer, i, wire.index)
                ready.append(_Candidate(first + slot, packet, transfer, slot))
    return ready


def _make_packet(model: Model, transfer: Transfer, i: int, wire: int) -> Packet:
    """Return packet `i` of a transfer as it would leave on `wire`."""
    packet = transfer.packet(i, wire)
    packet.vc = next_vc(model, packet, wire)
    return packet


def _grant(machine: Machine, wire: Wire, candidate: _Candidate) -> None:
    """Put a packet on the wire; the numbers refer to section 4."""
    model, now_ps = machine.model, machine.now_ps
    packet = candidate.packet
    wire.end_credit_stall(now_ps)
    flit = wire.spec.format.flit_bytes
    machine.check_owed(wire)
    control = wire.take_control_bytes(now_ps)  # 1.
    prefix_ps = (control // flit) * wire.estimate_ps(flit)
    busy_ps = wire.occupy_ps(control + packet.occupancy(model, wire.index))  # 2.
    extra_ps = _replay_ps(model, wire, busy_ps)
    end_ps = now_ps + busy_ps + extra_ps
    who = (Beyond.WIRE, wire.index)
    machine.in_range(end_ps, who)
    wire.free_at_ps = end_ps
    machine.look_at(wire.index, end_ps)
    wire_bytes = packet.wire_bytes(model, wire.index)
    if wire.pause is None:
        wire.credit[packet.vc] -= wire_bytes  # 3.
    if packet.promised:
        machine.promised[wire.index, packet.vc] -= wire_bytes
        packet.promised = False
    head_ps = now_ps + extra_ps + prefix_ps + wire.spec.latency_ps  # 4.
    tail_ps = end_ps + wire.spec.latency_ps
    if candidate.flow is None:
        wire.dequeue(candidate.index, model)
        _record_hop(machine, wire, packet)
    if packet.buffer is not None:  # 5.
        machine.release(packet.buffer, end_ps, granted=True)
    packet.buffer = Buffer(wire.index, packet.vc, wire_bytes)
    order = (wire.index, wire.counters.grants)
    at_ps = arrival_ps(machine, wire, packet, (head_ps, tail_ps))  # 6.
    machine.plan(
        at_ps, Class.ARRIVE, lambda: arrive(machine, wire, packet), who, order
    )
    wire.count_grant(packet, model, wire_bytes, end_ps - now_ps)  # 7.
    wire.last_granted = candidate.index  # 8.
    if packet.repeated:
        count_repeat(machine, packet, end_ps)
    if candidate.flow is not None:
        _inject(machine, candidate, wire, end_ps)
    wire.count_arbitration(bool(_ready_candidates(machine, wire)), end_ps - now_ps)


def _record_hop(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Record the output of a network switch for the sender's policy (section 5, telemetry)."""
    node, spec = machine.model.nodes[wire.spec.src], wire.spec
    if (
        node.endpoint is not None
        or node.bridge
        or not (spec.xoff_bytes or spec.ecn_max_bytes)
    ):
        return
    if len(packet.hops) < MOST_HOPS:
        queue_bytes, sent_bytes = wire.counters.queued_bytes, wire.counters.bytes
        rate = (wire.num << 30) // wire.den
        packet.hops.append(
            SwitchHop(machine.now_ps, queue_bytes, sent_bytes, rate, wire.index)
        )


def _replay_ps(model: Model, wire: Wire, busy_ps: int) -> int:
    threshold = wire.spec.error_threshold
    if (
        threshold
        and hash32(model.seed, wire.index, wire.counters.grants) < threshold
    ):
        wire.counters.replays += 1
        return busy_ps + wire.spec.replay_ps
    return 0


def _inject(
    machine: Machine, candidate: _Candidate, wire: Wire, end_ps: int
) -> None:
    """Account for a packet granted to a flow: window, memory, end of the transfer (section 5)."""
    transfer, packet = candidate.flow, candidate.packet
    assert transfer is not None
    transfer.granted[wire.index] = transfer.granted.get(wire.index, 0) + 1
    transfer.note_end(end_ps, wire.index)
    requester = transfer.terms.requester
    if transfer.rate is not None:
        transfer.rate.count_sent(packet)
    if transfer.terms.answered:
        transfer.outstanding[wire.index] = (
            transfer.outstanding.get(wire.index, 0) + 1
        )
    if packet.kind in (Kind.WRITE, Kind.FETCH, Kind.MCAST, Kind.AGG_UP):
        inject_256 = machine.model.endpoints[requester].inject_256
        machine.accept_ps(requester, packet.p * inject_256)
    if transfer.granted_count == transfer.count:
        del machine.flows[requester][candidate.slot]
        if transfer.rate is not None:
            transfer.rate.injecting = None
        transfer.owner.all_granted(transfer.greatest_end_ps)
        return
    together = transfer.terms.policy == Policy.ADAPTIVE or transfer.rate is not None
    for other in transfer.wires if together else (wire.index,):
        machine.expect(transfer, other)
