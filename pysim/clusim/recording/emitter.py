"""Writes the collectives and messages of a recording as NCCL would run them on a fabric."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusim.fabric.model import Fabric
from clusim.nccl import LATEST, Communicator, Plan, Settings, Version, communicator, programs
from clusim.recording.model import ABSENT, Event
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.dtypes import ELEMENTS, element

__all__ = ["NcclEmitter", "Planner"]

Planner = Callable[[Communicator, Event], Plan | None]
"""Chooses algorithm, protocol and channels of a collective; None leaves it to the communicator's tuner."""


class NcclEmitter:
    """Writes collectives and messages as NCCL would run them; communicators are set up once.

    Parameters
    ----------
    place : sequence of int
        Per rank of the job, its rank on the fabric.
    """

    def __init__(
        self,
        fabric: Fabric,
        place: Sequence[int],
        version: Version = LATEST,
        settings: Settings | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.fabric, self.place = fabric, tuple(place)
        self._version, self._settings = version, settings
        self._planner = planner or (lambda comm, event: None)
        self._known: dict[tuple[int, ...], tuple[Communicator, tuple[int, ...]]] = {}
        gpus = [node.name for node in fabric.nodes if node.kind == "gpu"]
        number = {name: at for at, name in enumerate(gpus)}
        self._gpu = {rank: number[name] for rank, name in enumerate(fabric.ranks) if name in number}

    def adopt(self, ranks: Sequence[int], comm: Communicator, position: Sequence[int]) -> None:
        """Use a communicator that is set up already for these ranks of the fabric."""
        self._known[tuple(ranks)] = (comm, tuple(position))

    def communicator(self, group: Sequence[int]) -> tuple[Communicator, tuple[int, ...]]:
        """Return the communicator of ranks of the job, and the position in it of each of them."""
        ranks = tuple(self.place[rank] for rank in group)
        found = self._known.get(ranks)
        if found is None:
            gpus = [self._gpu[rank] for rank in ranks]
            comm = communicator(self.fabric, self._version, self._settings, ranks=gpus)
            at = {rank: position for position, rank in enumerate(comm.ranks)}
            found = self._known[ranks] = (comm, tuple(at[rank] for rank in ranks))
        return found

    def collective(
        self,
        builder: ProgramBuilder,
        group: Sequence[int],
        event: Event,
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a collective; `after` and the tasks returned are per rank of the group."""
        comm, position = self.communicator(group)
        dtype = event.dtype if event.dtype in ELEMENTS else "uint8"
        size = element(dtype).size_bytes
        operation, num_bytes = event.operation, max(size, event.bytes // size * size)
        if operation == "barrier":
            operation, num_bytes, dtype = "allreduce", 4, "float32"
        tasks = programs.emit(
            *(builder, self.fabric, comm, operation, num_bytes),
            plan=self._planner(comm, event),
            dtype=dtype,
            redop=event.redop,
            root=position[event.root] if event.root >= 0 else ABSENT,
            stream=stream,
            after=_moved(after, position),
        )
        return [tasks[at] for at in position]

    def messages(
        self,
        builder: ProgramBuilder,
        group: Sequence[int],
        messages: Sequence[tuple[int, int, int]],
        stream: str,
        after: Sequence[Sequence[int]],
    ) -> list[int]:
        """Append a launch of messages between ranks of the group, as `collective` does."""
        comm, position = self.communicator(group)
        moved = [(position[src], position[dst], size) for src, dst, size in messages]
        tasks = programs.emit_messages(
            *(builder, self.fabric, comm, moved), stream=stream, after=_moved(after, position)
        )
        return [tasks[at] for at in position]


def _moved(after: Sequence[Sequence[int]], position: Sequence[int]) -> list[Sequence[int]]:
    found: list[Sequence[int]] = [()] * len(after)
    for at, deps in zip(position, after, strict=True):
        found[at] = deps
    return found
