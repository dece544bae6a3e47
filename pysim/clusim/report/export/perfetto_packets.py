"""Packets of a Perfetto trace, encoded as protobuf.

Packets contain tracks, names that are sent once, and slices and samples by columns. In the protobuf encoding
(https://protobuf.dev/programming-guides/encoding) a message is a row of fields, each a key and a value. Field numbers
are those of Perfetto's ``trace_packet.proto``, ``track_event.proto`` and ``track_descriptor.proto``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np

from clusim.base.arrays import Array

_SMALL = [bytes([value]) for value in range(128)]


def pb_varint(value: int) -> bytes:
    """Return a number of any size, seven bits per byte, low bits first.

    Negative numbers are encoded in 64 bits.
    """
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def pb_varints(values: Array) -> list[bytes]:
    """Return the `varint` encoding of every number of an array without negative numbers."""
    remaining_bits = values.astype(np.uint64)
    result = np.zeros((len(remaining_bits), 10), np.uint8)
    for place in range(10):
        result[:, place] = (remaining_bits & np.uint64(127)) | (
            np.uint64(128) * (remaining_bits > 127)
        )
        remaining_bits >>= np.uint64(7)
        if not remaining_bits.any():
            break
    # NumPy strips trailing zero bytes of texts, and only the varint of 0 ends with one.
    return [text or _SMALL[0] for text in result.view("S10").ravel().tolist()]


def pb_reals(values: Array) -> list[bytes]:
    """Return numbers of an array as fields of type double have them, without their keys."""
    raw = values.astype("<f8").tobytes()
    return [raw[place : place + 8] for place in range(0, len(raw), 8)]


def pb_number(key: int, value: int) -> bytes:
    """Return an integer, boolean or enumeration field."""
    return pb_varint(key << 3) + pb_varint(value)


def pb_fixed64(key: int, value: int) -> bytes:
    """Return a field of eight bytes."""
    return pb_varint(key << 3 | 1) + value.to_bytes(8, "little")


def pb_field(key: int, *parts: bytes) -> bytes:
    """Return a message or string field."""
    body = b"".join(parts)
    return pb_varint(key << 3 | 2) + pb_varint(len(body)) + body


def pb_text(key: int, value: str) -> bytes:
    """Return a string field."""
    return pb_field(key, value.encode())


PS_PER_NS = 1000

# Numbers of fields and values in Perfetto's definitions.
_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = (
    1,
    8,
    10,
    11,
    12,
    13,
    60,
)
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT_ORDER = 3
_ROOT = 1

_HEAD = pb_number(_SEQUENCE, 1) + pb_number(_FLAGS, _NEEDS_STATE)
_TIMED = pb_varint(_TIMESTAMP << 3)
_DOUBLE = pb_varint(44 << 3 | 1)


@dataclass(slots=True)
class Counts:
    """Numbers of exported objects."""

    tracks: int = 0
    slices: int = 0
    arrows: int = 0
    samples: int = 0


class TrackEvent(NamedTuple):
    """Common part of slices that differ only in their times; `more` are further fields of their beginning."""

    track: int
    name: str
    category: str
    more: bytes


@dataclass(slots=True)
class PacketWriter:
    """Writes packets of one sequence; names are sent once and then called by number."""

    out: BinaryIO
    counts: Counts = field(default_factory=Counts)
    names: dict[tuple[int, str], int] = field(default_factory=dict)
    started: bool = False
    _begins: Array = field(default_factory=lambda: np.zeros(0, object))

    def packet(self, *parts: bytes) -> None:
        """Add a packet without a time."""
        head = _HEAD
        if not self.started:
            head = pb_number(_SEQUENCE, 1) + pb_number(
                _FLAGS, _NEEDS_STATE | _CLEARED
            )
        self.started = True
        self.out.write(pb_field(_PACKET, head, *parts))

    def track(
        self, parent: int, name: str, order: int, counter: bytes | None = None
    ) -> int:
        """Add a track below another and return its number."""
        self.counts.tracks += 1
        uuid = _ROOT + self.counts.tracks
        parts = [
            pb_number(1, uuid),
            pb_text(2, name),
            pb_number(11, _EXPLICIT_ORDER),
        ]
        parts.append(pb_number(12, order))
        if parent:
            parts.append(pb_number(5, parent))
        if counter is not None:
            parts.append(pb_field(8, counter))
        self.packet(pb_field(_TRACK, *parts))
        return uuid

    def name(self, kind: int, name: str) -> int:
        """Return the number of a name of an event (2), a category (1) or an argument (3)."""
        number = self.names.get((kind, name))
        if number is None:
            number = self.names[kind, name] = len(self.names) + 1
            entry = pb_field(kind, pb_number(1, number), pb_text(2, name))
            self.packet(pb_field(_INTERNED, entry))
        return number

    def argument(self, name: str, value: int | str) -> bytes:
        """Return an argument of an event."""
        key = pb_number(1, self.name(3, name))
        encoded_value = (
            pb_text(6, value) if isinstance(value, str) else pb_number(4, value)
        )
        return pb_field(4, key, encoded_value)

    def slice(self, event: TrackEvent, start_ps: int, end_ps: int) -> None:
        """Add one slice from begin to end [ps]."""
        self.counts.slices += 1
        begin, instant, end = self._forms(event)
        low, high = (
            pb_number(_TIMESTAMP, time // PS_PER_NS) for time in (start_ps, end_ps)
        )
        if start_ps == end_ps:
            self.packet(low, instant)
            return
        self.packet(low, begin)
        self.packet(high, end)

    def slices(
        self,
        events: Sequence[TrackEvent],
        which: Array,
        start_ps: Array,
        end_ps: Array,
    ) -> None:
        """Add slices in order: the event as an index of `events`, and begin and end [ps]."""
        if not len(which):
            return
        self.counts.slices += len(which)
        forms = np.array(
            [form for event in events for form in self._forms(event)], object
        )
        instant = start_ps == end_ps
        parts = np.empty((len(which), 2, 3), object)
        for side, form, time_ps in (
            (0, 3 * which + instant, start_ps),
            (1, 3 * which + 2, end_ps),
        ):
            stamps = np.array(pb_varints(time_ps // PS_PER_NS), object)
            parts[:, side] = self._packet_parts(stamps, forms[form])
        parts[instant, 1] = b""
        self.out.write(b"".join(parts.ravel().tolist()))

    def _forms(self, event: TrackEvent) -> tuple[bytes, bytes, bytes]:
        """Return an event in three forms: its start, without duration, and its end."""
        head = pb_number(11, event.track)
        named = pb_number(10, self.name(2, event.name)) + pb_number(
            3, self.name(1, event.category)
        )
        begin, instant = (
            pb_field(_EVENT, pb_number(9, kind), head, named, event.more)
            for kind in (_BEGIN, _INSTANT)
        )
        return begin, instant, pb_field(_EVENT, pb_number(9, _END), head)

    def _packet_parts(self, stamps: Array, bodies: Array) -> Array:
        """Return packets in three parts, from the varints of their times and the bodies."""
        lengths = np.fromiter(map(len, stamps), np.int64, len(stamps))
        lengths += np.fromiter(map(len, bodies), np.int64, len(bodies))
        largest_bytes = int(lengths.max())
        if largest_bytes >= len(self._begins):
            sizes = range(
                len(_HEAD) + len(_TIMED),
                len(_HEAD) + len(_TIMED) + largest_bytes + 1,
            )
            key = pb_varint(_PACKET << 3 | 2)
            begins = [key + pb_varint(size) + _HEAD + _TIMED for size in sizes]
            self._begins = np.array(begins, object)
        return np.stack((self._begins[lengths], stamps, bodies), axis=1)

    def samples(self, track: int, edge_ps: Array, values: Array) -> None:
        """Add a counter's values from edge to edge [ps], without repeated values."""
        keep = np.append(True, values[1:] != values[:-1])
        times = np.append(edge_ps[:-1][keep], edge_ps[-1]) // PS_PER_NS
        head = pb_number(9, _COUNTER) + pb_number(11, track) + _DOUBLE
        event = pb_varint(_EVENT << 3 | 2) + pb_varint(len(head) + 8) + head
        bodies = [event + value for value in pb_reals(np.append(values[keep], 0.0))]
        stamps = np.array(pb_varints(times), object)
        parts = self._packet_parts(stamps, np.array(bodies, object))
        self.out.write(b"".join(parts.ravel().tolist()))
        self.counts.samples += len(bodies)
