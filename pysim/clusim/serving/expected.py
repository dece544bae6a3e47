"""Expected error of the time per output token, from public runs of the engine on the GPU.

``accuracy.json`` has the errors of *campaigns*: rows of an engine on a GPU. No row calibrated a figure, but the
*assumed* times of hosts come from residuals of some rows of Llama 70B on H100, which are therefore not independent.
``clusim validate --errors`` writes it from a table of serving runs. Without a campaign of engine and GPU the expected
error is that of the engine on other GPUs, without any it is not known. A campaign has at least
`clusim.validation.measured.CAMPAIGN_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusim.base.json_schema import JsonObject, Round3
from clusim.simulation.residuals import known_campaigns

SERVING_DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""


@dataclass(frozen=True, slots=True)
class ServingCampaign:
    """Errors of the time per output token of an engine on a chip [%]."""

    engine: str
    chip: str
    n: int
    median_abs_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class ServingError(JsonObject):
    """Expected error of the time per output token.

    Attributes
    ----------
    engine, chip : str
        Engine; GPU, empty for other GPUs.
    n : int
        Public runs.
    median_abs_pct, bias_pct : float
        Median absolute error, and bias, weighted by runs [%].
    """

    engine: str
    chip: str
    n: int
    median_abs_pct: Round3
    bias_pct: Round3

    @classmethod
    def of(cls, chip: str, campaigns: Sequence[ServingCampaign]) -> ServingError:
        """Return the error of campaigns of an engine."""
        runs = sum(item.n for item in campaigns)
        median = sum(item.n * item.median_abs_pct for item in campaigns) / runs
        bias = sum(item.n * item.bias_pct for item in campaigns) / runs
        return cls(campaigns[0].engine, chip, runs, median, bias)

    def text(self) -> str:
        """Return the error as one line."""
        return (
            f"TPOT {self.median_abs_pct:.0f}% either way in the median of {self.n} public runs of {self.engine} on"
            f" {self.chip or 'other chips'} (bias {self.bias_pct:+.0f}%)"
        )


def expected_error(engine: str, chip: str) -> ServingError | None:
    """Return the expected error of an engine on a chip; None without comparable runs."""
    campaigns = [
        item
        for item in known_campaigns(SERVING_DATA, ServingCampaign)
        if item.engine == engine
    ]
    same = [item for item in campaigns if item.chip == chip]
    if same:
        return ServingError.of(chip, same)
    return ServingError.of("", campaigns) if campaigns else None
