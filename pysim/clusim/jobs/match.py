"""Operations of several ranks that happen together.

Operations that happen together form one *unit*: a collective is the calls of all ranks with one communicator and
number, a launch of messages the launches of ranks that share messages. An eager message is a unit of its sender only:
it is sent at once, as if the other end were always ready.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from clusim.base.match import LaunchGraph, message_ends
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
        works = ((at, self.job.work[at]) for at in self.kept)
        eager = [
            at for at, work in works if isinstance(work, MessageWork) and work.eager
        ]
        sent = {
            self.ends(at): at for at in eager if self.job.work[at].kind == "send"
        }
        received = (at for at in eager if self.job.work[at].kind == "recv")
        return {at: sent[self.ends(at)] for at in received if self.ends(at) in sent}

    def ends(self, at: int) -> MessageEnds:
        """Return the identity of a send's or recv's message."""
        job, group, kind = self.job, self.job.members(at), self.job.work[at].kind
        rank, peer = job.rank[at], job.peer[at]
        if rank not in group.ranks or not 0 <= peer < len(group.ranks):
            raise job.failure(
                at,
                f"{kind} of rank {rank} with peer {peer} of group {group.name!r} ({len(group.ranks)} ranks)",
            )
        source, target = message_ends(kind, group.ranks.index(rank), peer)
        return job.group[at], source, target, job.tag[at], job.number[at]

    def units(self) -> list[list[int]]:
        """Return the units; launches that share messages are one, unless a rank has two in it."""
        units = _by_key((self._key(at), at) for at in self.kept)
        joined = self._join_launches(units)
        if joined is not None:
            return joined
        rows = [(number, at) for number, unit in enumerate(units) for at in unit]
        return _by_key(
            (self.ends(at) if self._is_met(at) else number, at)
            for number, at in rows
        )

    def _key(self, at: int) -> Hashable:
        job, work = self.job, self.job.work[at]
        if isinstance(work, CallWork):
            return "collective", job.group[at], job.number[at]
        if (
            isinstance(work, MessageWork)
            and job.launch[at] != ABSENT
            and not work.eager
        ):
            return (
                "launch",
                job.rank[at],
                job.stream[at],
                job.group[at],
                job.launch[at],
            )
        return "operation", at

    def _is_met(self, at: int) -> bool:
        """Return True for an end of a message that is transferred when both ends are ready."""
        return isinstance(self.job.work[at], MessageWork) and at not in self._eager

    def _join_launches(self, units: list[list[int]]) -> list[list[int]] | None:
        """Join launches that share messages; None if a rank would have two launches in one unit."""
        launches: LaunchGraph[int, int] = LaunchGraph()
        for number, at in (
            (number, at) for number, unit in enumerate(units) for at in unit
        ):
            if self._is_met(at):
                launches.add(number, self.ends(at), at)
        result: list[list[int]] = []
        done: set[int] = set()
        for number in range(len(units)):
            if number in done:
                continue
            component = sorted(launches.component(number))
            done.update(component)
            ranks = {self.job.rank[units[other][0]] for other in component}
            if len(ranks) < len(component):
                return None
            result.append([at for other in component for at in units[other]])
        return result


def _by_key(rows: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """Return the operations with equal keys, in the order of the first operation per key."""
    units: dict[Hashable, list[int]] = {}
    for key, at in rows:
        units.setdefault(key, []).append(at)
    return list(units.values())
