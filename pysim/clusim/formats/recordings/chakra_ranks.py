"""Graphs of ranks, from Chakra's files and from PyTorch's execution traces (JSON), its converter's input.

PyTorch's observer records host calls without times; ``chakra_trace_link`` adds times and kernels. In both,
communication is read from ``record_param_comms``: data, sequence, group, rank or root or peer, name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import ROOTED, operation_starting
from clusim.base.units import parse_ranks
from clusim.formats.recordings.chakra_graph import ChakraNode, Rank
from clusim.formats.recordings.chakra_schema import (
    COLLECTIVES,
    NODE_TYPES,
    PRESERVED,
    attributes,
    read_nodes,
)
from clusim.formats.recordings.jsonstream import (
    integer,
    integers,
    list_of,
    read_items,
    tables_of,
    time_ps,
)
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_BYTES,
    PS_PER_US,
    OperatorCall,
    Recording,
    TensorShape,
)
from clusim.formats.recordings.source import FileStream

MOST_US: Final = 10**11
"""Longest node, more than a day [us]."""

MOST_OPS: Final = 1 << 60
_TYPES: Final = {number: name for name, number in NODE_TYPES.items()}
_CALL_KINDS: Final = {"COMM_COLL_NODE": "collective", "COMM_SEND_NODE": "send", "COMM_RECV_NODE": "recv"}  # fmt: skip


_WORK: Final = ("work_flops", "work_bytes")


class ChakraGraph:
    """Reader of the graph of one rank, with the result in `rank`."""

    def __init__(self, number: int, part: FileStream, recording: Recording) -> None:
        self.rank, self.skipped = Rank(number, part.name), recording.skipped
        read_nodes(part, self._take, recording.assumed.append)
        nodes = self.rank.nodes
        for deps in (
            deps for node in nodes.values() for deps in (node.deps, node.calls)
        ):
            missing = sum(dep not in nodes for dep in deps)
            if missing:
                self.skipped["dependencies on nodes that are not in the file"] += (
                    missing
                )
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
            self._record_time(node, message, values)
            self._call(node, values)
        elif kind in ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE"):
            self._record_time(node, message, values)
            self._compute(node, kind, values)
            if "aten" in values:
                node.operator = operator_of(node, message, values)
        elif kind == "METADATA_NODE":
            for item in groups_of(message.inputs.values.decode("utf-8", "replace")):
                self.rank.communicators[str(item["pg_name"])] = ranks_of(item)
            self.rank.num_ranks = self._number(node, values, "num_ranks", MOST_RANKS)
            if "rank" in values:
                self.rank.number = self._number(node, values, "rank", MOST_RANKS)
            self.rank.represents_all = values.get("represents_all") is True
            if values.get("represents"):
                self.rank.represents = parse_ranks(str(values["represents"]))
            self.rank.nccl_version = str(values.get("nccl_version", ""))
            self.rank.hosts = tuple(str(values.get("hosts", "")).splitlines())
        elif kind != "INVALID_NODE":
            self.skipped[f"nodes of type {kind or message.type}"] += 1
        self.rank.add(node)

    def _record_time(
        self, node: ChakraNode, message: Any, values: dict[str, Any]
    ) -> None:
        duration_us = message.duration_micros or self._number(
            node, values, "runtime", MOST_US
        )
        if duration_us > MOST_US:
            raise InputError(
                f"{node.where}: duration_micros = {duration_us}; at most {MOST_US}"
            )
        node.duration_ps = duration_us * PS_PER_US if duration_us else ABSENT
        node.lane = str(values.get("stream_name", ""))
        if "duration_ps" in values:
            node.duration_ps = self._number(
                node, values, "duration_ps", MOST_US * PS_PER_US
            )
        for name, limit in PRESERVED.items():
            if name in values:
                node.preserved[name] = (
                    self._number(node, values, name, limit)
                    if limit
                    else str(values[name])
                )

    def _number(
        self, node: ChakraNode, values: dict[str, Any], name: str, limit: int
    ) -> int:
        """Return a numeric attribute; 0 if it is missing."""
        if name not in values:
            return 0
        result = integer(values[name], limit)
        if result is None:
            raise InputError(
                f"{node.where}: {name} = {values[name]!r:.60}; expected an integer from 0 to {limit}"
            )
        return result

    def _compute(self, node: ChakraNode, kind: str, values: dict[str, Any]) -> None:
        memory = kind != "COMP_NODE"
        size = self._number(node, values, "tensor_size", MOST_BYTES)
        operations = self._number(node, values, "num_ops", MOST_OPS)
        host = bool(values.get("is_cpu_op")) and not memory
        if node.duration_ps == ABSENT and not host:
            node.flops, node.mem_bytes = 0 if memory else operations, size
            node.dtype = str(values.get("dtype", ""))
        if node.duration_ps == ABSENT and not node.flops and not node.mem_bytes:
            return
        node.kind = "memory" if memory else "host" if host else "compute"
        if node.lane:
            return
        if host:
            node.lane = f"cpu {values.get('tid', 0)}"
        else:
            node.lane = "memory" if memory else f"stream {values.get('stream', 0)}"

    def _call(self, node: ChakraNode, values: dict[str, Any]) -> None:
        node.bytes = self._number(node, values, "comm_size", MOST_BYTES)
        node.dtype, node.redop = (
            str(values.get("comm_dtype", "")),
            str(values.get("redop", "sum")),
        )
        name = values.get("pg_name", values.get("comm_group", ""))
        node.comm = str(name[0] if isinstance(name, list) and name else name or "")
        if node.kind == "collective":
            dims = list_of(values.get("involved_dim", values.get("involved_dims")))
            node.dims = tuple(map(bool, dims))
            node.operation = _operation(node, values.get("comm_type", 0))
            node.whole_bytes = self._number(node, values, "comm_bytes", MOST_BYTES)
            root = values.get("root_rank", values.get("root"))
            node.root = ABSENT if root is None else integer(root, MOST_RANKS) or 0
            return
        key = "comm_dst" if node.kind == "send" else "comm_src"
        if key in values:
            node.peer = self._number(node, values, key, MOST_RANKS)
        node.tag = self._number(node, values, "comm_tag", 1 << 62)
        node.eager = values.get("eager") is True
        if "bunch" in values:
            node.bunch = self._number(node, values, "bunch", 1 << 62)


def _operation(node: ChakraNode, value: Any) -> str:
    number = integer(value)
    is_listed = number is not None and number < len(COLLECTIVES)
    result = operation_starting(COLLECTIVES[number or 0] if is_listed else value)
    if not result:
        raise InputError(
            f"{node.where}: comm_type = {value!r:.40}; expected 0 to {len(COLLECTIVES) - 1} or one of"
            f" {', '.join(COLLECTIVES)}"
        )
    return result


class ChakraHost:
    """Reader of a host trace, with its graph in `rank`.

    The file is read twice, since groups may be defined after their use.

    Attributes
    ----------
    recorded_by : int or None
        Rank that recorded it, if contained in a collective over all ranks.
    size : int
        Ranks of the largest group.

    Raises
    ------
    InputError
        The file is not such a trace, or has two nodes of one number.
    """

    def __init__(self, number: int, file: FileStream, recording: Recording) -> None:
        self.rank, self.skipped = Rank(number, file.name), recording.skipped
        self.recorded_by: int | None = None
        self.size = 0
        self.by_id: dict[int, str] = {}
        table, listed = read_items(file, "nodes", self._learn)
        if not listed or table is None or "schema" not in table:
            raise InputError(
                f"{file.name}: not an execution trace of PyTorch: no list 'nodes'"
            )
        read_items(file, "nodes", self._take)
        nodes = self.rank.nodes
        for node in nodes.values():
            node.calls = [
                dep for dep in node.calls if dep in nodes and dep != node.id
            ]

    def _learn(self, row: Any) -> None:
        """Read the groups of a node."""
        if not isinstance(row, dict) or "process_group:init" not in str(
            row.get("name")
        ):
            return
        for item in groups_of(str(_values(row)[:1])):
            name, ranks = str(item["pg_name"]), ranks_of(item)
            self.rank.communicators[name] = ranks
            size, backend = (
                integer(item.get("group_size")) or 0,
                integer(item.get("backend_id")),
            )
            self.size = max(self.size, size, *(n + 1 for n in ranks), 0)
            if backend is not None:
                self.by_id[backend] = name

    def _take(self, row: Any) -> None:
        """Add the node of a row."""
        if not isinstance(row, dict):
            return
        at = integer(row.get("id"))
        if at is None:
            self.skipped["nodes without an id"] += 1
            return
        name, attributes = str(row.get("name", "")), {**row, **_attributes(row)}
        parent = integer(attributes.get("ctrl_deps", attributes.get("parent")))
        where = f"{self.rank.name}: node {at}"
        node = ChakraNode(
            at, name, "none", where, calls=[] if parent is None else [parent]
        )
        self.rank.add(node)
        if name == "record_param_comms":
            self._call(node, _values(row), attributes)
            return
        duration_ps = time_ps(
            attributes.get("exclusive_dur", attributes.get("dur")), PS_PER_US
        )
        if (
            not duration_ps
            or duration_ps > MOST_US * PS_PER_US
            or name.lower().startswith("nccl")
        ):
            return
        node.duration_ps = duration_ps
        if attributes.get("cat") is not None:
            node.kind, node.lane = "compute", f"stream {attributes.get('stream', 0)}"
        else:
            node.kind, node.lane = "host", f"cpu {attributes.get('tid', 0)}"

    def _call(
        self, node: ChakraNode, values: list[Any], attributes: dict[str, Any]
    ) -> None:
        names = [
            i
            for i, value in enumerate(values)
            if isinstance(value, str) and value != ""
        ]
        place = next((i for i in names if _kind(values[i])), -1)
        name = attributes.get("collective_name") or (
            values[place] if place >= 0 else ""
        )
        kind = _kind(name)
        if not kind:
            if (name or names) and "wait" not in values:
                self.skipped[
                    f"record_param_comms of {name or values[names[0]]!s:.40}"
                ] += 1
            return
        node.kind, node.name, node.operation = (
            kind,
            str(name),
            operation_starting(name),
        )
        node.comm = self._group(values, attributes)
        count = integer(attributes.get("in_msg_nelems"))
        element = find_dtype(str(attributes.get("dtype")))
        if count is not None and element is not None:
            node.bytes = count * element.size_bytes
        else:
            node.bytes = _tensor_bytes(values[:1])
        number = integer(values[place - 1]) if place > 0 else None
        if number is None:
            return
        if kind != "collective":
            node.peer = number
        elif node.operation in ROOTED:
            node.root = number
        elif not self.rank.communicators.get(node.comm):
            self.recorded_by = number

    def _group(self, values: list[Any], attributes: dict[str, Any]) -> str:
        """Return the name of the group of a call.

        It is an attribute, a pair (name, description), or found by the number of its backend.
        """
        name = attributes.get("pg_name")
        if isinstance(name, str):
            return name
        for value in values:
            if (
                isinstance(value, int)
                and not isinstance(value, bool)
                and value in self.by_id
            ):
                return self.by_id[value]
            pair = isinstance(value, list) and len(value) == 2
            if pair and str(value[0]) in self.rank.communicators:
                return str(value[0])
        return ""


def operator_of(
    node: ChakraNode, message: Any, values: dict[str, Any]
) -> OperatorCall:
    """Return the operator of a node from its shapes.

    Raises
    ------
    InputError
        Sizes, types and elements do not belong together.
    """
    work = tuple(
        integer(values[key], MOST_OPS) or 0 for key in _WORK if key in values
    )
    flags = tuple(str(values.get("flags", "")).split())
    try:
        inputs, outputs = (
            tuple(_shapes(side)) for side in (message.inputs, message.outputs)
        )
    except (ValueError, TypeError, IndexError, RecursionError):
        raise InputError(
            f"{node.where}: {node.name}: the shapes, types and values of its tensors are damaged"
        ) from None
    return OperatorCall(str(values["aten"]), inputs, outputs, flags, work)


def _shapes(side: Any) -> Iterator[TensorShape]:
    """Yield the tensors of a node."""
    for sizes, kind, value in zip(
        *(json.loads(text) for text in (side.shapes, side.types, side.values)),
        strict=True,
    ):
        dimensions, size = integers(sizes), integer(value[4], 64)
        if dimensions is None or not size:
            raise ValueError
        yield TensorShape(
            dimensions, str(kind).removeprefix("Tensor(").removesuffix(")"), size
        )


def groups_of(text: str) -> list[dict[str, Any]]:
    """Return the groups in a text of ``process_group:init``; empty without groups."""
    first, last = text.find("[{"), text.rfind("}]")
    if first < 0 or last < 0:
        return []
    for body in (text[first : last + 2], text[first : last + 2].replace('\\"', '"')):
        try:
            result = json.loads(body)
        except (ValueError, RecursionError):
            continue
        return [item for item in tables_of(result) if "pg_name" in item]
    return []


def ranks_of(group: dict[str, Any]) -> tuple[int, ...]:
    """Return the ranks of such a group; empty if unknown."""
    numbers = (integer(n) for n in list_of(group.get("ranks")))
    return tuple(n for n in numbers if n is not None)


def _values(row: dict[str, Any]) -> list[Any]:
    inputs = row.get("inputs")
    return list_of(inputs.get("values") if isinstance(inputs, dict) else inputs)


def _attributes(row: dict[str, Any]) -> dict[str, Any]:
    return {
        str(i["name"]): i.get("value")
        for i in tables_of(row.get("attrs"))
        if "name" in i
    }


def _kind(name: Any) -> str:
    if not isinstance(name, str):
        return ""
    if name in ("send", "recv"):
        return name
    return "collective" if operation_starting(name) else ""


def _tensor_bytes(value: Any, depth: int = 0) -> int:
    """Return the total size of tensors [bytes].

    A tensor is (id, storage, offset, elements, bytes per element, device).
    """
    if not isinstance(value, list) or depth > 4:
        return 0
    if len(value) == 6 and isinstance(value[5], str):
        count, size = integer(value[3], 1 << 44), integer(value[4], 64)
        return (count or 0) * (size or 0)
    return sum(_tensor_bytes(item, depth + 1) for item in value)
