"""The cheapest of several systems on which a training step is short enough.

A system has 1, 2, 4, ... nodes until its fastest layout reaches the time. Numbers of nodes whose lower bounds exceed it
are not estimated. More nodes cost more per hour, so the first number that reaches the time is the cheapest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round6, Round9
from clusim.studies.plan.search import PhaseNotice, PlanSpace
from clusim.topology import load
from clusim.training.api import inputs
from clusim.workload import Workload


@dataclass(frozen=True, slots=True)
class PricedStep(JsonObject):
    """Fastest estimated step of a system with a number of nodes, and its price.

    Attributes
    ----------
    system : str
        Name of the system, with its nodes.
    gpus : int
        Its GPUs.
    words : str
        The fastest layout; empty if no layout fits, or no bound reaches the time.
    step_time_s : float or None
        Estimated time of a step, or its lower bound without an estimate [s]; None if no layout fits.
    price_per_hour, price_per_step : float
        Price of all GPUs, in the unit of the prices; per step is of `step_time_s`, 0 without an estimate.
    reaches : bool
        The step is short enough.
    cheapest : bool
        No other system that reaches the time has a lower price per hour.
    """

    system: str
    gpus: int
    words: str
    step_time_s: Round9 | None
    price_per_hour: Round6
    price_per_step: Round6
    reaches: bool
    cheapest: bool = False


@dataclass(frozen=True, slots=True)
class PricedClusters(JsonObject):
    """Systems for a training job, and which of them is the cheapest.

    Attributes
    ----------
    workload : str
        Name of the workload.
    within_s : float
        Longest step [s].
    steps : list
        Systems and numbers of nodes, in the order in which they were tried.
    """

    workload: str
    within_s: Round9
    steps: list[PricedStep]


@dataclass(frozen=True, slots=True)
class PricedSearch:
    """Systems, their prices and the time that a step must reach.

    Attributes
    ----------
    prices : mapping
        Systems, and the price of a GPU hour of each, in any unit.
    within_s : float
        Longest step [s].
    node_limit : int or None
        Largest number of nodes of a system; None is 1,024.
    estimates : int
        Layouts that are estimated for each number of nodes.
    """

    prices: Mapping[str, float]
    within_s: float
    node_limit: int | None = None
    estimates: int = 8


def priced_clusters(
    workload: Workload, of: PricedSearch, notify: PhaseNotice = lambda _: None
) -> PricedClusters:
    """Return the systems on which the fastest layout has a step of at most `within_s`, and the cheapest of them.

    Parameters
    ----------
    notify : callable
        Called with the name of each phase.

    Raises
    ------
    InputError
        A time that is not positive.
    TopologyError
        An unknown system.
    """
    if of.within_s <= 0:
        raise InputError(f"time of a step: {of.within_s:g} s; must be above 0")
    for name in of.prices:
        load(name)  # an unknown system is an error before the first search
    rows: list[PricedStep] = []
    for name in of.prices:
        for nodes in _numbers_of_nodes(name, of.node_limit or 1024):
            setup, spec = inputs(workload, name, nodes)
            space = PlanSpace(setup, spec, partial(_notify, notify, setup.name))
            rows.append(_fastest(space, name, of))
            if rows[-1].reaches:
                break
    lowest = min((row.price_per_hour for row in rows if row.reaches), default=None)
    return PricedClusters(
        workload.name,
        of.within_s,
        [
            replace(row, cheapest=row.reaches and row.price_per_hour == lowest)
            for row in rows
        ],
    )


def _notify(notify: PhaseNotice, system: str, phase: str) -> None:
    """Call `notify` with the name of a phase of a system."""
    notify(f"{system}: {phase}")


def _numbers_of_nodes(name: str, limit: int) -> Iterator[int | None]:
    """Yield 1, 2, 4, ... nodes; None for a system with a number in its name."""
    if ":" in name:
        yield None
        return
    nodes = 1
    while nodes <= limit:
        yield nodes
        nodes *= 2


def _fastest(space: PlanSpace, name: str, of: PricedSearch) -> PricedStep:
    """Return the fastest layout of a system, estimated if a bound is short enough."""
    candidates = space.fitting()
    gpus = space.setup.fabric.num_ranks
    hourly = of.prices[name] * gpus
    row = PricedStep(space.setup.name, gpus, "", None, hourly, 0.0, False)
    if not candidates:
        return row
    least_s = min(one.bound_ps for one in candidates) / 1e12
    if least_s > of.within_s:
        return replace(row, step_time_s=least_s)
    step = space.search(candidates, of.estimates).steps[0]
    return replace(
        row,
        words=step.words,
        step_time_s=step.step_time_s,
        price_per_step=hourly * step.step_time_s / 3600,
        reaches=step.step_time_s <= of.within_s,
    )
