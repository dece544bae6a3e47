"""Writes recordings as Chakra execution traces (.et), which `clusim.formats.recordings.chakra` reads back.

A file per recorded rank: a metadata node with the groups, then a node per event. The order of a stream is a control
dependency. Standard attributes (``comm_type``, ``comm_size``, ``pg_name``, ``stream``, ``is_cpu_op``, durations in
microseconds, shapes and types of operators) are for any reader; others preserve data
that the format lacks, such as durations in picoseconds and the ranks that a file represents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.files import check_place, write_bytes
from clusim.base.terms.operations import GATHERING, OPERATIONS
from clusim.formats.recordings.chakra_schema import (
    NODE_TYPES,
    PRESERVED,
    message_class,
)
from clusim.formats.recordings.model import ABSENT, PS_PER_US, Event, Recording

VERSION = b"0.0.4"
"""Release of the schema."""

_TYPES = {
    "compute": "COMP_NODE",
    "delay": "COMP_NODE",
    "collective": "COMM_COLL_NODE",
    "send": "COMM_SEND_NODE",
    "recv": "COMM_RECV_NODE",
}


def check(path: Path) -> None:
    """Raise an error if a trace cannot be written there: no folder, or no protobuf."""
    check_place(path)
    message_class("Node")


def write(recording: Recording, path: Path) -> list[Path]:
    """Write a recording: one file if a rank represents the others, otherwise a file per rank, ``NAME.RANK.et``.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        A recording without events, or a missing folder.
    """
    ranks = sorted({event.rank for event in recording.events})
    if not ranks:
        raise InputError(f"{recording.name}: no event to write")
    alike = len(ranks) == 1 < recording.num_ranks
    result = []
    for rank in ranks:
        single = len(ranks) == 1
        file = (
            path
            if single
            else path.with_name(f"{path.stem}.{rank}{path.suffix or '.et'}")
        )
        write_bytes(
            file, b"".join(map(_add_length, _messages(recording, rank, alike=alike)))
        )
        result.append(file)
    return result


def _add_length(message: Any) -> bytes:
    """Return a message after its length."""
    body, length = message.SerializeToString(), bytearray()
    size = len(body)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*length, size]) + bytes(body)


def _messages(recording: Recording, rank: int, *, alike: bool) -> Iterator[Any]:
    metadata = message_class("GlobalMetadata")()
    metadata.version = VERSION
    yield metadata
    yield _groups(recording, rank, alike=alike)
    # Starts since the Unix epoch exceed 64 bits.
    origin_ps = min(
        (e.start_ps for e in recording.events if e.start_ps != ABSENT), default=0
    )
    number: dict[int, int] = {}
    before: dict[str, tuple[int, int]] = {}
    for at, event in enumerate(recording.events):
        if event.rank != rank:
            continue
        number[at] = len(number) + 1
        node = _node(recording, event, origin_ps)
        node.id = number[at]
        data = [number[dep] for dep in event.deps]
        node.data_deps.extend(data)
        previous, bunch = before.get(event.stream, (0, ABSENT))
        if event.bunch != ABSENT and event.bunch == bunch:
            previous = 0  # one launch: its messages do not wait for each other
        if previous and previous not in data:
            node.ctrl_deps.append(previous)
        before[event.stream] = node.id, event.bunch
        yield node


def _groups(recording: Recording, rank: int, *, alike: bool) -> Any:
    """Return the node of the groups; its number is 0."""
    node = message_class("Node")()
    node.type, node.name = NODE_TYPES["METADATA_NODE"], b"## process_group:init ##"
    groups = [
        {"pg_name": str(at), "pg_desc": group.name, "ranks": list(group.ranks)}
        for at, group in enumerate(recording.groups)
    ]
    node.inputs.values = json.dumps(groups).encode()
    _set(node, "num_ranks", recording.num_ranks)
    _set(node, "rank", rank)
    if recording.nccl_version:
        _set(node, "nccl_version", recording.nccl_version)
    if recording.hosts:
        _set(node, "hosts", "\n".join(recording.hosts))
    if alike:
        _set(node, "represents_all", True)
    elif recording.representatives:
        represented = (
            r for r, of in enumerate(recording.representatives) if of == rank
        )
        _set(node, "represents", ",".join(map(str, represented)))
    return node


def _node(recording: Recording, event: Event, origin_ps: int) -> Any:
    node = message_class("Node")()
    node.type, node.name = NODE_TYPES[_TYPES[event.kind]], event.name.encode()
    if event.duration_ps != ABSENT:
        node.duration_micros = max(1, round(event.duration_ps / PS_PER_US))
        _set(node, "duration_ps", event.duration_ps)
    _set(node, "stream_name", event.stream)
    if event.start_ps != ABSENT:
        event = replace(event, start_ps=event.start_ps - origin_ps)
    for name in PRESERVED:
        value = getattr(event, name)
        if value != Event.__dataclass_fields__[name].default:
            _set(node, name, value)
    if event.kind in ("compute", "delay"):
        _compute(node, event)
    else:
        _call(node, recording, event)
    return node


def _compute(node: Any, event: Event) -> None:
    kind, _, number = event.stream.partition(" ")
    host = event.kind == "delay"
    _set(node, "is_cpu_op", host)
    if kind == "stream" and number.isdecimal():
        _set(node, "stream", int(number))
    if event.flops or event.mem_bytes:
        _set(node, "dtype", event.dtype)
    if event.flops:
        _set(node, "num_ops", event.flops)
    if event.mem_bytes:
        _set(node, "tensor_size", event.mem_bytes)
    operator = event.operator
    if operator is None:
        return
    _set(node, "aten", operator.name)
    for side, shapes in (
        (node.inputs, operator.inputs),
        (node.outputs, operator.outputs),
    ):
        side.shapes = _json([s.sizes for s in shapes])
        side.types = _json([f"Tensor({s.dtype})" for s in shapes])
        # As of PyTorch's observer, without identifiers: tensor, storage, offset, elements, size of one, device.
        side.values = _json(
            [(0, 0, 0, prod(s.sizes), s.element_bytes, "cuda:0") for s in shapes]
        )
    if operator.flags:
        _set(node, "flags", " ".join(operator.flags))
    for name, value in zip(
        ("work_flops", "work_bytes"), operator.work, strict=False
    ):
        _set(node, name, value)


def _call(node: Any, recording: Recording, event: Event) -> None:
    ranks = recording.groups[event.group].ranks
    _set(node, "is_cpu_op", False)
    _set(node, "pg_name", str(event.group))
    _set(node, "comm_dtype", event.dtype)
    if event.kind != "collective":
        _set(node, "comm_size", event.bytes)
        _set(
            node,
            "comm_dst" if event.kind == "send" else "comm_src",
            ranks[event.peer],
        )
        _set(node, "comm_tag", event.tag)
        _set(node, "eager", event.eager)
        if event.bunch != ABSENT:
            _set(node, "bunch", event.bunch)
        return
    part = event.operation in GATHERING and event.bytes % len(ranks) == 0
    _set(node, "comm_type", OPERATIONS[event.operation].chakra[0][0])
    _set(node, "comm_size", event.bytes // len(ranks) if part else event.bytes)
    if not part:
        _set(node, "comm_bytes", event.bytes)
    _set(node, "redop", event.redop)
    if event.root != ABSENT:
        _set(node, "root_rank", ranks[event.root])


def _json(items: Sequence[Any]) -> bytes:
    return json.dumps(items, separators=(",", ":")).encode()


def _set(node: Any, name: str, value: bool | int | str) -> None:
    """Add an attribute."""
    attribute = node.attr.add()
    attribute.name = name.encode()
    if isinstance(value, bool):
        attribute.bool_val = value
    elif isinstance(value, int):
        attribute.int64_val = value
    else:
        attribute.string_val = value.encode()
