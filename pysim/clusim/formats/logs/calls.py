"""The calls of a log: a table of distinct calls, and the sequence of indices into it.

A collective is a call of its communicator; the sends and receives of a communicator with one opCount
form one call, because NCCL launches them together. So do the n-th puts and signals of ranks, between their waits:
lines of waits do not name signals, so that a wait is assumed to be for its group's. Names are clusim's:
``allreduce``, ``all_gather``, ...
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from clusim.base.match import message_ends
from clusim.base.terms.dtypes import IN_TABLES, REDUCTIONS
from clusim.base.terms.operations import (
    ENDS,
    OF_NCCL,
    ONE_SIDED,
    REDUCING,
    ROOTED,
    find_operation,
)
from clusim.formats.logs.columns import NONE, Repeating
from clusim.formats.logs.log import Log
from clusim.formats.logs.operations import DATATYPES, TYPE_BYTES
from clusim.formats.logs.tables import TableRun

MOST_BYTES = 1 << 40
"""Largest plausible size of a call [bytes]."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A logged call.

    Attributes
    ----------
    comm : int
        Number of its communicator.
    bytes : int
        The largest buffer of a rank [bytes].
    algorithm, protocol : str
        As in the tuner's line; empty without such a line, with 0 as `channels`.
    messages : tuple of (source, target, bytes)
        Of a group of sends and receives, or of puts (0 bytes: a signal): ranks of the communicator.
    model_us : float
        Estimate of NCCL's tuner [us]; -1 if it was not printed.
    """

    comm: int
    operation: str
    bytes: int
    dtype: str = "float32"
    redop: str = "sum"
    root: int = NONE
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    messages: tuple[tuple[int, int, int], ...] = ()
    model_us: float = -1.0


@dataclass(slots=True)
class CallTable:
    """Distinct calls, and the sequence: `call`, `stream` and `time_ns` (-1: unknown) of each."""

    distinct: list[LoggedCall] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    assumed: list[str] = field(default_factory=list)
    source: str = ""
    _number: dict[LoggedCall, int] = field(default_factory=dict)

    def add(self, call: LoggedCall, stream: int, time_ns: int, line: int) -> None:
        """Append a call."""
        number = self._number.setdefault(call, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(call)
        self.call.append(number)
        self.stream.append(stream)
        self.time_ns.append(time_ns)
        self.line.append(line)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of occurrences of each distinct call."""
        return np.bincount(
            np.array(self.call, np.int64), minlength=len(self.distinct)
        )


_LoggedEnd = tuple[int, int, int, str]
"""Source, target and bytes of a message, and its end."""


def logged_operation(name: str) -> str:
    """Return the operation of a name in a log, empty if clusim cannot simulate it."""
    result = find_operation(name)
    return result.name if result is not None and result.name in OF_NCCL else ""


def call_table(log: Log, *, limit: int | None = None) -> CallTable:
    """Return the calls of a log, at most the first `limit`.

    Without lines of calls, each row of nccl-tests' tables is one call.
    """
    table = CallTable()
    if len(log.operations):
        table.source = "calls" if len(log.calls) else "tuning lines"
        _from_operations(log, table, limit)
    else:
        _from_rows(log, table, limit)
    return table


def _from_operations(log: Log, table: CallTable, limit: int | None) -> None:
    groups: dict[tuple[str, int, int], int] = {}
    waits: Counter[tuple[int, int]] = Counter()
    messages: list[tuple[str, dict[_LoggedEnd, int], int]] = []
    order: list[LoggedCall | int] = []
    remaining: list[tuple[int, int, int]] = []
    for row in _rows(log.operations):
        comm, stream, time_ns, line = (
            row.communicator,
            row.stream,
            row.time_ns,
            row.line,
        )
        text = log.facts.names[row.name] if row.name >= 0 else ""
        problem = _problem(log, row, text)
        if problem:
            table.skipped[problem] += 1
            continue
        if text == "WaitSignal":
            waits[comm, row.rank] += 1
            continue
        if text in ENDS:
            kind = "puts" if text in ONE_SIDED else "messages"
            launch = waits[comm, row.rank] if kind == "puts" else row.op_count
            at = groups.get((kind, comm, launch))
            if at is None:
                if limit is not None and len(order) >= limit:
                    break
                at = groups[kind, comm, launch] = len(messages)
                messages.append((kind, defaultdict(int), comm))
                order.append(at)
                remaining.append((stream, time_ns, line))
            if row.rank >= 0 and row.root >= 0:
                end = "recv" if text == "Recv" else "send"
                ends = message_ends(end, row.rank, row.root)
                messages[at][1][*ends, row.size, end] += 1
            continue
        if limit is not None and len(order) >= limit:
            break
        call = _collective(log, row, text)
        if call is None:
            table.skipped[f"{text or 'call'} without a known size or kind"] += 1
            continue
        if not row.agree:
            table.skipped[
                "calls in which ranks contradict each other: the first rank is used"
            ] += 1
        order.append(call)
        remaining.append((stream, time_ns, line))
    for item, (stream, time_ns, line) in zip(order, remaining, strict=True):
        if isinstance(item, int):
            result = _messages(log, table, *messages[item])
            if result is not None:
                table.add(result, stream, time_ns, line)
        else:
            table.add(item, stream, time_ns, line)


@dataclass(slots=True)
class _Row:
    """An operation, with the values of its columns."""

    communicator: int
    name: int
    op_count: int
    size: int
    type: int
    op: int
    root: int
    rank: int
    choice: int
    stream: int
    time_ns: int
    line: int
    agree: int
    count: int


def _rows(operations: Repeating) -> Iterator[_Row]:
    for rows in operations.windows():
        columns = [
            operations.column(column.name, rows).tolist() for column in fields(_Row)
        ]
        yield from (_Row(*values) for values in zip(*columns, strict=True))


def _problem(log: Log, row: _Row, name: str) -> str:
    """Return the reason why a row cannot be a call, empty if it can."""
    comm, size, kind = row.communicator, row.size, row.type
    if comm < 0 or log.communicators[comm].n_ranks < 1:
        return f"{name or 'calls'} of a communicator of unknown size"
    if log.communicators[comm].n_ranks == 1:
        return f"{name} on a communicator of one rank"
    if kind >= len(TYPE_BYTES):
        return f"{name} with unknown datatype {kind}"
    peer = name in ENDS and name != "WaitSignal"
    if row.count == 0 and name not in ("Signal", "WaitSignal"):
        return f"{name} of 0 elements"
    if not (row.count == 0 or 0 < size <= MOST_BYTES):
        return f"{name} with an impossible size"
    if row.root >= log.communicators[comm].n_ranks and (
        peer or logged_operation(name) in ROOTED
    ):
        return f"{name} of a root or peer that the communicator does not have"
    if name and name not in ENDS and not logged_operation(name):
        return f"{name}, which clusim does not simulate"
    return ""


def _collective(log: Log, row: _Row, name: str) -> LoggedCall | None:
    comm, size, kind, op = row.communicator, row.size, row.type, row.op
    root, choice = row.root, row.choice
    communicator = log.communicators[comm]
    operation = logged_operation(name)
    if not operation:  # only the tuner's line, without the collective's name
        run = log.run_of(communicator)
        operation = logged_operation(run.collective()) if run is not None else ""
    if not operation:
        return None
    chosen = log.facts.choice(choice)
    channels = chosen.last - chosen.first + 1 if chosen.first >= 0 else 0
    return LoggedCall(
        comm,
        operation,
        size,
        DATATYPES[kind] if kind >= 0 else _row_type(log, comm, size),
        REDUCTIONS[op]
        if operation in REDUCING and 0 <= op < len(REDUCTIONS)
        else "sum",
        min(max(root, 0), communicator.n_ranks - 1) if operation in ROOTED else NONE,
        chosen.algorithm,
        chosen.protocol,
        max(0, channels),
        model_us=chosen.time_us,
    )


def _row_type(log: Log, comm: int, size: int) -> str:
    """Return the type of the row of nccl-tests with this size, else float32."""
    run = log.run_of(log.communicators[comm])
    if run is not None and size in run.sizes:
        return IN_TABLES[run.types[run.sizes.index(size)]].name
    return "float32"


def _messages(
    log: Log, table: CallTable, kind: str, counts: dict[_LoggedEnd, int], comm: int
) -> LoggedCall | None:
    """Return the call of a group of messages or puts; unlogged ranks are assumed symmetric."""
    communicator = log.communicators[comm]
    n = communicator.n_ranks
    inside: dict[tuple[int, int, int], int] = {}
    for (source, target, size, _), times in counts.items():
        if max(source, target) < n:
            key = source, target, size
            inside[key] = max(inside.get(key, 0), times)
    if not inside:
        table.skipped["sends and receives of unknown ranks"] += 1
        return None
    if communicator.n_logged < n:
        text = "ranks that did not log are assumed to send to the same distances as ranks that did"
        if text not in table.assumed:
            table.assumed.append(text)
        distances = {
            ((dst - src) % n, size): times
            for (src, dst, size), times in inside.items()
        }
        inside = {
            (src, (src + far) % n, size): times
            for src in range(n)
            for (far, size), times in distances.items()
        }
    flat = [key for key, times in sorted(inside.items()) for _ in range(times)]
    moved: Counter[tuple[str, int]] = Counter()
    for src, dst, size in flat:
        moved["sent", src] += size
        moved["received", dst] += size
    return LoggedCall(comm, kind, max(moved.values()), "uint8", messages=tuple(flat))


def _from_rows(log: Log, table: CallTable, limit: int | None) -> None:
    """Add the rows of nccl-tests as calls."""
    for run in log.runs:
        operation = logged_operation(run.collective())
        comm = next(
            (c for c in log.communicators if c.run == run.number and c.n_ranks > 1),
            None,
        )
        if not run.sizes:
            continue
        if not operation or comm is None:
            table.skipped[
                f"rows of a table of unknown {_unknown(run, operation)}"
            ] += len(run.sizes)
            continue
        table.source = "rows of nccl-tests, each taken as one call"
        for size, kind, op, root, line in zip(
            run.sizes, run.types, run.ops, run.roots, run.row_lines, strict=True
        ):
            if limit is not None and len(table.call) >= limit:
                return
            if not 0 < size <= MOST_BYTES:
                table.skipped["rows of size 0"] += 1
                continue
            redop = op if operation in REDUCING and op in REDUCTIONS else "sum"
            top = (
                min(max(root, 0), comm.n_ranks - 1) if operation in ROOTED else NONE
            )
            table.add(
                LoggedCall(
                    comm.number, operation, size, IN_TABLES[kind].name, redop, top
                ),
                NONE,
                NONE,
                line,
            )


def _unknown(run: TableRun, operation: str) -> str:
    return (
        "number of ranks"
        if operation and run.n_ranks < 2
        else "communicator"
        if operation
        else "collective"
    )
