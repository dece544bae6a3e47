"""JSON forms of a validation of collectives."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import TypedDict

from clusim.base.json_schema import JsonObject
from clusim.base.terms.times import REGIME_TITLES
from clusim.simulation.expected import Expected, MeasuredError
from clusim.validation.collectives.breakdown import ClassTable, Point, RegimeScores
from clusim.validation.collectives.measurements import CurveGroup


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

    group: CurveGroup
    points: int
    regimes: RegimeScores
    notes: list[str]


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
        error_lines = [f"    {self.found.text()}"] if self.found else []
        return [f"  {name}: {self.expected.text()}", *error_lines]


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
    worst: list[Point]
    points: list[Point]
    thinned: int
    granularity: str
    unknown: list[LeftOutRowJson]
    failed: list[LeftOutRowJson]
    unusable: list[LeftOutRowJson]
