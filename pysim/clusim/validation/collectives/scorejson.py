"""The forms of predictions of measured collectives in JSON: all rows, and what the time of one is made of."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from clusim.base.json_schema import FieldsOf
from clusim.validation.collectives.explained import Term
from clusim.validation.collectives.scores import Score

_Scored = Annotated[dict[str, Any], FieldsOf(Score)]


class RegimesJson(TypedDict):
    """Scores below 1 MiB, below 64 MiB and above."""

    small: _Scored
    mid: _Scored
    large: _Scored


class ClassNameJson(TypedDict):
    """A class of rows, and what must be said of it."""

    name: str
    remark: NotRequired[str]


class ClassTableJson(TypedDict):
    """Classes of rows side by side; of each the score of all its rows and of every regime of size.

    Attributes
    ----------
    text : str
        What the classes are.
    """

    title: str
    text: str
    lines: list[Annotated[dict[str, Any], FieldsOf(Score, ClassNameJson, RegimesJson)]]


class CurveJson(TypedDict):
    """Common properties of rows; None if the rows do not contain them.

    Attributes
    ----------
    gpus_per_process, threads_per_process : int or None
        As ``-g`` and ``-t`` of nccl-tests.
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


class CurveScoresJson(CurveJson, RegimesJson):
    """A group of rows and how far off they are.

    Attributes
    ----------
    points : int
        How many rows.
    notes : list of str
        What was assumed, and what was simulated instead.
    """

    points: int
    notes: list[str]


class PointRowJson(CurveJson):
    """A measured row and its prediction.

    Attributes
    ----------
    spread_pct : float or None
        How far apart its repetitions are [%].
    predicted_low_us, predicted_high_us : float or None
        Over all that the row may have had of what it does not say, which is `unknown` [us].
    error_pct : float
        By how much the prediction is too long [%].
    ran : str
        Algorithm and protocol.
    calibrated : list of str
        The sets of rows that calibrated figures and have this one.
    followed : bool
        Whether the time was followed along a line from other runs.
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


class LeftOutRowJson(TypedDict):
    """A row without a prediction, and why."""

    where: str
    reason: str


class ValidationJson(TypedDict):
    """Errors of predicted collectives.

    Attributes
    ----------
    tables : list
        Scores by class.
    groups : list
        Rows of one system, collective and launch.
    overall, single_node, multi_node : object
        Scores of all rows, and of those on one machine and on several.
    calibrated_by : dict
        The sets of rows among them that calibrated figures: the sources of these.
    worst : list
        The rows that are farthest off, as a ratio.
    thinned : int
        Rows beyond the sizes per group.
    granularity : str
        How finely the kernels were simulated.
    unknown, failed, unusable : list
        Rows with a word that nobody knows, that could not be simulated, or without a time or size.
    """

    tables: list[ClassTableJson]
    groups: list[CurveScoresJson]
    overall: RegimesJson
    single_node: RegimesJson
    multi_node: RegimesJson
    calibrated_by: dict[str, list[str]]
    worst: list[PointRowJson]
    points: list[PointRowJson]
    thinned: int
    granularity: str
    unknown: list[LeftOutRowJson]
    failed: list[LeftOutRowJson]
    unusable: list[LeftOutRowJson]


class ExplainedJson(TypedDict):
    """Parts of the time of one measured row.

    Attributes
    ----------
    spread_pct : float or None
        How far apart its repetitions are [%].
    error_pct : float
        By how much the prediction is too long [%].
    ran : str
        Algorithm and protocol.
    terms : list
        Parts of the prediction; those that count add up to it.
    """

    where: str
    group: str
    size_bytes: int
    measured_us: float
    spread_pct: float | None
    predicted_us: float
    error_pct: float
    ran: str
    calibrated: list[str]
    notes: list[str]
    terms: list[Annotated[dict[str, Any], FieldsOf(Term)]]
