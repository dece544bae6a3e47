"""What an estimate of training steps gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusim.training.result import StepResult

__all__ = ["StepEstimate"]


@dataclass(frozen=True, kw_only=True, repr=False)
class StepEstimate(StepResult):
    """A training step made of parts that were simulated before.

    Attributes
    ----------
    parts, simulated : int
        Parts that the step is made of, and those of them that had to be simulated now.
    """

    parts: int
    simulated: int

    @property
    def origin(self) -> list[tuple[str, str]]:
        """How many parts it is made of."""
        bound = self.error_bound
        within = "" if bound is None else f", whose grain moves the step by {bound:.1%} at most"
        made = f"{self.simulated} simulated now" if self.simulated else "all simulated before"
        return [("estimate", f"of {self.parts} parts, {made}{within}")]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers a script wants."""
        own = {"parts": self.parts, "parts_simulated": self.simulated}
        return {**self.figures(), "estimate": own}
