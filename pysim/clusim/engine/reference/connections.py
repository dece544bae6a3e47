"""Connections: the counters of their slots, and the instances that wait (section 7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from clusim.engine.abi import Beyond, Policy
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.senders import rate_of
from clusim.engine.reference.specs import ConnSpec, FlowRate


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
    writes : int
        Earlier WRITEs.
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
    writes: int = 0
    packet_count: int = field(init=False)
    read_count: int = field(init=False)
    rate: FlowRate | None = field(init=False)
    posts: deque[Post] = field(default_factory=deque)
    waiters: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.packet_count = self.read_count = self.spec.key
        who = (Beyond.CONNECTION, self.index)
        control = self.spec.control
        self.rate = rate_of(control, who, self.machine)

    def count(self, packets: int, staged_read: bool) -> int:
        """Count the packets of a new transfer; return the count before it, or the pinned key."""
        if staged_read:
            before, self.read_count = (
                self.read_count,
                (self.read_count + packets) % 2**32,
            )
        else:
            before, self.packet_count = (
                self.packet_count,
                (self.packet_count + packets) % 2**32,
            )
        return self.spec.key if self.spec.policy == Policy.PINNED else before

    def queue_key(self) -> int:
        """Return the key of the queue pair of a new pinned WRITE."""
        queues, before = self.spec.queue_keys, self.writes
        self.writes += 1
        if not queues:
            return self.spec.key
        return queues[0 if self.spec.split else before % len(queues)]

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
