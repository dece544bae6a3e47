"""Writer of the calls and messages of a job with NCCL's plans on a topology."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.terms.operations import Protocol, find_algorithm, find_protocol
from clusim.jobs.model import CallWork
from clusim.nccl.choice import Communicators, NcclOverrides
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.topology.model import Fabric


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
        self,
        builder: ProgramBuilder,
        group: Sequence[int],
        call: CallWork,
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a collective; `after` and the tasks returned are per rank of the group."""
        moved = CollectivePayload.recorded(
            call.operation, call.bytes, call.dtype, call.redop, call.root
        )
        wanted = _wanted(call) if self._recorded else None
        return self.nccl.collective(
            Site(builder, stream, after), self._places(group), moved, wanted
        )

    def messages(
        self,
        builder: ProgramBuilder,
        group: Sequence[int],
        messages: Sequence[tuple[int, int, int]],
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[tuple[int, ...]]:
        """Append a launch of messages between ranks of the group, as `collective` does."""
        site, places = Site(builder, stream, after), self._places(group)
        return [(task,) for task in self.nccl.messages(site, places, messages)]

    def puts(
        self,
        builder: ProgramBuilder,
        group: Sequence[int],
        puts: Sequence[tuple[int, int, int]],
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[tuple[int, ...]]:
        """Append puts between ranks of the group, as `collective` does."""
        return self.nccl.puts(Site(builder, stream, after), self._places(group), puts)

    def _places(self, group: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.place[rank] for rank in group)


def _wanted(call: CallWork) -> NcclOverrides | None:
    """Return the recorded algorithm and protocol of a collective, by default Simple."""
    algorithm = find_algorithm(call.algorithm)
    if algorithm is None:
        return None
    protocol = find_protocol(call.protocol) or Protocol.SIMPLE
    return NcclOverrides(algorithm, protocol, call.channels, why="recorded")
