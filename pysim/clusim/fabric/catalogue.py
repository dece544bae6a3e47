"""Types by name, the description's own and the hardware presets, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from clusim.fabric.model import (
    KIND_NAMES,
    Endpoint,
    Format,
    Protocol,
    Unit,
    cost16,
)
from clusim.fabric.problems import Path, Problems, did_you_mean
from clusim.fabric.schema import ChipSpec, FormatSpec, ProtocolSpec, Spec, SwitchSpec, Topology
from clusim.hardware import ARCHITECTURES, CHIPS, FORMATS, LINKS, SWITCHES, Preset

__all__ = [
    "Catalogue",
    "Section",
    "make_endpoint",
    "make_format",
    "make_protocol",
    "make_unit",
    "merge",
    "preset_endpoint",
    "preset_format",
    "preset_protocols",
]

Section = Literal["chips", "switches", "formats", "link_types", "protocols"]
_PRESETS: dict[Section, Mapping[str, Preset]] = {
    "chips": CHIPS,
    "switches": SWITCHES,
    "formats": FORMATS,
    "link_types": LINKS,
    "protocols": {
        f"{arch}.{name}": preset
        for arch, table in ARCHITECTURES.items()
        for name, preset in table.items()
    },
}
_WHAT = {
    "chips": "chip",
    "switches": "switch",
    "formats": "format",
    "link_types": "link type",
    "protocols": "protocol",
}

DEFAULT_CHIP = "h100-sxm5"
"""Chips without a base take what they leave open from this one, except its link count and peak rates."""

_NOT_INHERITED: dict[str, Any] = {"links": None, "peak_flops": None}

S = TypeVar("S", bound=Spec)


@cache
def _preset(section: Section, name: str) -> Any:
    """Return a hardware preset as the schema's object."""
    raw = {key: figure.value for key, figure in _PRESETS[section][name].items()}
    dummy = {"nodes": {"x": {"kind": "switch"}}, section: {"x": raw}}
    return getattr(Topology.model_validate(dummy), section)["x"]


def merge(base: S, over: Spec) -> S:
    """Return `base` with what `over` sets; mappings are merged key by key, unless there is a new ``default``."""
    update: dict[str, Any] = {}
    for key in over.model_fields_set:
        value = getattr(over, key)
        if value is None or key == "base" or key not in type(base).model_fields:
            continue
        old = getattr(base, key)
        if isinstance(value, dict) and isinstance(old, dict):
            replaced = {} if "default" in value else old
            value = {**replaced, **value}
        update[key] = value
    return base.model_copy(update=update)


@dataclass(slots=True)
class Catalogue:
    """The types one description can name, and the provenance of those it uses."""

    topology: Topology
    problems: Problems
    sources: dict[str, str] = field(default_factory=dict)
    resolved: dict[tuple[Section, str], Any] = field(default_factory=dict)

    def resolve(self, section: Section, name: str, path: Path, seen: tuple[str, ...] = ()) -> Any:
        """Return the spec called `name` with its bases merged in, or None if there is none."""
        if (section, name) in self.resolved:
            return self.resolved[section, name]
        own: Spec | None = getattr(self.topology, section).get(name)
        what = _WHAT[section]
        if own is None and name not in _PRESETS[section]:
            known = [*getattr(self.topology, section), *_PRESETS[section]]
            self.problems.add(path, f"unknown {what} {name!r}{did_you_mean(name, known)}")
            return None
        if own is None:
            result = _preset(section, name)
            self._note(section, name)
        else:
            result = self._derive(section, name, own, seen)
        self.resolved[section, name] = result
        return result

    def _derive(self, section: Section, name: str, own: Spec, seen: tuple[str, ...]) -> Any:
        base_name: str | None = getattr(own, "base", None)
        place: Path = (section, name, "base")
        if base_name is None and section == "chips":
            for key, figure in CHIPS[DEFAULT_CHIP].items():
                if key not in own.model_fields_set and key not in _NOT_INHERITED:
                    self.sources[f"chip {name}: {key}"] = f"as {DEFAULT_CHIP}: {figure}"
            return merge(_preset(section, DEFAULT_CHIP).model_copy(update=_NOT_INHERITED), own)
        if base_name is None:
            return own
        if base_name == name and name in _PRESETS[section]:
            base = _preset(section, name)
            self._note(section, name)
        elif base_name in (*seen, name):
            self.problems.add(place, f"{base_name!r} is its own base; name another")
            return own
        else:
            base = self.resolve(section, base_name, place, (*seen, name))
        if base is None:
            return own
        for key in own.model_fields_set - {"base"}:
            self.sources[f"{_WHAT[section]} {name}: {key}"] = "given in the description"
        return merge(base, own)

    def _note(self, section: Section, name: str) -> None:
        for key, figure in _PRESETS[section][name].items():
            if key not in ("format", "class"):
                self.sources[f"{_WHAT[section]} {name}: {key}"] = str(figure)


_CHIP_FIELDS = {
    "sms": "sms",
    "cta_slots": "cta_slots",
    "write_latency": "write_latency_ps",
    "read_latency": "read_latency_ps",
    "response_latency": "response_latency_ps",
    "memory_rate": "mem_Bps",
    "memory_efficiency": "mem_efficiency",
    "memory_quantum": "mem_quantum_ps",
    "links": "links",
    "peak_flops": "peak_flops",
}
_CHIP_SHARES = {
    "memory_per_delivered": "deliver_256",
    "memory_per_read": "read_256",
    "memory_per_injected": "inject_256",
}


def make_endpoint(name: str, chip: ChipSpec) -> Endpoint:
    given: dict[str, Any] = {"chip": name}
    for key, attribute in _CHIP_FIELDS.items():
        if (value := getattr(chip, key)) is not None:
            given[attribute] = value
    for key, attribute in _CHIP_SHARES.items():
        if (share := getattr(chip, key)) is not None:
            given[attribute] = round(share * 256)
    if chip.slowdown is not None:
        given["slow_1024"] = round(chip.slowdown * 1024)
    return Endpoint(**given)


def make_unit(switch: SwitchSpec) -> Unit | None:
    if switch.reduction_latency is switch.reduction_capacity is switch.reduction_rate is None:
        return None
    given: dict[str, int] = {}
    if switch.reduction_latency is not None:
        given["latency_ps"] = switch.reduction_latency
    if switch.reduction_capacity is not None:
        given["capacity_bytes"] = switch.reduction_capacity
    if switch.reduction_rate is not None:
        given["cost16"] = cost16(switch.reduction_rate)
    return Unit(**given)


def make_format(name: str, spec: FormatSpec | None) -> Format:
    if spec is None:
        return Format(name)
    header: Any = spec.header or {"default": 16}
    control: Any = spec.control or {}
    service: Any = spec.service or {}
    given: dict[str, Any] = {}
    if spec.payload is not None:
        given["payload_bytes"] = {"sm": 128, "ce": 128, "nic": 128, **spec.payload}
    return Format(
        name=name,
        flit_bytes=spec.flit or 16,
        header_bytes=tuple(header.get(kind, header.get("default", 16)) for kind in KIND_NAMES),
        control_256=tuple(round(control.get(kind, 0) * 256) for kind in KIND_NAMES),
        service_1024=tuple(round(service.get(kind, 1) * 1024) for kind in KIND_NAMES),
        **given,
    )


_PROTOCOL_FIELDS = {
    "fixed": "fixed_ps",
    "expand": "expand_120",
    "tail_fence": "tail_fence_ps",
    "head_fence": "head_fence_ps",
    "buffer": "buffer_bytes",
    "slots": "slots",
    "chunk_steps": "chunk_steps",
    "slice_steps": "slice_steps",
    "grain": "grain_bytes",
    "throughput": "op_Bps",
}


def make_protocol(name: str, spec: ProtocolSpec) -> Protocol:
    given = {attribute: getattr(spec, key) for key, attribute in _PROTOCOL_FIELDS.items()}
    return Protocol(name, **{key: value for key, value in given.items() if value is not None})


def preset_endpoint(chip: str) -> Endpoint:
    """Return the endpoint of a chip preset."""
    return make_endpoint(chip, _preset("chips", chip))


def preset_protocols(architecture: str) -> dict[str, Protocol]:
    """Return the protocols of an architecture preset."""
    return {
        name: make_protocol(name, _preset("protocols", f"{architecture}.{name}"))
        for name in ARCHITECTURES[architecture]
    }


def preset_format(name: str) -> Format:
    """Return a packet format preset."""
    return make_format(name, _preset("formats", name))
