"""TIMELY: a rate by round-trip time and its gradient, with the unique fixed point of its patched form.

**Hardware** Congestion control in NICs and hosts that measures the delay of segments.

**Model** TIMELY (Mittal et al., SIGCOMM 2015) as patched by Zhu et al. ("ECN or Delay", CoNEXT 2016), as the original
has no unique fixed point, so that shares of flows are arbitrary: a weight by the gradient mixes additive increase and
a decrease by the distance of the round trip from its reference. One decision per `segment_bytes`. Flows start at the
rate of the NIC, as RDMA senders do.

**Not modelled** Hyperactive increase, the pacing of segments as bursts, losses.

**Parameters** Constants of the class, each *published* or *assumed*.
"""

from __future__ import annotations

from typing import Final

from clusim.policies.sender import SenderFlow

ONE = 1024


class Timely(SenderFlow):
    """Patched TIMELY; the reference of the round trip is `queue_ps` above the least one of the flow.

    *published* in the fluid models of the patch's authors (jitupadhye-zz/rdma, ``fluidmodel/timely/timely-fixed.m``):
    `segment_bytes` (16 or 64 KB), `beta_65536` (0.008), `step_65536` (10 Mb/s on 10 Gb/s NICs), the weight of gradients
    of -0.25 to 0.25. *assumed*: `alpha_1024` (0.875, which the models call unsure), `queue_ps` (their 50 us are for 10
    Gb/s), `most_error_1024`.
    """

    segment_bytes: Final = 65536
    alpha_1024: Final = 896
    beta_65536: Final = 524
    step_65536: Final = 66
    queue_ps: Final = 10_000_000
    most_error_1024: Final = 8192

    base_ps: int = 2**62
    before_ps: int = 0
    slope_ps: int = 0
    acked_bytes: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Decide at the end of each segment."""
        self.base_ps = min(self.base_ps, rtt_ps)
        self.acked_bytes += size_bytes
        if self.acked_bytes < self.segment_bytes:
            return
        self.acked_bytes = 0
        if self.before_ps > 0:
            change_ps = self.alpha_1024 * (rtt_ps - self.before_ps)
            self.slope_ps = (
                (ONE - self.alpha_1024) * self.slope_ps + change_ps
            ) // ONE
        self.before_ps = rtt_ps
        step = max(1, (self.line_rate * self.step_65536) >> 16)
        target_ps = self.base_ps + self.queue_ps
        weight = 0
        if rtt_ps > target_ps:
            weight = max(
                0, min(ONE, 2 * self.slope_ps * ONE // self.base_ps + ONE // 2)
            )
        error = min(self.most_error_1024, (rtt_ps - target_ps) * ONE // target_ps)
        cut = (
            ((self.rate * self.beta_65536) >> 16)
            * weight
            // ONE
            * max(0, error)
            // ONE
        )
        rate = self.rate + step * (ONE - weight) // ONE - cut
        self.rate = max(self.min_rate, min(self.line_rate, rate))
