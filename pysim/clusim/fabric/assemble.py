"""A validated description plus the hardware presets -> `Fabric`."""

from __future__ import annotations

import re
from typing import Any

from clusim.errors import InternalError
from clusim.fabric.catalogue import (
    Catalogue,
    Section,
    make_endpoint,
    make_format,
    make_protocol,
    make_unit,
    merge,
)
from clusim.fabric.model import Fabric, Link, Node, Protocol
from clusim.fabric.problems import Path, Problems, did_you_mean
from clusim.fabric.schema import (
    ChipSpec,
    LinkSpec,
    LinkTypeSpec,
    NodeSpec,
    ProtocolSpec,
    SwitchSpec,
    Topology,
)
from clusim.hardware import ARCHITECTURES, CHIPS, CTA_SKEW, LINKS, P2P, WINDOW
from clusim.units import parse_size, parse_time

__all__ = ["MAX_LINKS", "MAX_NODES", "assemble"]

MAX_NODES = 65_536
MAX_LINKS = 1_000_000

DEFAULT_ARCHITECTURE = "hopper"
DEFAULT_FORMAT = "nvlink4"
DEFAULT_BUFFER_BYTES = 32_768

_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,64}")
_RANGE = re.compile(r"(.*?)([0-9]{1,7})\.\.([0-9]{1,7})(.*)")


def assemble(topology: Topology, problems: Problems, *, source_text: str = "") -> Fabric:
    """Build the fabric a description stands for; raises `TopologyError` with every problem found."""
    state = Catalogue(topology, problems)
    nodes, names = _nodes(state)
    links = _links(state, names)
    architecture = topology.architecture or DEFAULT_ARCHITECTURE
    if architecture not in ARCHITECTURES:
        hint = did_you_mean(architecture, ARCHITECTURES)
        problems.add(("architecture",), f"unknown architecture {architecture!r}{hint}")
        architecture = DEFAULT_ARCHITECTURE
    protocols = _protocols(state, architecture)
    formats = {
        name: make_format(name, state.resolve("formats", name, ("formats", name)))
        for name in dict.fromkeys(link.format for link in links)
    }
    rings = _rings(state, nodes)
    _check_unused(topology, problems)
    problems.raise_if_any()
    if topology.p2p is None:
        state.sources["p2p"] = str(P2P[architecture])
    if topology.window is None:
        state.sources["window"] = str(WINDOW)
    if topology.cta_skew is None:
        state.sources["cta_skew"] = str(CTA_SKEW)
    skew: Any = (
        topology.cta_skew if topology.cta_skew is not None else parse_time(str(CTA_SKEW.value))
    )
    window: Any = topology.window if topology.window is not None else parse_size(str(WINDOW.value))
    p2p: Any = topology.p2p or P2P[architecture].value
    return Fabric(
        name=topology.name or "custom",
        nodes=tuple(nodes),
        links=tuple(links),
        formats=formats,
        num_vcs=topology.vcs,
        p2p=p2p,
        window_bytes=window,
        cta_skew_ps=skew,
        protocols=protocols,
        channels=topology.channels or {"default": _default_channels(nodes, links)},
        ring_orders=rings,
        routing=topology.routing,
        description=topology.description.strip(),
        sources={**topology.sources, **state.sources},
        source_text=source_text,
    )


def _check_unused(topology: Topology, problems: Problems) -> None:
    """Look at the types nothing uses as well; their provenance is of no interest."""
    catalogue = Catalogue(topology, problems)
    sections: tuple[Section, ...] = ("chips", "switches", "formats", "link_types")
    for section in sections:
        for name in getattr(topology, section):
            catalogue.resolve(section, name, (section, name))


def _default_channels(nodes: list[Node], links: list[Link]) -> int:
    """Return one channel per link of the first endpoint, at most 32."""
    first = next((node.name for node in nodes if node.endpoint is not None), "")
    return min(32, max(1, sum(link.count for link in links if first in (link.a, link.b))))


def _expand(text: str) -> list[str]:
    """Return the names a range such as ``gpu0..7`` stands for, at most one more than there may be."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    head, low, high, tail = match.groups()
    width = len(low) if low.startswith("0") else 0
    last = min(int(high), int(low) + MAX_NODES)
    return [f"{head}{number:0{width}d}{tail}" for number in range(int(low), last + 1)]


def _nodes(state: Catalogue) -> tuple[list[Node], dict[str, int]]:
    nodes: list[Node] = []
    index: dict[str, int] = {}
    for key, spec in state.topology.nodes.items():
        path: Path = ("nodes", key)
        names = _expand(key)
        if not names:
            state.problems.add(path, f"empty range {key!r}; write the lower number first", key=True)
        if len(nodes) + len(names) > MAX_NODES:
            state.problems.add(path, f"more than {MAX_NODES} nodes; that is the limit", key=True)
            break
        node = _node(state, spec, path)
        for name in names:
            if name in index:
                state.problems.add(
                    path, f"node {name!r} exists already; names are unique", key=True
                )
                break
            if not _NAME.fullmatch(name):
                state.problems.add(
                    path, "not a node name; use letters, digits and _.:/@+-", key=True
                )
                break
            index[name] = len(nodes)
            nodes.append(_named(node, name))
    return nodes, index


def _named(node: Node, name: str) -> Node:
    return Node(
        name,
        node.kind,
        node.latency_ps,
        node.store_and_forward,
        node.endpoint,
        node.unit,
        node.tier,
        node.relay,
        node.ports,
    )


def _node(state: Catalogue, spec: NodeSpec, path: Path) -> Node:
    problems = state.problems
    if spec.kind == "switch":
        for key in ("chip", "relay"):
            if key in spec.model_fields_set:
                problems.add((*path, key), f"a switch has no {key}; leave it out", key=True)
        switch = (
            state.resolve("switches", spec.switch or "generic", (*path, "switch")) or SwitchSpec()
        )
        latency = spec.latency or switch.latency or 1
        forward = spec.store_and_forward
        if forward is None:
            forward = bool(switch.store_and_forward)
        unit = make_unit(switch)
        return Node(
            "",
            "switch",
            latency,
            forward,
            None,
            unit,
            spec.tier or "switch",
            ports=switch.ports or 0,
        )
    for key in ("switch", "store_and_forward"):
        if key in spec.model_fields_set:
            problems.add((*path, key), f"a {spec.kind} has no {key}; leave it out", key=True)
    if spec.chip is None and spec.kind == "gpu":
        problems.add(path, f"'chip' is missing; the presets are {', '.join(CHIPS)}")
        return Node("", spec.kind, tier=spec.tier or spec.kind)
    name = spec.chip or "host"
    chip = state.resolve("chips", name, (*path, "chip")) or ChipSpec()
    endpoint = make_endpoint(name, chip)
    if endpoint.mem_quantum_ps << 16 < endpoint.mem_cost16:
        problems.add(
            (*path, "chip"), "memory moves less than a byte per memory_quantum; give a longer one"
        )
    latency = spec.latency or 1
    return Node(
        "", spec.kind, latency, spec.relay, endpoint, None, spec.tier or spec.kind, spec.relay
    )


def _protocols(state: Catalogue, architecture: str) -> dict[str, Protocol]:
    """Return the architecture's protocols with what the file changes, and the file's own."""
    result: dict[str, Protocol] = {}
    for name in [*ARCHITECTURES[architecture], *state.topology.protocols]:
        own = state.topology.protocols.get(name)
        path: Path = ("protocols", name)
        standard = name if name in ARCHITECTURES[architecture] else "simple"
        spec: ProtocolSpec | None
        if own is None or own.base is None:
            spec = state.resolve("protocols", f"{architecture}.{standard}", path)
            spec = merge(spec, own) if spec is not None and own is not None else spec
        else:
            spec = state.resolve("protocols", name, path)
        if spec is not None:
            result[name] = make_protocol(name, spec)
            if result[name].step_bytes < 16:
                state.problems.add(
                    path, "a slot holds less than 16 bytes; give a larger buffer or fewer slots"
                )
    return result


def _links(state: Catalogue, index: dict[str, int]) -> list[Link]:
    links: list[Link] = []
    total = 0
    for number, spec in enumerate(state.topology.links):
        path: Path = ("links", number)
        pairs = _pairs(state, spec, path, index)
        merged = _link_type(state, spec, path)
        if not pairs or merged is None:
            continue
        for a, b, count in pairs:
            links.append(_link(a, b, count, spec, merged))
            total += count
        if total > MAX_LINKS:
            state.problems.add(path, f"more than {MAX_LINKS} links; that is the limit")
            break
    return links


def _pairs(
    state: Catalogue, spec: LinkSpec, path: Path, index: dict[str, int]
) -> list[tuple[str, str, int]]:
    """Return the node pairs of an entry with the number of links of each."""
    ends = []
    for key, text in (("from", spec.from_), ("to", spec.to)):
        names = _expand(text)
        unknown = next((name for name in names if name not in index), None)
        if unknown is not None or not names:
            missing = (
                f"unknown node {unknown!r}{did_you_mean(unknown, index)}"
                if unknown
                else "empty range"
            )
            state.problems.add((*path, key), missing)
            return []
        ends.append(names)
    sources, targets = ends
    if spec.pair == "zip" and len(sources) != len(targets):
        state.problems.add(
            (*path, "pair"),
            f"zip of {len(sources)} with {len(targets)} nodes; must be equally many",
        )
        return []
    counts = spec.count if len(spec.count) > 1 else spec.count * len(targets)
    if len(counts) != len(targets):
        state.problems.add(
            (*path, "count"),
            f"{len(counts)} counts for {len(targets)} nodes in 'to'; give one or one each",
        )
        return []
    if len(sources) * len(targets) > MAX_LINKS and spec.pair == "all":
        state.problems.add(path, f"more than {MAX_LINKS} links; that is the limit")
        return []
    if spec.pair == "zip":
        pairs = list(zip(sources, targets, counts, strict=True))
    else:
        pairs = [(a, b, n) for a in sources for b, n in zip(targets, counts, strict=True)]
    loop = next((a for a, b, _ in pairs if a == b), None)
    if loop is not None:
        state.problems.add(path, f"links {loop!r} to itself; name two different nodes")
        return []
    return pairs


def _link_type(state: Catalogue, spec: LinkSpec, path: Path) -> LinkTypeSpec | None:
    name = spec.type or spec.base
    base: LinkTypeSpec | None = None
    if name is not None:
        base = state.resolve("link_types", name, (*path, "type" if spec.type else "base"))
        if base is None:
            return None
    merged: LinkTypeSpec = merge(base, spec) if base else spec
    if merged.format is None:
        own = list(state.topology.formats)
        merged = merged.model_copy(update={"format": own[0] if len(own) == 1 else DEFAULT_FORMAT})
    for key in ("rate", "latency"):
        if getattr(merged, key) is None:
            state.problems.add(
                path, f"{key!r} is missing; give it or a type, such as {', '.join(LINKS)}"
            )
            return None
    if merged.rate is not None and merged.rate.num == 0:
        own_rate = "rate" in spec.model_fields_set
        state.problems.add(
            (*path, "rate") if own_rate else path, "zero bandwidth; give a rate above 0"
        )
        return None
    if state.resolve("formats", str(merged.format), (*path, "format")) is None:
        return None
    return merged


def _link(a: str, b: str, count: int, spec: LinkSpec, merged: LinkTypeSpec) -> Link:
    if merged.rate is None or merged.latency is None or merged.format is None:
        raise InternalError(f"links: {a} to {b}: no rate, latency or format")
    return Link(
        a=a,
        b=b,
        count=count,
        rate=merged.rate,
        latency_ps=merged.latency,
        format=merged.format,
        buffer_bytes=merged.buffer or DEFAULT_BUFFER_BYTES,
        replay_ps=merged.replay or 0,
        error_rate=merged.error_rate or 0.0,
        dim=spec.dim,
        weight=spec.weight,
        dateline=(spec.dateline in ("forward", "both"), spec.dateline in ("backward", "both")),
        cls=merged.class_ or "link",
        name=spec.type or "",
    )


def _rings(state: Catalogue, nodes: list[Node]) -> tuple[tuple[int, ...], ...] | None:
    rings = state.topology.rings
    if rings is None:
        return None
    ranks = sum(node.kind != "switch" for node in nodes)
    for number, ring in enumerate(rings):
        if sorted(ring) != list(range(ranks)):
            message = f"must name every rank 0..{ranks - 1} once; has {len(ring)} entries"
            state.problems.add(("rings", number), message)
    return tuple(tuple(ring) for ring in rings)
