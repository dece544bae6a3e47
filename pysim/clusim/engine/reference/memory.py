"""Memory of an endpoint: a clock that says when bytes are accepted (section 8)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MemoryState:
    """The memory server of one endpoint.

    Attributes
    ----------
    cost16 : int
        Present cost of communication, in 2^-16 ps per byte.
    clock16 : int
        Time until which it is taken, in 2^-16 ps.
    bytes_256 : int
        All traffic so far, in 1/256 byte.
    """

    cost16: int
    clock16: int = 0
    bytes_256: int = 0

    def accept_ps(self, size_256: int, now_ps: int) -> int:
        """Charge `size_256` (1/256 byte) at `now_ps`; return when the memory accepts it [ps]."""
        accepted16 = max(self.clock16, now_ps << 16)
        self.clock16 = accepted16 + ((size_256 * self.cost16) >> 8)
        self.bytes_256 += size_256
        return (accepted16 + 65535) >> 16
