"""Choice of paths: PLB moves a flow, REPS sprays packets over paths without marks, adaptive switches compare queues.

**Hardware** NICs that choose the entropy (UDP source port) of each packet, by which switches hash paths; adaptive
routing of switches.

**Model** PLB (Qureshi et al., SIGCOMM 2022): a flow takes another path after rounds in which more than half of its
bytes were marked: after few if no packet is in flight, otherwise after more. REPS (Bonato et al., 2024, arXiv
2407.21625): the path of an acknowledged packet without mark is kept and used again, the oldest first; without one a
random path is drawn. Both have the window of DCTCP, also after losses. `path` is the entropy: it acts on flows that are
routed by ECMP. The shortest queue of a switch is the engine's rule (contract, section 6, load) as a policy.

**Not modelled** Timeouts, after which both draw other paths; the freezing of REPS after failures.

**Parameters** Constants of the classes, each *published* or *assumed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusim.policies.kinds import OutputWire
from clusim.policies.windows import Dctcp, count_marks

A, C = 1664525, 1013904223


class Plb(Dctcp):
    """PLB with the defaults of Linux (``sysctl_tcp_plb_*`` in net/ipv4/tcp_ipv4.c), all *published*."""

    congested_65536: Final = 32768
    rounds: Final = 12
    idle_rounds: Final = 3

    congested_rounds: int = 0
    drawn: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Count congested rounds in a row."""
        share = count_marks(self, size_bytes, marked)
        if share >= self.congested_65536:
            self.congested_rounds += 1
        elif share >= 0:
            self.congested_rounds = 0
        idle = self.in_flight == 0 and self.congested_rounds >= self.idle_rounds
        if idle or self.congested_rounds >= self.rounds:
            self.congested_rounds = 0
            self.drawn = draw(self.drawn, self.key)
            self.path = 1 + self.drawn


class Reps(Dctcp):
    """REPS; its buffer of 8 paths and the window of DCTCP are *assumed*."""

    drawn: int = 0
    first: int = 0
    count: int = 0
    paths: list[int] = [0] * 8

    def start(self, now_ps: int) -> None:
        """Draw the first path."""
        self.drawn = draw(0, self.key)
        self.path = 1 + self.drawn

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Take the oldest path that was kept, or draw one."""
        if self.count > 0:
            self.path = self.paths[self.first]
            self.first = (self.first + 1) % 8
            self.count -= 1
        else:
            self.drawn = draw(self.drawn, self.key)
            self.path = 1 + self.drawn

    def acked(  # type: ignore[override]
        self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int, path: int
    ) -> None:
        """Keep the path of a packet without mark; in place of the oldest one, if there is no room."""
        count_marks(self, size_bytes, marked)
        if marked:
            return
        self.paths[(self.first + self.count) % 8] = path
        if self.count < 8:
            self.count += 1
        else:
            self.first = (self.first + 1) % 8


def draw(last: int, key: int) -> int:
    """Return the next random number of 16 bits of a flow: entropy of a UDP source port."""
    mixed = ((last ^ key) * A + C) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 16)) & 0xFFFF


class Adaptive:
    """The wire of a switch with the shortest queue, or least bytes in queue and next buffer (`by_credit`)."""

    by_credit: Final = 0

    def choose(
        self,
        now_ps: int,
        size_bytes: int,
        key: int,
        flow: int,
        draw: int,
        wires: Sequence[OutputWire],
    ) -> int:
        """Compare the wires."""
        best = draw % len(wires)
        lowest = 2**62
        for step in range(len(wires)):
            number = (draw + step) % len(wires)
            load = (
                wires[number].queue_bytes
                - self.by_credit * wires[number].credit_bytes
            )
            if load < lowest:
                best = number
                lowest = load
        return best
