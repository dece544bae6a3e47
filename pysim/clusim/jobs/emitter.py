"""Writer of the calls and messages of a job with NCCL's plans on a topology."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.terms.operations import Protocol, find_algorithm, find_protocol
from clusim.jobs.model import CallWork
from clusim.nccl.choice import Communicators, NcclOverrides
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import Site
from clusim.topology.model import Fabric

Messages = Sequence[tuple[int, int, int]]
"""Source, target and bytes of messages in a group."""


class NcclEmitter:
    """Writer of calls of a job's ranks, which are placed on a topology.

    Parameters
    ----------
    place : sequence of int
        Topology rank of each rank of the job.
    nccl : Communicators or None
        Communicators of the topology; None uses the newest NCCL version.
    recorded : bool
        Use the recorded algorithms and protocols, if the system supports them.
    """

    def __init__(
        self,
        fabric: Fabric,
        place: Sequence[int],
        nccl: Communicators | None = None,
        *,
        recorded: bool = False,
    ) -> None:
        self.fabric, self.place = fabric, tuple(place)
        self.nccl = nccl or Communicators(fabric)
        self._recorded = recorded

    def collective(
        self, site: Site, group: Sequence[int], call: CallWork
    ) -> list[int]:
        """Append a collective of ranks of the job; return the task of each."""
        moved = CollectivePayload.from_recording(call)
        choice = _recorded_choice(call) if self._recorded else None
        return self.nccl.collective(site, self._places(group), moved, choice)

    def messages(
        self, site: Site, group: Sequence[int], messages: Messages, *, put: bool
    ) -> list[tuple[int, ...]]:
        """Append a launch of messages or puts between ranks of the job; return the tasks of each."""
        places = self._places(group)
        if put:
            return self.nccl.puts(site, places, messages)
        return [(task,) for task in self.nccl.messages(site, places, messages)]

    def _places(self, group: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.place[rank] for rank in group)


def _recorded_choice(call: CallWork) -> NcclOverrides | None:
    """Return the recorded algorithm and protocol of a collective, by default Simple."""
    algorithm = find_algorithm(call.algorithm)
    if algorithm is None:
        return None
    protocol = find_protocol(call.protocol) or Protocol.SIMPLE
    return NcclOverrides(algorithm, protocol, call.channels, why="recorded")
