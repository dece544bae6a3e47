"""Reduction units of switches (section 6)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import Packet, UnitOperation, UnitState
from clusim.engine.reference.routing import emit, route_choice
from clusim.engine.reference.specs import ImageNode


def _unit_of(machine: Machine, node: ImageNode) -> UnitState:
    assert node.unit is not None
    return machine.units[node.unit]


def request_arrives(machine: Machine, node: ImageNode, packet: Packet) -> None:
    """Admit a RED_REQ, or let it wait in its input buffer."""
    unit = _unit_of(machine, node)
    if unit.waiting or not unit.fits(packet.p):
        unit.waiting.append(packet)
    else:
        _admit(machine, node, unit, packet)


def _admit(machine: Machine, node: ImageNode, unit: UnitState, request: Packet) -> None:
    assert request.buffer is not None
    assert request.arrived_over is not None
    unit.in_use_bytes += request.p
    unit.admitted += 1
    operation = unit.admitted
    terms = request.transfer.terms
    unit.operations[operation] = UnitOperation(request, len(terms.members))
    machine.release(request.buffer, machine.now_ps)
    came_over = machine.wires[request.arrived_over]
    for member in terms.members:
        out, key = route_choice(machine, request, member, came_over)
        fetch = Packet(
            transfer=request.transfer,
            kind=Kind.RED_FETCH,
            p=request.p,
            targets=(member,),
            key=key,
            first_vc=terms.vc,
            vc=terms.vc,
            request_wire=request.request_wire,
            operation=operation,
        )
        emit(machine, node, out, fetch)


def data_arrive(machine: Machine, node: ImageNode, packet: Packet) -> None:
    """Receive a member's RED_DATA; the last one starts the reduction."""
    unit = _unit_of(machine, node)
    assert packet.buffer is not None
    assert packet.operation is not None
    machine.release(packet.buffer, machine.now_ps)
    operation = unit.operations[packet.operation]
    operation.missing -= 1
    if operation.missing:
        return
    del unit.operations[packet.operation]
    members = len(packet.transfer.terms.members)
    time_ps = unit.reduce(machine.now_ps, members * packet.p)
    request = operation.request
    who, order = (Beyond.UNIT, unit.index), (unit.index, 0)
    machine.plan(time_ps, Class.RESULT, lambda: _result(machine, node, unit, request), who, order)


def _result(machine: Machine, node: ImageNode, unit: UnitState, request: Packet) -> None:
    """Send the result of an operation, then admit waiting requests (RESULT)."""
    assert request.arrived_over is not None
    out = machine.model.wires[request.arrived_over].reverse
    assert out is not None
    unit.in_use_bytes -= request.p
    terms = request.transfer.terms
    result = Packet(
        transfer=request.transfer,
        kind=Kind.RED_RESULT,
        p=request.p,
        targets=(terms.requester,),
        key=request.key,
        first_vc=terms.vc_response,
        vc=terms.vc_response,
        request_wire=request.request_wire,
    )
    emit(machine, node, out, result)
    while unit.waiting and unit.fits(unit.waiting[0].p):
        _admit(machine, node, unit, unit.waiting.popleft())
