"""`Fabric` -> plain data and YAML that read back as an equal topology."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from clusim.policies.choice import Sender
from clusim.topology.model import Fabric, Forwarding, Link
from clusim.topology.node import (
    COST_ONE,
    Endpoint,
    HostTraits,
    NicTraits,
    Node,
    RateControl,
    Unit,
)
from clusim.topology.packets import KIND_NAMES, NO_LIMIT, Format
from clusim.topology.quantities import MEMORY_SHARES, keys_of
from clusim.topology.schema import (
    ChipSpec,
    LinkSpec,
    NicSpec,
    ProtocolSpec,
    RateControlSpec,
    SwitchSpec,
)

_DATELINES = {
    (False, False): "none",
    (True, False): "forward",
    (False, True): "backward",
    (True, True): "both",
}


def to_yaml(fabric: Fabric) -> str:
    """Return a topology file that describes `fabric` completely, without presets."""
    import yaml

    return str(
        yaml.safe_dump(
            to_data(fabric), sort_keys=False, allow_unicode=True, width=100
        )
    )


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
        **{
            name: False
            for name in ("gdr_read", "pxn", "nvb", "shm")
            if not getattr(fabric, name)
        },
        "acs": fabric.acs or None,
        "nic_names": dict(fabric.nic_names),
        "routing": fabric.routing,
        "network_routing": fabric.network_routing,
        "forwarding": _forwarding(fabric.forwarding),
        "channels": dict(fabric.channels),
        "rings": [list(ring) for ring in fabric.ring_orders]
        if fabric.ring_orders is not None
        else None,
        "told": {name: dict(links) for name, links in fabric.told.items()},
        "told_pcie": dict(fabric.told_pcie),
        "chips": {name: _chip(endpoint) for endpoint, name in chips.items()},
        "switches": {name: _switch(*item) for item, name in switches.items()},
        "nics": {name: nic_data(*item) for item, name in nics.items()},
        "formats": {name: _format(form) for name, form in fabric.formats.items()},
        "protocols": {
            name: keys_of(protocol, ProtocolSpec)
            for name, protocol in fabric.protocols.items()
        },
        "nodes": nodes,
        "links": [_link(link) for link in fabric.links],
        "network": dict(fabric.network),
        "faults": list(fabric.faults),
    }
    return {
        key: value for key, value in data.items() if value not in (None, {}, "", [])
    }


def _forwarding(forwarding: Forwarding) -> dict[str, Any]:
    """Return the keys that differ from the default."""
    data = {
        item.name: value
        for item in fields(Forwarding)
        if (value := getattr(forwarding, item.name)) != item.default
    }
    if "gap_ps" in data:
        data["gap"] = f"{data.pop('gap_ps')}ps"
    if "paths" in data:
        ends = [
            {"from": path.source} if path.source else {} for path in forwarding.paths
        ]
        data["paths"] = [
            {**end, "to": path.destination, "via": list(path.via)}
            for end, path in zip(ends, forwarding.paths, strict=True)
        ]
    return data


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
        existing = self.by_id.get(id(key)) if key is not None else None
        if existing is not None:
            return existing
        name = next((name for other, name in self.found if other == item), "")
        if not name:
            name = (
                str(getattr(item, "chip", "")) or f"{self.prefix}{len(self.found)}"
            )
            while name in (other for _, other in self.found):
                name += "'"
            self.found.append((item, name))
        if key is not None:
            self.by_id[id(key)] = name
        return name


def _chip(endpoint: Endpoint) -> dict[str, Any]:
    data = keys_of(endpoint, ChipSpec)
    if endpoint.l2_bytes:
        data = {
            key: value for key, value in data.items() if key not in MEMORY_SHARES
        }
    rate = data.pop("pcie_rate", None)
    return data if rate is None else {**data, "pcie_rate": rate}


def _switch(
    unit: Unit | None,
    sizes: tuple[int, int, int],
    cpu: str,
    host: HostTraits | None,
    path_policy: Sender | None,
) -> dict[str, Any]:
    ports, peer_payload_bytes, buffer_bytes = sizes
    data: dict[str, Any] = {"ports": ports} if ports else {}
    if cpu:
        data["cpu"] = cpu
    if host is not None:
        data |= keys_of(host, SwitchSpec)
    if peer_payload_bytes:
        data["peer_payload"] = f"{peer_payload_bytes}B"
    if buffer_bytes:
        data["buffer"] = f"{buffer_bytes}B"
    if path_policy is not None:
        data["path_policy"] = _policy_data(path_policy)
    if unit is not None:
        data |= keys_of(unit, SwitchSpec, "reduction_")
        slots = data.pop("reduction_slots")
        data["reduction_rate"] = f"{COST_ONE * 1e12 / unit.cost16:.15g} B/s"
        data["reduction_slots"] = slots
    return data


_LOSS_DEFAULTS = {
    key: value
    for key, value in keys_of(NicTraits(), NicSpec).items()
    if key in ("retransmission", "timeout", "retries", "traffic_class")
}
"""Retransmission and class of NICs, which are not written if they are usual."""


def nic_data(nic: NicTraits, ports: int) -> dict[str, Any]:
    """Return the definition of a NIC with the keys of a topology file."""
    keys = keys_of(nic, NicSpec)
    data = {key: keys[key] for key in NicSpec.model_fields if key in keys}
    for key, default in _LOSS_DEFAULTS.items():
        if data.get(key) == default:
            del data[key]
    control = data.pop("rate_control", None)
    if ports:
        data["ports"] = ports
    return (
        data if control is None else {**data, "rate_control": _control_data(control)}
    )


def _control_data(control: RateControl) -> dict[str, Any]:
    """Return a rate control with the keys of a topology file."""
    data = keys_of(control, RateControlSpec)
    if control.receiver is not None:
        data["receiver"] = _policy_data(control.receiver)
    return data if control.sender is None else data | _policy_data(control.sender)


def _policy_data(policy: Sender) -> dict[str, Any]:
    """Return a policy and its constants with the keys of a topology file."""
    return {"policy": policy.name, "constants": dict(policy.constants)}


def _format(form: Format) -> dict[str, Any]:
    return {
        "flit": f"{form.flit_bytes}B",
        "header": {
            kind: f"{size}B"
            for kind, size in zip(KIND_NAMES, form.header_bytes, strict=True)
        },
        "control": {
            k: v / 256
            for k, v in zip(KIND_NAMES, form.control_256, strict=True)
            if v
        },
        "service": {
            k: v / 1024
            for k, v in zip(KIND_NAMES, form.service_1024, strict=True)
            if v != 1024
        },
        "payload": {
            requester: f"{size}B" for requester, size in form.payload_bytes.items()
        },
        "limit": {
            k: f"{v}B"
            for k, v in zip(KIND_NAMES, form.limit_bytes, strict=True)
            if v != NO_LIMIT
        },
    }


def _node(
    node: Node, chips: _Names, switches: _Names, nics: _Names
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": node.kind,
        "latency": f"{node.latency_ps}ps",
        "tier": node.tier,
    }
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
                (node.ports, node.peer_payload_bytes, node.buffer_bytes),
                node.cpu,
                node.host,
                node.path_policy,
            )
        )
        data["store_and_forward"] = node.store_and_forward
    return data


def _link(link: Link) -> dict[str, Any]:
    data = {"from": link.a, "to": link.b, **keys_of(link, LinkSpec)}
    data |= {"dateline": _DATELINES[link.dateline], "class": link.cls}
    if link.xoff_bytes:
        data["pfc"] = {"xoff": f"{link.xoff_bytes}B", "xon": f"{link.xon_bytes}B"}
    if link.ecn_max_bytes:
        data["ecn"] = {
            "min": f"{link.ecn_min_bytes}B",
            "max": f"{link.ecn_max_bytes}B",
            "probability": link.ecn_probability,
        }
        data["ecn"] |= {"at": "departure"} if link.ecn_departure else {}
    if link.queue_bytes:
        alpha = link.alpha_1024 / 1024
        data["drop"] = {
            "queue": f"{link.queue_bytes}B",
            "alpha": alpha,
            "red": link.red,
        }
        data["drop"] |= {"trim": f"{link.trim_bytes}B"} if link.trim_bytes else {}
    if link.priority or link.weights:
        data["schedule"] = {"priority": [*link.priority], "weights": [*link.weights]}
    for key in ("queue_policy", "schedule_policy"):
        policy = getattr(link, key)
        if policy is not None:
            data[key] = _policy_data(policy)
    return data
