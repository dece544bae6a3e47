"""The form of predictions of measured steps in JSON (`clusim.validation.steps.validate`)."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from clusim.base.json_schema import FieldsOf
from clusim.validation.steps.scores import StepScore

_Scored = Annotated[dict[str, Any], FieldsOf(StepScore)]


class StepGroupJson(TypedDict):
    """Common property of rows: its kind and its value."""

    by: str
    name: str


class StepPointRowJson(TypedDict):
    """A measured step and its prediction.

    Attributes
    ----------
    where : str
        File and line.
    error_pct : float
        By how much the prediction is too long [%].
    host_wait_s : float
        Part of the prediction in which GPUs wait for the host [s].
    calibrated : list of str
        The sets of rows that calibrated figures and have this one.
    notes : list of str
        What was assumed, and what was simulated instead.
    """

    id: str
    where: str
    source: str
    chip: str
    framework: str
    model: str
    n_gpus: int
    micro_batch: int | None
    measured_s: float
    predicted_s: float
    error_pct: float
    host_wait_s: float
    calibrated: list[str]
    notes: list[str]


class UnpredictedRowJson(TypedDict):
    """A row without a prediction, and why."""

    id: str
    where: str
    reason: str


class StepReportJson(TypedDict):
    """Errors of predicted steps.

    Attributes
    ----------
    overall, calibration : object
        Of the rows that were left out of every calibration, and of those that were not.
    groups : list
        Of the rows that were left out, by what they have in common.
    skipped : int
        Rows that were not looked at, because fewer were asked for.
    granularity : str
        How finely the steps were simulated.
    """

    overall: _Scored
    calibration: _Scored
    groups: list[Annotated[dict[str, Any], FieldsOf(StepScore, StepGroupJson)]]
    points: list[StepPointRowJson]
    unpredicted: list[UnpredictedRowJson]
    skipped: int
    granularity: str
