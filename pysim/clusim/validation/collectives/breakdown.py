"""Errors of predicted collectives: points, scores, and unknown launches.

**Counting.** The error of a row is the error of its time, in percent; + is predicted too long. Median and mean use the
absolute errors, the bias is the mean of the signed errors. A further mean considers the spread: a measurement with
repetitions `s` percent apart cannot be predicted better than that, so an error of at most `s` counts as 0, and the row
has the weight 100 / (100 + s). Rows without a spread have the weight 1.

**Unknown launches.** A row without a launch has a prediction for every possible launch: a job has one process that
drives all GPUs of its node by one thread (``-g``) or by one thread each (``-t``), or one process per GPU; its
iterations may be a CUDA graph. All launches share the kernel. **Not modelled** Unknown hosts, NICs and drivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.base.json_schema import JsonObject
from clusim.base.terms.times import REGIMES, place_of
from clusim.nccl.launch import Host, Launch
from clusim.nccltests.jobs import PerfKernel
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.measured import Prediction, errors

LAUNCH_MATTERS = 1.02
"""Ratio of the longest to the shortest prediction above which an unknown launch changes the time.

Below, it is less than the repeatability of most measurements.
"""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Shortest and longest prediction [us] over the unknown properties of a row.

    `why` names these properties.
    """

    low_us: float
    high_us: float
    why: str

    def wider(self, times_us: Iterable[float], why: str) -> TimeSpan:
        """Return the span extended by more times, for another reason."""
        times = [self.low_us, self.high_us, *times_us]
        return TimeSpan(min(times), max(times), f"{self.why} and {why}" if self.why else why)


def span_json(span: TimeSpan | None) -> dict[str, Any]:
    """Return the columns of a span; None values if everything is known."""
    if span is None:
        return {"predicted_low_us": None, "predicted_high_us": None, "unknown": None}
    low, high = round(span.low_us, 3), round(span.high_us, 3)
    return {"predicted_low_us": low, "predicted_high_us": high, "unknown": span.why}


def launches(group: CurveGroup) -> list[Launch]:
    """Return the possible launches of measurements: the known one, or the likeliest first."""
    if group.launch_known:
        return [group.launch]
    graph, has = group.cuda_graph, group.per_node
    result = [Launch(has, graph), Launch(1, graph, threads=has), Launch(1, graph), Launch(1, True)]
    return list(dict.fromkeys([group.launch, *result]))


def times_us(row: Row, host: Host, operation: str, kernel: PerfKernel) -> list[float]:
    """Return the reported time of a kernel for every possible launch of the row [us]."""
    known = host, operation, kernel.time_ps, kernel.channels
    ways = launches(row.group)
    return [replace(row.harness, launch=way).time_ps(*known) / 1e6 for way in ways]


def launch_span(row: Row, host: Host, operation: str, kernel: PerfKernel) -> TimeSpan | None:
    """Return the span of a row's prediction over launches; None if its launch is known."""
    if row.group.launch_known:
        return None
    times = times_us(row, host, operation, kernel)
    return TimeSpan(min(times), max(times), "launch")


@dataclass(frozen=True)
class Point(Prediction):
    """A measured row and its prediction.

    Attributes
    ----------
    predicted_us : float
        Time of an iteration [us].
    algorithm, protocol : str
        Executed algorithm and protocol, by NCCL's names.
    notes : tuple of str
        Approximations of the simulation, and assumptions.
    family : str
        Architecture of the GPUs.
    followed : bool
        Whether the time was extrapolated from other runs.
    machines : int
        Number of simulated nodes; 0 is the row's number. A rack with trays joined by NVLink is one.
    span : TimeSpan or None
        Range over all possible values of properties that the row does not give.
    """

    row: Row
    predicted_us: float
    algorithm: str
    protocol: str
    notes: tuple[str, ...]
    family: str = ""
    followed: bool = False
    machines: int = 0
    span: TimeSpan | None = None

    @property
    def times(self) -> tuple[float, float]:
        """Measured and predicted time [us]."""
        return self.row.time_us, self.predicted_us

    @property
    def off(self) -> float:
        """Return the error as a ratio, equal for too long and too short times."""
        ratio = self.predicted_us / self.row.time_us
        return max(ratio, 1 / ratio)

    @property
    def place(self) -> str:
        """Return the class by number of nodes: one or several."""
        return place_of(self.machines or self.row.group.n_nodes)

    @property
    def met(self) -> bool:
        """True if the prediction is within the spread of the repetitions."""
        return self.row.spread_pct > 0 and abs(self.error_pct) <= self.row.spread_pct

    @property
    def within_launches(self) -> bool:
        """True if the measured time is in the range of its possible launches."""
        span = self.span
        return (
            self.launch_open
            and span is not None
            and span.low_us <= self.row.time_us <= span.high_us
        )

    @property
    def launch_open(self) -> bool:
        """True if nccl-tests measured it with an unknown launch that changes the time."""
        group, span = self.row.group, self.span
        if group.launch_known or group.harness not in ("", "nccl-tests") or span is None:
            return False
        return span.high_us > LAUNCH_MATTERS * span.low_us

    @property
    def ran(self) -> str:
        """Executed algorithm and protocol."""
        return f"{self.algorithm} {self.protocol}".strip()


@dataclass(frozen=True, slots=True)
class Score(JsonObject):
    """Errors of predictions in percent; None without rows.

    Attributes
    ----------
    n : int
        Rows.
    median_abs_pct, mean_abs_pct, bias_pct : float or None
        Median and mean of the absolute errors; mean of the signed errors.
    by_spread_pct : float or None
        Mean of the absolute errors beyond the spread of repetitions; rows with a large spread have less weight.
    spread, met : int
        Rows with a known spread, and the part with an error within it.
    followed : int
        Rows with extrapolated times.
    """

    n: int
    median_abs_pct: float | None
    mean_abs_pct: float | None
    bias_pct: float | None
    by_spread_pct: float | None
    spread: int
    met: int
    followed: int


def score(points: Sequence[Point]) -> Score:
    """Return the errors of some rows' predictions."""
    weights = [100 / (100 + point.row.spread_pct) for point in points]
    beyond = [0.0 if point.met else abs(point.error_pct) for point in points]
    weighted = sum(w * size for w, size in zip(weights, beyond, strict=True))
    return Score(
        **errors(points),
        by_spread_pct=round(weighted / sum(weights), 2) if points else None,
        spread=sum(point.row.spread_pct > 0 for point in points),
        met=sum(point.met for point in points),
        followed=sum(point.followed for point in points),
    )


@dataclass(frozen=True, slots=True)
class RegimeScores(JsonObject):
    """Scores below 1 MiB, below 64 MiB and above."""

    small: Score
    mid: Score
    large: Score


def regime_scores(points: Sequence[Point]) -> RegimeScores:
    """Return the scores of every regime."""
    return RegimeScores(**statistics(points))


def statistics(points: Sequence[Point]) -> dict[str, Score]:
    """Return the scores of every regime of size."""
    return {
        name: score([point for point in points if low <= point.row.size_bytes < high])
        for name, (low, high) in REGIMES.items()
    }
