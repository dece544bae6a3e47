"""Estimate of training steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusim.base.units import format_time
from clusim.training.result import StepResult


@dataclass(frozen=True, kw_only=True, repr=False)
class StepEstimate(StepResult):
    """A training step composed of simulated parts.

    Attributes
    ----------
    parts, simulated : int
        Number of parts of the step, and number simulated for this estimate.
    whole : bool
        The step is one part, which the engine simulated in full.
    followed, followed_ps : int
        Number of parts extrapolated from runs on fewer nodes, and the resulting error limit of the step [ps].
    """

    parts: int
    simulated: int
    whole: bool = False
    followed: int = 0
    followed_ps: int = 0

    @property
    def grain_bound(self) -> float | None:
        """Error limit of the step due to the bursts of its parts only; None is unknown."""
        return super().error_bound

    @property
    def error_bound(self) -> float | None:
        """Error limit of the step; None if composed of parts, without their mutual slow-down."""
        return self.grain_bound if self.whole else None

    @property
    def origin(self) -> list[tuple[str, str]]:
        """Number of parts."""
        bound = self.grain_bound
        made = f"{self.simulated} simulated now" if self.simulated else "all simulated before"
        limit = "error limit not known"
        if bound is not None:
            limit = (
                f"error limit {bound:.1%}"
                if self.whole
                else f"{limit} (of bursts alone {bound:.1%})"
            )
        rows = [("estimate", f"of {self.parts} parts, {made}; {limit}")]
        if self.followed:
            off, step = format_time(self.followed_ps), format_time(self.step_ps[-1])
            rows.append(
                (
                    "followed",
                    f"{self.followed} parts from fewer nodes; error limit {off} of {step}",
                )
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the numbers for JSON output."""
        own = {
            "parts": self.parts,
            "parts_simulated": self.simulated,
            "parts_followed": self.followed,
            "followed_error_s": self.followed_ps / 1e12,
        }
        return {**self.figures(), "estimate": own}
