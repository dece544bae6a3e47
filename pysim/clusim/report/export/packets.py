"""Packets of a Perfetto trace: tracks, names that are sent once, and slices and samples by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.report.export import protobuf as pb

Array = NDArray[Any]

PS_PER_NS = 1000

# Numbers of fields and values in Perfetto's definitions.
_PACKET, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 1, 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS_STATE = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EXPLICIT_ORDER = 3
_ROOT = 1

_HEAD = pb.number(_SEQUENCE, 1) + pb.number(_FLAGS, _NEEDS_STATE)
_TIMED = pb.varint(_TIMESTAMP << 3)
_DOUBLE = pb.varint(44 << 3 | 1)


@dataclass(slots=True)
class Counts:
    """What was written."""

    tracks: int = 0
    slices: int = 0
    arrows: int = 0
    samples: int = 0


class TrackEvent(NamedTuple):
    """What slices that differ in their times only have in common; `more` are further fields of their beginning."""

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
            head = pb.number(_SEQUENCE, 1) + pb.number(_FLAGS, _NEEDS_STATE | _CLEARED)
        self.started = True
        self.out.write(pb.field(_PACKET, head, *parts))

    def track(self, parent: int, name: str, order: int, counter: bytes | None = None) -> int:
        """Add a track below another and return its number."""
        self.counts.tracks += 1
        uuid = _ROOT + self.counts.tracks
        parts = [pb.number(1, uuid), pb.text(2, name), pb.number(11, _EXPLICIT_ORDER)]
        parts.append(pb.number(12, order))
        if parent:
            parts.append(pb.number(5, parent))
        if counter is not None:
            parts.append(pb.field(8, counter))
        self.packet(pb.field(_TRACK, *parts))
        return uuid

    def name(self, kind: int, name: str) -> int:
        """Return the number of a name of an event (2), a category (1) or an argument (3)."""
        number = self.names.get((kind, name))
        if number is None:
            number = self.names[kind, name] = len(self.names) + 1
            entry = pb.field(kind, pb.number(1, number), pb.text(2, name))
            self.packet(pb.field(_INTERNED, entry))
        return number

    def argument(self, name: str, value: int | str) -> bytes:
        """Return an argument of an event."""
        key = pb.number(1, self.name(3, name))
        shown = pb.text(6, value) if isinstance(value, str) else pb.number(4, value)
        return pb.field(4, key, shown)

    def slice(self, event: TrackEvent, start_ps: int, end_ps: int) -> None:
        """Add one slice from begin to end [ps]."""
        self.counts.slices += 1
        begin, instant, end = self._forms(event)
        low, high = (pb.number(_TIMESTAMP, time // PS_PER_NS) for time in (start_ps, end_ps))
        if start_ps == end_ps:
            self.packet(low, instant)
            return
        self.packet(low, begin)
        self.packet(high, end)

    def slices(
        self, events: Sequence[TrackEvent], which: Array, start_ps: Array, end_ps: Array
    ) -> None:
        """Add slices in this order: the event of each by its place in `events`, from begin to end [ps]."""
        if not len(which):
            return
        self.counts.slices += len(which)
        forms = np.array([form for event in events for form in self._forms(event)], object)
        instant = start_ps == end_ps
        parts = np.empty((len(which), 2, 3), object)
        for side, form, time_ps in (
            (0, 3 * which + instant, start_ps),
            (1, 3 * which + 2, end_ps),
        ):
            stamps = np.array(pb.varints(time_ps // PS_PER_NS), object)
            parts[:, side] = self._timed(stamps, forms[form])
        parts[instant, 1] = b""
        self.out.write(b"".join(parts.ravel().tolist()))

    def _forms(self, event: TrackEvent) -> tuple[bytes, bytes, bytes]:
        """Return an event as it begins, as it is without a length, and as it ends."""
        head = pb.number(11, event.track)
        named = pb.number(10, self.name(2, event.name)) + pb.number(3, self.name(1, event.category))
        begin, instant = (
            pb.field(_EVENT, pb.number(9, kind), head, named, event.more)
            for kind in (_BEGIN, _INSTANT)
        )
        return begin, instant, pb.field(_EVENT, pb.number(9, _END), head)

    def _timed(self, stamps: Array, bodies: Array) -> Array:
        """Return packets in three pieces, from the varints of their times and from what follows."""
        own = np.fromiter(map(len, stamps), np.int64, len(stamps))
        own += np.fromiter(map(len, bodies), np.int64, len(bodies))
        most = int(own.max())
        if most >= len(self._begins):
            sizes = range(len(_HEAD) + len(_TIMED), len(_HEAD) + len(_TIMED) + most + 1)
            key = pb.varint(_PACKET << 3 | 2)
            begins = [key + pb.varint(size) + _HEAD + _TIMED for size in sizes]
            self._begins = np.array(begins, object)
        return np.stack((self._begins[own], stamps, bodies), axis=1)

    def samples(self, track: int, edge_ps: Array, values: Array) -> None:
        """Add a counter's values from edge to edge [ps], leaving out those that are as the one before."""
        keep = np.append(True, values[1:] != values[:-1])
        times = np.append(edge_ps[:-1][keep], edge_ps[-1]) // PS_PER_NS
        head = pb.number(9, _COUNTER) + pb.number(11, track) + _DOUBLE
        event = pb.varint(_EVENT << 3 | 2) + pb.varint(len(head) + 8) + head
        bodies = [event + value for value in pb.reals(np.append(values[keep], 0.0))]
        stamps = np.array(pb.varints(times), object)
        parts = self._timed(stamps, np.array(bodies, object))
        self.out.write(b"".join(parts.ravel().tolist()))
        self.counts.samples += len(bodies)
