"""Chakra execution traces of MLCommons: a graph per rank, as .et files or PyTorch's JSON.

The module also interprets the messages and attributes of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import GATHERING, ROOTED, full_bytes, operation_starting
from clusim.formats.recordings.chakra_files import find_files, numbered
from clusim.formats.recordings.chakra_graph import (
    CALLS,
    ChakraNode,
    Rank,
    number_calls,
    play,
    sort_nodes,
)
from clusim.formats.recordings.chakra_host import groups_of, host_graph, ranks_of
from clusim.formats.recordings.chakra_schema import (
    COLLECTIVES,
    NODE_TYPES,
    attributes,
    is_printed,
    messages,
    read_printed,
)
from clusim.formats.recordings.common import Groups, clone_peers, finish
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.source import FileStream, Paths, integer, names_of

PS_PER_US: Final = 1_000_000
MOST_US: Final = 10**11
"""Longest node, more than a day [us]."""

MOST_BYTES: Final = 1 << 44
MOST_OPS: Final = 1 << 60
_TYPES: Final = {number: name for name, number in NODE_TYPES.items()}
_CALL_KINDS: Final = {"COMM_COLL_NODE": "collective", "COMM_SEND_NODE": "send", "COMM_RECV_NODE": "recv"}  # fmt: skip


class ChakraGraph:
    """Reader of the graph of one rank, with the result in `rank`."""

    def __init__(
        self, number: int, part: FileStream, skipped: Counter[str], cut: Callable[[str], None]
    ) -> None:
        self.rank = Rank(number, part.name)
        self.skipped = skipped
        if is_printed(part):
            read_printed(part, self._take)
        else:
            for message in messages(part.name, part.begin(), cut):
                self._take(message)
        nodes = self.rank.nodes
        for deps in (deps for node in nodes.values() for deps in (node.deps, node.calls)):
            missing = sum(dep not in nodes for dep in deps)
            if missing:
                self.skipped["dependencies on nodes that are not in the file"] += missing
                deps[:] = [dep for dep in deps if dep in nodes]

    def _take(self, message: Any) -> None:
        values = attributes(message)
        node = ChakraNode(
            message.id, message.name.decode("utf-8", "replace"), "none", f"{self.rank.name}: node {message.id}",
            list(message.data_deps), list(message.ctrl_deps),
        )  # fmt: skip
        kind = _TYPES.get(message.type, "")
        if kind in _CALL_KINDS:
            node.kind = _CALL_KINDS[kind]
            self._took(node, message, values)
            self._call(node, values)
        elif kind in ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE"):
            self._took(node, message, values)
            self._compute(node, kind, values)
        elif kind == "METADATA_NODE":
            for item in groups_of(message.inputs.values.decode("utf-8", "replace")):
                self.rank.communicators[str(item["pg_name"])] = ranks_of(item)
        elif kind != "INVALID_NODE":
            self.skipped[f"nodes of type {kind or message.type}"] += 1
        self.rank.add(node)

    def _took(self, node: ChakraNode, message: Any, values: dict[str, Any]) -> None:
        took = message.duration_micros or self._number(node, values, "runtime", MOST_US)
        if took > MOST_US:
            raise InputError(f"{node.where}: duration_micros = {took}; at most {MOST_US}")
        node.duration_ps = took * PS_PER_US if took else ABSENT

    def _number(self, node: ChakraNode, values: dict[str, Any], name: str, most: int) -> int:
        """Return a numeric attribute; 0 if it is missing."""
        if name not in values:
            return 0
        result = integer(values[name], most)
        if result is None:
            raise InputError(
                f"{node.where}: {name} = {values[name]!r:.60}; expected an integer from 0 to {most}"
            )
        return result

    def _compute(self, node: ChakraNode, kind: str, values: dict[str, Any]) -> None:
        memory = kind != "COMP_NODE"
        size = self._number(node, values, "tensor_size", MOST_BYTES)
        operations = self._number(node, values, "num_ops", MOST_OPS)
        host = bool(values.get("is_cpu_op")) and not memory
        if node.duration_ps == ABSENT and not host:
            node.flops, node.mem_bytes = 0 if memory else operations, size
        if node.duration_ps == ABSENT and not node.flops and not node.mem_bytes:
            return
        node.kind = "memory" if memory else "host" if host else "compute"
        if host:
            node.lane = f"cpu {values.get('tid', 0)}"
        else:
            node.lane = "memory" if memory else f"stream {values.get('stream', 0)}"

    def _call(self, node: ChakraNode, values: dict[str, Any]) -> None:
        node.bytes = self._number(node, values, "comm_size", MOST_BYTES)
        name = values.get("pg_name", values.get("comm_group", ""))
        node.comm = str(name[0] if isinstance(name, list) and name else name or "")
        if node.kind == "collective":
            dims = values.get("involved_dim", values.get("involved_dims", []))
            node.dims = tuple(bool(flag) for flag in dims) if isinstance(dims, list) else ()
            node.operation = _operation(node, values.get("comm_type", 0))
            root = values.get("root_rank", values.get("root"))
            node.root = ABSENT if root is None else integer(root, MOST_RANKS) or 0
            return
        key = "comm_dst" if node.kind == "send" else "comm_src"
        if key in values:
            node.peer = self._number(node, values, key, MOST_RANKS)
        node.tag = self._number(node, values, "comm_tag", 1 << 62)


def _operation(node: ChakraNode, value: Any) -> str:
    number = integer(value)
    known = number is not None and number < len(COLLECTIVES)
    result = operation_starting(COLLECTIVES[number or 0] if known else value)
    if not result:
        raise InputError(
            f"{node.where}: comm_type = {value!r:.40}; expected 0 to {len(COLLECTIVES) - 1} or one of"
            f" {', '.join(COLLECTIVES)}"
        )
    return result


MOST_JOINED: Final = 8
"""Maximum number of dependencies through an empty node; an empty event joins more."""

_KINDS: Final[dict[str, EventKind]] = {
    "compute": "compute", "memory": "compute", "host": "delay", "collective": "collective", "send": "send",
    "recv": "recv",
}  # fmt: skip


def read(paths: Paths, num_ranks: int = 0, machine_ranks: int = 0) -> Recording:
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

    Raises
    ------
    InputError
        The files are not Chakra traces, are damaged, contradict each other, or are empty.
    """
    return _Reader(paths, num_ranks, machine_ranks).recording()


class _Reader:
    """State of reading a job."""

    def __init__(self, paths: Paths, num_ranks: int, machine_ranks: int) -> None:
        names = names_of(paths)
        self.name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        self.machine, self.machine_ranks = num_ranks, machine_ranks
        self.skipped: Counter[str] = Counter()
        self.found = Recording("chakra", self.name, 0)
        self.groups = Groups()
        self.ranks: list[Rank] = []
        self.everyone: tuple[int, ...] = ()
        self.callers: dict[str, tuple[int, ...]] = {}
        self.undefined: dict[str, None] = {}
        self.notes: Counter[str] = Counter()
        self.files = find_files(self.name, names)
        self.size, self.common = self.files.siblings, self.files.tables
        self.skipped.update(self.files.skipped)
        if self.files.table_file:
            self.found.assumed.append(f"groups are read from {self.files.table_file}")

    def recording(self) -> Recording:
        """Return the content of the files."""
        numbers = numbered([*self.files.traces, *self.files.hosts], self.found)
        for number, part in numbers:
            if self.files.hosts:
                self._host(number, part)
            else:
                self.ranks.append(
                    ChakraGraph(number, part, self.skipped, self.found.assumed.append).rank
                )
        self.ranks.sort(key=lambda rank: rank.number)
        self._count_ranks()
        for rank in self.ranks:
            for node in rank.nodes.values():
                if node.kind in CALLS:
                    self._resolve(rank, node)
        self._sorted()
        self._mark_eager()
        self._events(play(self.ranks))
        self.found.assumed += list(self.undefined)
        self.found.assumed += [f"{count} x {what}" for what, count in self.notes.items()]
        clone_peers(self.found, self.groups)
        return finish(self.found, self.groups, self.skipped)

    def _host(self, number: int, part: FileStream) -> None:
        rank, host = host_graph(number, part, self.skipped)
        if len(self.files.hosts) == 1 and number:
            rank.number = 0
        if host.rank is not None:
            rank.number = host.rank
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
        known = {rank.number for rank in self.ranks}
        tables = [*self.common.values()]
        tables += [table for rank in self.ranks for table in rank.communicators.values()]
        most = max(self.size, max(known) + 1, *(max(table) + 1 for table in tables if table), 0)
        if most == 1 or known != set(range(most)):
            ends = [node.peer + 1 for node in self._messages()]
            most = max(most, *ends, 0)
        if most == 1 and self.machine > 1:
            most = self.machine
            self.found.assumed.append(
                f"a trace of one rank without the number of ranks: repeated for each of the {most} GPUs"
            )
        if most > MOST_RANKS:
            raise InputError(f"{self.name}: {most} ranks; at most {MOST_RANKS}")
        self.found.num_ranks = most
        self.everyone = tuple(range(most))
        callers: dict[str, list[int]] = {}
        for rank in self.ranks:
            for comm in {n.comm for n in rank.nodes.values() if n.kind == "collective"}:
                callers.setdefault(comm, []).append(rank.number)
        self.callers = {comm: tuple(numbers) for comm, numbers in callers.items()}

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
                f" {_shown(ranks)}"
            )
        node.group = self.groups.add(name, ranks)
        if node.operation in GATHERING:
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
            self.skipped[f"{node.kind} nodes without {key}"] += 1
            node.kind = "none"
            return
        if node.peer not in everyone or node.peer == rank.number:
            raise InputError(
                f"{node.where}: {node.kind} of rank {rank.number} with rank {node.peer}; the job has ranks"
                f" 0..{everyone[-1]}"
            )
        node.group = self.groups.add("all ranks", everyone)

    def _members(self, rank: Rank, node: ChakraNode) -> tuple[str, tuple[int, ...]]:
        ranks = rank.communicators.get(node.comm, self.common.get(node.comm))
        if ranks:
            return f"group {node.comm}", ranks
        if ranks is None and node.comm not in ("", "0"):
            callers = self.callers[node.comm]
            known = 1 < len(callers) < len(self.ranks)
            who = f"the ranks that call it, {_shown(callers)}" if known else "all ranks"
            self.undefined[
                f"group {node.comm!r} is not defined: {who} assumed; define it in comm_group.json"
            ] = None
            if known:
                return f"group {node.comm}", callers
        return self._dimensions(rank, node)

    def _dimensions(self, rank: Rank, node: ChakraNode) -> tuple[str, tuple[int, ...]]:
        """Return name and ranks of the network dimensions of a collective."""
        everyone = self.everyone
        if len(set(node.dims)) < 2:
            return "all ranks", everyone
        inner = self.machine_ranks
        if len(node.dims) == 2 and 1 < inner < len(everyone) and len(everyone) % inner == 0:
            first = rank.number // inner * inner
            if node.dims[0]:
                self.notes["collectives over dimension 0: the ranks of a machine"] += 1
                return "dimension 0", tuple(range(first, first + inner))
            self.notes["collectives over dimension 1: ranks of the same place in every node"] += 1
            return "dimension 1", everyone[rank.number - first :: inner]
        self.notes[
            "collectives over some dimensions of a network (involved_dim): taken to be over all ranks"
        ] += 1
        return "all ranks", everyone

    def _mark_eager(self) -> None:
        """Mark all messages as eager, as in ASTRA-sim, unless one has a recorded time."""
        messages = self._messages()
        if not messages or self.files.hosts or any(node.duration_ps > 0 for node in messages):
            return
        for node in messages:
            node.eager = True
        self.notes[_EAGER] += len(messages)

    def _sorted(self) -> None:
        for rank in self.ranks:
            if sort_nodes(rank):
                self.notes[_CYCLIC] += 1
        self.notes.update(number_calls(self.ranks))

    def _events(self, order: list[tuple[int, int]]) -> None:
        """Append the events in order of their start; empty nodes pass on their dependencies."""
        done: dict[tuple[int, int], tuple[int, ...]] = {}
        for place, at in order:
            rank = self.ranks[place]
            node = rank.nodes[at]
            deps = tuple(dict.fromkeys(e for dep in node.deps for e in done[place, dep]))
            if node.kind == "none":
                if len(deps) > MOST_JOINED:
                    join = Event("compute", rank.number, f"join {at}", node.name or "join", deps)
                    self.found.events.append(replace(join, where=node.where))
                    deps = (len(self.found.events) - 1,)
                done[place, at] = deps
                continue
            done[place, at] = (len(self.found.events),)
            self.found.events.append(_event(rank.number, node, deps))
            if node.flops or node.mem_bytes:
                self.notes[_TRAFFIC if node.kind == "memory" else _ROOFLINE] += 1


_EAGER: Final = "ends of messages without a recorded time: a message is transferred when it is sent, as in ASTRA-sim"
_CYCLIC: Final = "ranks with cyclic control dependencies: only data dependencies are kept"
_TRAFFIC: Final = "memory nodes: traffic of the GPU's memory"
_ROOFLINE: Final = "nodes without a duration: computed from num_ops and tensor_size at the GPU's bf16 rate and memory"


def _event(rank: int, node: ChakraNode, deps: tuple[int, ...]) -> Event:
    if node.kind == "collective" and node.chained:
        stream = f"group {node.group}"
    else:
        stream = node.lane or f"{node.kind} {node.id}"
    return Event(
        _KINDS[node.kind], rank, stream, node.name or node.kind, deps, duration_ps=node.duration_ps, flops=node.flops,
        mem_bytes=node.mem_bytes, group=node.group, sequence=max(0, node.sequence), operation=node.operation,
        bytes=node.bytes, dtype=_dtype(node), root=node.root, peer=node.peer, tag=node.tag, eager=node.eager,
        where=node.where,
    )  # fmt: skip


def _dtype(node: ChakraNode) -> str:
    if node.kind == "compute":
        return "bfloat16"
    return "float32" if node.kind == "collective" and node.bytes % 4 == 0 else "uint8"


def _shown(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
