"""DCQCN as a sender policy: the rate control of the C engine, line by line of the contract.

**Hardware** DCQCN of RoCE NICs (Zhu et al., SIGCOMM 2015).

**Model** Section 5 of the timing contract, *rate control*: a run with this policy has the fingerprint of a run with the
engine's DCQCN. It is the example for policies with timers that are advanced at each call.

**Parameters** Those of the NIC's rate control (`clusim.hardware`), with its marks.
"""

from __future__ import annotations

from typing import Final

from clusim.policies.sender import SenderFlow

ONE = 65536
NEVER = 2**63 - 1


class Dcqcn(SenderFlow):
    """DCQCN; `target` is the target rate, `by_time` and `by_bytes` count increases since the last notification."""

    alpha_timer_ps: Final = 55_000_000
    increase_timer_ps: Final = 55_000_000
    byte_counter: Final = 10_000_000
    additive: Final = 5369
    hyper: Final = 26844
    g_65536: Final = 256
    fast_recovery: Final = 5
    kept_65536: Final = 0
    clamp: Final = 1

    target: int = 0
    alpha: int = ONE
    sent_bytes: int = 0
    by_time: int = 0
    by_bytes: int = 0
    alpha_at_ps: int = NEVER
    increase_at_ps: int = NEVER

    def start(self, now_ps: int) -> None:
        """Begin at the line rate."""
        self.target = self.line_rate

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Increase the rate once per `byte_counter`."""
        advance(self, now_ps)
        self.sent_bytes += size_bytes
        while self.sent_bytes >= self.byte_counter:
            self.sent_bytes -= self.byte_counter
            self.by_bytes += 1
            increase(self)

    def notified(self, now_ps: int) -> None:
        """Cut the rate and start both timers again."""
        advance(self, now_ps)
        if self.clamp or self.by_time > 0:
            self.target = self.rate
        cut = self.rate - ((self.rate * self.alpha) >> 17)
        self.rate = max(self.min_rate, max((self.rate * self.kept_65536) >> 16, cut))
        self.alpha = min(ONE, decay(self, self.alpha) + self.g_65536)
        self.by_time = 0
        self.by_bytes = 0
        self.sent_bytes = 0
        self.alpha_at_ps = now_ps + self.alpha_timer_ps
        self.increase_at_ps = now_ps + self.increase_timer_ps


def decay(flow: Dcqcn, alpha: int) -> int:
    """Return alpha after one period without notification."""
    return (alpha * (ONE - flow.g_65536)) >> 16


def increase(flow: Dcqcn) -> None:
    """Raise the target rate after fast recovery, and the rate half way to it."""
    least = min(flow.by_time, flow.by_bytes)
    if max(flow.by_time, flow.by_bytes) >= flow.fast_recovery:
        step = flow.additive
        if least > flow.fast_recovery:
            step = flow.hyper * (least - flow.fast_recovery)
        flow.target = min(flow.line_rate, flow.target + step)
    flow.rate = (flow.rate + flow.target + 1) // 2


def advance(flow: Dcqcn, now_ps: int) -> None:
    """Run both timers up to now; they do not read each other's results."""
    if flow.alpha_at_ps <= now_ps:
        due = (now_ps - flow.alpha_at_ps) // flow.alpha_timer_ps + 1
        flow.alpha_at_ps += due * flow.alpha_timer_ps
        while due > 0 and decay(flow, flow.alpha) != flow.alpha:
            flow.alpha = decay(flow, flow.alpha)
            due -= 1
    if flow.increase_at_ps <= now_ps:
        due = (now_ps - flow.increase_at_ps) // flow.increase_timer_ps + 1
        flow.increase_at_ps += due * flow.increase_timer_ps
        while due > 0 and flow.rate < flow.line_rate:
            rate = flow.rate
            target = flow.target
            flow.by_time += 1
            due -= 1
            increase(flow)
            if flow.rate - rate == flow.target - target:
                due -= repeat(flow, flow.target - target, due)
        flow.by_time += due


def repeat(flow: Dcqcn, step: int, due: int) -> int:
    """Add `step` to both rates as often as the next `due` timers do, and return how often.

    A flow may be silent for days, in which its timer is due a million times.
    """
    times = due
    if flow.by_time < flow.by_bytes:
        times = 0  # the lesser of both counts grows, and with it the increase
    elif flow.by_time < flow.fast_recovery:
        times = min(due, flow.fast_recovery - 1 - flow.by_time)
    if step > 0:
        times = min(times, (flow.line_rate - flow.target) // step)
    flow.rate += times * step
    flow.target += times * step
    flow.by_time += times
    return times
