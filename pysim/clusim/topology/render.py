"""Topology as text for display: its parts, their connections, and the source of every parameter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusim.base.tables import group_values
from clusim.base.units import format_rate, format_size, format_time
from clusim.hardware import KERNELS
from clusim.hardware.catalog import FAMILIES, HOST_COSTS
from clusim.hardware.figures import Figure
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, UNBOUNDED_BYTES, NicTraits, Node
from clusim.topology.outline import total
from clusim.topology.packets import (
    KIND_NAMES,
    NO_LIMIT,
    STORE_BYTES,
    Format,
    Protocol,
)

_NUMBERED = re.compile(r"(.*?)([0-9]+)")

MOST_LINES = 24
"""Number of link lines shown before the rest is counted."""


def ranges(names: Iterable[str]) -> str:
    """Write names compactly: ``gpu0..7, host``."""
    parts: list[str] = []
    first: tuple[str, int] | None = None
    last = 0
    for name in names:
        match = _NUMBERED.fullmatch(name)
        key = (
            (match[1], int(match[2]))
            if match and str(int(match[2])) == match[2]
            else None
        )
        if first is not None and key is not None and key == (first[0], last + 1):
            last += 1
            parts[-1] = f"{first[0]}{first[1]}..{last}"
            continue
        first = key
        last = key[1] if key else 0
        parts.append(name)
    return (
        ", ".join(parts)
        if len(parts) <= 6
        else f"{', '.join(parts[:5])}, ... {parts[-1]}"
    )


def describe(fabric: Fabric, *, sources: bool = True) -> str:
    """Return the topology as indented text; `sources` appends the provenance of parameters."""
    lines = [f"{fabric.name}: {fabric.description}".rstrip(": ")]
    for title, body in (
        ("nodes", _nodes(fabric)),
        ("links", _links(fabric)),
        ("bandwidth", _bandwidth(fabric)),
        (
            "packet formats",
            (line for form in fabric.formats.values() for line in _format(form)),
        ),
        (
            "protocols",
            (_protocol(protocol) for protocol in fabric.protocols.values()),
        ),
        ("use", _use(fabric)),
        ("figures and their sources", _sources(fabric) if sources else iter(())),
        (
            "launches and kernels",
            (
                f"{name}: {figure}"
                for name, figure in figures_around(fabric)
                if sources
            ),
        ),
    ):
        text = [f"    {line}" for line in body]
        if text:
            lines += [f"  {title}", *text]
    return "\n".join(lines)


def _nodes(fabric: Fabric) -> Iterator[str]:
    groups = group_values((_node(node), node.name) for node in fabric.nodes)
    for text, names in groups.items():
        yield f"{ranges(names)} ({len(names)}): {text}"


def _list(*parts: str) -> str:
    """Join the parts that are not empty."""
    return ", ".join(part for part in parts if part)


def _node(node: Node) -> str:
    latency, end, unit, host = (
        format_time(node.latency_ps),
        node.endpoint,
        node.unit,
        node.host,
    )
    if end is not None:
        memory = f"memory {format_rate(end.mem_Bps)} x {end.mem_efficiency:g}"
        relay = f"relays after {latency}" if node.relay else ""
        sizes = f"{end.sms} SMs, {end.cta_slots} CTA slots"
        return _list(f"{node.kind} {end.chip}", sizes, memory, relay)
    reduction = threads = ""
    if unit is not None:
        reduction = f"reduction unit {format_time(unit.latency_ps)}"
        reduction += (
            f", {format_size(unit.capacity_bytes)}, {unit.slots} slots per tree"
        )
    if host is not None:
        threads = f"thread {format_time(host.thread_ps)} + {format_time(host.thread_after_ps)}"
        threads += f" a message, {format_time(host.look_ps)} a line of LL"
    peers, buffer = node.peer_payload_bytes, node.buffer_bytes
    return _list(
        f"{node.tier}, {latency}",
        "store-and-forward" if node.store_and_forward else "cut-through",
        f"{node.ports} ports" if node.ports else "",
        reduction,
        f"{peers} B packets between PCIe peers" if peers else "",
        threads,
        f"{format_size(buffer)} packet memory" if buffer else "",
        _nic(node.nic) if node.nic is not None else "",
    )


def _nic(nic: NicTraits) -> str:
    return _list(
        f"MTU {nic.mtu_bytes} B, {'GPUDirect' if nic.gpudirect else 'through host memory'}",
        f"post {format_time(nic.post_ps)}, completion {format_time(nic.completion_ps)}",
        f"transit {format_time(nic.transit_ps)}" if nic.transit_ps else "",
        f"eager up to {format_size(nic.eager_bytes)}" if nic.eager_bytes else "",
        f"flush {format_time(nic.flush_ps)}"
        if nic.flush_ps and nic.gpudirect
        else "",
        "DCQCN" if nic.rate_control is not None else "",
        "adaptive" if nic.adaptive else "",
        f"class {nic.traffic_class}" if nic.traffic_class else "",
        ""
        if nic.reorder_bytes is None
        else f"in order, keeps {format_size(nic.reorder_bytes)}",
    )


def _links(fabric: Fabric) -> Iterator[str]:
    groups = group_values((_link(link), link) for link in fabric.links)
    for number, (text, links) in enumerate(groups.items()):
        if number == MOST_LINES:
            yield f"... and {len(groups) - number} more kinds"
            return
        a, b = (
            ranges(dict.fromkeys(ends))
            for ends in zip(*((k.a, k.b) for k in links), strict=True)
        )
        yield f"{a} - {b} ({len(links)} pairs): {text}"


def _link(link: Link) -> str:
    pause = f"pause {format_size(link.xoff_bytes)}/{format_size(link.xon_bytes)}"
    marks = (
        f"marks {format_size(link.ecn_min_bytes)}..{format_size(link.ecn_max_bytes)}"
    )
    drops = f"drops above {format_size(link.queue_bytes)}"
    if link.queue_bytes == UNBOUNDED_BYTES:
        drops = "drops"
    if link.alpha_1024:
        drops += f", alpha {link.alpha_1024 / 1024:g}"
    if link.trim_bytes:
        drops = drops.replace("drops", f"trims to {link.trim_bytes} B", 1)
    order = " ".join(
        f"{word} {'/'.join(map(str, row))}" for word, row in _order(link) if row
    )
    replays = f"{link.error_rate:g} of packets replayed after {format_time(link.replay_ps)}"
    return _list(
        f"{link.count} x {format_rate(link.rate)}, {format_time(link.latency_ps)}",
        f"{format_size(link.buffer_bytes)} per VC, {link.cls} ({link.format})",
        f"dimension {link.dim}" if link.dim else "",
        f"weight {link.weight}" if link.weight != 1 else "",
        pause if link.xoff_bytes else "",
        marks if link.ecn_max_bytes else "",
        f"{drops}{', at random' * link.red}" if link.queue_bytes else "",
        f"classes by {order}" if order else "",
        "dateline" if any(link.dateline) else "",
        replays if link.error_rate else "",
    )


def _order(link: Link) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ("priority", link.priority), ("weight", link.weights)


def _bandwidth(fabric: Fabric) -> Iterator[str]:
    links = group_values((node.name, link) for node, _, link in fabric.ends())
    groups = group_values(
        (_rates(links.get(name, [])), name) for name in fabric.ranks
    )
    for text, names in groups.items():
        yield f"{ranges(names)}: {text}"


def _rates(links: list[Link]) -> str:
    """Write the number and total rate of links by class."""
    classes = group_values((link.cls, link) for link in links).items()
    parts = (
        f"{sum(link.count for link in of_class)} {cls}, {format_rate(total(of_class))} in each direction"
        for cls, of_class in classes
    )
    return "; ".join(parts) or "no links"


def _format(form: Format) -> Iterator[str]:
    payload = ", ".join(
        f"{name} {format_size(size)}" for name, size in form.payload_bytes.items()
    )
    headers = sorted(set(form.header_bytes))
    yield f"{form.name}: flit {form.flit_bytes} B, header {'/'.join(map(str, headers))} B, payload {payload}"
    limits: dict[str, float] = {
        k: v for k, v in _kinds(form.limit_bytes) if v != NO_LIMIT
    }
    control = {k: v / 256 for k, v in _kinds(form.control_256) if v}
    for noun, values in (
        ("at most per packet", limits),
        ("owed to the opposite wire per packet", control),
    ):
        if values:
            yield f"  {noun}: {_by_value(values, ' B')}"
    service = {k: v / 1024 for k, v in _kinds(form.service_1024) if v != 1024}
    if service:
        yield f"  occupancy factor: {_by_value(service, '')}"


def _kinds(table: Iterable[int]) -> Iterator[tuple[str, int]]:
    return zip(KIND_NAMES, table, strict=True)


def _by_value(values: dict[str, float], unit: str) -> str:
    """Write values with their names; the most frequent value applies to all others."""
    groups = group_values((value, name) for name, value in values.items())
    if len(values) == len(KIND_NAMES):
        common = max(groups, key=lambda value: len(groups[value]))
        groups[common] = ["others" if len(groups) > 1 else "all"]
    return ", ".join(
        f"{value:.4g}{unit} {' '.join(names)}" for value, names in groups.items()
    )


def _protocol(protocol: Protocol) -> str:
    rates = sorted(
        rate for name, rate in protocol.op_Bps.items() if name != STORE_BYTES
    )
    text = f"{protocol.name}: {format_time(protocol.fixed_ps)} per slice step"
    if rates:
        low, high = format_rate(rates[0]), format_rate(rates[-1])
        text += f", CTA {low}" + (f" to {high}" if low != high else "")
    text += f", {protocol.expand_120 / 120:.4g} wire bytes per byte"
    text += f", fence {format_time(protocol.tail_fence_ps)}"
    return f"{text}, FIFO {protocol.slots} x {format_size(protocol.buffer_bytes // protocol.slots)}"


def _use(fabric: Fabric) -> Iterator[str]:
    yield f"point to point by {fabric.p2p}, window {format_size(fabric.window_bytes)} per CTA"
    yield f"a kernel's CTAs start {format_time(fabric.cta_skew_ps)} apart"
    yield f"peers over PCIe up to {fabric.p2p_level}, GPUDirect up to {fabric.gdr_level}"
    off = [
        ("GPUDirect reads", fabric.gdr_read),
        ("PXN", fabric.pxn),
        ("NVB", fabric.nvb),
    ]
    off += [("SHM", fabric.shm)]
    if fabric.acs:
        yield "ACS on: peer packets of PCIe switches pass the root complex"
    if not all(on for _, on in off):
        yield "disabled: " + ", ".join(name for name, on in off if not on)
    yield f"routing {fabric.routing}, {fabric.num_vcs} virtual channels"
    switches = {node.name for node in fabric.nodes if node.zone == NETWORK}
    for form in sorted(
        {link.format for link in fabric.links if {link.a, link.b} <= switches}
    ):
        yield f"paths between nodes ({form}): {fabric.forwarding.words(form)}"
    yield "channels " + ", ".join(
        f"{name} {count}" for name, count in fabric.channels.items()
    )
    if fabric.ring_orders:
        yield f"{len(fabric.ring_orders)} given ring orders"
    if fabric.network:
        settings = {
            key: value
            for key, value in fabric.network.items()
            if not isinstance(value, dict)
        }
        yield "network " + ", ".join(
            f"{key} {value}" for key, value in settings.items()
        )
    for fault in fabric.faults:
        yield f"fault {fault}"


def _sources(fabric: Fabric) -> Iterator[str]:
    for figure, source in fabric.sources.items():
        yield f"{figure}: {source}"


def figures_around(fabric: Fabric) -> Iterator[tuple[str, Figure]]:
    """Yield names and parameters outside the topology: launch overhead, host costs, CTAs of kernels."""

    def current(figure: Figure) -> Figure:
        result: Figure = fabric.figures.get(str(figure), figure)
        return result

    chips = {
        node.endpoint.architecture
        for node in fabric.nodes
        if node.endpoint is not None
    }
    for name in sorted(chips & FAMILIES.keys()):
        for key, figure in FAMILIES[name].named_figures():
            if key != "p2p":
                yield f"architecture {name}: {key}", current(figure)
    vendors = {node.cpu.partition(" ")[0] for node in fabric.nodes}
    for vendor in sorted(vendors & HOST_COSTS.keys()):
        for key, figure in HOST_COSTS[vendor].named_figures():
            yield f"host {vendor}: {key}", current(figure)
    for key, figure in KERNELS.items():
        yield f"kernels: {key}", figure
