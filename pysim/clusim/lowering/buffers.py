"""Buffers, reduction units and thresholds that hold the packets of a run, which may be bursts.

Buffers grow with bursts, so that flows do not block each other as packets never do (`clusim.lowering.links`). Where
reads with a window share wires with writes, as data staged in host memory do, buffers may not grow: requests
queue behind writes, a larger buffer is a longer queue, and a window is moved once per round trip. There bursts are
limited to what the buffers hold often enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.engine.abi import NONE, ConnKind
from clusim.lowering.hops import Leg
from clusim.lowering.links import BURSTS_PER_BUFFER, least_buffer
from clusim.topology.arrays import FabricArrays

MARK_BURSTS = 4
"""Least number of bursts, of more than one packet each, at which a queue may mark."""

Array = NDArray[Any]


class Packets(NamedTuple):
    """Packets of connections: payload limit [bytes], packets per burst, formats of the wires on their paths."""

    packet_bytes: int
    burst: int
    forms: frozenset[int]


def _wire_bytes(form: Any, packet_bytes: int, burst: int) -> int:
    """Return the most a burst takes on a wire of a format, cut at the format's limits [bytes]."""
    flit, payload = int(form["flit_bytes"]), packet_bytes * burst
    most = 0
    for header, limit in zip(
        form["header_bytes"].tolist(), form["limit_bytes"].tolist(), strict=True
    ):
        piece = min(packet_bytes, limit)
        full, rest = divmod(payload, piece)
        size = full * -(-(header + piece) // flit) * flit
        most = max(most, size + (-(-(header + rest) // flit) * flit if rest else 0))
    return most


def largest_bursts(
    arrays: FabricArrays, legs: Sequence[Leg], window_bytes: int, share: int = BURSTS_PER_BUFFER
) -> list[int | None]:
    """Return the most packets per burst of every leg, a power of two, so that slices have no rest; None is no limit.

    On wires of a format that reads with a window and writes share, `share` bursts fit into the buffer.
    """
    reading: set[int] = set()
    writing: set[int] = set()
    for leg in legs:
        if window_bytes and (leg.kind == ConnKind.READ or leg.stage != NONE):
            reading |= leg.forms
        if leg.kind == ConnKind.WRITE:
            writing |= leg.forms
    room: dict[int, int] = {}
    for index in reading & writing:
        own = arrays.wires[(arrays.wires["format"] == index) & (arrays.wires["xoff_bytes"] == 0)]
        if len(own):
            room[index] = int(own["buffer_bytes"].min())
    known: dict[tuple[int, frozenset[int]], int | None] = {}
    for leg in legs:
        key = leg.packet_bytes, leg.forms
        if key not in known:
            fits = [
                room[index] // (share * _wire_bytes(arrays.formats[index], leg.packet_bytes, 1))
                for index in leg.forms & room.keys()
            ]
            known[key] = 1 << (max(1, min(fits)).bit_length() - 1) if fits else None
    return [known[leg.packet_bytes, leg.forms] for leg in legs]


def roomy_wires(arrays: FabricArrays, wires: Array, packets: Sequence[Packets]) -> Array:
    """Return `wires` with receive buffers, and thresholds to pause and to mark, that suit the largest bursts.

    A buffer that pauses keeps the room above its threshold at least as large as before; thresholds grow with it. What
    errors would hit one packet hits a burst as often as its packets together.
    """
    for index, form in enumerate(arrays.formats):
        crossing = [item for item in packets if index in item.forms]
        sizes = [
            (item.burst, _wire_bytes(form, item.packet_bytes, item.burst)) for item in crossing
        ]
        least = max((least_buffer(burst, size) for burst, size in sizes), default=0)
        coarse = max((size for burst, size in sizes if burst > 1), default=0)
        own = wires["format"] == index
        _hit_bursts(wires, own, max((item.burst for item in crossing), default=1))
        pausing = own & (wires["xoff_bytes"] > 0)
        plain = own & ~pausing
        wires["buffer_bytes"][plain] = np.maximum(wires["buffer_bytes"][plain], np.uint64(least))
        _grow_pausing(wires, np.flatnonzero(pausing), least, coarse)
        if coarse:
            marking = np.flatnonzero(own & (wires["ecn_max_bytes"] > 0))
            low = wires["ecn_min_bytes"][marking]
            grown = np.maximum(low, np.uint64(MARK_BURSTS * coarse)) - low
            wires["ecn_min_bytes"][marking] += grown
            wires["ecn_max_bytes"][marking] += grown
    return wires


def growth(wires: Array, before: Array) -> float:
    """Return by how much the receive buffer of a wire is larger than before, at most; 1 is not at all."""
    return float((wires["buffer_bytes"] / np.maximum(1, before["buffer_bytes"])).max(initial=1.0))


def _hit_bursts(wires: Array, own: Array, burst: int) -> None:
    """Raise the probability of an error from that of a packet to that of a burst."""
    rows = np.flatnonzero(own & (wires["error_threshold"] > 0))
    if burst > 1 and len(rows):
        single = wires["error_threshold"][rows] / 2**32
        hit = -np.expm1(burst * np.log1p(-single))
        wires["error_threshold"][rows] = np.minimum(np.round(hit * 2**32), 2**32 - 1)


def _grow_pausing(wires: Array, rows: Array, least: int, coarse: int) -> None:
    """Raise the thresholds of buffers that pause to the room for bursts, and add the headroom that bursts need."""
    if not len(rows) or not least:
        return
    xoff = wires["xoff_bytes"][rows]
    grown = np.maximum(xoff, np.uint64(least)) - xoff
    wires["xoff_bytes"][rows] += grown
    wires["xon_bytes"][rows] += grown
    wires["buffer_bytes"][rows] += grown + np.uint64(3 * coarse)


def roomy_units(arrays: FabricArrays, packets: Iterable[Packets]) -> Array:
    """Return the reduction units with capacity for enough of the largest bursts."""
    units = arrays.units.copy()
    rooms = (least_buffer(item.burst, item.packet_bytes * item.burst) for item in packets)
    units["capacity_bytes"] = np.maximum(units["capacity_bytes"], np.uint64(max(rooms, default=0)))
    return units
