"""Topology: links, forwarding and the complete system as plain immutable descriptions.

All builders (YAML files, `FabricBuilder`, the generators, networkx graphs) return a `Fabric`, and all simulations start
from its arrays (`clusim.topology.arrays`). Names carry units; rates are exact rationals.

Doubts about a result, in the same words everywhere, with the option that settles them. Readers of topologies record
the assumptions that affect every result in `Fabric.sources`, so that topology files also contain them; files that do
not name their GPUs are the usual case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Literal

from clusim.base.display import Columns, Shown, Summary, columns_of
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.units import Rate, format_time
from clusim.policies.choice import Sender
from clusim.topology.node import Node, counted_nodes, kind_of
from clusim.topology.packets import Format, Protocol


@dataclass(frozen=True, slots=True)
class Link:
    """`count` duplex links between two graph nodes; each is two wires.

    Attributes
    ----------
    rate : Rate
        Payload-layer rate of one link in each direction.
    latency_ps : int
        Propagation and SerDes, one way [ps], at least 1.
    buffer_bytes : int
        Receive buffer per virtual channel [bytes].
    replay_ps : int
        Extra time of a replayed packet [ps]; `error_rate` is the probability that a packet is replayed.
    dim : int
        Dimension for dimension-order routing and VC classes; 0 is outside of it.
    weight : int
        Hops it counts as in the search for shortest paths.
    dateline, routed : tuple of bool
        Whether the directions a->b and b->a move packets to the next VC; whether routes use them.
    xoff_bytes, xon_bytes : int
        Pause and resume thresholds of the receive buffer per VC (PFC) [bytes]; 0: credits are used instead.
    ecn_min_bytes, ecn_max_bytes, ecn_probability : int, int, float
        Queue thresholds for marking a packet: never below the first, always above the second [bytes] (0: never);
        probability of a mark just below the second.
    ecn_departure : bool
        Packets are marked when they leave a queue, by what they leave behind, and not when they enter it.
    queue_bytes, alpha_1024 : int
        Most bytes in the queues of a switch [bytes] (0: no drops), also by its free memory, times 1024 (0: no bound).
    red, trim_bytes : bool, int
        Drop packets where they would be marked; cut dropped packets to headers [bytes], or 0.
    priority, weights : tuple of int
        By class of traffic: priority (lowest first), and share among equal priorities.
    queue_policy : Sender or None
        Policy of the queues of a switch for the link.
    schedule_policy : Sender or None
        Policy of the order of its classes, in place of priority and weights.
    cls : str
        Class in reports: ``nvlink``, ``trunk``, ``ethernet`` ...
    name : str
        Name of its link type, for display.
    """

    a: str
    b: str
    count: int = 1
    rate: Rate = Rate(1, 40)
    latency_ps: int = 150_000
    format: str = "nvlink"
    buffer_bytes: int = 32_768
    replay_ps: int = 0
    error_rate: float = 0.0
    dim: int = 0
    weight: int = 1
    dateline: tuple[bool, bool] = (False, False)
    routed: tuple[bool, bool] = (True, True)
    cls: str = "nvlink"
    name: str = field(default="", compare=False)
    xoff_bytes: int = 0
    xon_bytes: int = 0
    ecn_min_bytes: int = 0
    ecn_max_bytes: int = 0
    ecn_probability: float = 0.0
    ecn_departure: bool = False
    queue_bytes: int = 0
    alpha_1024: int = 0
    red: bool = False
    trim_bytes: int = 0
    priority: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    queue_policy: Sender | None = None
    schedule_policy: Sender | None = None

    @property
    def label(self) -> str:
        """Name of its type, or of its class."""
        return self.name or self.cls


Routing = Literal["shortest", "dimension-order"]
PathChoice = Literal[
    "auto",
    "hash",
    "destination",
    "spray",
    "adaptive",
    "credit",
    "flowlet",
    "ugal",
    "minimal",
]
ONE_PATH = ("hash", "destination")
"""Choices of one path per flow; all others but ``auto`` choose per packet."""

P2pLevel = Literal["loc", "nvl", "nvb", "pix", "pxb", "phb", "sys"]
GdrLevel = Literal["loc", "pix", "pxb", "phb", "sys"]

BY_DESTINATION = "infiniband"
"""Packet format of the networks with switches that forward by destination."""

MOST_QUEUES = 128
"""Most queue pairs of a connection of NCCL (``NCCL_IB_MAX_QPS``)."""


@dataclass(frozen=True, slots=True)
class PinnedPath:
    """Switches that flows to a NIC pass in order; `source` is their NIC, or empty for all NICs."""

    source: str
    destination: str
    via: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Choice among equal paths by the switches between nodes.

    Attributes
    ----------
    choice : str
        One path per flow: by a ``hash`` (ECMP), or by ``destination`` only (forwarding tables of a subnet
        manager). Per packet: ``spray`` (all in turn), ``adaptive`` (the emptiest queue), ``credit`` (the emptiest
        queue and next buffer), ``flowlet`` (the same after a pause of `gap_ps`), ``ugal`` (``adaptive``, or a detour),
        ``minimal`` (in dimension order: ``credit`` among all shortest paths, which need a further virtual channel).
        ``auto``: ``adaptive`` from NICs with `NicTraits.adaptive`; otherwise by destination over InfiniBand links, and
        by hash over others.
    gap_ps : int or None
        ``flowlet``: shortest pause of a flow before a new path [ps].
    fields : str
        Hashed fields: ``five-tuple``, ``addresses`` (without UDP ports), or ``queue-pair`` (five-tuple and
        destination queue pair: E-ECMP).
    seeds : str
        ``switch``: every switch has a different hash; ``equal``: all have the same (polarised).
    ports : str
        Port of a NIC with several: queue pairs use them in ``turn``, or by ``hash`` of the flow (a bond with
        LACP and ``xmit_hash_policy=layer3+4``).
    paths : tuple of PinnedPath
        Paths that replace the choice.
    queues : int
        Queue pairs of a connection of NCCL (``NCCL_IB_QPS_PER_CONNECTION``).
    split : bool
        True if the packets of a message alternate over the queue pairs, False if messages do
        (``NCCL_IB_SPLIT_DATA_ON_QPS``).
    """

    choice: PathChoice = "auto"
    gap_ps: int | None = None
    fields: Literal["five-tuple", "addresses", "queue-pair"] = "five-tuple"
    seeds: Literal["switch", "equal"] = "switch"
    ports: Literal["turn", "hash"] = "turn"
    paths: tuple[PinnedPath, ...] = ()
    queues: int = 1
    split: bool = False

    def hashes(self, form: str) -> bool:
        """Return True if switches with links of a packet format select the paths of flows by hash."""
        return self.choice == "hash" or (
            self.choice != "destination" and form != BY_DESTINATION
        )

    def routing(self, adaptive: bool) -> str:
        """Return the routing from NICs that are `adaptive` or not: ``ecmp`` for one path per flow, or the choice."""
        if self.choice == "auto":
            return "adaptive" if adaptive else "ecmp"
        return "ecmp" if self.choice in ONE_PATH else self.choice

    def words(self, form: str) -> str:
        """Describe the choice on links of a packet format."""
        text = "by destination (d-mod-k)"
        if self.choice not in ("auto", *ONE_PATH):
            text = f"per packet, {self.choice}"
            text += (
                "" if self.gap_ps is None else f" after {format_time(self.gap_ps)}"
            )
        elif self.hashes(form):
            text = f"ECMP by {self.fields}, {'equal seeds' if self.seeds == 'equal' else 'a seed per switch'}"
        text += ", bonded ports by hash" if self.ports == "hash" else ""
        if self.queues > 1:
            text += f", {self.queues} queue pairs{' (split)' if self.split else ''}"
        return text + (f", {len(self.paths)} pinned paths" if self.paths else "")


@dataclass(frozen=True, repr=False)
class Fabric(Shown):
    """Topology: graph nodes, links and policies; one of the two inputs of a simulation.

    Attributes
    ----------
    num_vcs : int
        Virtual channels per wire; requests use 0, responses `response_vc`.
    p2p : str
        Whether a point-to-point connection pushes (``write``) or the receiver pulls (``read``).
    cta_skew_ps : int
        Time from the start of one CTA of a kernel to that of the next [ps].
    window_bytes : int
        In-flight window: bytes a CTA may have requested and not yet received [bytes]; 0 is unlimited.
    channels : dict
        Default number of channels per algorithm, ``default`` for the others.
    ring_orders : tuple of tuple of int, or None
        Required rank orders of the rings of a topology without a full crossbar.
    p2p_level : str
        Furthest path on which GPUs access each other's memory (NCCL's P2P transport): ``loc`` never, ``nvl``
        NVLink, ``nvb`` NVLink through another GPU, ``pix`` and ``pxb`` below one or several PCIe switches,
        ``phb`` and ``sys`` through root complexes too. On longer paths host memory is used.
    gdr_level : str
        Furthest path on which NICs read and write GPU memory themselves, in the same words; a coherent link
        to the CPU counts as ``pxb``.
    gdr_read, pxn, nvb, shm : bool
        True if NICs read GPU memory to send (GPUDirect reads), if GPUs reach the NIC of another GPU over
        NVLink (PXN) and GPUs behind another one (NVB), and if ranks of a node exchange data through host
        memory (SHM).
    acs : bool
        True if PCIe switches send packets between their devices up through the root complex (Access Control
        Services), which NCCL does not see.
    nic_names : dict
        Device names of NICs, as NCCL reads them: NIC -> ``mlx5_3``, or ``mlx5_3:2`` for the second port.
    routing : str
        ``shortest`` (all shortest paths) or ``dimension-order`` (lowest `Link.dim` first); `network_routing`
        is the same for the switches between nodes.
    forwarding : Forwarding
        Choice among equal paths between nodes.
    told : dict
        NVLinks of GPUs as NCCL reads them, where they differ from the links: GPU -> GPU or ``switch`` ->
        links.
    told_pcie : dict
        Slots of GPUs and NICs as NCCL reads them, where they differ from the links: graph node ->
        ``gen4-x8``.
    network : dict
        Usual network of nodes of this kind, or the network of this cluster; keys of `NetworkSpec`.
    faults : tuple of str
        Faults in the syntax of ``--fault``.
    figures : dict
        Figures of an overlay: text of the replaced figure -> the `clusim.hardware.Figure` in its place.
    sources : dict
        Provenance: parameter -> source.
    source_text : str
        Text of its file, verbatim.
    source_files : tuple of str
        Files that were read for it, which are never overwritten.
    """

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    formats: Mapping[str, Format]
    num_vcs: int = 2
    p2p: Literal["read", "write"] = "write"
    window_bytes: int = 65_536
    cta_skew_ps: int = 0
    protocols: Mapping[str, Protocol] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=lambda: {"default": 1})
    ring_orders: tuple[tuple[int, ...], ...] | None = None
    p2p_level: P2pLevel = "pxb"
    gdr_level: GdrLevel = "pxb"
    gdr_read: bool = True
    pxn: bool = True
    nvb: bool = True
    shm: bool = True
    acs: bool = False
    nic_names: Mapping[str, str] = field(default_factory=dict)
    routing: Routing = "shortest"
    network_routing: Routing = "shortest"
    forwarding: Forwarding = Forwarding()
    told: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    told_pcie: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict, compare=False)
    description: str = ""
    faults: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    source_text: str = field(default="", compare=False)
    source_files: tuple[str, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        """Return a hash of the fields that are fast to hash."""
        return hash((self.name, len(self.nodes), len(self.links)))

    @cached_property
    def ranks(self) -> tuple[str, ...]:
        """Names of the endpoints that can have a rank, GPUs and hosts; rank i is the i-th."""
        return tuple(
            node.name for node in self.nodes if node.kind in ("gpu", "host")
        )

    @cached_property
    def num_zones(self) -> int:
        """Number of nodes that the topology joins."""
        return 1 + max((node.zone for node in self.nodes), default=0)

    @cached_property
    def num_ranks(self) -> int:
        """Largest number of ranks of a job."""
        return len(self.ranks)

    @cached_property
    def node_index(self) -> Mapping[str, int]:
        """Index of every node by name."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    def ends(self) -> Iterator[tuple[Node, Node, Link]]:
        """Yield both ends of all links: the graph node, the one at the other end, and the link."""
        for link in self.links:
            a, b = (
                self.nodes[self.node_index[link.a]],
                self.nodes[self.node_index[link.b]],
            )
            yield a, b, link
            yield b, a, link

    @cached_property
    def dropping(self) -> frozenset[str]:
        """Names of the switches with links that drop packets."""
        pairs = ((node, link) for node, _, link in self.ends())
        return frozenset(
            n.name for n, link in pairs if link.queue_bytes and n.kind == "switch"
        )

    @cached_property
    def response_vc(self) -> int:
        """VC of responses, above the dateline class of the requests."""
        return self.num_vcs // 2

    def num_channels(self, algorithm: str) -> int:
        """Return the default number of channels of an algorithm."""
        return self.channels.get(algorithm, self.channels.get("default", 1))

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Derived objects that are cached with the topology, by name; a changed copy starts empty."""
        return {}

    def summary(self) -> Summary:
        """Return a summary of its parts on one line."""
        machines = [f"{self.num_zones} nodes"] if self.num_zones > 1 else []
        links = f"{sum(link.count for link in self.links)} links"
        return Summary(
            self.name,
            (*machines, *counted_nodes(self.nodes), links),
            self.description,
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return its nodes and its links."""
        return {"nodes": self._node_columns, "links": self._link_columns}

    def _node_columns(self) -> Columns:
        chips = [node.endpoint.chip if node.endpoint else "" for node in self.nodes]
        kinds = [kind_of(node) for node in self.nodes]
        plain = columns_of(
            Node, self.nodes, ("kind", "endpoint", "unit", "nic", "host")
        )
        return {"name": plain["name"], "kind": kinds, "chip": chips, **plain}

    def _link_columns(self) -> Columns:
        rates = [link.rate.bytes_per_s for link in self.links]
        plain = columns_of(Link, self.links, ("rate", "dateline"))
        first = {name: plain[name] for name in ("a", "b", "count")}
        return {**first, "rate_Bps": rates, **plain}


_KEY = "doubt"


def key_of(number: int) -> str:
    """Return the key in `Fabric.sources` of the doubt with a number, from 0."""
    return f"{_KEY} {number + 1}" if number else _KEY


def doubts_of(fabric: Fabric) -> list[str]:
    """Return the doubts about a system, and the options that settle them."""
    keys = (
        name for name in fabric.sources if re.fullmatch(rf"{_KEY}(?: \d+)?", name)
    )
    return [f"an assumption decides: {fabric.sources[name]}" for name in keys]


def doubt_lines(doubts: Iterable[str]) -> list[str]:
    """Return the doubts as lines of output."""
    return [f"doubt: {line}" for line in doubts]


def refuse(doubts: Iterable[str], where: str) -> None:
    """Raise `InputError` if any doubt exists; `where` is its subject."""
    lines = [f"{where}: {line}" for line in doubts]
    if lines:
        raise InputError("\n".join(lines))
