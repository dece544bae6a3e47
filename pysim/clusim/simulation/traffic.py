"""Synthetic traffic: patterns of network benchmarks, without any collective.

Every endpoint is a source that sends messages to others. ``permutation``, ``alltoall`` and ``incast`` start
with every message due at time 0 and measure the completion time; with ``uniform`` and ``hotspot`` messages arrive at
random (Poisson) for a duration at a given load, and the latency is measured. Equal seeds generate equal messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.base.units import format_size, format_time
from clusim.engine.abi import NONE, Kind, Policy
from clusim.engine.image import Image, empty
from clusim.engine.ranges import packets_refused
from clusim.lowering import Grain
from clusim.lowering.buffers import Packets, burst_bytes, growth, roomy_wires
from clusim.lowering.forwarding import flow_hash
from clusim.lowering.grain import automatic, checked, power_below
from clusim.lowering.paths import route_groups
from clusim.results.result import Messages
from clusim.topology import Fabric, FabricArrays
from clusim.topology.arrays import arrays_of

Array = NDArray[Any]
Pattern = Literal["permutation", "uniform", "alltoall", "incast", "hotspot"]
Routing = Literal["auto", "ecmp", "spray", "adaptive"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

TIMED_PATTERNS: tuple[Pattern, ...] = ("uniform", "hotspot")
"""Timed patterns; the others have all messages due at time 0."""

HOT_SHARE = 0.2
"""Share of all `hotspot` messages sent to the one hot endpoint; the rest is uniform."""

MAX_MESSAGES = 20_000_000
"""Maximum number of messages: the times of more would need over 1 GB."""

MAX_MESSAGE_BYTES = 1 << 40
"""Largest message [bytes]."""

MESSAGE_SHARE = 64
"""``auto`` limits a burst to this fraction of a message."""

PATHS = 256
"""Maximum sample of messages for the estimate of packet-hops."""

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Messages in the order of their sources.

    Source number i has messages `first[i]` to `end[i]`.
    """

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
        Timed patterns: offered load as a fraction of the fabric's capacity for this pattern (`capacity_Bps`).
    duration_ps : int
        Timed patterns: period in which messages arrive [ps].
    routing : str
        ``ecmp``: one path per message; ``spray``: packets alternate over all shortest paths; ``adaptive``: the
        emptiest queue; ``auto``: spray where endpoints have parallel links, otherwise ecmp.
    """

    pattern: Pattern
    message_bytes: int
    packet_bytes: int
    load: float | None = None
    duration_ps: int = 10**9
    routing: Routing = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Normalise the spelling of words, and reject invalid values."""
        for name in ("pattern", "routing"):
            object.__setattr__(self, name, getattr(self, name).strip().lower())
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

    def plan(self, arrays: FabricArrays) -> TrafficPlan:
        """Draw the messages and assign them to traffic sources."""
        num = arrays.num_ranks
        if num < 2:
            raise InputError(f"{arrays.fabric.name}: has {num} endpoint; traffic needs at least 2")
        rng = np.random.default_rng(self.seed)
        if self.pattern in TIMED_PATTERNS:
            source, destination, start_ps = self._timed(arrays, rng)
        else:
            source, destination = _all_at_once(self.pattern, num, rng)
            start_ps = np.zeros(len(source), np.int64)
        turned = self.pattern not in TIMED_PATTERNS
        lane, turn = _lanes(arrays, source, destination, turned=turned)
        order = np.lexsort((turn, lane))
        messages = Messages(
            source[order].astype(np.uint32),
            destination[order].astype(np.uint32),
            np.full(len(source), self.message_bytes, np.int64),
            start_ps[order],
            np.full(len(source), -1, np.int64),
        )
        _, first, counts = np.unique(lane[order], return_index=True, return_counts=True)
        return TrafficPlan(messages, first, first + counts)

    def describe(self, arrays: FabricArrays) -> str:
        """Return a short text of the pattern."""
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


def _lanes(
    arrays: FabricArrays, source: Array, destination: Array, *, turned: bool
) -> tuple[Array, Array]:
    """Return the traffic source of every message, and its turn there; `source` is ascending.

    A traffic source has one message in flight at a time. An endpoint has one source for each wire by which it reaches a
    destination: otherwise the links of a mesh would wait for each other, and messages of one packet could not fill
    parallel links. Messages that leave over the same wires keep their order; with `turned` each endpoint begins at a
    different message, so that they do not all send to the same destination.
    """
    node = arrays.endpoints["node"][arrays.rank_endpoint[source]]
    group = route_groups(arrays, node, arrays.rank_endpoint[destination])
    ways, first, way, counts = np.unique(
        source.astype(np.int64) << 32 | group,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    pairs = np.stack((source, destination), axis=1)[first].tolist()
    width = np.array([len(arrays.first_wires(*pair)) for pair in pairs], np.int64)
    before = np.cumsum(width) - width
    begin = before - before[np.searchsorted(ways >> 32, ways >> 32)]
    turn = np.empty(len(way), np.int64)
    turn[np.argsort(way, kind="stable")] = np.arange(len(way)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    if turned:
        turn = (turn - source) % counts[way]
    slots = int(arrays.endpoints["cta_slots"].min())
    lanes = source.astype(np.int64) * slots + (begin[way] + turn % width[way]) % slots
    return lanes, turn


def _all_at_once(pattern: Pattern, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
    ranks = np.arange(num)
    if pattern == "permutation":
        # One random cycle through all endpoints: each receives once, from another endpoint.
        order = rng.permutation(num)
        destination = np.empty(num, np.int64)
        destination[order] = np.roll(order, -1)
        return ranks, destination
    if pattern == "incast":
        return ranks[1:], np.zeros(num - 1, np.int64)
    source = np.repeat(ranks, num - 1)
    others = np.tile(np.arange(num - 1), num)
    return source, others + (others >= source)


def _demand(pattern: Pattern, num: int) -> Array:
    """Return the share of messages from each source (row) to each destination; rows sum to 1."""
    uniform = (1.0 - np.eye(num)) / (num - 1)
    if pattern != "hotspot":
        return uniform
    hot = np.zeros((num, num))
    hot[1:, 0] = 1.0
    hot[0] = uniform[0]
    return HOT_SHARE * hot + (1.0 - HOT_SHARE) * uniform


def capacity_Bps(arrays: FabricArrays, demand: Array, packet_bytes: int) -> float:
    """Return the maximum payload rate per source, limited by the first full wire [bytes/s].

    Traffic `demand` (shares per source and destination) is spread evenly over the shortest paths; the wire
    that fills up first sets the limit. Headers count; acknowledgements do not.
    """
    load = np.zeros(len(arrays.wires))
    for destination in range(arrays.num_ranks):
        load += _wire_load(arrays, demand[:, destination], destination)
    rate_Bps = arrays.wires["rate_num"] / arrays.wires["rate_den"] * PS_PER_S
    share = packet_bytes / wire_bytes(arrays, packet_bytes)
    return float(np.min(rate_Bps[load > 0] * share[load > 0] / load[load > 0]))


def _wire_load(arrays: FabricArrays, sent: Array, destination: int) -> Array:
    """Return the traffic of each wire if every rank sends `sent` to one destination.

    Paths cross NICs where necessary.
    """
    amounts: dict[int, dict[int, float]] = {}
    for rank in np.flatnonzero(sent).tolist():
        if rank != destination:
            goals = (
                *(arrays.vias(rank, destination) or ()),
                int(arrays.rank_endpoint[destination]),
            )
            node = arrays.node_of(rank)
            for goal in goals:
                by_node = amounts.setdefault(goal, {})
                by_node[node] = by_node.get(node, 0.0) + float(sent[rank])
                node = int(arrays.targets["node"][goal])
    load = np.zeros(len(arrays.wires))
    for goal, by_node in amounts.items():
        _spread(arrays, by_node, goal, load)
    return load


def _spread(arrays: FabricArrays, sent: dict[int, float], goal: int, load: Array) -> None:
    """Add to `load` the traffic per wire if graph nodes send `sent` to a target.

    The traffic is spread evenly over the shortest paths.
    """
    end = int(arrays.targets["node"][goal])
    groups: dict[int, list[int]] = {end: []}
    waiting_on: dict[int, int] = {}
    ahead: dict[int, list[int]] = {end: []}
    result = [node for node in sent if node != end]
    while result:
        node = result.pop()
        if node not in groups:
            groups[node] = arrays.group(node, goal)
            ahead[node] = np.unique(arrays.wires["dst"][groups[node]]).tolist()
            for after in ahead[node]:
                waiting_on[after] = waiting_on.get(after, 0) + 1
            result += ahead[node]
    through = {node: sent.get(node, 0.0) for node in groups}
    ready = [node for node in groups if not waiting_on.get(node, 0)]
    while ready:
        node = ready.pop()
        for wire in groups[node]:
            share = through[node] / len(groups[node])
            load[wire] += share
            through[int(arrays.wires["dst"][wire])] += share
        for after in ahead[node]:
            waiting_on[after] -= 1
            if not waiting_on[after]:
                ready.append(after)


def wire_bytes(arrays: FabricArrays, packet_bytes: int) -> Array:
    """Return the bytes of a full packet on each wire, headers and padding included.

    On wires that segment packets (PCIe): the sum of all segments, for the larger of writes and NIC reads.
    """
    kinds = (Kind.WRITE, Kind.FETCH)
    sizes = [burst_bytes(form, packet_bytes, kinds=kinds) for form in arrays.formats]
    return np.asarray(np.array(sizes)[arrays.wires["format"]])


def resolve_routing(arrays: FabricArrays, routing: Routing) -> Routing:
    """Return the routing that ``auto`` selects on this topology."""
    if routing != "auto":
        return routing
    widths = np.diff(arrays.group_off.astype(np.int64))[arrays.first_groups()]
    return "spray" if widths.max(initial=1) > 1 else "ecmp"


def grain_of(
    arrays: FabricArrays, traffic: Traffic, messages: Messages, granularity: str | int
) -> Grain:
    """Return the granularity of messages.

    ``auto`` and ``quick`` limit a burst to 1/64 of a message.
    """
    whole = -(-traffic.message_bytes // traffic.packet_bytes)
    hops = round(whole * len(messages.source) * _mean_hops(arrays, messages))
    burst, word = 1, checked(granularity)
    if isinstance(word, int):
        burst = max(1, min(word // traffic.packet_bytes, whole))
    elif word != "packet":
        burst = automatic(
            [hops], lambda factor: [power_below(whole * factor // MESSAGE_SHARE)], word
        )[0]
    size = min(burst * traffic.packet_bytes, traffic.message_bytes)
    grown = growth(_wires(arrays, traffic, burst), _wires(arrays, traffic, 1))
    return Grain(
        *(str(granularity), burst, (size, size), hops, -(-hops // burst)), buffer_growth=grown
    )


def _wires(arrays: FabricArrays, traffic: Traffic, burst: int) -> Array:
    """Return the wires with buffers for bursts of `burst` packets."""
    every = frozenset(range(len(arrays.formats)))
    return roomy_wires(arrays, arrays.wires.copy(), [Packets(traffic.packet_bytes, burst, every)])


def _mean_hops(arrays: FabricArrays, messages: Messages) -> float:
    """Return the mean number of wires that a message crosses, over an even sample of all."""
    count = len(messages.source)
    if not count:
        return 0.0
    shown = np.unique(np.linspace(0, count - 1, min(count, PATHS)).round().astype(np.int64))
    pairs = np.stack((messages.source[shown], messages.destination[shown]), axis=1)
    return float(np.mean([len(arrays.path(a, b)) for a, b in pairs.tolist()]))


_POLICY = {"spray": Policy.STRIPE, "ecmp": Policy.PINNED, "adaptive": Policy.ADAPTIVE}


def _vias(arrays: FabricArrays, messages: Messages) -> Array:
    """Return the NICs that every message crosses, [messages, 2]; NONE inside a node."""
    result = np.full((len(messages.source), 2), NONE, np.uint32)
    if not len(arrays.nic_targets):
        return result
    pairs = np.stack((messages.source, messages.destination), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    vias = [arrays.vias(a, b) or (NONE, NONE) for a, b in distinct.tolist()]
    result[:] = np.array(vias, np.uint32).reshape(-1, 2)[inverse.ravel()]
    return result


def to_image(fabric: Fabric, traffic: Traffic, plan: TrafficPlan, burst: int = 1) -> Image:
    """Return the image of `plan` on `fabric`, in bursts of `burst` packets."""
    arrays, messages = arrays_of(fabric), plan.messages
    why = packets_refused(traffic.message_bytes, traffic.packet_bytes * burst)
    if why:
        raise InputError(f"message {format_size(traffic.message_bytes)}: {why}")
    wires = _wires(arrays, traffic, burst)
    sources = empty("sources", len(plan.first))
    sources["endpoint"] = arrays.rank_endpoint[messages.source[plan.first]]
    sources["msg_lo"] = plan.first
    sources["msg_hi"] = plan.end
    sources["packet_bytes"] = traffic.packet_bytes
    sources["burst"] = burst
    sources["policy"] = _POLICY[resolve_routing(arrays, traffic.routing)]
    sources["control"] = NONE
    table = empty("messages", len(messages.source))
    table["start_ps"] = messages.start_ps
    table["bytes"] = messages.size_bytes
    table["dst"] = arrays.rank_endpoint[messages.destination]
    numbers = np.arange(len(messages.source))
    table["key"] = flow_hash(messages.source, messages.destination, numbers, traffic.seed)
    vias = _vias(arrays, messages)
    table["via_first"], table["via_last"] = vias[:, 0], vias[:, 1]
    return Image(
        nvc=fabric.num_vcs,
        seed=traffic.seed,
        nodes=arrays.nodes,
        endpoints=arrays.endpoints,
        formats=arrays.formats,
        wires=wires,
        targets=arrays.targets,
        routes=arrays.routes,
        group_off=arrays.group_off,
        group_wires=arrays.group_wires,
        units=arrays.units,
        sources=sources,
        messages=table,
    )
