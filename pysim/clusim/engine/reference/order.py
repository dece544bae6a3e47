"""Receivers that accept the packets of a transfer in order only (section 6, receivers in order)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, Kind, Policy
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import OrderCounters, Packet, Transfer
from clusim.engine.reference.spreads import least_loaded
from clusim.engine.reference.units import enter, next_vc


def receiver_of(machine: Machine, transfer: Transfer) -> OrderCounters:
    """Return the counters of a transfer's receiving NIC, or of its endpoint."""
    terms = transfer.terms
    vias = len(terms.targets) - 1 - (terms.kind == Kind.FETCH)
    return machine.orders[terms.targets[-2 if vias else -1]]


def keeps(machine: Machine, packet: Packet) -> bool:
    """Handle a packet that is not the expected one; return True if the receiver keeps it."""
    transfer = packet.transfer
    spread, order = transfer.spread, transfer.order
    assert spread is not None
    if packet.number < order.expected or packet.number in order.kept:
        return False
    if order.kept_bytes + packet.p <= spread.reorder_bytes:
        order.kept_bytes += packet.p
        receiver_of(machine, transfer).keep(packet.p)
        return True
    if order.refused:
        return False
    if order.refused_at == order.expected:
        order.lost = True
    else:
        refuse(machine, transfer)
    return False


def refuse(machine: Machine, transfer: Transfer) -> None:
    """Let the sender repeat all packets from the expected one on."""
    assert transfer.spread is not None
    order = transfer.order
    order.refused, order.lost, order.refused_at = True, False, order.expected
    flow, conns = transfer.flow, len(machine.model.conns)
    who = (Beyond.CONNECTION, flow) if flow < conns else (Beyond.SOURCE, flow - conns)
    time_ps = machine.now_ps + transfer.spread.nak_ps
    machine.plan(time_ps, Class.REPEAT, lambda: _repeat(machine, transfer), who, (flow, 0))


def _repeat(machine: Machine, transfer: Transfer) -> None:
    """Send all packets granted so far again, from the refused one on."""
    order = transfer.order
    order.refused = False
    if order.expected == transfer.count:
        return
    assert order.refused_at is not None
    for i in range(order.refused_at, transfer.count):
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
    transfer.order.repeats += 1
    sender = terms.targets[0] if terms.kind == Kind.FETCH else terms.requester
    machine.orders[sender].repeats += 1
    inject_256 = model.endpoints[terms.requester].inject_256
    machine.accept_ps(terms.requester, packet.p * inject_256)
    candidate = len(model.nodes[node].incoming) * model.nvc + terms.vc
    enter(machine, wire, candidate, packet)
