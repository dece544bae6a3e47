"""Window policies: Swift, by round-trip time, and DCTCP, by marks.

**Hardware** Congestion control in NICs and hosts that limits the bytes in flight.

**Model** One decision per delivered packet. Flows start without a window, at the rate of the NIC, as RDMA senders do;
the first sign of congestion sets the window to the bytes in flight. Round trips are those of the packet: fetch from GPU
memory, network, and the notice back. After a loss both halve the window, at most once per round trip (Swift, algorithm
1) or window (DCTCP, RFC 8257, 3.5; RFC 5681).

**Not modelled** Of Swift: scaling of the target with hops and flows, the separate window of hosts, windows below one
packet, the least window after several timeouts. Of DCTCP: slow start, the window of one segment after a timeout,
delayed acknowledgements.

**Parameters** Constants of the classes, each *published* or *assumed*.
"""

from __future__ import annotations

from typing import Final

from clusim.policies.kinds import UNLIMITED_BYTES
from clusim.policies.sender import SenderFlow


class Swift(SenderFlow):
    """Swift (Kumar et al., SIGCOMM 2020): additive increase below a target delay, a bounded decrease above.

    All values are *assumed*: `queue_ps`, the part of the target above the least round trip of the flow, `step_bytes`
    per round trip, `beta_1024` (0.8) and `most_cut_1024` (0.5).
    """

    queue_ps: Final = 10_000_000
    step_bytes: Final = 4096
    beta_1024: Final = 819
    most_cut_1024: Final = 512

    base_ps: int = 2**62
    last_ps: int = 0
    cut_at_ps: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Compare the round trip with the target; decrease at most once per round trip."""
        self.base_ps = min(self.base_ps, rtt_ps)
        self.last_ps = rtt_ps
        target_ps = self.base_ps + self.queue_ps
        if rtt_ps <= target_ps:
            self.window += self.step_bytes * size_bytes // self.window
        elif now_ps - self.cut_at_ps >= rtt_ps:
            self.window = min(self.window, self.in_flight + size_bytes)
            cut_1024 = self.beta_1024 * (rtt_ps - target_ps) // rtt_ps
            self.window -= self.window * min(cut_1024, self.most_cut_1024) // 1024
            self.window = max(self.window, size_bytes)
            self.cut_at_ps = now_ps

    def lost(self, now_ps: int, size_bytes: int) -> None:
        """Decrease by the largest cut, at most once per round trip."""
        if now_ps - self.cut_at_ps >= self.last_ps:
            self.window = min(self.window, self.in_flight + size_bytes)
            self.window -= self.window * self.most_cut_1024 // 1024
            self.window = max(self.window, self.step_bytes)
            self.cut_at_ps = now_ps


class Dctcp(SenderFlow):
    """DCTCP (Alizadeh et al., SIGCOMM 2010): the window shrinks by half the share of marked bytes.

    `g_65536` (1/16) is *published*; `step_bytes` per round trip, a segment of the NIC's packets, is *assumed*.
    """

    g_65536: Final = 4096
    step_bytes: Final = 4096

    share_65536: int = 65536
    acked_bytes: int = 0
    marked_bytes: int = 0
    round_bytes: int = 0
    recovery_bytes: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Count the packet; the end of each window of data sets the next one."""
        count_marks(self, size_bytes, marked)

    def lost(self, now_ps: int, size_bytes: int) -> None:
        """Halve the window to two segments at least, once per window of data."""
        if self.recovery_bytes == 0:
            flight_bytes = min(self.window, self.in_flight + size_bytes)
            self.window = max(flight_bytes // 2, 2 * self.step_bytes)
            self.recovery_bytes = flight_bytes
            self.round_bytes = 0


def count_marks(flow: Dctcp, size_bytes: int, marked: int) -> int:
    """Count a packet; at the end of a window of data set the next one, and return the share of marked bytes, or -1."""
    flow.acked_bytes += size_bytes
    flow.marked_bytes += size_bytes * marked
    flow.recovery_bytes = max(0, flow.recovery_bytes - size_bytes)
    if marked and flow.window == UNLIMITED_BYTES:
        flow.window = flow.in_flight + size_bytes
        flow.round_bytes = 0
    if flow.acked_bytes < flow.round_bytes:
        return -1
    share = (flow.marked_bytes << 16) // flow.acked_bytes
    flow.share_65536 += (flow.g_65536 * (share - flow.share_65536)) >> 16
    if flow.marked_bytes > 0:
        cut = (flow.window * flow.share_65536) >> 17
        flow.window = max(size_bytes, flow.window - cut)
    elif flow.window < UNLIMITED_BYTES:
        flow.window += flow.step_bytes
    flow.acked_bytes = 0
    flow.marked_bytes = 0
    flow.round_bytes = min(flow.window, flow.in_flight)
    return share
