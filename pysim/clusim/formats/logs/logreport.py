"""Summary of a log as text, with small pictures of rings, trees and transports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from clusim.base.tables import text_table
from clusim.base.units import format_ranges, format_size
from clusim.formats.logs.anomalies import find_anomalies
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.infer_collective import LoggedRoute
from clusim.formats.logs.log import Log, Tree
from clusim.formats.logs.raw_log import Member
from clusim.formats.logs.summary import (
    CallGroupJson,
    channels_of,
    groups_of_calls,
    search_of,
)
from clusim.formats.logs.tables import TableRun


def ring_picture(ring: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return a ring in one line; ``=>`` marks a hop to another node."""
    if not ring:
        return "(empty)"
    text = str(ring[0])
    for before, rank in zip(ring, [*ring[1:], ring[0]], strict=True):
        text += f"{' => ' if _far(before, rank, hosts) else ' '}{rank}"
    return text


def tree_picture(tree: Tree, hosts: Mapping[int, str]) -> str:
    """Return a tree in one line: ``0 > (1 > 2 | 8 => 9)``; it ends at ranks that did not log."""
    children = {rank: list(down) for rank, (_, down) in tree.items()}
    for rank, (up, _) in tree.items():
        if up != NONE and rank not in children.setdefault(up, []):
            children[up].append(rank)
    roots = [rank for rank, (up, _) in tree.items() if up == NONE]
    if not roots:
        below = {child for down in children.values() for child in down}
        roots = [rank for rank in children if rank not in below][:1]
    lines = [_branch(root, children, hosts) for root in sorted(roots)]
    return " ; ".join(lines) or "(not whole)"


def _branch(
    root: int, children: Mapping[int, list[int]], hosts: Mapping[int, str]
) -> str:
    visited = {root}
    text, rank = str(root), root
    # Iterative: a chain can contain all ranks, too many for recursion.
    stack: list[tuple[int, list[int]]] = []
    while True:
        down = [child for child in children.get(rank, []) if child not in visited]
        visited.update(down)
        if down:
            text += (
                " > ("
                if len(down) > 1
                else " => "
                if _far(rank, down[0], hosts)
                else " > "
            )
            if len(down) > 1:
                text += "=> " if _far(rank, down[0], hosts) else ""
                stack.append((rank, down[1:]))
            rank = down[0]
            text += str(rank)
            continue
        while stack and not stack[-1][1]:
            stack.pop()
            text += ")"
        if not stack:
            return text
        parent, children_left = stack[-1]
        rank = children_left.pop(0)
        text += f" | {'=> ' if _far(parent, rank, hosts) else ''}{rank}"


def _far(one: int, other: int, hosts: Mapping[int, str]) -> bool:
    """Return True if two ranks are known to be on different nodes."""
    return one in hosts and other in hosts and hosts[one] != hosts[other]


def symbol(route: LoggedRoute) -> str:
    """Return the letter of a transport in the matrix."""
    if route.kind == "P2P":
        return "i" if route.how == "indirect" else "P"
    if route.kind == "NET":
        if route.how.lower().startswith("socket"):
            return "T"
        return "N" if route.gdr else "n"
    return {"SHM": "S", "COLLNET": "C"}[route.kind]


def matrix(
    connections: Sequence[tuple[int, int, int, int, LoggedRoute, int]], n_ranks: int
) -> list[str]:
    """Return the transports between ranks as lines; row = source, column = target."""
    cells: dict[tuple[int, int], set[str]] = {}
    for _channel, _index, source, target, route, _ in connections:
        if target != NONE:
            cells.setdefault((source, target), set()).add(symbol(route))
    ranks = range(n_ranks)
    rows: list[list[int | str]] = [["", *ranks]]
    for source in ranks:
        marks = [_mark(cells.get((source, target), set())) for target in ranks]
        marks[source] = "-"
        rows.append([source, *marks])
    return text_table(f"{{:>{len(str(n_ranks - 1)) + 1}}}" * (n_ranks + 1), rows)


def _mark(symbols: set[str]) -> str:
    return "*" if len(symbols) > 1 else "".join(symbols) or "."


_WIDEST_MATRIX = 16
_PICTURES = 8
_KINDS = 12
_PATTERNS = {
    1: "balanced tree",
    2: "split tree",
    3: "tree",
    4: "ring",
    5: "NVLS",
    6: "CollNet",
}


def report(log: Log, *, everything: bool = False) -> str:
    """Return the summary of a log as text; `everything` disables the limit of long lists."""
    detail = 10**9 if everything else 1
    parts = [_head(log)]
    parts += _communicators(log, detail)
    parts.append(_calls(log, 24 * detail))
    for run in log.runs[: 4 * detail]:
        parts.append(_run(run))
    if len(log.runs) > 4 * detail:
        parts.append([f"... and {len(log.runs) - 4} more runs of nccl-tests"])
    anomalies = find_anomalies(log)
    if anomalies:
        limit = 20 * detail
        lines = ["Anomalies", *(f"  - {a.text}" for a in anomalies[:limit])]
        if len(anomalies) > limit:
            lines.append(f"  ... and {len(anomalies) - limit} more")
        parts.append(lines)
    parts.append(_remaining_lines(log, _KINDS * detail))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _cut(texts: Sequence[str], limit: int = 6) -> str:
    return ", ".join(texts[:limit]) + (
        f", ... ({len(texts)})" if len(texts) > limit else ""
    )


def _head(log: Log) -> list[str]:
    facts = log.facts
    lines = [
        f"{_cut(facts.files, 3)}: {facts.lines} lines, {format_size(facts.bytes)},"
        f" {facts.nccl_lines} of {facts.library or 'NCCL'}"
    ]
    if facts.versions:
        lines.append(f"  version      {_cut(sorted(facts.versions))}")
    for host, gpus in list(log.hosts.items())[:16]:
        names = ", ".join(
            f"{n} x {name or 'GPU'}" for name, n in Counter(gpus).items()
        )
        nics = facts.nics.get(host, {})
        more = (
            f"; network {_cut([f'{nic} {speed}' for nic, speed in nics.items()], 4)}"
            if nics
            else ""
        )
        lines.append(f"  host         {host}{': ' + names if names else ''}{more}")
    if len(log.hosts) > 16:
        lines.append(f"  ... and {len(log.hosts) - 16} more hosts")
    for name, values in sorted(facts.environment.items()):
        lines.append(f"  setting      {name}={_cut(sorted(values), 4)}")
    return lines


def _communicators(log: Log, detail: int) -> list[list[str]]:
    """Return a section for each communicator; equal sections are merged."""
    bodies: dict[tuple[str, ...], list[LoggedCommunicator]] = {}
    looked = log.communicators[: 256 * detail]
    for communicator in looked:
        body = tuple(_communicator(log, communicator, detail))
        bodies.setdefault(body, []).append(communicator)
    parts = []
    for body, same in list(bodies.items())[: 6 * detail]:
        first = same[0]
        n = first.n_ranks if first.n_ranks > 0 else "?"
        title = f"{n} ranks, {first.n_logged} logged"
        if len(same) > 1:
            numbers = format_ranges([c.number for c in same])
            parts.append(
                [f"Communicators {numbers} ({len(same)}): {title} each", *body]
            )
            continue
        name = f", id {first.comm_id:#x}" if first.comm_id else ""
        if first.parent != NONE:
            name += f", split from {first.parent}, color {first.color}"
        parts.append([f"Communicator {first.number}: {title}{name}", *body])
    omitted = len(log.communicators) - sum(
        len(same) for same in list(bodies.values())[: 6 * detail]
    )
    if omitted:
        parts.append([f"... and {omitted} more communicators"])
    return parts


def _communicator(
    log: Log, communicator: LoggedCommunicator, detail: int
) -> list[str]:
    members = log.members(communicator)
    lines: list[str] = []
    by_host: dict[str, list[int]] = {}
    for rank, host in communicator.host_of.items():
        by_host.setdefault(host, []).append(rank)
    for host, ranks in list(by_host.items())[: 16 * detail]:
        buses = [
            f"{communicator.bus_of[r]:x}"
            for r in sorted(ranks)
            if r in communicator.bus_of
        ]
        gpus = {communicator.gpu_of.get(rank, "") for rank in ranks} - {""}
        more = f", {_cut(sorted(gpus))}" if gpus else ""
        more += f", bus {' '.join(buses[:16])}" if buses else ""
        lines.append(f"  ranks        {format_ranges(ranks)} on {host}{more}")
    channels = channels_of(members)
    if channels:
        lines.append(
            "  channels     "
            + ", ".join(f"{n} {transport}" for transport, n in channels.items())
        )
    lines += _pictures(
        "ring", {c: ring_picture(r, communicator.host_of) for c, r in log.rings(communicator).items()}, detail
    )  # fmt: skip
    lines += _pictures(
        "tree", {c: tree_picture(t, communicator.host_of) for c, t in log.trees_of(communicator).items()}, detail
    )  # fmt: skip
    lines += _system(members)
    lines += _search(log, communicator)
    lines += _transports(log, communicator)
    available = sum(m.nvls is True for m in members)
    heads = max((m.n_heads for m in members), default=NONE)
    if available or heads > 0:
        more = f", {heads} heads" if heads > 0 else ""
        lines.append(
            f"  NVLS         available on {available} of {len(members)} ranks{more}"
        )
    lines += _costs(members)
    longest = max((m.timings.get("total", 0.0) for m in members), default=0.0)
    if longest:
        lines.append(f"  init         up to {longest:g} s")
    lines += [f"  assumed      {text}" for text in communicator.assumed]
    return lines


def _pictures(noun: str, pictures: dict[int, str], detail: int) -> list[str]:
    by_picture: dict[str, list[int]] = {}
    for channel, picture in pictures.items():
        by_picture.setdefault(picture, []).append(channel)
    limit = _PICTURES * detail
    lines = []
    for picture, channels in list(by_picture.items())[:limit]:
        excerpt = (
            picture if len(picture) <= 200 or detail > 1 else picture[:196] + " ..."
        )
        lines.append(f"  {noun:<5}{format_ranges(channels):>7} {excerpt}")
    if len(by_picture) > limit:
        lines.append(f"  ... and {len(by_picture) - limit} other {noun}s")
    return lines


def _system(members: Sequence[Member]) -> list[str]:
    """Return the topology print of the first rank that has one."""
    member = next((m for m in members if m.system), None)
    if member is None:
        return []
    tops = [node for node in member.system if node.depth == 0]
    inner = [node for node in member.system if node.depth]
    counts = [
        f"{len({n.name for n in nodes})} {noun}{'s' * (len(nodes) != 1)}"
        for noun, nodes in (
            ("CPU", [n for n in tops if n.name.startswith("CPU/")]),
            (
                "GPU",
                [n for n in inner if n.name.startswith("GPU/") and n.link != "NVL"],
            ),
            ("NIC", [n for n in inner if n.name.startswith("NET/")]),
        )
    ]
    links: dict[str, Counter[float]] = {}
    for node in inner:
        kind = node.name.split("/")[0]
        links.setdefault(f"{node.link} to {kind}", Counter())[node.bw] += 1
    lines = [
        f"{n} x {noun} {bw:g} GB/s"
        for noun, rates in links.items()
        for bw, n in sorted(rates.items(), reverse=True)
    ]
    bw = (
        f", at most {member.system_bw[0]:g} GB/s, {member.system_bw[1]:g} per GPU"
        if member.system_bw
        else ""
    )
    writer = (
        f"rank {member.rank}" if member.rank >= 0 else "a rank of unknown number"
    )
    return [
        f"  topology     as {writer} printed it: {', '.join(counts)}{bw}",
        *(
            f"               {_cut(lines[at : at + 6])}"
            for at in range(0, min(len(lines), 12), 6)
        ),
    ]


def _costs(members: Sequence[Member]) -> list[str]:
    """Return the tuner's fastest choices for small and for large calls."""
    costs: dict[tuple[str, str, str], tuple[float, float]] = next(
        (m.costs for m in members if m.costs), {}
    )
    lines = []
    for name in dict.fromkeys(name for name, _, _ in costs):
        entries = [
            (choice, cost)
            for (function, *choice), cost in costs.items()
            if function == name and cost[1] > 0
        ]
        if not entries:
            continue
        small, lowest = min(entries, key=lambda item: item[1][0])
        large, highest = max(entries, key=lambda item: item[1][1])
        lines.append(
            f"{name}: {' '.join(small)} {lowest[0]:g} us, {' '.join(large)} {highest[1]:g} GB/s"
        )
    return [
        f"  {'cost table' if at == 0 else '':<12} least latency and most bandwidth, {text}"
        if at == 0
        else f"{'':<15}{text}"
        for at, text in enumerate(lines[:8])
    ]


def _search(log: Log, communicator: LoggedCommunicator) -> list[str]:
    return [
        f"  search       {_PATTERNS.get(p.pattern, f'pattern {p.pattern}')}: {p.channels} channels of"
        f" {p.bw_intra:g}/{p.bw_inter:g} GB/s, {p.type_intra}/{p.type_inter}"
        for p in search_of(log.members(communicator))[:8]
    ]


def _transports(log: Log, communicator: LoggedCommunicator) -> list[str]:
    connections = log.connections_of(communicator)
    if not connections:
        return []
    labels = Counter(route.label for *_, route, _ in connections)
    lines = [
        "  transports   "
        + ", ".join(f"{n} x {label}" for label, n in labels.most_common())
    ]
    if 1 < communicator.n_ranks <= _WIDEST_MATRIX:
        legend = (
            "P P2P, i P2P through a GPU, S host memory, N network with GPUDirect, n without,"
            " T socket, * several"
        )
        lines.append(f"               from row to column: {legend}")
        lines += [
            f"               {line}"
            for line in matrix(connections, communicator.n_ranks)
        ]
    return lines


def _calls(log: Log, limit: int) -> list[str]:
    groups = groups_of_calls(log)
    if not groups:
        return []
    total = len(log.operations)
    source = "" if len(log.calls) else ", from the tuner's lines of rank 0"
    lines = [f"Calls: {total} operations in {len(log.calls)} lines{source}"]
    lines.append(
        "  collective     ranks        size      type    op     count  algorithm"
    )
    rows = (_call_row(group) for group in groups[:limit])
    lines += text_table("  {:<14} {:>5} {:>11} {:>9} {:>5} {:>9}  {}", rows)
    if len(groups) > limit:
        lines.append(f"  ... and {len(groups) - limit} more sizes")
    return lines


def _call_row(group: CallGroupJson) -> list[str]:
    chosen = f"{group.algorithm} {group.protocol}".strip()
    if group.channels:
        low, high = group.channels
        chosen += f", channels {low}-{high}"
    if group.model_us is not None:
        chosen += f", model {group.model_us:g} us"
    ranks = str(group.n_ranks) if group.n_ranks > 0 else "?"
    size, count = format_size(group.size), str(group.count)
    return [
        group.collective or "?",
        ranks,
        size,
        group.type,
        group.op,
        count,
        chosen,
    ]


def _run(run: TableRun) -> list[str]:
    name = run.collective() or "an unknown collective"
    lines = [
        f"Measured: {name}, {run.n_ranks or '?'} ranks ({run.source}:{run.line})"
    ]
    if run.values:
        lines.append(
            "         size      time us  busbw GB/s   in place us  busbw GB/s"
        )
    rows: list[list[str | float]] = []
    for size, values in zip(run.sizes, run.values, strict=True):
        in_place = [] if math.isnan(values[4]) else [values[4], values[6]]
        rows.append([format_size(size), values[0], values[2], *in_place])
    lines += text_table("  {:>11} {:>12g} {:>11g} {:>13g} {:>11g}", rows)
    if math.isfinite(run.average_busbw):
        lines.append(f"  average busbw {run.average_busbw:g} GB/s")
    return lines if run.values or run.failures else []


def _remaining_lines(log: Log, limit: int) -> list[str]:
    facts = log.facts
    kinds = sorted(facts.unknown.items(), key=lambda item: -item[1].count)
    total = sum(kind.count for _, kind in kinds)
    lines = []
    if kinds:
        lines.append(
            f"Not used: {total} lines of {facts.library or 'NCCL'} of {len(kinds)} kinds"
        )
        lines += text_table(
            "  {:>9}  {}",
            [(kind.count, name) for name, kind in kinds[:limit]],
            strip=False,
        )
        if len(kinds) > limit:
            lines.append(f"  ... and {len(kinds) - limit} more kinds")
    if facts.app_lines:
        lines.append(f"Other programs' lines: {facts.app_lines}")
    return lines
