"""Chakra execution traces as JSON, as printed by Chakra's tools or protobuf.

Objects are concatenated, one per line, or in a list. Fields are named as in the schema or in camel case, and 64-bit
numbers are in quotes. They are converted to the messages of an ``.et`` file, and read as such. So is the
``workload_graph`` that Chakra's feeder reads (src/feeder/json_node.cpp of mlcommons/chakra): ``Id``, ``Name``,
``NodeType`` as a number, ``data_deps``, ``ctrlDeps``, ``runtime`` [us], and attributes as keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from clusim.base.errors import InputError
from clusim.formats.recordings.chakra_schema import (
    MOST_NODES,
    NODE_TYPES,
    message_class,
    pack,
)
from clusim.formats.recordings.source import integer
from clusim.formats.recordings.streams import FileStream, TextWindow

JSON_NODE = (
    rb'\A\s*[\[{].{0,4000}?"type"\s*:\s*'
    rb'"(?:COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD|MEM_STORE|METADATA)_NODE"'
)
"""Pattern of the start of a JSON trace."""

JSON_GRAPH = rb'\A\s*\{(?:\s*"\w{1,40}"\s*:\s*(?:"[^"\\]{0,200}"|\d{1,18})\s*,){0,8}\s*"workload_graph"\s*:\s*\['
"""Pattern of the start of a `workload_graph`."""

_INT64 = (1 << 63) - 1
_BETWEEN = re.compile(r"[\s,\[\]]*")
_NODES = re.compile(rf'\s*\{{\s*"nodes"\s*:\s*\[|{JSON_GRAPH.decode()}')
_CLOSED = re.compile(r'\s*\]\s*(?:,\s*"|\})')
"""End of the list of nodes of an object, before another key or the end of the object."""

_GRAPH_NUMBERS = (
    "comm_type", "comm_size", "comm_priority", "comm_src", "comm_dst", "comm_tag", "tensor_size", "num_ops",
)  # fmt: skip
_HELD = 1 << 17
"""Text buffered before an object is parsed [characters]."""

_MOST_NODE = 1 << 26
"""Longest node [characters]."""
_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_WHOLE = ("int32", "int64", "uint32", "uint64", "sint32", "sint64")


@lru_cache(4096)
def _snake(key: str) -> str:
    """Return the name of a field as in the schema."""
    return _CAMEL.sub(r"_\1", key).lower()


def from_json(file: FileStream) -> FileStream | None:
    """Return the trace in a JSON file; None if it is not a trace.

    Raises
    ------
    InputError
        A node in it is invalid.
    """
    head = file.head(1 << 13)
    graph = re.match(JSON_GRAPH, head) is not None
    if not graph and re.match(JSON_NODE, head, re.DOTALL) is None:
        return None
    return FileStream(file.name, lambda: _packed(file, graph=graph))


def _packed(file: FileStream, *, graph: bool) -> Iterator[bytes]:
    """Yield the nodes of a file in the encoding of an ``.et`` file."""
    for number, item in enumerate(_objects(file)):
        if number > MOST_NODES:
            raise InputError(f"{file.name}: more than {MOST_NODES} nodes")
        if graph:
            where = f"{file.name}: workload_graph[{number}]"
            yield pack(_node(_of_graph(item, where), where))
        elif "type" in item or "id" in item:  # other objects are metadata
            yield pack(_node(item, f"{file.name}: object {number + 1}"))


def _objects(file: FileStream) -> Iterator[dict[str, Any]]:
    window, decoder = TextWindow(file.begin()), json.JSONDecoder()
    window.hold(_HELD)
    inside = _NODES.match(window.text)
    window.at = inside.end() if inside else 0
    while True:
        window.hold(_HELD)
        if inside and _CLOSED.match(window.text, window.at):
            return
        between = _BETWEEN.match(window.text, window.at)
        window.at = between.end() if between else window.at
        if window.at >= len(window.text) and window.done:
            if inside:
                raise InputError(f"{file.name}: the list of nodes does not end; is the file cut?")
            return
        while True:
            try:
                result, window.at = decoder.raw_decode(window.text, window.at)
                break
            except (ValueError, RecursionError) as error:
                # Retry with a longer window, unless the error is well before the end of this one.
                early = (
                    isinstance(error, json.JSONDecodeError) and error.pos < len(window.text) - 64
                )
                early = early and "Unterminated" not in str(error)
                size = 2 * (len(window.text) - window.at)
                if (
                    early
                    or size > _MOST_NODE
                    or isinstance(error, RecursionError)
                    or not window.hold(size)
                ):
                    raise InputError(
                        f"{file.name}: character {window.dropped + window.at + 1}: not a JSON object; is the file cut?"
                    ) from None
        nodes = result.get("nodes") if isinstance(result, dict) and "nodes" in result else result
        for item in nodes if isinstance(nodes, list) else [nodes]:
            if not isinstance(item, dict):
                raise InputError(
                    f"{file.name}: the list of nodes contains other values than objects"
                )
            yield {_snake(key): value for key, value in item.items()}


def _of_graph(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a node of a `workload_graph` in the form of other tools."""
    for key, name in (("id", "Id"), ("node_type", "NodeType")):
        if key not in item:
            raise InputError(f"{where}: no {name}; every node has one")
    kind = item["node_type"]
    number = NODE_TYPES.get(kind) if isinstance(kind, str) else integer(kind, 99)
    if number not in NODE_TYPES.values():
        known = ", ".join(f"{n} ({name})" for name, n in NODE_TYPES.items())
        raise InputError(f"{where}: NodeType {str(kind)[:40]!r}: must be one of {known}")
    host = item.get("is_cpu_op") is True
    if number == NODE_TYPES["COMM_COLL_NODE"] and not ("comm_type" in item and "comm_size" in item):
        if not host:
            lost = "comm_size" if "comm_type" in item else "comm_type"
            raise InputError(
                f"{where}: a collective without {lost}, so its {lost[5:]} is unknown; add it"
            )
        number = NODE_TYPES["COMP_NODE"]  # the host's part of a call; its kernel is a separate node
    attributes: list[dict[str, Any]] = [{"name": "is_cpu_op", "bool_val": host}]
    for name in _GRAPH_NUMBERS:
        if name in item:
            value = _whole(item[name], where, name)
            attributes.append({"name": name, "int64_val": value})
    return {
        "id": item["id"], "name": item.get("name", ""), "type": number, "attr": attributes,
        "duration_micros": _whole(item.get("runtime", 0), where, "runtime"),
        "data_deps": item.get("data_deps", []), "ctrl_deps": item.get("ctrl_deps", []),
    }  # fmt: skip


def _node(item: dict[str, Any], where: str) -> Any:
    """Return the message of a node."""
    node = message_class("Node")()
    kind = item.get("type", 0)
    node.type = (
        NODE_TYPES.get(kind, 0)
        if isinstance(kind, str) and not kind.isdecimal()
        else _whole(kind, where, "type", 99)
    )
    node.id = _whole(item.get("id", 0), where, "id")
    node.name = str(item.get("name", ""))[:4000].encode("utf-8", "replace")
    for name in ("ctrl_deps", "data_deps"):
        deps = item.get(name, [])
        if not isinstance(deps, list):
            raise InputError(f"{where}: {name} must be a list")
        getattr(node, name).extend(_whole(dep, where, name) for dep in deps)
    for name in ("start_time_micros", "duration_micros"):
        setattr(node, name, _whole(item.get(name, 0), where, name))
    attributes = item.get("attr", [])
    for attribute in attributes if isinstance(attributes, list) else []:
        if isinstance(attribute, dict):
            _attribute(node.attr.add(), attribute, where)
    return node


def _attribute(message: Any, item: dict[str, Any], where: str) -> None:
    """Set an attribute; values of types that are not used by a reader are omitted."""
    message.name = str(item.get("name", ""))[:400].encode("utf-8", "replace")
    for key, value in item.items():
        field = _snake(key)
        kind, _, form = field.rpartition("_")
        if form == "list" and isinstance(value, dict) and kind in _WHOLE:
            values = value.get("values", [])
            numbers = values if isinstance(values, list) else []
            most = (1 << 31) - 1 if kind.endswith("32") else _INT64
            getattr(message, field).values.extend(_whole(n, where, field, most) for n in numbers)
        elif form != "val":
            continue
        elif kind in _WHOLE:
            most = (1 << 31) - 1 if kind.endswith("32") else _INT64
            setattr(message, field, _whole(value, where, field, most))
        elif kind == "bool":
            message.bool_val = value is True
        elif kind == "string":
            message.string_val = str(value)[: 1 << 16].encode("utf-8", "replace")
        elif kind in ("double", "float") and isinstance(value, (int, float)) and abs(value) < 1e30:
            setattr(message, field, float(value))


def _whole(value: Any, where: str, what: str, most: int = _INT64) -> int:
    result = integer(value, most)
    if result is None:
        raise InputError(f"{where}: {what} {str(value)[:40]!r}: must be a number from 0 to {most}")
    return result
