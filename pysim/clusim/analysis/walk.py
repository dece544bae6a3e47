"""Critical path: from the end of a run back to its start, always to the last dependency.

Every segment is a span of time that begins at the end of the previous one, so the segments add up to the run exactly.
The walk only moves back in time, so it reads the completed slices block by block from the end. A proxy thread
processes slices one after the other, so the wait of one slice is the work on others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from clusim.analysis.network import Network
from clusim.analysis.slices import Slices, all_starts, predecessors
from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.engine.abi import NONE, Cause, ConnKind, Op, TaskKind
from clusim.results.trace.held import Records

MOST_RECORDS = 1 << 22
"""Records up to which the slices of threads are looked for."""


class ThreadClocks:
    """Proxy threads of a run, computed by the contract (section 7) from the slices' gates.

    Parameters
    ----------
    records : Records
        All completed slices.
    """

    def __init__(self, records: Records, slices: Slices, network: Network) -> None:
        self._records, self._slices, self._network = records, slices, network
        self._thread = network.image["instances"]["thread"]
        self._began: dict[tuple[int, int], int] | None = None

    def serves(self, instance: int) -> bool:
        """Return True if a thread does the work of an instance."""
        return int(self._thread[instance]) != NONE

    def posting_times_ps(self) -> dict[tuple[int, int], int]:
        """Return when proxy threads posted each slice (instance, number) [ps]; empty if too many."""
        if self._began is None:
            self._began = (
                self._follow() if self._records.count <= MOST_RECORDS else {}
            )
        return self._began

    def _follow(self) -> dict[tuple[int, int], int]:
        rows: list[tuple[int, int, int, int]] = []
        for block in self._records.blocks():
            has_thread = self._thread[block["instance"]] != NONE
            names = ("gate", "time", "instance", "seq")
            rows += zip(
                *(block[name][has_thread].tolist() for name in names), strict=True
            )
        free: dict[int, int] = {}
        began: dict[tuple[int, int], int] = {}
        for gate_ps, _, instance, seq in sorted(rows):
            thread = int(self._thread[instance])
            posting_ps, after_ps = message_ps(
                self._network, self._slices, instance, seq, gate_ps
            )
            began[instance, seq] = max(gate_ps, free.get(thread, 0)) + posting_ps
            free[thread] = began[instance, seq] + after_ps
        return began


def message_ps(
    network: Network, slices: Slices, instance: int, seq: int, time_ps: int
) -> tuple[int, int]:
    """Return the time of a thread before and after it has posted a slice [ps], with the empty slices of a piece."""
    table = slices.table(instance)
    fixed_ps = network.cost_ps("fixed_ps", instance, time_ps)
    after_ps = network.cost_ps("after_ps", instance, time_ps)
    copy_ps = network.copy_ps(
        instance, int(table.prims(seq)), int(table.bytes[seq]), time_ps
    )
    messages = int(table.slots[seq]) // max(
        1, int(network.image["instances"]["slots_per_slice"][instance])
    )
    return fixed_ps + copy_ps, after_ps + (messages - 1) * (fixed_ps + after_ps)


class StepKind(IntEnum):
    """Kinds of critical-path segments."""

    TRANSFER = 0  # a slice's data on their way out (writes) or in (reads)
    PACE = 1  # a CTA copying or reducing
    FIXED = 2  # a CTA's fixed cost of a step
    FLIGHT = 3  # the last written packets between the first wire and memory
    TAIL = 4  # flag that signals arrived data
    HEAD = 5  # flag that signals a free slot
    LAUNCH = 6  # from the start of a task to the start of its CTA
    SLOT = 7  # waiting for a free CTA slot
    KERNEL = 8
    DELAY = 9
    TASK = 10  # task without further detail


class Step(NamedTuple):
    """Segment of the critical path; indices that do not apply to its kind are -1.

    `connection` is the connection of the transfer, or of the flag; `wire` the last wire that the data crossed.
    """

    kind: StepKind
    start_ps: int
    end_ps: int
    task: int
    endpoint: int
    instance: int = -1
    seq: int = -1
    connection: int = -1
    wire: int = -1

    @property
    def length_ps(self) -> int:
        """Length of the span [ps]."""
        return self.end_ps - self.start_ps


class _Row(NamedTuple):
    time_ps: int
    gate_ps: int
    instance: int
    seq: int
    wire: int
    cause: int


class _Cursor:
    """Finds completed slices ever further back in time."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._index = records.num_blocks - 1

    def _upto(self, columns: dict[str, Array], time_ps: int) -> int:
        return int(np.searchsorted(columns["time"], time_ps, side="right")) - 1

    def find(self, instance: int, seq: int, time_ps: int) -> _Row:
        """Return slice `seq` of `instance`, completed at `time_ps` or before."""
        for index in range(self._index, -1, -1):
            columns = self._records.block(index)
            row = _find_backward(
                columns, self._upto(columns, time_ps), instance, seq
            )
            if row >= 0:
                self._index = index
                return _row(columns, row)
        raise TraceError(
            f"{self._records.path}: slice {seq} of instance {instance} is missing from the primitives"
        )

    def last_of(self, instances: range, time_ps: int) -> _Row | None:
        """Return a slice of `instances` completed at exactly `time_ps`, the last in the file."""
        for index in range(self._index, -1, -1):
            columns = self._records.block(index)
            high = self._upto(columns, time_ps) + 1
            low = int(np.searchsorted(columns["time"], time_ps, side="left"))
            instance = columns["instance"][low:high]
            rows = np.flatnonzero(
                (instance >= instances.start) & (instance < instances.stop)
            )
            if len(rows):
                self._index = index
                return _row(columns, low + int(rows[-1]))
            if low > 0:
                return None
        return None


def _find_backward(
    columns: dict[str, Array], start: int, instance: int, seq: int
) -> int:
    """Return the last row up to `start` of slice `seq` of `instance`, or -1; most are near."""
    high, width = start + 1, 256
    while high > 0:
        low = max(0, high - width)
        result = np.flatnonzero(
            (columns["instance"][low:high] == instance)
            & (columns["seq"][low:high] == seq)
        )
        if len(result):
            return low + int(result[-1])
        high, width = low, 4 * width
    return -1


def _row(columns: dict[str, Array], row: int) -> _Row:
    names = ("time", "gate", "instance", "seq", "wire", "cause")
    return _Row(*(int(columns[name][row]) for name in names))


class Walk:
    """The critical path of a traced run.

    Parameters
    ----------
    records : Records
        Its completed slices, open.
    start_ps, end_ps : ndarray
        Times of its tasks; -1 where not.
    """

    def __init__(
        self, records: Records, network: Network, start_ps: Array, end_ps: Array
    ) -> None:
        self.image = network.image
        self.network = network
        self._start_ps, self._end_ps = all_starts(network.image, start_ps), end_ps
        self.slices = Slices(network.image, self._start_ps, records.path)
        self.threads = ThreadClocks(records, self.slices, network)
        self._records = records
        self._cursor = _Cursor(records)
        self._owner = self.image["instances"]["task"]
        self._before = predecessors(self.image)

    def steps(self) -> Iterator[Step]:
        """Yield the segments from last to first; together they cover the run from 0 to its end."""
        if not len(self._end_ps):
            raise TraceError(f"{self._records.path}: no tasks, so no critical path")
        if self._records.cut:
            raise TraceError(
                f"{self._records.path}: the completed slices were cut off by the limit on its size;"
                " run again with a larger --trace-limit"
            )
        task: int | None = int(np.argmax(self._end_ps))
        if self._end_ps.min() < 0:
            # A run that did not end: the path to the last thing it completed.
            row = self._last_row()
            if row is not None and row.time_ps > int(self._end_ps.max()):
                task = yield from self._slice_steps(row)
        index = 0
        while task is not None:
            index += 1
            if index > len(self.image["tasks"]):
                raise self._circle()
            task = yield from self._task_steps(task)

    def _circle(self) -> TraceError:
        return TraceError(f"{self._records.path}: the waits form a cycle")

    def task_span(self, task: int) -> tuple[int, int]:
        """Return start and end of a task [ps]; -1 where not yet."""
        last = int(
            self._end_ps[task] if task < len(self._end_ps) else self._end_ps.max()
        )
        return int(self._start_ps[task]), last

    def _last_row(self) -> _Row | None:
        if not self._records.count:
            return None
        columns = self._records.block(self._records.num_blocks - 1)
        return _row(columns, len(columns["time"]) - 1)

    def _task_steps(self, task: int) -> Generator[Step, None, int | None]:
        """Yield the steps of a task that ended; return the task it waited for last."""
        row = self.image["tasks"][task]
        start_ps, end_ps = int(self._start_ps[task]), int(self._end_ps[task])
        kind, endpoint = int(row["kind"]), int(row["endpoint"])
        if kind == TaskKind.PROGRAM:
            instances = range(int(row["inst_lo"]), int(row["inst_hi"]))
            last = (
                self._cursor.last_of(instances, end_ps) if len(instances) else None
            )
            if last is not None:
                return (yield from self._slice_steps(last))
        if end_ps > start_ps:
            named = {
                TaskKind.KERNEL: StepKind.KERNEL,
                TaskKind.DELAY: StepKind.DELAY,
            }.get(TaskKind(kind), StepKind.TASK)
            yield Step(named, start_ps, end_ps, task, endpoint)
        return self._waited_for(task)

    def _waited_for(self, task: int) -> int | None:
        """Return the predecessor that ended last, the lowest of several."""
        result = self._before[task]
        return max(
            result,
            key=lambda other: (int(self._end_ps[other]), -other),
            default=None,
        )

    def _slice_steps(self, row: _Row | None) -> Generator[Step, None, int | None]:
        """Yield the steps from a completed slice back to the start of the first CTA on the way."""
        task, index = -1, 0
        while row is not None:
            index += 1
            if index > self._records.count:
                raise self._circle()
            task = int(self._owner[row.instance])
            yield from self._work(row, task)
            if row.cause == Cause.NONE and row.seq == 0:
                yield from self._start(row, task)
                return self._waited_for(task)
            row = yield from self._wait(row, task)
        return None

    def _work(self, row: _Row, task: int) -> Iterator[Step]:
        """Yield the segments of a slice after its gate, the last first."""
        prim = int(self.slices.table(row.instance).prims(row.seq))
        endpoint = int(self.image["instances"]["endpoint"][row.instance])
        began_ps = row.gate_ps + self.network.cost_ps(
            "fixed_ps", row.instance, row.gate_ps
        )
        if self.threads.serves(row.instance):
            handed_ps = self.threads.posting_times_ps().get(
                (row.instance, row.seq), began_ps
            )
            began_ps = min(row.time_ps, handed_ps)
        if row.time_ps > began_ps:
            kind, connection, wire = StepKind.PACE, -1, -1
            if row.wire != NONE:
                kind, wire = StepKind.TRANSFER, row.wire
                connection = self.transfer_connection(row.instance, prim)
                if connection == NONE:
                    raise TraceError(
                        f"{self._records.path}: slice {row.seq} of instance {row.instance} has a wire and no connection"
                    )
            read = self._read_connection(row.instance, prim) if wire >= 0 else NONE
            fetched_ps = began_ps
            if read != NONE:
                part = self._read_part(
                    read, connection, endpoint, self.slices.flags(prim)
                )
                fetched_ps += int(part * (row.time_ps - began_ps))
            who = (task, endpoint, row.instance, row.seq)
            if row.time_ps > fetched_ps:
                yield Step(kind, fetched_ps, row.time_ps, *who, connection, wire)
            if fetched_ps > began_ps:
                yield Step(kind, began_ps, fetched_ps, *who, read)
        if began_ps > row.gate_ps:
            yield Step(
                StepKind.FIXED,
                row.gate_ps,
                began_ps,
                task,
                endpoint,
                row.instance,
                row.seq,
            )

    def transfer_connection(self, instance: int, prim: int) -> int:
        """Return the connection that carries the (last) transfer of a primitive."""
        kinds = self.image["conns"]["kind"]
        send = self.slices.connection(instance, prim, send=True)
        if self.slices.flags(prim) & (Op.MCAST | Op.REDUCE | Op.AGGREGATE):
            return send
        if send != NONE and int(kinds[send]) == ConnKind.WRITE:
            return send
        return self.slices.connection(instance, prim, send=False)

    def _read_connection(self, instance: int, prim: int) -> int:
        """Return the connection over which a primitive reads before it writes, or `NONE`."""
        conns, flags = self.image["conns"], self.slices.flags(prim)
        send = self.slices.connection(instance, prim, send=True)
        receive = self.slices.connection(instance, prim, send=False)
        if NONE in (send, receive) or flags & (Op.MCAST | Op.REDUCE | Op.AGGREGATE):
            return NONE
        writes = int(conns["kind"][send]) == ConnKind.WRITE
        reads = (
            int(conns["kind"][receive]) == ConnKind.READ
            or int(conns["stage"][receive]) != NONE
        )
        return receive if reads and writes else NONE

    def _read_part(self, read: int, write: int, endpoint: int, flags: int) -> float:
        """Return the share of the read in a slice's transfers, at the rates of their paths."""
        rates = [
            self.network.way_rate(connection, endpoint, flags)
            for connection in (read, write)
        ]
        return rates[1] / sum(rates) if all(rates) else 0.0

    def _wait(self, row: _Row, task: int) -> Generator[Step, None, _Row]:
        """Yield the segments before a slice's gate opened; return the slice that opened it."""
        endpoint = int(self.image["instances"]["endpoint"][row.instance])
        who = (task, endpoint, row.instance, row.seq)
        if row.cause == Cause.NONE:
            return self._cursor.find(row.instance, row.seq - 1, row.gate_ps)
        prim = int(self.slices.table(row.instance).prims(row.seq))
        send = row.cause == Cause.SEND
        connection = self.slices.connection(row.instance, prim, send=send)
        find = self.slices.receiver_of if send else self.slices.sender_of
        other = None if connection == NONE else find(row.instance, row.seq)
        if other is None:
            raise TraceError(
                f"{self._records.path}: slice {row.seq} of instance {row.instance} waited for a slice"
                " that its connection does not have"
            )
        conn = self.image["conns"][connection]
        flag_ps = row.gate_ps - int(conn["head_ps" if send else "tail_ps"])
        opener = self._cursor.find(*other, flag_ps)
        if row.gate_ps > flag_ps:
            kind = StepKind.HEAD if send else StepKind.TAIL
            yield Step(kind, flag_ps, row.gate_ps, *who, connection)
        if flag_ps > opener.time_ps:
            flown, wire = connection, opener.wire
            if wire == NONE:
                flown, wire = self._fence(opener, connection), -1
            yield Step(StepKind.FLIGHT, opener.time_ps, flag_ps, *who, flown, wire)
        return opener

    def _fence(self, opener: _Row, connection: int) -> int:
        """Return the connection of the last multicast before a slice, for which its flag waits."""
        prims = self.slices.table(opener.instance).prim[: opener.seq]
        stores = np.flatnonzero(self.slices.multicasts(prims))
        if not len(stores):
            return connection
        return self.transfer_connection(opener.instance, int(prims[stores[-1]]))

    def _start(self, row: _Row, task: int) -> Iterator[Step]:
        """Yield the segments between the start of a task and the start of its CTA."""
        instance = self.image["instances"][row.instance]
        who = (task, int(instance["endpoint"]), row.instance, row.seq)
        start_ps = int(self._start_ps[task])
        launched_ps = start_ps + int(instance["start_ps"])
        if row.gate_ps > launched_ps:
            yield Step(StepKind.SLOT, launched_ps, row.gate_ps, *who)
        if launched_ps > start_ps:
            yield Step(StepKind.LAUNCH, start_ps, launched_ps, *who)
