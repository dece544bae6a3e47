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

from clusim.base.json_schema import IfKnown, JsonObject, Round2, Round3
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
        return TimeSpan(
            min(times), max(times), f"{self.why} and {why}" if self.why else why
        )


def launches(group: CurveGroup) -> list[Launch]:
    """Return the possible launches of measurements: the known one, or the likeliest first."""
    if group.launch_known:
        return [group.launch]
    graph, has = group.cuda_graph, group.per_node
    result = [
        Launch(has, graph),
        Launch(1, graph, threads=has),
        Launch(1, graph),
        Launch(1, True),
    ]
    return list(dict.fromkeys([group.launch, *result]))


def times_us(
    row: Row, host: Host, operation: str, kernel: PerfKernel
) -> list[float]:
    """Return the reported time of a kernel for every possible launch of the row [us]."""
    return [
        replace(row.harness, launch=launch).time_ps(host, operation, kernel) / 1e6
        for launch in launches(row.group)
    ]


def launch_span(
    row: Row, host: Host, operation: str, kernel: PerfKernel
) -> TimeSpan | None:
    """Return the span of a row's prediction over launches; None if its launch is known."""
    if row.group.launch_known:
        return None
    times = times_us(row, host, operation, kernel)
    return TimeSpan(min(times), max(times), "launch")


@dataclass(frozen=True)
class Point(Prediction, JsonObject):
    """A measured row and its prediction.

    `algorithm` and `protocol` are those executed, by NCCL's names.

    Attributes
    ----------
    spread_pct : float or None
        Spread of its repetitions [%].
    predicted_low_us, predicted_high_us : float or None
        Range over all possible values of properties that the row does not give, which are `unknown` [us].
    error_pct : float
        Signed error of the prediction [%]; + is too long.
    ran : str
        Algorithm and protocol.
    calibrated : list of str
        The sets of rows that calibrated parameters and contain this row.
    where : str
        File and line.
    predicted_us : float
        Time of an iteration [us].
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

    KEYS = (
        "*row.group",
        "source=row.source",
        "iters=row.iters?",
        "size_bytes=row.size_bytes",
        "measured_us=row.time_us",
        "spread_pct=row.spread_pct?",
        "predicted_us",
        "predicted_low_us",
        "predicted_high_us",
        "unknown",
        "error_pct=signed_pct",
        "ran=executed",
        "calibrated=calibration_sets",
        "followed",
        "notes",
        "where=row.where",
    )

    row: Row
    predicted_us: Round3
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
        if (
            group.launch_known
            or group.harness not in ("", "nccl-tests")
            or span is None
        ):
            return False
        return span.high_us > LAUNCH_MATTERS * span.low_us

    @property
    def predicted_low_us(self) -> Round3 | None:
        """Return the shortest prediction [us]; None if everything is known."""
        return self.span.low_us if self.span else None

    @property
    def predicted_high_us(self) -> Round3 | None:
        """Return the longest prediction [us]; None if everything is known."""
        return self.span.high_us if self.span else None

    @property
    def unknown(self) -> str | None:
        """Return the unknown properties of the row, None without."""
        return self.span.why if self.span else None

    @property
    def signed_pct(self) -> Round2:
        """Return the error of the prediction with the digits of JSON [%]."""
        return self.error_pct

    @property
    def executed(self) -> str:
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
        name: score(
            [point for point in points if low <= point.row.size_bytes < high]
        )
        for name, (low, high) in REGIMES.items()
    }


@dataclass(frozen=True, slots=True)
class ClassLine(JsonObject):
    """Errors of predictions in percent; None without rows.

    The rows of a class, and a remark on them.
    """

    KEYS = ("name", "*score", "*regimes", "remark")

    name: str
    points: Sequence[Point]
    remark: IfKnown[str] = ""

    @property
    def score(self) -> Score:
        """Score of all rows."""
        return score(self.points)

    @property
    def regimes(self) -> RegimeScores:
        """Scores of every regime."""
        return regime_scores(self.points)


@dataclass(frozen=True, slots=True)
class ClassTable(JsonObject):
    """Classes of rows, each with the score of all its rows and of every regime of size.

    Attributes
    ----------
    text : str
        Description of the classes.
    """

    title: str
    text: str
    lines: list[ClassLine]
