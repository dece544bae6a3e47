"""Aggregation trees: packets up to the root, reduced in vertices, and copies down.

Section 6 of the contract.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.packets import Packet, Vertex
from clusim.engine.reference.routing import emit, forward
from clusim.engine.reference.specs import VertexSpec
from clusim.engine.reference.wires import Wire


def goes_up(packet: Packet) -> bool:
    """True if a packet ends its way up at the end of its present wire."""
    return packet.kind == Kind.AGG_UP and packet.on_last_wire


def goes_down(machine: Machine, packet: Packet) -> bool:
    """True if a packet is copied to the children of a vertex at the end of its present wire."""
    if packet.kind != Kind.AGG_DOWN or not packet.on_last_wire:
        return False
    assert packet.vertex is not None
    return machine.model.vertices[packet.vertex].endpoint is None


def first_onward(machine: Machine, packet: Packet) -> int:
    """Return the first wire towards the first child of the vertex to which a packet descends."""
    assert packet.vertex is not None
    children = machine.model.vertices[packet.vertex].children
    return machine.model.vertices[children[0]].path_down[0]


def up_arrives(machine: Machine, packet: Packet) -> None:
    """Admit an AGG_UP at its parent vertex, or let it wait in its input buffer."""
    assert packet.vertex is not None
    parent = machine.model.vertices[packet.vertex].parent
    assert parent is not None
    vertex = machine.vertices[parent]
    if vertex.fits(packet.number):
        _admit(machine, vertex, packet)
    else:
        vertex.waiting.append(packet)


def _admit(machine: Machine, vertex: Vertex, packet: Packet) -> None:
    assert packet.buffer is not None
    assert vertex.spec.unit is not None
    machine.release(packet.buffer, machine.now_ps)
    children = len(vertex.spec.children)
    admitted = vertex.open.get(packet.number, 0) + 1
    if vertex.sizes.setdefault(packet.number, packet.p) != packet.p:
        machine.refuse((Beyond.VERTEX, vertex.index))
    if admitted < children:
        vertex.open[packet.number] = admitted
        return
    vertex.open.pop(packet.number, None)
    vertex.sizes.pop(packet.number)
    unit = machine.units[vertex.spec.unit]
    time_ps = unit.reduce(machine.now_ps, children * packet.p)
    who, order = (Beyond.UNIT, unit.index), (unit.index, 0)
    machine.plan(time_ps, Class.RESULT, lambda: _result(machine, vertex, packet), who, order)


def _result(machine: Machine, vertex: Vertex, packet: Packet) -> None:
    """Send a result up, or down from the root; then admit waiting packets (RESULT)."""
    assert vertex.spec.unit is not None
    node = machine.model.nodes[machine.model.units[vertex.spec.unit].node]
    if vertex.spec.parent is not None:
        path = vertex.spec.path_up
        made = _made(packet, Kind.AGG_UP, vertex.index, vertex.spec, path)
        emit(machine, node, path[0], made)
    else:
        for child in vertex.spec.children:
            spec = machine.model.vertices[child]
            made = _made(packet, Kind.AGG_DOWN, child, spec, spec.path_down)
            emit(machine, node, spec.path_down[0], made)
    vertex.finish()
    waiting, vertex.waiting = vertex.waiting, []
    for waiter in waiting:
        if vertex.fits(waiter.number):
            _admit(machine, vertex, waiter)
        else:
            vertex.waiting.append(waiter)


def _made(
    packet: Packet, kind: int, vertex: int, spec: VertexSpec, path: tuple[int, ...]
) -> Packet:
    """Return a packet of the same number that starts on a path of a vertex."""
    terms = packet.transfer.terms
    first_vc = terms.vc if kind == Kind.AGG_UP else terms.vc_response
    down = kind == Kind.AGG_DOWN and spec.endpoint is not None
    return Packet(
        transfer=packet.transfer,
        kind=kind,
        p=packet.p,
        targets=(spec.endpoint,) if down and spec.endpoint is not None else (),
        key=packet.key,
        first_vc=first_vc,
        vc=first_vc,
        request_wire=packet.request_wire,
        path=path,
        vertex=vertex,
        number=packet.number,
    )


def copies_down(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Copy an AGG_DOWN to the children of the vertex it reached; the copies share its buffer."""
    assert packet.vertex is not None
    assert packet.buffer is not None
    children = machine.model.vertices[packet.vertex].children
    packet.buffer.holders = len(children)
    for child in children:
        spec = machine.model.vertices[child]
        made = _made(packet, Kind.AGG_DOWN, child, spec, spec.path_down)
        copy = replace(made, buffer=packet.buffer, marked=packet.marked)
        forward(machine, wire, packet.vc, spec.path_down[0], copy)
