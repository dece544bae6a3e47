"""The form of a baseline and changes to it in JSON (`clusim.studies.whatif.table`)."""

from __future__ import annotations

from typing_extensions import TypedDict

from clusim.results.diagnosis import VerdictJson


class OutcomeJson(TypedDict):
    """One run.

    Attributes
    ----------
    time_ps : int or None
        Its time [ps]; None if it cannot run.
    plan : str
        What ran: algorithm, protocol and channels.
    error : str or None
        Why it cannot run.
    """

    time_ps: int | None
    plan: str
    error: str | None
    verdict: VerdictJson | None


class BaselineJson(OutcomeJson):
    """A run of the baseline.

    Attributes
    ----------
    of : str
        Which of several it is: a size of nccl-tests; empty where there is one.
    """

    of: str


class ChangeJson(TypedDict):
    """A change and what came of it.

    Attributes
    ----------
    of : str
        Which of several runs of the baseline it is of; empty where there is one.
    held : object or None
        With the baseline's plan; None where the change is one of the plan itself.
    planned : object
        With the plan that would be made knowing of the change.
    notes : list of str
        What explains the two times.
    """

    change: str
    of: str
    baseline: OutcomeJson
    held: OutcomeJson | None
    planned: OutcomeJson
    notes: list[str]


class WhatIfJson(TypedDict):
    """A baseline and changes to it.

    Attributes
    ----------
    baseline : list
        Its runs: one, or one for each size.
    title, times : str
        What the baseline is, and which time is compared.
    """

    baseline: list[BaselineJson]
    title: str
    times: str
    rows: list[ChangeJson]
