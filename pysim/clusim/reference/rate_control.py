"""Rate control of a connection or source (section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.outcome import Beyond
from clusim.reference.arithmetic import ceil_div
from clusim.reference.specs import ControlSpec

__all__ = ["RateControl"]

_ONE = 65536


@dataclass(slots=True)
class _Timer:
    """A timer that comes again after each period; `due_ps` is None before it is started."""

    period_ps: int
    due_ps: int | None = None

    def skip(self, now_ps: int) -> int:
        """Let all whole periods before `now_ps` pass; return how many."""
        if self.due_ps is None or self.due_ps > now_ps:
            return 0
        periods = (now_ps - self.due_ps) // self.period_ps
        self.due_ps += periods * self.period_ps
        return periods


class RateControl:
    """The rate of one flow; `rate` and `target` in payload bytes per 2^30 ps. `who` has the flow."""

    def __init__(self, spec: ControlSpec, who: tuple[Beyond, int]) -> None:
        self.spec, self.who = spec, who
        self.rate = self.target = spec.line_rate
        self.alpha = _ONE
        self.next_ps = 0
        self._by_time = self._by_bytes = self._sent = 0  # T, B, sent
        self._alpha_timer = _Timer(spec.alpha_timer_ps)
        self._increase_timer = _Timer(spec.increase_timer_ps)
        self._last_ps: int | None = None

    def granted(self, now_ps: int, p: int) -> None:
        """Count a packet of `p` payload bytes granted now; the next one waits for its time."""
        self.advance(now_ps)
        self._sent += p
        while self._sent >= self.spec.byte_counter:
            self._sent -= self.spec.byte_counter
            self._by_bytes += 1
            self._increase()
        self.next_ps = max(self.next_ps, now_ps) + ceil_div(p << 30, self.rate)

    def answers_mark(self, now_ps: int) -> bool:
        """Say whether a marked packet delivered now makes a NOTIFY."""
        if self._last_ps is not None and now_ps - self._last_ps < self.spec.cnp_interval_ps:
            return False
        self._last_ps = now_ps
        return True

    def notify(self, now_ps: int) -> None:
        """Lower the rate (NOTIFY)."""
        self.advance(now_ps)
        g = self.spec.g_65536
        self.target = self.rate
        self.rate = max(self.spec.min_rate, self.rate - ((self.rate * self.alpha) >> 17))
        self.alpha = min(_ONE, ((self.alpha * (_ONE - g)) >> 16) + g)
        self._by_time = self._by_bytes = self._sent = 0
        for timer in (self._alpha_timer, self._increase_timer):
            timer.due_ps = now_ps + timer.period_ps

    def advance(self, now_ps: int) -> None:
        """Handle every timer that is due by now, in order of time, alpha first."""
        timers = [self._alpha_timer, self._increase_timer]
        while True:
            if self._at_rest():
                self._alpha_timer.skip(now_ps)
                self._by_time += self._increase_timer.skip(now_ps)
            due = [t for t in timers if t.due_ps is not None and t.due_ps <= now_ps]
            if not due:
                return
            timer = min(due, key=lambda t: t.due_ps or 0)
            timer.due_ps = (timer.due_ps or 0) + timer.period_ps
            if timer is self._alpha_timer:
                self.alpha = (self.alpha * (_ONE - self.spec.g_65536)) >> 16
            else:
                self._by_time += 1
                self._increase()

    def _at_rest(self) -> bool:
        """Say whether timers change nothing but their count any more: a flow may be silent for days."""
        full = self.rate == self.target == self.spec.line_rate
        return full and self.alpha == (self.alpha * (_ONE - self.spec.g_65536)) >> 16

    def _increase(self) -> None:
        spec, recovery = self.spec, self.spec.fast_recovery
        if max(self._by_time, self._by_bytes) >= recovery:
            beyond = min(self._by_time, self._by_bytes) - recovery
            step = spec.hyper * beyond if beyond > 0 else spec.additive
            self.target = min(spec.line_rate, self.target + step)
        self.rate = (self.rate + self.target + 1) // 2
