"""Interval of the time of a run, from the bounds of the figures of its hardware.

**Model** Every figure with bounds is a variable: half of its probability is below its value and half above, uniform up
to each bound. Figures with the same text (value, mark, source) are one variable, for example the latency of all
NVLinks; all others are independent. The run is re-simulated at both bounds of each variable whose bounds change its
image, with the plan of the run. Effects of several variables are added, linear between value and bound, and drawn
16,384 times; the interval contains 90% of the draws. At each end, one more simulation, with all variables moved in
proportion to their effects, replaces the sum by the simulated time: a faster link, for example, may not help when
another part limits the run.
**Not modelled** Correlations, such as parts of a step whose sum was measured; bounds of plans, given values of topology
files, and errors of the model itself, which `clusim.simulation.expected` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import ClusimError
from clusim.engine.image import DTYPES
from clusim.hardware import KERNELS, all_figures
from clusim.hardware.figures import Figure, bounds_words, scaled_figures
from clusim.lowering import lower
from clusim.results.sensitivity import Contribution, Interval
from clusim.simulation.plan import Plan, written
from clusim.simulation.request import Request
from clusim.topology import Fabric, load

Array = NDArray[Any]
Arrays = Mapping[str, Array]

LEVEL = 0.9
"""Probability of the interval."""

DRAWS = 1 << 14
"""Draws of the sum of effects."""

PROBES = (1.25, 0.8)
"""Factors of figures without bounds, which show whether they affect a run."""

LEAST = 0.001
"""Smallest change of a run by one of these factors for which the figure is named, as a share of the time."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """Figure of a run's hardware.

    Attributes
    ----------
    name : str
        Its places, as in ``clusim topo show --figures``.
    """

    name: str
    figure: Figure

    def factor(self, place: float) -> float:
        """Return the factor of the figure at a place between its bounds (-1 and 1); 0 is its value."""
        low, high = self.figure.limits or (1.0, 1.0)
        return 1 + abs(place) * ((low if place < 0 else high) - 1)


@dataclass(frozen=True)
class Variants:
    """A planned run on the same system with other figures."""

    planned: Plan

    @cached_property
    def variables(self) -> list[Variable]:
        """Figures of the run that are not exact."""
        known = {str(figure): figure for figure in all_figures()}
        places: dict[str, list[str]] = {}
        for place, text in self.planned.topology.sources.items():
            if text in known:
                places.setdefault(text, []).append(place.removeprefix("network: "))
        for key, figure in KERNELS.items():
            places.setdefault(str(figure), []).append(f"kernels: {key}")
        found = [Variable(_name(names), known[text]) for text, names in places.items()]
        return [item for item in found if item.figure.limits != (1.0, 1.0)]

    def image(self, places: Mapping[Variable, float]) -> dict[str, Array]:
        """Return the image of the run with figures at places between their bounds.

        Raises
        ------
        ClusimError
            The system is invalid with these figures, or cannot be built again.
        """
        return self.scaled({item: item.factor(place) for item, place in places.items()})

    def scaled(self, factors: Mapping[Variable, float]) -> dict[str, Array]:
        """Return the image of the run with scaled figures; errors as of `image`."""
        asked = self.planned.options
        with scaled_figures({str(item.figure): factor for item, factor in factors.items()}):
            setup = asked.setup.on(self._fabric())
            schedule = self.planned.schedule
            if isinstance(asked, Request):
                choice, request = self.planned.choice, replace(asked, setup=setup)
                if choice is not None:
                    # The plan is kept, so that no graph is searched.
                    vars(setup)["comm"] = choice.comm
                    choice = replace(choice, request=replace(choice.request, setup=setup))
                schedule = written(request, choice).schedule
            image = lower(
                *(setup.fabric, schedule, asked.granularity, asked.seed), faults=setup.broken.faults
            ).image
        return {name: getattr(image, name) for name in DTYPES}

    def _fabric(self) -> Fabric:
        """Return the fabric of the run, loaded again."""
        setup = self.planned.setup
        if isinstance(setup.topology, Fabric):
            return load(setup.topology.name)
        return load(setup.topology, nodes=setup.nodes)


def _name(places: list[str]) -> str:
    """Return one name for all places of a figure."""
    stem = places[0].rpartition(": ")[0]
    if all(place.rpartition(": ")[0] == stem for place in places):
        return ", ".join([places[0], *(place.rpartition(": ")[2] for place in places[1:])])
    return f"{places[0]} and {len(places) - 1} more"


def interval_of(
    variants: Variants, image: Arrays, time_ps: int, simulate: Callable[[Arrays], int]
) -> Interval:
    """Return the interval of the time of a run.

    Parameters
    ----------
    image : mapping
        Image of the run.
    simulate : callable
        Returns the time of an image [ps].
    """
    try:
        same = _same(variants.scaled({}), image)
    except ClusimError:
        same = False
    if not same:
        note = "no interval: the system was changed after it was loaded; use its preset or file"
        return Interval(time_ps, time_ps, note=note)
    return _Bounded(variants, image, time_ps, simulate).interval()


def _same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in DTYPES)


@dataclass(frozen=True)
class _Bounded:
    """Effects of the bounds of all figures on a run."""

    variants: Variants
    base: Arrays
    time_ps: int
    simulate: Callable[[Arrays], int]

    def interval(self) -> Interval:
        """Return the interval."""
        effects: dict[Variable, tuple[int, int]] = {}
        unknown: dict[str, int] = {}
        for item in self.variants.variables:
            if item.figure.limits is not None:
                try:
                    effects[item] = self._effect({item: -1.0}), self._effect({item: 1.0})
                    continue
                except ClusimError:
                    pass  # invalid at a bound
            unknown[item.name] = self._probed_ps(item)
        effects = {item: pair for item, pair in effects.items() if any(pair)}
        low_ps, high_ps = (self.time_ps + part for part in self._ends(effects))
        rows = [_contribution(item, *pair) for item, pair in effects.items()]
        rows.sort(key=lambda row: (-row.half_width_ps, row.figure))
        named = [name for name, part in unknown.items() if part >= LEAST * self.time_ps]
        return Interval(
            max(0, low_ps), high_ps, rows, sorted(named, key=lambda name: (-unknown[name], name))
        )

    def _effect(self, places: Mapping[Variable, float]) -> int:
        """Return the change of the time with figures at places between their bounds [ps]."""
        return self._change_ps(self.variants.image(places))

    def _change_ps(self, arrays: Arrays) -> int:
        return 0 if _same(arrays, self.base) else self.simulate(arrays) - self.time_ps

    def _probed_ps(self, item: Variable) -> int:
        """Return the largest change of the time by another value of a figure [ps]; of a structure, 0."""
        found = [0]
        for factor in PROBES:
            with suppress(ClusimError):
                found.append(abs(self._change_ps(self.variants.scaled({item: factor}))))
        return max(found)

    def _ends(self, effects: Mapping[Variable, tuple[int, int]]) -> Iterator[int]:
        """Yield both ends of the interval, as changes of the time [ps]."""
        pairs = np.array(list(effects.values()), np.float64).reshape(-1, 2)
        places = np.random.default_rng(0).uniform(-1, 1, (DRAWS, len(pairs)))
        sums = np.where(places < 0, -places * pairs[:, 0], places * pairs[:, 1]).sum(axis=1)
        for sign, share in ((-1, (1 - LEVEL) / 2), (1, (1 + LEVEL) / 2)):
            found_ps = float(np.quantile(sums, share))
            yield round(found_ps + self._interaction_ps(effects, sign))

    def _interaction_ps(self, effects: Mapping[Variable, tuple[int, int]], sign: int) -> float:
        """Return the deviation of a simulation from the sum of effects, with all variables at a likely place [ps].

        The place has the largest density of all places with its sum, for normal variables with effects as large.
        """
        best = {item: max(sign * low, sign * high) for item, (low, high) in effects.items()}
        best = {item: part for item, part in best.items() if part > 0}
        total_ps = float(np.sqrt(sum(part**2 for part in best.values())))
        if len(best) < 2:
            return 0.0
        places = {
            item: part / total_ps * (1 if part == sign * effects[item][1] else -1)
            for item, part in best.items()
        }
        try:
            return self._effect(places) - sign * total_ps
        except ClusimError:
            return 0.0


def _contribution(item: Variable, low_ps: int, high_ps: int) -> Contribution:
    low, high = item.figure.limits or (1.0, 1.0)
    bounds = bounds_words(item.figure.value, (low, high))
    half_ps = round((max(0, low_ps, high_ps) - min(0, low_ps, high_ps)) / 2)
    return Contribution(item.name, bounds, half_ps, low_ps, high_ps)
