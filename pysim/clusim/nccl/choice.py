"""Algorithm of a call: the tuner's choice or a given one, restricted to algorithms with programs.

Communicators of a job, each set up once, which write collectives and messages as NCCL runs them.

A job lists the ranks of a group in any order; a communicator numbers them as NCCL does. Only this module converts
between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    COLLECTIVE_OF,
    OF_NCCL,
    Algorithm,
    Collective,
    Protocol,
)
from clusim.collectives.onesided import emit_puts
from clusim.nccl.callconfig import CallConfig
from clusim.nccl.communicator import Communicator, NcclPlan, communicator
from clusim.nccl.constants import LATEST, Version
from clusim.nccl.env import Settings, parse_env
from clusim.nccl.graph import CollectivePayload
from clusim.nccl.programs.api import WRITERS, emit
from clusim.nccl.programs.messages import emit_messages
from clusim.nccl.tuner import Selection, channels_and_threads
from clusim.schedule.builder import Site
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT
from clusim.topology.model import Fabric


class Way(NamedTuple):
    """Algorithm and protocol of a collective, in NCCL's terms; ``P2P`` are sends and receives, ``Put`` puts."""

    algorithm: str
    protocol: str
    channels: int


PUT = Way("Put", "", 0)
"""Puts and signals, without CTAs."""


@dataclass(frozen=True, slots=True)
class NcclOverrides:
    """An algorithm and a protocol that replace the tuner's choice.

    Attributes
    ----------
    channels : int
        Number of channels; 0 selects NCCL's number for this pair.
    model_us : float
        Time that NCCL's tuner expected for this choice [us]; negative if unknown.
    why : str
        Origin of the choice, as text.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int = 0
    model_us: float = -1.0
    why: str = "asked for"


Wanted = NcclOverrides | CallConfig
"""Request of a call: a plan that replaces the tuner's choice, or NCCL's configuration of the call."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Plan of a collective.

    Attributes
    ----------
    plan : NcclPlan or None
        None for sends and receives.
    note : str
        Algorithm that runs instead of the chosen one; empty if the chosen one runs.
    as_wanted : bool
        True if the plan is the requested one and not the tuner's.
    """

    plan: NcclPlan | None
    note: str = ""
    as_wanted: bool = False


def choose(
    comm: Communicator,
    operation: str,
    size_bytes: int,
    *,
    element_bytes: int = 4,
    overrides: Wanted | None = None,
) -> Choice:
    """Return the plan of an operation of a size.

    Parameters
    ----------
    operation, size_bytes
        As in `clusim.schedule.CollectiveCall`; operations outside the tuner's scope are sends and receives.
    wanted : NcclOverrides or CallConfig or None
        Plan that replaces the tuner's choice, if the communicator supports it, or the configuration of the call.

    Raises
    ------
    InputError
        No algorithm that the communicator could use has a program, or the release lacks configurations.
    """
    if isinstance(overrides, CallConfig):
        overrides.check(comm, operation)
    if operation not in COLLECTIVE_OF:
        return Choice(None)
    collective = COLLECTIVE_OF[operation]
    requested = None
    if isinstance(overrides, CallConfig):
        chosen = overrides.choose(comm, collective, size_bytes)
    else:
        chosen = comm.select(collective, size_bytes)
        requested = (
            None
            if overrides is None
            else _requested_selection(comm, chosen, overrides)
        )
    best = requested or chosen
    note = ""
    if isinstance(overrides, NcclOverrides) and requested is None:
        note = (
            f"{overrides.algorithm.value} {overrides.protocol.value} cannot run here"
        )
    if (best.algorithm, collective) not in WRITERS:
        best, note = _nearest(operation, chosen, best.algorithm)
        requested = None
    plan = comm.plan_of(best, element_bytes=min(element_bytes, size_bytes))
    return Choice(plan, note, requested is not None)


def _requested_selection(
    comm: Communicator, chosen: Selection, overrides: NcclOverrides
) -> Selection | None:
    """Return the request as a selection; None if the system cannot run it."""
    if (
        overrides.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE)
        and not comm.group.nvls
    ):
        return None
    threads = channels_and_threads(
        comm.table,
        (chosen.collective, overrides.algorithm, overrides.protocol),
        chosen.num_bytes,
        comm.lanes,
    )
    if overrides.channels:
        threads = replace(
            threads, num_channels=min(overrides.channels, 64), why=overrides.why
        )
    key = overrides.algorithm, overrides.protocol
    time_us = (
        overrides.model_us
        if overrides.model_us >= 0
        else chosen.times_us.get(key, 0.0)
    )
    return Selection(
        chosen.collective,
        chosen.num_bytes,
        *key,
        threads,
        time_us,
        chosen.times_us,
        overrides.why,
    )


def _nearest(
    operation: str, chosen: Selection, missing: Algorithm
) -> tuple[Selection, str]:
    """Return the best algorithm with a program by the cost model, and a note on the missing one."""
    priced = [key for key in _algorithm_keys(chosen) if chosen.times_us[key] > 0]
    if not priced:
        raise InputError(
            f"{operation}: {missing.value} has no program here and is the only algorithm allowed"
        )
    algorithm, protocol = min(priced, key=lambda key: chosen.times_us[key])
    note = f"{algorithm.value} {protocol.value} in place of {missing.value}"
    return replace(chosen, algorithm=algorithm, protocol=protocol), note


def _algorithm_keys(chosen: Selection) -> list[tuple[Algorithm, Protocol]]:
    return [key for key in chosen.times_us if (key[0], chosen.collective) in WRITERS]


def runnable(comm: Communicator, operation: str) -> list[tuple[Algorithm, Protocol]]:
    """Return NCCL's candidates for a collective on this communicator that have programs."""
    return _algorithm_keys(comm.select(COLLECTIVE_OF[operation], 1 << 20))


def way_of(comm: Communicator, plan: NcclPlan | None) -> Way:
    """Return algorithm and protocol of a plan, or of sends and receives without a plan."""
    if plan is None:
        return Way("P2P", "Simple", comm.p2p_channels)
    chosen = plan.selection
    return Way(chosen.algorithm.value, chosen.protocol.value, plan.num_channels)


def plan_ways(
    comm: Communicator, collective: Collective | None, sizes: Sequence[int]
) -> list[Way]:
    """Return the plans of a collective at every size, or of sends and receives without a collective."""
    if collective is None:
        return [way_of(comm, None)]
    return [way_of(comm, comm.plan(collective, max(1, size))) for size in sizes]


@dataclass(frozen=True)
class Members:
    """A communicator of ranks that were given in any order.

    Attributes
    ----------
    position : tuple of int
        Per rank in the given order, its position in `comm`.
    used : str
        Source of rings and trees, as text.
    """

    comm: Communicator
    position: tuple[int, ...]
    used: str = "rings and trees re-planned"


GroupLike = Sequence[int] | Members


class Communicators:
    """The communicators of a job on a fabric. A group is its ranks of the fabric, or a communicator that is set up.

    Parameters
    ----------
    version, settings
        NCCL's release and environment.
    """

    def __init__(
        self,
        fabric: Fabric,
        version: Version = LATEST,
        settings: Settings | None = None,
    ) -> None:
        self.fabric, self.version, self.settings = fabric, version, settings
        self._known: dict[tuple[int, ...] | None, Members] = {}
        self._choices: dict[tuple[object, ...], tuple[Members, Choice]] = {}

    @staticmethod
    def knows(operation: str) -> bool:
        """Return True if NCCL has an operation."""
        return operation in OF_NCCL

    def of(self, group: GroupLike | None) -> Members:
        """Return the communicator of a group; None is all GPUs, in the communicator's order."""
        if isinstance(group, Members):
            return group
        key = None if group is None else tuple(group)
        if key not in self._known:
            comm = communicator(self.fabric, self.version, self.settings, ranks=key)
            at = {rank: position for position, rank in enumerate(comm.ranks)}
            self._known[key] = Members(
                comm, tuple(at[rank] for rank in key or comm.ranks)
            )
        return self._known[key]

    def adopt(self, ranks: Sequence[int], members: Members) -> None:
        """Use a communicator that is set up already."""
        self._known[tuple(ranks)] = members

    def choice(
        self,
        group: GroupLike,
        moved: CollectivePayload,
        overrides: Wanted | None = None,
    ) -> Choice:
        """Return the plan of a collective."""
        members = self.of(group)
        key = (id(members), moved.operation, moved.bytes, moved.dtype, overrides)
        if key not in self._choices:
            result = choose(
                members.comm,
                moved.operation,
                moved.bytes,
                element_bytes=element(moved.dtype).size_bytes,
                overrides=overrides,
            )
            # Keeps the communicator alive while its id is a key.
            self._choices[key] = members, result
        return self._choices[key][1]

    def collective(
        self,
        site: Site,
        group: GroupLike,
        moved: CollectivePayload,
        overrides: Wanted | None = None,
    ) -> list[int]:
        """Append a collective; dependencies in `site` and the returned tasks are per rank in the given order.

        Raises
        ------
        InputError
            The operation is not NCCL's, or no usable algorithm has a program.
        """
        members = self.of(group)
        root = members.position[moved.root] if moved.root >= 0 else ABSENT
        tasks = emit(
            _reorder_site(site, members.position),
            self.fabric,
            members.comm,
            replace(moved, root=root),
            self.choice(members, moved, overrides).plan,
        )
        return [tasks[at] for at in members.position]

    def messages(
        self, site: Site, group: GroupLike, messages: Sequence[tuple[int, int, int]]
    ) -> list[int]:
        """Append a launch of messages (source, target, bytes), which count in the ranks as given."""
        members = self.of(group)
        position = members.position
        placed = [
            (position[src], position[dst], size) for src, dst, size in messages
        ]
        tasks = emit_messages(
            _reorder_site(site, position), self.fabric, members.comm, placed
        )
        return [tasks[at] for at in position]

    def puts(
        self, site: Site, group: GroupLike, puts: Sequence[tuple[int, int, int]]
    ) -> list[tuple[int, ...]]:
        """Append puts (source, target, bytes), which count in the ranks as given; see `emit_puts`."""
        members = self.of(group)
        ranks = [members.comm.ranks[position] for position in members.position]
        return emit_puts(site, self.fabric, ranks, puts)


@lru_cache(24)
def shared_communicators(
    fabric: Fabric, version: Version, env: tuple[tuple[str, str], ...]
) -> Communicators:
    """Return the communicators of a fabric, release and environment, which runs of a process share."""
    return Communicators(fabric, version, parse_env(dict(env)))


def _reorder_site(site: Site, position: Sequence[int]) -> Site:
    """Return a site with its dependencies in the order of the communicator."""
    if site.after is None:
        return site
    result: list[Iterable[int]] = [()] * len(site.after)
    for at, deps in zip(position, site.after, strict=True):
        result[at] = deps
    return replace(site, after=result)
