"""Nodes of Chakra execution traces: the protobuf schema as a descriptor, and files in protobuf or JSON.

An ``.et`` file is a stream of messages, each after its length as a varint: one `GlobalMetadata`, then one `Node`
after another. Field numbers follow et_def.proto of MLCommons Chakra, release 0.0.4 and later. Enumerations are
plain integers, and unknown fields are ignored, so that later releases, which only add types and fields, can be read.

JSON is as printed by Chakra's tools or protobuf: objects are concatenated, one per line, or in a list. Fields are named
as in the schema or in camel case, and 64-bit numbers are in quotes. They are converted to messages. So is the
``workload_graph`` that Chakra's feeder reads (src/feeder/json_node.cpp of mlcommons/chakra): ``Id``, ``Name``,
``NodeType`` as a number, ``data_deps``, ``ctrlDeps``, ``runtime`` [us], and attributes as keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Final

from clusim.base.errors import InputError, lacking
from clusim.base.terms.operations import OPERATIONS
from clusim.formats.recordings.jsonstream import (
    Window,
    integer,
    list_of,
    objects,
    read_items,
    tables_of,
)
from clusim.formats.recordings.source import FileStream

MOST_MESSAGE: Final = 1 << 26
"""Longest message of a trace [bytes]."""

_VARINT: Final = 10
"""Longest encoded length of a message [bytes]."""

NODE_TYPES: Final = {
    "INVALID_NODE": 0, "METADATA_NODE": 1, "MEM_LOAD_NODE": 2, "MEM_STORE_NODE": 3, "COMP_NODE": 4, "COMM_SEND_NODE": 5,
    "COMM_RECV_NODE": 6, "COMM_COLL_NODE": 7, "STORAGE_NODE": 8, "BATCH_NODE": 9, "CHECKPOINT_NODE": 10,
}  # fmt: skip
"""Types of nodes."""

COLLECTIVES: Final = tuple(
    name
    for _, name in sorted(
        kind for item in OPERATIONS.values() for kind in item.chakra
    )
)
"""Values of the attribute ``comm_type``."""

PRESERVED: Final = {
    "start_ps": 1 << 62, "sms": 1 << 20, "channels": 1 << 20, "algorithm": 0, "protocol": 0,
}  # fmt: skip
"""Fields of events that the format lacks, written as attributes, with their largest number; 0: text."""

_VALUES: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""Types of an attribute, by number; each has a field for one value and a field for a list."""

_PLAIN: Final = {
    "GlobalMetadata": ("bytes version 1", "*AttributeProto attr 2"),
    "IOInfo": ("bytes values 1", "bytes shapes 2", "bytes types 3"),
    "Node": (
        "uint64 id 1", "bytes name 2", "int32 type 3", "*uint64 ctrl_deps 4", "*uint64 data_deps 5",
        "uint64 start_time_micros 6", "uint64 duration_micros 7", "IOInfo inputs 8", "IOInfo outputs 9",
        "*AttributeProto attr 10",
    ),
}  # fmt: skip
"""Messages without alternatives: type, name and number of every field; a star repeats it.

Names are bytes, so that another encoding does not make the file unreadable. So is the version, since releases
before 0.0.4 have the attributes in its field.
"""


@cache
def message_class(name: str) -> Any:
    """Return the class of a message of the schema."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ModuleNotFoundError:
        raise lacking("Chakra traces in protobuf", "protobuf", "chakra") from None

    file = descriptor_pb2.FileDescriptorProto(
        name="clusim/chakra.proto", package="clusim.chakra", syntax="proto3"
    )
    for message, fields in _PLAIN.items():
        result = file.message_type.add(name=message)
        for text in fields:
            _field(result, text)
    attribute = file.message_type.add(name="AttributeProto")
    _field(attribute, "bytes name 1")
    _field(attribute, "bytes doc_string 2")
    attribute.oneof_decl.add(name="value")
    for at, kind in enumerate(_VALUES):
        type_text = "bytes" if kind == "string" else kind
        _field(attribute, f"{type_text} {kind}_val {3 + 2 * at}", choice=True)
        _field(
            attribute, f"{kind.title()}List {kind}_list {4 + 2 * at}", choice=True
        )
        _field(
            file.message_type.add(name=f"{kind.title()}List"),
            f"*{type_text} values 1",
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"clusim.chakra.{name}")
    )


def _field(message: Any, text: str, *, choice: bool = False) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    kind, name, number = text.removeprefix("*").split()
    field = message.field.add(name=name, number=int(number))
    repeated = text[0] == "*"
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind in _VALUES:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".clusim.chakra.{kind}"
    if choice:
        field.oneof_index = 0


def messages(
    name: str, pieces: Iterator[bytes], cut: Callable[[str], None]
) -> Iterator[Any]:
    """Yield the nodes of a trace.

    Parameters
    ----------
    pieces : iterator of bytes
        Content of the file.
    cut : callable
        Receives a message if the file ends inside a node; earlier nodes are yielded.

    Raises
    ------
    InputError
        The file is not a trace, or a message in it is damaged.
    """
    node_class = message_class("Node")
    from google.protobuf.message import DecodeError

    window, count = Window(pieces, b""), 0
    while window.hold(1):
        window.hold(_VARINT)
        size, length = _varint(name, window)
        if not length or size > MOST_MESSAGE or not window.hold(length + size):
            place = window.place
            if count < 2:
                raise InputError(
                    f"{name}: byte {place}: a message of {size} bytes in a file of {window.length()}; expected a Chakra"
                    " execution trace (.et): messages, each after its length"
                )
            cut(
                f"{name} is cut inside message {count + 1}; the part before was read"
            )
            return
        begin = window.at + length
        node = node_class()
        try:
            node.ParseFromString(window.text[begin : begin + size])
        except DecodeError:
            if count:
                raise InputError(
                    f"{name}: byte {window.place + length}: message {count + 1} is not a Chakra node; the file"
                    " is damaged or of a release before 0.0.4"
                ) from None
        window.at, count = begin + size, count + 1
        # Metadata do not have field 3: the first message is a node only in files without metadata.
        if count > 1 or node.type:
            yield node


def _varint(name: str, window: Window[bytes]) -> tuple[int, int]:
    """Return the number at the read position and its length, which is 0 if the data end first."""
    value = 0
    for length, byte in enumerate(window.text[window.at : window.at + _VARINT], 1):
        value |= (byte & 0x7F) << (7 * (length - 1))
        if byte < 0x80:
            return value, length
        if length == _VARINT:
            raise InputError(
                f"{name}: byte {window.place}: not a length of a message; the file is damaged or not a Chakra trace"
            )
    return value, 0


def read_nodes(
    file: FileStream, take: Callable[[Any], None], cut: Callable[[str], None]
) -> None:
    """Pass the nodes of a trace, protobuf or JSON, to `take`, as messages."""
    if is_printed(file):
        _read_printed(file, take)
        return
    for message in messages(file.name, file.begin(), cut):
        take(message)


def attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name: numbers, texts and lists."""
    result: dict[str, Any] = {}
    for attribute in node.attr:
        field = attribute.WhichOneof("value")
        if field is None:
            continue
        value = getattr(attribute, field)
        if field.endswith("_list"):
            value = list(value.values)
        elif field == "string_val":
            value = value.decode("utf-8", "replace")
        result[attribute.name.decode("utf-8", "replace")] = value
    return result


JSON_NODE = (
    rb'\A\s*[\[{].{0,4000}?"type"\s*:\s*'
    rb'"(?:COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD|MEM_STORE|METADATA)_NODE"'
)
"""Pattern of the start of a JSON trace."""

JSON_GRAPH = rb'\A\s*\{(?:\s*"\w{1,40}"\s*:\s*(?:"[^"\\]{0,200}"|\d{1,18})\s*,){0,8}\s*"workload_graph"\s*:\s*\['
"""Pattern of the start of a `workload_graph`."""

_NODES: Final = rb'\s*\{\s*"nodes"\s*:\s*\['
_INT64 = (1 << 63) - 1
_GRAPH_NUMBERS = (
    "comm_type", "comm_size", "comm_priority", "comm_src", "comm_dst", "comm_tag", "tensor_size", "num_ops",
)  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_WHOLE = ("int32", "int64", "uint32", "uint64", "sint32", "sint64")


@lru_cache(4096)
def _snake(key: str) -> str:
    """Return the name of a field as in the schema."""
    return _CAMEL.sub(r"_\1", key).lower()


def is_printed(file: FileStream) -> bool:
    """Return True for a trace in JSON."""
    return _list_of(file.head(1 << 13)) is not None


def _list_of(head: bytes) -> str | None:
    """Return the name of the list of nodes, empty if they are objects; None for another file."""
    if re.match(JSON_GRAPH, head):
        return "workload_graph"
    if re.match(JSON_NODE, head, re.DOTALL):
        return "nodes" if re.match(_NODES, head) else ""
    return None


def _read_printed(file: FileStream, take: Callable[[Any], None]) -> None:
    """Pass the nodes of a JSON trace to `take`, as messages.

    Raises
    ------
    InputError
        The file is not JSON, or a node in it is invalid.
    """
    key, count = _list_of(file.head(1 << 13)), 0

    def convert(item: Any) -> None:
        nonlocal count
        if not isinstance(item, dict):
            raise InputError(
                f"{file.name}: the list of nodes contains other values than objects"
            )
        item = {_snake(name): value for name, value in item.items()}
        if key == "workload_graph":
            where = f"{file.name}: workload_graph[{count}]"
            take(_node(_of_graph(item, where), where))
        elif "type" in item or "id" in item:  # other objects are metadata
            take(_node(item, f"{file.name}: object {count + 1}"))
        count += 1

    def damage(line: int) -> None:
        raise InputError(f"{file.name}:{line}: not a JSON object; is the file cut?")

    if key:
        read_items(file, key, convert)
        return
    for _, item in objects(file, damage):
        nodes = item.get("nodes", item)
        for node in nodes if isinstance(nodes, list) else [nodes]:
            convert(node)


def _of_graph(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a node of a `workload_graph` in the form of other tools."""
    for key, name in (("id", "Id"), ("node_type", "NodeType")):
        if key not in item:
            raise InputError(f"{where}: no {name}; every node has one")
    kind = item["node_type"]
    number = NODE_TYPES.get(kind) if isinstance(kind, str) else integer(kind, 99)
    if number not in NODE_TYPES.values():
        listing = ", ".join(f"{n} ({name})" for name, n in NODE_TYPES.items())
        raise InputError(
            f"{where}: NodeType {str(kind)[:40]!r}: must be one of {listing}"
        )
    host = item.get("is_cpu_op") is True
    if number == NODE_TYPES["COMM_COLL_NODE"] and not (
        "comm_type" in item and "comm_size" in item
    ):
        if not host:
            lost = "comm_size" if "comm_type" in item else "comm_type"
            raise InputError(
                f"{where}: a collective without {lost}, so its {lost[5:]} is unknown; add it"
            )
        number = NODE_TYPES[
            "COMP_NODE"
        ]  # the host's part of a call; its kernel is a separate node
    attributes: list[dict[str, Any]] = [{"name": "is_cpu_op", "bool_val": host}]
    for name in _GRAPH_NUMBERS:
        if name in item:
            value = _check_integer(item[name], where, name)
            attributes.append({"name": name, "int64_val": value})
    return {
        "id": item["id"], "name": item.get("name", ""), "type": number, "attr": attributes,
        "duration_micros": _check_integer(item.get("runtime", 0), where, "runtime"),
        "data_deps": item.get("data_deps", []), "ctrl_deps": item.get("ctrl_deps", []),
    }  # fmt: skip


def _node(item: dict[str, Any], where: str) -> Any:
    """Return the message of a node."""
    node = message_class("Node")()
    kind = item.get("type", 0)
    node.type = (
        NODE_TYPES.get(kind, 0)
        if isinstance(kind, str) and not kind.isdecimal()
        else _check_integer(kind, where, "type", 99)
    )
    node.id = _check_integer(item.get("id", 0), where, "id")
    node.name = str(item.get("name", ""))[:4000].encode("utf-8", "replace")
    for name in ("ctrl_deps", "data_deps"):
        deps = item.get(name, [])
        if not isinstance(deps, list):
            raise InputError(f"{where}: {name} must be a list")
        getattr(node, name).extend(_check_integer(dep, where, name) for dep in deps)
    for name in ("start_time_micros", "duration_micros"):
        setattr(node, name, _check_integer(item.get(name, 0), where, name))
    for attribute in tables_of(item.get("attr")):
        _attribute(node.attr.add(), attribute, where)
    return node


def _attribute(message: Any, item: dict[str, Any], where: str) -> None:
    """Set an attribute; values of types that are not used by a reader are omitted."""
    message.name = str(item.get("name", ""))[:400].encode("utf-8", "replace")
    for key, value in item.items():
        field = _snake(key)
        kind, _, form = field.rpartition("_")
        limit = (1 << 31) - 1 if kind.endswith("32") else _INT64
        if form == "list" and isinstance(value, dict) and kind in _WHOLE:
            numbers = list_of(value.get("values"))
            getattr(message, field).values.extend(
                _check_integer(n, where, field, limit) for n in numbers
            )
        elif form != "val":
            continue
        elif kind in _WHOLE:
            setattr(message, field, _check_integer(value, where, field, limit))
        elif kind == "bool":
            message.bool_val = value is True
        elif kind == "string":
            message.string_val = str(value)[: 1 << 16].encode("utf-8", "replace")
        elif (
            kind in ("double", "float")
            and isinstance(value, (int, float))
            and abs(value) < 1e30
        ):
            setattr(message, field, float(value))


def _check_integer(value: Any, where: str, field: str, limit: int = _INT64) -> int:
    result = integer(value, limit)
    if result is None:
        raise InputError(
            f"{where}: {field} {str(value)[:40]!r}: must be a number from 0 to {limit}"
        )
    return result
