"""Connections: the counters of their slots, and the instances that wait (section 7).

Rate control of a connection or source (section 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from clusim.engine.abi import Beyond, Policy
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.specs import ConnSpec, ControlSpec, ceil_div

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


@dataclass(slots=True)
class Post:
    """A slice sent on a connection: it posts when it is done and its WRITE is complete."""

    slots: int
    done: bool = False
    complete: bool = True


@dataclass(slots=True, eq=False)
class ConnectionState:
    """A connection's state.

    Attributes
    ----------
    issued, tail_visible, consumed, head_visible : int
        Slots taken by the sender, seen by the receiver, released, seen by the sender.
    packet_count, read_count : int
        The running counts `b` of section 5 (mod 2^32); a staged connection counts its READs separately.
    rate : FlowRate or None
        Rate control of its writes.
    posts : deque
        Slices issued that have not posted, in order.
    waiters : set of int
        Instances blocked at a gate of this connection.
    """

    index: int
    spec: ConnSpec
    machine: Machine
    issued: int = 0
    tail_visible: int = 0
    consumed: int = 0
    head_visible: int = 0
    packet_count: int = field(init=False)
    read_count: int = field(init=False)
    rate: FlowRate | None = field(init=False)
    posts: deque[Post] = field(default_factory=deque)
    waiters: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.packet_count = self.read_count = self.spec.key
        who = (Beyond.CONNECTION, self.index)
        self.rate = FlowRate(self.spec.control, who) if self.spec.control else None

    def count(self, packets: int, staged_read: bool) -> int:
        """Count the packets of a new transfer; return the count before it, or the pinned key."""
        if staged_read:
            before, self.read_count = self.read_count, (self.read_count + packets) % 2**32
        else:
            before, self.packet_count = self.packet_count, (self.packet_count + packets) % 2**32
        return self.spec.key if self.spec.policy == Policy.PINNED else before

    def can_receive(self, slots: int) -> bool:
        """Gate of a RECV."""
        return self.tail_visible - self.consumed >= slots

    def can_send(self, slots: int) -> bool:
        """Gate of a SEND."""
        return self.issued + slots - self.head_visible <= self.spec.slots

    def issue(self, slots: int, has_write: bool) -> Post:
        """Reserve slots for a slice to be sent."""
        self.issued += slots
        post = Post(slots, complete=not has_write)
        self.posts.append(post)
        return post

    def advance_posts(self) -> None:
        """Post every slice that is complete, in order."""
        while self.posts and self.posts[0].done and self.posts[0].complete:
            slots = self.posts.popleft().slots
            self._after(self.spec.tail_ps, partial(self._show_tail, slots))

    def consume(self, slots: int) -> None:
        """Release the slots of a received slice."""
        self.consumed += slots
        if self.consumed > self.tail_visible:
            self.machine.refuse((Beyond.CONNECTION, self.index))
        self._after(self.spec.head_ps, partial(self._show_head, slots))

    def _after(self, delay_ps: int, action: Callable[[], None]) -> None:
        if delay_ps == 0:
            self.machine.waves.later(action)
        else:
            who = (Beyond.CONNECTION, self.index)
            self.machine.at(self.machine.now_ps + delay_ps, action, who)

    def _show_tail(self, slots: int) -> None:
        self.tail_visible += slots
        self._wake()

    def _show_head(self, slots: int) -> None:
        self.head_visible += slots
        self._wake()

    def _wake(self) -> None:
        self.machine.waves.runnable |= self.waiters
        self.waiters.clear()
