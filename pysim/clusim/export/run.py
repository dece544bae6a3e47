"""A traced run as exporters see it: tasks on streams of ranks, slices on channels, histories of wires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.abi import NONE, Op
from clusim.analysis.slices import Slices, all_starts
from clusim.errors import TraceError, one_line
from clusim.opcodes import OPCODES
from clusim.result import Result
from clusim.trace.held import Inputs
from clusim.trace.inputs import read_run
from clusim.trace.records import RecordFile
from clusim.vocabulary.dtypes import DataType, find_dtype

__all__ = ["Piece", "Run", "TaskRow"]

Array = NDArray[Any]

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
    """One completed slice of a program: what one channel of a rank did.

    Attributes
    ----------
    track : int
        Instance of the program.
    start_ps, end_ps : int
        From its gate, or from the end of the slice before, to its completion [ps].
    size_bytes : int
        Bytes it covers.
    sends_to, gets_from : int
        Ranks, or -1.
    flow, source_flow : int
        Name of what it sends, and of what it waited to receive; 0 for none.
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
    """A trace opened for export."""

    path: Path
    result: Result
    inputs: Inputs

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Read a trace."""
        return cls(Path(path), *read_run(path))

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs.rank_endpoint)

    def rank_name(self, rank: int) -> str:
        """Return the name of the node of a rank."""
        endpoint = int(self.inputs.rank_endpoint[rank])
        return self.inputs.nodes[int(self.inputs.image["endpoints"]["node"][endpoint])]

    def dtype(self, call: int) -> DataType:
        """Return the type of the elements of a call."""
        word = self.inputs.texts("calls/dtype")[call]
        found = find_dtype(word)
        if found is None:
            raise TraceError(f"{self.path}: calls/dtype: {one_line(word)}: not a known type")
        return found

    def tasks(self) -> list[TaskRow]:
        """Return the tasks that started, by start."""
        inputs, tasks = self.inputs, self.result.tasks
        if not inputs.texts("tasks/stream"):
            return []
        rank, call = inputs.numbers("tasks/rank"), inputs.numbers("tasks/call")
        stream, kind = inputs.texts("tasks/stream"), inputs.texts("tasks/kind")
        order = np.argsort(tasks.start_ps, kind="stable")
        return [
            TaskRow(
                i,
                int(rank[i]),
                stream[i],
                tasks.names[i],
                kind[i],
                int(call[i]),
                int(tasks.start_ps[i]),
                int(tasks.end_ps[i]) if tasks.end_ps[i] >= 0 else self.result.time_ps,
            )
            for i in order.tolist()
            if tasks.start_ps[i] >= 0
        ]

    def has_pieces(self) -> bool:
        """Return whether the trace holds completed slices."""
        try:
            with RecordFile(self.path) as records:
                return records.count > 0
        except TraceError:
            return False

    def pieces(self, *, flows: bool = True) -> Iterator[Piece]:
        """Yield the completed slices by completion; `flows` finds out which receive belongs to which send."""
        image = self.inputs.image
        slices = Slices(image, all_starts(image, self.result.tasks.start_ps), self.path)
        programs = len(self.inputs.numbers("instances/task"))
        rank_of = np.full(len(image["endpoints"]), -1, np.int64)
        rank_of[self.inputs.rank_endpoint] = np.arange(self.num_ranks)
        ends = np.full(len(image["instances"]), -1, np.int64)
        links: dict[tuple[int, int], tuple[int, int, int]] = {}
        with RecordFile(self.path) as records:
            for block in records.blocks():
                columns = (block[name].tolist() for name in ("time", "gate", "instance", "seq"))
                for time, gate, instance, seq in zip(*columns, strict=True):
                    if instance >= programs:
                        continue  # a proxy
                    table = slices.table(instance)
                    prim = int(table.prims(seq))
                    flags, to, source = _ends(slices, links, instance, prim)
                    origin = slices.sender_of(instance, seq) if flows and flags & Op.RECV else None
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
    slices: Slices, known: dict[tuple[int, int], tuple[int, int, int]], instance: int, prim: int
) -> tuple[int, int, int]:
    """Return the opcode's flags and the endpoints a primitive sends to and receives from, -1 for none."""
    if (instance, prim) not in known:
        conns = slices.image["conns"]
        to = slices.connection(instance, prim, send=True)
        source = slices.connection(instance, prim, send=False)
        known[instance, prim] = (
            slices.flags(prim),
            int(conns["dst"][to]) if to != NONE else -1,
            int(conns["src"][source]) if source != NONE else -1,
        )
    return known[instance, prim]
