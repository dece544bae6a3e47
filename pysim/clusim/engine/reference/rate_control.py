"""Rate control of a connection or source (section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.engine.abi import Beyond
from clusim.engine.reference.specs import ControlSpec, ceil_div

_ONE = 65536


@dataclass(slots=True)
class _Timer:
    """A periodic timer; `due_ps` is None before it is started."""

    period_ps: int
    due_ps: int | None = None

    def pass_until(self, now_ps: int) -> int:
        """Return the number of due times up to `now_ps`; the next time is later."""
        if self.due_ps is None or self.due_ps > now_ps:
            return 0
        times = (now_ps - self.due_ps) // self.period_ps + 1
        self.due_ps += times * self.period_ps
        return times


class FlowRate:
    """Rate control of one flow, `who`; `rate` and `target` in payload bytes per 2^30 ps."""

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
        """True if a marked packet delivered now causes a NOTIFY; this starts the interval again."""
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
        """Handle every timer that is due by now; the two timers are independent."""
        for _ in range(self._alpha_timer.pass_until(now_ps)):
            decayed = (self.alpha * (_ONE - self.spec.g_65536)) >> 16
            if decayed == self.alpha:
                break
            self.alpha = decayed
        due = self._increase_timer.pass_until(now_ps)
        while due > 0:
            rate, target = self.rate, self.target
            self._by_time += 1
            due -= 1
            self._increase()
            up = self.target - target
            if self.rate - rate == up:
                steps = self._steady_steps(up, due)
                self.rate += steps * up
                self.target += steps * up
                self._by_time += steps
                due -= steps

    def _steady_steps(self, up: int, due: int) -> int:
        """Return the number of the next `due` steps that add `up` to rate and target.

        A flow may be silent for days, in which its timers are due a million times.
        """
        spec, recovery = self.spec, self.spec.fast_recovery
        if self._by_time < self._by_bytes:
            return 0  # the lesser of both counts still grows, and with it the increase
        if self._by_time < recovery:
            due = min(due, recovery - 1 - self._by_time)
        return min(due, (spec.line_rate - self.target) // up) if up else due

    def _increase(self) -> None:
        spec, recovery = self.spec, self.spec.fast_recovery
        if max(self._by_time, self._by_bytes) >= recovery:
            beyond = min(self._by_time, self._by_bytes) - recovery
            step = spec.hyper * beyond if beyond > 0 else spec.additive
            self.target = min(spec.line_rate, self.target + step)
        self.rate = (self.rate + self.target + 1) // 2
