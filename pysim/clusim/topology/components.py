"""Graph nodes, links, packet formats and protocols from their complete specs."""

from __future__ import annotations

from typing import Any

from clusim.base.errors import InternalError
from clusim.hardware import ARCHITECTURES
from clusim.topology.catalogue import merge, preset, preset_rate_control, sender_of
from clusim.topology.model import Link
from clusim.topology.node import (
    Endpoint,
    HostTraits,
    NicTraits,
    Node,
    RateControl,
    Unit,
    cost16,
)
from clusim.topology.packets import KIND_NAMES, NO_LIMIT, Format, Protocol
from clusim.topology.quantities import MEMORY_SHARES, attributes_of
from clusim.topology.schema import (
    ChipSpec,
    DropSpec,
    EcnSpec,
    FormatSpec,
    LinkTypeSpec,
    NicSpec,
    PfcSpec,
    ProtocolSpec,
    RateControlSpec,
    ScheduleSpec,
    SwitchSpec,
)

DEFAULT_BUFFER_BYTES = 32_768

_PS_PER_M = {"fibre": 5000, "copper": 4400}
"""Propagation [ps/m]: 2/3 of the speed of light in glass, somewhat more in a cable."""


def make_endpoint(name: str, chip: ChipSpec) -> Endpoint:
    """Return the endpoint of a chip."""
    attributes = attributes_of(Endpoint, chip)
    if any(getattr(chip, key) is not None for key in MEMORY_SHARES):
        attributes["l2_bytes"] = 0
    return Endpoint(chip=name, **attributes)


def _make_unit(switch: SwitchSpec) -> Unit | None:
    attributes = attributes_of(Unit, switch, "reduction_")
    if switch.reduction_rate is not None:
        attributes["cost16"] = cost16(switch.reduction_rate)
    return Unit(**attributes) if attributes else None


def make_switch(switch: SwitchSpec, *, tier: str = "") -> Node:
    """Return a switch, PCIe switch or root complex of a type; `tier` replaces the type's."""
    host = attributes_of(HostTraits, switch)
    attributes: dict[str, Any] = {
        **attributes_of(Node, switch),
        "latency_ps": switch.latency or 1,
        "tier": tier or switch.tier or "switch",
        "path_policy": sender_of(switch.path_policy),
    }
    unit = _make_unit(switch)
    return Node(
        "",
        "switch",
        unit=unit,
        host=HostTraits(**host) if host else None,
        **attributes,
    )


def _make_rate_control(spec: RateControlSpec | None) -> RateControl | None:
    if spec is None or spec.base == "none":
        return None
    if spec.base is not None:
        spec = merge(preset_rate_control(spec.base), spec)
    policies = {"sender": sender_of(spec), "receiver": sender_of(spec.receiver)}
    return RateControl(**attributes_of(RateControl, spec) | policies)


def make_nic(spec: NicSpec, *, tier: str = "") -> Node:
    """Return a NIC of a type."""
    attributes = attributes_of(NicTraits, spec) | {
        "rate_control": _make_rate_control(spec.rate_control)
    }
    attributes["reorder_bytes"] = None if spec.reorder == "any" else spec.reorder
    latency_ps, ports = spec.latency or 1, spec.ports or 0
    nic = NicTraits(**attributes)
    return Node("", "nic", latency_ps, tier=tier or "nic", ports=ports, nic=nic)


def make_link(spec: LinkTypeSpec, name: str = "") -> Link:
    """Return a link of a complete type, without ends.

    The cable's propagation is part of the latency.
    """
    if spec.rate is None or spec.latency is None or spec.format is None:
        raise InternalError(f"link type {name}: no rate, latency or format")
    cable_ps = round((spec.length or 0.0) * _PS_PER_M[spec.medium or "fibre"])
    pfc, ecn = spec.pfc or PfcSpec(xoff=0), spec.ecn or EcnSpec(max=0)
    drop, schedule = spec.drop or DropSpec(queue=0), spec.schedule or ScheduleSpec()
    if drop.queue:
        pfc = PfcSpec(xoff=0)
    resumes = pfc.xoff // 2 if pfc.xon is None else pfc.xon
    marked = ecn.max > 0
    return Link(
        a="",
        b="",
        rate=spec.rate,
        latency_ps=spec.latency + cable_ps,
        format=spec.format,
        buffer_bytes=spec.buffer or DEFAULT_BUFFER_BYTES,
        replay_ps=spec.replay or 0,
        error_rate=spec.error_rate or 0.0,
        weight=spec.weight or 1,
        cls=spec.class_ or "link",
        name=name,
        xoff_bytes=pfc.xoff,
        xon_bytes=resumes if pfc.xoff else 0,
        ecn_min_bytes=ecn.min if marked else 0,
        ecn_max_bytes=ecn.max,
        ecn_probability=ecn.probability if marked else 0.0,
        ecn_departure=marked and ecn.at == "departure",
        queue_bytes=drop.queue,
        alpha_1024=round(drop.alpha * 1024) if drop.queue else 0,
        red=bool(drop.queue) and drop.red,
        trim_bytes=drop.trim if drop.queue else 0,
        priority=tuple(schedule.priority or ()),
        weights=tuple(schedule.weights or ()),
        queue_policy=sender_of(spec.queue_policy),
        schedule_policy=sender_of(spec.schedule_policy),
    )


def make_format(name: str, spec: FormatSpec | None) -> Format:
    """Return the packet format of a spec."""
    if spec is None:
        return Format(name)

    def table(values: Any, usual: int, scale: int = 1) -> tuple[int, ...]:
        default = (values or {}).get("default", usual)
        return tuple(
            round((values or {}).get(kind, default) * scale) for kind in KIND_NAMES
        )

    attributes: dict[str, Any] = {}
    if spec.payload is not None:
        attributes["payload_bytes"] = {
            "sm": 128,
            "ce": 128,
            "nic": 128,
            **spec.payload,
        }
    return Format(
        name=name,
        flit_bytes=spec.flit or 16,
        header_bytes=table(spec.header, 16),
        control_256=table(spec.control, 0, 256),
        service_1024=table(spec.service, 1, 1024),
        limit_bytes=table(spec.limit, NO_LIMIT),
        **attributes,
    )


def make_protocol(name: str, spec: ProtocolSpec) -> Protocol:
    """Return the protocol of a spec."""
    return Protocol(name, **attributes_of(Protocol, spec))


def preset_endpoint(chip: str) -> Endpoint:
    """Return the endpoint of a chip preset."""
    return make_endpoint(chip, preset("chips", chip))


def preset_protocols(architecture: str) -> dict[str, Protocol]:
    """Return the protocols of an architecture preset."""
    return {
        name: make_protocol(name, preset("protocols", f"{architecture}.{name}"))
        for name in ARCHITECTURES[architecture]
    }
