"""Simulation of hypotheses at some measured sizes, and their rank by the deviation from the measurement.

**Model** The misfit of a hypothesis (`clusim.validation.collectives.hypotheses`) is the mean of
``|ln(measured / simulated)|``, as a percentage. Sizes are simulated in ascending order: small sizes need
little time. Where the measurement agrees with the prediction, hypotheses that deviate by more than `REFUTED`
are dropped; at a deviating size, the worse half. Their granularity is ``quick``: the ratio to the unchanged
system's quick time corrects its predicted time. Hypotheses with the unchanged system's times, within
`SAME`, are omitted; hypotheses with equal times are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from statistics import fmean

from clusim.base.errors import InputError, TimeLimitReached
from clusim.base.executors import Jobs, Workers, workers
from clusim.base.terms.operations import COLLECTIVE_OF
from clusim.lowering import QUICK, parse_faults
from clusim.nccl.launch import host_of
from clusim.nccltests.api import Table
from clusim.nccltests.jobs import Failure, PerfKernel, Progress, until
from clusim.nccltests.sweep import harness_of, row_request
from clusim.simulation.request import Request
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from clusim.validation.collectives.hypotheses import CHOICE, Hypothesis, hypotheses

SAME = 0.01
"""Relative difference below which two times are equal; assumed, below the spread of measurements."""

REFUTED = 1.25
"""Ratio to a measurement that agrees with the prediction above which a hypothesis is dropped; assumed."""

LEAST_KEPT = 8
"""Hypotheses that are simulated at further sizes if half of all is less."""

Times = dict[int, float]
"""Size [bytes] -> time [us]."""


@dataclass(frozen=True, slots=True)
class SimulatedCause:
    """A hypothesis with its times.

    Attributes
    ----------
    titles : tuple of str
        Titles of the hypotheses with these times.
    times_us : dict of int to float
        Size [bytes] -> simulated time [us].
    """

    titles: tuple[str, ...]
    change: str
    times_us: Times

    def misfit_pct(self, measured_us: Mapping[int, float]) -> float:
        """Return the mean deviation of measured from these times, of their ratio's logarithm [%]."""
        return misfit_pct(measured_us, self.times_us, tuple(self.times_us))


def misfit_pct(
    measured_us: Mapping[int, float],
    simulated_us: Mapping[int, float],
    sizes: Sequence[int],
) -> float:
    """Return the mean of ``|ln(measured / simulated)|`` as a percentage."""
    return 100 * (
        exp(fmean(abs(log(measured_us[s] / simulated_us[s])) for s in sizes)) - 1
    )


def rank_causes(
    causes: Iterable[SimulatedCause], measured_us: Mapping[int, float]
) -> tuple[SimulatedCause, ...]:
    """Return causes by the deviation of a measurement from them, the best first."""
    return tuple(sorted(causes, key=lambda item: item.misfit_pct(measured_us)))


@dataclass(frozen=True, slots=True)
class FoundCauses:
    """Result of a search.

    Attributes
    ----------
    sizes : tuple of int
        Sizes at which all causes are simulated [bytes].
    causes : tuple of SimulatedCause
        By misfit; without causes that equal the unchanged system.
    dropped : tuple of str
        Hypotheses that fit worse than others at the first sizes.
    failed : tuple of (str, str)
        Title and reason of each hypothesis that cannot be simulated.
    unfinished : str
        Part that a time limit omitted; empty if complete.
    """

    sizes: tuple[int, ...] = ()
    causes: tuple[SimulatedCause, ...] = ()
    dropped: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unfinished: str = ""


@dataclass
class CauseSearch:
    """Search for the causes of a measured curve.

    Attributes
    ----------
    sizes : tuple of int
        Sizes in the order in which they are simulated [bytes].
    measured_us : dict or None
        Measured times; None simulates all hypotheses at all sizes.
    agreeing : frozenset of int
        Sizes with a measurement that agrees with the prediction [bytes].
    choices_only : bool
        True omits failed and slow parts, and disabled transports.
    watch : Watch
        Wall-clock limit.
    progress : callable or None
        Called with the completed and total numbers of simulations.
    """

    table: Table
    sizes: tuple[int, ...]
    measured_us: Mapping[int, float] | None = None
    agreeing: frozenset[int] = frozenset()
    choices_only: bool = False
    watch: Watch = field(default_factory=Watch)
    progress: Progress | None = None
    times_us: dict[str, Times] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    complete: list[int] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    _done: int = 0

    def causes(self, jobs: Jobs = None) -> FoundCauses:
        """Return the causes; at the time limit, the causes simulated before it."""
        unfinished = ""
        try:
            with workers(jobs, len(self.possible)) as spread:
                self._screen(spread)
        except TimeLimitReached:  # outside of the block, so that workers are killed
            unfinished = self._omitted_part()
        return FoundCauses(
            tuple(sorted(self.complete)),
            tuple(self._complete_causes()),
            tuple(self.dropped),
            tuple(self.failed.items()),
            unfinished,
        )

    def _omitted_part(self) -> str:
        """Return the part that the time limit omitted."""
        if not self.complete:
            self.complete += self.sizes[:1] if self.times_us else ()
            done = f"{len(self.times_us)} of {len(self.possible)} hypotheses at one size"
        else:
            done = f"hypotheses at {len(self.complete)} of {len(self.sizes)} sizes"
        return f"{self.watch.words} reached: {done}; a longer --time-limit continues"

    @cached_property
    def possible(self) -> list[Hypothesis]:
        """Hypotheses of the system, the cheapest first."""
        setup = self.table.where.setup
        collective = COLLECTIVE_OF.get(self.table.test.of.name)
        if collective is None:
            channels = setup.comm.p2p_channels
        else:
            plans = [setup.comm.plan(collective, size) for size in self.sizes]
            channels = max(plan.num_channels for plan in plans)
        candidates = hypotheses(setup, channels, collective)
        return [item for item in candidates if self._applies(item)]

    def _applies(self, item: Hypothesis) -> bool:
        """Return True if a system has the part that a hypothesis changes."""
        if self.choices_only and item.kind != CHOICE:
            return False
        try:
            parse_faults(item.setup.fabric, item.setup.faults)
        except InputError:
            return False
        return True

    def _screen(self, spread: Workers | None) -> None:
        """Simulate all hypotheses at the first size, and the better hypotheses at each further size."""
        remaining = self.possible
        for size in self.sizes:
            unchanged = self._quick(self.table.where.setup, size)
            unchanged_us = dict(until([unchanged], spread, self.watch))[unchanged]
            if isinstance(unchanged_us, Failure):
                raise InputError(unchanged_us.reason)
            base_us = self._time_us(self.table.where.setup, unchanged_us)
            cases = {self._quick(item.setup, size): item for item in remaining}
            for case, kernel in until(cases, spread, self.watch):
                self._note(cases[case], size, kernel, base_us)
            self.complete.append(size)
            if size != self.sizes[-1]:
                remaining = self._keep_hypotheses(remaining, size)

    def _note(
        self,
        item: Hypothesis,
        size: int,
        kernel: PerfKernel | Failure,
        base_us: float,
    ) -> None:
        """Keep the time of a hypothesis at a size, or the reason for its absence."""
        self._done += 1
        if self.progress is not None:
            self.progress(
                self._done, max(self._done, len(self.possible) * len(self.sizes))
            )
        if isinstance(kernel, Failure):
            self.times_us.pop(item.title, None)
            if (
                item.kind != CHOICE
            ):  # NCCL ends with an error if a forced choice is impossible
                self.failed[item.title] = kernel.reason
            return
        share = self._time_us(item.setup, kernel) / base_us
        self.times_us.setdefault(item.title, {})[size] = (
            share * self._predicted_us[size]
        )

    def _keep_hypotheses(
        self, remaining: list[Hypothesis], size: int
    ) -> list[Hypothesis]:
        """Return the hypotheses that are simulated at further sizes, in their order."""
        simulated = [item for item in remaining if item.title in self.times_us]
        if self.measured_us is None:
            return simulated
        if size in self.agreeing:
            time_us = self.measured_us[size]
            ratios = {
                item.title: self.times_us[item.title][size] / time_us
                for item in simulated
            }
            titles = {
                title
                for title, ratio in ratios.items()
                if 1 / REFUTED < ratio < REFUTED
            }
        else:
            by_misfit = sorted(simulated, key=self._misfit_pct)
            titles = {
                item.title
                for item in by_misfit[: max(LEAST_KEPT, len(simulated) // 2)]
            }
        self.dropped += [
            item.title for item in simulated if item.title not in titles
        ]
        return [item for item in simulated if item.title in titles]

    def _misfit_pct(self, item: Hypothesis) -> float:
        assert self.measured_us is not None
        times_us = self.times_us[item.title]
        return misfit_pct(self.measured_us, times_us, tuple(times_us))

    def _complete_causes(self) -> list[SimulatedCause]:
        """Return the causes with times at all completed sizes, by misfit; equal causes are merged."""
        unchanged = SimulatedCause(
            (), "", {s: self._predicted_us[s] for s in self.complete}
        )
        complete = []
        for item in self.possible if self.complete else ():
            times_us = self.times_us.get(item.title, {})
            if times_us.keys() >= set(self.complete):
                times = {size: times_us[size] for size in self.complete}
                complete.append(SimulatedCause((item.title,), item.change, times))
        causes = merge_causes(unchanged, complete)
        return (
            causes
            if self.measured_us is None
            else list(rank_causes(causes, self.measured_us))
        )

    @cached_property
    def _predicted_us(self) -> Times:
        return {line.size: line.halves[0].time_us for line in self.table.lines}

    @cached_property
    def _heads(self) -> dict[int, tuple[int, int, str, str]]:
        lines = self.table.lines
        return {
            line.size: (line.size, line.count, line.type, line.redop)
            for line in lines
        }

    def _quick(self, setup: Setup, size: int) -> Request:
        where = replace(self.table.where, setup=setup)
        options = replace(self.table.options, check=0)
        request = row_request(where, self.table.test, options, self._heads[size])
        return replace(request, granularity=QUICK)

    def _time_us(self, setup: Setup, kernel: PerfKernel) -> float:
        host = kernel.host or host_of(setup.comm)
        harness = harness_of(self.table.options, self.table.where.kind)
        return harness.time_ps(host, self.table.test.of.name, kernel) / 1e6


def merge_causes(
    unchanged: SimulatedCause, causes: Iterable[SimulatedCause]
) -> list[SimulatedCause]:
    """Return causes that differ from the unchanged system; causes with equal times are one."""
    result = [unchanged]
    for cause in causes:
        equal = next(
            (n for n, o in enumerate(result) if _same(cause.times_us, o.times_us)),
            None,
        )
        if equal is None:
            result.append(cause)
        else:
            result[equal] = replace(
                result[equal], titles=(*result[equal].titles, *cause.titles)
            )
    return result[1:]


def _same(times: Times, other_times: Times) -> bool:
    return all(abs(log(us / other_times[size])) < SAME for size, us in times.items())
