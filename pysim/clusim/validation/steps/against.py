"""Measured steps of a job against the prediction, and hypotheses that explain a deviation.

Hypotheses (`clusim.validation.steps.causes`) are simulated as the step was, or estimated, until a time limit. They are
ranked by the deviation of the median measured step, as for collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from clusim.base.errors import ClusimError, TimeLimitReached
from clusim.base.json_schema import JsonObject, Round2, Round3, Round9
from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim.simulation.session import Watch
from clusim.training.estimate import stepped
from clusim.training.request import TrainRequest
from clusim.training.result import StepResult
from clusim.validation.collectives.against import (
    DEVIATING,
    RankedCause,
    hypothesis_lines,
)
from clusim.validation.collectives.causes import (
    FoundCauses,
    SimulatedCause,
    merge_causes,
    rank_causes,
)
from clusim.validation.steps.causes import step_hypotheses
from clusim.validation.steps.steplog import StepLog, spread_of

STEP = 0
"""Key of the time of the step in `SimulatedCause.times_us`."""

VARYING = 0.1
"""Distance of the quartiles of measured steps, as a share of their median, that a note names; assumed."""

Tell = Callable[[int, int], None]
"""Callback with the completed and total numbers of hypotheses."""


@dataclass(frozen=True)
class StepAgainst(JsonObject):
    """Measured steps against a predicted step.

    Attributes
    ----------
    kind : str
        Program of the log, or CSV.
    steps : int
        Measured steps after the first.
    spread : float
        Distance of their quartiles, as a share of the median.
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    misfit_pct : float
        Deviation of the measured from the predicted step [%].
    hypotheses : list
        By misfit; empty if the measurement does not deviate.
    unfinished : str
        Hypotheses that a time limit omitted; empty if complete.
    not_simulated : dict
        Hypothesis that cannot be simulated -> reason.
    """

    KEYS = (
        "path=log.path",
        "kind=log.kind",
        "steps",
        "measured_s",
        "spread",
        "predicted_s",
        "error_pct",
        "misfit_pct",
        "hypotheses",
        "unfinished=omitted_part",
        "not_simulated",
    )

    log: StepLog
    times_s: list[float]
    result: StepResult
    found: FoundCauses | None = None

    @property
    def steps(self) -> int:
        """Return the number of measured steps."""
        return len(self.times_s)

    @property
    def measured_s(self) -> Round9:
        """Return the median measured step [s]."""
        return median(self.times_s)

    @property
    def predicted_s(self) -> Round9:
        """Return the predicted step [s]."""
        return self.result.step_time_s

    @property
    def spread(self) -> Round3:
        """Return the distance of the quartiles of the measured steps, as a share of their median."""
        return spread_of(self.times_s)

    @property
    def error_pct(self) -> Round2:
        """Return the signed error of the prediction [%]."""
        return 100 * (self.predicted_s / self.measured_s - 1)

    @property
    def unchanged_cause(self) -> SimulatedCause:
        """Return the unchanged step as a cause."""
        return SimulatedCause((), "", {STEP: 1e6 * self.predicted_s})

    @property
    def measured_us(self) -> dict[int, float]:
        """Return the median measured step in the form of measured curves [us]."""
        return {STEP: 1e6 * self.measured_s}

    @property
    def misfit_pct(self) -> Round2:
        """Return the deviation of the measured from the predicted step [%]."""
        return self.unchanged_cause.misfit_pct(self.measured_us)

    @property
    def deviates(self) -> bool:
        """True if the measured step is more than `DEVIATING` times longer or shorter than predicted."""
        return self.misfit_pct > 100 * (DEVIATING - 1)

    @property
    def hypotheses(self) -> list[RankedCause]:
        """Return the causes by misfit."""
        return [
            RankedCause(
                cause.titles,
                cause.change,
                cause.misfit_pct(self.measured_us),
                {"step": cause.times_us[STEP]},
            )
            for cause in (self.found.causes if self.found else ())
        ]

    @property
    def omitted_part(self) -> str:
        """Part that a time limit omitted."""
        return self.found.unfinished if self.found else ""

    @property
    def not_simulated(self) -> dict[str, str]:
        """Return the reason of every hypothesis that cannot be simulated."""
        return dict(self.found.failed) if self.found else {}

    def lines(self) -> Iterator[str]:
        """Yield the text: measured and predicted step, the parts of the prediction, and hypotheses."""
        yield f"against {self.log.path}: {self.steps} steps of {self.log.kind}, the first omitted"
        difference_s = self.measured_s - self.predicted_s
        rows = [
            (
                "measured",
                _time(self.measured_s),
                f"median; quartiles {self.spread:.1%} apart",
            ),
            ("predicted", _time(self.predicted_s), f"{self.error_pct:+.1f}%"),
            ("difference", _time(difference_s), "measured less predicted"),
        ]
        parts = {"compute": "compute", "exposed": "exposed communication"}
        parts |= {"bubble": "bubble", "host": "waiting for the host", "idle": "idle"}
        for part, label in parts.items():
            part_s = self.result.mean(part)
            if part_s >= 0.01 * self.predicted_s:
                share = part_s / self.predicted_s
                rows.append(
                    (f"  {label}", _time(part_s), f"{share:.1%} of the prediction")
                )
        yield from text_table("  {:<..}  {:>..}  {}", rows)
        yield f"  {self.result.expected_text and 'expected error: ' + self.result.expected_text}"
        if self.spread > VARYING:
            yield "  note: measured steps vary: data loading, stragglers or other jobs change with time"
        if self.found is None:
            yield (
                f"  no hypothesis simulated: the step is not more than {DEVIATING:g} times longer or"
                " shorter than the prediction"
            )
            return
        yield from hypothesis_lines(
            self.hypotheses, self.found, self.misfit_pct, "the step"
        )


def _time(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    return sign + format_time(round(abs(seconds) * 1e12))


@dataclass
class StepSearch:
    """Search for the causes of a measured step.

    Attributes
    ----------
    limit_ps : int or None
        Wall-clock limit of the search [ps]; None is unlimited.
    run : callable
        Simulates or estimates the step of a request.
    """

    request: TrainRequest
    limit_ps: int | None = None
    tell: Tell | None = None
    run: Callable[[TrainRequest], StepResult] = stepped

    def causes(
        self, unchanged: SimulatedCause, measured_us: dict[int, float]
    ) -> FoundCauses:
        """Return the causes by misfit; at the time limit, the causes simulated before it."""
        watch, possible = Watch(self.limit_ps), list(step_hypotheses(self.request))
        times, failed, unfinished = list[SimulatedCause](), dict[str, str](), ""
        for number, item in enumerate(possible):
            try:
                watch.begins("the next hypothesis was simulated")
                result = self.run(item.request)
            except TimeLimitReached:
                unfinished = (
                    f"{watch.words} reached: {number} of {len(possible)} hypotheses; a longer"
                    " --time-limit continues"
                )
                break
            except ClusimError as error:
                failed[item.title] = str(error)
                continue
            times_us = {STEP: 1e6 * result.step_time_s}
            times.append(SimulatedCause((item.title,), item.change, times_us))
            if self.tell is not None:
                self.tell(number + 1, len(possible))
        causes = rank_causes(merge_causes(unchanged, times), measured_us)
        return FoundCauses((STEP,), causes, (), tuple(failed.items()), unfinished)


def compare_step(
    log: StepLog, request: TrainRequest, search: StepSearch | None = None
) -> StepAgainst:
    """Compare measured steps with the prediction of a request; if they deviate, rank the hypotheses.

    Raises
    ------
    InputError
        The log is of another batch.
    """
    search = search or StepSearch(request)
    result = search.run(request)
    batch = request.workload.batch.all
    pace = result.throughput.tokens_per_s
    tokens = pace * result.step_time_s / result.plan.mesh.size
    compared = StepAgainst(log, log.times_s(batch, tokens), result)
    if not compared.deviates:
        return compared
    return replace(
        compared, found=search.causes(compared.unchanged_cause, compared.measured_us)
    )
