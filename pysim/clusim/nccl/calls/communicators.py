"""The communicators of a job: each is set up once, and writes collectives and messages for its ranks as NCCL runs them.

A job names the ranks of a group in an order of its own; a communicator numbers them as NCCL does. Here, and nowhere
else, one is turned into the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from clusim.base.terms.operations import OF_NCCL
from clusim.nccl import programs
from clusim.nccl.calls.choice import Choice, NcclOverrides, choose
from clusim.nccl.communicator import Communicator, communicator
from clusim.nccl.env import Settings
from clusim.nccl.programs.payload import CollectivePayload
from clusim.nccl.versions import LATEST, Version
from clusim.schedule.builder import Site
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT
from clusim.topology.model import Fabric


@dataclass(frozen=True)
class Members:
    """A communicator of ranks that were given in some order.

    Attributes
    ----------
    position : tuple of int
        Per rank as given, its position in `comm`.
    used : str
        Where rings and trees come from, for people.
    """

    comm: Communicator
    position: tuple[int, ...]
    used: str = "rings and trees planned anew"


GroupLike = Sequence[int] | Members


class Communicators:
    """The communicators of a job on a fabric. A group is its ranks of the fabric, or a communicator that is set up.

    Parameters
    ----------
    version, settings
        NCCL's release and environment.
    """

    def __init__(
        self, fabric: Fabric, version: Version = LATEST, settings: Settings | None = None
    ) -> None:
        self.fabric, self.version, self.settings = fabric, version, settings
        self._known: dict[tuple[int, ...] | None, Members] = {}
        self._choices: dict[tuple[object, ...], tuple[Members, Choice]] = {}

    @staticmethod
    def knows(operation: str) -> bool:
        """Return True if NCCL has an operation."""
        return operation in OF_NCCL

    def of(self, group: GroupLike | None) -> Members:
        """Return the communicator of a group; None is all GPUs, in the communicator's own order."""
        if isinstance(group, Members):
            return group
        key = None if group is None else tuple(group)
        if key not in self._known:
            comm = communicator(self.fabric, self.version, self.settings, ranks=key)
            at = {rank: position for position, rank in enumerate(comm.ranks)}
            self._known[key] = Members(comm, tuple(at[rank] for rank in key or comm.ranks))
        return self._known[key]

    def adopt(self, ranks: Sequence[int], members: Members) -> None:
        """Use a communicator that is set up already."""
        self._known[tuple(ranks)] = members

    def choice(
        self, group: GroupLike, moved: CollectivePayload, wanted: NcclOverrides | None = None
    ) -> Choice:
        """Return the plan of a collective."""
        members = self.of(group)
        key = (id(members), moved.operation, moved.bytes, moved.dtype, wanted)
        if key not in self._choices:
            found = choose(
                *(members.comm, moved.operation, moved.bytes),
                element_bytes=element(moved.dtype).size_bytes,
                wanted=wanted,
            )
            # The communicator is kept as long as its number stands for it.
            self._choices[key] = members, found
        return self._choices[key][1]

    def collective(
        self,
        site: Site,
        group: GroupLike,
        moved: CollectivePayload,
        wanted: NcclOverrides | None = None,
    ) -> list[int]:
        """Append a collective; what `site` waits for, and the tasks returned, are per rank as given.

        Raises
        ------
        InputError
            The operation is not NCCL's, or nothing it could use has a program.
        """
        members = self.of(group)
        root = members.position[moved.root] if moved.root >= 0 else ABSENT
        tasks = programs.emit(
            *(_turned(site, members.position), self.fabric, members.comm),
            *(replace(moved, root=root), self.choice(members, moved, wanted).plan),
        )
        return [tasks[at] for at in members.position]

    def messages(
        self, site: Site, group: GroupLike, messages: Sequence[tuple[int, int, int]]
    ) -> list[int]:
        """Append a launch of messages (source, target, bytes), which count in the ranks as given."""
        members = self.of(group)
        position = members.position
        own = [(position[src], position[dst], size) for src, dst, size in messages]
        tasks = programs.emit_messages(_turned(site, position), self.fabric, members.comm, own)
        return [tasks[at] for at in position]


def _turned(site: Site, position: Sequence[int]) -> Site:
    """Return a site whose dependencies are in the order of the communicator."""
    if site.after is None:
        return site
    found: list[Iterable[int]] = [()] * len(site.after)
    for at, deps in zip(position, site.after, strict=True):
        found[at] = deps
    return replace(site, after=found)
