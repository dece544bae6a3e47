"""Packets that their sender repeats, as their receiver refused them or they were lost (section 6).

Without retransmission all repeats enter their queue at once; with it they wait for the rate control, and enter singly.
"""

from __future__ import annotations

from functools import partial

from clusim.engine.abi import NEVER, Beyond, Kind, Policy
from clusim.engine.reference.conservation import OrderCounters
from clusim.engine.reference.machine import Class, Machine, Who
from clusim.engine.reference.packets import Line, Packet, QueuePair, Transfer
from clusim.engine.reference.spreads import least_loaded
from clusim.engine.reference.units import enter, next_vc


def owner_of(machine: Machine, transfer: Transfer) -> Who:
    """Return the connection or source of a transfer."""
    flow, conns = transfer.flow, len(machine.model.conns)
    return (
        (Beyond.CONNECTION, flow) if flow < conns else (Beyond.SOURCE, flow - conns)
    )


def _sender_of(machine: Machine, transfer: Transfer) -> OrderCounters:
    """Return the counters of a transfer's sending NIC, or of its endpoint."""
    terms = transfer.terms
    return machine.orders[
        terms.targets[0] if terms.kind == Kind.FETCH else terms.requester
    ]


def repeat_all(machine: Machine, pair: QueuePair) -> None:
    """Send all packets granted so far again, from the refused one on."""
    if pair.expected == len(pair.sent):
        return
    assert pair.refused_at is not None
    for transfer, i in pair.sent[pair.refused_at :]:
        if transfer.was_granted(i):
            transfer.line.repeats += 1
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
    counters = _sender_of(machine, transfer)
    counters.repeats += 1
    counters.repeated_bytes += packet.p
    machine.payload.repeated += packet.p
    inject_256 = model.endpoints[terms.requester].inject_256
    machine.accept_ps(terms.requester, packet.p * inject_256)
    candidate = len(model.nodes[node].incoming) * model.nvc + terms.vc
    enter(machine, wire, candidate, packet)


def repeat_lost(
    machine: Machine, pair: QueuePair, transfer: Transfer, missing: range | None
) -> None:
    """Let lost packets join the backlog: all that are not accepted, or some of `missing`.

    `transfer` is one of the queue pair.
    """
    line, sent, removed = transfer.line, pair.sent, list[int]()
    if missing is None:
        removed = [number for one, number in line.backlog if one is pair]
        line.backlog = [item for item in line.backlog if item[0] is not pair]
        line.repeats -= len(removed)
    numbers = _numbers_lost(pair, transfer, missing)
    line.backlog += [(pair, number) for number in numbers]
    line.repeats += len(numbers)
    if numbers:
        pair.progress_ps = machine.now_ps
    _reopen(machine, line)
    if transfer.rate is not None:
        more_bytes = _payload(pair, numbers) - _payload(pair, removed)
        transfer.rate.lose([sent[number] for number in numbers], more_bytes)
    send_next(machine, line)


def _payload(pair: QueuePair, numbers: list[int]) -> int:
    """Return the payload of packets of a queue pair [bytes]."""
    packets = (pair.sent[number] for number in numbers)
    return sum(transfer.packet_size(i) for transfer, i in packets)


def _numbers_lost(
    pair: QueuePair, transfer: Transfer, missing: range | None
) -> list[int]:
    spread = transfer.spread
    assert spread is not None
    return pair.list_lost(
        range(len(pair.sent)) if spread.selective and missing is None else missing
    )


def send_next(machine: Machine, line: Line) -> None:
    """Let the first packet of a backlog enter its queue, or wait for the rate control."""
    if line.busy or not line.backlog:
        return
    line.busy = True
    pair, number = line.backlog[0]
    transfer, i = pair.sent[number]
    time_ps = 0 if transfer.rate is None else transfer.rate.next_ps
    if time_ps == NEVER:
        assert transfer.rate is not None
        transfer.rate.blocked.append(partial(_resend, machine, line))
    elif time_ps > machine.now_ps:
        _plan_resend(machine, transfer, time_ps)
    else:
        del line.backlog[0]
        _send_again(machine, transfer, i)


def _plan_resend(machine: Machine, transfer: Transfer, time_ps: int) -> None:
    action, who = (
        partial(_resend, machine, transfer.line),
        owner_of(machine, transfer),
    )
    machine.plan(time_ps, Class.RESEND, action, who, (transfer.flow, 0))


def _resend(machine: Machine, line: Line) -> None:
    line.busy = False
    send_next(machine, line)


def count_repeat(machine: Machine, packet: Packet, end_ps: int) -> None:
    """Count a repeat granted now, which leaves its endpoint by `end_ps`; the flow continues after the last."""
    transfer, packet.repeated = packet.transfer, False
    transfer.line.repeats -= 1
    if packet.has_retransmission:
        pair, number = transfer.place(packet.number)
        packet.unneeded = pair.knows(number)
        if transfer.rate is not None:
            transfer.rate.count_sent(packet)
            for other in machine.flows[transfer.terms.requester].values():
                if other.flow == transfer.flow:
                    _expect(machine, other)
        _plan_resend(machine, transfer, end_ps)
    _reopen(machine, transfer.line)


def _reopen(machine: Machine, line: Line) -> None:
    if line.repeats == 0 and line.newest is not None:
        _expect(machine, line.newest)


def _expect(machine: Machine, transfer: Transfer) -> None:
    for wire in transfer.wires:
        machine.expect(transfer, wire)


def watch(machine: Machine, packet: Packet) -> None:
    """Let the queue pair of a packet that was dropped now wait for progress."""
    transfer = packet.transfer
    pair, spread = transfer.place(packet.number)[0], transfer.spread
    assert spread is not None
    if not pair.timing:
        _plan_timeout(machine, pair, transfer, machine.now_ps + spread.timeout_ps)


def _plan_timeout(
    machine: Machine, pair: QueuePair, transfer: Transfer, time_ps: int
) -> None:
    pair.timing = True
    action = partial(_timeout, machine, pair, transfer)
    who, order = owner_of(machine, transfer), (transfer.flow, 0)
    machine.plan(time_ps, Class.TIMEOUT, action, who, order)


def _timeout(machine: Machine, pair: QueuePair, transfer: Transfer) -> None:
    """Repeat packets that are not accepted, if the timeout passed without progress."""
    pair.timing = False
    spread = transfer.spread
    assert spread is not None
    if not _numbers_lost(pair, transfer, None):
        return
    due_ps = pair.progress_ps + spread.timeout_ps
    if due_ps > machine.now_ps:
        _plan_timeout(machine, pair, transfer, due_ps)
        return
    if pair.tries == spread.retries:
        machine.refuse(owner_of(machine, transfer))
        return
    pair.tries += 1
    counters = _sender_of(machine, pair.sent[pair.expected][0])
    counters.count_timeout(machine.now_ps, spread.timeout_ps)
    repeat_lost(machine, pair, transfer, None)
    _plan_timeout(machine, pair, transfer, machine.now_ps + spread.timeout_ps)
