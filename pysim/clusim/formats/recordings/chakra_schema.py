"""Protobuf schema of Chakra execution traces, as a descriptor, and their messages.

A trace is a stream of messages, each preceded by its length as a varint: one `GlobalMetadata`, then `Node` after
`Node`. Field numbers are those of et_def.proto of MLCommons Chakra, release 0.0.4 and later. Enumerations are plain
integers, and unknown fields are ignored, so that later releases, which only add types and fields, can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from clusim.base.errors import InputError, lacking
from clusim.base.terms.operations import OPERATIONS
from clusim.formats.recordings.streams import ByteWindow

MOST_NODES: Final = 4_000_000
"""Maximum number of nodes per rank."""

MOST_MESSAGE: Final = 1 << 26
"""Longest message of a trace [bytes]."""

_VARINT: Final = 10
"""Longest encoded length of a message [bytes]."""

NODE_TYPES: Final = {
    "INVALID_NODE": 0,
    "METADATA_NODE": 1,
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": 4,
    "COMM_SEND_NODE": 5,
    "COMM_RECV_NODE": 6,
    "COMM_COLL_NODE": 7,
    "STORAGE_NODE": 8,
    "BATCH_NODE": 9,
    "CHECKPOINT_NODE": 10,
}
"""Types of nodes."""

COLLECTIVES: Final = tuple(
    name for _, name in sorted(kind for item in OPERATIONS.values() for kind in item.chakra)
)
"""Values of the attribute ``comm_type``."""

_VALUES: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""Types of an attribute, by number; each has a field for one value and a field for a list."""

_PLAIN: Final = {
    "GlobalMetadata": ("bytes version 1", "*AttributeProto attr 2"),
    "IOInfo": ("bytes values 1", "bytes shapes 2", "bytes types 3"),
    "Node": (
        "uint64 id 1",
        "bytes name 2",
        "int32 type 3",
        "*uint64 ctrl_deps 4",
        "*uint64 data_deps 5",
        "uint64 start_time_micros 6",
        "uint64 duration_micros 7",
        "IOInfo inputs 8",
        "IOInfo outputs 9",
        "*AttributeProto attr 10",
    ),
}
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
        shown = "bytes" if kind == "string" else kind
        _field(attribute, f"{shown} {kind}_val {3 + 2 * at}", choice=True)
        _field(attribute, f"{kind.title()}List {kind}_list {4 + 2 * at}", choice=True)
        _field(file.message_type.add(name=f"{kind.title()}List"), f"*{shown} values 1")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"clusim.chakra.{name}"))


def _field(message: Any, text: str, *, choice: bool = False) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    kind, name, number = text.removeprefix("*").split()
    field = message.field.add(name=name, number=int(number))
    field.label = (
        FieldDescriptorProto.LABEL_REPEATED
        if text[0] == "*"
        else FieldDescriptorProto.LABEL_OPTIONAL
    )
    if kind in _VALUES:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".clusim.chakra.{kind}"
    if choice:
        field.oneof_index = 0


def messages(name: str, pieces: Iterator[bytes], cut: Callable[[str], None]) -> Iterator[Any]:
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

    window, count = ByteWindow(pieces), 0
    while window.hold(1):
        window.hold(_VARINT)
        size, length = _varint(name, window)
        if not length or size > MOST_MESSAGE or not window.hold(length + size):
            place = window.place
            if count < 2:
                raise InputError(
                    f"{name}: byte {place}: a message of {size} bytes in a file of {window.rest()}; expected a Chakra"
                    " execution trace (.et): messages, each after its length"
                )
            cut(f"{name} is cut inside message {count + 1}; the part before was read")
            return
        begin = window.at + length
        node = node_class()
        try:
            node.ParseFromString(window.held[begin : begin + size])
        except DecodeError:
            if count:
                raise InputError(
                    f"{name}: byte {window.place + length}: message {count + 1} is not a Chakra node; the file"
                    " is damaged or of a release before 0.0.4"
                ) from None
        window.at, count = begin + size, count + 1
        if count > MOST_NODES:
            raise InputError(f"{name}: more than {MOST_NODES} nodes; record fewer steps")
        # Metadata do not have field 3: the first message is a node only in files without metadata.
        if count > 1 or node.type:
            yield node


def _varint(name: str, window: ByteWindow) -> tuple[int, int]:
    """Return the number at the read position and its length, which is 0 if the data end first."""
    value = 0
    for length, byte in enumerate(window.held[window.at : window.at + _VARINT], 1):
        value |= (byte & 0x7F) << (7 * (length - 1))
        if byte < 0x80:
            return value, length
        if length == _VARINT:
            raise InputError(
                f"{name}: byte {window.place}: not a length of a message; the file is damaged or not a Chakra trace"
            )
    return value, 0


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


def pack(message: Any) -> bytes:
    """Return a message as stored in a file: after its length."""
    body: bytes = message.SerializeToString(deterministic=True)
    size, result = len(body), bytearray()
    while size >= 0x80:
        result.append(size & 0x7F | 0x80)
        size >>= 7
    result.append(size)
    return bytes(result) + body
