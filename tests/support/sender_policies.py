"""Sender policies for tests: each uses another part of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import clusim
from clusim.policies import ACCEPT, DROP, MARK, SenderFlow, SwitchHop

HALF = 2


@clusim.policy
class Free(SenderFlow):
    """No limit: as without rate control, at the line rate."""

    def start(self, now_ps: int) -> None:
        """Keep the line rate."""
        self.rate = self.line_rate


@clusim.policy
class Slow(SenderFlow):
    """A small part of the line rate."""

    share: Final = 64

    def start(self, now_ps: int) -> None:
        """Set the rate."""
        self.rate = self.line_rate // self.share


@clusim.policy
class Narrow(SenderFlow):
    """A window of a few packets, by marks and round trips."""

    step_bytes: Final = 100
    least_ps: int = 2**62

    def start(self, now_ps: int) -> None:
        """Begin with a narrow window."""
        self.window = 3 * self.step_bytes

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Shrink if marked or slow, otherwise grow."""
        self.least_ps = min(self.least_ps, rtt_ps)
        if marked or rtt_ps > 2 * self.least_ps:
            self.window = max(1, smaller(self.window))
        else:
            self.window += self.step_bytes


def smaller(window: int) -> int:
    """Return half of a window."""
    return window // HALF


@clusim.policy
class Pulse(SenderFlow):
    """The rate alternates by a timer, and the window opens with it."""

    period_ps: Final = 3001
    phase: int = 0

    def start(self, now_ps: int) -> None:
        """Start the timer."""
        self.window = 700
        self.timer_ps = now_ps + self.period_ps

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Bring the timer forward."""
        if self.phase == 0 and size_bytes > 50:
            self.timer_ps = now_ps + 1000

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Note the state of the flow."""
        self.phase += marked + (self.in_flight > 1000)

    def notified(self, now_ps: int) -> None:
        """Slow down."""
        self.rate = max(self.min_rate, self.rate * 3 // 4)

    def timer(self, now_ps: int) -> None:
        """Alternate between two rates."""
        self.phase ^= 1
        self.rate = max(self.min_rate, self.line_rate // (1 + 3 * self.phase))
        self.window = 300 + 500 * self.phase
        self.timer_ps = now_ps + self.period_ps


@clusim.policy
class Traced(SenderFlow):
    """Window and rate depend on every value of the telemetry of this packet and of the last one."""

    last: list[int] = [1] * 8
    number: int = 0

    def acked(
        self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int, hops: Sequence[SwitchHop]
    ) -> None:
        """Mix all values."""
        mixed = len(hops) * 7919
        for hop in hops:
            mixed = (mixed * 31 + hop.time_ps + 3 * hop.queue_bytes) & 0xFFFFFFFF
            mixed = (mixed * 31 + hop.sent_bytes + 3 * hop.wire + hop.rate) & 0xFFFFFFFF
        mixed ^= self.last[(self.number + 3) % 8]
        self.last[self.number] = mixed & 0xFFFFF
        self.number = (self.number + 1) % 8
        self.window = 200 + mixed % 2000
        self.rate = max(self.min_rate, self.line_rate * (64 + mixed % 192) >> 8)


@clusim.policy
class Wander(SenderFlow):
    """Another path after every packet, by the paths of acknowledged ones."""

    def start(self, now_ps: int) -> None:
        """Begin with a path of the flow's own."""
        self.path = self.key & 7

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Take the next path."""
        self.path = (self.path * 5 + size_bytes + 1) & 0xFFFF

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int, path: int) -> None:
        """Go back to the path of the flow now and then, and let the rate tell the path."""
        self.rate = max(self.min_rate, self.line_rate * (64 + path % 192) >> 8)
        if path % 5 == 0:
            self.path = 0


@clusim.policy
class Fixed(SenderFlow):
    """One path for all packets."""

    chosen: Final = 0

    def start(self, now_ps: int) -> None:
        """Take it."""
        self.path = self.chosen


@clusim.policy
class Astray(SenderFlow):
    """A path out of range."""

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Answer a path of 33 bits."""
        self.path = 1 << 32


@clusim.policy
class Reveal(SenderFlow):
    """An illegal window that tells a value of the telemetry of a packet: its number from 0, its field from 0."""

    packet: Final = 0
    value: Final = 0
    count: int = 0

    def acked(
        self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int, hops: Sequence[SwitchHop]
    ) -> None:
        """Answer -1 minus the value."""
        if self.count == self.packet:
            hop = hops[0]
            found = hop.time_ps
            if self.value == 1:
                found = hop.queue_bytes
            elif self.value == 2:
                found = hop.sent_bytes
            elif self.value == 3:
                found = hop.rate
            elif self.value == 4:
                found = hop.wire
            elif self.value == 5:
                found = len(hops)
            self.window = -1 - found
        self.count += 1


@clusim.policy
class Outside(SenderFlow):
    """An index out of range after a few packets."""

    packets: int = 0
    cells: list[int] = [0] * 3

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Count packets, each in its cell."""
        self.cells[self.packets] += 1
        self.packets += 1


@clusim.policy
class Stuck(SenderFlow):
    """An illegal rate after a few packets."""

    packets: int = 0

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Answer a rate of 0 after the third packet."""
        self.packets += 1
        if self.packets > 3:
            self.rate = 0


@clusim.policy
class Late(SenderFlow):
    """A timer in the past."""

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Set the timer to the present."""
        self.timer_ps = now_ps


PLACE = __file__


@clusim.policy
class Quartered(SenderFlow):
    """A quarter of the line rate after a loss."""

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Keep the rate."""

    def lost(self, now_ps: int, size_bytes: int) -> None:
        """Send slower."""
        self.rate = self.line_rate // 4


@clusim.policy
class Shut(SenderFlow):
    """A window of a third of what was lost."""

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Keep the window."""

    def lost(self, now_ps: int, size_bytes: int) -> None:
        """Wait for each packet."""
        self.window = size_bytes // 3


@clusim.policy
class Weigh(SenderFlow):
    """An illegal window that tells the bytes in flight at a grant: its number from 0."""

    grant: Final = 0
    count: int = 0

    def sent(self, now_ps: int, size_bytes: int) -> None:
        """Answer -1 minus the bytes in flight."""
        if self.count == self.grant:
            self.window = -1 - self.in_flight
        self.count += 1

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Keep the window."""


@clusim.policy
class Step:
    """Marks from a queue of so many bytes on, with the packet; drops from another on."""

    mark_bytes: Final = 2**62
    drop_bytes: Final = 2**62

    def enqueue(
        self, now_ps: int, size_bytes: int, queue_bytes: int, free_bytes: int, vc: int
    ) -> int:
        """Compare the queue."""
        if queue_bytes + size_bytes > self.drop_bytes:
            return DROP
        return MARK if queue_bytes + size_bytes >= self.mark_bytes else ACCEPT


@clusim.policy
class Threshold:
    """Drops or trims what finds more than a multiple of the free memory: as the dynamic threshold of a switch."""

    alpha_1024: Final = 1024
    answer: Final = DROP

    def enqueue(
        self, now_ps: int, size_bytes: int, queue_bytes: int, free_bytes: int, vc: int
    ) -> int:
        """Compare the queue with the free memory."""
        return self.answer if queue_bytes >= (self.alpha_1024 * free_bytes) >> 10 else ACCEPT


@clusim.policy
class Moody:
    """Any answer, by state, key and all arguments."""

    mixed: int = 0
    counts: list[int] = [0] * 4

    def enqueue(
        self, now_ps: int, size_bytes: int, queue_bytes: int, free_bytes: int, vc: int
    ) -> int:
        """Mix all values."""
        self.mixed = (self.mixed * 31 + now_ps + 3 * size_bytes + 7 * vc + self.key) & 0xFFFFFFFF
        self.mixed ^= (queue_bytes * 5 + (free_bytes & 0xFFFFF) + self.line_rate) & 0xFFFFFFFF
        draw = (self.mixed >> 4) % 16
        answer = draw if draw < 4 else ACCEPT
        self.counts[answer] += 1
        return answer


@clusim.policy
class Wrong:
    """An illegal answer for the second packet."""

    count: int = 0

    def enqueue(
        self, now_ps: int, size_bytes: int, queue_bytes: int, free_bytes: int, vc: int
    ) -> int:
        """Answer 4."""
        self.count += 1
        return 4 * (self.count > 1)


@clusim.policy
class Divided:
    """A division by zero for the second packet."""

    count: int = 0

    def enqueue(
        self, now_ps: int, size_bytes: int, queue_bytes: int, free_bytes: int, vc: int
    ) -> int:
        """Divide by the packets left."""
        self.count += 1
        return ACCEPT // (2 - self.count)


@clusim.policy
class Punctual(SenderFlow):
    """A timer that is due when the notice of the first packet arrives, and tells so by an illegal window."""

    at_ps: Final = 0

    def start(self, now_ps: int) -> None:
        """Start the timer."""
        self.timer_ps = self.at_ps

    def acked(self, now_ps: int, size_bytes: int, rtt_ps: int, marked: int) -> None:
        """Keep the timer."""

    def timer(self, now_ps: int) -> None:
        """Answer -1 minus the time."""
        self.window = -1 - now_ps
