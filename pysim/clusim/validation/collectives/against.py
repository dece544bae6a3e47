"""Measured curve of nccl-tests (`measuredcurve`) against its prediction, and hypotheses that explain a deviation.

If the median of a regime of sizes deviates, `clusim.validation.collectives.causes` ranks possible
explanations, at the smallest deviating sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.json_schema import JsonObject, Round2, Round3
from clusim.base.tables import text_table, wrap_line
from clusim.base.terms.times import REGIMES
from clusim.base.units import format_size
from clusim.nccltests.api import Table
from clusim.nccltests.jobs import Progress
from clusim.nccltests.table import PerfLine
from clusim.simulation.expected import Expected, MeasuredError
from clusim.simulation.session import Watch
from clusim.validation.collectives.causes import CauseSearch, FoundCauses, misfit_pct
from clusim.validation.collectives.measuredcurve import MeasuredCurve

DEVIATING = 1.1
"""Ratio of measured to predicted time, or its inverse, above which the median of a regime of sizes deviates.

Assumed: somewhat more than the median error of independent rows in most nodes (docs/accuracy.md).
"""

UNEXPLAINED = 0.5
"""Share of the unchanged system's deviation that a cause which explains a measurement leaves at most; assumed."""

APART_PCT = 3
"""Difference of misfits below which the error of the model hides which cause is closer [%].

Assumed: about the median error of large sizes on one node (docs/accuracy.md).
"""

SHOWN = 8
"""Most hypotheses in text."""

WIDTH = 44
"""Columns of a cause."""

_LAYOUT = "{:>9}  {:>14}  {:>14}  {:>8}  {}"


@dataclass(frozen=True, slots=True)
class AgainstRow(JsonObject):
    """A measured size and its prediction; `error_pct` is positive for too long predictions."""

    size_bytes: int
    measured_us: float
    predicted_us: float
    error_pct: float
    algorithm: str

    def text(self) -> str:
        """Return the row as printed."""
        cells = (
            format_size(self.size_bytes),
            f"{self.measured_us:,.2f} us",
            f"{self.predicted_us:,.2f} us",
            f"{self.error_pct:+.1f}%",
            self.algorithm,
        )
        return next(iter(text_table(_LAYOUT, [cells])))


@dataclass(frozen=True, slots=True)
class RankedCause(JsonObject):
    """A simulated cause.

    Attributes
    ----------
    titles : list of str
        Causes with equal times.
    change : str
        Options of ``clusim`` that make the first.
    misfit_pct : float
        Mean deviation of the measured from the simulated times [%].
    times_us : dict
        Size [bytes] -> simulated time [us].
    """

    titles: tuple[str, ...]
    change: str
    misfit_pct: Round2
    times_us: dict[str, Round3]


@dataclass(frozen=True, slots=True)
class Against(JsonObject):
    """Measured times against predicted times.

    Attributes
    ----------
    found_errors : list
        Errors of the rows of every entry of `expected_errors`.
    misfit_pct : float
        Mean deviation of the measured from the predicted times, at the sizes of the hypotheses [%].
    hypotheses : list
        By misfit; empty if the measurement does not deviate.
    dropped : list of str
        Hypotheses that fit worse than others at the first sizes.
    unfinished : str
        Hypotheses and sizes that a time limit omitted; empty if complete.
    not_simulated : dict
        Cause that cannot be simulated -> reason.
    notes : list of str
        Assumed properties of the measurement, and omitted rows.
    """

    KEYS = (
        "path=curve.path",
        "rows",
        "found_errors",
        "misfit_pct",
        "hypotheses",
        "dropped=dropped_titles",
        "unfinished=omitted_part",
        "not_simulated",
        "notes=curve.notes",
    )

    curve: MeasuredCurve
    table: Table
    found: FoundCauses | None = None

    @property
    def measured_us(self) -> dict[int, float]:
        """Return the measured time of every selected size [us]."""
        return {
            size: self.curve.times_us[size] for size in self.table.options.listed
        }

    @property
    def predicted_us(self) -> dict[int, float]:
        """Return the predicted time of every size [us]."""
        return {line.size: line.halves[0].time_us for line in self.table.lines}

    @property
    def misfit_pct(self) -> Round2:
        """Return the mean deviation of the measured from the predicted times at the simulated sizes [%]."""
        sizes = (self.found.sizes if self.found else ()) or self.table.options.listed
        return misfit_pct(self.curve.times_us, self.predicted_us, sizes)

    @property
    def dropped_titles(self) -> tuple[str, ...]:
        """Hypotheses that fit worse than others at the first sizes."""
        return self.found.dropped if self.found else ()

    @property
    def omitted_part(self) -> str:
        """Part that a time limit omitted."""
        return self.found.unfinished if self.found else ""

    def rows(self) -> list[AgainstRow]:
        """Return a row per size."""
        return [row_of(self.curve, line) for line in self.table.lines]

    def expectations(self) -> Iterator[tuple[Expected, MeasuredError | None]]:
        """Yield the expected errors, each with the error of its rows."""
        errors_pct = {row.size_bytes: row.error_pct for row in self.rows()}
        for expected, sizes in self.table.expected.items():
            yield expected, MeasuredError.of(errors_pct[size] for size in sizes)

    @property
    def found_errors(self) -> list[MeasuredError]:
        """Return the errors of the rows of every expected error that has rows."""
        return [error for _, error in self.expectations() if error]

    @property
    def hypotheses(self) -> list[RankedCause]:
        """Return the causes by misfit."""
        return [
            RankedCause(
                cause.titles,
                cause.change,
                cause.misfit_pct(self.curve.times_us),
                {str(size): us for size, us in cause.times_us.items()},
            )
            for cause in (self.found.causes if self.found else ())
        ]

    @property
    def not_simulated(self) -> dict[str, str]:
        """Return the reason of every cause that cannot be simulated."""
        return dict(self.found.failed) if self.found else {}

    def lines(self) -> Iterator[str]:
        """Yield the text: a row per size, expected errors, and the best hypotheses."""
        yield from head_lines(self.curve, self.table)
        yield from (row.text() for row in self.rows())
        yield from self.error_lines()
        yield from self.cause_lines()

    def error_lines(self) -> Iterator[str]:
        """Yield the expected and found errors, and notes."""
        yield ""
        for expected, error in self.expectations():
            yield f"  {expected.text()}"
            yield from [f"    {error.text()}"] if error else []
        yield from (f"  note: {text}" for text in self.curve.notes)

    def cause_lines(self) -> Iterator[str]:
        """Yield the hypotheses by misfit; hypotheses worse than the unchanged system by name only."""
        if self.found is None:
            yield (
                "  no hypothesis simulated: the median of no range of sizes is more than"
                f" {DEVIATING:g} times longer or shorter than the prediction"
            )
            return
        sizes = ", ".join(map(format_size, self.found.sizes)) or "no size"
        yield from hypothesis_lines(
            self.hypotheses, self.found, self.misfit_pct, sizes
        )


def hypothesis_lines(
    causes: Sequence[RankedCause], search: FoundCauses, unchanged_pct: float, at: str
) -> Iterator[str]:
    """Yield hypotheses by misfit, and what they leave; hypotheses worse than unchanged by name only.

    Parameters
    ----------
    unchanged_pct : float
        Misfit of the unchanged system [%].
    at : str
        The compared times.
    """
    yield ""
    yield f"hypotheses: mean deviation of the measurement at {at}"
    closer = [cause for cause in causes if cause.misfit_pct < unchanged_pct]
    rows = [(f"{unchanged_pct:.1f}%", "unchanged system", "")]
    rows += [
        (f"{cause.misfit_pct:.1f}%", titles_text(cause.titles), cause.change)
        for cause in closer[:SHOWN]
    ]
    yield from text_table(f"  {{:>7}}  {{:<{WIDTH}}}  {{}}", rows)
    for cause in closer[:SHOWN]:
        if "equal)" in titles_text(cause.titles):
            equal = ", ".join(cause.titles[1:])
            yield from wrap_line(f"  equal to {cause.titles[0]}: {equal}")
    titles = {title for cause in closer for title in cause.titles}
    worse = [cause.titles[0] for cause in causes if cause not in closer]
    worse = [title for title in (*worse, *search.dropped) if title not in titles]
    if worse:
        yield from wrap_line(f"  worse: {', '.join(dict.fromkeys(worse))}")
    for title, why in search.failed:
        yield from wrap_line(f"  not simulated: {title}: {why}")
    if search.unfinished:
        yield from wrap_line(f"  {search.unfinished}")
    yield from _judgement(closer, unchanged_pct)


def _judgement(closer: Sequence[RankedCause], unchanged_pct: float) -> Iterator[str]:
    """Yield that no cause explains the measurement, or the causes indistinguishable from the best."""
    if not closer:
        yield "  none explains the measurement: no change is closer than the unchanged system"
        return
    least_pct = closer[0].misfit_pct
    if least_pct > UNEXPLAINED * unchanged_pct:
        yield f"  none explains the measurement: the best leaves {least_pct:.1f}% of deviation"
        return
    close_titles = [
        cause.titles[0]
        for cause in closer[1:]
        if cause.misfit_pct - least_pct < APART_PCT
    ]
    if close_titles:
        yield from wrap_line(
            f"  not separable from the first ({APART_PCT}%): {', '.join(close_titles)}"
        )


def titles_text(titles: Sequence[str]) -> str:
    """Return the titles of causes with equal times; more than fit are counted."""
    text = " or ".join(titles)
    return text if len(text) <= WIDTH else f"{titles[0]} ({len(titles) - 1} equal)"


def head_lines(curve: MeasuredCurve, table: Table) -> Iterator[str]:
    """Yield the title of a comparison, and the titles of its columns.

    Raises
    ------
    InputError
        The curve is of another number of GPUs.
    """
    setup = table.where.setup
    if curve.num_ranks not in (0, setup.num_ranks):
        raise InputError(
            f"{curve.path}: {curve.num_ranks} GPUs; {setup.name} runs {setup.num_ranks}: change --nodes or -g"
        )
    yield f"{table.test.binary} on {setup.name}, {setup.num_ranks} GPUs: {curve.path}"
    yield ""
    yield from text_table(
        _LAYOUT, [("size", "measured", "predicted", "error", "algorithm")]
    )


def row_of(curve: MeasuredCurve, line: PerfLine) -> AgainstRow:
    """Return the row of a predicted size."""
    measured_us, predicted_us = curve.times_us[line.size], line.halves[0].time_us
    error_pct = round(100 * (predicted_us / measured_us - 1), 2)
    return AgainstRow(
        line.size, measured_us, round(predicted_us, 3), error_pct, line.algorithm
    )


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation of a measured curve.

    Attributes
    ----------
    sizes : tuple of int
        The smallest and the middle deviating size of each deviating regime, the size before the smallest, and one of
        each other regime, ascending [bytes].
    agreeing : frozenset of int
        Elements of `sizes` that do not deviate.
    slow : bool
        True if a regime is slower than predicted.
    """

    sizes: tuple[int, ...]
    agreeing: frozenset[int]
    slow: bool


def deviation_of(
    measured_us: Mapping[int, float], predicted_us: Mapping[int, float]
) -> Deviation | None:
    """Return the deviation of a curve; None if the median of no regime of sizes deviates."""
    ratios = {
        size: us / predicted_us[size] for size, us in sorted(measured_us.items())
    }
    agreeing = [
        size for size, ratio in ratios.items() if 1 / DEVIATING <= ratio <= DEVIATING
    ]
    deviating: list[int] = []
    controls: list[int] = []
    slow = False
    for low, high in REGIMES.values():
        regime = {
            size: ratio for size, ratio in ratios.items() if low <= size < high
        }
        middle = median(regime.values()) if regime else 1.0
        alike = [size for size in agreeing if size in regime]
        if 1 / DEVIATING <= middle <= DEVIATING:
            controls += sorted(alike, key=lambda size: abs(log(ratios[size])))[:1]
            continue
        slow |= middle > 1
        sizes = [
            size for size, ratio in regime.items() if (ratio > 1) == (middle > 1)
        ]
        sizes = [size for size in sizes if size not in alike]
        deviating += (sizes[0], sizes[len(sizes) // 2])
        controls += [size for size in agreeing if size < sizes[0]][-1:]
    if not deviating:
        return None
    return Deviation(
        tuple(sorted({*deviating, *controls})), frozenset(controls), slow
    )


@dataclass(frozen=True, slots=True)
class Search:
    """Means of a search for causes.

    Attributes
    ----------
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.
    progress : callable or None
        Called with the completed and total numbers of simulations.
    limit_ps : int or None
        Wall-clock limit of the search [ps]; None is unlimited.
    """

    jobs: Jobs = None
    progress: Progress | None = None
    limit_ps: int | None = None


def compare(
    curve: MeasuredCurve, table: Table, search: Search = Search()
) -> Against:
    """Compare a curve with the prediction of all its sizes; if it deviates, rank the hypotheses.

    Raises
    ------
    InputError
        The curve is of another number of GPUs.
    """
    list(head_lines(curve, table))
    result = Against(curve, table)
    deviation = deviation_of(result.measured_us, result.predicted_us)
    if deviation is None:
        return result
    causes = CauseSearch(
        table,
        deviation.sizes,
        curve.times_us,
        agreeing=deviation.agreeing,
        choices_only=not deviation.slow,
        watch=Watch(search.limit_ps),
        progress=search.progress,
    )
    return replace(result, found=causes.causes(search.jobs))
