"""Operations of several ranks that happen together.

Operations that happen together form one *unit*: a collective is the calls of all ranks with one communicator and
number, a launch of messages the launches of ranks that share messages. An eager message is a unit of its sender only:
it is sent at once, as if the other end were always ready.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from clusim.formats.recordings.model import ABSENT
from clusim.jobs.model import CallWork, JobGraph, MessageWork

MessageEnds = tuple[int, int, int, int, int]
"""Identity of a message: communicator, source, target, tag, number."""


class Matcher:
    """Units of some operations of a job.

    Attributes
    ----------
    source : dict
        Eager receives, with their sends.
    """

    def __init__(self, job: JobGraph, kept: Sequence[int]) -> None:
        self.job, self.kept = job, kept
        self.source = self._sources()
        self._eager = {*self.source, *self.source.values()}

    def _sources(self) -> dict[int, int]:
        sent: dict[MessageEnds, int] = {}
        receives = []
        for at in self.kept:
            work = self.job.work[at]
            if not isinstance(work, MessageWork) or not work.eager:
                continue
            if work.kind == "send":
                sent[self.ends(at)] = at
            else:
                receives.append(at)
        taken = ((at, sent.get(self.ends(at))) for at in receives)
        return {at: send for at, send in taken if send is not None}

    def ends(self, at: int) -> MessageEnds:
        """Return the identity of a send's or recv's message."""
        job, group, kind = self.job, self.job.members(at), self.job.work[at].kind
        rank, peer = job.rank[at], job.peer[at]
        if rank not in group.ranks or not 0 <= peer < len(group.ranks):
            raise job.failure(
                at,
                f"{kind} of rank {rank} with peer {peer} of group {group.name!r} ({len(group.ranks)} ranks)",
            )
        own = group.ranks.index(rank)
        source, target = (own, peer) if kind == "send" else (peer, own)
        return job.group[at], source, target, job.tag[at], job.number[at]

    def units(self) -> list[list[int]]:
        """Return the units; launches that share messages are one, unless a rank has two in it."""
        units = _by_key((self._key(at), at) for at in self.kept)
        joined = self._joined(units)
        if joined is not None:
            return joined
        rows = [(number, at) for number, unit in enumerate(units) for at in unit]
        return _by_key((self.ends(at) if self._is_met(at) else number, at) for number, at in rows)

    def _key(self, at: int) -> Hashable:
        job, work = self.job, self.job.work[at]
        if isinstance(work, CallWork):
            return "collective", job.group[at], job.number[at]
        if isinstance(work, MessageWork) and job.launch[at] != ABSENT and not work.eager:
            return "launch", job.rank[at], job.stream[at], job.group[at], job.launch[at]
        return "operation", at

    def _is_met(self, at: int) -> bool:
        """Return True for an end of a message that is transferred when both ends are ready."""
        return isinstance(self.job.work[at], MessageWork) and at not in self._eager

    def _joined(self, units: list[list[int]]) -> list[list[int]] | None:
        """Join launches that share messages; None if a rank would have two launches in one unit."""
        first: dict[MessageEnds, int] = {}
        joined: dict[int, int] = {}

        def root(number: int) -> int:
            while number in joined:
                number = joined[number]
            return number

        ranks = [{self.job.rank[at] for at in unit} for unit in units]
        for number, at in ((number, at) for number, unit in enumerate(units) for at in unit):
            if not self._is_met(at):
                continue
            one, two = root(first.setdefault(self.ends(at), number)), root(number)
            if one != two and ranks[one] & ranks[two]:
                return None
            if one != two:
                joined[two] = one
                ranks[one] |= ranks[two]
        result = [[] if number in joined else list(unit) for number, unit in enumerate(units)]
        for number in sorted(joined):
            result[root(number)] += units[number]
        return [unit for unit in result if unit]


def _by_key(rows: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """Return the operations with equal keys, in the order of the first operation per key."""
    units: dict[Hashable, list[int]] = {}
    for key, at in rows:
        units.setdefault(key, []).append(at)
    return list(units.values())
