"""Topology as text: node, CPUs, PCIe switches, GPUs and NICs as a tree; GPU links as a matrix; the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from clusim.base.tables import group_values, text_table
from clusim.base.units import format_rate, format_time
from clusim.topology.model import Fabric, Link
from clusim.topology.node import KIND_WORDS, Node, kind_of
from clusim.topology.outline import Branch, Outline, OutlinedMachine, outline, total
from clusim.topology.render import ranges

MOST_ROOTS = 4
"""Number of equal trees shown before the rest is counted."""

MOST_MATRIX = 16
"""Most GPUs of a node with links shown as a matrix."""

MOST_RANGES = 6

_ORDER = {"memory": 0, "pcie": 1, "switch": 2, "gpu": 3, "host": 4, "nic": 5}
"""Order of children by kind; other kinds follow."""

_PREFIX = re.compile(r"^n[0-9]+/")


def tree(fabric: Fabric) -> str:
    """Return the topology as a tree with its links, for a terminal."""
    view = outline(fabric)
    lines = [
        f"{fabric.name}: {fabric.description}".rstrip(": "),
        f"  {', '.join(fabric.summary().values)}",
    ]
    for group in view.alike():
        lines += ["", *_machines(group, view)]
    if view.tiers:
        lines += ["", *_network(view)]
    return "\n".join(lines)


def _machines(group: list[OutlinedMachine], view: Outline) -> Iterator[str]:
    machine = group[0]
    if len(view.machines) > 1:
        names = ranges(f"n{m.zone}" for m in group)
        yield f"node n{machine.zone}" + (
            f" ({len(group)} identical: {names})" if len(group) > 1 else ""
        )
    else:
        yield "node"
    ranks = {name: rank for rank, name in enumerate(view.fabric.ranks)}
    shown_roots = machine.shown_roots(MOST_ROOTS)
    for number, roots in enumerate(shown_roots):
        more = ""
        if len(roots) > 1:
            names = ranges(_short(root.node.name) for root in roots)
            more = f"  ({len(roots)} identical: {names})"
        yield from _branch(roots[0], "", number == len(shown_roots) - 1, ranks, more)
    if machine.side_links:
        yield "between CPUs"
        for text, links in _alike_links(machine.side_links).items():
            pairs = [f"{_short(link.a)}-{_short(link.b)}" for link in links]
            yield f"  {_short_list(pairs)}: {text}"
    yield from _gpu_links(machine)


def _branch(
    branch: Branch, indent: str, last: bool, ranks: dict[str, int], more: str
) -> Iterator[str]:
    yield f"{indent}{'└─' if last else '├─'} {_line(branch, [branch], ranks)}{more}"
    below = indent + ("   " if last else "│  ")
    groups: list[list[Branch]] = []
    for child in sorted(
        branch.children, key=lambda child: _ORDER.get(kind_of(child.node), 9)
    ):
        same = (
            groups
            and not child.children
            and groups[-1][0].signature() == child.signature()
        )
        if same and kind_of(child.node) in ("nic", "memory"):
            groups[-1].append(child)
        else:
            groups.append([child])
    for number, group in enumerate(groups):
        final = number == len(groups) - 1
        if len(group) == 1:
            yield from _branch(group[0], below, final, ranks, "")
        else:
            yield f"{below}{'└─' if final else '├─'} {_line(group[0], group, ranks)}"


def _line(branch: Branch, group: list[Branch], ranks: dict[str, int]) -> str:
    node = branch.node
    text = ranges(_short(item.node.name) for item in group)
    if node.product:
        text += f"  {node.product}"
    if node.name in ranks and len(ranks) > 1:
        text += f", rank {ranks[node.name]}"
    if node.nic is not None and not node.nic.gpudirect:
        text += ", no GPUDirect"
    if branch.links:
        text += "  " + ", ".join(_link(link) for link in branch.links)
        text += " each" if len(group) > 1 else ""
    return text


def _link(link: Link) -> str:
    count = f"{link.count} x " if link.count > 1 else ""
    return f"[{count}{link.label}, {format_rate(link.rate)}]"


def _short(name: str) -> str:
    return _PREFIX.sub("", name)


def _short_list(items: list[str]) -> str:
    if len(items) <= MOST_RANGES:
        return ", ".join(items)
    return f"{', '.join(items[:3])}, ... ({len(items)} pairs)"


def _alike_links(links: list[Link]) -> dict[str, list[Link]]:
    def text(link: Link) -> str:
        rate, latency = format_rate(link.rate), format_time(link.latency_ps)
        return f"{link.count} x {link.label}, {rate}, {latency}"

    return group_values((text(link), link) for link in links)


def _gpu_links(machine: OutlinedMachine) -> Iterator[str]:
    if not machine.gpu_links:
        return
    yield "links of GPUs"
    switches = {node.name for node in machine.switches}
    rates = group_values(
        (end, link)
        for link in machine.gpu_links
        for end in (link.a, link.b)
        if end not in switches
    )
    groups: dict[str, list[str]] = {}
    for name, of_rate in rates.items():
        to = [link for link in of_rate if link.a in switches or link.b in switches]
        counts = Counter(link.count for link in to)
        text = f"{sum(link.count for link in of_rate)} x {of_rate[0].label} of {format_rate(of_rate[0].rate)}"
        if to:
            ends = [link.b if link.a == name else link.a for link in to]
            several = "/".join(str(link.count) for link in to)
            split = several if len(counts) > 1 else f"{to[0].count} each"
            text += f" to {ranges(_short(end) for end in ends)} ({split})"
        text += f": {format_rate(total(of_rate))} each way"
        groups.setdefault(text, []).append(name)
    for text, names in groups.items():
        yield f"  {ranges(_short(name) for name in names)}: {text}"
    trunks = [
        link
        for link in machine.gpu_links
        if link.a in switches and link.b in switches
    ]
    for text, links in _alike_links(trunks).items():
        yield f"  {_short_list([f'{_short(k.a)}-{_short(k.b)}' for k in links])}: {text}"
    direct = [
        link for link in machine.gpu_links if switches.isdisjoint((link.a, link.b))
    ]
    names = [node.name for node in machine.gpus() if node.kind == "gpu"]
    if direct and 2 < len(names) <= MOST_MATRIX:
        yield from _matrix(direct, names)


def _matrix(links: list[Link], gpus: list[str]) -> Iterator[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for link in links:
        counts[link.a, link.b] += link.count
        counts[link.b, link.a] += link.count
    short = [_short(name) for name in gpus]
    rows = []
    for name in gpus:
        cells = (
            "x" if name == other else str(counts[name, other] or "-")
            for other in gpus
        )
        rows.append([_short(name), *cells])
    width = max(map(len, short)) + 1
    yield from text_table(
        f"  {{:<{width}}}" + f"{{:>{width}}}" * len(gpus), [["", *short], *rows]
    )


def _network(view: Outline) -> Iterator[str]:
    yield "network"
    tier_of: dict[str, str] = {}
    for tier, nodes in view.tiers:
        alike = group_values((_network_node(node), node.name) for node in nodes)
        for text, names in alike.items():
            switches = f"{len(names)} {tier}{'s' if tier == 'host' else ''}"
            yield f"  {ranges(names)}: {switches}, {text}".rstrip(", ")
        tier_of.update((node.name, tier) for node in nodes)
    joints: dict[tuple[str, str, str], list[Link]] = {}
    order = {tier: number for number, (tier, _) in enumerate(view.tiers)}
    kinds = {
        node.name: kind_of(node)
        for node in view.fabric.nodes
        if node.name not in tier_of
    }
    for link in view.cables:
        ends = [
            tier_of.get(end) or KIND_WORDS.get(kinds[end], kinds[end])
            for end in (link.a, link.b)
        ]
        ends.sort(key=lambda tier: order.get(tier, -1))
        text = f"{link.label} of {format_rate(link.rate)}, {format_time(link.latency_ps)}"
        joints.setdefault((ends[0], ends[1], text), []).append(link)
    yield "  links"
    for (low, high, text), links in joints.items():
        count = sum(link.count for link in links)
        yield f"    {low} - {high}: {count} x {text}, {format_rate(total(links))} in all"


def _network_node(node: Node) -> str:
    words = [node.product] if node.product not in ("", "host", "generic") else []
    if node.endpoint is None:
        words.append(format_time(node.latency_ps))
        words += [f"{node.ports} ports"] if node.ports else []
    return ", ".join(words)
