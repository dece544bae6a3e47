"""NSCC: the window of Ultra Ethernet senders, by marks and the delay of queues.

**Hardware** Network signal-based congestion control of Ultra Ethernet NICs (UEC specification 1.0).

**Model** The four cases of mark and delay, quick adaption and periodic increase of the simulator of the authors
(uet-htsim, ``sim/uec.cpp``). The product of rate and round trip is that of the NIC's port and the flow's least round
trip. Flows start at the rate of the NIC without a window for their first round trip. A loss or a trimmed packet adapts
the window as a late one does, and otherwise shrinks it by its bytes (``updateCwndOnNack_NSCC``).

**Not modelled** The lower target delay with trimming, credit of receivers (RCCC), path selection by marks.

**Parameters** Constants of the class, *published* in uet-htsim's ``initNsccParams``.
"""

from __future__ import annotations

from typing import Final

from clusim.policies.sender import SenderFlow

ONE = 1024
UNKNOWN_PS = 2**62


class Nscc(SenderFlow):
    """NSCC, without trimming: the target delay of queues is the least round trip.

    *published*: a reference network of 150,000 B and 12 us, to which increases are scaled; decrease `gamma_1024` (0.8),
    average of delays with weight `average_65536` (0.0125), window of at most 1.5 products of rate and round trip.
    """

    packet_bytes: Final = 4096
    reference_bytes: Final = 150_000
    reference_ps: Final = 12_000_000
    gamma_1024: Final = 819
    average_65536: Final = 819

    base_ps: int = UNKNOWN_PS
    delay_ps: int = 0
    growth: int = 0
    adjust_bytes: int = 0
    adjusted_ps: int = 0
    cut_at_ps: int = 0
    calm_bytes: int = 0
    arrived_bytes: int = 0
    round_end_ps: int = 0
    ignored_bytes: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Choose among the four cases, unless the window was just adapted."""
        self.base_ps = min(self.base_ps, rtt_ps)
        delay_ps = rtt_ps - self.base_ps
        self.delay_ps += ((delay_ps - self.delay_ps) * self.average_65536) >> 16
        most = max(
            self.packet_bytes, ((self.line_rate * self.base_ps) >> 30) * 3 // 2
        )
        self.window = min(self.window, most)
        self.arrived_bytes += size_bytes
        if adapt(self, now_ps, delay_ps, most) or (
            marked and self.ignored_bytes > 0
        ):
            self.growth = 0
            self.adjust_bytes = 0
        elif marked and delay_ps >= self.base_ps:
            decrease(self, now_ps)
        elif not marked:
            grow(self, size_bytes, delay_ps)
        self.ignored_bytes = max(0, self.ignored_bytes - size_bytes)
        self.adjust_bytes += size_bytes
        if (
            self.adjust_bytes >= 8 * self.packet_bytes
            or now_ps - self.adjusted_ps >= self.base_ps
        ):
            adjust(self, now_ps)
        self.window = max(self.packet_bytes, min(self.window, most))

    def lost(self, now_ps: int, size_bytes: int) -> None:
        """Adapt, or shrink by the loss; before the first round trip to the bytes in flight."""
        self.ignored_bytes = max(0, self.ignored_bytes - size_bytes)
        most = self.in_flight
        if self.base_ps < UNKNOWN_PS:
            most = max(
                self.packet_bytes, ((self.line_rate * self.base_ps) >> 30) * 3 // 2
            )
            if not adapt(self, now_ps, 5 * self.base_ps, most):
                self.window = min(self.window, most) - size_bytes
        self.window = max(self.packet_bytes, min(self.window, most))


def scale(flow: Nscc, share_1024: int) -> int:
    """Return a number of packets in bytes, in 1024ths, scaled from the reference network."""
    product_bytes = (flow.line_rate * flow.base_ps) >> 30
    return (
        share_1024 * flow.packet_bytes * product_bytes // flow.reference_bytes // ONE
    )


def adapt(flow: Nscc, now_ps: int, delay_ps: int, most: int) -> bool:
    """Set the window to the bytes of a round trip if the delay is four times the target; True if so."""
    if now_ps <= flow.round_end_ps:
        return False
    late = flow.round_end_ps > 0 and delay_ps > 4 * flow.base_ps
    adapts = late and flow.arrived_bytes < most // 8
    if adapts:
        flow.window = max(flow.packet_bytes, min(flow.window, flow.arrived_bytes))
        flow.ignored_bytes = flow.in_flight
    flow.arrived_bytes = 0
    flow.round_end_ps = now_ps + 2 * flow.base_ps
    return adapts


def decrease(flow: Nscc, now_ps: int) -> None:
    """Decrease by the excess of the average delay, at most by half, once per round trip."""
    flow.calm_bytes = 0
    if flow.delay_ps <= flow.base_ps or now_ps - flow.cut_at_ps <= flow.base_ps:
        return
    cut_1024 = flow.gamma_1024 * (flow.delay_ps - flow.base_ps) // flow.delay_ps
    flow.window -= flow.window * min(cut_1024, ONE // 2) // ONE
    flow.cut_at_ps = now_ps


def grow(flow: Nscc, size_bytes: int, delay_ps: int) -> None:
    """Add growth: proportional to the delay below the target, or equal for all flows."""
    if delay_ps >= flow.base_ps:
        flow.growth += scale(flow, 5 * ONE) * size_bytes
        return
    flow.calm_bytes = flow.calm_bytes + size_bytes if delay_ps < 1_000_000 else 0
    if flow.calm_bytes > flow.window:
        flow.window += size_bytes * scale(flow, ONE // 4) // flow.packet_bytes
        return
    below_1024 = 4 * (flow.base_ps - delay_ps) * ONE // flow.reference_ps
    flow.growth += scale(flow, below_1024) * size_bytes


def adjust(flow: Nscc, now_ps: int) -> None:
    """Add the growth to the window, and once per round trip a small increase."""
    flow.window += flow.growth // flow.window
    if now_ps - flow.adjusted_ps >= flow.base_ps:
        flow.window += scale(flow, 154)
        flow.adjusted_ps = now_ps
    flow.growth = 0
    flow.adjust_bytes = 0
