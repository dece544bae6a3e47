"""Instances: the order of slices of a CTA, and its actions for each slice (section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from clusim.engine.abi import (
    NONE,
    Beyond,
    Cause,
    ConnKind,
    Kind,
    Mode,
    Op,
    Policy,
    State,
)
from clusim.engine.image import OP_FLAGS
from clusim.engine.reference.arbitration import start_transfer
from clusim.engine.reference.connections import ConnectionState, Post
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.packets import Terms, Transfer, steered
from clusim.engine.reference.specs import InstanceSpec, PrimSpec, ceil_div, round_up


@dataclass(frozen=True, slots=True)
class InstanceStep:
    """One step of an instance: primitive `number` of the template, which uses `slots` slots."""

    loop: int
    number: int
    prim: PrimSpec
    bytes: int
    slots: int


def loop_count(spec: InstanceSpec) -> int:
    """Return the number of loops of the instance through its template."""
    per_loop = spec.chunk_bytes
    if spec.template.mode == Mode.INTERLEAVED:
        per_loop *= spec.template.nchunks
    loops = ceil_div(spec.length, per_loop)
    return max(loops, 1) if any(prim.sync for prim in spec.template.prims) else loops


def slices(spec: InstanceSpec) -> Iterator[InstanceStep]:
    """Yield every slice that is not skipped."""
    for loop in range(loop_count(spec)):
        for number, prim in enumerate(spec.template.prims):
            for i in range(prim.repeat):
                sizes = _slice_sizes(spec, prim, _piece_bytes(spec, prim, i, loop))
                for place, size in enumerate(sizes):
                    slots = spec.slots_per_slice
                    if place == len(sizes) - 1 and not prim.sync:
                        slots *= spec.slices - place
                    yield InstanceStep(loop, number, prim, size, slots)


def _piece_bytes(spec: InstanceSpec, prim: PrimSpec, i: int, loop: int) -> int:
    template = spec.template
    q = (prim.base + prim.coef * spec.rotation + prim.step * i) % template.nchunks
    chunk = spec.chunk_bytes
    if template.mode == Mode.BLOCKED:
        lo = q * spec.stride + spec.offset + loop * chunk
        hi = min(lo + chunk, q * spec.stride + spec.offset + spec.length, spec.limit)
        return max(0, hi - lo)
    span = template.nchunks * chunk
    rem = spec.length - loop * span
    c = chunk
    if rem < span:
        c = min(chunk, round_up(ceil_div(rem, template.nchunks), spec.align))
    return min(max(min(rem, span) - q * c, 0), c)


def _slice_sizes(spec: InstanceSpec, prim: PrimSpec, piece_bytes: int) -> list[int]:
    if prim.sync:
        return [0]
    z = max(round_up(ceil_div(piece_bytes, spec.slices), 16), spec.slice_min)
    sizes = [min(max(piece_bytes - j * z, 0), z) for j in range(spec.slices)]
    return [size for size in sizes if size > 0]


_FLAGS = OP_FLAGS.tolist()


class InstanceHost(Protocol):
    """Interface of an instance to the rest of the run."""

    connections: list[ConnectionState]

    def record(self, instance: int, sequence: int) -> None:
        """Record the completion of a slice, now."""
        ...

    def free_slot(self, instance: InstanceState) -> None:
        """Note that the instance is after its last slice."""
        ...


@dataclass(slots=True)
class _Carry:
    """A transfer on behalf of a slice: wakes the instance, lets the slice post."""

    instance: InstanceState
    awaited: bool
    pace_ps: int
    post: Post | None
    connection: ConnectionState
    multicast: bool

    def all_granted(self, end_ps: int) -> None:
        """End a write when its packets have left."""
        if not self.awaited:
            self.instance.resume_at(max(end_ps, self.pace_ps))

    def note_completion(self, transfer: Transfer, v_ps: int) -> None:
        """End an awaited transfer when its data have arrived; let a write post."""
        transfer.complete = True
        if self.awaited:
            self.instance.resume_at(max(v_ps, self.pace_ps))
        if self.post is not None:
            self.post.complete = True
            self.connection.advance_posts()
        if self.multicast:
            self.instance.end_fence(transfer)


def first_group(
    machine: Machine, terms: Terms, group: int | None
) -> tuple[int, ...]:
    """Return the first-hop group without the wires that are down now (section 5)."""
    model = machine.model
    if terms.path is not None:
        return machine.usable(terms.path[:1])
    if group is not None:
        return machine.usable(model.groups[group])
    return machine.usable(
        model.route(model.endpoints[terms.requester].node, terms.targets[0])
    )


class InstanceState:
    """A CTA's program in progress.

    Attributes
    ----------
    slot : int
        CTA slot held, -1 without one.
    gate_ps, cause, wire
        Fields of the completion record of the present slice, in addition to its time.
    sequence : int
        Number of the present slice, not counting skipped slices.
    """

    def __init__(
        self,
        index: int,
        spec: InstanceSpec,
        machine: Machine,
        host: InstanceHost,
    ) -> None:
        self.index, self.spec = index, spec
        self.state = State.NOT_STARTED
        self.slot = -1
        self.sequence = 0
        self.loop = 0
        self.prim = spec.template.prim_lo
        self.blocked_on: int | None = None
        self.gate_ps = 0
        self.wire = NONE
        self.cause = Cause.NONE
        self._machine, self._host = machine, host
        self._slow_1024 = 1024
        self._fence: Transfer | None = None
        self._held: list[tuple[ConnectionState, Post]] = []
        self._at_fence = False
        self._steps = self._program()

    def advance(self) -> None:
        """Advance until the instance must wait, at the present time."""
        next(self._steps, None)

    def resume_at(self, time_ps: int) -> None:
        """Let the instance continue at `time_ps`."""
        machine = self._machine
        if time_ps <= machine.now_ps:
            machine.waves.runnable.add(self.index)
        else:
            who = (Beyond.INSTANCE, self.index)
            machine.at(time_ps, lambda: machine.waves.runnable.add(self.index), who)

    def end_fence(self, multicast: Transfer) -> None:
        """Let the slices that waited for a multicast post, if it is the fence; resume the next multicast."""
        if multicast is not self._fence:
            return
        self._fence = None
        for connection, post in self._held:
            post.done = True
            connection.advance_posts()
        self._held.clear()
        if self._at_fence:
            self._machine.waves.runnable.add(self.index)

    def _program(self) -> Iterator[None]:
        for step in slices(self.spec):
            self.loop, self.prim = (
                step.loop,
                self.spec.template.prim_lo + step.number,
            )
            yield from self._slice(step)
            self.sequence += 1
        self.state = State.DONE
        self._host.free_slot(self)

    def _slice(self, step: InstanceStep) -> Iterator[None]:
        """Execute one slice; the numbers refer to section 7."""
        prim, machine, slots = step.prim, self._machine, step.slots
        flags = _FLAGS[prim.opcode]
        recv = self._connection(prim.recv) if flags & Op.RECV else None
        send = self._connection(prim.send) if flags & Op.SEND else None
        yield from self._gate(recv, send, slots)  # 1.
        self._slow_1024 = machine.slow_1024[self.spec.endpoint]  # 2.
        writes = (
            send is not None and send.spec.kind == ConnKind.WRITE and not prim.sync
        )
        post = send.issue(slots, writes) if send else None
        yield from self._until(self._moves_at(step))
        yield from self._move(step, recv, send, post)  # 3.
        self._host.record(self.index, self.sequence)  # 4.
        if recv is not None:
            recv.consume(slots)
        if send is None or post is None:
            return
        if self._fence is not None:
            self._held.append((send, post))
            return
        post.done = True
        send.advance_posts()

    def _connection(self, position: int | None) -> ConnectionState:
        assert position is not None
        conn = self._machine.model.inst_conns[self.spec.conn_off + position]
        return self._host.connections[conn]

    def _gate(
        self, recv: ConnectionState | None, send: ConnectionState | None, slots: int
    ) -> Iterator[None]:
        self.cause = Cause.NONE
        while True:
            if recv is not None and not recv.can_receive(slots):
                self.state, blocking = State.WAIT_RECV, recv
            elif send is not None and not send.can_send(slots):
                self.state, blocking = State.WAIT_SEND, send
            else:
                break
            self.blocked_on = blocking.index
            self.cause = Cause.RECV if blocking is recv else Cause.SEND
            blocking.waiters.add(self.index)
            yield
        self.state, self.blocked_on = State.BUSY, None
        self.gate_ps, self.wire = self._machine.now_ps, NONE

    def _until(self, time_ps: int) -> Iterator[None]:
        if time_ps > self._machine.now_ps:
            self.resume_at(time_ps)
            yield

    def _moves_at(self, step: InstanceStep) -> int:
        """Return `t1`, when the slice's data begin to move."""
        machine, cost = self._machine, self.spec.cost
        fixed_ps = (cost.fixed_ps * self._slow_1024) >> 10
        if self.spec.thread is None:
            return machine.now_ps + fixed_ps
        work_ps = fixed_ps + ((step.bytes * self._work16(step.prim)) >> 16)
        t1 = max(machine.now_ps, machine.thread_free_ps[self.spec.thread]) + work_ps
        after_ps = (cost.after_ps * self._slow_1024) >> 10
        empty = step.slots // self.spec.slots_per_slice - 1
        machine.thread_free_ps[self.spec.thread] = (
            t1 + after_ps + empty * (fixed_ps + after_ps)
        )
        return t1

    def _work16(self, prim: PrimSpec) -> int:
        return (self.spec.cost.op_cost16[prim.opcode] * self._slow_1024) >> 10

    def _cost16(self, prim: PrimSpec) -> int:
        """Return the pace of a slice's data; a thread has done its work before they move."""
        return self._work16(prim) if self.spec.thread is None else 0

    def _move(
        self,
        step: InstanceStep,
        recv: ConnectionState | None,
        send: ConnectionState | None,
        post: Post | None,
    ) -> Iterator[None]:
        """Do the slice's transfers, if any, or let its pace pass (section 7, 3.)."""
        kinds = [] if step.prim.sync else self._transfers(step.prim, recv, send)
        for connection, kind in kinds:
            writes = kind == Kind.WRITE
            yield from self._transfer(
                step, connection, kind, post if writes else None
            )
        if not kinds:
            now_ps = self._machine.now_ps
            yield from self._until(
                now_ps + ((step.bytes * self._cost16(step.prim)) >> 16)
            )

    def _transfers(
        self,
        prim: PrimSpec,
        recv: ConnectionState | None,
        send: ConnectionState | None,
    ) -> list[tuple[ConnectionState, int]]:
        """Return the transfers of a primitive, in order: connection and kind of packets."""
        flags = _FLAGS[prim.opcode]
        if flags & Op.REDUCE:
            return [(self._connection(prim.send), Kind.RED_REQ)]
        if flags & Op.MCAST:
            return [(self._connection(prim.send), Kind.MCAST)]
        if flags & Op.AGGREGATE:
            return [(self._connection(prim.send), Kind.AGG_UP)]
        result: list[tuple[ConnectionState, int]] = []
        if recv is not None and (
            recv.spec.kind == ConnKind.READ or recv.spec.stage is not None
        ):
            result.append((recv, Kind.READ_REQ))
        if send is not None and send.spec.kind == ConnKind.WRITE:
            result.append((send, Kind.WRITE))
        return result

    def _terms(
        self, connection: ConnectionState, kind: int, prim: PrimSpec
    ) -> Terms:
        spec = connection.spec
        terms = Terms(
            kind=kind,
            requester=self.spec.endpoint,
            targets=(),
            policy=spec.policy,
            packet_bytes=spec.packet_bytes,
            burst=spec.burst,
            vc=spec.vc,
            vc_response=spec.vc_response,
            members=spec.members,
            window_bytes=spec.window_bytes,
        )
        if kind == Kind.WRITE:
            far = spec.dst if spec.stage is None else spec.stage
            first = Kind.WRITE if spec.via_first is None else Kind.FETCH
            targets = steered(spec.via_first, spec.via_last, far)
            return replace(terms, kind=first, targets=targets, path=spec.path)
        if kind == Kind.READ_REQ:
            far = spec.src if spec.stage is None else spec.stage
            return replace(
                terms, targets=(far,), path=spec.path, path_back=spec.path_back
            )
        if kind == Kind.AGG_UP:
            assert spec.vertex is not None
            path = self._machine.model.vertices[spec.vertex].path_up
            return replace(terms, path=path, vertex=spec.vertex)
        both = kind == Kind.RED_REQ and bool(_FLAGS[prim.opcode] & Op.MCAST)
        return replace(terms, multicast_result=both)

    def _transfer(
        self,
        step: InstanceStep,
        connection: ConnectionState,
        kind: int,
        post: Post | None,
    ) -> Iterator[None]:
        """Inject a transfer from now on, and wait until the slice may continue."""
        machine, terms = self._machine, self._terms(connection, kind, step.prim)
        size = ceil_div(step.bytes * connection.spec.expand_120, 120)
        cost16 = self._cost16(step.prim)
        start_ps = machine.now_ps
        pace_ps = start_ps + ((size * cost16) >> 16)
        machine.in_range(pace_ps, (Beyond.INSTANCE, self.index))
        awaited, multicast = terms.answered, kind == Kind.MCAST
        carry = _Carry(self, awaited, pace_ps, post, connection, multicast)
        transfer = Transfer(
            terms=terms,
            owner=carry,
            bytes=size,
            start_ps=start_ps,
            cost16=cost16,
            wires=first_group(machine, terms, connection.spec.first_group),
            rate=connection.rate if kind == Kind.WRITE else None,
            spread=connection.spec.spread if kind == Kind.WRITE else None,
            flow=connection.index,
        )
        staged_read = kind == Kind.READ_REQ and connection.spec.stage is not None
        transfer.base = connection.count(transfer.count, staged_read)
        if kind == Kind.WRITE and terms.policy == Policy.PINNED:
            transfer.base = connection.queue_key()
            transfer.queues = (
                connection.spec.queue_keys if connection.spec.split else ()
            )
        if terms.vertex is not None:
            if machine.vertices[terms.vertex].busy:
                machine.refuse((Beyond.VERTEX, terms.vertex))
            transfer.first_number = machine.vertices[terms.vertex].begin(transfer)
        start_transfer(machine, self.spec.endpoint, self.slot, transfer)
        yield
        self.wire = transfer.last_visible_wire if awaited else transfer.last_end_wire
        if multicast:
            yield from self._follow(transfer)

    def _follow(self, multicast: Transfer) -> Iterator[None]:
        """Wait for the fence, then let the multicast, whose packets have left, be the fence until it is complete."""
        self._at_fence = True
        while self._fence is not None:
            yield
        self._at_fence = False
        self._fence = None if multicast.complete else multicast
