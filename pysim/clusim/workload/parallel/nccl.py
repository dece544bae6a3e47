"""Collectives of training as NCCL would run them on the machine: a communicator for every group of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clusim.fabric.model import Fabric
from clusim.nccl import LATEST, Communicator, Plan, Settings, Version, communicator, programs
from clusim.nccl.programs.front import COLLECTIVE_OF, PATTERNS
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT

__all__ = ["NcclCollectives"]


@dataclass
class NcclCollectives:
    """Writes collectives with the algorithm, protocol and channels NCCL chooses; communicators are set up once."""

    fabric: Fabric
    version: Version = LATEST
    settings: Settings | None = None
    _known: dict[tuple[int, ...], tuple[Communicator, tuple[int, ...]]] = field(
        default_factory=dict
    )
    _plans: dict[tuple[tuple[int, ...], str, int, int], Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Number the GPUs."""
        gpus = [node.name for node in self.fabric.nodes if node.kind == "gpu"]
        number = {name: at for at, name in enumerate(gpus)}
        self._gpu = [number[name] for name in self.fabric.ranks]

    @staticmethod
    def knows(operation: str) -> bool:
        """Return whether NCCL has an operation."""
        return operation in COLLECTIVE_OF or operation in PATTERNS

    def emit(
        self,
        builder: ProgramBuilder,
        operation: str,
        size_bytes: int,
        group: Sequence[int],
        *,
        dtype: str,
        root: int | None,
        stream: str,
        after: Sequence[Iterable[int]],
    ) -> list[int]:
        """Append a collective; `after`, and the tasks returned, are per rank of the group, `root` is a rank."""
        comm, position = self._communicator(tuple(group))
        moved: list[Iterable[int]] = [()] * len(group)
        for at, deps in zip(position, after, strict=True):
            moved[at] = deps
        tasks = programs.emit(
            *(builder, self.fabric, comm, operation, size_bytes),
            plan=self._plan(tuple(group), comm, operation, size_bytes, dtype),
            dtype=dtype,
            root=ABSENT if root is None else comm.ranks.index(root),
            stream=stream,
            after=moved,
        )
        return [tasks[at] for at in position]

    def _plan(
        self, group: tuple[int, ...], comm: Communicator, operation: str, size: int, dtype: str
    ) -> Plan | None:
        if operation in PATTERNS:
            return None
        key = (group, operation, size, element(dtype).size_bytes)
        if key not in self._plans:
            self._plans[key] = comm.plan(COLLECTIVE_OF[operation], size, element_bytes=key[3])
        return self._plans[key]

    def _communicator(self, group: tuple[int, ...]) -> tuple[Communicator, tuple[int, ...]]:
        found = self._known.get(group)
        if found is None:
            gpus = [self._gpu[rank] for rank in group]
            comm = communicator(self.fabric, self.version, self.settings, ranks=gpus)
            at = {rank: place for place, rank in enumerate(comm.ranks)}
            found = self._known[group] = (comm, tuple(at[rank] for rank in group))
        return found
