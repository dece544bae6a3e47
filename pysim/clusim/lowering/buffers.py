"""Buffers, reduction units and thresholds sized for the packets or bursts of a run.

Buffers grow with bursts, so that flows do not block each other in ways that packets never do. Where reads with
a window share wires with writes, as for data staged in host memory, buffers may not grow: requests queue after
writes, a larger buffer is a longer queue, and a window is moved once per round trip. There, the size of bursts
is limited so that a minimum number of bursts fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import KINDS, NONE, ConnKind
from clusim.lowering.grain import FACTORS, MOST_GROWTH, power_below
from clusim.lowering.hops import Leg
from clusim.topology.arrays import FabricArrays

PACKETS_PER_BUFFER = 3
"""Least number of exact packets that receive buffers and reduction units hold."""

BURSTS_PER_BUFFER = 32
"""Least number of bursts, of several packets each, in receive buffers and reduction units.

With three, flows that share a switch block each other, unlike exact packets, and lose up to a quarter of
their rate (8 GPUs with 4 switches, ring of 256 MiB, bursts of 16 KiB); from 16 on that effect is gone.
"""

SHARED_BURSTS = BURSTS_PER_BUFFER // FACTORS[-1]
"""Least number of bursts in buffers that reads with a window share with writes.

Larger buffers lengthen the round trips of reads: 32 MiB on 4 `rtx3090x8-edr56` with ``quick`` lasted 20.7 ms in buffers
of 2.4 times their size, 15.4 ms in unchanged buffers, and 15.1 ms with ``auto``.
"""

MARK_BURSTS = 4
"""Least number of bursts, of more than one packet each, at which a queue may mark."""


def least_buffer(
    burst: int, burst_bytes: int, fitting: int = BURSTS_PER_BUFFER
) -> int:
    """Return the smallest buffer for `fitting` bursts of `burst` packets and `burst_bytes` each [bytes]."""
    return burst_bytes * (fitting if burst > 1 else PACKETS_PER_BUFFER)


class Packets(NamedTuple):
    """Packets of connections: payload limit [bytes], packets per burst, wire formats."""

    packet_bytes: int
    burst: int
    forms: frozenset[int]


def burst_bytes(
    form: Any, packet_bytes: int, burst: int = 1, kinds: Sequence[int] = range(KINDS)
) -> int:
    """Return the largest size of a burst on a wire over `kinds` of packets, cut at the format's limits [bytes]."""
    flit, payload = int(form["flit_bytes"]), packet_bytes * burst
    largest = 0
    for kind in kinds:
        header, piece = (
            int(form["header_bytes"][kind]),
            int(form["limit_bytes"][kind]),
        )
        piece = min(packet_bytes, piece)
        full, remainder = divmod(payload, piece)
        size = full * -(-(header + piece) // flit) * flit
        largest = max(
            largest,
            size + (-(-(header + remainder) // flit) * flit if remainder else 0),
        )
    return largest


def shared_formats(arrays: FabricArrays, legs: Iterable[Leg]) -> frozenset[int]:
    """Return the formats of wires that reads with a window share with writes."""
    reading: set[int] = set()
    writing: set[int] = set()
    for leg in legs:
        if arrays.fabric.window_bytes and (
            leg.kind == ConnKind.READ or leg.stage != NONE
        ):
            reading |= leg.forms
        if leg.kind == ConnKind.WRITE:
            writing |= leg.forms
    return frozenset(reading & writing)


def largest_bursts(
    arrays: FabricArrays, legs: Sequence[Leg], share: int = BURSTS_PER_BUFFER
) -> list[int | None]:
    """Return the most packets per burst of every leg, a power of two; None is no limit.

    Powers of two divide slices without a remainder. On wires of a format that is shared by reads with a window and by
    writes, `share` bursts fit into the buffer.
    """
    room: dict[int, int] = {}
    for index in shared_formats(arrays, legs):
        of_format = arrays.wires[
            (arrays.wires["format"] == index) & (arrays.wires["xoff_bytes"] == 0)
        ]
        if len(of_format):
            room[index] = int(of_format["buffer_bytes"].min())
    sizes: dict[tuple[int, frozenset[int]], int | None] = {}
    for leg in legs:
        key = leg.packet_bytes, leg.forms
        if key not in sizes:
            fits = [
                room[index]
                // (share * burst_bytes(arrays.formats[index], leg.packet_bytes, 1))
                for index in leg.forms & room.keys()
            ]
            sizes[key] = 1 << (max(1, min(fits)).bit_length() - 1) if fits else None
    return [sizes[leg.packet_bytes, leg.forms] for leg in legs]


MOST_PAIRS = 4
"""Pairs of ranks whose messages an endpoint sends over NICs up to which they do not block each other.

Rings and pipelines have fewer.
"""


def crowded_senders(legs: Iterable[tuple[Leg, tuple[int, int]]]) -> frozenset[int]:
    """Return the endpoints that send messages of more than `MOST_PAIRS` pairs of ranks over NICs.

    `legs` have the ranks of their connection.
    """
    pairs: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for leg, ranks in legs:
        if leg.via_first != NONE:
            pairs[leg.src].add(ranks)
    return frozenset(
        src for src, receivers in pairs.items() if len(receivers) > MOST_PAIRS
    )


def unblocked_bursts(
    arrays: FabricArrays, legs: Sequence[Leg], senders: frozenset[int]
) -> list[int | None]:
    """Return the most packets per burst of every leg, a power of two; None is no limit.

    Thresholds to pause and to mark grow with bursts by at most `MOST_GROWTH`: queues that pause a wire in exact packets
    would otherwise not reach them. So do buffers of legs of these `senders` between NICs: messages of a GPU to many
    others share its PCIe link and block each other in its receive buffers. All-to-all of 64 MiB over 2 `aws-p5` in
    buffers 38 times as large is 27% too short.
    """
    limits: dict[tuple[int, frozenset[int], bool], int | None] = {}
    result = []
    for leg in legs:
        key = (
            leg.packet_bytes,
            leg.forms,
            leg.src in senders and leg.via_first != NONE,
        )
        if key not in limits:
            limits[key] = unblocked_burst(
                arrays, leg.forms, leg.packet_bytes, buffers=key[2]
            )
        result.append(limits[key])
    return result


def unblocked_burst(
    arrays: FabricArrays,
    forms: Iterable[int],
    packet_bytes: int,
    *,
    buffers: bool = False,
) -> int | None:
    """Return the most packets per burst by the least thresholds, and buffers, of the wires of formats."""
    burst_limits = []
    names = (
        "xoff_bytes",
        "ecn_min_bytes",
        "queue_bytes",
        *(("buffer_bytes",) if buffers else ()),
    )
    for index in forms:
        wires = arrays.wires[arrays.wires["format"] == index]
        single = burst_bytes(arrays.formats[index], packet_bytes)
        for name in names:
            exact, bursts = PACKETS_PER_BUFFER, BURSTS_PER_BUFFER
            if name == "ecn_min_bytes":
                exact, bursts = 1, MARK_BURSTS
            sizes = wires[name][wires[name] > 0]
            if len(sizes):
                grown = int(MOST_GROWTH * max(int(sizes.min()), exact * single))
                burst_limits.append(power_below(grown // (bursts * single)))
    return min(burst_limits, default=None)


def roomy_wires(
    arrays: FabricArrays,
    wires: Array,
    packets: Sequence[Packets],
    shared: frozenset[int] = frozenset(),
) -> Array:
    """Return `wires` with receive buffers, pause and mark thresholds for the largest bursts.

    Buffers of the formats `shared` (`shared_formats`) hold the few bursts for which their size is limited.
    A buffer that pauses keeps at least its headroom above the threshold; thresholds grow with the buffer.
    Errors hit a burst with the joint probability of its packets.
    """
    for index, form in enumerate(arrays.formats):
        crossing = [item for item in packets if index in item.forms]
        sizes = [
            (item.burst, burst_bytes(form, item.packet_bytes, item.burst))
            for item in crossing
        ]
        fitting = SHARED_BURSTS if index in shared else BURSTS_PER_BUFFER
        min_buffer = max(
            (least_buffer(burst, size, fitting) for burst, size in sizes), default=0
        )
        coarse = max((size for burst, size in sizes if burst > 1), default=0)
        of_format = wires["format"] == index
        _hit_bursts(
            wires, of_format, max((item.burst for item in crossing), default=1)
        )
        pausing = of_format & (wires["xoff_bytes"] > 0)
        plain = of_format & ~pausing
        wires["buffer_bytes"][plain] = np.maximum(
            wires["buffer_bytes"][plain], np.uint64(min_buffer)
        )
        _grow_pausing(wires, np.flatnonzero(pausing), min_buffer, coarse)
        if coarse:
            dropping = np.flatnonzero(of_format & (wires["queue_bytes"] > 0))
            min_slots = np.uint64(BURSTS_PER_BUFFER * coarse)
            wires["queue_bytes"][dropping] = np.maximum(
                wires["queue_bytes"][dropping], min_slots
            )
            marking = np.flatnonzero(of_format & (wires["ecn_max_bytes"] > 0))
            low = wires["ecn_min_bytes"][marking]
            grown = np.maximum(low, np.uint64(MARK_BURSTS * coarse)) - low
            wires["ecn_min_bytes"][marking] += grown
            wires["ecn_max_bytes"][marking] += grown
    return wires


def growth(wires: Array, before: Array) -> float:
    """Return the largest growth factor of a receive buffer of `wires`, at least 1."""
    return float(
        (wires["buffer_bytes"] / np.maximum(1, before["buffer_bytes"])).max(
            initial=1.0
        )
    )


def _hit_bursts(wires: Array, chosen: Array, burst: int) -> None:
    """Raise error probabilities per packet to probabilities per burst."""
    rows = np.flatnonzero(chosen & (wires["error_threshold"] > 0))
    if burst > 1 and len(rows):
        single = wires["error_threshold"][rows] / 2**32
        hit = -np.expm1(burst * np.log1p(-single))
        wires["error_threshold"][rows] = np.minimum(np.round(hit * 2**32), 2**32 - 1)


def _grow_pausing(wires: Array, rows: Array, min_buffer: int, coarse: int) -> None:
    """Raise pause thresholds to the size for bursts, and add headroom for bursts."""
    if not len(rows) or not min_buffer:
        return
    xoff = wires["xoff_bytes"][rows]
    grown = np.maximum(xoff, np.uint64(min_buffer)) - xoff
    wires["xoff_bytes"][rows] += grown
    wires["xon_bytes"][rows] += grown
    wires["buffer_bytes"][rows] += grown + np.uint64(3 * coarse)


def roomy_units(arrays: FabricArrays, packets: Iterable[Packets]) -> Array:
    """Return the reduction units with capacity for enough of the largest bursts."""
    units = arrays.units.copy()
    rooms = (
        least_buffer(item.burst, item.packet_bytes * item.burst) for item in packets
    )
    units["capacity_bytes"] = np.maximum(
        units["capacity_bytes"], np.uint64(max(rooms, default=0))
    )
    return units
