"""Traced run for exporters: tasks on streams, slices on channels, histories of wires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.expanded import expanded
from clusim.analysis.slices import Slices, all_starts
from clusim.analysis.tasks import Columns, RunTasks
from clusim.base.errors import TraceError, one_line
from clusim.base.terms.dtypes import DataType, find_dtype
from clusim.engine.abi import NONE, Op
from clusim.engine.image import OPCODES
from clusim.results.replicated import KINDS, FoldedBlocks
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.results.trace.inputs import read_run
from clusim.results.trace.reader import open_records

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
    """Trace opened for export.

    Calls of `inputs` include those of replicated blocks; `schedule` is as executed.
    """

    path: Path
    result: Result
    inputs: Inputs
    schedule: Columns

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Read a trace."""
        result, inputs = read_run(path)
        folded, written = result.tasks.folded, inputs.schedule
        if folded is not None:
            inputs = replace(inputs, schedule={**written, **_calls(inputs, folded)})
        return cls(Path(path), expanded(result), inputs, written)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs.rank_endpoint)

    def rank_name(self, rank: int) -> str:
        """Return the name of the node of a rank."""
        endpoint = int(self.inputs.rank_endpoint[rank])
        return self.inputs.nodes[int(self.inputs.image["endpoints"]["node"][endpoint])]

    def ranks(self, call: int) -> tuple[int, ...]:
        """Return the ranks of a call."""
        off = self.inputs.numbers("calls/ranks_off")
        return tuple(self.inputs.numbers("calls/ranks")[off[call] : off[call + 1]].tolist())

    def messages(self, task: TaskRow) -> list[tuple[str, int]]:
        """Return the messages of a task, ``send`` or ``recv`` with the peer's place in its call; empty for others."""
        operation, ranks = self.inputs.texts("calls/operation")[task.call], self.ranks(task.call)
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
            raise TraceError(f"{self.path}: calls/dtype: {one_line(word)}: not a known type")
        return result

    def columns(self) -> RunTasks | None:
        """Return the tasks of `by_rank` as columns; None for synthetic traffic."""
        if not self.inputs.texts("tasks/stream"):
            return None
        return RunTasks(self.result, self.schedule, by_place=True)

    def by_rank(self) -> Iterator[list[TaskRow]]:
        """Yield the started tasks of every rank by start time.

        Tasks of replicated blocks replace their pauses.
        """
        run, beyond = self.columns(), len(self.result.tasks.names)
        if run is None:
            return
        for tasks in run:
            numbers = tasks.number.copy()
            # Separate numbers: several tasks replace the same pause.
            repeated = self._folds[numbers]
            numbers[repeated] = beyond + np.arange(int(repeated.sum()))
            columns = (numbers, tasks.stream, tasks.name, tasks.kind, tasks.call)
            rows = zip(
                *(column.tolist() for column in (*columns, tasks.start_ps, tasks.end_ps)),
                strict=True,
            )
            yield [
                TaskRow(n, tasks.rank, run.streams[s], run.names[name], KINDS[k], call, low, high)
                for n, s, name, k, call, low, high in rows
            ]

    @property
    def _folds(self) -> Array:
        """Return the mask of pauses that replace blocks."""
        result, folded = np.zeros(len(self.result.tasks.names), bool), self.result.tasks.folded
        if folded is not None:
            result[folded.pauses_task] = True
        return result

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
        slices = Slices(image, all_starts(image, self.result.tasks.start_ps), self.path)
        programs = len(self.inputs.numbers("instances/task"))
        rank_of = np.full(len(image["endpoints"]), -1, np.int64)
        rank_of[self.inputs.rank_endpoint] = np.arange(self.num_ranks)
        ends = np.full(len(image["instances"]), -1, np.int64)
        links: dict[tuple[int, int], tuple[int, int, int]] = {}
        with open_records(self.path) as records:
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
    """Return the opcode's flags and the send and receive endpoints of a primitive.

    An absent endpoint is -1.
    """
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


def _calls(inputs: Inputs, folded: FoldedBlocks) -> dict[str, Array | list[str]]:
    """Return the columns of calls followed by those of replicated blocks, at each of their places."""
    sizes = np.diff(folded.parts_calls_off)[folded.places_part]
    place = np.repeat(np.arange(len(sizes)), sizes)
    row = np.arange(len(place)) - folded.place_calls_off[place]
    row += folded.parts_calls_off[folded.places_part[place]]
    first = folded.places_ranks_off[place]
    members = _members(folded)
    ranks = [
        folded.ranks_rank[low + members[call]]
        for low, call in zip(first, row.tolist(), strict=True)
    ]
    columns: dict[str, Array] = {
        name: getattr(folded, f"calls_{name}")[row] for name in ("bytes", "channels")
    }
    root = folded.calls_root[row]
    columns["root"] = np.where(
        root < 0, -1, folded.ranks_rank[np.minimum(first + root, len(folded.ranks_rank) - 1)]
    )
    columns["ranks"] = np.concatenate([np.zeros(0, np.int64), *ranks])
    result: dict[str, Array | list[str]] = {
        f"calls/{name}": np.append(inputs.numbers(f"calls/{name}"), values)
        for name, values in columns.items()
    }
    off = inputs.numbers("calls/ranks_off")
    result["calls/ranks_off"] = np.append(
        off, off[-1] + np.cumsum([len(group) for group in ranks], dtype=np.int64)
    )
    for name in ("operation", "algorithm", "protocol", "dtype", "redop"):
        texts = getattr(folded, f"calls_{name}")
        result[f"calls/{name}"] = [*inputs.texts(f"calls/{name}"), *(texts[call] for call in row)]
    return result


def _members(folded: FoldedBlocks) -> dict[int, Array]:
    """Return the ranks of a place that participate in every call of a part."""
    of_part = np.repeat(folded.parts_calls_off[:-1], np.diff(folded.parts_tasks_off))
    in_call = folded.tasks_call >= 0
    called, slots = (folded.tasks_call + of_part)[in_call], folded.tasks_slot[in_call]
    return {
        call: np.array(list(dict.fromkeys(slots[called == call].tolist())), np.int64)
        for call in range(len(folded.calls_operation))
    }
