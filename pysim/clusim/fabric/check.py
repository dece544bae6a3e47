"""Is a fabric sound? Connectivity, bandwidth, symmetry, link totals, bisection, and whether routes can deadlock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clusim.errors import TopologyError
from clusim.fabric.arrays import FabricArrays
from clusim.fabric.dependency import dependency_cycle
from clusim.fabric.model import Fabric
from clusim.fabric.routing import NONE
from clusim.units import format_rate

__all__ = ["Finding", "bisection_Bps", "check", "raise_on_errors"]

Level = Literal["error", "warning", "info"]

MOST = 4
"""So many names are listed in one finding."""

MAX_BISECTION_ENDPOINTS = 512
MAX_DEADLOCK_WORK = 3_000_000
"""Endpoints times wires; beyond, looking for circles takes more than some seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a fabric: an error cannot be simulated, a warning is unusual, info is a figure."""

    level: Level
    what: str


def _names(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


def errors(fabric: Fabric) -> list[Finding]:
    """Return what makes a fabric impossible to simulate."""
    found: list[Finding] = []
    if fabric.num_ranks < 1:
        return [Finding("error", "has no GPU or host; add nodes of kind gpu or host")]
    idle = [f"{link.a}-{link.b}" for link in fabric.links if link.rate.num == 0]
    if idle:
        found.append(Finding("error", f"zero bandwidth on {_names(idle)}; give a rate above 0"))
        return found
    linked = {end for link in fabric.links for end in (link.a, link.b)}
    lonely = [node.name for node in fabric.nodes if node.name not in linked]
    if lonely and len(fabric.nodes) > 1:
        found.append(Finding("error", f"{_names(lonely)}: without any link; connect or remove"))
        return found
    missing = _unreachable(fabric)
    if missing:
        where = f"disconnected: no route {_names(missing)}; add links"
        if fabric.routing == "dimension-order":
            where += ", or use routing: shortest"
        found.append(Finding("error", where))
    return found


def _unreachable(fabric: Fabric) -> list[str]:
    arrays = fabric.lower()
    table = arrays.routes.reshape(len(arrays.nodes), -1)[arrays.endpoints["node"]] == NONE
    np.fill_diagonal(table, False)
    sources, targets = np.nonzero(table)
    pairs = zip(sources[: MOST + 1], targets[: MOST + 1], strict=True)
    shown = [f"{fabric.ranks[a]} to {fabric.ranks[b]}" for a, b in pairs]
    return shown + [""] * (len(sources) - len(shown))


def raise_on_errors(fabric: Fabric, where: str) -> None:
    """Raise `TopologyError` if the fabric cannot be simulated."""
    found = errors(fabric)
    if found:
        raise TopologyError("\n".join(f"{where}: {finding.what}" for finding in found))


def check(fabric: Fabric) -> list[Finding]:
    """Return everything worth knowing about a fabric, errors first."""
    found = errors(fabric)
    if found:
        return found
    arrays = fabric.lower()
    found += _link_totals(fabric)
    found += _ports(fabric)
    found += _symmetry(fabric, arrays)
    found += _deadlock(arrays)
    found += _bisection(fabric, arrays)
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.level])


def _degrees(fabric: Fabric) -> Counter[str]:
    degrees: Counter[str] = Counter()
    for link in fabric.links:
        degrees[link.a] += link.count
        degrees[link.b] += link.count
    return degrees


def _link_totals(fabric: Fabric) -> list[Finding]:
    degrees = _degrees(fabric)
    found: list[Finding] = []
    wrong: dict[tuple[str, int, int], list[str]] = {}
    for node in fabric.nodes:
        if node.endpoint is not None and node.endpoint.links:
            have, chip = degrees[node.name], node.endpoint.links
            if have != chip:
                wrong.setdefault((node.endpoint.chip, have, chip), []).append(node.name)
    for (chip_name, have, chip), names in wrong.items():
        level: Level = "warning"
        found.append(Finding(level, f"{_names(names)}: {have} links, but {chip_name} has {chip}"))
    return found


def _ports(fabric: Fabric) -> list[Finding]:
    degrees = _degrees(fabric)
    return [
        Finding("warning", f"{node.name}: {degrees[node.name]} links on {node.ports} ports")
        for node in fabric.nodes
        if node.ports and degrees[node.name] > node.ports
    ]


def endpoint_rates_Bps(arrays: FabricArrays) -> NDArray[np.float64]:
    """Return the bandwidth out of every endpoint [B/s]."""
    rates = arrays.wires["rate_num"] / arrays.wires["rate_den"] * 1e12
    total = np.zeros(len(arrays.nodes), np.float64)
    np.add.at(total, arrays.wires["src"], rates)
    result: NDArray[np.float64] = total[arrays.endpoints["node"]]
    return result


def _symmetry(fabric: Fabric, arrays: FabricArrays) -> list[Finding]:
    rates = endpoint_rates_Bps(arrays)
    low, high = float(rates.min()), float(rates.max())
    if low == high:
        what = f"every endpoint has {format_rate(low)} in each direction"
        return [Finding("info", what)]
    slowest, fastest = fabric.ranks[int(rates.argmin())], fabric.ranks[int(rates.argmax())]
    what = f"asymmetric: {slowest} has {format_rate(low)}, {fastest} has {format_rate(high)}"
    return [Finding("warning", what)]


def _deadlock(arrays: FabricArrays) -> list[Finding]:
    if len(arrays.endpoints) * len(arrays.wires) > MAX_DEADLOCK_WORK:
        return [Finding("info", "too large to look for circles of waiting buffers")]
    cycle = dependency_cycle(arrays)
    if not cycle:
        return [Finding("info", "routes cannot deadlock: buffer dependencies are acyclic")]
    names = [arrays.wire_names[wire] for wire in cycle]
    what = f"routes can deadlock: buffers wait in a circle {_names(names)};"
    return [Finding("warning", f"{what} use routing: dimension-order, or more VCs with datelines")]


def bisection_Bps(arrays: FabricArrays) -> float:
    """Return the bandwidth between the lower and the upper half of the ranks, one way [B/s].

    It is the maximum flow over the directed graph, so it bounds what any routing can move between the halves.
    """
    from clusim.fabric.flow import max_flow

    nodes = arrays.endpoints["node"]
    half = len(nodes) // 2
    return max_flow(arrays, list(nodes[:half]), list(nodes[half : 2 * half]))


def _bisection(fabric: Fabric, arrays: FabricArrays) -> list[Finding]:
    if not 2 <= fabric.num_ranks <= MAX_BISECTION_ENDPOINTS:
        return []
    width = bisection_Bps(arrays)
    injected = float(endpoint_rates_Bps(arrays)[: fabric.num_ranks // 2].sum())
    share = width / injected if injected else 0.0
    what = f"bisection {format_rate(width)} one way, {share:.0%} of what half of the endpoints can send"
    return [Finding("info", what)]
