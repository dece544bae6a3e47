"""Types by name, from the description and the hardware presets, with their bases resolved.

Includes NICs with another transport than their base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from clusim.base.errors import ClusimError, InputError, TopologyError
from clusim.base.records import dataclass
from clusim.base.units import parse_size, parse_time
from clusim.hardware import (
    ARCHITECTURES,
    CHIPS,
    CPUS,
    FORMATS,
    LINKS,
    NICS,
    SWITCHES,
)
from clusim.hardware.catalog import TRANSPORTS
from clusim.hardware.figures import Preset, any_scaled, current_figure, value_of
from clusim.hardware.nic import MESSAGE_UNITS, RATE_CONTROLS
from clusim.policies.choice import Sender, is_policy, shipped
from clusim.topology.keys import did_you_mean
from clusim.topology.quantities import MEMORY_SHARES, Spec
from clusim.topology.schema import (
    ChipSpec,
    LinkTypeSpec,
    NicSpec,
    PolicySpec,
    RateControlSpec,
    SwitchSpec,
    Topology,
)
from clusim.topology.validate import KeyPath, Problems


def carried_by(base: NicSpec, spec: NicSpec) -> NicSpec:
    """Return `base` with the message costs of the transport of `spec`, if it differs."""
    if spec.plugin is None or spec.plugin == base.plugin:
        return base
    figures = TRANSPORTS[spec.plugin].figures
    values = {key: figures[key].value for key in MESSAGE_UNITS if key in figures}
    cleared = {key: None for key in MESSAGE_UNITS if key not in figures}
    result = NicSpec.model_validate(values)
    return base.model_copy(
        update={
            **cleared,
            **{key: getattr(result, key) for key in values},
            "plugin": spec.plugin,
        }
    )


Section = Literal["chips", "switches", "formats", "link_types", "nics", "protocols"]
PRESETS: dict[Section, Mapping[str, Preset]] = {
    "chips": CHIPS,
    "switches": SWITCHES,
    "formats": FORMATS,
    "link_types": LINKS,
    "nics": NICS,
    "protocols": {
        f"{arch}.{name}": preset
        for arch, table in ARCHITECTURES.items()
        for name, preset in table.items()
    },
}
"""Types of the hardware presets by section and name."""
NOUNS: Mapping[Section, str] = {
    "chips": "chip",
    "switches": "switch",
    "formats": "format",
    "link_types": "link type",
    "nics": "nic",
    "protocols": "protocol",
}
"""Names of the sections' types in sources of figures."""

_OPTIONAL = frozenset(
    {
        "base",
        "architecture",
        "compute_capability",
        "peer_access",
        "memory",
        "gemm_fraction",
        "power",
        "kernels",
        "slowdown",
        "peak_flops",
        "links",
        "pcie_rate",
        "memory_quantum",
        "l2",
        *MEMORY_SHARES,
    }
)
"""Optional keys of a chip; they are required only in topologies that use them."""

S = TypeVar("S", bound=Spec)


def preset(section: Section, name: str) -> Any:
    """Return a hardware preset as the schema's object.

    Raises
    ------
    InputError
        A scaled figure (`clusim.hardware.figures.scaled_figures`) is out of range.
    """
    if not any_scaled(PRESETS[section][name].values()):
        return _preset(section, name)
    try:
        return _preset.__wrapped__(section, name)
    except ValidationError as error:
        raise InputError(f"{section} {name}: {error.errors()[0]['msg']}") from None


@cache
def _preset(section: Section, name: str) -> Any:
    raw = {key: value_of(figure) for key, figure in PRESETS[section][name].items()}
    dummy = {"nodes": {"x": {"kind": "switch"}}, section: {"x": raw}}
    return getattr(Topology.model_validate(dummy), section)["x"]


def look_at_thresholds(
    problems: Problems, path: KeyPath, spec: LinkTypeSpec
) -> None:
    """Report pause and mark thresholds that contradict each other."""
    pfc, ecn = spec.pfc, spec.ecn
    if pfc is not None and pfc.xoff > 0:
        if pfc.xon is not None and pfc.xon >= pfc.xoff:
            problems.add(
                (*path, "pfc", "xon"),
                f"resumes at {pfc.xon} B; must be below xoff, {pfc.xoff} B",
            )
        if spec.buffer is not None and pfc.xoff >= spec.buffer:
            message = f"pauses at {pfc.xoff} B; must leave room in the buffer of {spec.buffer} B"
            problems.add((*path, "pfc", "xoff"), message)
    if ecn is not None and ecn.max > 0 and ecn.min > ecn.max:
        problems.add(
            (*path, "ecn", "min"),
            f"marks from {ecn.min} B; must be at most max, {ecn.max} B",
        )
    drop = spec.drop
    if drop is not None and drop.red and ecn is not None and ecn.at == "departure":
        problems.add(
            (*path, "ecn", "at"), "red drops at arrival; remove one of red and at"
        )
    if drop is not None and drop.queue > 0 and pfc is not None and pfc.xoff > 0:
        problems.add(
            (*path, "drop"), "drops packets and pauses; remove one of drop and pfc"
        )


def look_at_policies(
    problems: Problems, path: KeyPath, spec: LinkTypeSpec | SwitchSpec
) -> None:
    """Report a policy of a link or switch that is unknown, or of another kind."""
    for kind in ("queue", "schedule", "path"):
        key = f"{kind}_policy"
        if key not in type(spec).model_fields:
            continue
        try:
            sender = sender_of(getattr(spec, key))
            if sender is not None:
                sender.check(kind)
        except ClusimError as error:
            problems.add((*path, key), str(error))
            setattr(spec, key, None)


def merge(base: S, over: Spec) -> S:
    """Return `base` overridden by `over`.

    Mappings are merged by key, unless `over` has a new ``default``.
    """
    update: dict[str, Any] = {}
    for key in over.model_fields_set:
        value = getattr(over, key)
        if value is None or key == "base" or key not in type(base).model_fields:
            continue
        old = getattr(base, key)
        if isinstance(value, dict) and isinstance(old, dict):
            replaced = {} if "default" in value else old
            value = {**replaced, **value}
        elif isinstance(value, RateControlSpec) and isinstance(old, RateControlSpec):
            value = merge(old, value) if value.base is None else value
        update[key] = value
    return base.model_copy(update=update)


@cache
def preset_rate_control(name: str) -> RateControlSpec:
    raw = {key: figure.value for key, figure in RATE_CONTROLS[name].items()}
    return RateControlSpec.model_validate(raw)


@dataclass(slots=True)
class Catalogue:
    """Types that a description can name, and the provenance of the used types."""

    topology: Topology
    problems: Problems
    sources: dict[str, str] = field(default_factory=dict)
    resolved: dict[tuple[Section, str], Any] = field(default_factory=dict)

    def resolve(
        self,
        section: Section,
        name: str,
        path: KeyPath,
        visited: tuple[str, ...] = (),
    ) -> Any:
        """Return the spec called `name` with its bases merged in, or None if it does not exist."""
        if (section, name) in self.resolved:
            return self.resolved[section, name]
        from_file: Spec | None = getattr(self.topology, section).get(name)
        noun = NOUNS[section]
        if from_file is None and name not in PRESETS[section]:
            names = [*getattr(self.topology, section), *PRESETS[section]]
            self.problems.add(
                path, f"unknown {noun} {name!r}{did_you_mean(name, names)}"
            )
            return None
        if from_file is None:
            result = preset(section, name)
            self._note(section, name)
        else:
            self._look_at(section, name, from_file)
            result = self._derive(section, name, from_file, visited)
        self.resolved[section, name] = result
        return result

    def _look_at(self, section: Section, name: str, spec: Spec) -> None:
        """Report problems of a type in the file that do not depend on its base."""
        if isinstance(spec, NicSpec) and spec.rate_control is not None:
            self._look_at_control((section, name, "rate_control"), spec)
        if (
            isinstance(spec, SwitchSpec)
            and spec.cpu is not None
            and spec.cpu not in CPUS
        ):
            message = f"unknown processor {spec.cpu!r}{did_you_mean(spec.cpu, CPUS)}"
            self.problems.add((section, name, "cpu"), message)
        if isinstance(spec, SwitchSpec):
            look_at_policies(self.problems, (section, name), spec)
        if isinstance(spec, LinkTypeSpec):
            look_at_thresholds(self.problems, (section, name), spec)
            look_at_policies(self.problems, (section, name), spec)

    def _look_at_control(self, path: KeyPath, spec: NicSpec) -> None:
        """Report an unknown rate control; a base that is a policy becomes its policy."""
        control = spec.rate_control
        assert control is not None
        base = control.base
        if base is not None and base not in (*RATE_CONTROLS, "none"):
            if not is_policy(base):
                names = [*RATE_CONTROLS, *shipped(), "none"]
                self.problems.add(
                    path, f"unknown rate control {base!r}{did_you_mean(base, names)}"
                )
                spec.rate_control = None
                return
            control.base, control.policy = None, base
        try:
            sender = sender_of(control)
            if sender is not None:
                sender.check("sender", *["receiver"] * (control.receiver is None))
            receiver = sender_of(control.receiver)
            if receiver is not None:
                receiver.check("receiver")
            if receiver is not None and sender is None:
                raise InputError(
                    "receiver: beside a policy of senders only; set policy to it"
                )
        except ClusimError as error:
            self.problems.add(path, str(error))
            spec.rate_control = None

    def _look_for_gaps(self, name: str, spec: ChipSpec) -> None:
        """Report the missing fields of a chip without a base."""
        keys = {
            key for key in spec.model_fields_set if getattr(spec, key) is not None
        }
        missing = [
            key for key in ChipSpec.model_fields if key not in keys | _OPTIONAL
        ]
        if not keys & {"l2", *MEMORY_SHARES}:
            missing.append("l2")
        if missing:
            listing = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            message = f"without base and {listing}; add a base, for example 'base: h100-sxm5'"
            self.problems.add(("chips", name), message, key=True)

    def _derive(
        self, section: Section, name: str, spec: Spec, visited: tuple[str, ...]
    ) -> Any:
        base_name: str | None = getattr(spec, "base", None)
        place: KeyPath = (section, name, "base")
        if isinstance(spec, ChipSpec) and base_name is None:
            self._look_for_gaps(name, spec)
        if base_name is None:
            return (
                merge(carried_by(NicSpec(), spec), spec)
                if isinstance(spec, NicSpec)
                else spec
            )
        if base_name == name and name in PRESETS[section]:
            base = preset(section, name)
            self._note(section, name)
        elif base_name in (*visited, name):
            self.problems.add(
                place, f"{base_name!r} is based on itself; name another"
            )
            return spec
        else:
            base = self.resolve(section, base_name, place, (*visited, name))
        if base is None:
            return spec
        if isinstance(spec, NicSpec):
            base = carried_by(base, spec)
        for key in sorted(spec.model_fields_set - {"base"}):
            self.sources[f"{NOUNS[section]} {name}: {key}"] = (
                "given in the description"
            )
        return merge(base, spec)

    def _note(self, section: Section, name: str) -> None:
        for key, figure in PRESETS[section][name].items():
            if key not in ("format", "class"):
                self.sources[f"{NOUNS[section]} {name}: {key}"] = str(
                    current_figure(figure)
                )


def sender_of(spec: RateControlSpec | PolicySpec | None) -> Sender | None:
    """Return the policy of a rate control or of a link, or None."""
    if spec is None or spec.policy is None:
        return None
    values = (spec.constants or {}).items()
    return Sender(
        spec.policy, tuple((name, _constant(name, value)) for name, value in values)
    )


def _constant(name: str, value: int | str) -> int:
    """Return a constant; a text has the unit of the end of its name."""
    if isinstance(value, str) and name.endswith("_ps"):
        return parse_time(value)
    if isinstance(value, str) and name.endswith("_bytes"):
        return parse_size(value)
    if isinstance(value, str):
        raise TopologyError(f"constants: {name}: {value!r} is not an integer")
    return value
