"""Policies of paths for tests: choices of the engine, and each value of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import clusim
from clusim.policies import OutputWire

PLACE = __file__
"""File of these policies."""


@clusim.policy
class InTurn:
    """Each wire in turn, over all flows of the switch."""

    last: int = -1

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Take the next."""
        self.last = (self.last + 1) % len(wires)
        return self.last


@clusim.policy
class ByKey:
    """The wire of a hash of the flow: the route key, as ECMP of one stage."""

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Divide the key."""
        return key % len(wires)


@clusim.policy
class Mixed:
    """Any wire, by state, key and all arguments."""

    mixed: int = 0
    counts: list[int] = [0] * 4

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Mix all values."""
        self.mixed = (self.mixed * 31 + now_ps + 3 * size_bytes + self.key + 7 * flow) & 0xFFFFFFFF
        self.mixed ^= (5 * key + draw + self.line_rate) & 0xFFFFFFFF
        for number in range(len(wires)):
            wire = wires[number]
            value = wire.queue_bytes + 3 * wire.credit_bytes + 7 * wire.rate + 11 * wire.wire
            self.mixed = (self.mixed * 17 + value) & 0xFFFFFFFF
        answer = (self.mixed >> 5) % len(wires)
        self.counts[answer % 4] += 1
        return answer


@clusim.policy
class Beyond:
    """A wire after the last, for the second packet."""

    count: int = 0

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Count the packets."""
        self.count += 1
        return len(wires) * (self.count > 1)


@clusim.policy
class Halved:
    """A division by zero for the second packet."""

    count: int = 0

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Divide by the packets left."""
        self.count += 1
        return 0 // (2 - self.count)


@clusim.policy
class Tell:
    """A wrong answer that tells a value of a packet: its number from 0, the argument or field from 0."""

    packet: Final = 0
    value: Final = 0
    count: int = 0

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Answer -1 minus the value."""
        self.count += 1
        if self.count <= self.packet:
            return 0
        values = (size_bytes, key, flow, draw, len(wires), wires[0].queue_bytes)
        more = (wires[1].queue_bytes, wires[0].credit_bytes, wires[0].rate, wires[1].wire)
        return -1 - (values[self.value] if self.value < 6 else more[self.value - 6])
