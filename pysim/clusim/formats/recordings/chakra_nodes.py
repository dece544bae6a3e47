"""Nodes of Chakra execution traces: what their messages and attributes mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import operation_starting
from clusim.formats.recordings.chakra_graph import ChakraNode, Rank
from clusim.formats.recordings.chakra_host import groups_of
from clusim.formats.recordings.chakra_schema import COLLECTIVES, NODE_TYPES, attributes, messages
from clusim.formats.recordings.model import ABSENT
from clusim.formats.recordings.source import integer
from clusim.formats.recordings.streams import FileStream

PS_PER_US: Final = 1_000_000
MOST_US: Final = 10**11
"""Longest node, a day and some [us]."""

MOST_BYTES: Final = 1 << 44
MOST_OPS: Final = 1 << 60
_TYPES: Final = {number: name for name, number in NODE_TYPES.items()}
_CALL_KINDS: Final = {
    "COMM_COLL_NODE": "collective",
    "COMM_SEND_NODE": "send",
    "COMM_RECV_NODE": "recv",
}


class ChakraGraph:
    """Reads the graph of one rank; `rank` is it."""

    def __init__(
        self, number: int, part: FileStream, skipped: Counter[str], cut: Callable[[str], None]
    ) -> None:
        self.rank = Rank(number, part.name)
        self.skipped = skipped
        for message in messages(part.name, part.begin(), cut):
            if message.id in self.rank.nodes:
                raise InputError(
                    f"{part.name}: node {message.id} is there twice; every id must be of one node"
                )
            self.rank.nodes[message.id] = self._node(message)
        missing = self._missing()
        if missing:
            self.skipped["dependencies on nodes that are not in the file"] += missing

    def _missing(self) -> int:
        nodes, count = self.rank.nodes, 0
        for node in nodes.values():
            for deps in (node.deps, node.calls):
                count += sum(dep not in nodes for dep in deps)
                deps[:] = [dep for dep in deps if dep in nodes]
        return count

    def _node(self, message: Any) -> ChakraNode:
        values = attributes(message)
        node = ChakraNode(
            message.id,
            message.name.decode("utf-8", "replace"),
            "none",
            f"{self.rank.name}: node {message.id}",
            list(message.data_deps),
            list(message.ctrl_deps),
        )
        kind = _TYPES.get(message.type, "")
        if kind in _CALL_KINDS:
            node.kind = _CALL_KINDS[kind]
            self._took(node, message, values)
            self._call(node, values)
        elif kind in ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE"):
            self._took(node, message, values)
            self._compute(node, kind, values)
        elif kind == "METADATA_NODE":
            self._metadata(message)
        elif kind != "INVALID_NODE":
            self.skipped[f"nodes of type {kind or message.type}"] += 1
        return node

    def _took(self, node: ChakraNode, message: Any, values: dict[str, Any]) -> None:
        took = message.duration_micros or self._number(node, values, "runtime", MOST_US)
        if took > MOST_US:
            raise InputError(f"{node.where}: duration_micros = {took}; at most {MOST_US}")
        node.duration_ps = took * PS_PER_US if took else ABSENT

    def _number(self, node: ChakraNode, values: dict[str, Any], name: str, most: int) -> int:
        """Return an attribute that is a number, 0 if there is none."""
        if name not in values:
            return 0
        found = integer(values[name], most)
        if found is None:
            raise InputError(
                f"{node.where}: {name} = {values[name]!r:.60}; expected a whole number from 0 to {most}"
            )
        return found

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

    def _metadata(self, message: Any) -> None:
        """Take the communicators from PyTorch's record of them."""
        for item in groups_of(message.inputs.values.decode("utf-8", "replace")):
            ranks = item.get("ranks")
            numbers = [integer(n, MOST_RANKS - 1) for n in ranks] if isinstance(ranks, list) else []
            self.rank.communicators[str(item["pg_name"])] = tuple(
                n for n in numbers if n is not None
            )


def _operation(node: ChakraNode, value: Any) -> str:
    name = value
    number = integer(value, 1 << 62)
    if number is not None:
        name = COLLECTIVES[number] if number < len(COLLECTIVES) else ""
    found = operation_starting(name)
    if not found:
        raise InputError(
            f"{node.where}: comm_type = {value!r:.40}; expected 0 to {len(COLLECTIVES) - 1} or one of"
            f" {', '.join(COLLECTIVES)}"
        )
    return found
