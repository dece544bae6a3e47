"""State of a vertex of an aggregation tree (section 6, aggregation)."""

from __future__ import annotations

from dataclasses import dataclass, field

from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.specs import VertexSpec

_NUMBERS = 2**32


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
        """Make a transfer the member's present one; return the number of its first packet."""
        first = self.next_number
        self.transfer = transfer
        self.next_number = (first + transfer.count) % _NUMBERS
        return first

    @property
    def busy(self) -> bool:
        """True if a member has a transfer that is not complete."""
        return self.transfer is not None and not self.transfer.complete

    def fits(self, number: int) -> bool:
        """Say whether a packet of this number can be admitted."""
        return (number - self.base) % _NUMBERS < self.spec.slots

    def finish(self) -> None:
        """Count an operation as finished."""
        self.base = (self.base + 1) % _NUMBERS
