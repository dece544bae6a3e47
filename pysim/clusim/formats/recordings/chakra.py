"""Chakra execution traces of MLCommons: a graph per rank, as .et files or PyTorch's JSON.

`chakra_files` finds files, `chakra_schema` reads nodes, `chakra_ranks` interprets them, and `chakra_graph` orders them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Final

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import GATHERING, ROOTED, full_bytes
from clusim.formats.recordings.chakra_files import find_files, number_files
from clusim.formats.recordings.chakra_graph import (
    CALLS,
    ChakraNode,
    Rank,
    number_calls,
    sort_nodes,
)
from clusim.formats.recordings.chakra_ranks import ChakraGraph, ChakraHost
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_REPEATED,
    Event,
    EventKind,
    Recording,
)
from clusim.formats.recordings.source import FileStream, Paths, names_of

_EAGER: Final = "ends of messages without a recorded time: a message is transferred when it is sent, as in ASTRA-sim"
_CYCLIC: Final = (
    "ranks with cyclic control dependencies: only data dependencies are kept"
)
_TRAFFIC: Final = "memory nodes: traffic of the GPU's memory"
_ROOFLINE: Final = "nodes without a duration: computed from num_ops and tensor_size at the GPU's bf16 rate and memory"

MOST_JOINED: Final = 8
"""Maximum number of dependencies through an empty node; an empty event joins more."""

_KINDS: Final[dict[str, EventKind]] = {
    "compute": "compute", "memory": "compute", "host": "delay", "collective": "collective", "send": "send",
    "recv": "recv",
}  # fmt: skip


def read(
    paths: Paths,
    num_ranks: int = 0,
    machine_ranks: int = 0,
    calls: int | None = None,
) -> Recording:
    """Read the traces of a job.

    Parameters
    ----------
    paths : path or paths
        The files of the ranks, a directory or archive, or the common prefix of their names before ``.0.et``. A
        ``comm_group.json`` in the same directory lists the ranks of each ``pg_name``.
    num_ranks : int
        Ranks of the topology, for a trace of one rank without a number of ranks; 0 is unknown.
    machine_ranks : int
        Ranks per node, for collectives over some dimensions only; 0 is unknown.
    calls : int or None
        Number of calls, from the start, of a rank that represents the others; by default, no limit.

    Raises
    ------
    InputError
        The files are not Chakra traces, are damaged, contradict each other, or are empty.
    """
    return _Reader(paths, num_ranks, machine_ranks, calls).recording()


class _Reader:
    """State of reading a job."""

    def __init__(
        self, paths: Paths, num_ranks: int, machine_ranks: int, calls: int | None
    ) -> None:
        self.calls = calls
        names = names_of(paths)
        self.name = (
            names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        )
        self.machine, self.machine_ranks = num_ranks, machine_ranks
        self.found = Recording("chakra", self.name)
        self.ranks: list[Rank] = []
        self.everyone: tuple[int, ...] = ()
        self.callers: dict[str, tuple[int, ...]] = {}
        self.notes: Counter[str] = Counter()
        self.files = find_files(self.name, names)
        self.size, self.common = self.files.siblings, self.files.tables
        self.found.skipped.update(self.files.skipped)
        if self.files.table_file:
            self.found.assumed.append(
                f"groups are read from {self.files.table_file}"
            )

    def recording(self) -> Recording:
        """Return the content of the files."""
        numbers = number_files([*self.files.traces, *self.files.hosts], self.found)
        for number, part in numbers:
            if self.files.hosts:
                self._host(number, part)
            else:
                self.ranks.append(ChakraGraph(number, part, self.found).rank)
        self.ranks.sort(key=lambda rank: rank.number)
        self._count_ranks()
        for rank in self.ranks:
            for node in rank.nodes.values():
                if node.kind in CALLS:
                    self._resolve(rank, node)
        self._sort_nodes()
        self._mark_eager()
        self._events()
        if any(rank.represents_all for rank in self.ranks):
            self._represent()
        of = {other: rank.number for rank in self.ranks for other in rank.represents}
        if of.keys() == set(range(self.found.num_ranks)):
            self.found.representatives = tuple(of[rank] for rank in range(len(of)))
        self.found.assumed += [
            f"{count} x {note}" for note, count in self.notes.items()
        ]
        return self.found.finish()

    def _represent(self) -> None:
        """Repeat the rank of a file that represents its job; in large jobs replay only that rank."""
        result, rank = self.found, self.ranks[0]
        if len(self.ranks) > 1:
            raise InputError(
                f"{rank.name}: represents all ranks, and there are other files"
            )
        if self.calls is not None:
            calls = (
                at
                for at, event in enumerate(result.events)
                if event.kind == "collective"
            )
            del result.events[
                next(islice(calls, self.calls, None), len(result.events)) :
            ]
        result.alike = (
            rank.number == 0
            and len(result.events) * result.num_ranks > MOST_REPEATED
        )
        if result.alike:
            result.assumed.append(
                f"the file states that rank 0 represents all {result.num_ranks}"
            )

    def _host(self, number: int, part: FileStream) -> None:
        host = ChakraHost(number, part, self.found)
        rank = host.rank
        if len(self.files.hosts) == 1 and number:
            rank.number = 0
        if host.recorded_by is not None:
            rank.number = host.recorded_by
        if any(other.number == rank.number for other in self.ranks):
            raise InputError(
                f"{part.name}: is of rank {rank.number}, like another file; use one file per rank"
            )
        self.size = max(self.size, host.size)
        self.ranks.append(rank)
        timed = any(node.duration_ps > 0 for node in rank.nodes.values())
        if not timed and len(self.ranks) == 1:
            self.found.assumed.append(
                "host traces without times: calls follow each other at once; link them with chakra_trace_link for times"
            )

    def _count_ranks(self) -> None:
        """Determine the number of ranks of the job."""
        numbers = {rank.number for rank in self.ranks}
        sizes = [rank.num_ranks for rank in self.ranks if rank.num_ranks] or [
            self.size
        ]
        tables = [*self.common.values()]
        tables += [
            table for rank in self.ranks for table in rank.communicators.values()
        ]
        num_ranks = max(
            *sizes,
            max(numbers) + 1,
            *(max(table) + 1 for table in tables if table),
            0,
        )
        if num_ranks == 1 or numbers != set(range(num_ranks)):
            ends = [node.peer + 1 for node in self._messages()]
            num_ranks = max(num_ranks, *ends, 0)
        if num_ranks == 1 and self.machine > 1:
            num_ranks = self.machine
            self.found.assumed.append(
                f"a trace of one rank without the number of ranks: repeated for each of the {num_ranks} GPUs"
            )
        if num_ranks > MOST_RANKS:
            raise InputError(f"{self.name}: {num_ranks} ranks; at most {MOST_RANKS}")
        self.found.num_ranks = num_ranks
        self.found.nccl_version = self.ranks[0].nccl_version
        hosts = self.ranks[0].hosts
        self.found.hosts = list(hosts) if len(hosts) == num_ranks else []
        self.everyone = tuple(range(num_ranks))
        for rank in self.ranks:
            for comm in {
                n.comm for n in rank.nodes.values() if n.kind == "collective"
            }:
                self.callers[comm] = (*self.callers.get(comm, ()), rank.number)

    def _messages(self) -> list[ChakraNode]:
        nodes = (node for rank in self.ranks for node in rank.nodes.values())
        return [node for node in nodes if node.kind in ("send", "recv")]

    def _resolve(self, rank: Rank, node: ChakraNode) -> None:
        """Set the communicator of a call, and sizes and positions in it."""
        if node.kind != "collective":
            self._message(rank, node)
            return
        name, ranks = self._members(rank, node)
        if rank.number not in ranks:
            raise InputError(
                f"{node.where}: rank {rank.number} calls {node.operation} on group {node.comm!r}, whose ranks are"
                f" {_format_ranks(ranks)}"
            )
        node.group = self.found.group(name, ranks)
        if node.whole_bytes:
            node.bytes = node.whole_bytes
        elif node.operation in GATHERING:
            node.bytes = full_bytes(node.operation, node.bytes, len(ranks))
        if node.operation in ROOTED and node.root == ABSENT:
            text = f"{node.operation} without a root: the first rank of its group is assumed"
            self.notes[text] += 1
            node.root = 0
        elif node.operation in ROOTED:
            outside = min(node.root, len(ranks) - 1)
            node.root = ranks.index(node.root) if node.root in ranks else outside

    def _message(self, rank: Rank, node: ChakraNode) -> None:
        everyone = self.everyone
        if node.peer == ABSENT:
            key = "comm_dst" if node.kind == "send" else "comm_src"
            self.found.skipped[f"{node.kind} nodes without {key}"] += 1
            node.kind = "none"
            return
        if node.peer not in everyone or node.peer == rank.number:
            raise InputError(
                f"{node.where}: {node.kind} of rank {rank.number} with rank {node.peer}; the job has ranks"
                f" 0..{everyone[-1]}"
            )
        node.group = self.found.group(*self._pair(rank, node))

    def _pair(self, rank: Rank, node: ChakraNode) -> tuple[str, tuple[int, ...]]:
        """Return name and ranks of the communicator of a message: the one that both ends define, or all ranks."""
        matched = [
            other.communicators.get(node.comm, self.common.get(node.comm))
            for other in self.ranks
            if other.number in (rank.number, node.peer)
        ]
        ranks = matched[0]
        if (
            ranks
            and {rank.number, node.peer} <= set(ranks)
            and all(r == ranks for r in matched)
        ):
            return f"group {node.comm}", ranks
        return "all ranks", self.everyone

    def _members(self, rank: Rank, node: ChakraNode) -> tuple[str, tuple[int, ...]]:
        ranks = rank.communicators.get(node.comm, self.common.get(node.comm))
        if ranks:
            return f"group {node.comm}", ranks
        if ranks is None and node.comm not in ("", "0"):
            callers = self.callers[node.comm]
            is_subset = 1 < len(callers) < len(self.ranks)
            who = (
                f"the ranks that call it, {_format_ranks(callers)}"
                if is_subset
                else "all ranks"
            )
            self.found.assume(
                f"group {node.comm!r} is not defined: {who} assumed; define it in comm_group.json"
            )
            if is_subset:
                return f"group {node.comm}", callers
        return self._dimensions(rank, node)

    def _dimensions(
        self, rank: Rank, node: ChakraNode
    ) -> tuple[str, tuple[int, ...]]:
        """Return name and ranks of the network dimensions of a collective."""
        everyone = self.everyone
        if len(set(node.dims)) < 2:
            return "all ranks", everyone
        inner = self.machine_ranks
        if (
            len(node.dims) == 2
            and 1 < inner < len(everyone)
            and len(everyone) % inner == 0
        ):
            first = rank.number // inner * inner
            if node.dims[0]:
                self.notes[
                    "collectives over dimension 0: the ranks of a machine"
                ] += 1
                return "dimension 0", tuple(range(first, first + inner))
            self.notes[
                "collectives over dimension 1: ranks of the same place in every node"
            ] += 1
            return "dimension 1", everyone[rank.number - first :: inner]
        self.notes[
            "collectives over some dimensions of a network (involved_dim): taken to be over all ranks"
        ] += 1
        return "all ranks", everyone

    def _mark_eager(self) -> None:
        """Mark messages as eager, as in ASTRA-sim, unless one has a recorded time or the file states it."""
        messages = self._messages()
        stated = any(rank.num_ranks for rank in self.ranks)
        if (
            not messages
            or self.files.hosts
            or stated
            or any(node.duration_ps > 0 for node in messages)
        ):
            return
        for node in messages:
            node.eager = True
        self.notes[_EAGER] += len(messages)

    def _sort_nodes(self) -> None:
        for rank in self.ranks:
            if sort_nodes(rank):
                self.notes[_CYCLIC] += 1
        self.notes.update(number_calls(self.ranks))

    def _events(self) -> None:
        """Append the events of all ranks."""
        for rank in self.ranks:
            self._events_of(rank)
        self.found.is_graph = True

    def _events_of(self, rank: Rank) -> None:
        """Append the events of a rank; empty nodes pass on their dependencies."""
        done: dict[int, tuple[int, ...]] = {}
        for at in rank.order:
            node = rank.nodes[at]
            deps = tuple(dict.fromkeys(e for dep in node.deps for e in done[dep]))
            if node.kind == "none":
                if len(deps) > MOST_JOINED:
                    join = Event(
                        "compute",
                        rank.number,
                        f"join {at}",
                        node.name or "join",
                        deps,
                    )
                    self.found.events.append(replace(join, where=node.where))
                    deps = (len(self.found.events) - 1,)
                done[at] = deps
                continue
            done[at] = (len(self.found.events),)
            event = _event(rank.number, node, deps)
            if node.preserved:
                event = replace(event, **node.preserved)
            if node.kind in ("send", "recv"):
                ranks = self.found.groups[node.group].ranks
                event = replace(event, peer=ranks.index(node.peer))
            self.found.events.append(event)
            if node.flops or node.mem_bytes:
                self.notes[_TRAFFIC if node.kind == "memory" else _ROOFLINE] += 1


def _event(rank: int, node: ChakraNode, deps: tuple[int, ...]) -> Event:
    if node.kind == "collective" and node.chained and not node.lane:
        stream = f"group {node.group}"
    else:
        stream = node.lane or f"{node.kind} {node.id}"
    return Event(
        _KINDS[node.kind], rank, stream, node.name or node.kind, deps, duration_ps=node.duration_ps, flops=node.flops,
        mem_bytes=node.mem_bytes, group=node.group, sequence=max(0, node.sequence), operation=node.operation,
        bytes=node.bytes, dtype=_dtype(node), redop=node.redop, root=node.root, peer=node.peer, tag=node.tag,
        eager=node.eager, bunch=node.bunch, operator=node.operator, where=node.where,
    )  # fmt: skip


def _dtype(node: ChakraNode) -> str:
    if node.dtype:
        return node.dtype
    if node.kind not in CALLS:
        return "bfloat16" if node.flops else "float32"
    return (
        "float32" if node.kind == "collective" and node.bytes % 4 == 0 else "uint8"
    )


def _format_ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
