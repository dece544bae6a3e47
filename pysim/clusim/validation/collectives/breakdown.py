"""Errors of predicted collectives: scores, classes of rows, tables, and unknown launches.

**Counting.** The error of a row is the error of its time, in percent; + is predicted too long. Median and mean use the
absolute errors, the bias is the mean of the signed errors. A further mean considers the spread: a measurement with
repetitions `s` percent apart cannot be predicted better than that, so an error of at most `s` counts as 0, and the row
has the weight 100 / (100 + s). Rows without a spread have the weight 1.

**Classes.** Rows below 1 MiB, below 64 MiB and above; on one node or several; calibration rows or held-out rows.

**Unknown launches.** A row without a launch has a prediction for every possible launch: a job has one process that
drives all GPUs of its node by one thread (``-g``) or by one thread each (``-t``), or one process per GPU; its
iterations may be a CUDA graph. All launches share the kernel. **Not modelled** Unknown hosts, NICs and drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.base.json_schema import IfKnown, JsonObject
from clusim.base.terms.times import ONE, REGIMES, SEVERAL, place_of
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS
from clusim.nccl.launch import Host, Launch
from clusim.nccltests.jobs import PerfKernel
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.measured import Prediction, by, errors


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
    def held_out(self) -> bool:
        """True for a held-out row with a known launch."""
        return not self.calibrated and not self.launch_open

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
        """True if nccl-tests measured it with an unknown launch."""
        group = self.row.group
        return (
            not group.launch_known and group.harness in ("", "nccl-tests") and self.span is not None
        )

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


def calibrated_by(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return the row sets of the points, each with the sources of the parameters calibrated."""
    names = dict.fromkeys(name for point in points for name in point.calibrated)
    result: dict[str, list[str]] = {name: [] for name in ROW_SETS if name in names}
    for figure in all_figures():
        for name in figure.rows:
            if name in result and figure.source not in result[name]:
                result[name].append(figure.source)
    return result


_HELD_OUT: dict[str, tuple[str, Callable[[Point], str]]] = {
    "system": ("", lambda p: p.row.group.system),
    "source": ("", lambda p: p.row.source or "-"),
    "collective": ("", lambda p: p.row.group.collective),
    "algorithm and protocol": ("As they ran; P2P are sends and receives.", lambda p: p.ran),
    "harness": (
        "Program of the measurement, and the known part of the launch: processes and threads (launch known), only"
        " GPUs per process or thread (threads not given), or no part (launch not given).",
        lambda p: p.row.group.launch_class,
    ),
    "release": ("", lambda p: p.row.group.release_class),
    "method of simulation": (
        "Followed: extrapolated from runs of fewer nodes or smaller sizes.",
        lambda p: "followed" if p.followed else "simulated in full",
    ),
}
"""Properties that divide held-out rows into classes -> a remark, and the class of a row."""


def class_tables(points: Sequence[Point]) -> list[ClassTable]:
    """Return the tables of a validation, without empty ones."""
    out = [point for point in points if point.held_out]
    held_out = [
        ClassTable(f"Held-out rows by {noun}", text, _placed(out, key))
        for noun, (text, key) in _HELD_OUT.items()
    ]
    open_launch = [point for point in points if not point.calibrated and point.launch_open]
    tables = [
        *(_headline(points, out), *held_out[:5], _launches(open_launch), *held_out[5:]),
        *(_calibration(points), *(_without(noun, points) for noun in ("source", "system"))),
    ]
    return [table for table in tables if table.lines]


def _placed(points: Sequence[Point], key: Callable[[Point], str]) -> list[ClassLine]:
    """Return a line for every class, separately for one node and for several."""
    return [
        ClassLine(f"{name}, {place}", some)
        for name, class_points in by(points, key).items()
        for place, some in by(class_points, lambda p: p.place).items()
    ]


def _headline(points: Sequence[Point], out: Sequence[Point]) -> ClassTable:
    lines = []
    for place in (ONE, SEVERAL):
        lines.append(ClassLine(place, [point for point in out if point.place == place]))
    lines = [line for line in (*lines, ClassLine("all", out)) if line.points]
    for noun in ("source", "system"):
        _, key = _HELD_OUT[noun]
        tainted = {key(point) for point in points if point.calibrated}
        clean = [point for point in out if key(point) not in tainted]
        for place, some in by(clean, lambda p: p.place).items():
            lines.append(ClassLine(f"of a {noun} without calibration rows, {place}", some))
    return ClassTable(
        "Held-out rows",
        "Rows that calibrated no parameter, with a known launch: predictions.",
        lines,
    )


def _launches(unknown: Sequence[Point]) -> ClassTable:
    """Return the rows with an unknown launch, for each possible launch."""
    if not unknown:
        return ClassTable("Held-out rows of an unknown launch", "", [])
    inside = sum(point.within_launches for point in unknown)
    return ClassTable(
        "Held-out rows of an unknown launch",
        "The same rows for each possible launch. No other table of held-out rows contains them.",
        [
            ClassLine("the likeliest launch", unknown, f"{inside} measured times are in the span"),
            ClassLine("the shortest of all", [_at(point, 0) for point in unknown]),
            ClassLine("the longest of all", [_at(point, 1) for point in unknown]),
        ],
    )


def _at(point: Point, end: int) -> Point:
    """Return a point with the shortest (0) or longest (1) time of its span."""
    assert point.span is not None
    time_us = (point.span.low_us, point.span.high_us)[end]
    return replace(point, predicted_us=time_us)


def _calibration(points: Sequence[Point]) -> ClassTable:
    """Return the calibration rows, by their row sets; a row may be in several."""
    known = [point for point in points if point.calibrated]
    lines = [ClassLine("all", known)] if known else []
    for name, sources in calibrated_by(known).items():
        members = [point for point in known if name in point.calibrated]
        count = f"{len(sources)} parameter{'s' * (len(sources) > 1)}"
        lines.append(ClassLine(f"{name}: {ROW_SETS[name].text}", members, count))
    return ClassTable(
        "Calibration rows",
        "Rows used to set or fit parameters. Their agreement is by construction and does not predict the error of"
        " other systems.",
        lines,
    )


def _without(noun: str, points: Sequence[Point]) -> ClassTable:
    """Return every source or system with a remark on its calibrations, scored by all its rows."""
    _, key = _HELD_OUT[noun]
    lines = []
    for name, class_points in by(points, key).items():
        names = [
            row_set for row_set in ROW_SETS if any(row_set in p.calibrated for p in class_points)
        ]
        if names:
            share = sum(bool(point.calibrated) for point in class_points)
            remark = f"not held out: {share} of its rows calibrated parameters ({', '.join(names)})"
        else:
            remark = f"held out: no row of this {noun} calibrated a parameter"
        lines.append(ClassLine(name, class_points, remark))
    return ClassTable(
        f"Leave one {noun} out",
        f"All rows of every {noun}. Parameters are set by hand and are not fitted again without a {noun}: a line is a"
        f" prediction only if no parameter was calibrated on the {noun}, as the remark states. Otherwise the line"
        " contains calibration rows, and the error without them is unknown.",
        lines,
    )
