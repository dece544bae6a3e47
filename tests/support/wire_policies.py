"""Policies of receivers and schedules for tests: each uses another part of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import clusim
from clusim.policies import ClassHead
from clusim.policies.sender import ReceiverFlows

PLACE = __file__
"""File of these policies."""


@clusim.policy
class Grants(ReceiverFlows):
    """Any grant, by state, key and all arguments; all that is requested in the end."""

    period_ps: Final = 3000
    first_bytes: Final = 150

    mixed: int = 0
    turn: int = 0

    class Flow:
        """Payload requested and not granted, and marks of arguments."""

        owed: int = 0
        seen: list[int] = [0] * 2

    def start(self, now_ps: int, flows: Sequence[Grants.Flow], flow: int) -> None:
        """Begin with a credit by flow and key."""
        self.credit = self.first_bytes * ((self.key + flow) % 3)
        flows[flow].owed = -self.credit

    def requested(
        self, now_ps: int, flows: Sequence[Grants.Flow], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Grant a part at once, and set the timer."""
        flows[flow].owed += size_bytes
        mix(self, now_ps + 3 * flow + 5 * size_bytes + 7 * lost)
        give(self, flows, flow, flows[flow].owed // (1 + self.mixed % 3))
        arm(self, now_ps)

    def arrived(
        self,
        now_ps: int,
        flows: Sequence[Grants.Flow],
        flow: int,
        size_bytes: int,
        mark: int,
    ) -> None:
        """Grant now and then."""
        flows[flow].seen[mark // 2] += size_bytes + mark
        mix(self, now_ps + 3 * flow + 5 * size_bytes + 7 * mark)
        if self.mixed % 4 == 0:
            give(self, flows, flow, 1 + flows[flow].seen[0] % 200)

    def timer(self, now_ps: int, flows: Sequence[Grants.Flow]) -> None:
        """Grant to one flow after another while one lacks credit."""
        self.turn = (self.turn + 1) % self.num_flows
        give(self, flows, self.turn, flows[self.turn].owed)
        for one in range(self.num_flows):
            if flows[one].owed > 0:
                arm(self, now_ps)


def mix(receiver: Grants, value: int) -> None:
    """Draw from a value."""
    receiver.mixed = (receiver.mixed * 31 + value + receiver.key) & 0xFFFFFFFF
    receiver.mixed ^= receiver.mixed >> 7


def give(receiver: Grants, flows: Sequence[Grants.Flow], flow: int, size_bytes: int) -> None:
    """Grant credit."""
    if size_bytes > 0:
        receiver.credit = size_bytes
        receiver.flow = flow
        flows[flow].owed -= size_bytes


def arm(receiver: Grants, now_ps: int) -> None:
    """Set the timer, unless it is set."""
    if receiver.timer_ps <= now_ps:
        receiver.timer_ps = now_ps + 1 + receiver.mixed % receiver.period_ps


@clusim.policy
class Oldest:
    """The class whose packet waits longest, the lowest of several."""

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Compare the ages."""
        best = -1
        for vc in range(len(heads)):
            if heads[vc].size_bytes > 0 and (best < 0 or heads[vc].age_ps > heads[best].age_ps):
                best = vc
        return best


@clusim.policy
class Highest:
    """Strict priority of the highest class."""

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Return the last one with a packet."""
        best = 0
        for vc in range(len(heads)):
            if heads[vc].size_bytes > 0:
                best = vc
        return best


@clusim.policy
class Draws:
    """Any class, by state, key and all fields of the heads."""

    mixed: int = 0
    counts: list[int] = [0] * 8

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Mix all values, and take the first head from the result on."""
        self.mixed = (self.mixed * 31 + now_ps + self.key + self.line_rate) & 0xFFFFFFFF
        for vc in range(len(heads)):
            head = heads[vc]
            value = head.size_bytes + 3 * head.age_ps + 7 * head.queue_bytes
            self.mixed = (self.mixed * 17 + value) & 0xFFFFFFFF
        vc = (self.mixed >> 5) % len(heads)
        while heads[vc].size_bytes == 0:
            vc = (vc + 1) % len(heads)
        self.counts[vc] += 1
        return vc


@clusim.policy
class AtOnce(ReceiverFlows):
    """All that is requested, at once."""

    first_bytes: Final = 0

    def start(self, now_ps: int, flows: Sequence[object], flow: int) -> None:
        """Begin with a constant."""
        self.credit = self.first_bytes

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Grant it."""
        self.flow = flow
        self.credit = size_bytes


@clusim.policy
class ForArrivals(ReceiverFlows):
    """A packet for each that arrives."""

    first_bytes: Final = 100

    def start(self, now_ps: int, flows: Sequence[object], flow: int) -> None:
        """Begin with a constant."""
        self.credit = self.first_bytes

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Ignore requests."""

    def arrived(
        self,
        now_ps: int,
        flows: Sequence[object],
        flow: int,
        size_bytes: int,
        mark: int,
    ) -> None:
        """Grant its size."""
        self.flow = flow
        self.credit = size_bytes


@clusim.policy
class Favourite(ReceiverFlows):
    """All credit for the last flow."""

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Grant it to the last one."""
        self.flow = self.num_flows - 1
        self.credit = size_bytes


@clusim.policy
class Negative(ReceiverFlows):
    """An illegal credit."""

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Answer -1."""
        self.credit = -1


@clusim.policy
class Stranger(ReceiverFlows):
    """An illegal flow."""

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Answer one after the last."""
        self.flow = self.num_flows


@clusim.policy
class Late(ReceiverFlows):
    """A timer in the past."""

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Answer 1 ps."""
        self.timer_ps = 1


@clusim.policy
class Zero(ReceiverFlows):
    """A division by zero at the first arrival."""

    def start(self, now_ps: int, flows: Sequence[object], flow: int) -> None:
        """Let a packet leave."""
        self.credit = 1

    def requested(
        self, now_ps: int, flows: Sequence[object], flow: int, size_bytes: int, lost: int
    ) -> None:
        """Do nothing."""

    def arrived(
        self,
        now_ps: int,
        flows: Sequence[object],
        flow: int,
        size_bytes: int,
        mark: int,
    ) -> None:
        """Divide."""
        self.credit = size_bytes // mark


@clusim.policy
class Absent:
    """A class without a packet."""

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Return the first one without."""
        for vc in range(len(heads)):
            if heads[vc].size_bytes == 0:
                return vc
        return 0


@clusim.policy
class Uneven:
    """A division by zero."""

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Divide by the age of a new packet."""
        return now_ps // heads[0].age_ps


@clusim.policy
class Longest:
    """The class with the most bytes, the lowest of several."""

    def next(self, now_ps: int, heads: Sequence[ClassHead]) -> int:
        """Compare the queues."""
        best = -1
        for vc in range(len(heads)):
            longer = best < 0 or heads[vc].queue_bytes > heads[best].queue_bytes
            if heads[vc].size_bytes > 0 and longer:
                best = vc
        return best
