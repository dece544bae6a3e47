"""Checks of links against their chips, parallel links and cables, with findings about links and graph
nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from clusim.base.json_schema import JsonObject
from clusim.base.records import dataclass
from clusim.base.tables import group_values
from clusim.base.units import format_rate, format_size
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK

Level = Literal["error", "warning", "info"]

HOST_CLASSES = frozenset({"pcie", "numa", "dram", "c2c"})
"""Classes of links that belong to the host and not to a network of GPUs."""

MOST = 4
"""Names listed in one finding."""

TOLERANCE = 1.001
"""Allowed ratio of equal rates: roundings of PCIe rates differ between sources."""


@dataclass(frozen=True, slots=True)
class Finding(JsonObject):
    """Finding about a topology.

    An error cannot be simulated, a warning is unusual, info is a value.
    """

    level: Level
    what: str


def list_names(names: list[str]) -> str:
    """Return the first names and the number of the rest."""
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


@dataclass(slots=True)
class _Ends:
    """Links of one node: number and bandwidth by class [B/s]."""

    count: Counter[str]
    rate_Bps: Counter[str]


def by_level(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in order: errors, warnings, information."""
    return sorted(findings, key=lambda finding: get_args(Level).index(finding.level))


def check_links(fabric: Fabric) -> list[Finding]:
    """Return the anomalies of single links and nodes."""
    ends = _ends(fabric)
    return [
        *_warnings(_chips(fabric, ends)),
        *_warnings(_pcie(fabric)),
        *_warnings(_ports(fabric, ends)),
        *_siblings(fabric, ends),
        *_uneven(fabric),
        *_warnings(_adapters(fabric, ends)),
        *_warnings(_nodes_without_nic(fabric)),
        *_warnings(_buffers(fabric)),
        *_warnings(_shared_buffers(fabric)),
    ]


def _warnings(problems: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a warning for each problem, with the graph nodes or links that have it."""
    for text, names in group_values(problems).items():
        yield Finding("warning", f"{list_names(names)}: {text}")


def _ends(fabric: Fabric) -> dict[str, _Ends]:
    result: dict[str, _Ends] = {
        node.name: _Ends(Counter(), Counter()) for node in fabric.nodes
    }
    for node, _, link in fabric.ends():
        end = result[node.name]
        end.count[link.cls] += link.count
        end.rate_Bps[link.cls] += link.count * link.rate.bytes_per_s  # type: ignore[assignment]
    return result


def _chips(fabric: Fabric, ends: dict[str, _Ends]) -> Iterator[tuple[str, str]]:
    """Compare links between GPUs with the number of the chip; a card without its bridge is usual."""
    for node in fabric.nodes:
        chip = node.endpoint
        if chip is None or not chip.links:
            continue
        have = sum(
            n for cls, n in ends[node.name].count.items() if cls not in HOST_CLASSES
        )
        if have != chip.links and have:
            yield f"{have} links, but {chip.chip} has {chip.links}", node.name


def _pcie(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Find PCIe links wider or faster than the chip's."""
    for node, _, link in fabric.ends():
        chip = node.endpoint
        if link.cls != "pcie" or chip is None or not chip.pcie_Bps:
            continue
        if link.rate.bytes_per_s > chip.pcie_Bps * TOLERANCE:
            text = f"PCIe of {format_rate(link.rate)}, but {chip.chip} has"
            yield f"{text} {format_rate(chip.pcie_Bps)}", node.name


def _ports(fabric: Fabric, ends: dict[str, _Ends]) -> Iterator[tuple[str, str]]:
    for node in fabric.nodes:
        counts = ends[node.name].count
        have = sum(
            n
            for cls, n in counts.items()
            if node.kind != "nic" or cls not in HOST_CLASSES
        )
        if node.ports and have > node.ports:
            yield f"{have} links on {node.ports} ports", node.name


def _siblings(fabric: Fabric, ends: dict[str, _Ends]) -> Iterator[Finding]:
    """Find ranks with less or more than others, of each class of link."""
    ranks = set(fabric.ranks)
    classes = {cls for name in ranks for cls in ends[name].count}
    result = []
    for cls in sorted(classes):
        rates = [(ends[name].rate_Bps[cls], name) for name in fabric.ranks]
        low, high = min(rates), max(rates, key=lambda item: item[0])
        if high[0] > low[0] * TOLERANCE:
            result.append(
                f"{low[1]} has {format_rate(low[0])} of {cls}, {high[1]} has {format_rate(high[0])}"
            )
    for message in result:
        yield Finding("warning", f"asymmetric: {message}")
    if not result and ranks:
        first_rates = ends[fabric.ranks[0]].rate_Bps
        message = ", ".join(
            f"{format_rate(rate)} of {cls}" for cls, rate in first_rates.items()
        )
        yield Finding("info", f"every endpoint has {message} in each direction")


def _uneven(fabric: Fabric) -> Iterator[Finding]:
    """Find parallel links that differ."""
    pairs: dict[frozenset[str], list[Link]] = defaultdict(list)
    for link in fabric.links:
        pairs[frozenset((link.a, link.b))].append(link)
    for links in pairs.values():
        rates = {link.rate.bytes_per_s for link in links}
        if len(rates) > 1:
            text = ", ".join(format_rate(rate) for rate in sorted(rates))
            yield Finding(
                "warning",
                f"{links[0].a}-{links[0].b}: parallel links differ: {text}",
            )


def _adapters(fabric: Fabric, ends: dict[str, _Ends]) -> Iterator[tuple[str, str]]:
    """Find NICs faster than their slot, without a host, in a cluster without a network, or with one inside a node."""
    for node in fabric.nodes:
        if node.kind != "nic":
            continue
        rates = ends[node.name].rate_Bps
        host = sum(rate for cls, rate in rates.items() if cls in HOST_CLASSES)
        net = sum(rate for cls, rate in rates.items() if cls not in HOST_CLASSES)
        if net and host and net > host * TOLERANCE:
            yield (
                f"{format_rate(net)} of network over {format_rate(host)} of PCIe",
                node.name,
            )
        if fabric.num_zones > 1 and not net:
            yield "on no network; link to a switch or leave out", node.name
        if fabric.num_zones < 2 and net:
            yield (
                "on a network inside one node, without rate control; set the zone of hosts, and zone: -1 of switches",
                node.name,
            )


def _nodes_without_nic(fabric: Fabric) -> Iterator[tuple[str, str]]:
    homes = {node.zone for node in fabric.nodes if node.kind == "nic"}
    lost = (
        {node.zone for node in fabric.nodes if node.kind in ("gpu", "host")}
        - homes
        - {NETWORK}
    )
    for zone in sorted(lost) if fabric.num_zones > 1 else ():
        yield "no NIC, cannot reach other nodes", f"node {zone}"


def _largest_packet(fabric: Fabric, link: Link) -> int:
    """Return the wire bytes of the largest packet on a link [bytes]."""
    form = fabric.formats[link.format]
    mtus = {node.nic.mtu_bytes for node in fabric.nodes if node.nic is not None}
    payload = max(mtus) if mtus else max(form.payload_bytes.values())
    return min(form.limit_bytes[0], payload) + form.header_bytes[0]


def _buffers(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Compare buffers with the bytes in flight during a round trip: PFC headroom, or credits."""
    packets = {link.format: _largest_packet(fabric, link) for link in fabric.links}
    results: dict[tuple[object, ...], str | None] = {}

    for link in fabric.links:
        key = (
            link.rate,
            link.latency_ps,
            link.buffer_bytes,
            link.xoff_bytes,
            link.format,
            link.ecn_min_bytes,
            link.queue_bytes,
        )
        if key not in results:
            results[key] = _buffer_text(link, packets[link.format])
        if text := results[key]:
            yield text, f"{link.a}-{link.b}"


def _buffer_text(link: Link, packet_bytes: int) -> str | None:
    if link.queue_bytes:
        return None
    flight = 2 * link.latency_ps * link.rate.num // link.rate.den
    trip = (
        f"round trip of {2 * link.latency_ps / 1e6:g} us at {format_rate(link.rate)}"
    )
    if link.xoff_bytes:
        room, need = link.buffer_bytes - link.xoff_bytes, flight + 2 * packet_bytes
        if room < need:
            return (
                f"pause headroom {format_size(room)}, but a {trip} and two packets need"
                f" {format_size(need)}: packets would be lost"
            )
        if link.ecn_max_bytes and link.xoff_bytes < link.ecn_min_bytes:
            return (
                f"pauses at {format_size(link.xoff_bytes)}, before it marks packets"
            )
        return None
    if link.buffer_bytes < flight:
        share = link.buffer_bytes / flight
        return f"credits for {format_size(link.buffer_bytes)} cover {share:.0%} of a {trip}"
    return None


def _shared_buffers(fabric: Fabric) -> Iterator[tuple[str, str]]:
    """Compare the receive buffers of a switch with its packet memory."""
    used: Counter[str] = Counter()
    for node, _, link in fabric.ends():
        used[node.name] += link.count * link.buffer_bytes
    for node in fabric.nodes:
        size_bytes = node.buffer_bytes
        if size_bytes and used[node.name] > size_bytes:
            text = f"buffers of {format_size(used[node.name])}, but the switch has"
            yield f"{text} {format_size(size_bytes)}", node.name
