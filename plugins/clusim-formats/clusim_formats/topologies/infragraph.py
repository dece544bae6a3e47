"""InfraGraph files (YAML or JSON): devices of components, instances of devices, and edges.

A device is a graph of components, a component may be another device, and an infrastructure joins instances of devices.
Endpoints are written in Python's slice notation (``xpu[0:4]``). Here a file becomes a flat graph of graph nodes
(``host.0.xpu.3``) and edges; `clusim_formats.topologies.infragraphwiring` decides which hardware they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from clusim.base.errors import UnitError
from clusim.base.limits import fail, printable
from clusim.base.units import parse_rate, parse_time
from clusim.formats.topologies.common import MAX_LINKS, MAX_NODES
from clusim.topology.yamltext import Document, Path, parse
from clusim_formats.topologies.infragraph_values import InfraGraphValues

KINDS = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
SCHEMES = ("one2one", "many2many", "ring")
MAX_DEPTH = 8
"""Devices inside each other."""

_BANDWIDTHS = {"gigabits_per_second": "Gb/s", "gigabytes_per_second": "GB/s"}
_TRANSFERS = "gigatransfers_per_second"


@dataclass(slots=True)
class InfraLink:
    """A kind of link.

    Attributes
    ----------
    text : str
        Its name and description.
    rate, latency : str
        Quantities with units; empty if missing in the file.
    transfers : float
        Signalling rate [GT/s]; 0 if missing in the file.
    """

    text: str = ""
    rate: str = ""
    latency: str = ""
    transfers: float = 0.0


@dataclass(slots=True)
class InfraNode:
    """A component of an instance.

    Attributes
    ----------
    name : str
        Name of the component, without its number.
    kind : str
        Its choice, one of `KINDS`; of a custom component, its type.
    description : str
        Text in the file.
    instance : int
        Number of its instance, over the complete file.
    device : str
        Device of the component.
    attributes : dict
        Annotations.
    """

    name: str
    kind: str
    description: str
    instance: int
    device: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class InfraEdge:
    """Two nodes by their labels, the link between them, and its place in the order of the file."""

    a: str
    b: str
    link: InfraLink
    order: int


@dataclass(slots=True)
class InfraGraph:
    """A file as a flat graph; `instances` has the label and device of every instance."""

    name: str = ""
    nodes: dict[str, InfraNode] = field(default_factory=dict)
    edges: list[InfraEdge] = field(default_factory=list)
    instances: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str, str, str]] = field(default_factory=list)


def read_infrastructure(text: str, where: str) -> InfraGraph:
    """Return the graph of a file; an error names file, line and key."""
    return _File(parse(text, where), where).read()


class _File(InfraGraphValues):
    def __init__(self, document: Document, where: str) -> None:
        super().__init__(document, where)
        self.devices: dict[str, tuple[Path, Mapping[str, Any]]] = {}
        self.graph = InfraGraph()
        self.seen: set[tuple[str, str, str]] = set()

    def read(self) -> InfraGraph:
        data: Any = self.document.data
        path: Path = ()
        if self.document.problems:
            place, message = self.document.problems[0]
            raise fail(self.where, place[0], message)
        if isinstance(data, dict) and isinstance(data.get("infrastructure"), dict):
            data, path = data["infrastructure"], ("infrastructure",)
        if not isinstance(data, dict):
            raise self.fail(
                path, "must be a mapping with devices, instances and edges"
            )
        self.graph.name = self.text(data, path, "name", "")
        if "components" in data:
            self.devices[self.graph.name or "device"] = (path, data)
            links, edges = {}, []
        else:
            self._devices(data, path)
            links = self._links(data, path)
            edges = list(self.rows(data, path, "edges"))
        if "connections" in data:
            raise self.fail(
                (*path, "connections"), "of a draft of the format; use edges"
            )
        counts = self._instances(data, path)
        for at, edge in edges:
            ends = [self._outer(edge, at, key, counts) for key in ("ep1", "ep2")]
            self._join(edge, at, ends[0], ends[1], links)
        self._annotate(data, path)
        return self.graph

    def _devices(self, data: Mapping[str, Any], path: Path) -> None:
        for at, device in self.rows(data, path, "devices"):
            name = self.text(device, at, "name")
            if name in self.devices:
                raise self.fail(
                    (*at, "name"), f"two devices are called {printable(name)!r}"
                )
            self.devices[name] = (at, device)
        if not self.devices:
            raise self.fail(path, "devices is missing; add at least one")

    def _links(self, data: Mapping[str, Any], path: Path) -> dict[str, InfraLink]:
        result = {}
        for at, row in self.rows(data, path, "links"):
            name = self.text(row, at, "name")
            description = self.text(row, at, "description", "")
            result[name] = link = InfraLink(f"{name} {description}".strip())
            physical = row.get("physical") or {}
            if not isinstance(physical, dict):
                raise self.fail((*at, "physical"), "must be a mapping")
            self._bandwidth(physical, (*at, "physical"), link)
            self._latency(physical, (*at, "physical"), link)
        return result

    def _bandwidth(
        self, physical: Mapping[str, Any], path: Path, link: InfraLink
    ) -> None:
        unit, value, place = self.quantity(physical, path, "bandwidth")
        if unit == _TRANSFERS:
            link.transfers = value
        elif unit in _BANDWIDTHS:
            link.rate = f"{value:.12g} {_BANDWIDTHS[unit]}"
        elif unit:
            listing = ", ".join((*_BANDWIDTHS, _TRANSFERS))
            raise self.fail(place, f"no unit of bandwidth; there are {listing}")

    def _latency(
        self, physical: Mapping[str, Any], path: Path, link: InfraLink
    ) -> None:
        unit, value, place = self.quantity(physical, path, "latency")
        if unit in ("ms", "us", "ns"):
            link.latency = f"{value:.12g}{unit}"
        elif unit:
            raise self.fail(place, "no unit of latency; there are ms, us, ns")

    # Instances.

    def _instances(
        self, data: Mapping[str, Any], path: Path
    ) -> dict[str, tuple[str, int]]:
        counts: dict[str, tuple[str, int]] = {}
        for at, row in self.rows(data, path, "instances"):
            name, device = self.text(row, at, "name"), self.text(row, at, "device")
            if device not in self.devices:
                raise self.fail(
                    (*at, "device"), f"no device is called {printable(device)!r}"
                )
            if name in counts:
                raise self.fail(
                    (*at, "name"), f"two instances are called {printable(name)!r}"
                )
            counts[name] = (device, self.count(row, at))
        if not counts:
            inner = {
                row.get("name")
                for at, device in self.devices.values()
                for _, row in self.rows(device, at, "components")
                if row.get("choice") == "device"
            }
            counts = {name: (name, 1) for name in self.devices if name not in inner}
            self.graph.notes.append(
                (
                    ", ".join(counts),
                    "one instance of each",
                    "no instances in the file",
                    "",
                )
            )
        for name, (device, count) in counts.items():
            for index in range(count):
                label = f"{name}.{index}"
                self.graph.instances.append((label, device))
                self._expand(label, device, len(self.graph.instances) - 1, 0)
        return counts

    def _expand(self, label: str, name: str, instance: int, depth: int) -> None:
        """Add the nodes and edges of a device that is called `label`."""
        path, device = self.devices[name]
        if depth > MAX_DEPTH:
            raise self.fail(path, f"devices are nested more than {MAX_DEPTH} deep")
        for at, row in self.rows(device, path, "components"):
            part, kind = self.text(row, at, "name"), self._kind(row, at)
            for index in range(self.count(row, at)):
                inner = f"{label}.{part}.{index}"
                if kind == "device":
                    if part not in self.devices:
                        raise self.fail(
                            (*at, "name"), f"no device is called {printable(part)!r}"
                        )
                    self._expand(inner, part, instance, depth + 1)
                    continue
                if len(self.graph.nodes) >= MAX_NODES:
                    raise self.fail(
                        at, f"more than {MAX_NODES} nodes; that is the limit"
                    )
                line = self.document.place(at)[0]
                description = self.text(row, at, "description", "")
                self.graph.nodes[inner] = InfraNode(
                    part, kind, description, instance, name, line
                )
        links = self._links(device, path)
        for at, edge in self.rows(device, path, "edges"):
            ends = []
            for key in ("ep1", "ep2"):
                end = self._endpoint(edge, at, key)
                outer = self.text(end, (*at, key), "device", "")
                inside = self.text(end, (*at, key), "component")
                place = (*at, key, "component")
                ends.append(
                    self._inner(
                        f"{outer}.{inside}" if outer else inside, name, label, place
                    )
                )
            self._join(edge, at, ends[0], ends[1], links)

    def _kind(self, row: Mapping[str, Any], at: Path) -> str:
        kind = self.text(row, at, "choice")
        if kind not in KINDS:
            raise self.fail(
                (*at, "choice"),
                f"unknown {printable(kind)!r}; choose one of {', '.join(KINDS)}",
            )
        custom = row.get("custom")
        if kind == "custom" and isinstance(custom, dict):
            return self.text(custom, (*at, "custom"), "type", "custom")
        return kind

    # Edges.

    def _endpoint(
        self, edge: Mapping[str, Any], at: Path, key: str
    ) -> Mapping[str, Any]:
        end = edge.get(key)
        if not isinstance(end, dict):
            raise self.fail(
                (*at, key) if key in edge else at, f"{key} must be a mapping"
            )
        return end

    def _outer(
        self,
        edge: Mapping[str, Any],
        at: Path,
        key: str,
        counts: Mapping[str, tuple[str, int]],
    ) -> list[str]:
        """Return the labels of an endpoint of the infrastructure."""
        end, place = self._endpoint(edge, at, key), (*at, key)
        name, chosen = self.part(
            self.text(end, place, "instance"), (*place, "instance")
        )
        if name not in counts:
            raise self.fail(
                (*place, "instance"), f"no instance is called {printable(name)!r}"
            )
        device, count = counts[name]
        component = self.text(end, place, "component")
        return [
            label
            for index in self.chosen(chosen, count, (*place, "instance"))
            for label in self._inner(
                component, device, f"{name}.{index}", (*place, "component")
            )
        ]

    def _inner(self, text: str, device: str, label: str, place: Path) -> list[str]:
        """Return the labels of components of a device, such as ``cx5[0:2].port[0]``."""
        labels = [label]
        for part in text.split("."):
            name, chosen = self.part(part, place)
            at, parts = self.devices.get(device, ((), {}))
            row = next(
                (
                    r
                    for _, r in self.rows(parts, at, "components")
                    if r.get("name") == name
                ),
                None,
            )
            if row is None:
                return self._missing(place, device, name)
            numbers = self.chosen(chosen, self.count(row, at), place)
            labels = [
                f"{one}.{name}.{index}" for one, index in product(labels, numbers)
            ]
            device = name
        for one in labels:
            if one not in self.graph.nodes:
                raise self.fail(
                    place,
                    f"{printable(one)} is a device; name one of its components",
                )
        return labels

    def _missing(self, place: Path, device: str, name: str) -> list[str]:
        """Note an edge to a missing component; the format's tools omit such edges as well."""
        line = self.document.place(place)[0]
        note = (
            f"line {line}", "edges ignored",
            f"unknown component {printable(name)!r} of device {printable(device)}", "a corrected file",
        )  # fmt: skip
        if note not in self.graph.notes:
            self.graph.notes.append(note)
        return []

    def _join(
        self, edge: Mapping[str, Any], at: Path, one: list[str], two: list[str],
        links: Mapping[str, InfraLink],
    ) -> None:  # fmt: skip
        name = self.text(edge, at, "link")
        if name not in links:
            raise self.fail((*at, "link"), f"no link is called {printable(name)!r}")
        scheme = self.text(edge, at, "scheme", "one2one")
        if scheme not in SCHEMES:
            raise self.fail(
                (*at, "scheme"),
                f"unknown {printable(scheme)!r}; choose one of {', '.join(SCHEMES)}",
            )
        pairs: Iterator[tuple[str, str]]
        if scheme == "one2one":
            pairs = zip(one, two, strict=False)
        elif scheme == "ring":
            pairs = ((a, two[(i + 1) % len(two)]) for i, a in enumerate(one))
        else:
            pairs = product(one, two)
        for a, b in pairs:
            key = (min(a, b), max(a, b), name)
            if a == b or (scheme != "one2one" and key in self.seen):
                continue
            if len(self.graph.edges) >= MAX_LINKS:
                raise self.fail(
                    at, f"more than {MAX_LINKS} edges; that is the limit"
                )
            self.seen.add(key)
            self.graph.edges.append(
                InfraEdge(a, b, links[name], len(self.graph.edges))
            )

    # Annotations.

    def _annotate(self, data: Mapping[str, Any], path: Path) -> None:
        notes = data.get("annotations")
        if notes is None:
            return
        path = (*path, "annotations")
        if not isinstance(notes, dict):
            raise self.fail(path, "must be a mapping with nodes, edges or links")
        for at, row in self.rows(notes, path, "nodes"):
            pattern = self.pattern(self.text(row, at, "name"), (*at, "name"))
            for label, node in self.graph.nodes.items():
                if pattern.match(label):
                    node.attributes |= self.attributes(row, at)
        for at, row in self.rows(notes, path, "links"):
            name, attributes = self.text(row, at, "name"), self.attributes(row, at)
            for link in {id(e.link): e.link for e in self.graph.edges}.values():
                if link.text.split(" ")[0] == name:
                    self._read_annotations(link, attributes, at)
        for at, row in self.rows(notes, path, "edges"):
            ends = [
                self.pattern(self.text(row, at, key), (*at, key))
                for key in ("ep1", "ep2")
            ]
            attributes = self.attributes(row, at)
            for edge in self.graph.edges:
                directions = ((edge.a, edge.b), (edge.b, edge.a))
                if any(ends[0].match(a) and ends[1].match(b) for a, b in directions):
                    edge.link = replace(edge.link)
                    self._read_annotations(edge.link, attributes, at)

    def _read_annotations(
        self, link: InfraLink, attributes: Mapping[str, str], at: Path
    ) -> None:
        """Set bandwidth and latency from annotations."""
        try:
            if text := attributes.get("bandwidth", ""):
                link.rate = re.sub(r"([kMGT]?[bB])ps$", r"\1/s", text.strip())
                link.rate = re.sub(r"(?<=[0-9])\s*G$", " Gb/s", link.rate)
                parse_rate(link.rate)
            if text := attributes.get("latency", ""):
                link.latency = text.replace(" ", "")
                parse_time(link.latency)
        except UnitError as error:
            raise self.fail((*at, "attributes"), str(error)) from None
