"""DCQCN as the NICs of HPCC's simulator have it, for `benchmarks/hpcc.py`."""

from __future__ import annotations

from typing import Final

import clusim
from clusim.policies import SenderFlow

ONE = 65536


@clusim.policy
class NicDcqcn(SenderFlow):
    """DCQCN whose timers look for marks: alpha and the rate change once per interval, not per notification.

    All constants are those of ``run.py --cc dcqcn`` for 100 Gb/s: alpha each 1 us, cuts each 4 us, increases each
    300 us by 20 and then 200 Mb/s.
    """

    alpha_ps: Final = 1_000_000
    cut_ps: Final = 4_000_000
    increase_ps: Final = 300_000_000
    g_65536: Final = 256
    additive_65536: Final = 13
    hyper_65536: Final = 131

    alpha: int = ONE
    target: int = 0
    begun: int = 0
    marks_alpha: int = 0
    marks_cut: int = 0
    increases: int = 0
    alpha_at_ps: int = 0
    cut_at_ps: int = 0
    increase_at_ps: int = 0

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Keep the mark for the timers; the first one starts them."""
        if marked == 0:
            return
        self.marks_alpha = 1
        self.marks_cut = 1
        if self.begun == 0:
            self.begun = 1
            self.marks_alpha = 0
            self.target = self.rate
            self.alpha_at_ps = now_ps + self.alpha_ps
            self.cut_at_ps = now_ps + self.cut_ps + 1000
            self.increase_at_ps = 2**62
            self.timer_ps = self.alpha_at_ps

    def timer(self, now_ps: int) -> None:
        """Do what is due: alpha, then a cut, then an increase."""
        if self.alpha_at_ps <= now_ps:
            decayed = (self.alpha * (ONE - self.g_65536)) >> 16
            self.alpha = decayed + self.marks_alpha * self.g_65536
            self.marks_alpha = 0
            self.alpha_at_ps += self.alpha_ps
        if self.cut_at_ps <= now_ps:
            self.cut_at_ps += self.cut_ps
            if self.marks_cut:
                if self.increases > 0:
                    self.target = self.rate
                cut = (self.rate * self.alpha) >> 17
                self.rate = max(self.min_rate, self.rate - cut)
                self.increases = 0
                self.marks_cut = 0
                self.increase_at_ps = now_ps + self.increase_ps
        if self.increase_at_ps <= now_ps:
            step = 0
            if self.increases == 1:
                step = self.additive_65536
            if self.increases > 1:
                step = self.hyper_65536
            raised = self.target + ((self.line_rate * step) >> 16)
            self.target = min(self.line_rate, raised)
            self.rate = (self.rate + self.target + 1) // 2
            self.increases += 1
            self.increase_at_ps += self.increase_ps
        self.timer_ps = min(self.alpha_at_ps, self.cut_at_ps, self.increase_at_ps)
