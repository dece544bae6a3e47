"""Interval of the time of a run, from the bounds of the figures of its hardware.

**Model** Figures with bounds are independent variables (`clusim.topology.uncertain`): half of the probability is
below the value and half above, uniform up to each bound. The run is simulated, with its plan, at both bounds of each
variable, if they change the image, and at the quarters in between, if they change the time by 1%. The sum of all
effects, linear between simulated places, is drawn 16,384 times. The systems of the first 16 draws, or 64 with scatter,
are simulated directly. A line through their times by the sum corrects it for effects that depend on each other: a
faster link does not help if another part limits the run, and the order of packets changes once, not once per figure.
The deviations from the line are added as scatter. The interval contains 90% of the corrected draws.

**Measured times** include launch, host, start and end, and errors of the model's form. Their interval follows
from the errors of comparable measured rows (`clusim.simulation.expected`), or from the bounds above where
these are wider.
**Not modelled** Correlations, such as parts of a step with a measured sum; bounds of plans and of values in topology
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ClusimError, TimeLimitReached
from clusim.base.records import dataclass
from clusim.engine.image import DTYPES, Image
from clusim.results.result import Result
from clusim.results.sensitivity import (
    LEAST_SHOWN,
    Contribution,
    Interval,
    MeasuredInterval,
)
from clusim.simulation.expected import expected_of
from clusim.simulation.plan import Plan, lower_on, written
from clusim.simulation.request import Request, ScheduleRequest
from clusim.topology import Fabric, load
from clusim.topology.uncertain import (
    UncertainFigure,
    loaded_again,
    scale_figures,
    uncertain_figures,
)

Arrays = Mapping[str, Array]

LEVEL = 0.9
"""Probability of the interval."""

DRAWS = 1 << 14
"""Draws of the sum of effects."""

QUARTERS = (-0.75, -0.5, -0.25, 0.25, 0.5, 0.75)
"""Further simulated places of figures with large effects."""

JOINT = (16, 64)
"""Draws with a simulated system; the second number if they scatter."""

SCATTER = 0.2
"""Largest share of the standard deviation by scatter for the first number."""

PROBES = (1.25, 0.8)
"""Factors of figures without bounds, which show whether they affect a run."""

LEAST = 0.001
"""Smallest change of a run by a probe for which a figure is named, as a share of the time."""


@dataclass(frozen=True)
class Variants:
    """A planned run on the same system with other figures."""

    planned: Plan

    @cached_property
    def variables(self) -> list[UncertainFigure]:
        """Figures of the run that are not exact."""
        return uncertain_figures(self.planned.topology)

    def scaled(self, factors: Mapping[UncertainFigure, float]) -> dict[str, Array]:
        """Return the image of the run with figures times factors.

        Raises
        ------
        ClusimError
            The system is invalid with these figures, or cannot be built again.
        """
        options = self.planned.options
        with scale_figures(factors):
            setup = options.setup.on(self._fabric())
            schedule = self.planned.schedule
            if isinstance(options, Request):
                choice, request = self.planned.choice, replace(options, setup=setup)
                if choice is not None:
                    # The plan is kept, so that no graph is searched.
                    vars(setup)["comm"] = choice.comm
                    choice = replace(
                        choice, request=replace(choice.request, setup=setup)
                    )
                schedule = written(request, choice).schedule
            image = lower_on(setup, schedule, options).image
        return {name: getattr(image, name) for name in DTYPES}

    def with_links(self, what: str, factor: Fraction) -> Image:
        """Return the image of the same programs on links `factor` times as fast; see `with_faster_links`."""
        from clusim.topology.changes import with_faster_links

        setup = self.planned.setup
        faster = setup.on(with_faster_links(setup.fabric, what, factor))
        return lower_on(faster, self.planned.schedule, self.planned.options).image

    def interval(
        self, image: Arrays, time_ps: int, simulate: Callable[[Arrays], int]
    ) -> Interval:
        """Return the interval of the time of the run; see `interval_of`."""
        return interval_of(self, image, time_ps, simulate)

    def nccl_interval(
        self, result: Result, kernel: Interval | None = None
    ) -> MeasuredInterval | None:
        """Return the interval that nccl-tests would measure; see `measured_interval`."""
        return measured_interval(self.planned, result, kernel)

    def _fabric(self) -> Fabric:
        """Return the fabric of the run, loaded again."""
        setup = self.planned.setup
        if isinstance(setup.topology, Fabric):
            return loaded_again(setup.topology)
        return load(setup.topology, nodes=setup.nodes)


def interval_of(
    variants: Variants,
    image: Arrays,
    time_ps: int,
    simulate: Callable[[Arrays], int],
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


def measured_interval(
    planned: Plan, result: Result, kernel: Interval | None
) -> MeasuredInterval | None:
    """Return the interval of the times that nccl-tests would measure; None without a single collective.

    Parameters
    ----------
    kernel : Interval or None
        Interval of the kernel's time.
    """
    if result.call is None or isinstance(planned.options, ScheduleRequest):
        return None
    expected = expected_of(planned, result.call.algorithm)
    if expected.nearest is None:
        return MeasuredInterval(note=expected.why)
    time_ps = result.launched_ps
    if time_ps is None:
        return MeasuredInterval(
            note="launches of overlapping iterations are not timed"
        )
    parts = [expected.nearest.low_pct, expected.nearest.high_pct]
    low_ps, high_ps = (time_ps + round(time_ps * part / 100) for part in parts)
    if kernel is not None and not kernel.note:
        low_ps = min(low_ps, time_ps + kernel.low_ps - result.time_ps)
        high_ps = max(high_ps, time_ps + kernel.high_ps - result.time_ps)
    return MeasuredInterval(low_ps, high_ps, time_ps, expected.nearest.origin)


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
        curves: dict[UncertainFigure, dict[float, int]] = {}
        unknown: dict[str, int] = {}
        for item in self.variants.variables:
            curve = self._curve(item) if item.has_bounds else None
            if curve is None:
                unknown[item.name] = self._probed_ps(item)
            elif any(curve.values()):
                curves[item] = curve
        rows = [_contribution(item, curve) for item, curve in curves.items()]
        rows.sort(key=lambda row: (-row.half_width_ps, row.figure))
        named = [
            name for name, part in unknown.items() if part >= LEAST * self.time_ps
        ]
        named.sort(key=lambda name: (-unknown[name], name))
        low_ps, high_ps = self._ends(curves)
        return Interval(low_ps, high_ps, rows, named)

    def _curve(self, item: UncertainFigure) -> dict[float, int] | None:
        """Return the change of the time [ps] by place of a figure between its bounds; None if a bound is invalid."""
        curve = {place: self._effect_ps({item: place}) for place in (-1.0, 1.0)}
        present = [part for part in curve.values() if part is not None]
        if len(present) < len(curve):
            return None
        if max(map(abs, present)) >= LEAST_SHOWN * self.time_ps:
            curve |= {place: self._effect_ps({item: place}) for place in QUARTERS}
        curve[0.0] = 0
        return {
            place: part for place, part in sorted(curve.items()) if part is not None
        }

    def _effect_ps(self, places: Mapping[UncertainFigure, float]) -> int | None:
        """Return the change of the time with figures at places between their bounds [ps]; None: invalid."""
        return self._change_ps(
            {item: item.factor(place) for item, place in places.items()}
        )

    def _change_ps(self, factors: Mapping[UncertainFigure, float]) -> int | None:
        try:
            arrays = self.variants.scaled(factors)
            return (
                0
                if _same(arrays, self.base)
                else self.simulate(arrays) - self.time_ps
            )
        except TimeLimitReached:
            raise
        except ClusimError:
            return None

    def _probed_ps(self, item: UncertainFigure) -> int:
        """Return the largest change of the time by another value of a figure [ps]; of a structure, 0."""
        return max(abs(self._change_ps({item: factor}) or 0) for factor in PROBES)

    def _ends(
        self, curves: Mapping[UncertainFigure, Mapping[float, int]]
    ) -> tuple[int, int]:
        """Return both ends of the interval [ps]."""
        random = np.random.default_rng(0)
        places = random.uniform(-1, 1, (DRAWS, len(curves)))
        sums = np.zeros(DRAWS)
        for column, curve in zip(places.T, curves.values(), strict=True):
            sums += np.interp(column, list(curve), list(curve.values()))
        changes: list[int] = []
        for joint in JOINT if len(curves) > 1 else ():
            for row in places[len(changes) : joint].tolist():
                part = self._effect_ps(dict(zip(curves, row, strict=True)))
                changes += [part] if part is not None else []
            if len(changes) < joint:
                break  # invalid together
            slope, shift = np.polyfit(sums[:joint], changes, 1)
            residual = changes - shift - slope * sums[:joint]
            if np.std(residual) < SCATTER * np.std(changes) or joint == JOINT[-1]:
                sums = shift + slope * sums + random.choice(residual, DRAWS)
                break
        ends = self.time_ps + np.quantile(sums, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return max(0, round(ends[0])), round(ends[1])


def _contribution(item: UncertainFigure, curve: Mapping[float, int]) -> Contribution:
    half_ps = round((max(curve.values()) - min(curve.values())) / 2)
    return Contribution(item.name, item.bounds, half_ps, curve[-1.0], curve[1.0])
