"""Reduction units, aggregation trees, routing and virtual output queues of graph nodes.

- Reduction units of switches (section 6).
- Aggregation trees: packets up to the root, reduced in vertices, and copies down (section 6).
- Routing: next target, wire and VC of a packet (sections 4, VCs; 5, targets; 6, route choice).
- Entry of packets into virtual output queues (section 4): forwarded, or created in the node.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.engine.abi import Beyond, Kind
from clusim.engine.reference.machine import Class, Machine
from clusim.engine.reference.model import Model
from clusim.engine.reference.operations import UnitOperation, UnitState, Vertex
from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import ImageNode, VertexSpec
from clusim.engine.reference.spreads import choose, minimal_wire
from clusim.engine.reference.wires import Wire
from clusim.policies.kinds import DROP, MARK, TRIM


def next_vc(model: Model, packet: Packet, wire: int) -> int:
    """Return the VC of a packet on `wire`, given its previous wire, if any."""
    before, vc = packet.arrived_over, packet.first_vc
    if before is not None and model.wires[before].dim == model.wires[wire].dim:
        vc = packet.vc
    if model.wires[wire].dateline == 1:
        vc = min(packet.first_vc + 1, model.nvc - 1)
    return vc


def targets_at(model: Model, packet: Packet, node: int) -> tuple[int, ...]:
    """Return the remaining targets of a packet that arrived at `node` (section 5, targets)."""
    targets = packet.targets
    while len(targets) > 1 and model.targets[targets[0]].node == node:
        targets = targets[1:]
    return targets


def at_destination(model: Model, packet: Packet, node: int) -> bool:
    """True if the packet's last target is at `node` and the others are passed."""
    targets = targets_at(model, packet, node)
    return len(targets) == 1 and model.targets[targets[0]].node == node


def route_choice(
    machine: Machine, packet: Packet, target: int, arrived_over: Wire
) -> tuple[int, int]:
    """Return the wire towards a target, and the packet's route key after the choice."""
    group = machine.usable(machine.model.route(arrived_over.spec.dst, target))
    if len(group) == 1:
        return group[0], packet.key
    paths = machine.paths.get(arrived_over.spec.dst)
    if paths is not None:
        return paths.choose(packet, group), packet.key
    if packet.adaptive:
        return choose(
            machine, packet, target, group, arrived_over.spec.dst
        ), packet.key
    number = (packet.key + arrived_over.spec.ordinal) % len(group)
    return group[number], packet.key // len(group)


def enter(machine: Machine, out: int, candidate: int, packet: Packet) -> None:
    """Let a packet enter the queue `candidate` of wire `out`."""
    machine.wires[out].enqueue(candidate, packet, machine.model, machine.now_ps)
    machine.examine.add(out)


def forward(machine: Machine, over: Wire, vc: int, out: int, packet: Packet) -> bool:
    """Forward a packet, or a copy, that arrived over a wire on `vc`; congestion may mark it.

    Return False if it is dropped.
    """
    out, packet.vc = _path(machine, over, out, packet)
    wire = machine.wires[out]
    if _overflows(machine, wire, packet):
        if not _trim(machine, wire, packet):
            _drop(machine, wire, packet)
            return False
        vc = packet.vc
        if _overflows(machine, wire, packet):
            _drop(machine, wire, packet)
            return False
    enter(machine, out, over.spec.in_local * machine.model.nvc + vc, packet)
    return True


def _overflows(machine: Machine, wire: Wire, packet: Packet) -> bool:
    """True if a packet does not enter a queue of a wire; otherwise congestion may mark it."""
    size_bytes = packet.wire_bytes(machine.model, wire.index)
    shared = _memory_of(machine, wire.spec.src)
    if packet.kind == Kind.TRIMMED:
        return wire.spec.queue_bytes > 0 and wire.overflows_header(
            size_bytes, shared
        )
    may_drop = packet.has_retransmission and wire.spec.queue_bytes > 0
    queue, packet.whole = machine.queues.get(wire.index), False
    if queue is None:
        marked = wire.marks_packet(machine.model.seed, size_bytes)
        drops = wire.is_full(size_bytes, shared) or wire.has_its_part(shared)
        drops |= marked and wire.spec.red
    elif may_drop and wire.is_full(size_bytes, shared):
        return True
    else:
        answer = queue.judge(machine, packet, shared)
        marked, drops, packet.whole = (
            answer == MARK,
            answer in (TRIM, DROP),
            answer == DROP,
        )
    if may_drop and drops:
        return True
    wire.counters.marks += marked
    packet.marked |= marked
    return False


def _trim(machine: Machine, wire: Wire, packet: Packet) -> bool:
    """Remove the payload of a packet; return False if the wire, or its sender, does not use headers."""
    if packet.whole:
        return False
    spread = packet.transfer.spread
    assert spread is not None
    if not wire.spec.trim_vc or not spread.trimmed or packet.kind == Kind.TRIMMED:
        return False
    _forget_promise(machine, wire, packet)
    wire.counters.trims += 1
    wire.counters.trimmed_bytes += packet.p
    machine.payload.trimmed += packet.p
    packet.kind = Kind.TRIMMED
    packet.first_vc = packet.vc = wire.spec.trim_vc
    return True


def _forget_promise(machine: Machine, wire: Wire, packet: Packet) -> None:
    if packet.promised:
        size_bytes = packet.wire_bytes(machine.model, wire.index)
        machine.promised[wire.index, packet.vc] -= size_bytes
        packet.promised = False


def _memory_of(machine: Machine, node: int) -> tuple[int, int]:
    """Return the shared memory of a node's queues, and the bytes in it."""
    spec = machine.model.nodes[node]
    queues = [machine.wires[wire] for wire in spec.outgoing]
    used = sum(
        wire.counters.queued_bytes for wire in queues if wire.spec.queue_bytes
    )
    return spec.shared_bytes, used


def _drop(machine: Machine, wire: Wire, packet: Packet) -> None:
    """Let a packet vanish before it enters a queue."""
    assert packet.buffer is not None
    machine.release(packet.buffer, machine.now_ps)
    _forget_promise(machine, wire, packet)
    size_bytes = 0 if packet.kind == Kind.TRIMMED else packet.p
    wire.counters.drops += 1
    wire.counters.dropped_bytes += size_bytes
    machine.payload.dropped += size_bytes


def _path(machine: Machine, over: Wire, out: int, packet: Packet) -> tuple[int, int]:
    """Return the wire and VC of a packet: of a minimal path with credit, or of the route choice `out`."""
    spread = packet.transfer.spread
    if spread is None or spread.minimal_vc == 0 or not packet.adaptive:
        return out, next_vc(machine.model, packet, out)
    if packet.vc == spread.minimal_vc:
        packet.vc = packet.first_vc
    wire = minimal_wire(machine, packet, over.spec.dst)
    if wire is None:
        return out, next_vc(machine.model, packet, out)
    place = wire, spread.minimal_vc
    size = packet.wire_bytes(machine.model, wire)
    machine.promised[place] = machine.promised.get(place, 0) + size
    packet.promised = True
    return place


def emit(machine: Machine, node: ImageNode, out: int, packet: Packet) -> None:
    """Enqueue a packet created in a switch, in the queue of wire `out` for such packets."""
    candidate = len(node.incoming) * machine.model.nvc + packet.first_vc
    packet.vc = next_vc(machine.model, packet, out)
    enter(machine, out, candidate, packet)


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
        _admit_packet(machine, vertex, packet)
    else:
        vertex.waiting.append(packet)


def _admit_packet(machine: Machine, vertex: Vertex, packet: Packet) -> None:
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
    machine.plan(
        time_ps,
        Class.RESULT,
        lambda: _pass_result(machine, vertex, packet),
        who,
        order,
    )


def _pass_result(machine: Machine, vertex: Vertex, packet: Packet) -> None:
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
            _admit_packet(machine, vertex, waiter)
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


def _admit(
    machine: Machine, node: ImageNode, unit: UnitState, request: Packet
) -> None:
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
    machine.plan(
        time_ps,
        Class.RESULT,
        lambda: _result(machine, node, unit, request),
        who,
        order,
    )


def _result(
    machine: Machine, node: ImageNode, unit: UnitState, request: Packet
) -> None:
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
