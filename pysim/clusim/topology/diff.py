"""Differences between two topologies: nodes, links, rates, latencies, protocols and policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusim.base.json_schema import JsonObject
from clusim.base.tables import group_values
from clusim.base.units import Rate, format_rate, format_size, format_time
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Node
from clusim.topology.render import ranges

_SKIPPED = {
    "name",
    "a",
    "b",
    "description",
    "sources",
    "source_text",
    "nodes",
    "links",
}
_NOT_SHOWN = {"endpoint", "unit", "nic", "rate_control"}
"""Parts of a graph node that are compared field by field."""

_WORDS = {
    "count": "links",
    "rate": "rate",
    "latency_ps": "latency",
    "buffer_bytes": "buffer",
    "cls": "class",
    "num_vcs": "virtual channels",
    "p2p": "point-to-point mode",
    "window_bytes": "window",
    "ring_orders": "rings",
    "mem_Bps": "memory rate",
    "mem_efficiency": "memory efficiency",
    "deliver_256": "memory per delivered byte",
    "read_256": "memory per byte read",
    "inject_256": "memory per injected byte",
    "expand_120": "expansion",
    "op_Bps": "throughput",
}


MOST_GROUPS = 4
"""Ranges of pairs listed for one change."""


@dataclass(frozen=True, slots=True)
class Difference(JsonObject):
    """Difference between topologies: its subject and description."""

    where: str
    what: str

    def __str__(self) -> str:
        """Return the difference as one line."""
        return f"{self.where}: {self.what}"


def diff(one: Fabric, other: Fabric) -> list[Difference]:
    """Return the differences; empty if both behave equally.

    Names and provenance are not compared.
    """
    result = [*_nodes(one, other), *_links(one, other)]
    result += _settings(one, other)
    return result


def _nodes(one: Fabric, other: Fabric) -> Iterator[Difference]:
    mine = {node.name: node for node in one.nodes}
    theirs = {node.name: node for node in other.nodes}
    yield from _only(mine, theirs, "only in the first")
    yield from _only(theirs, mine, "only in the second")
    changes = group_values(
        (text, name)
        for name in mine
        if name in theirs
        for text in _changes(mine[name], theirs[name])
    )
    for text, names in changes.items():
        yield Difference(ranges(names), text)
    order = [name for name in one.ranks if name in theirs]
    if order != [name for name in other.ranks if name in mine]:
        yield Difference("ranks", "the same GPUs have other rank numbers")


def _node_word(node: Node) -> str:
    return f"{node.kind} {node.product}".strip()


def _only(
    mine: Mapping[str, Node], theirs: Mapping[str, Node], text: str
) -> Iterator[Difference]:
    groups = group_values(
        (_node_word(item), name) for name, item in mine.items() if name not in theirs
    )
    for side, names in groups.items():
        yield Difference(ranges(names), f"{text} ({side})")


def _changes(one: Any, other: Any, prefix: str = "") -> Iterator[str]:
    """Yield the differences of two objects of one type, field by field."""
    if isinstance(one, Node) and isinstance(other, Node):
        before, after = _node_word(one), _node_word(other)
        if before != after:
            yield f"{before} -> {after}"
    for item in dataclasses.fields(one):
        before, after = getattr(one, item.name), getattr(other, item.name)
        if before == after or item.name in _SKIPPED or not item.compare:
            continue
        if item.name in ("kind", "chip"):
            continue
        if item.name in _NOT_SHOWN and type(before) is type(after):
            yield from _changes(before, after)
            continue
        if item.name in _NOT_SHOWN:
            word = {"unit": "reduction unit", "nic": "adapter"}.get(
                item.name, _plain(item.name)
            )
            yield f"{word} only in the {'second' if before is None else 'first'}"
            continue
        word = prefix + _WORDS.get(item.name, _plain(item.name))
        yield f"{word} {_show(item.name, before)} -> {_show(item.name, after)}"


def _plain(name: str) -> str:
    for tail in ("_ps", "_bytes", "_Bps"):
        name = name.removesuffix(tail)
    return name.replace("_", " ")


def _show(name: str, value: Any) -> str:
    if isinstance(value, Rate):
        return format_rate(value)
    if name.endswith("_ps") and isinstance(value, int):
        return format_time(value)
    if name.endswith("_bytes") and isinstance(value, int):
        return format_size(value)
    if name.endswith("_Bps") and isinstance(value, float):
        return format_rate(value)
    if name.endswith(("_256", "_120", "_1024")) and isinstance(value, int):
        return f"{value / int(name.rpartition('_')[2]):g}"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{k} {_show(name, v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} values"
    return "none" if value in (None, "") else str(value)


Ends = tuple[str, str]


def _by_ends(fabric: Fabric) -> dict[Ends, list[Link]]:
    result = group_values(
        ((min(link.a, link.b), max(link.a, link.b)), link) for link in fabric.links
    )
    for links in result.values():
        links.sort(
            key=lambda link: (link.cls, link.name, str(link.rate), link.latency_ps)
        )
    return result


def _links(one: Fabric, other: Fabric) -> Iterator[Difference]:
    mine, theirs = _by_ends(one), _by_ends(other)
    both_nodes = set(one.node_index) & set(other.node_index)
    changes: list[tuple[str, Ends]] = []
    for ends, links in mine.items():
        if ends in theirs:
            changes += [(text, ends) for text in _link_changes(links, theirs[ends])]
        # Links of removed graph nodes would repeat that difference.
        elif set(ends) <= both_nodes:
            changes.append((f"only in the first ({_links_word(links)})", ends))
    changes += [
        (f"only in the second ({_links_word(links)})", ends)
        for ends, links in theirs.items()
        if ends not in mine and set(ends) <= both_nodes
    ]
    for text, pairs in group_values(changes).items():
        yield Difference(_pairs(pairs), text)


def _links_word(links: Iterable[Link]) -> str:
    return ", ".join(
        f"{k.count} x {k.label} of {format_rate(k.rate)}" for k in links
    )


def _link_changes(mine: list[Link], theirs: list[Link]) -> Iterator[str]:
    if len(mine) != len(theirs):
        yield f"{_links_word(mine)} -> {_links_word(theirs)}"
        return
    for one, other in zip(mine, theirs, strict=True):
        if (one.a, one.b) != (other.a, other.b) and one.dateline != (False, False):
            yield "the dateline is at the other end"
        name, after = one.label, other.label
        if name != after and one.rate != other.rate:
            # Another type of link: its format and buffers differ as well and are not listed separately.
            yield f"{_links_word([one])} -> {_links_word([other])}"
            continue
        yield from _changes(one, other, prefix=f"{name} " if len(mine) > 1 else "")


def _pairs(pairs: list[Ends]) -> str:
    """Return pairs in compact form: a graph node or range, and the range of all its peers."""
    neighbours = group_values(pairs)
    groups = group_values((tuple(targets), a) for a, targets in neighbours.items())
    if len(groups) > MOST_GROUPS and len(neighbours) == len(pairs):
        return f"{ranges(neighbours)} - {ranges(b for _, b in pairs)}, in order"
    lines = [
        f"{ranges(sources)} - {ranges(right)}" for right, sources in groups.items()
    ]
    more = len(lines) - MOST_GROUPS
    return "; ".join(lines[:MOST_GROUPS]) + (
        f"; and {more} more" if more > 0 else ""
    )


def _settings(one: Fabric, other: Fabric) -> Iterator[Difference]:
    for item in dataclasses.fields(one):
        before, after = getattr(one, item.name), getattr(other, item.name)
        if before == after or item.name in _SKIPPED or not item.compare:
            continue
        if item.name in ("formats", "protocols"):
            word = "packet format" if item.name == "formats" else "protocol"
            for name in dict.fromkeys([*before, *after]):
                if name not in before or name not in after:
                    which = "first" if name in before else "second"
                    yield Difference(f"{word} {name}", f"only in the {which}")
                else:
                    for text in _changes(before[name], after[name]):
                        yield Difference(f"{word} {name}", text)
        else:
            word = _WORDS.get(item.name, _plain(item.name))
            yield Difference(
                word, f"{_show(item.name, before)} -> {_show(item.name, after)}"
            )
