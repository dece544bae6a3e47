"""PyTorch's execution traces (JSON), the input of Chakra's converter to .et files.

PyTorch's observer records host calls without times; ``chakra_trace_link`` adds times and kernels. In both,
communication is read from ``record_param_comms``: data, sequence, group, rank or root or peer, name.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import ROOTED, operation_starting
from clusim.formats.recordings.chakra_graph import ChakraNode, Rank
from clusim.formats.recordings.jsonstream import read_items
from clusim.formats.recordings.source import FileStream, integer, time_ps

PS_PER_US = 1_000_000
MOST_US = 10**11


class ChakraHost:
    """Content of a host trace in addition to its graph.

    Attributes
    ----------
    rank : int or None
        Rank that recorded it, if contained in a collective over all ranks.
    size : int
        Ranks of the largest group.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self.size = 0
        self.groups: dict[str, tuple[int, ...]] = {}
        self.by_id: dict[int, str] = {}


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
        return [item for item in result if isinstance(item, dict) and "pg_name" in item]
    return []


def ranks_of(group: dict[str, Any]) -> tuple[int, ...]:
    """Return the ranks of such a group; empty if unknown."""
    ranks = group.get("ranks")
    numbers = [integer(n, MOST_RANKS - 1) for n in ranks] if isinstance(ranks, list) else []
    return tuple(n for n in numbers if n is not None)


def host_graph(number: int, file: FileStream, skipped: Counter[str]) -> tuple[Rank, ChakraHost]:
    """Return the graph of a host trace.

    The file is read twice, since groups may be defined after their use.
    """
    rank, host = Rank(number, file.name), ChakraHost()

    def learn(row: Any) -> None:
        if isinstance(row, dict) and "process_group:init" in str(row.get("name")):
            _learn(host, row)

    def take(row: Any) -> None:
        if not isinstance(row, dict):
            return
        at = integer(row.get("id"))
        if at is None:
            skipped["nodes without an id"] += 1
            return
        rank.add(_node(at, row, file.name, host, skipped))

    table, listed = read_items(file, "nodes", learn)
    if not listed or table is None or "schema" not in table:
        raise InputError(f"{file.name}: not an execution trace of PyTorch: no list 'nodes'")
    read_items(file, "nodes", take)
    rank.communicators = host.groups
    for node in rank.nodes.values():
        node.calls = [dep for dep in node.calls if dep in rank.nodes and dep != node.id]
    return rank, host


def _learn(host: ChakraHost, row: dict[str, Any]) -> None:
    for item in groups_of(str(_values(row)[:1])):
        name = str(item["pg_name"])
        host.groups[name] = ranks_of(item)
        size = integer(item.get("group_size")) or 0
        host.size = max(host.size, size, *(n + 1 for n in host.groups[name]), 0)
        backend = integer(item.get("backend_id"))
        if backend is not None:
            host.by_id[backend] = name


def _values(row: dict[str, Any]) -> list[Any]:
    inputs = row.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _attributes(row: dict[str, Any]) -> dict[str, Any]:
    result = row.get("attrs")
    items = result if isinstance(result, list) else []
    return {str(i["name"]): i.get("value") for i in items if isinstance(i, dict) and "name" in i}


def _node(
    at: int, row: dict[str, Any], file: str, host: ChakraHost, skipped: Counter[str]
) -> ChakraNode:
    name = str(row.get("name", ""))
    attributes = {**row, **_attributes(row)}
    parent = integer(attributes.get("ctrl_deps", attributes.get("parent")))
    node = ChakraNode(
        at, name, "none", f"{file}: node {at}", calls=[] if parent is None else [parent]
    )
    if name == "record_param_comms":
        _call(node, _values(row), attributes, host, skipped)
        return node
    took = time_ps(attributes.get("exclusive_dur", attributes.get("dur")), PS_PER_US)
    if not took or took > MOST_US * PS_PER_US or name.lower().startswith("nccl"):
        return node
    node.duration_ps = took
    on_gpu = attributes.get("cat") is not None
    node.kind = "compute" if on_gpu else "host"
    node.lane = (
        f"stream {attributes.get('stream', 0)}" if on_gpu else f"cpu {attributes.get('tid', 0)}"
    )
    return node


def _call(
    node: ChakraNode,
    values: list[Any],
    attributes: dict[str, Any],
    host: ChakraHost,
    skipped: Counter[str],
) -> None:
    names = [i for i, value in enumerate(values) if isinstance(value, str) and value != ""]
    place = next((i for i in names if _kind(values[i])), -1)
    name = attributes.get("collective_name") or (values[place] if place >= 0 else "")
    kind = _kind(name)
    if not kind:
        if (name or names) and "wait" not in values:
            skipped[f"record_param_comms of {name or values[names[0]]!s:.40}"] += 1
        return
    node.kind, node.name, node.operation = kind, str(name), operation_starting(name)
    node.comm = _group(values, attributes, host)
    count = integer(attributes.get("in_msg_nelems"))
    element = find_dtype(str(attributes.get("dtype")))
    node.bytes = (
        count * element.size_bytes if count is not None and element else _tensor_bytes(values[:1])
    )
    number = integer(values[place - 1]) if place > 0 else None
    if number is None:
        return
    if kind != "collective":
        node.peer = number
    elif node.operation in ROOTED:
        node.root = number
    elif not host.groups.get(node.comm):
        host.rank = number


def _kind(name: Any) -> str:
    if not isinstance(name, str):
        return ""
    if name in ("send", "recv"):
        return name
    return "collective" if operation_starting(name) else ""


def _group(values: list[Any], attributes: dict[str, Any], host: ChakraHost) -> str:
    """Return the name of the group of a call.

    It is an attribute, a pair (name, description), or found by the number of its backend.
    """
    name = attributes.get("pg_name")
    if isinstance(name, str):
        return name
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value in host.by_id:
            return host.by_id[value]
        if isinstance(value, list) and len(value) == 2 and str(value[0]) in host.groups:
            return str(value[0])
    return ""


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
