"""Algorithm of a call: the tuner's choice or a given one, as far as there are programs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.base.terms.algorithms import Algorithm, Protocol
from clusim.base.terms.operations import COLLECTIVE_OF, Collective
from clusim.nccl.communicator import Communicator, NcclPlan
from clusim.nccl.programs.api import WRITERS
from clusim.nccl.tuner import Selection, channels_and_threads


class Way(NamedTuple):
    """Algorithm and protocol of a collective, in NCCL's terms; ``P2P`` are sends and receives."""

    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True, slots=True)
class NcclOverrides:
    """An algorithm and a protocol that somebody else chose.

    Attributes
    ----------
    channels : int
        How many; 0 is what NCCL gives these two.
    model_us : float
        What NCCL's tuner expected where it chose them [us]; negative is unknown.
    why : str
        Who chose, for people.
    """

    algorithm: Algorithm
    protocol: Protocol
    channels: int = 0
    model_us: float = -1.0
    why: str = "asked for"


@dataclass(frozen=True, slots=True)
class Choice:
    """Plan of a collective.

    Attributes
    ----------
    plan : NcclPlan or None
        None is sends and receives.
    note : str
        What runs in place of what was chosen; empty if that itself does.
    as_wanted : bool
        Whether it is what was wanted, and not the tuner's.
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
    wanted: NcclOverrides | None = None,
) -> Choice:
    """Return the plan of an operation of a size.

    Parameters
    ----------
    operation, size_bytes
        As in `clusim.schedule.CollectiveCall`; what the tuner does not decide about is sends and receives.
    wanted : NcclOverrides or None
        What runs instead of the tuner's choice, if the communicator can do it.

    Raises
    ------
    InputError
        Nothing that the communicator could use has a program.
    """
    if operation not in COLLECTIVE_OF:
        return Choice(None)
    collective = COLLECTIVE_OF[operation]
    chosen = comm.select(collective, size_bytes)
    given = None if wanted is None else _given(comm, chosen, wanted)
    best = given or chosen
    note = ""
    if wanted is not None and given is None:
        note = f"{wanted.algorithm.value} {wanted.protocol.value} cannot run here"
    if (best.algorithm, collective) not in WRITERS:
        best, note = _nearest(operation, chosen, best.algorithm)
        given = None
    plan = comm.plan_of(best, element_bytes=min(element_bytes, size_bytes))
    return Choice(plan, note, given is not None)


def _given(comm: Communicator, chosen: Selection, wanted: NcclOverrides) -> Selection | None:
    """Return the request as a selection; None if the system cannot run it."""
    if wanted.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE) and not comm.group.nvls:
        return None
    threads = channels_and_threads(
        comm.table, wanted.algorithm, wanted.protocol, chosen.num_bytes, comm.lanes
    )
    if wanted.channels:
        threads = replace(threads, num_channels=min(wanted.channels, 64), why=wanted.why)
    key = wanted.algorithm, wanted.protocol
    time_us = wanted.model_us if wanted.model_us >= 0 else chosen.times_us.get(key, 0.0)
    return Selection(
        *(chosen.collective, chosen.num_bytes, *key),
        *(threads, time_us, chosen.times_us, wanted.why),
    )


def _nearest(operation: str, chosen: Selection, missing: Algorithm) -> tuple[Selection, str]:
    """Return the best by the cost model of what there are programs for, and what it stands in for."""
    known = [key for key in _written(chosen) if chosen.times_us[key] > 0]
    if not known:
        raise InputError(
            f"{operation}: there is no program for {missing.value}, the only algorithm allowed"
        )
    algorithm, protocol = min(known, key=lambda key: chosen.times_us[key])
    note = f"{algorithm.value} {protocol.value} in place of {missing.value}"
    return replace(chosen, algorithm=algorithm, protocol=protocol), note


def _written(chosen: Selection) -> list[tuple[Algorithm, Protocol]]:
    return [key for key in chosen.times_us if (key[0], chosen.collective) in WRITERS]


def runnable(comm: Communicator, operation: str) -> list[tuple[Algorithm, Protocol]]:
    """Return NCCL's candidates for a collective on this communicator, as far as there are programs for them."""
    return _written(comm.select(COLLECTIVE_OF[operation], 1 << 20))


def way_of(comm: Communicator, plan: NcclPlan | None) -> Way:
    """Return algorithm and protocol of a plan; without one, those of sends and receives."""
    if plan is None:
        return Way("P2P", "Simple", comm.p2p_channels)
    chosen = plan.selection
    return Way(chosen.algorithm.value, chosen.protocol.value, plan.num_channels)


def ways(comm: Communicator, collective: Collective | None, sizes: Sequence[int]) -> list[Way]:
    """Return the plans of a collective at every size; without one, those of sends and receives."""
    if collective is None:
        return [way_of(comm, None)]
    return [way_of(comm, comm.plan(collective, max(1, size))) for size in sizes]
