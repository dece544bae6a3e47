"""Congestion control that htsim calls ``dctcp``, for `benchmarks/htsim.py`.

It is not DCTCP: the window shrinks with each marked packet, without an estimate of the marked share.
"""

from __future__ import annotations

from typing import Final

import clusim
from clusim.policies import SenderFlow


@clusim.policy
class PerMark(SenderFlow):
    """A window that grows by a packet per round trip, and shrinks by a third of the payload of a marked packet."""

    first_bytes: Final = 262_926
    packet_bytes: Final = 4160

    def start(self, now_ps: int) -> None:
        """Begin with the largest window, 1.5 bandwidth-delay products."""
        self.window = self.first_bytes

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Grow or shrink."""
        if marked:
            self.window = max(self.packet_bytes, self.window - size_bytes // 3)
        else:
            self.window = min(
                self.first_bytes,
                self.window + size_bytes * self.packet_bytes // self.window,
            )
