"""State of a reduction unit (section 6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from clusim.engine.reference.packets import Packet
from clusim.engine.reference.specs import UnitSpec


@dataclass(slots=True)
class UnitOperation:
    """A reduction under way: its request and how many members' data are missing."""

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
        """Put an operation on `operand_bytes` into the unit now; return the time of its result [ps]."""
        self.clock16 = max(self.clock16, now_ps << 16) + operand_bytes * self.spec.cost16
        return ((self.clock16 + 65535) >> 16) + self.spec.latency_ps

    def fits(self, p: int) -> bool:
        """Say whether a request for `p` bytes can be admitted; one always can if nothing is in use."""
        return self.in_use_bytes == 0 or self.in_use_bytes + p <= self.spec.capacity_bytes
