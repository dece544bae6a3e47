"""Synthetic traffic: the patterns network engineers test a fabric with, without any collective.

Every endpoint is a source that sends messages to others. ``permutation``, ``alltoall`` and ``incast`` start
with everything due at time 0 and measure how long it takes; ``uniform`` and ``hotspot`` let messages arrive at
random (Poisson) for a duration at a given load and measure latency. The same seed makes the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from clusim.errors import InputError
from clusim.fabric import Fabric, FabricArrays
from clusim.image import Image, empty
from clusim.result import Messages
from clusim.units import format_size, format_time

__all__ = [
    "PATTERNS",
    "Pattern",
    "Plan",
    "Routing",
    "Traffic",
    "burst_packets",
    "capacity_Bps",
    "to_image",
]

Array = NDArray[Any]
Pattern = Literal["permutation", "uniform", "alltoall", "incast", "hotspot"]
Routing = Literal["auto", "ecmp", "spray", "adaptive"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

TIMED_PATTERNS: tuple[Pattern, ...] = ("uniform", "hotspot")
"""Patterns of messages that arrive over time; the others are all due at time 0."""

HOT_SHARE = 0.2
"""Part of all `hotspot` messages that goes to the one hot endpoint; the rest is uniform."""

MAX_MESSAGES = 20_000_000
"""More than this is refused: their times alone would take over a GB."""

MAX_MESSAGE_BYTES = 1 << 40
"""Largest message [bytes]."""

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages in the order of their sources; source number i has messages `first[i]` to `end[i]`."""

    messages: Messages
    first: Array
    end: Array


@dataclass(frozen=True, slots=True)
class Traffic:
    """A traffic pattern.

    Attributes
    ----------
    message_bytes, packet_bytes : int
        Size of a message and largest payload of a packet [bytes].
    load : float or None
        Timed patterns: offered part of what the fabric can carry of this pattern (`capacity_Bps`).
    duration_ps : int
        Timed patterns: how long messages arrive [ps].
    routing : str
        ``ecmp``: one path per message; ``spray``: packets take turns over all shortest paths; ``adaptive``: the
        emptiest queue; ``auto``: spray where endpoints have parallel links, else ecmp.
    """

    pattern: Pattern
    message_bytes: int
    packet_bytes: int
    load: float | None = None
    duration_ps: int = 10**9
    routing: Routing = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("message_bytes", "packet_bytes", "duration_ps"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name.split('_')[0]} {getattr(self, name)}: must be at least 1")
        if self.message_bytes > MAX_MESSAGE_BYTES:
            raise InputError(f"message {self.message_bytes}: too large; at most 1 TiB")
        if self.packet_bytes > 1 << 24:
            raise InputError(f"packet {self.packet_bytes}: too large; at most 16 MiB")
        if self.pattern not in PATTERNS:
            raise InputError(f"pattern {self.pattern!r}: unknown; one of {', '.join(PATTERNS)}")
        if self.routing not in get_args(Routing):
            routings = ", ".join(get_args(Routing))
            raise InputError(f"routing {self.routing!r}: unknown; one of {routings}")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed {self.seed}: must be at least 0 and below 2^64")
        if self.load is not None and self.pattern not in TIMED_PATTERNS:
            raise InputError(
                f"load {self.load}: {self.pattern} sends all at once; use uniform or hotspot"
            )
        if self.load is None and self.pattern in TIMED_PATTERNS:
            raise InputError(f"pattern {self.pattern}: needs a load, e.g. --load 0.6")
        if self.load is not None and not 0 < self.load <= 10:
            raise InputError(
                f"load {self.load}: must be above 0 and at most 10 (1 saturates the fabric)"
            )

    def plan(self, arrays: FabricArrays) -> Plan:
        """Draw the messages and deal them out to sources."""
        num = arrays.num_ranks
        if num < 2:
            raise InputError(f"{arrays.fabric.name}: has {num} endpoint; traffic needs at least 2")
        rng = np.random.default_rng(self.seed)
        lanes = 1
        if self.pattern in TIMED_PATTERNS:
            # A source has one message under way at a time; an endpoint with parallel links has one source
            # for each, or messages of one packet could not fill them.
            lanes = min(_first_hop_width(arrays), int(arrays.endpoints["cta_slots"].min()))
            source, destination, start_ps = self._timed(arrays, rng)
        else:
            source, destination = _all_at_once(self.pattern, num, rng)
            start_ps = np.zeros(len(source), np.int64)
        row = np.arange(len(source), dtype=np.int64) - np.searchsorted(source, source)
        lane = (source * np.int64(lanes) + row % lanes).astype(np.uint32)
        order = np.argsort(lane, kind="stable")
        messages = Messages(
            source[order].astype(np.uint32),
            destination[order].astype(np.uint32),
            np.full(len(source), self.message_bytes, np.int64),
            start_ps[order],
            np.full(len(source), -1, np.int64),
        )
        _, first, counts = np.unique(lane[order], return_index=True, return_counts=True)
        return Plan(messages, first, first + counts)

    def describe(self, arrays: FabricArrays) -> str:
        """Return the pattern in a few words."""
        text = f"{self.pattern}, {format_size(self.message_bytes)} messages"
        if self.load is not None:
            text += f" at load {self.load:g} for {format_time(self.duration_ps)}"
        routing = resolve_routing(arrays, self.routing)
        return f"{text}, {format_size(self.packet_bytes)} packets, {routing} routing"

    def _timed(self, arrays: FabricArrays, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Draw Poisson arrivals for each source: source, destination and start of every message."""
        num = arrays.num_ranks
        demand = _demand(self.pattern, num)
        rate_Bps = (self.load or 0.0) * capacity_Bps(arrays, demand, self.packet_bytes)
        gap_ps = self.message_bytes * PS_PER_S / rate_Bps
        mean = self.duration_ps / gap_ps
        if mean * num > MAX_MESSAGES:
            raise InputError(
                f"duration: would make {mean * num:.3g} messages, at most {MAX_MESSAGES}; shorten it"
            )
        counts = rng.poisson(mean, num)
        source = np.repeat(np.arange(num, dtype=np.uint32), counts)
        start = np.floor(rng.random(len(source)) * self.duration_ps).astype(np.int64)
        order = np.lexsort((start, source))
        cumulative = np.cumsum(demand, axis=1)
        draw = rng.random(len(source)) * cumulative[source, -1]
        destination = np.empty(len(source), np.uint32)
        for rank in range(num):
            mine = source == rank
            destination[mine] = np.searchsorted(cumulative[rank], draw[mine], side="right")
        return source, destination, start[order]


def _all_at_once(pattern: Pattern, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
    ranks = np.arange(num)
    if pattern == "permutation":
        # One random cycle through all endpoints: nobody sends to itself, everybody receives once.
        order = rng.permutation(num)
        destination = np.empty(num, np.int64)
        destination[order] = np.roll(order, -1)
        return ranks, destination
    if pattern == "incast":
        return ranks[1:], np.zeros(num - 1, np.int64)
    source = np.repeat(ranks, num - 1)
    return source, (source + np.tile(np.arange(1, num), num)) % num


def _demand(pattern: Pattern, num: int) -> Array:
    """Return the share of its messages each source (row) sends to each destination; rows add up to 1."""
    uniform = (1.0 - np.eye(num)) / (num - 1)
    if pattern != "hotspot":
        return uniform
    hot = np.zeros((num, num))
    hot[1:, 0] = 1.0
    hot[0] = uniform[0]
    return HOT_SHARE * hot + (1.0 - HOT_SHARE) * uniform


def capacity_Bps(arrays: FabricArrays, demand: Array, packet_bytes: int) -> float:
    """Return the payload every source can send at most before a wire is full [bytes/s].

    Traffic `demand` (shares per source and destination) is spread evenly over the shortest paths; the wire
    that fills up first sets the limit. Headers count; acknowledgements do not.
    """
    load = np.zeros(len(arrays.wires))
    for destination in range(arrays.num_ranks):
        load += _wire_load(arrays, demand[:, destination], destination)
    rate_Bps = arrays.wires["rate_num"] / arrays.wires["rate_den"] * PS_PER_S
    share = packet_bytes / wire_bytes(arrays, packet_bytes, 1)
    return float(np.min(rate_Bps[load > 0] * share[load > 0] / load[load > 0]))


def _wire_load(arrays: FabricArrays, sent: Array, destination: int) -> Array:
    """Return what each wire carries if every rank sends `sent` to one destination."""
    load = np.zeros(len(arrays.wires))
    target = arrays.node_of(destination)
    endpoint = int(arrays.rank_endpoint[destination])
    through = np.zeros(len(arrays.nodes))
    nodes = np.array([arrays.node_of(rank) for rank in range(arrays.num_ranks)])
    np.add.at(through, nodes, sent)
    groups = [arrays.group(node, endpoint) for node in range(len(arrays.nodes))]
    waiting_on = np.zeros(len(arrays.nodes), np.int64)
    for group in groups:
        np.add.at(waiting_on, np.unique(arrays.wires["dst"][group]), 1)
    ready = [node for node in range(len(arrays.nodes)) if waiting_on[node] == 0]
    while ready:
        node = ready.pop()
        group = groups[node]
        if node == target or not group:
            continue
        share = through[node] / len(group)
        load[group] += share
        np.add.at(through, arrays.wires["dst"][group], share)
        for after in np.unique(arrays.wires["dst"][group]):
            waiting_on[after] -= 1
            if waiting_on[after] == 0:
                ready.append(int(after))
    return load


def wire_bytes(arrays: FabricArrays, packet_bytes: int, burst: int) -> Array:
    """Return the bytes a full burst takes on each wire, headers and padding included."""
    formats = arrays.formats[arrays.wires["format"]]
    flit = formats["flit_bytes"].astype(np.int64)
    one = packet_bytes + formats["header_bytes"][:, 0].astype(np.int64)
    return np.asarray(burst * (-(-one // flit) * flit))


def resolve_routing(arrays: FabricArrays, routing: Routing) -> Routing:
    """Return what ``auto`` means on this fabric."""
    if routing != "auto":
        return routing
    return "spray" if _first_hop_width(arrays) > 1 else "ecmp"


def _first_hop_width(arrays: FabricArrays) -> int:
    """Return the most wires any endpoint has to choose from for its first hop."""
    rows = arrays.routes.reshape(len(arrays.nodes), -1)[arrays.endpoints["node"]]
    groups = rows[rows < len(arrays.group_off) - 1]
    return int(np.diff(arrays.group_off.astype(np.int64))[groups].max(initial=1))


def burst_packets(traffic: Traffic, granularity: str | int) -> int:
    """Return how many packets travel as one; ``auto`` keeps a burst within 1/64 of a message."""
    whole = -(-traffic.message_bytes // traffic.packet_bytes)
    if granularity == "packet":
        return 1
    if granularity == "auto":
        return max(1, min(whole // 64, 64))
    if not isinstance(granularity, int) or granularity < 1:
        raise InputError(
            f"granularity {granularity!r}: must be packet, auto or a size of at least 1"
        )
    return max(1, min(granularity // traffic.packet_bytes, whole))


_POLICY = {"spray": 0, "ecmp": 1, "adaptive": 2}


def _flow_keys(messages: Messages, seed: int) -> Array:
    """Return a well mixed 32-bit key for each message's source, destination and number."""
    x = messages.source.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= messages.destination.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    x += np.arange(len(x), dtype=np.uint64) * np.uint64(0x165667B19E3779F9) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return np.asarray(x >> np.uint64(32), np.uint32)


def to_image(fabric: Fabric, traffic: Traffic, plan: Plan, burst: int = 1) -> Image:
    """Return the image of `plan` on `fabric`, `burst` packets travelling as one."""
    arrays, messages = fabric.lower(), plan.messages
    wires = arrays.wires.copy()
    whole = np.minimum(burst, -(-traffic.message_bytes // traffic.packet_bytes))
    least = 3 * wire_bytes(arrays, traffic.packet_bytes, int(whole))
    wires["buffer_bytes"] = np.maximum(wires["buffer_bytes"], least.astype(np.uint64))
    sources = empty("sources", len(plan.first))
    sources["endpoint"] = arrays.rank_endpoint[messages.source[plan.first]]
    sources["msg_lo"] = plan.first
    sources["msg_hi"] = plan.end
    sources["packet_bytes"] = traffic.packet_bytes
    sources["burst"] = burst
    sources["policy"] = _POLICY[resolve_routing(arrays, traffic.routing)]
    table = empty("messages", len(messages.source))
    table["start_ps"] = messages.start_ps
    table["bytes"] = messages.size_bytes
    table["dst"] = arrays.rank_endpoint[messages.destination]
    table["key"] = _flow_keys(messages, traffic.seed)
    return Image(
        nvc=fabric.num_vcs,
        seed=traffic.seed,
        nodes=arrays.nodes,
        endpoints=arrays.endpoints,
        formats=arrays.formats,
        wires=wires,
        routes=arrays.routes,
        group_off=arrays.group_off,
        group_wires=arrays.group_wires,
        units=arrays.units,
        sources=sources,
        messages=table,
    )
