"""HPCC: a window by the telemetry of the switches, which keeps links just below full use and their queues empty.

**Hardware** Congestion control in NICs with in-band telemetry of the switches' outputs.

**Model** HPCC (Li et al., SIGCOMM 2019), algorithm 1: of each hop, bytes sent since the last packet and the smaller
of the two queues are its bytes in flight, as a share of rate times base round trip. The largest of the hops,
averaged over a round trip, divides the window; below the target the window grows by a step. A reference window, set
once per round trip, ensures that no packet is counted twice. The rate is the window per round trip. Flows start at
the rate of the NIC.

**Not modelled** Bytes of telemetry in packets, which the authors' simulator adds too. The base round trip is the least
one of the flow, where theirs is a constant of the network.

**Parameters** Constants of the class, *published* or *assumed*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusim.policies.kinds import SwitchHop
from clusim.policies.sender import SenderFlow

ONE = 65536
MOST_USE = 64 * ONE


class Hpcc(SenderFlow):
    """HPCC with fast reaction to each acknowledgement; shares are in 1/65536.

    *published* in the authors' simulator (alibaba-edu/High-Precision-Congestion-Control, ``run.py``): `target_65536`
    (eta, 95%) and `step_65536` (20 Mb/s on 50 Gb/s); *assumed*: `most_steps` (5).
    """

    target_65536: Final = 62259
    most_steps: Final = 5
    step_65536: Final = 26

    base_ps: int = 2**62
    use: int = ONE
    reference: int = 0
    steps: int = 0
    acked_bytes: int = 0
    round_bytes: int = 0
    last_wire: list[int] = [-1] * 8
    last_ps: list[int] = [0] * 8
    last_queue: list[int] = [0] * 8
    last_sent: list[int] = [0] * 8

    def acked(
        self,
        now_ps: int,
        size_bytes: int,
        rtt_ps: int,
        marked: int,
        hops: Sequence[SwitchHop],
    ) -> None:
        """Measure the use of the hops, and set window and rate by the reference window."""
        if self.base_ps == 2**62:
            self.reference = product(self.line_rate, rtt_ps)
        self.base_ps = min(self.base_ps, rtt_ps)
        self.acked_bytes += size_bytes
        if not measure(self, hops):
            return
        most = product(self.line_rate, self.base_ps)
        least = min(most, product(self.min_rate, self.base_ps))
        window = self.reference
        if self.use >= self.target_65536 or self.steps >= self.most_steps:
            window = window * self.target_65536 // max(1, self.use)
        window = max(least, min(most, window + ((most * self.step_65536) >> 16)))
        if self.acked_bytes > self.round_bytes:
            again = self.use >= self.target_65536 or self.steps >= self.most_steps
            self.steps = 0 if again else self.steps + 1
            self.reference = window
            self.round_bytes = self.acked_bytes + self.in_flight
        self.window = window
        rate = (window << 20) // max(1, self.base_ps >> 10)
        self.rate = max(self.min_rate, min(self.line_rate, rate))


def product(rate: int, time_ps: int) -> int:
    """Return the bytes of a rate in a time, at least 1."""
    return max(1, rate * (time_ps >> 10) >> 20)


def measure(flow: Hpcc, hops: Sequence[SwitchHop]) -> int:
    """Average the use of the busiest hop into the path's use; return 0 if no hop was met before."""
    busiest = -1
    busiest_ps = 0
    for number in range(len(hops)):
        hop = hops[number]
        passed_ps = hop.time_ps - flow.last_ps[number]
        if hop.wire == flow.last_wire[number] and passed_ps > 0:
            rate_share = (
                (hop.sent_bytes - flow.last_sent[number]) << 24
            ) // passed_ps
            queue_bytes = min(hop.queue_bytes, flow.last_queue[number])
            share = (rate_share << 22) // hop.rate
            share += (queue_bytes << 16) // product(hop.rate, flow.base_ps)
            if share > busiest:
                busiest = min(share, MOST_USE)
                busiest_ps = min(passed_ps, flow.base_ps)
        flow.last_wire[number] = hop.wire
        flow.last_ps[number] = hop.time_ps
        flow.last_queue[number] = hop.queue_bytes
        flow.last_sent[number] = hop.sent_bytes
    if busiest < 0:
        return 0
    others_ps = flow.base_ps - busiest_ps
    flow.use = (flow.use * others_ps + busiest * busiest_ps) // flow.base_ps
    return 1
