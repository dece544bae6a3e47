"""Importer of GraphML and node-link JSON, as networkx and others write them.

A graph written by `clusim.to_networkx` is restored in full. In other graphs, words in attributes or
names identify the kind of a node; rates and latencies are read from attributes with various names.
Bandwidths and delays without a unit are read as Gb/s and ns, and every guess is listed. networkx is not
used: its XML parser trusts its input.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from clusim.base.errors import UnitError
from clusim.base.limits import number, printable
from clusim.base.units import parse_rate, parse_time
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.presets import (
    check_rate,
    given_chip,
    hinted_chip,
    known_chip,
    product_chip,
    unnamed_chip,
)
from clusim.hardware import LINKS, gpu
from clusim.hardware.product_names import gpu_by_product
from clusim.topology.graph import known_data
from clusim_formats.topologies.graph_text import (
    Attributes,
    TextGraph,
    parse_graphml,
    parse_node_link,
)

MAX_GRAPH_NODES = 65_536
_PRODUCT_KEYS = ("chip", "model", "gpu", "gpu_type", "gpu_model", "product")


def read_graphml(text: str, draft: Draft) -> None:
    """Fill `draft` from the text of GraphML."""
    _fill(parse_graphml(text, draft), draft)


def read_node_link(text: str, draft: Draft) -> None:
    """Fill `draft` from the text of node-link JSON."""
    _fill(parse_node_link(text, draft), draft)


def _fill(graph: TextGraph, draft: Draft) -> None:
    if not graph.nodes:
        raise draft.fail("a graph without nodes")
    if _is_ours(graph):
        _native(graph, draft)
    else:
        _Reader(graph, draft).run()


def _is_ours(graph: TextGraph) -> bool:
    typed = isinstance(graph.settings.get("formats"), dict)
    return typed and all("kind" in keys for keys in graph.nodes.values())


def _native(graph: TextGraph, draft: Draft) -> None:
    """Restore a graph written by `clusim.to_networkx`."""
    data = known_data(graph.settings, graph.nodes, graph.edges)
    nodes, links, sources = (
        data.pop("nodes"),
        data.pop("links"),
        data.pop("sources", {}),
    )
    draft.name = str(data.pop("name", None) or draft.name)
    draft.settings.update(data)
    for key, text in sources.items() if isinstance(sources, dict) else ():
        draft.source(printable(key, 100), str(text))
    for name, keys in nodes.items():
        draft.node(name, str(keys.pop("kind")), **keys)
    for keys in links:
        draft.link(keys.pop("from"), keys.pop("to"), **keys)


_KINDS = (
    ("memory", r"mem|dram"),
    ("nvswitch", r"nv_?switch"),
    ("gpu", r"gpu|npu|xpu|tpu|accelerator|rank|gcd"),
    (
        "switch",
        r"switch|sw|router|tor|leaf|spine|core|agg\w*|edge|hub|bridge|pcie\w*|root\w*|cpu|socket|numa|nic|hca",
    ),
    ("host", r"host|server|node|machine|compute|endpoint|client|h|n"),
)
_KIND_KEYS = (
    "kind",
    "type",
    "role",
    "node_type",
    "category",
    "device",
    "device_type",
    "layer",
    "tier",
)
_RATE = re.compile(
    r"(?:link_?)?(?:rate|bandwidth|bw|capacity|speed|data_?rate)(?:_?in)?[_ ]?([kmgt]?b(?:it|yte)?(?:s|ps|_?s|/s)?)?",
    re.IGNORECASE,
)
_LATENCY = re.compile(
    r"(?:link_?|propagation_?)?(?:latency|delay|lat)[_ ]?(ps|ns|us|ms|s)?",
    re.IGNORECASE,
)
_LINK_WORDS = ("type", "kind", "link_type", "medium", "technology")
_COUNTS = (
    "count",
    "multiplicity",
    "num_links",
    "n_links",
    "parallel",
    "lanes_count",
)


class _Reader:
    """A graph with attributes of any names."""

    def __init__(self, graph: TextGraph, draft: Draft) -> None:
        self.graph = graph
        self.draft = draft
        self.degree = Counter(end for a, b, _ in graph.edges for end in (a, b))
        self.names: dict[str, str] = {}
        self.kinds: dict[str, str] = {}

    def run(self) -> None:
        if len(self.graph.nodes) > MAX_GRAPH_NODES:
            raise self.draft.fail(
                f"more than {MAX_GRAPH_NODES} nodes; that is the limit"
            )
        self.draft.settings["description"] = "imported from a graph"
        self._name_nodes()
        for label, attributes in self.graph.nodes.items():
            self.kinds[label] = self._kind(label, attributes)
        ends = [
            label for label, kind in self.kinds.items() if kind in ("gpu", "host")
        ]
        if not ends:
            for label in self.kinds:
                self.kinds[label] = "host"
            ends = list(self.kinds)
            self.draft.assume(
                "all nodes", "hosts", "the graph does not mark endpoints"
            )
        relay = len(ends) == len(self.kinds) and 2 * len(self.graph.edges) < len(
            ends
        ) * (len(ends) - 1)
        if relay:
            self.draft.assume(
                "all endpoints",
                "they forward packets of others",
                "the graph does not have switches",
            )
        for label, attributes in self.graph.nodes.items():
            self._node(label, attributes, relay)
        for a, b, attributes in self._joined_edges():
            self._edge(a, b, attributes)

    def _name_nodes(self) -> None:
        used: set[str] = set()
        for label in self.graph.nodes:
            name = (
                re.sub(r"[^A-Za-z0-9_.:/@+-]", "_", label).replace("..", "_")[:60]
                or "node"
            )
            base, copy = name, 1
            while name in used:
                name, copy = f"{base}_{copy}", copy + 1
            used.add(name)
            self.names[label] = name

    def _kind(self, label: str, attributes: Attributes) -> str:
        words = [
            str(attributes[key])
            for key in _KIND_KEYS
            if isinstance(attributes.get(key), str)
        ]
        for word in words:
            if result := _kind_of(word):
                return result
        if result := _kind_of(label):
            self.draft.assume(
                self.names[label],
                f"a {result}",
                "by its name; no attribute sets its kind",
            )
            return result
        result = "host" if self.degree[label] <= 1 else "switch"
        self.draft.assume(
            self.names[label],
            f"a {result}",
            "kind unknown; nodes with one link are hosts, others switches",
        )
        return result

    def _node(self, label: str, attributes: Attributes, relay: bool) -> None:
        kind, name = self.kinds[label], self.names[label]
        keys: Attributes = {"relay": True, "latency": "100ns"} if relay else {}
        if kind == "gpu":
            chip = self._chip(attributes, name)
            self.draft.node(
                name, "gpu", chip=known_chip(self.draft, chip, name), **keys
            )
        elif kind in ("host", "memory"):
            # A graph node of host memory only could not be an endpoint of a job.
            self.draft.node(name, "host", **keys)
        else:
            latency = self._latency(attributes, name)
            tier = _tier(label, attributes)
            switch = "nvswitch3" if kind == "nvswitch" else "generic"
            if latency is None and kind != "nvswitch":
                latency = "300ns"
                self.draft.assume(
                    name, "forwards after 300ns", "no latency in the graph"
                )
            keys = (
                {"switch": switch}
                if kind == "nvswitch"
                else {"switch": switch, "tier": tier}
            )
            self.draft.node(
                name, "switch", **keys, **({"latency": latency} if latency else {})
            )

    def _chip(self, attributes: Attributes, name: str) -> str:
        for key in _PRODUCT_KEYS:
            result = (
                gpu_by_product(str(attributes[key])) if key in attributes else None
            )
            if result is not None:
                return result.name
        if self.draft.chip:
            return given_chip(self.draft)
        for key in _PRODUCT_KEYS:
            if re.search(r"[A-Za-z]", str(attributes.get(key) or "")):
                return product_chip(self.draft, str(attributes[key]))
        return hinted_chip(self.draft, name, "the graph names no chip")

    def _joined_edges(self) -> list[tuple[str, str, Attributes]]:
        """Return duplex links; the two directions of a directed graph are merged."""
        edges = [(a, b, keys) for a, b, keys in self.graph.edges if a != b]
        if len(edges) < len(self.graph.edges):
            self.draft.assume(
                "links of a node to itself", "ignored", "both ends are the same node"
            )
        if not self.graph.directed:
            return edges
        waiting: dict[tuple[str, str], list[Attributes]] = {}
        joined: list[tuple[str, str, Attributes]] = []
        for a, b, keys in edges:
            back = waiting.get((b, a))
            if back:
                other = back.pop()
                if self._rate(other) != self._rate(keys):
                    slow = min(
                        (other, keys), key=lambda k: _parse_speed(self._rate(k)[0])
                    )
                    joined = [
                        e if e[2] is not other else (*e[:2], slow) for e in joined
                    ]
                    self.draft.assume(
                        f"{self.names[b]}-{self.names[a]}",
                        "the slower of its two directions for both",
                        "links are duplex, with the same rate in both directions",
                    )
                continue
            waiting.setdefault((a, b), []).append(keys)
            joined.append((a, b, keys))
        single = [pair for pair, remaining in waiting.items() if remaining]
        if single:
            self.draft.assume(
                [f"{self.names[a]}-{self.names[b]}" for a, b in single],
                "a link in both directions",
                "the directed graph has one direction only",
            )
        return joined

    def _edge(self, a: str, b: str, attributes: Attributes) -> None:
        one, two = self.names[a], self.names[b]
        rate, unit = self._rate(attributes)
        latency = self._latency(attributes, f"{one}-{two}")
        kind = self._link_type(a, b, attributes)
        keys: Attributes = {"type": kind}
        if unit:
            self.draft.assume(
                "bandwidths", "Gb/s", f"attribute {unit!r} is without unit",
                settles=f"a unit in its name ({unit}_GBps)",
            )  # fmt: skip
        if rate is not None:
            keys["rate"] = rate
        else:
            self.draft.assume(
                f"{one}-{two}", f"the rate of {kind}", "no bandwidth in the graph"
            )
        if latency is not None:
            keys["latency"] = latency
        else:
            self.draft.assume(
                f"{one}-{two}", f"the latency of {kind}", "no latency in the graph"
            )
        count = next(
            (number(attributes[key]) for key in _COUNTS if key in attributes), None
        )
        if count is not None:
            if not (count == int(count) and 1 <= count <= 65_536):
                raise self.draft.fail(
                    f"{one}-{two}: {count:g} links; must be 1 to 65536"
                )
            keys["count"] = int(count)
        self.draft.link(one, two, **keys)

    def _link_type(self, a: str, b: str, attributes: Attributes) -> str:
        words = [
            str(attributes[key]).lower() for key in _LINK_WORDS if key in attributes
        ]
        word = " ".join(words)
        for name in word.split():
            if name in LINKS:
                return name
        gpus = {self.kinds[end] for end in (a, b)}
        if "nvlink" in word or gpus == {"gpu", "nvswitch"} or gpus == {"gpu"}:
            ends = [self.draft.nodes[self.names[end]] for end in (a, b)]
            chips = [str(keys["chip"]) for keys in ends if keys["kind"] == "gpu"]
            return gpu(chips[0] if chips else unnamed_chip()).link or "nvlink4"
        if "pci" in word:
            return "pcie-gen4-x16"
        return "ib-ndr" if re.search(r"\bib\b|infiniband", word) else "ethernet400"

    def _rate(self, attributes: Attributes) -> tuple[str | None, str]:
        """Return the rate as a quantity, and the attribute's name if its unit was guessed."""
        key, value, suffix = _matching(attributes, _RATE)
        if not key:
            return None, ""
        unit, plain = _rate_unit(suffix), number(value)
        short = plain is not None and plain < 1e15
        text = f"{plain:.12g} {unit or 'Gb/s'}" if short else str(value)
        try:
            check_rate(text)
        except UnitError as error:
            raise self.draft.fail(f"attribute {printable(key)!r}: {error}") from None
        return text, key if plain is not None and not unit else ""

    def _latency(self, attributes: Attributes, name: str) -> str | None:
        key, value, unit = _matching(attributes, _LATENCY)
        if not key:
            return None
        plain = number(value)
        text = str(value) if plain is None else f"{plain:.12g}{unit.lower() or 'ns'}"
        if plain is not None and not unit:
            self.draft.assume(
                "latencies", "ns", f"attribute {printable(key)!r} is without unit"
            )
        try:
            if parse_time(text) < 1:
                self.draft.assume(
                    name, "latency 1ps", "0 in the graph, which no wire has"
                )
                return "1ps"
        except UnitError as error:
            raise self.draft.fail(f"attribute {printable(key)!r}: {error}") from None
        return text


def _matching(
    attributes: Attributes, pattern: re.Pattern[str]
) -> tuple[str, Any, str]:
    """Return the first attribute with a matching name, its value and the unit in its name."""
    for key, value in attributes.items():
        match = pattern.fullmatch(key)
        if match is not None and value is not None and value != "":
            return key, value, match[1] or ""
    return "", None, ""


def _kind_of(text: str) -> str:
    word = re.sub(r"[0-9].*$", "", text.lower()).strip(" _-./:") or text.lower()
    for part in (
        word,
        re.split(r"[ _./:-]", word)[-1],
        re.split(r"[ _./:-]", word)[0],
    ):
        for kind, pattern in _KINDS:
            if re.fullmatch(pattern, part):
                return kind
    return ""


def _tier(label: str, attributes: Attributes) -> str:
    words = [
        str(attributes.get(key, ""))
        for key in ("tier", "layer", "role", "kind", "type")
    ]
    for word in (*words, label):
        match = re.search(
            r"leaf|spine|core|tor|agg|edge|pcie|root|cpu", word.lower()
        )
        if match:
            return {
                "tor": "leaf",
                "agg": "spine",
                "edge": "leaf",
                "cpu": "root",
            }.get(match[0], match[0])
    return "switch"


def _rate_unit(suffix: str) -> str:
    """Return the unit in the suffix of an attribute's name: ``bandwidth_gbps``, ``bw_GBps``."""
    match = re.match(r"([kmgtKMGT]?)(b(?:it|yte)?|B)", suffix)
    if match is None:
        return ""
    prefix = match[1].upper().replace("K", "k")
    return f"{prefix}{'B' if match[2] in ('B', 'byte') else 'b'}/s"


def _parse_speed(rate: str | None) -> float:
    return parse_rate(rate).bytes_per_s if rate else float("inf")
