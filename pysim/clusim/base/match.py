"""Matching of operations that happen together on several ranks, by rule.

Operations that happen together form a *match*. A rule gives every operation a *key*, which all operations of a match
share, and an *end*, its place in the match. The n-th operation of an end with a key belongs to the n-th match of the
key: n is its *turn*.

======== =================================================== ==================== ===============================
rule     key                                                 ends                 sources
======== =================================================== ==================== ===============================
order    communicator                                        ranks                running programs, Kineto, Chakra
number   communicator and number, or operation and bytes     ranks                flight recorder, plugins, Kineto
opcount  communicator, opCount, name (`match_rows`)          handles              NCCL logs
pair     communicator, source, target, tag                   send, recv           messages
wildcard first suitable message in time (`Mailbox`)          send, recv           GOAL
launch   launches that share messages (`LaunchGraph`)        launches             running programs, recordings
======== =================================================== ==================== ===============================
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

ANY = -1
"""Wildcard for source or tag of a message."""

Address = tuple[int, int]
"""Source and tag of a message; each may be `ANY`."""


class MatchedEnd(NamedTuple):
    """Key and end of an operation."""

    key: Hashable
    end: Hashable


def by_order(group: Hashable, rank: int) -> MatchedEnd:
    """Return the end of a call that is matched by the order of its rank's calls."""
    return MatchedEnd(group, rank)


def by_number(group: Hashable, number: Hashable, rank: int) -> MatchedEnd:
    """Return the end of a call that is matched by its number in the file, or by its content."""
    return MatchedEnd((group, number), rank)


def by_pair(
    group: Hashable, kind: str, rank: int, peer: int, tag: int = 0
) -> MatchedEnd:
    """Return the end of a ``send`` or ``recv`` of one rank, with its peer."""
    return MatchedEnd((group, *message_ends(kind, rank, peer), tag), kind)


def message_ends(kind: str, rank: int, peer: int) -> tuple[int, int]:
    """Return source and target of a ``send`` or ``recv`` of one rank, with its peer."""
    return (rank, peer) if kind == "send" else (peer, rank)


class MatchCounts:
    """Matches as numbers; operations are added in the order of each end."""

    def __init__(self) -> None:
        self._counts: Counter[MatchedEnd] = Counter()
        self._matches: Counter[Hashable] = Counter()
        self._numbers: dict[Hashable, int] = {}

    def add(self, at: MatchedEnd) -> int:
        """Add an operation; return its turn."""
        turn = self._counts[at]
        self._counts[at] += 1
        self._matches[at.key] = max(self._matches[at.key], turn + 1)
        return turn

    def number(self, at: MatchedEnd) -> int:
        """Add an operation; return the number of its match, in the order of their first operations."""
        return self.number_of((at.key, self.add(at)))

    def number_of(self, match: Hashable) -> int:
        """Return the number of a match with a unique name, of which every rank has one operation."""
        return self._numbers.setdefault(match, len(self._numbers))

    def lone(self, key: Hashable, ends: Iterable[Hashable]) -> bool:
        """Return True if a match of a key lacks an operation of one of these ends."""
        matches = self._matches[key]
        return any(self._counts[MatchedEnd(key, end)] < matches for end in ends)


@dataclass(eq=False, slots=True)
class LiveMatch(Generic[V]):
    """Operations of running ranks that happen together.

    Attributes
    ----------
    key : hashable
        Key and turn.
    number : int
        In the order of the first operations of matches.
    ends : dict
        Operations so far, by end.
    """

    key: Hashable
    number: int
    ends: dict[Any, V] = field(default_factory=dict)


class LiveMatcher(Generic[V]):
    """Matches of operations that running ranks issue."""

    def __init__(self) -> None:
        self._counts = MatchCounts()
        self._open: dict[Hashable, LiveMatch[V]] = {}
        self._matches = 0

    def add(self, at: MatchedEnd, operation: V) -> LiveMatch[V]:
        """Add an operation; return its match."""
        key = at.key, self._counts.add(at)
        match = self._open.get(key)
        if match is None:
            match = self._open[key] = LiveMatch(key, self._matches)
            self._matches += 1
        match.ends[at.end] = operation
        return match

    def close(self, match: LiveMatch[V]) -> None:
        """Remove a match with all its ends."""
        del self._open[match.key]


def contradiction(one: tuple[int, str, str], other: tuple[int, str, str]) -> str:
    """Return the description of two calls in one match that differ: rank, call and place in its source of each."""
    calls = (
        f"rank {rank} calls {call}" + (f" ({where})" if where else "")
        for rank, call, where in (one, other)
    )
    return f"{', '.join(calls)} as the same collective of their communicator"


def find_cycle(start: T, waits: Callable[[T], Iterable[T]]) -> list[T]:
    """Return operations that wait for each other, the first one again at the end.

    Every operation that is reached from `start` must wait for another.
    """
    order: dict[T, int] = {}
    while start not in order:
        order[start] = len(order)
        start = next(iter(waits(start)))
    return [*list(order)[order[start] :], start]


class LaunchGraph(Generic[T, V]):
    """Launches of messages; launches that share a message happen together."""

    def __init__(self) -> None:
        self._messages: dict[T, list[Hashable]] = defaultdict(list)
        self._ends: dict[Hashable, list[tuple[T, V]]] = defaultdict(list)

    def add(self, launch: T, message: Hashable, end: V) -> None:
        """Add an end of a message to a launch."""
        self._messages[launch].append(message)
        self._ends[message].append((launch, end))

    def component(self, launch: T) -> dict[T, None]:
        """Return the launches that messages connect with one, which is the first."""
        connected = {launch: None}
        waiting = [launch]
        for other in waiting:
            for message in self._messages.get(other, ()):
                peers = [
                    peer for peer, _ in self._ends[message] if peer not in connected
                ]
                connected.update(dict.fromkeys(peers))
                waiting += peers
        return connected

    def complete(self, launch: T) -> list[list[tuple[T, V]]] | None:
        """Remove the connected launches and return the ends of their messages; None if one lacks an end."""
        component = self.component(launch)
        messages = dict.fromkeys(
            m for other in component for m in self._messages[other]
        )
        if any(len(self._ends[message]) < 2 for message in messages):
            return None
        for other in component:
            del self._messages[other]
        return [self._ends.pop(message) for message in messages]


class Mailbox(Generic[V]):
    """Ends of messages that wait at a rank, by source and tag, in order of arrival."""

    def __init__(self) -> None:
        self._queues: dict[Address, deque[tuple[int, V]]] = {}

    def put(self, address: Address, arrival: int, end: V) -> None:
        """Add an end with the number of its arrival."""
        self._queues.setdefault(address, deque()).append((arrival, end))

    def take(self, address: Address) -> V | None:
        """Remove and return the first suitable end."""
        fits = suitable(address, self._queues)
        if not fits:
            return None
        first = min(fits, key=lambda fit: self._queues[fit][0][0])
        queue = self._queues[first]
        _, end = queue.popleft()
        if not queue:
            del self._queues[first]
        return end


def suitable(address: Address, addresses: Collection[Address]) -> list[Address]:
    """Return the known addresses of messages that may be this one; both may contain wildcards."""
    source, tag = address
    if ANY in address:
        return [
            at for at in addresses if source in (ANY, at[0]) and tag in (ANY, at[1])
        ]
    fits = (address, (source, ANY), (ANY, tag), (ANY, ANY))
    return [at for at in fits if at in addresses]


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_hash(*keys: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return one hash for each row of keys."""
    value = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        value = (value ^ key.astype(np.uint64)) * _FACTOR
        value ^= value >> np.uint64(29)
    return value


def turns(*keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return for each row the number of earlier rows with the same keys."""
    # Sorting one column, which is often in order already, needs no hash.
    value = keys[0] if len(keys) == 1 else row_hash(*keys)
    order = np.argsort(value, kind="stable")
    starts = _starts(value[order])
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - np.repeat(
        starts, np.diff(starts, append=len(order))
    )
    return result


def match_rows(
    key: tuple[NDArray[np.integer], ...],
    end: NDArray[np.integer],
    lines: NDArray[np.integer],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Match rows of columns.

    Parameters
    ----------
    key : tuple of ndarray
        Columns with equal values in all rows of a match.
    end : ndarray
        End of each row.
    lines : ndarray
        Place of each row in its source.

    Returns
    -------
    order : ndarray
        Rows by match, and in a match by line.
    starts : ndarray
        First position of each match in `order`.
    """
    value = row_hash(*key, turns(*key, end))
    order = np.lexsort((lines, value))
    return order, _starts(value[order])


def _starts(ordered: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the first position of each value in ordered values."""
    changes = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return np.flatnonzero(changes[: len(ordered)])
