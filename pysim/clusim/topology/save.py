"""`Fabric` -> plain data and YAML that read back as an equal topology."""

from __future__ import annotations

from typing import Any

from clusim.base.units import format_rate
from clusim.topology.model import KIND_NAMES, NO_LIMIT, Fabric, Format, Link, Protocol
from clusim.topology.node import COST_ONE, Endpoint, HostTraits, NicTraits, Node, RateControl, Unit

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
    chips = _Names("chip")
    switches = _Names("switch")
    nics = _Names("nic")
    nodes = {node.name: _node(node, chips, switches, nics) for node in fabric.nodes}
    data: dict[str, Any] = {
        "name": fabric.name,
        "description": fabric.description,
        "sources": dict(fabric.sources),
        "p2p": fabric.p2p,
        "window": f"{fabric.window_bytes}B",
        "cta_skew": f"{fabric.cta_skew_ps}ps",
        "vcs": fabric.num_vcs,
        "p2p_level": fabric.p2p_level,
        "gdr_level": fabric.gdr_level,
        **{name: False for name in ("gdr_read", "pxn", "nvb", "shm") if not getattr(fabric, name)},
        "nic_names": dict(fabric.nic_names),
        "routing": fabric.routing,
        "network_routing": fabric.network_routing,
        "channels": dict(fabric.channels),
        "rings": [list(ring) for ring in fabric.ring_orders]
        if fabric.ring_orders is not None
        else None,
        "told": {name: dict(links) for name, links in fabric.told.items()},
        "told_pcie": dict(fabric.told_pcie),
        "chips": {name: _chip(endpoint) for endpoint, name in chips.items()},
        "switches": {name: _switch(*item) for item, name in switches.items()},
        "nics": {name: _nic(*item) for item, name in nics.items()},
        "formats": {name: _format(form) for name, form in fabric.formats.items()},
        "protocols": {name: _protocol(protocol) for name, protocol in fabric.protocols.items()},
        "nodes": nodes,
        "links": [_link(link) for link in fabric.links],
        "network": dict(fabric.network),
        "faults": list(fabric.faults),
    }
    return {key: value for key, value in data.items() if value not in (None, {}, "", [])}


class _Names:
    """Names of distinct items; an endpoint keeps its chip's name if only one has that name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.found: list[tuple[Any, str]] = []
        self.by_id: dict[int, str] = {}

    def items(self) -> list[tuple[Any, str]]:
        """Return the distinct items with their names."""
        return self.found

    def of(self, item: Any, key: object | None = None) -> str:
        """Return the name of an item; `key` is the object it belongs to, if many nodes share that."""
        known = self.by_id.get(id(key)) if key is not None else None
        if known is not None:
            return known
        name = next((name for other, name in self.found if other == item), "")
        if not name:
            name = str(getattr(item, "chip", "")) or f"{self.prefix}{len(self.found)}"
            while name in (other for _, other in self.found):
                name += "'"
            self.found.append((item, name))
        if key is not None:
            self.by_id[id(key)] = name
        return name


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
        **_known(endpoint),
        **({"pcie_rate": format_rate(endpoint.pcie_Bps, exact=True)} if endpoint.pcie_Bps else {}),
    }


def _known(endpoint: Endpoint) -> dict[str, Any]:
    """Return the optional fields of a chip that are known."""
    data: dict[str, Any] = {}
    if endpoint.architecture:
        data["architecture"] = endpoint.architecture
    if endpoint.compute_capability:
        data["compute_capability"] = endpoint.compute_capability / 10
    if endpoint.peer_access is not None:
        data["peer_access"] = endpoint.peer_access
    if endpoint.mem_bytes:
        data["memory"] = f"{endpoint.mem_bytes}B"
    if endpoint.gemm_fraction:
        data["gemm_fraction"] = endpoint.gemm_fraction
    if endpoint.power_W:
        data["power"] = endpoint.power_W
    if endpoint.kernels:
        data["kernels"] = endpoint.kernels
    return data


def _switch(
    unit: Unit | None, ports: int, sizes: tuple[int, int], cpu: str, host: HostTraits | None
) -> dict[str, Any]:
    peer_payload_bytes, buffer_bytes = sizes
    data: dict[str, Any] = {"ports": ports} if ports else {}
    if cpu:
        data["cpu"] = cpu
    if host is not None:
        data["thread"] = _ps(host.thread_ps)
        data["thread_after"] = _ps(host.thread_after_ps)
        data["look"] = _ps(host.look_ps)
    if peer_payload_bytes:
        data["peer_payload"] = f"{peer_payload_bytes}B"
    if buffer_bytes:
        data["buffer"] = f"{buffer_bytes}B"
    if unit is not None:
        data["reduction_latency"] = _ps(unit.latency_ps)
        data["reduction_capacity"] = f"{unit.capacity_bytes}B"
        data["reduction_rate"] = f"{COST_ONE * 1e12 / unit.cost16:.15g} B/s"
        data["reduction_slots"] = unit.slots
    return data


def _nic(nic: NicTraits, ports: int) -> dict[str, Any]:
    control = nic.rate_control
    return {
        "mtu": f"{nic.mtu_bytes}B",
        "gpudirect": nic.gpudirect,
        "post": _ps(nic.post_ps),
        **({"eager": f"{nic.eager_bytes}B"} if nic.eager_bytes else {}),
        **({"rendezvous": _ps(nic.rendezvous_ps)} if nic.rendezvous_ps else {}),
        **({"progress": _ps(nic.progress_ps)} if nic.progress_ps else {}),
        **({"ack": _ps(nic.ack_ps)} if nic.ack_ps else {}),
        "completion": _ps(nic.completion_ps),
        "flush": _ps(nic.flush_ps),
        **({"transit": _ps(nic.transit_ps)} if nic.transit_ps else {}),
        "adaptive": nic.adaptive,
        **({"speed": format_rate(nic.speed_Bps, exact=True)} if nic.speed_Bps else {}),
        "plugin": nic.plugin,
        **({"plugin_latency": _ps(nic.plugin_ps)} if nic.plugin_ps else {}),
        **({"ports": ports} if ports else {}),
        **({"rate_control": _rate_control(control)} if control else {}),
    }


def _rate_control(control: RateControl) -> dict[str, Any]:
    return {
        "g": control.g_65536 / 65536,
        "alpha_timer": _ps(control.alpha_timer_ps),
        "increase_timer": _ps(control.increase_timer_ps),
        "cnp_interval": _ps(control.cnp_interval_ps),
        "cnp_delay": _ps(control.cnp_delay_ps),
        "byte_counter": f"{control.byte_counter}B",
        "additive": format_rate(control.additive_Bps, exact=True),
        "hyper": format_rate(control.hyper_Bps, exact=True),
        "min_rate": format_rate(control.min_Bps, exact=True),
        "fast_recovery": control.fast_recovery,
    }


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
        "limit": {
            k: f"{v}B" for k, v in zip(KIND_NAMES, form.limit_bytes, strict=True) if v != NO_LIMIT
        },
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
        "message_start": _ps(protocol.message_start_ps),
        "crowding": protocol.crowding,
    }


def _node(node: Node, chips: _Names, switches: _Names, nics: _Names) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": node.kind, "latency": _ps(node.latency_ps), "tier": node.tier}
    if node.zone:
        data["zone"] = node.zone
    if node.endpoint is not None:
        data["chip"] = chips.of(node.endpoint, node.endpoint)
        if node.kind != "memory":
            data["relay"] = node.relay
    elif node.nic is not None:
        data["nic"] = nics.of((node.nic, node.ports))
    else:
        data["switch"] = switches.of(
            (
                node.unit,
                node.ports,
                (node.peer_payload_bytes, node.buffer_bytes),
                node.cpu,
                node.host,
            )
        )
        data["store_and_forward"] = node.store_and_forward
    return data


def _link(link: Link) -> dict[str, Any]:
    data = {
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
    if link.xoff_bytes:
        data["pfc"] = {"xoff": f"{link.xoff_bytes}B", "xon": f"{link.xon_bytes}B"}
    if link.ecn_max_bytes:
        data["ecn"] = {
            "min": f"{link.ecn_min_bytes}B",
            "max": f"{link.ecn_max_bytes}B",
            "probability": link.ecn_probability,
        }
    return data
