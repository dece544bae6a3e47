"""Synthetic traffic: patterns of network benchmarks, without any collective.

Every endpoint is a source that sends messages to others. ``permutation``, ``alltoall`` and ``incast`` start
with every message due at time 0 and measure the completion time; with ``uniform`` and ``hotspot`` messages arrive at
random (Poisson) for a duration at a given load, and the latency is measured. Equal seeds generate equal messages.

The patterns of interconnection networks (Dally and Towles, "Principles and Practices of Interconnection Networks",
section 3.2) by endpoint number i of n: ``tornado`` sends to i + ceil(n/2) - 1, ``bit-complement`` to n - 1 - i,
``transpose`` from row and column of a square to column and row, ``stride`` to i + `span` (modulo n);
``group-alltoall`` is an all-to-all in groups of `span`. Endpoints that would send to themselves are silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Any, Literal, Self, get_args

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.units import format_size, format_time
from clusim.engine.abi import NONE
from clusim.lowering.paths import route_groups
from clusim.lowering.spreads import Routing, check_routing
from clusim.results.result import Messages
from clusim.simulation.capacity import capacity_Bps
from clusim.simulation.flows import Flow, check_slots, flow_messages
from clusim.simulation.sources import describe_routing
from clusim.topology import FabricArrays

Pattern = Literal[
    "permutation",
    "uniform",
    "alltoall",
    "incast",
    "hotspot",
    "tornado",
    "transpose",
    "bit-complement",
    "stride",
    "group-alltoall",
    "flows",
]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)

SPANNED: tuple[Pattern, ...] = ("stride", "group-alltoall")
"""Patterns with a span."""

TIMED_PATTERNS: tuple[Pattern, ...] = ("uniform", "hotspot")
"""Timed patterns; the others have all messages due at time 0."""

HOT_SHARE = 0.2
"""Share of all `hotspot` messages sent to the one hot endpoint; the rest is uniform."""

MAX_MESSAGES = 20_000_000
"""Maximum number of messages: the times of more would need over 1 GB."""

MAX_MESSAGE_BYTES = 1 << 40
"""Largest message [bytes]."""

PS_PER_S = 10**12

_WAY = (1 << 33) - 1


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """Messages in the order of their sources.

    Source number i has messages `first[i]` to `end[i]`. The paths of messages depend on their `labels`; None is the
    numbers of their flows.
    """

    messages: Messages
    first: Array
    end: Array
    labels: Array | None = None


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
        ``ecmp``: one path per message; ``spray``: packets alternate over all shortest paths; ``adaptive``:
        the emptiest queue; ``credit``: the fewest bytes queued here and in the next buffer; ``flowlet``: the
        same after a pause of `gap_ps`; ``ugal``: ``adaptive``, or a detour; ``auto``: the routing of
        collectives, which is the topology's choice between nodes, and spray inside; between hosts without a
        choice spray where they have parallel links, otherwise ecmp.
    gap_ps : int or None
        ``flowlet``: shortest pause of a source before a new path [ps].
    reorder : int or str or None
        Receivers accept packets of a message in order, and keep early packets up to this size [bytes]; ``any``
        accepts any order, None is the `NicTraits.reorder_bytes` of the receiving NIC.
    span : int or None
        ``stride``: distance to the receiver; ``group-alltoall``: endpoints of a group.
    flows : tuple of Flow
        Flows of the pattern ``flows``; `message_bytes` is then the size of their largest message (`flow_messages`).
    """

    pattern: Pattern
    message_bytes: int
    packet_bytes: int
    load: float | None = None
    duration_ps: int = 10**9
    routing: Routing = "auto"
    seed: int = 0
    span: int | None = None
    flows: tuple[Flow, ...] = ()
    gap_ps: int | None = None
    reorder: int | Literal["any"] | None = None

    @classmethod
    def of_flows(
        cls, flows: Iterable[Flow], packet_bytes: int, **options: Any
    ) -> Self:
        """Return the traffic of given flows; options are further attributes."""
        listed = tuple(flows)
        max_bytes = max((flow.size_bytes for flow in listed), default=0)
        largest = flow_messages(
            [Flow(0, 1, max_bytes)], max(1, packet_bytes)
        ).size_bytes.max(initial=1)
        return cls("flows", int(largest), packet_bytes, flows=listed, **options)

    def __post_init__(self) -> None:
        """Normalise the spelling of words, and reject invalid values."""
        for name in ("pattern", "routing"):
            object.__setattr__(self, name, getattr(self, name).strip().lower())
        for name in ("message_bytes", "packet_bytes", "duration_ps"):
            if getattr(self, name) <= 0:
                raise InputError(
                    f"{name.split('_')[0]} {getattr(self, name)}: must be at least 1"
                )
        if self.message_bytes > MAX_MESSAGE_BYTES:
            raise InputError(
                f"message {self.message_bytes}: too large; at most 1 TiB"
            )
        if self.packet_bytes > 1 << 24:
            raise InputError(
                f"packet {self.packet_bytes}: too large; at most 16 MiB"
            )
        if self.pattern not in PATTERNS:
            raise InputError(
                f"pattern {self.pattern!r}: unknown; one of {', '.join(PATTERNS)}"
            )
        check_routing(self.routing, self.gap_ps)
        if (
            isinstance(self.reorder, int)
            and not 0 <= self.reorder <= MAX_MESSAGE_BYTES
        ):
            raise InputError(f"reorder buffer {self.reorder}: must be 0 to 1 TiB")
        if bool(self.flows) != (self.pattern == "flows"):
            raise InputError(
                f"pattern {self.pattern}: flows are given by a table (--flows)"
            )
        if (self.span is not None) != (self.pattern in SPANNED):
            word = "needs" if self.span is None else "is without"
            raise InputError(f"pattern {self.pattern}: {word} a span (--span)")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed {self.seed}: must be at least 0 and below 2^64")
        if self.load is not None and self.pattern not in TIMED_PATTERNS:
            raise InputError(
                f"load {self.load}: {self.pattern} sends all at once; use uniform or hotspot"
            )
        if self.load is None and self.pattern in TIMED_PATTERNS:
            raise InputError(
                f"pattern {self.pattern}: needs a load, e.g. --load 0.6"
            )
        if self.load is not None and not 0 < self.load <= 10:
            raise InputError(
                f"load {self.load}: must be above 0 and at most 10 (1 saturates the fabric)"
            )

    def plan(self, arrays: FabricArrays) -> TrafficPlan:
        """Draw the messages and assign them to traffic sources."""
        num = arrays.num_ranks
        if num < 2:
            raise InputError(
                f"{arrays.fabric.name}: has {num} endpoint; traffic needs at least 2"
            )
        if self.flows:
            check_slots(arrays, self.flows)
            messages = flow_messages(self.flows, self.packet_bytes)
            off = np.searchsorted(messages.flow, np.arange(len(self.flows) + 1))
            return TrafficPlan(messages, off[:-1], off[1:])
        rng = np.random.default_rng(self.seed)
        if self.pattern in TIMED_PATTERNS:
            source, destination, start_ps = self._draw_arrivals(arrays, rng)
        else:
            source, destination = _all_at_once(self, num, rng)
            if not len(source):
                raise InputError(
                    f"pattern {self.pattern}: none of {num} endpoints would send"
                )
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
            np.arange(len(source)),
        )
        _, first, counts = np.unique(
            lane[order], return_index=True, return_counts=True
        )
        return TrafficPlan(messages, first, first + counts)

    def describe(self, arrays: FabricArrays) -> str:
        """Return a short text of the pattern."""
        if self.flows:
            total = sum(flow.size_bytes for flow in self.flows)
            text = f"{len(self.flows)} flows of {format_size(total)} in all"
        else:
            span = "" if self.span is None else f" by {self.span}"
            text = (
                f"{self.pattern}{span}, {format_size(self.message_bytes)} messages"
            )
        if self.load is not None:
            text += f" at load {self.load:g} for {format_time(self.duration_ps)}"
        words = f"{self.routing} routing"
        gap_ps = self.gap_ps
        if self.routing == "auto":
            words, gap_ps = describe_routing(arrays), arrays.fabric.forwarding.gap_ps
        text += f", {format_size(self.packet_bytes)} packets, {words}"
        if gap_ps is not None:
            text += f" after {format_time(gap_ps)}"
        if not isinstance(self.reorder, int):
            return text
        buffer_text = format_size(self.reorder) if self.reorder else "without buffer"
        return f"{text}, receivers in order ({buffer_text})"

    def _draw_arrivals(
        self, arrays: FabricArrays, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """Draw Poisson arrivals for each source: source, destination and start of every message."""
        num = arrays.num_ranks
        demand = _demand(self.pattern, num)
        rate_Bps = (self.load or 0.0) * capacity_Bps(
            arrays, demand, self.packet_bytes
        )
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
            destination[mine] = np.searchsorted(
                cumulative[rank], draw[mine], side="right"
            )
        return source, destination, start[order]


def _lanes(
    arrays: FabricArrays, source: Array, destination: Array, *, turned: bool
) -> tuple[Array, Array]:
    """Return the traffic source of every message, and its turn there; `source` is ascending.

    A traffic source has one message in flight at a time. Messages at random times have a source for each wire by which
    their endpoint reaches their destination: otherwise the links of a mesh would wait for each other, and messages of
    one packet could not fill parallel links. Messages that leave over the same wires keep their order. With `turned`
    messages due at once each have a source, up to the slots of the endpoint, so that their packets alternate like the
    queue pairs of a NIC; each endpoint begins with a different message, so that they do
    not all send to the same destination.
    """
    end = arrays.endpoints["node"][arrays.rank_endpoint[source]]
    group = route_groups(arrays, end, arrays.rank_endpoint[destination]).astype(
        np.int64
    )
    if not turned:  # over NICs each pair is a queue pair, with a rate of its own
        group = np.where(group == NONE, NONE + destination.astype(np.int64), group)
    lane_ends, first, pair_of, counts = np.unique(
        source.astype(np.int64) << 33 | group,
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    width = counts
    if not turned:
        pairs = np.stack((source, destination), axis=1)[first].tolist()
        width = np.array(
            [len(arrays.first_wires(*pair)) for pair in pairs], np.int64
        )
    before = np.cumsum(width) - width
    begin = before - before[np.searchsorted(lane_ends >> 33, lane_ends >> 33)]
    turn = np.empty(len(pair_of), np.int64)
    turn[np.argsort(pair_of, kind="stable")] = np.arange(len(pair_of)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    if turned:
        turn = (turn - source) % counts[pair_of]
    slots = int(arrays.endpoints["cta_slots"].min())
    inside = np.bincount(
        (lane_ends >> 33).astype(np.int64),
        np.where(lane_ends & _WAY < NONE, width, 0),
        arrays.num_ranks,
    ).astype(np.int64)
    return source.astype(np.int64) * slots + _slots_taken(
        begin[pair_of] + turn % width[pair_of], inside[source], slots
    ), turn


def _slots_taken(place: Array, inside: Array, slots: int) -> Array:
    """Return the slot of each place of an endpoint: past the last, NICs share the slots not used inside."""
    position = np.where(inside < slots, inside, 0)
    return np.where(
        place < slots, place, position + (place - position) % (slots - position)
    )


def _all_at_once(
    traffic: Traffic, num: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    pattern, ranks = traffic.pattern, np.arange(num)
    if pattern == "permutation":
        # One random cycle through all endpoints: each receives once, from another endpoint.
        order = rng.permutation(num)
        destination = np.empty(num, np.int64)
        destination[order] = np.roll(order, -1)
        return ranks, destination
    if pattern == "incast":
        return ranks[1:], np.zeros(num - 1, np.int64)
    if pattern in ("alltoall", "group-alltoall"):
        size = num if traffic.span is None else traffic.span
        if size < 2 or num % size:
            raise InputError(f"span {size}: {num} endpoints are not divisible by it")
        source = np.repeat(ranks, size - 1)
        peers = np.tile(np.arange(size - 1), num)
        return source, source // size * size + peers + (peers >= source % size)
    destination = _receivers(traffic, num)
    sends = destination != ranks
    return ranks[sends], destination[sends]


def _receivers(traffic: Traffic, num: int) -> Array:
    """Return the receiver of every endpoint; an endpoint itself if it is silent."""
    ranks = np.arange(num)
    if traffic.pattern == "tornado":
        return (ranks + -(-num // 2) - 1) % num
    if traffic.pattern == "bit-complement":
        return num - 1 - ranks
    if traffic.pattern == "transpose":
        side = isqrt(num)
        if side * side != num:
            raise InputError(f"transpose: {num} endpoints are no square")
        return ranks.reshape(side, side).T.ravel()
    span = traffic.span or 0
    if not 0 < span < num:
        raise InputError(f"span {span}: must be 1 to {num - 1} for {num} endpoints")
    return (ranks + span) % num


def _demand(pattern: Pattern, num: int) -> Array:
    """Return the share of messages from each source (row) to each destination; rows sum to 1."""
    uniform = (1.0 - np.eye(num)) / (num - 1)
    if pattern != "hotspot":
        return uniform
    hot = np.zeros((num, num))
    hot[1:, 0] = 1.0
    hot[0] = uniform[0]
    return HOT_SHARE * hot + (1.0 - HOT_SHARE) * uniform
