"""Receivers that accept the packets of a queue pair in order only (section 6, receivers in order)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, Kind, Policy
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import Line, OrderCounters, Packet, QueuePair, Transfer
from clusim.engine.reference.spreads import least_loaded
from clusim.engine.reference.units import enter, next_vc


def receiver_of(machine: Machine, transfer: Transfer) -> OrderCounters:
    """Return the counters of a transfer's receiving NIC, or of its endpoint."""
    terms = transfer.terms
    vias = len(terms.targets) - 1 - (terms.kind == Kind.FETCH)
    return machine.orders[terms.targets[-2 if vias else -1]]


def join(machine: Machine, transfer: Transfer) -> None:
    """Let a transfer follow the earlier ones of its queue pairs."""
    flow, pairs, turns = transfer.flow, 1, 1
    if flow < len(machine.model.conns):
        spec = machine.model.conns[flow]
        pairs, turns = max(1, len(spec.queue_keys)), 1
        if not spec.split:
            pairs, turns = turns, pairs
    key = flow, transfer.terms.targets
    turn = machine.turns.get(key, 0)
    machine.turns[key] = turn + 1
    place = *key, turn % turns
    if place not in machine.lines:
        machine.lines[place] = Line(tuple(QueuePair() for _ in range(pairs)))
    machine.lines[place].start(transfer)


def keeps(machine: Machine, packet: Packet) -> bool:
    """Handle a packet that is not the expected one; return True if the receiver keeps it."""
    transfer, (pair, number) = packet.transfer, packet.transfer.place(packet.number)
    assert transfer.spread is not None
    if number < pair.expected or number in pair.kept:
        return False
    if pair.kept_bytes + packet.p <= transfer.spread.reorder_bytes:
        pair.kept_bytes += packet.p
        receiver_of(machine, transfer).keep(packet.p)
        return True
    if pair.refused:
        return False
    if pair.refused_at == pair.expected:
        pair.lost = True
    else:
        refuse(machine, pair)
    return False


def refuse(machine: Machine, pair: QueuePair) -> None:
    """Let the sender repeat all packets from the expected one on."""
    transfer = pair.sent[pair.expected][0]
    assert transfer.spread is not None
    pair.refused, pair.lost, pair.refused_at = True, False, pair.expected
    flow, conns = transfer.flow, len(machine.model.conns)
    who = (Beyond.CONNECTION, flow) if flow < conns else (Beyond.SOURCE, flow - conns)
    time_ps = machine.now_ps + transfer.spread.nak_ps
    machine.plan(time_ps, Class.REPEAT, lambda: _repeat(machine, pair), who, (flow, 0))


def _repeat(machine: Machine, pair: QueuePair) -> None:
    """Send all packets granted so far again, from the refused one on."""
    pair.refused = False
    if pair.expected == len(pair.sent):
        return
    assert pair.refused_at is not None
    for transfer, i in pair.sent[pair.refused_at :]:
        if transfer.was_granted(i):
            _send_again(machine, transfer, i)


def _send_again(machine: Machine, transfer: Transfer, i: int) -> None:
    model, terms = machine.model, transfer.terms
    number = 0 if terms.policy == Policy.ADAPTIVE else transfer.base + i
    if terms.policy == Policy.PINNED:
        number = transfer.base
    wire = transfer.wires[number % len(transfer.wires)]
    packet = transfer.packet(i, wire)
    packet.repeated = True
    node = model.wires[wire].src
    if terms.policy == Policy.ADAPTIVE:
        wires = machine.usable(transfer.wires)
        wire = packet.request_wire = least_loaded(machine, packet, wires, node)[1]
    packet.vc = next_vc(model, packet, wire)
    transfer.line.repeats += 1
    sender = terms.targets[0] if terms.kind == Kind.FETCH else terms.requester
    machine.orders[sender].repeats += 1
    inject_256 = model.endpoints[terms.requester].inject_256
    machine.accept_ps(terms.requester, packet.p * inject_256)
    candidate = len(model.nodes[node].incoming) * model.nvc + terms.vc
    enter(machine, wire, candidate, packet)
