"""Assembly of a validated description and the hardware presets -> `Fabric`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from clusim.base.units import parse_size, parse_time
from clusim.hardware import ARCHITECTURES, CHIPS, NICS, P2P
from clusim.hardware.figures import current_figure, value_of
from clusim.hardware.numa import MEMORY
from clusim.hardware.protocols import CTA_SKEW, WINDOW
from clusim.topology.cabling import MAX_NODES, make_links, names_of
from clusim.topology.catalogue import Catalogue, Section, merge
from clusim.topology.components import (
    make_endpoint,
    make_format,
    make_nic,
    make_protocol,
    make_switch,
)
from clusim.topology.keys import did_you_mean
from clusim.topology.model import ONE_PATH, Fabric, Forwarding, Link, PinnedPath
from clusim.topology.node import Endpoint, Node
from clusim.topology.packets import Protocol
from clusim.topology.schema import (
    ChipSpec,
    ForwardingSpec,
    NicSpec,
    NodeSpec,
    ProtocolSpec,
    SwitchSpec,
    Topology,
)
from clusim.topology.tori import order_links
from clusim.topology.validate import KeyPath, Problems

_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,64}")


def assemble(
    topology: Topology, problems: Problems, *, source_text: str = ""
) -> Fabric:
    """Build the topology of a description; raise `TopologyError` with every problem found."""
    state = Catalogue(topology, problems)
    nodes, names = _nodes(state)
    links = make_links(state, names)
    architecture = _architecture(state, nodes)
    protocols = _protocols(state, architecture)
    formats = {
        name: make_format(name, state.resolve("formats", name, ("formats", name)))
        for name in dict.fromkeys(link.format for link in links)
    }
    rings = _rings(state, nodes)
    _look_at_buses(topology, nodes, problems)
    _look_at_told(topology, nodes, problems)
    _check_unused(topology, problems)
    forwarding = forwarding_of(topology, nodes, links, problems)
    problems.raise_if_any()
    if topology.routing == "dimension-order":
        links = order_links(links)
    figures = _usual_figures(topology, state, architecture)
    return Fabric(
        name=topology.name or "custom",
        nodes=tuple(nodes),
        links=tuple(links),
        formats=formats,
        num_vcs=topology.vcs,
        **figures,
        protocols=protocols,
        channels=topology.channels or {"default": _default_channels(nodes, links)},
        ring_orders=rings,
        p2p_level=topology.p2p_level,
        gdr_level=topology.gdr_level,
        gdr_read=topology.gdr_read,
        acs=topology.acs,
        pxn=topology.pxn,
        nvb=topology.nvb,
        shm=topology.shm,
        nic_names=topology.nic_names,
        told=topology.told,
        told_pcie=topology.told_pcie,
        routing=topology.routing,
        network_routing=topology.network_routing,
        forwarding=forwarding,
        network=topology.network.plain() if topology.network else {},
        description=topology.description.strip(),
        faults=tuple(topology.faults),
        sources={**topology.sources, **state.sources},
        source_text=source_text,
    )


def _usual_figures(
    topology: Topology, state: Catalogue, architecture: str
) -> dict[str, Any]:
    """Return P2P method, window and CTA skew, with the sources of those that a description omits."""
    if topology.p2p is None:
        state.sources["p2p"] = str(P2P[architecture])
    if topology.window is None:
        state.sources["window"] = str(current_figure(WINDOW))
    if topology.cta_skew is None:
        state.sources["cta_skew"] = str(current_figure(CTA_SKEW))
    skew: Any = (
        topology.cta_skew
        if topology.cta_skew is not None
        else parse_time(str(value_of(CTA_SKEW)))
    )
    window: Any = (
        topology.window
        if topology.window is not None
        else parse_size(str(value_of(WINDOW)))
    )
    p2p: Any = topology.p2p or P2P[architecture].value
    return {"p2p": p2p, "window_bytes": window, "cta_skew_ps": skew}


def forwarding_of(
    topology: Topology,
    nodes: Iterable[Node],
    links: Iterable[Link],
    problems: Problems,
) -> Forwarding:
    """Return the choice among equal paths; report pinned paths over other graph nodes, or without links."""
    settings, kinds = topology.forwarding, {node.name: node.kind for node in nodes}
    joined = (
        {frozenset((link.a, link.b)) for link in links} if settings.paths else set()
    )
    for number, path in enumerate(settings.paths):
        ends = [("from", path.from_, "nic")] if path.from_ else []
        ends += [
            ("to", path.to, "nic"),
            *(("via", name, "switch") for name in path.via),
        ]
        for key, name, kind in ends:
            if kinds.get(name) != kind:
                problems.add(
                    ("forwarding", "paths", number, key), f"no {kind} {name!r}"
                )
        for a, b in pairwise(path.via):
            if (
                kinds.get(a) == kinds.get(b) == "switch"
                and frozenset((a, b)) not in joined
            ):
                problems.add(
                    ("forwarding", "paths", number, "via"),
                    f"no link joins {a} and {b}",
                )
    several = settings.choice not in ("auto", *ONE_PATH)
    if (settings.gap is not None) != (settings.choice == "flowlet"):
        word = "needs" if settings.gap is None else "is without"
        problems.add(("forwarding", "gap"), f"choice {settings.choice} {word} a gap")
    if several and settings.paths:
        problems.add(
            ("forwarding", "paths"),
            f"choice {settings.choice} leaves no path to pin",
        )
    values = {key: getattr(settings, key) for key in ForwardingSpec.model_fields}
    values["gap_ps"] = values.pop("gap")
    values["paths"] = tuple(
        PinnedPath(path.from_, path.to, tuple(path.via)) for path in settings.paths
    )
    return Forwarding(**values)


def _look_at_buses(
    topology: Topology, nodes: list[Node], problems: Problems
) -> None:
    """Report PCI buses that cannot belong to the GPUs."""
    buses, gpus = topology.logs.buses, sum(node.kind == "gpu" for node in nodes)
    if buses and (len(buses) != gpus or len(set(buses)) != gpus):
        message = f"{len(set(buses))} different numbers for {gpus} GPUs; list the bus of each, or no bus"
        problems.add(("logs", "buses"), message)


def _look_at_told(topology: Topology, nodes: list[Node], problems: Problems) -> None:
    """Report NCCL overrides and NIC names of GPUs or NICs that do not exist."""
    gpus = {node.name for node in nodes if node.kind == "gpu"}
    for name, links in topology.told.items():
        for other in (name, *links):
            if other not in gpus and (other != "switch" or other == name):
                problems.add(("told", name), f"unknown GPU {other!r}")
    slots = {node.name for node in nodes if node.kind in ("gpu", "nic")}
    for name in topology.told_pcie.keys() - slots:
        problems.add(("told_pcie", name), f"unknown GPU or NIC {name!r}")
    for name in topology.nic_names.keys() - slots:
        problems.add(("nic_names", name), f"unknown NIC {name!r}")


_IDEAL = "host"
"""Architecture of hosts, and fallback for invalid descriptions."""


def _architecture(state: Catalogue, nodes: list[Node]) -> str:
    """Return the architecture that sets the ranks' protocols and point-to-point mode.

    The description needs its key only if the GPUs have several architectures.
    """
    problems, name = state.problems, state.topology.architecture
    chips: dict[str, str] = {}
    for node in nodes:
        end = node.endpoint
        if end is not None and node.kind in ("gpu", "host") and end.architecture:
            chips.setdefault(end.architecture, end.chip)
    gpus = {arch: chip for arch, chip in chips.items() if arch != _IDEAL} or chips
    if name is not None and name not in ARCHITECTURES:
        hint = did_you_mean(name, ARCHITECTURES)
        problems.add(("architecture",), f"unknown architecture {name!r}{hint}")
    elif name is not None and gpus and name not in gpus:
        arch, chip = next(iter(gpus.items()))
        message = f"{name!r}, but chip {chip!r} is {arch}; leave the key out, or name the chips you mean"
        problems.add(("architecture",), message)
    elif name is None and len(gpus) > 1:
        message = " and ".join(f"{chip!r} is {arch}" for arch, chip in gpus.items())
        which = " or ".join(gpus)
        problems.add(
            ("nodes",),
            f"chip {message}; choose the protocols of all ranks with 'architecture: {which}'",
        )
    else:
        return name or next(iter(gpus), _IDEAL)
    return _IDEAL


def _check_unused(topology: Topology, problems: Problems) -> None:
    """Check unused types as well, without recording their provenance."""
    catalogue = Catalogue(topology, problems)
    sections: tuple[Section, ...] = (
        "chips",
        "switches",
        "formats",
        "link_types",
        "nics",
    )
    for section in sections:
        for name in getattr(topology, section):
            catalogue.resolve(section, name, (section, name))


def _default_channels(nodes: list[Node], links: list[Link]) -> int:
    """Return one channel per link of the first endpoint, at most 32."""
    first = next((node.name for node in nodes if node.endpoint is not None), "")
    return min(
        32, max(1, sum(link.count for link in links if first in (link.a, link.b)))
    )


def _nodes(state: Catalogue) -> tuple[list[Node], dict[str, int]]:
    nodes: list[Node] = []
    index: dict[str, int] = {}
    for key, spec in state.topology.nodes.items():
        path: KeyPath = ("nodes", key)
        names = names_of(key)
        if not names:
            state.problems.add(
                path, f"empty range {key!r}; write the lower number first", key=True
            )
        if len(nodes) + len(names) > MAX_NODES:
            state.problems.add(
                path, f"more than {MAX_NODES} nodes; that is the limit", key=True
            )
            break
        node = replace(_node(state, spec, path), zone=spec.zone)
        for name in names:
            if name in index:
                state.problems.add(
                    path, f"node {name!r} exists already; names are unique", key=True
                )
                break
            if not _NAME.fullmatch(name):
                state.problems.add(
                    path,
                    "not a node name; use letters, digits and _.:/@+-",
                    key=True,
                )
                break
            index[name] = len(nodes)
            nodes.append(replace(node, name=name))
    return nodes, index


_NOT_FOR = {
    "chip": ("switch", "nic"),
    "relay": ("switch", "nic", "memory"),
    "switch": ("gpu", "host", "memory", "nic"),
    "nic": ("gpu", "host", "memory", "switch"),
    "store_and_forward": ("gpu", "host", "memory", "nic"),
}
"""Kinds of graph node that do not have a key."""


def _node(state: Catalogue, spec: NodeSpec, path: KeyPath) -> Node:
    problems = state.problems
    for key, kinds in _NOT_FOR.items():
        if spec.kind in kinds and key in spec.model_fields_set:
            problems.add(
                (*path, key),
                f"unknown key {key} of a {spec.kind}; omit it",
                key=True,
            )
    if spec.kind == "switch":
        return _switch(state, spec, path)
    if spec.kind == "nic":
        return _nic(state, spec, path)
    if spec.chip is None and spec.kind != "host":
        chips = MEMORY if spec.kind == "memory" else _gpu_chips()
        problems.add(path, f"'chip' is missing; the presets are {', '.join(chips)}")
        return Node("", spec.kind, tier=spec.tier or spec.kind)
    name = spec.chip or "host"
    chip = state.resolve("chips", name, (*path, "chip")) or ChipSpec()
    endpoint = make_endpoint(name, chip)
    if spec.kind != "memory":
        _look_at_architecture(state, name, endpoint, path)
    if endpoint.mem_quantum_ps << 16 < endpoint.mem_cost16:
        problems.add(
            (*path, "chip"),
            "memory moves less than a byte per memory_quantum; set a longer one",
        )
    latency = spec.latency or 1
    return Node(
        "",
        spec.kind,
        latency,
        spec.relay,
        endpoint,
        None,
        spec.tier or spec.kind,
        spec.relay,
    )


def _look_at_architecture(
    state: Catalogue, name: str, endpoint: Endpoint, path: KeyPath
) -> None:
    """Report a chip of unknown architecture: protocols and launching depend on it."""
    architecture = endpoint.architecture
    if architecture in ARCHITECTURES:
        return
    in_file = name in state.topology.chips
    place: KeyPath = ("chips", name) if in_file else (*path, "chip")
    if architecture:
        hint = did_you_mean(architecture, ARCHITECTURES)
        state.problems.add(
            (*place, "architecture"), f"unknown architecture {architecture!r}{hint}"
        )
    elif not in_file:
        state.problems.add(
            place, f"unknown GPU {name!r}; the presets are {', '.join(_gpu_chips())}"
        )
    else:
        message = f"'architecture' is missing; set a base, or one of {', '.join(ARCHITECTURES)}"
        state.problems.add(place, message, key=True)


def _gpu_chips() -> list[str]:
    return [name for name in CHIPS if name not in MEMORY and name != "host"]


def _switch(state: Catalogue, spec: NodeSpec, path: KeyPath) -> Node:
    result = state.resolve("switches", spec.switch or "generic", (*path, "switch"))
    node = make_switch(result or SwitchSpec(), tier=spec.tier or "")
    if spec.store_and_forward is not None:
        node = replace(node, store_and_forward=spec.store_and_forward)
    return replace(
        node, latency_ps=spec.latency or node.latency_ps, model=spec.switch or ""
    )


def _nic(state: Catalogue, spec: NodeSpec, path: KeyPath) -> Node:
    if spec.nic is None:
        state.problems.add(
            path, f"'nic' is missing; the presets are {', '.join(sorted(NICS))}"
        )
        return Node("", "nic", tier="nic")
    result = state.resolve("nics", spec.nic, (*path, "nic")) or NicSpec()
    node = make_nic(result, tier=spec.tier or "")
    return replace(node, latency_ps=spec.latency or node.latency_ps, model=spec.nic)


def _protocols(state: Catalogue, architecture: str) -> dict[str, Protocol]:
    """Return the architecture's protocols with the file's changes, and protocols of the file."""
    result: dict[str, Protocol] = {}
    for name in [*ARCHITECTURES[architecture], *state.topology.protocols]:
        from_file = state.topology.protocols.get(name)
        path: KeyPath = ("protocols", name)
        standard = name if name in ARCHITECTURES[architecture] else "simple"
        spec: ProtocolSpec | None
        if from_file is None or from_file.base is None:
            spec = state.resolve("protocols", f"{architecture}.{standard}", path)
            spec = (
                merge(spec, from_file)
                if spec is not None and from_file is not None
                else spec
            )
        else:
            spec = state.resolve("protocols", name, path)
        if spec is not None:
            result[name] = make_protocol(name, spec)
            if result[name].step_bytes < 16:
                state.problems.add(
                    path,
                    "a slot holds less than 16 bytes; set a larger buffer or fewer slots",
                )
    return result


def _rings(
    state: Catalogue, nodes: list[Node]
) -> tuple[tuple[int, ...], ...] | None:
    rings = state.topology.rings
    if rings is None:
        return None
    ranks = sum(node.kind in ("gpu", "host") for node in nodes)
    for number, ring in enumerate(rings):
        if sorted(ring) != list(range(ranks)):
            message = (
                f"must name every rank 0..{ranks - 1} once; has {len(ring)} entries"
            )
            state.problems.add(("rings", number), message)
    return tuple(tuple(ring) for ring in rings)
