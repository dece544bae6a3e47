"""Phase B: idle wires grant packets (section 4); flows inject their packets (section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.engine.abi import MOST_HOPS, Beyond, Kind, Policy
from clusim.engine.reference.arrivals import arrival_ps, arrive
from clusim.engine.reference.classes import Eligible
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.mixed import joint_rate
from clusim.engine.reference.model import Model
from clusim.engine.reference.order import (
    join,
    receiver_target,
)
from clusim.engine.reference.packets import Buffer, Packet, Transfer
from clusim.engine.reference.repeats import count_repeat
from clusim.engine.reference.specs import hash32
from clusim.engine.reference.units import (
    next_vc,
)
from clusim.engine.reference.wires import Wire
from clusim.policies.kinds import ClassHead, SwitchHop


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
    if transfer.terms.kind in (Kind.WRITE, Kind.FETCH):
        credit = machine.credits.get((transfer.flow, receiver_target(transfer)))
        transfer.rate = joint_rate(transfer.rate, credit)
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
        index = _choose_by_policy(machine, wire, heads)
        if index is None:
            index = wire.classes.choose(heads)
        _grant(machine, wire, next(c for c in eligible if c.index == index))
        return
    eligible = [
        c for c, rank in zip(eligible, ranks, strict=True) if rank == min(ranks)
    ]
    after = [c for c in eligible if c.index > wire.last_granted]
    _grant(machine, wire, min(after or eligible, key=lambda c: c.index))


def _choose_by_policy(
    machine: Machine, wire: Wire, eligible: list[Eligible]
) -> int | None:
    """Return the candidate that the policy of a wire's classes chooses, or None."""
    chooser, classes = machine.schedules.get(wire.index), wire.classes
    if chooser is None or classes is None:
        return None
    first = classes.first(eligible)
    bytes_of = [0] * machine.model.nvc
    for queue in wire.queues.values():
        for packet in queue:
            bytes_of[packet.vc] += packet.wire_bytes(machine.model, wire.index)
    heads = [ClassHead(0, 0, 0)] * machine.model.nvc
    for vc, one in first.items():
        entered_ps = wire.queues[one.candidate][0].entered_ps
        age_ps = machine.now_ps - entered_ps
        heads[vc] = ClassHead(one.wire_bytes, age_ps, bytes_of[vc])
    chosen = chooser.choose(heads)
    return None if chosen is None else classes.take(first[chosen])


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
        wire.mark_departure(model.seed, packet)
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
            transfer.rate.finish()
        transfer.owner.all_granted(transfer.greatest_end_ps)
        return
    together = transfer.terms.policy == Policy.ADAPTIVE or transfer.rate is not None
    for other in transfer.wires if together else (wire.index,):
        machine.expect(transfer, other)
