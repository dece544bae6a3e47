"""Phase B: idle wires grant packets (section 4); flows inject theirs (section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.engine.abi import Beyond, Kind, Policy
from clusim.engine.reference.agenda import Class
from clusim.engine.reference.arithmetic import hash32
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.nodes import arrival_ps, arrive
from clusim.engine.reference.packets import Buffer, Packet, Transfer
from clusim.engine.reference.routing import next_vc
from clusim.engine.reference.wires import Wire


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A ready candidate of a wire: the head of a queue, or the next packet of a flow."""

    index: int
    packet: Packet
    flow: Transfer | None = None
    slot: int = 0


def phase_b(machine: Machine) -> None:
    """Grant one packet on every idle wire that can, in ascending wire id, until none can."""
    position = -1
    while machine.examine:
        ahead = [wire for wire in machine.examine if wire > position]
        if not ahead:
            position = -1
            continue
        position = min(ahead)
        machine.examine.discard(position)
        _try_grant(machine, machine.wires[position])


def start_transfer(machine: Machine, endpoint: int, slot: int, transfer: Transfer) -> None:
    """Let the flow in a CTA slot inject a transfer from now on (section 5)."""
    machine.flows[endpoint][slot] = transfer
    for wire in transfer.wires:
        _expect(machine, transfer, wire)


def _expect(machine: Machine, transfer: Transfer, wire: int) -> None:
    """Let phase B look at a wire when the transfer's next packet for it is available."""
    i = transfer.next_packet(wire)
    if i is not None:
        machine.look_at(wire, transfer.available_ps(i))


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
    after = [c for c in eligible if c.index > wire.last_granted]
    _grant(machine, wire, min(after or eligible, key=lambda c: c.index))


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
    terms = transfer.terms
    packet = Packet(
        transfer=transfer,
        kind=terms.kind,
        p=transfer.packet_size(i),
        targets=terms.targets,
        key=transfer.route_key(i),
        first_vc=terms.vc,
        vc=terms.vc,
        request_wire=wire,
        path=terms.path,
        vertex=terms.vertex,
        number=(transfer.first_number + i) % 2**32,
    )
    packet.vc = next_vc(model, packet, wire)
    return packet


def _grant(machine: Machine, wire: Wire, candidate: _Candidate) -> None:
    """Put a packet on the wire; the numbers are those of section 4."""
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
    head_ps = now_ps + extra_ps + prefix_ps + wire.spec.latency_ps  # 4.
    tail_ps = end_ps + wire.spec.latency_ps
    if candidate.flow is None:
        wire.dequeue(candidate.index, model)
    if packet.buffer is not None:  # 5.
        machine.release(packet.buffer, end_ps, granted=True)
    packet.buffer = Buffer(wire.index, packet.vc, wire_bytes)
    order = (wire.index, wire.counters.grants)
    at_ps = arrival_ps(machine, wire, packet, (head_ps, tail_ps))  # 6.
    machine.plan(at_ps, Class.ARRIVE, lambda: arrive(machine, wire, packet), who, order)
    wire.count_grant(packet, model, wire_bytes, end_ps - now_ps)  # 7.
    wire.last_granted = candidate.index  # 8.
    if candidate.flow is not None:
        _inject(machine, candidate, wire, end_ps)
    wire.count_arbitration(bool(_ready_candidates(machine, wire)), end_ps - now_ps)


def _replay_ps(model: Model, wire: Wire, busy_ps: int) -> int:
    threshold = wire.spec.error_threshold
    if threshold and hash32(model.seed, wire.index, wire.counters.grants) < threshold:
        wire.counters.replays += 1
        return busy_ps + wire.spec.replay_ps
    return 0


def _inject(machine: Machine, candidate: _Candidate, wire: Wire, end_ps: int) -> None:
    """Account for a packet granted to a flow: window, memory, end of the transfer (section 5)."""
    transfer, packet = candidate.flow, candidate.packet
    assert transfer is not None
    transfer.granted[wire.index] = transfer.granted.get(wire.index, 0) + 1
    transfer.note_end(end_ps, wire.index)
    requester = transfer.terms.requester
    if transfer.rate is not None:
        transfer.rate.granted(machine.now_ps, packet.p)
        machine.in_range(transfer.rate.next_ps, transfer.rate.who)
    if transfer.terms.answered:
        transfer.outstanding[wire.index] = transfer.outstanding.get(wire.index, 0) + 1
    if packet.kind in (Kind.WRITE, Kind.FETCH, Kind.MCAST, Kind.AGG_UP):
        inject_256 = machine.model.endpoints[requester].inject_256
        machine.accept_ps(requester, packet.p * inject_256)
    if transfer.granted_count == transfer.count:
        del machine.flows[requester][candidate.slot]
        transfer.owner.all_granted(transfer.greatest_end_ps)
        return
    adaptive = transfer.terms.policy == Policy.ADAPTIVE
    for other in transfer.wires if adaptive else (wire.index,):
        _expect(machine, transfer, other)
