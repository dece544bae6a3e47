"""What an estimate of training steps gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusim.training.result import StepResult
from clusim.units import format_time

__all__ = ["StepEstimate"]


@dataclass(frozen=True, kw_only=True, repr=False)
class StepEstimate(StepResult):
    """A training step made of parts that were simulated before.

    Attributes
    ----------
    parts, simulated : int
        Parts that the step is made of, and those of them that had to be simulated now.
    followed, followed_ps : int
        Those that were followed from runs on fewer machines, and by how much the step may be off for that [ps].
    """

    parts: int
    simulated: int
    followed: int = 0
    followed_ps: int = 0

    @property
    def grain_bound(self) -> float | None:
        """Bound on the relative error of the step that bursts make; None is not known."""
        return super().error_bound

    @property
    def error_bound(self) -> float | None:
        """Bound on the relative error of the step, by bursts and by parts that were followed; None is not known."""
        bound = self.grain_bound
        return None if bound is None else bound + self.followed_ps / self.step_ps[-1]

    @property
    def origin(self) -> list[tuple[str, str]]:
        """How many parts it is made of."""
        bound = self.grain_bound
        within = "" if bound is None else f", whose grain moves the step by {bound:.1%} at most"
        made = f"{self.simulated} simulated now" if self.simulated else "all simulated before"
        rows = [("estimate", f"of {self.parts} parts, {made}{within}")]
        if self.followed:
            off, step = format_time(self.followed_ps), format_time(self.step_ps[-1])
            rows.append(
                ("followed", f"{self.followed} parts from fewer machines; at most {off} of {step}")
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the numbers a script wants."""
        own = {
            "parts": self.parts,
            "parts_simulated": self.simulated,
            "parts_followed": self.followed,
            "followed_error_s": self.followed_ps / 1e12,
        }
        return {**self.figures(), "estimate": own}
