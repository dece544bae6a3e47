"""Executor: performs the slices of a schedule on real numbers and checks the results.

`clusim.schedule.semantics` chooses the next slice itself and honours the gates of connections, so it finds deadlocks.
`Executor.apply` performs slices in the order of an engine's completion records instead, so it finds slices that an
engine finished before their input existed. `Executor.check` compares the outputs with the definition.

Data of a slice enter the connection's FIFO when the sender finishes it and leave it when the receiver does. A
``flag`` connection carries no data: the receiver finds its operand in local buffers.

Aggregation (reductions for a group of ranks in switches between nodes) is untimed: every member of a group performs
its aggregates in the same order. The result of the n-th exists when all members have reached their n-th. It is
reduced in member order; each member reads it when it advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InternalError, ScheduleError
from clusim.base.terms.operations import OF_NCCL, REDUCING
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.schedule.definition import (
    Region,
    exact_inputs,
    expected_outputs,
    random_inputs,
)
from clusim.schedule.dtypes import Element, combine, combine_all, divide
from clusim.schedule.execution_state import (
    AggregationGroup,
    CallBuffers,
    Runner,
    SliceFifo,
    find_groups,
)
from clusim.schedule.ir import ABSENT, Connection, Instance, Schedule
from clusim.schedule.iteration import Slice, iter_slices


@dataclass(frozen=True, slots=True)
class CallCheck:
    """Comparison of one collective call with its definition.

    Attributes
    ----------
    ok : bool
        Whether every element is right, within the tolerance.
    wrong : int
        Number of elements that are not.
    max_ulp : float
        Largest difference of a float reduction from the float64 result, in units of the last place
        of the sum of the operands' magnitudes; 0 for everything else.
    first : str
        Where the first wrong element is, or empty.
    """

    call: int
    operation: str
    ok: bool
    wrong: int
    max_ulp: float
    first: str


class Executor:
    """Executor of the programs of a schedule on real data.

    Parameters
    ----------
    schedule : Schedule
        Schedule to execute.
    inputs : list, optional
        Per call, the input elements of every position of its group (stored types); by default data for
        which every order of reduction is exact, or random data with ``data="random"``.
    """

    def __init__(
        self,
        schedule: Schedule,
        inputs: Sequence[Sequence[Array]] | None = None,
        *,
        data: str = "exact",
        seed: int = 0,
    ) -> None:
        self.schedule = schedule
        make = random_inputs if data == "random" else exact_inputs
        arrays = inputs or [
            make(call, seed + index) for index, call in enumerate(schedule.calls)
        ]
        rooms = _rooms(schedule)
        self._calls = [
            CallBuffers(*pair)
            for pair in zip(schedule.calls, arrays, rooms, strict=True)
        ]
        self._fifos = [
            SliceFifo(connection.slots) for connection in schedule.connections
        ]
        self._groups = find_groups(schedule)
        templates = schedule.templates
        self._runners = [
            Runner(iter_slices(instance, templates[instance.template]))
            for instance in schedule.instances
        ]

    def output(self, call: int, rank: int) -> Array:
        """Return the output elements of a rank in a call; unwritten parts hold a pattern."""
        buffers = self._calls[call]
        values = buffers.view("output", rank).view(buffers.kind.storage)
        if buffers.call.redop == "avg" and buffers.call.operation in REDUCING:
            return divide(buffers.kind, values, len(buffers.call.ranks))
        return values

    def apply(self, records: Iterable[Any]) -> None:
        """Perform slices in the order of an engine's completion records (time, instance, seq)."""
        for time_ps, instance, seq in records:
            runner = self._runners[int(instance)]
            if runner.next is None or runner.seq != int(seq):
                raise InternalError(
                    f"record at {time_ps} ps: slice {seq} of instance {instance}; expected slice {runner.seq}"
                )
            self._perform(int(instance), runner.next, int(time_ps))

    def step(self, index: int) -> list[tuple[str, int]]:
        """Perform the next slice of an instance with an open gate; return the gates that this may open."""
        instance, item = self.schedule.instances[index], self._runners[index].next
        assert item is not None
        self._perform(index, item, ABSENT)
        opened = []
        if item.prim.recv != ABSENT:
            opened.append(("slot", instance.connections[item.prim.recv]))
        if self._sends(item):
            opened.append(("data", instance.connections[item.prim.send]))
        if OPCODES[item.prim.op].flags & Op.AGGREGATE:
            group = self._groups[instance.connections[item.prim.send]]
            opened += [
                ("members", connection) for connection in group.connections.values()
            ]
        return opened

    def is_finished(self, index: int) -> bool:
        """Return True if all slices of instance `index` are finished."""
        return self._runners[index].done

    def blocked_on(self, index: int) -> tuple[str, int] | None:
        """Return ("data", "slot" or "members", connection) that the next slice of an instance waits for, or None."""
        instance, item = self.schedule.instances[index], self._runners[index].next
        if item is None:
            return None
        if OPCODES[item.prim.op].flags & Op.AGGREGATE:
            connection = instance.connections[item.prim.send]
            group = self._groups[connection]
            waits = not group.has_result(instance.rank) and self._absent(
                group, instance.rank
            )
            return ("members", connection) if waits else None
        need = item.slots
        if item.prim.recv != ABSENT:
            connection = instance.connections[item.prim.recv]
            if self._fifos[connection].tail - self._fifos[connection].head < need:
                return "data", connection
        if self._sends(item):
            connection = instance.connections[item.prim.send]
            fifo = self._fifos[connection]
            if fifo.issued + need - fifo.head > fifo.slots:
                return "slot", connection
        return None

    def _absent(self, group: AggregationGroup, rank: int) -> list[int]:
        """Return the members of a group that have not reached the current aggregate of `rank`."""
        absent = []
        for member in group.members:
            item = (
                self._runners[group.users[member]].next
                if member in group.users
                else None
            )
            is_aggregate = (
                item is not None and OPCODES[item.prim.op].flags & Op.AGGREGATE
            )
            if not is_aggregate or group.done[member] != group.done[rank]:
                absent.append(member)
        return absent

    @staticmethod
    def _sends(item: Slice) -> bool:
        return bool(OPCODES[item.prim.op].flags & Op.SEND)

    def _perform(self, index: int, item: Slice, time_ps: int) -> None:
        """Perform one slice: read the operand, compute, store, send, and advance the instance."""
        instance, runner = self.schedule.instances[index], self._runners[index]
        incoming, mask = self._take(index, instance, item, time_ps)
        task = self.schedule.tasks[instance.task]
        result: Array | None = None
        if task.call != ABSENT:
            buffers = self._calls[task.call]
            buffers.entered[instance.rank] |= mask
            mask = buffers.entered[instance.rank]
            if item.size:
                result = self._compute(buffers, instance, item, incoming, time_ps)
        if self._sends(item):
            self._post(instance, item, result, mask)
        runner.seq += 1
        runner.next = next(runner.iterator, None)
        runner.done = runner.next is None

    def _take(
        self, index: int, instance: Instance, item: Slice, time_ps: int
    ) -> tuple[Array | None, int]:
        if item.prim.recv == ABSENT:
            return None, 0
        number = instance.connections[item.prim.recv]
        fifo = self._fifos[number]
        if not fifo.items:
            raise InternalError(
                f"record at {time_ps} ps: {self._where(index)} finished {item.prim.op} before connection"
                f" {number} had its data"
            )
        fifo.head += item.slots
        return fifo.items.popleft()

    def _post(
        self, instance: Instance, item: Slice, result: Array | None, mask: int
    ) -> None:
        number = instance.connections[item.prim.send]
        fifo = self._fifos[number]
        carries = self.schedule.connections[number].kind == "data"
        fifo.issued += item.slots
        fifo.tail += item.slots
        fifo.items.append(
            (result.copy() if carries and result is not None else None, mask)
        )

    def _compute(
        self,
        buffers: CallBuffers,
        instance: Instance,
        item: Slice,
        incoming: Array | None,
        time_ps: int,
    ) -> Array | None:
        prim, rank, kind = item.prim, instance.rank, buffers.kind
        op = prim.op
        if op in ("signal", "waitSignal") and incoming is None:
            return None
        if OPCODES[op].flags & (Op.MCAST | Op.REDUCE):
            self._multimem(buffers, instance, item)
            return None
        if OPCODES[op].flags & Op.AGGREGATE:
            self._aggregate(buffers, instance, item, time_ps)
            return None
        local = None
        if incoming is None or "Reduce" in op:
            local = buffers.read(prim.src, rank, item.src_offset, item.size)
        if incoming is not None and len(incoming) * kind.size_bytes != item.size:
            raise ScheduleError(
                f"rank {rank} channel {instance.channel}: {op} of {item.size} bytes meets a slice of"
                f" {len(incoming) * kind.size_bytes}; both ends must use the same chunk numbers and shape"
            )
        result = incoming if local is None else local
        assert result is not None
        if incoming is not None and local is not None:
            result = combine(kind, buffers.call.redop, incoming, local)
        if op == "reduce":
            current = buffers.read(prim.dst, rank, item.dst_offset, item.size)
            result = combine(kind, buffers.call.redop, current, result)
        if op not in ("send", "sendMore", "recvReduceSend"):
            buffers.write(prim.dst, rank, item.dst_offset, result)
        return result

    def _multimem(
        self, buffers: CallBuffers, instance: Instance, item: Slice
    ) -> None:
        prim = item.prim
        flags = OPCODES[prim.op].flags
        members = self.schedule.connections[instance.connections[prim.send]].members
        if flags & Op.REDUCE:
            parts = [
                buffers.read(prim.src, rank, item.src_offset, item.size)
                for rank in members
            ]
            result = combine_all(buffers.kind, buffers.call.redop, parts)
        else:
            result = buffers.read(
                prim.src, instance.rank, item.src_offset, item.size
            ).copy()
        for rank in members if flags & Op.MCAST else (instance.rank,):
            buffers.write(prim.dst, rank, item.dst_offset, result)

    def _aggregate(
        self, buffers: CallBuffers, instance: Instance, item: Slice, time_ps: int
    ) -> None:
        """Reduce the operands of all group members for the first of them, and store the result."""
        connection = instance.connections[item.prim.send]
        group, rank = self._groups[connection], instance.rank
        if not group.has_result(rank):
            absent = self._absent(group, rank)
            if absent:
                raise InternalError(
                    f"record at {time_ps} ps: rank {rank} finished aggregate {group.done[rank]} of group"
                    f" {self.schedule.connections[connection].key} before rank {absent[0]} had started it"
                )
            parts = []
            for member in group.members:
                pending = self._runners[group.users[member]].next
                assert pending is not None
                if pending.size != item.size:
                    raise ScheduleError(
                        f"rank {rank} channel {instance.channel}: aggregate of {item.size} bytes meets"
                        f" {pending.size} of rank {member}; all members must use the same chunks and shape"
                    )
                parts.append(
                    buffers.read(
                        pending.prim.src, member, pending.src_offset, pending.size
                    )
                )
            group.put(rank, combine_all(buffers.kind, buffers.call.redop, parts))
        buffers.write(item.prim.dst, rank, item.dst_offset, group.take(rank))

    def _where(self, index: int) -> str:
        instance = self.schedule.instances[index]
        return f"rank {instance.rank} channel {instance.channel}"

    def describe_block(self, index: int) -> str:
        """Describe in a few words the condition that blocks instance `index`."""
        item = self._runners[index].next
        waits = self.blocked_on(index)
        if item is None or waits is None:
            return f"{self._where(index)}: not started"
        connection: Connection = self.schedule.connections[waits[1]]
        return (
            f"{self._where(index)}: {item.prim.op} (slice {self._runners[index].seq}) waits for {waits[0]} of"
            f" {connection.src}->{connection.dst}"
        )

    def check(self, tolerance_ulp: float | None = None) -> list[CallCheck]:
        """Compare every call's outputs with its definition.

        Parameters
        ----------
        tolerance_ulp : float, optional
            Allowed difference of float reductions in units of the last place of the sum of magnitudes; None requires
            equality, which holds for data that are exact in every order.
        """
        self._check_drained()
        return [
            self._check_call(index, buffers, tolerance_ulp)
            for index, buffers in enumerate(self._calls)
        ]

    def _check_drained(self) -> None:
        for index, runner in enumerate(self._runners):
            if not runner.done:
                raise InternalError(
                    f"{self._where(index)}: not finished, at slice {runner.seq}"
                )
        for number, fifo in enumerate(self._fifos):
            if fifo.items:
                raise ScheduleError(
                    f"connection {number}: {len(fifo.items)} slices were sent and never received"
                )

    def _check_call(
        self, index: int, buffers: CallBuffers, tolerance_ulp: float | None
    ) -> CallCheck:
        call, kind = buffers.call, buffers.kind
        wrong, worst, first = 0, 0.0, ""
        if call.operation == "barrier":
            everyone = (1 << len(call.ranks)) - 1
            late = [rank for rank in call.ranks if buffers.entered[rank] != everyone]
            return CallCheck(
                index,
                call.operation,
                not late,
                len(late),
                0.0,
                f"rank {late[0]}" if late else "",
            )
        if call.operation not in _CHECKED:
            return CallCheck(index, call.operation, True, 0, 0.0, "")
        for region in expected_outputs(call, buffers.inputs):
            rank = call.ranks[region.position]
            low = region.offset // kind.size_bytes
            got = self.output(index, rank)[low : low + len(region.values)]
            bad = got != region.values
            if region.wide is not None and tolerance_ulp is not None:
                ulps = _ulps(kind, got, region)
                worst = max(worst, float(ulps.max(initial=0.0)))
                bad = ~(ulps <= tolerance_ulp)
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                pair = (
                    kind.widen(got[at : at + 1])[0],
                    kind.widen(region.values[at : at + 1])[0],
                )
                first = (
                    first
                    or f"rank {rank} element {low + at}: {pair[0]} instead of {pair[1]}"
                )
                wrong += int(bad.sum())
        return CallCheck(index, call.operation, wrong == 0, wrong, worst, first)


def _rooms(schedule: Schedule) -> list[int]:
    """Return the ends of the buffers used by programs of calls, if beyond the data [bytes]."""
    rooms = [0] * len(schedule.calls)
    for instance in schedule.instances:
        call = schedule.tasks[instance.task].call
        if call != ABSENT and instance.limit > schedule.calls[call].bytes:
            rooms[call] = max(rooms[call], instance.limit)
    return rooms


_CHECKED = (*OF_NCCL, "send")


def _ulps(kind: Element, got: Array, region: Region) -> Array:
    """Return the difference from the float64 result in units of the last place of its scale."""
    assert region.wide is not None
    assert region.scale is not None
    exponent = np.frexp(np.maximum(region.scale, np.finfo(np.float32).tiny))[1] - 1
    unit: Array = np.ldexp(1.0, exponent - kind.mantissa_bits)
    difference: Array = np.abs(kind.to_float64(got) - region.wide)
    return difference / unit
