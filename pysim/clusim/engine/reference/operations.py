"""State of reduction units and of vertices of aggregation trees (section 6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusim.engine.reference.specs import (
    UnitSpec,
    VertexSpec,
)

if TYPE_CHECKING:
    from clusim.engine.reference.packets import Packet, Transfer

_NUMBERS = 2**32


@dataclass(slots=True)
class UnitOperation:
    """A reduction in progress: its request and the number of missing members' data."""

    request: Packet
    missing: int


@dataclass(slots=True)
class UnitState:
    """A reduction unit's state; `clock16` is in 2^-16 ps."""

    index: int
    spec: UnitSpec
    in_use_bytes: int = 0
    clock16: int = 0
    waiting: deque[Packet] = field(default_factory=deque)
    operations: dict[int, UnitOperation] = field(default_factory=dict)
    admitted: int = 0

    def reduce(self, now_ps: int, operand_bytes: int) -> int:
        """Add an operation on `operand_bytes` now; return the time of its result [ps]."""
        self.clock16 = (
            max(self.clock16, now_ps << 16) + operand_bytes * self.spec.cost16
        )
        return ((self.clock16 + 65535) >> 16) + self.spec.latency_ps

    def fits(self, p: int) -> bool:
        """True if a request for `p` bytes can be admitted; one always can if the unit is idle."""
        return (
            self.in_use_bytes == 0
            or self.in_use_bytes + p <= self.spec.capacity_bytes
        )


@dataclass(slots=True)
class Vertex:
    """A vertex's state.

    Attributes
    ----------
    next_number : int
        Of a member: the number of its next packet.
    transfer : Transfer or None
        Of a member: its present transfer.
    base : int
        Of a unit's vertex: operations finished.
    open : dict
        Of a unit's vertex: children admitted, per number.
    sizes : dict
        Of a unit's vertex: bytes of the first child's packet, per open number.
    waiting : list of Packet
        Of a unit's vertex: packets not admitted yet, in order of arrival.
    """

    index: int
    spec: VertexSpec
    next_number: int = 0
    transfer: Transfer | None = None
    base: int = 0
    open: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    waiting: list[Packet] = field(default_factory=list)

    def begin(self, transfer: Transfer) -> int:
        """Set the member's present transfer; return the number of its first packet."""
        first = self.next_number
        self.transfer = transfer
        self.next_number = (first + transfer.count) % _NUMBERS
        return first

    @property
    def busy(self) -> bool:
        """True if a member has a transfer that is not complete."""
        return self.transfer is not None and not self.transfer.complete

    def fits(self, number: int) -> bool:
        """True if a packet of this number can be admitted."""
        return (number - self.base) % _NUMBERS < self.spec.slots

    def finish(self) -> None:
        """Count an operation as finished."""
        self.base = (self.base + 1) % _NUMBERS
