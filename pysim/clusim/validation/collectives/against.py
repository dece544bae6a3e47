"""Measured curve of nccl-tests against its prediction, and hypotheses that explain a slow system.

If a regime of sizes is slow, `clusim.validation.collectives.causes` ranks what may explain it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from clusim.base.errors import InputError
from clusim.base.executors import Jobs
from clusim.base.json_schema import JsonObject, Round2, Round3
from clusim.base.limits import read_text
from clusim.base.tables import folded, text_table
from clusim.base.terms.times import REGIMES
from clusim.base.units import format_size
from clusim.formats.logs import read_logs
from clusim.nccltests.api import Table
from clusim.nccltests.jobs import Progress
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import Program, program_named
from clusim.simulation.expected import Expected, MeasuredError
from clusim.validation.collectives.causes import (
    SimulatedCause,
    misfit_pct,
    ranked,
    simulated_causes,
)

SAMPLED = 6
"""Most sizes at which a hypothesis is simulated."""

SLOW = 1.1
"""Ratio of measured to predicted time, the median of a regime of sizes, above which a system is slow.

Assumed: somewhat more than the median error of independent rows in most nodes (docs/accuracy.md).
"""

UNEXPLAINED = 0.5
"""Share of the unchanged system's deviation that a cause which explains a measurement leaves at most; assumed."""

SHOWN = 8
"""Most hypotheses in text."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Measured times by size, and their launch.

    Attributes
    ----------
    times_us : dict of int to float
        Size [bytes] -> median time of its rows [us].
    dtype, redop : str
        Type and reduction of the rows, by nccl-tests' names.
    gpus, threads : int
        ``-g`` and ``-t`` of the program; 0 if the output does not contain them.
    num_ranks : int
        0 if the output does not contain it.
    omitted : int
        Rows of the program with another type, reduction, root or number of ranks than its first row.
    """

    path: str
    times_us: dict[int, float]
    dtype: str
    redop: str
    gpus: int = 0
    threads: int = 0
    num_ranks: int = 0
    omitted: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumed properties of the measurement, and omitted rows."""
        notes = []
        if not self.gpus and not self.threads:
            notes.append("launch not in the file: set by -g and -t, one process per GPU without")
        if self.omitted:
            kind = " ".join(word for word in (self.dtype, self.redop) if word != "none")
            notes.append(f"{self.omitted} rows omitted: not {kind} as the first row")
        return tuple(notes)

    def applied(self, options: PerfOptions) -> PerfOptions:
        """Return the flags with the measured sizes, and the curve's type, reduction and launch if not given.

        ``-b`` and ``-e`` select measured sizes.

        Raises
        ------
        InputError
            A step of sizes is given, or no measured size is selected.
        """
        steps = sorted(options.given & {"i", "f"})
        if steps:
            raise InputError(f"-{steps[0]}: sizes are read from {self.path}; select with -b and -e")
        least = options.minbytes if "b" in options.given else 0
        most = options.maxbytes if "e" in options.given else max(self.times_us)
        sizes = tuple(size for size in self.times_us if least <= size <= most)
        if not sizes:
            raise InputError(f"{self.path}: no row from {least} to {most} bytes")
        missing = {
            "d": ("datatype", self.dtype),
            "o": ("op", self.redop if self.redop != "none" else ""),
            "g": ("ngpus", self.gpus),
            "t": ("nthreads", self.threads),
        }
        taken: dict[str, Any] = {
            name: value
            for letter, (name, value) in missing.items()
            if value and letter not in options.given
        }
        if options.given & {"g", "t"}:
            taken.pop("ngpus", None)
            taken.pop("nthreads", None)
        return replace(options, **taken, listed=sizes)


def read_curve(path: str | Path, test: Program) -> MeasuredCurve:
    """Return the rows of a program in an nccl-tests output; out of place where both are measured.

    Rows of another type, reduction, root or number of ranks than the first are omitted and counted.

    Raises
    ------
    InputError
        The file has no row of the program.
    """
    first_line = next((line for line in read_text(path, strict=False).splitlines() if line), "")
    if "," in first_line and "time_us" in first_line:
        raise InputError(f"{path}: a CSV table; compare it with `clusim validate {path}`")
    runs = [run for run in read_logs([str(path)]).runs if run.sizes]
    named = [run for run in runs if _may_be(run.collective(), test)]
    if not named:
        others = sorted({run.collective() or "unknown" for run in runs})
        has = f"; it has {', '.join(others)}" if others else ""
        raise InputError(f"{path}: no rows of {test.binary}{has}")
    first = named[0]
    kind = first.types[0], first.ops[0], first.roots[0], first.n_ranks
    times: dict[int, list[float]] = {}
    omitted = 0
    for run in named:
        both = zip(run.column("time"), run.column("time_in_place"), strict=True)
        kinds = zip(run.types, run.ops, run.roots, strict=True)
        for size, (outside, inside), row in zip(run.sizes, both, kinds, strict=True):
            time_us = outside if outside > 0 else inside
            if (*row, run.n_ranks) != kind:
                omitted += 1
            elif size > 0 and time_us > 0:
                times.setdefault(size, []).append(float(time_us))
    if not times:
        raise InputError(f"{path}: no row of {test.binary} with a size and a time above 0")
    return MeasuredCurve(
        str(path),
        {size: median(some) for size, some in sorted(times.items())},
        *(first.types[0], first.ops[0]),
        *(first.config.get("nGpus", 0), first.config.get("nThread", 0), first.n_ranks),
        omitted,
    )


def _may_be(collective: str, test: Program) -> bool:
    return test.name in (program_named(word).name for word in collective.split(" or ") if word)


@dataclass(frozen=True, slots=True)
class AgainstRow(JsonObject):
    """A measured size and its prediction; `error_pct` is positive for too long predictions."""

    size_bytes: int
    measured_us: float
    predicted_us: float
    error_pct: float
    algorithm: str


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
        By misfit; empty if the measurement is not slower than predicted.
    not_simulated : dict
        Cause that cannot be simulated -> reason.
    notes : list of str
        Assumed properties of the measurement, and omitted rows.
    """

    KEYS = (
        *("path=curve.path", "rows", "found_errors", "misfit_pct", "hypotheses", "not_simulated"),
        "notes=curve.notes",
    )

    curve: MeasuredCurve
    table: Table
    sampled: tuple[int, ...]
    explained: tuple[SimulatedCause, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()

    @property
    def measured_us(self) -> dict[int, float]:
        """Return the measured time of every selected size [us]."""
        return {size: self.curve.times_us[size] for size in self.table.options.listed}

    @property
    def predicted_us(self) -> dict[int, float]:
        """Return the predicted time of every size [us]."""
        return {line.size: line.halves[0].time_us for line in self.table.lines}

    @property
    def misfit_pct(self) -> Round2:
        """Return the mean deviation of the measured from the predicted times at the sampled sizes [%]."""
        return misfit_pct(self.curve.times_us, self.predicted_us, self.sampled)

    def rows(self) -> list[AgainstRow]:
        """Return a row per size."""
        predicted = self.predicted_us
        algorithms = {line.size: line.algorithm for line in self.table.lines}
        errors_pct = {
            s: round(100 * (predicted[s] / us - 1), 2) for s, us in self.measured_us.items()
        }
        return [
            AgainstRow(size, time_us, round(predicted[size], 3), errors_pct[size], algorithms[size])
            for size, time_us in self.measured_us.items()
        ]

    def expectations(self) -> Iterator[tuple[Expected, MeasuredError | None]]:
        """Yield the expected errors, each with the error of its rows."""
        errors_pct = {row.size_bytes: row.error_pct for row in self.rows()}
        for expected, sizes in self.table.expected.items():
            yield expected, MeasuredError.of(errors_pct[size] for size in sizes)

    @property
    def found_errors(self) -> list[MeasuredError]:
        """Return the errors of the rows of every expected error that has rows."""
        return [found for _, found in self.expectations() if found]

    @property
    def hypotheses(self) -> list[RankedCause]:
        """Return the causes by misfit."""
        times_us = self.curve.times_us
        return [
            RankedCause(
                cause.titles, cause.change, cause.misfit_pct(times_us), {str(s): us for s, us in cause.times_us.items()}
            )
            for cause in self.explained
        ]  # fmt: skip

    @property
    def not_simulated(self) -> dict[str, str]:
        """Return the reason of every cause that cannot be simulated."""
        return dict(self.failed)

    def lines(self) -> Iterator[str]:
        """Yield the text: a row per size, and the best hypotheses."""
        setup = self.table.where.setup
        yield f"{self.table.test.binary} on {setup.name}, {setup.num_ranks} GPUs: {self.curve.path}"
        yield ""
        cells = [("size", "measured", "predicted", "error", "algorithm")]
        for row in self.rows():
            cells.append(
                (
                    format_size(row.size_bytes),
                    f"{row.measured_us:,.2f} us",
                    f"{row.predicted_us:,.2f} us",
                    f"{row.error_pct:+.1f}%",
                    row.algorithm,
                )
            )
        yield from text_table("{:>9}  {:>14}  {:>14}  {:>8}  {}", cells)
        yield ""
        for expected, found in self.expectations():
            yield f"  {expected.text()}"
            yield from [f"    {found.text()}"] if found else []
        yield from (f"  note: {text}" for text in self.curve.notes)
        if not self.explained and not self.failed:
            yield (
                f"  no hypothesis simulated: in no range of sizes is the measurement slower than {SLOW:g} times the"
                " prediction"
            )
            return
        yield ""
        sizes = ", ".join(map(format_size, self.sampled))
        yield f"hypotheses: mean deviation of the measurement at {sizes}"
        rows = [(f"{self.misfit_pct:.1f}%", "unchanged system", "")]
        misfits = [item.misfit_pct(self.curve.times_us) for item in self.explained]
        closer = sum(misfit < self.misfit_pct for misfit in misfits)
        rows += [
            (f"{misfit:.1f}%", " or ".join(item.titles), item.change)
            for misfit, item in zip(misfits[: min(SHOWN, closer)], self.explained, strict=False)
        ]
        yield from text_table("  {:>7}  {:<40}  {}", rows)
        if closer < len(misfits):
            further = ", ".join(item.titles[0] for item in self.explained[closer:])
            yield from folded(f"  worse than the unchanged system: {further}")
        for title, why in self.failed:
            yield from folded(f"  not simulated: {title}: {why}")
        best = self.explained[0] if self.explained else None
        left_pct = self.misfit_pct if best is None else best.misfit_pct(self.curve.times_us)
        if left_pct > UNEXPLAINED * self.misfit_pct:
            yield f"  none explains the measurement: the best leaves {left_pct:.1f}% of deviation"


def sampled(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return at most `SAMPLED` sizes, evenly spaced and including the largest."""
    if len(sizes) <= SAMPLED:
        return tuple(sizes)
    return tuple(sizes[round(at * (len(sizes) - 1) / (SAMPLED - 1))] for at in range(SAMPLED))


def is_slow(measured_us: dict[int, float], predicted_us: dict[int, float]) -> bool:
    """Return True if the median of a regime of sizes is slower than `SLOW` times the prediction."""
    for low, high in REGIMES.values():
        ratios = [us / predicted_us[s] for s, us in measured_us.items() if low <= s < high]
        if ratios and median(ratios) > SLOW:
            return True
    return False


def compare(
    curve: MeasuredCurve,
    table: Table,
    *,
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> Against:
    """Compare a curve with its prediction; if it is slow, rank the hypotheses.

    Parameters
    ----------
    table : Table
        Prediction of all sizes of the curve.
    jobs : int or Executor or None
        Number of worker processes, or an executor; None is one per core, 1 works in this process.

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
    result = Against(curve, table, sampled(table.options.listed))
    if not is_slow(result.measured_us, result.predicted_us):
        return result
    causes, failed = simulated_causes(table, result.sampled, jobs=jobs, progress=progress)
    return replace(result, explained=ranked(causes, curve.times_us), failed=failed)
