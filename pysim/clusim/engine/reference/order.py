"""Receivers that accept the packets of a queue pair in order only (section 6, receivers in order)."""

from __future__ import annotations

from clusim.engine.abi import Kind
from clusim.engine.reference.conservation import OrderCounters
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import Line, Packet, QueuePair, Transfer
from clusim.engine.reference.repeats import owner_of, repeat_all, repeat_lost


def receiver_of(machine: Machine, transfer: Transfer) -> OrderCounters:
    """Return the counters of a transfer's receiver."""
    return machine.orders[receiver_target(transfer)]


def receiver_target(transfer: Transfer) -> int:
    """Return a transfer's receiving NIC, or its endpoint."""
    terms = transfer.terms
    vias = len(terms.targets) - 1 - (terms.kind == Kind.FETCH)
    return terms.targets[-2 if vias else -1]


def join(machine: Machine, transfer: Transfer) -> None:
    """Let a transfer follow the earlier ones of its queue pairs."""
    flow, pairs, turns = transfer.flow, 1, 1
    if flow < len(machine.model.conns):
        spec = machine.model.conns[flow]
        pairs, turns = max(1, len(spec.queue_keys)), 1
        if not spec.split:
            pairs, turns = turns, pairs
    key = flow, transfer.terms.kind, transfer.terms.targets
    turn = machine.turns.get(key, 0)
    machine.turns[key] = turn + 1
    place = *key, turn % turns
    if place not in machine.lines:
        machine.lines[place] = Line(tuple(QueuePair() for _ in range(pairs)))
    machine.lines[place].start(transfer)
    machine.payload.begun += transfer.bytes


def keeps(machine: Machine, packet: Packet) -> bool:
    """Handle a packet that is not the expected one; return True if the receiver keeps it."""
    transfer, (pair, number) = packet.transfer, packet.transfer.place(packet.number)
    assert transfer.spread is not None
    if pair.knows(number):
        return False
    if _has_room(packet):
        pair.kept_bytes += packet.p
        receiver_of(machine, transfer).keep(packet.p)
        missing, pair.seen = range(pair.seen, number), max(pair.seen, number + 1)
        if transfer.spread.selective and missing and not transfer.spread.trimmed:
            ask(machine, pair, transfer, missing)
        return True
    if pair.refused:
        return False
    if pair.refused_at == pair.expected:
        pair.lost = True
    else:
        refuse(machine, pair)
    return False


def _has_room(packet: Packet) -> bool:
    """True if the receiver keeps an early packet that it does not have."""
    spread, pair = packet.transfer.spread, packet.transfer.place(packet.number)[0]
    assert spread is not None
    return spread.selective or pair.kept_bytes + packet.p <= spread.reorder_bytes


def takes(packet: Packet) -> bool:
    """True if the receiver accepts or keeps a packet that arrives now."""
    pair, number = packet.transfer.place(packet.number)
    return number == pair.expected or (not pair.knows(number) and _has_room(packet))


def ask(
    machine: Machine, pair: QueuePair, transfer: Transfer, missing: range
) -> None:
    """Request packets that are missing."""
    assert transfer.spread is not None
    time_ps, who = (
        machine.now_ps + transfer.spread.nak_ps,
        owner_of(machine, transfer),
    )

    def arrive() -> None:
        repeat_lost(machine, pair, transfer, missing)

    machine.plan(time_ps, Class.REPEAT, arrive, who, (transfer.flow, 0))


def refuse(machine: Machine, pair: QueuePair) -> None:
    """Let the sender repeat all packets from the expected one on."""
    transfer = pair.sent[pair.expected][0]
    assert transfer.spread is not None
    pair.refused, pair.lost, pair.refused_at = True, False, pair.expected
    time_ps, who = (
        machine.now_ps + transfer.spread.nak_ps,
        owner_of(machine, transfer),
    )

    def arrive() -> None:
        pair.refused = False
        if transfer.spread is not None and transfer.spread.timeout_ps:
            repeat_lost(machine, pair, transfer, None)
        else:
            repeat_all(machine, pair)

    machine.plan(time_ps, Class.REPEAT, arrive, who, (transfer.flow, 0))
