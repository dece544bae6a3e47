"""Expected error of a simulated step, from measured steps on its GPU with its framework.

``accuracy.json`` contains the errors of *campaigns*: rows of a source on a GPU with a framework, if no parameter of GPU
and framework was calibrated on that source. ``clusim validate --errors`` writes it, from the steps of a validation.
The expected error is the mean over campaigns of at least two sources on the GPU, otherwise on other GPUs with the
framework: one source measures few models and layouts. Without two it is not known. A campaign has at least
`clusim.validation.measured.CAMPAIGN_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Self

from clusim.base.json_schema import JsonObject, Round3
from clusim.simulation.expected import FEWEST, NOT_COMPARABLE
from clusim.simulation.residuals import known_campaigns

STEP_DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""


@dataclass(frozen=True, slots=True)
class StepCampaign:
    """Errors of the steps of a source on a GPU with a framework [%]."""

    chip: str
    framework: str
    source: str
    n: int
    mean_abs_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class StepClass(JsonObject):
    """Errors of a class of steps.

    Attributes
    ----------
    chip : str
        GPU; empty for other GPUs.
    framework : str
        As `host: {framework: ...}` names it.
    sources, n : int
        Sources and rows.
    mean_abs_pct, bias_pct : float
        Mean over the campaigns of the absolute error and of the bias [%].
    high_pct : float
        Largest mean absolute error of a campaign [%].
    """

    chip: str
    framework: str
    sources: int
    n: int
    mean_abs_pct: Round3
    bias_pct: Round3
    high_pct: Round3

    @classmethod
    def of(cls, chip: str, some: Sequence[StepCampaign]) -> Self:
        """Return the class of campaigns with a framework."""
        errors = [item.mean_abs_pct for item in some]
        return cls(
            chip,
            some[0].framework,
            len({item.source for item in some}),
            sum(item.n for item in some),
            fmean(errors),
            fmean(item.bias_pct for item in some),
            max(errors),
        )

    def text(self) -> str:
        """Return the class as one line."""
        limit = (
            f", at most {self.high_pct:.0f}%"
            if self.high_pct > self.mean_abs_pct
            else ""
        )
        return (
            f"{self.mean_abs_pct:.0f}% either way{limit}, mean of {self.sources} source{'s' * (self.sources > 1)}"
            f" with {self.n} published steps on {self.chip or 'other chips'} and {self.framework}"
            f" (bias {self.bias_pct:+.0f}%)"
        )


def expected_step(chip: str, framework: str) -> StepClass | None:
    """Return the nearest class of a chip and a framework; None without enough measurements."""
    some = [
        item
        for item in known_campaigns(STEP_DATA, StepCampaign)
        if item.framework == framework
    ]
    same = [item for item in some if item.chip == chip]
    elsewhere = [item for item in some if item.chip != chip]
    for name, campaigns in ((chip, same), ("", elsewhere)):
        if len({item.source for item in campaigns}) >= FEWEST:
            return StepClass.of(name, campaigns)
    return None


def expected_text(chip: str, framework: str) -> str:
    """Return the text of the expected error, or the reason why it is unknown."""
    result = expected_step(chip, framework)
    if result is not None:
        return result.text()
    if framework == "none":
        return "not known without a host model; add 'host: {framework: pytorch}' to the workload"
    return f"not known ({NOT_COMPARABLE})"
