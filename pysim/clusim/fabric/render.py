"""A fabric as text for people: what is in it, how it is connected, and where every figure comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusim.fabric.model import KIND_NAMES, Fabric, Format, Link, Node, Protocol
from clusim.units import Rate, format_rate, format_size, format_time

__all__ = ["describe", "ranges"]

_NUMBERED = re.compile(r"(.*?)([0-9]+)")

MOST_LINES = 24
"""So many link lines are shown before the rest is counted."""


def ranges(names: Iterable[str]) -> str:
    """Write names compactly: ``gpu0..7, host``."""
    parts: list[str] = []
    first: tuple[str, int] | None = None
    last = 0
    for name in names:
        match = _NUMBERED.fullmatch(name)
        key = (match[1], int(match[2])) if match and str(int(match[2])) == match[2] else None
        if first is not None and key is not None and key == (first[0], last + 1):
            last += 1
            parts[-1] = f"{first[0]}{first[1]}..{last}"
            continue
        first = key
        last = key[1] if key else 0
        parts.append(name)
    return ", ".join(parts) if len(parts) <= 6 else f"{', '.join(parts[:5])}, ... {parts[-1]}"


def describe(fabric: Fabric, *, sources: bool = True) -> str:
    """Return the fabric as an indented text; with `sources` the provenance of its figures follows."""
    lines = [f"{fabric.name}: {fabric.description}".rstrip(": ")]
    for title, body in (
        ("nodes", _nodes(fabric)),
        ("links", _links(fabric)),
        ("bandwidth", _bandwidth(fabric)),
        ("packet formats", (line for form in fabric.formats.values() for line in _format(form))),
        ("protocols", (_protocol(protocol) for protocol in fabric.protocols.values())),
        ("use", _use(fabric)),
        ("figures and their sources", _sources(fabric) if sources else iter(())),
    ):
        text = [f"    {line}" for line in body]
        if text:
            lines += [f"  {title}", *text]
    return "\n".join(lines)


def _nodes(fabric: Fabric) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for node in fabric.nodes:
        groups.setdefault(_node(node), []).append(node.name)
    for text, names in groups.items():
        yield f"{ranges(names)} ({len(names)}): {text}"


def _node(node: Node) -> str:
    end = node.endpoint
    if end is None:
        text = f"{node.tier}, {format_time(node.latency_ps)}"
        text += ", store-and-forward" if node.store_and_forward else ", cut-through"
        if node.ports:
            text += f", {node.ports} ports"
        if node.unit is not None:
            unit = node.unit
            text += f", reduction unit {format_time(unit.latency_ps)}, {format_size(unit.capacity_bytes)}"
        return text
    text = f"{node.kind} {end.chip}, {end.sms} SMs, {end.cta_slots} CTA slots, memory {format_rate(end.mem_Bps)}"
    text += f" x {end.mem_efficiency:g}"
    if node.relay:
        text += f", relays after {format_time(node.latency_ps)}"
    return text


def _links(fabric: Fabric) -> Iterator[str]:
    groups: dict[str, list[Link]] = {}
    for link in fabric.links:
        groups.setdefault(_link(link), []).append(link)
    for number, (text, links) in enumerate(groups.items()):
        if number == MOST_LINES:
            yield f"... and {len(groups) - number} more kinds"
            return
        ends = f"{ranges(dict.fromkeys(link.a for link in links))} - {ranges(dict.fromkeys(link.b for link in links))}"
        yield f"{ends} ({len(links)} pairs): {text}"


def _link(link: Link) -> str:
    text = f"{link.count} x {format_rate(link.rate)}, {format_time(link.latency_ps)}"
    text += f", {format_size(link.buffer_bytes)} per VC, {link.cls} ({link.format})"
    if link.dim:
        text += f", dimension {link.dim}"
    if any(link.dateline):
        text += ", dateline"
    if link.error_rate:
        text += f", {link.error_rate:g} of packets replayed after {format_time(link.replay_ps)}"
    return text


def _bandwidth(fabric: Fabric) -> Iterator[str]:
    rates: dict[str, Rate] = {}
    links: dict[str, int] = {}
    for link in fabric.links:
        for end in (link.a, link.b):
            have = rates.get(end, Rate(0, 1))
            more = link.rate * link.count
            rates[end] = Rate(have.num * more.den + more.num * have.den, have.den * more.den)
            links[end] = links.get(end, 0) + link.count
    groups: dict[str, list[str]] = {}
    for name in fabric.ranks:
        text = f"{links.get(name, 0)} links, {format_rate(rates.get(name, Rate(0, 1)))} in each direction"
        groups.setdefault(text, []).append(name)
    for text, names in groups.items():
        yield f"{ranges(names)}: {text}"


def _format(form: Format) -> Iterator[str]:
    payload = ", ".join(f"{name} {format_size(size)}" for name, size in form.payload_bytes.items())
    headers = sorted(set(form.header_bytes))
    yield f"{form.name}: flit {form.flit_bytes} B, header {'/'.join(map(str, headers))} B, payload {payload}"
    control = [f"{k} {v / 256:g} B" for k, v in zip(KIND_NAMES, form.control_256, strict=True) if v]
    if control:
        yield f"  owed to the opposite wire per packet: {', '.join(control)}"
    service = [
        f"{k} {v / 1024:.4g}"
        for k, v in zip(KIND_NAMES, form.service_1024, strict=True)
        if v != 1024
    ]
    if service:
        yield f"  occupancy factor: {', '.join(service)}"


def _protocol(protocol: Protocol) -> str:
    rates = sorted(protocol.op_Bps.values())
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
    yield f"routing {fabric.routing}, {fabric.num_vcs} virtual channels"
    yield "channels " + ", ".join(f"{name} {count}" for name, count in fabric.channels.items())
    if fabric.ring_orders:
        yield f"{len(fabric.ring_orders)} given ring orders"


def _sources(fabric: Fabric) -> Iterator[str]:
    for figure, source in fabric.sources.items():
        yield f"{figure}: {source}"
