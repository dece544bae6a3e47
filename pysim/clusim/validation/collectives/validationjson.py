"""JSON forms of a validation of collectives."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import TypedDict

from clusim.base.json_schema import JsonObject
from clusim.base.terms.times import REGIME_TITLES
from clusim.simulation.expected import Expected, MeasuredError
from clusim.validation.collectives.breakdown import RegimeScores
from clusim.validation.collectives.classtables import ClassTable


class CurveJson(TypedDict):
    """Common properties of rows; None if the rows do not contain them.

    Attributes
    ----------
    gpus_per_process, threads_per_process : int or None
        As ``-g`` and ``-t`` of nccl-tests.
    plugin, environment, release : str
        Network plugin, NCCL's variables, and the range of possible releases; empty if unknown.
    """

    system: str
    n_nodes: int
    n_gpus: int
    collective: str
    algorithm: str
    protocol: str
    channels: int | None
    nccl_version: str
    gpus_per_process: int | None
    threads_per_process: int | None
    harness: str | None
    cuda_graph: bool
    plugin: str
    environment: str
    release: str


@dataclass(frozen=True)
class CurveScores(JsonObject):
    """Errors of a group of rows.

    Attributes
    ----------
    points : int
        Number of rows.
    notes : list of str
        Assumptions, and approximations of the simulation.
    """

    KEYS = ("*group", "points", "*regimes", "notes")

    group: CurveJson
    points: int
    regimes: RegimeScores
    notes: list[str]


class PointRowJson(CurveJson):
    """A measured row and its prediction.

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
    followed : bool
        Whether the time was extrapolated from other runs.
    where : str
        File and line.
    """

    source: str
    iters: int | None
    size_bytes: int
    measured_us: float
    spread_pct: float | None
    predicted_us: float
    predicted_low_us: float | None
    predicted_high_us: float | None
    unknown: str | None
    error_pct: float
    ran: str
    calibrated: list[str]
    followed: bool
    notes: list[str]
    where: str


@dataclass(frozen=True)
class ExpectedRows(JsonObject):
    """Expected and found error of the rows of a system, place and regime, without calibration rows.

    Attributes
    ----------
    error : object
        Expected error from other sources than those of the rows.
    """

    KEYS = ("system", "place", "regime", "error=expected.error", "found")

    system: str
    place: str
    regime: str
    expected: Expected
    found: MeasuredError | None

    def lines(self) -> list[str]:
        """Return the rows, and their errors."""
        name = f"{self.system}, {self.place}, {REGIME_TITLES[self.regime]}"
        said = [f"    {self.found.text()}"] if self.found else []
        return [f"  {name}: {self.expected.text()}", *said]


class LeftOutRowJson(TypedDict):
    """A row without a prediction, and the reason."""

    where: str
    reason: str


class ValidationJson(TypedDict):
    """Errors of predicted collectives.

    Attributes
    ----------
    tables : list
        Scores by class.
    expected : list
        Expected and found errors by system, place and regime.
    groups : list
        Rows of one system, collective and launch.
    overall, single_node, multi_node : object
        Scores of all rows, of rows on one node and of rows on several nodes.
    calibrated_by : dict
        Sets of the rows that calibrated parameters -> the sources of these parameters.
    worst : list
        The rows with the largest error, as a ratio.
    thinned : int
        Rows omitted to limit the sizes per group.
    granularity : str
        Granularity of the simulated kernels.
    unknown, failed, unusable : list
        Rows with an unknown word, that could not be simulated, or without a time or size.
    """

    tables: list[ClassTable]
    expected: list[ExpectedRows]
    groups: list[CurveScores]
    overall: RegimeScores
    single_node: RegimeScores
    multi_node: RegimeScores
    calibrated_by: dict[str, list[str]]
    worst: list[PointRowJson]
    points: list[PointRowJson]
    thinned: int
    granularity: str
    unknown: list[LeftOutRowJson]
    failed: list[LeftOutRowJson]
    unusable: list[LeftOutRowJson]
