"""Writes the collectives and messages of a recording as NCCL would run them on a fabric."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.terms.algorithms import Protocol, find_algorithm, find_protocol
from clusim.formats.recordings.model import Event
from clusim.nccl.calls.choice import Communicators, NcclOverrides
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.topology.model import Fabric


class NcclEmitter:
    """Writes events of ranks of a job, which have places on a fabric.

    Parameters
    ----------
    place : sequence of int
        Per rank of the job, its rank on the fabric.
    nccl : Communicators or None
        Of the fabric; None is those of the newest release.
    recorded : bool
        Use the recorded algorithms and protocols, where the machine can.
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
        event: Event,
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a collective; `after` and the tasks returned are per rank of the group."""
        moved = CollectivePayload.recorded(
            event.operation, event.bytes, event.dtype, event.redop, event.root
        )
        wanted = _wanted(event) if self._recorded else None
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
    ) -> list[int]:
        """Append a launch of messages between ranks of the group, as `collective` does."""
        return self.nccl.messages(Site(builder, stream, after), self._places(group), messages)

    def _places(self, group: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.place[rank] for rank in group)


def _wanted(event: Event) -> NcclOverrides | None:
    """Return what a recording says of how a collective was done; a protocol it does not name is Simple."""
    algorithm = find_algorithm(event.algorithm)
    if algorithm is None:
        return None
    protocol = find_protocol(event.protocol) or Protocol.SIMPLE
    return NcclOverrides(algorithm, protocol, event.channels, why="recorded")
