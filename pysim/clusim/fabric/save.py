"""`Fabric` -> plain data and YAML that read back as an equal fabric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from clusim.fabric.model import (
    COST_ONE,
    KIND_NAMES,
    Endpoint,
    Fabric,
    Format,
    Link,
    Node,
    Protocol,
    Unit,
)
from clusim.units import format_rate

__all__ = ["to_data", "to_yaml"]

T = TypeVar("T")

_DATELINES = {
    (False, False): "none",
    (True, False): "forward",
    (False, True): "backward",
    (True, True): "both",
}


def to_yaml(fabric: Fabric) -> str:
    """Return a topology file that describes `fabric` completely, without presets."""
    import yaml

    return str(yaml.safe_dump(to_data(fabric), sort_keys=False, allow_unicode=True, width=100))


def to_data(fabric: Fabric) -> dict[str, Any]:
    """Return plain data with the keys of a topology file."""
    chips = _names((node.endpoint for node in fabric.nodes if node.endpoint), "chip")
    units = _names(
        ((node.unit, node.ports) for node in fabric.nodes if not node.endpoint), "switch"
    )
    data: dict[str, Any] = {
        "name": fabric.name,
        "description": fabric.description,
        "sources": dict(fabric.sources),
        "p2p": fabric.p2p,
        "window": f"{fabric.window_bytes}B",
        "cta_skew": f"{fabric.cta_skew_ps}ps",
        "vcs": fabric.num_vcs,
        "routing": fabric.routing,
        "channels": dict(fabric.channels),
        "rings": [list(ring) for ring in fabric.ring_orders]
        if fabric.ring_orders is not None
        else None,
        "chips": {name: _chip(endpoint) for endpoint, name in chips},
        "switches": {name: _switch(*item) for item, name in units},
        "formats": {name: _format(form) for name, form in fabric.formats.items()},
        "protocols": {name: _protocol(protocol) for name, protocol in fabric.protocols.items()},
        "nodes": {node.name: _node(node, chips, units) for node in fabric.nodes},
        "links": [_link(link) for link in fabric.links],
    }
    return {key: value for key, value in data.items() if value not in (None, {}, "")}


def _names(items: Iterable[T], prefix: str) -> list[tuple[T, str]]:
    """Name the distinct items; an endpoint keeps the name of its chip if it is the only one of that name."""
    found: list[tuple[T, str]] = []
    for item in items:
        if any(item == other for other, _ in found):
            continue
        wanted = str(getattr(item, "chip", "")) or f"{prefix}{len(found)}"
        while wanted in (name for _, name in found):
            wanted += "'"
        found.append((item, wanted))
    return found


def _name_of(table: list[tuple[T, str]], item: T) -> str:
    return next(name for other, name in table if other == item)


def _ps(time_ps: int) -> str:
    return f"{time_ps}ps"


def _chip(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "sms": endpoint.sms,
        "cta_slots": endpoint.cta_slots,
        "write_latency": _ps(endpoint.write_latency_ps),
        "read_latency": _ps(endpoint.read_latency_ps),
        "response_latency": _ps(endpoint.response_latency_ps),
        "memory_rate": format_rate(endpoint.mem_Bps, exact=True),
        "memory_efficiency": endpoint.mem_efficiency,
        "memory_quantum": _ps(endpoint.mem_quantum_ps),
        "memory_per_delivered": endpoint.deliver_256 / 256,
        "memory_per_read": endpoint.read_256 / 256,
        "memory_per_injected": endpoint.inject_256 / 256,
        "slowdown": endpoint.slow_1024 / 1024,
        "peak_flops": dict(endpoint.peak_flops),
        "links": endpoint.links,
    }


def _switch(unit: Unit | None, ports: int) -> dict[str, Any]:
    data: dict[str, Any] = {"ports": ports} if ports else {}
    if unit is not None:
        data["reduction_latency"] = _ps(unit.latency_ps)
        data["reduction_capacity"] = f"{unit.capacity_bytes}B"
        data["reduction_rate"] = f"{COST_ONE * 1e12 / unit.cost16:.15g} B/s"
    return data


def _format(form: Format) -> dict[str, Any]:
    return {
        "flit": f"{form.flit_bytes}B",
        "header": {
            kind: f"{size}B" for kind, size in zip(KIND_NAMES, form.header_bytes, strict=True)
        },
        "control": {k: v / 256 for k, v in zip(KIND_NAMES, form.control_256, strict=True) if v},
        "service": {
            k: v / 1024 for k, v in zip(KIND_NAMES, form.service_1024, strict=True) if v != 1024
        },
        "payload": {requester: f"{size}B" for requester, size in form.payload_bytes.items()},
    }


def _protocol(protocol: Protocol) -> dict[str, Any]:
    return {
        "fixed": _ps(protocol.fixed_ps),
        "throughput": {op: format_rate(rate, exact=True) for op, rate in protocol.op_Bps.items()},
        "expand": protocol.expand_120,
        "tail_fence": _ps(protocol.tail_fence_ps),
        "head_fence": _ps(protocol.head_fence_ps),
        "buffer": f"{protocol.buffer_bytes}B",
        "slots": protocol.slots,
        "chunk_steps": protocol.chunk_steps,
        "slice_steps": protocol.slice_steps,
        "grain": f"{protocol.grain_bytes}B",
    }


def _node(
    node: Node, chips: list[tuple[Endpoint, str]], units: list[tuple[tuple[Unit | None, int], str]]
) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": node.kind, "latency": _ps(node.latency_ps), "tier": node.tier}
    if node.endpoint is not None:
        data["chip"] = _name_of(chips, node.endpoint)
        data["relay"] = node.relay
    else:
        data["switch"] = _name_of(units, (node.unit, node.ports))
        data["store_and_forward"] = node.store_and_forward
    return data


def _link(link: Link) -> dict[str, Any]:
    return {
        "from": link.a,
        "to": link.b,
        "count": link.count,
        "rate": format_rate(link.rate, exact=True),
        "latency": _ps(link.latency_ps),
        "format": link.format,
        "buffer": f"{link.buffer_bytes}B",
        "replay": _ps(link.replay_ps),
        "error_rate": link.error_rate,
        "dim": link.dim,
        "weight": link.weight,
        "dateline": _DATELINES[link.dateline],
        "class": link.cls,
    }
