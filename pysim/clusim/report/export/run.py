"""Traced run for exporters: tasks on streams, slices on channels, histories of wires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clusim.analysis.slices import Slices, all_starts
from clusim.analysis.tasks import RunTasks
from clusim.base.errors import TraceError, one_line
from clusim.base.terms.dtypes import DataType, find_dtype
from clusim.engine.abi import NONE, Op
from clusim.engine.image import OPCODES
from clusim.results.replicated import KINDS
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.results.trace.inputs import read_run
from clusim.results.trace.reader import open_records

_PRIMITIVES = tuple(OPCODES)


class TaskRow(NamedTuple):
    """One task that started.

    Attributes
    ----------
    kind : str
        ``kernel``, ``program``, ``delay`` or ``marker``.
    call : int
        Collective it belongs to, or -1.
    start_ps, end_ps : int
        When it ran [ps]; the end of the run if it had not ended.
    """

    number: int
    rank: int
    stream: str
    name: str
    kind: str
    call: int
    start_ps: int
    end_ps: int


class Piece(NamedTuple):
    """Completed slice of a schedule on one channel of a rank.

    Attributes
    ----------
    track : int
        Instance of the schedule.
    start_ps, end_ps : int
        From its gate, or from the end of the slice before, to its completion [ps].
    size_bytes : int
        Size of the slice.
    sends_to, gets_from : int
        Ranks, or -1.
    flow, source_flow : int
        Names of the sent flow and of the awaited flow; 0 if there is none.
    """

    track: int
    name: str
    start_ps: int
    end_ps: int
    size_bytes: int
    sends_to: int
    gets_from: int
    flow: int
    source_flow: int


@dataclass(frozen=True, slots=True)
class Run:
    """Trace opened for export."""

    path: Path
    result: Result
    inputs: Inputs

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Read a trace."""
        result, inputs = read_run(path)
        return cls(Path(path), result, inputs)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs.rank_endpoint)

    def rank_name(self, rank: int) -> str:
        """Return the name of the node of a rank."""
        endpoint = int(self.inputs.rank_endpoint[rank])
        return self.inputs.nodes[
            int(self.inputs.image["endpoints"]["node"][endpoint])
        ]

    def ranks(self, call: int) -> tuple[int, ...]:
        """Return the ranks of a call."""
        off = self.inputs.numbers("calls/ranks_off")
        return tuple(
            self.inputs.numbers("calls/ranks")[off[call] : off[call + 1]].tolist()
        )

    def messages(self, task: TaskRow) -> list[tuple[str, int]]:
        """Return the messages of a task, ``send`` or ``recv`` with the peer's place in its call; empty for others."""
        operation, ranks = (
            self.inputs.texts("calls/operation")[task.call],
            self.ranks(task.call),
        )
        at, size = ranks.index(task.rank), len(ranks)
        if operation == "sendrecv":
            return [("send", (at + 1) % size), ("recv", (at - 1) % size)]
        if operation == "send":
            return [("send", 1) if at == 0 else ("recv", 0)]
        return []

    def dtype(self, call: int) -> DataType:
        """Return the type of the elements of a call."""
        word = self.inputs.texts("calls/dtype")[call]
        result = find_dtype(word)
        if result is None:
            raise TraceError(
                f"{self.path}: calls/dtype: {one_line(word)}: not a known type"
            )
        return result

    def columns(self) -> RunTasks | None:
        """Return the tasks of `by_rank` as columns; None for synthetic traffic."""
        if not self.inputs.texts("tasks/stream"):
            return None
        return RunTasks(self.result, self.inputs.schedule)

    def by_rank(self) -> Iterator[list[TaskRow]]:
        """Yield the started tasks of every rank by start time.

        Tasks of replicated blocks replace their pauses.
        """
        run = self.columns()
        if run is None:
            return
        for tasks in run:
            columns = (
                tasks.number,
                tasks.stream,
                tasks.name,
                tasks.kind,
                tasks.call,
            )
            rows = zip(
                *(
                    column.tolist()
                    for column in (*columns, tasks.start_ps, tasks.end_ps)
                ),
                strict=True,
            )
            yield [
                TaskRow(
                    n,
                    tasks.rank,
                    run.streams[s],
                    run.names[name],
                    KINDS[k],
                    call,
                    low,
                    high,
                )
                for n, s, name, k, call, low, high in rows
            ]

    def tasks(self) -> list[TaskRow]:
        """Return the tasks that started, by start."""
        rows = [task for rank in self.by_rank() for task in rank]
        return sorted(rows, key=lambda task: (task.start_ps, task.number))

    def has_pieces(self) -> bool:
        """Return True if the trace holds completed slices."""
        try:
            with open_records(self.path) as records:
                return records.count > 0
        except TraceError:
            return False

    def pieces(self, *, flows: bool = True) -> Iterator[Piece]:
        """Yield the completed slices by completion; `flows` finds out which receive belongs to which send."""
        image = self.inputs.image
        slices = Slices(
            image, all_starts(image, self.result.tasks.start_ps), self.path
        )
        programs = len(self.inputs.numbers("instances/task"))
        rank_of = np.full(len(image["endpoints"]), -1, np.int64)
        rank_of[self.inputs.rank_endpoint] = np.arange(self.num_ranks)
        ends = np.full(len(image["instances"]), -1, np.int64)
        links: dict[tuple[int, int], tuple[int, int, int]] = {}
        with open_records(self.path) as records:
            for block in records.blocks():
                columns = (
                    block[name].tolist()
                    for name in ("time", "gate", "instance", "seq")
                )
                for time, gate, instance, seq in zip(*columns, strict=True):
                    if instance >= programs:
                        continue  # a proxy
                    table = slices.table(instance)
                    prim = int(table.prims(seq))
                    flags, to, source = _ends(slices, links, instance, prim)
                    origin = (
                        slices.sender_of(instance, seq)
                        if flows and flags & Op.RECV
                        else None
                    )
                    for _ in image["instances"]:
                        if origin is None or origin[0] < programs:
                            break
                        origin = slices.sender_of(*origin)
                    yield Piece(
                        instance,
                        _PRIMITIVES[int(image["prims"]["opcode"][prim])],
                        max(gate, int(ends[instance])) if gate <= time else time,
                        time,
                        int(table.bytes[seq]),
                        int(rank_of[to]) if to >= 0 else -1,
                        int(rank_of[source]) if source >= 0 else -1,
                        _flow(instance, seq) if flags & Op.SEND else 0,
                        _flow(*origin) if origin else 0,
                    )
                    ends[instance] = time


def _flow(instance: int, seq: int) -> int:
    return (instance << 32 | seq) + 1


def _ends(
    slices: Slices,
    cache: dict[tuple[int, int], tuple[int, int, int]],
    instance: int,
    prim: int,
) -> tuple[int, int, int]:
    """Return the opcode's flags and the send and receive endpoints of a primitive.

    An absent endpoint is -1.
    """
    if (instance, prim) not in cache:
        conns = slices.image["conns"]
        to = slices.connection(instance, prim, send=True)
        source = slices.connection(instance, prim, send=False)
        cache[instance, prim] = (
            slices.flags(prim),
            int(conns["dst"][to]) if to != NONE else -1,
            int(conns["src"][source]) if source != NONE else -1,
        )
    return cache[instance, prim]
