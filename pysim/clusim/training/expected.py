"""Expected error of a simulated step, from held-out steps on its GPU and framework.

``accuracy.json`` contains the classes; only ``clusim validate --data`` writes it, from the steps of a validation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusim.base.json_schema import JsonObject
from clusim.simulation.expected import known_classes

STEP_DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""


@dataclass(frozen=True, slots=True)
class StepClass(JsonObject):
    """Errors of a class of steps; an empty GPU or framework is any.

    Attributes
    ----------
    framework : str
        As `host: {framework: ...}` names it.
    n : int
        Rows.
    mean_abs_pct, bias_pct : float
        Of their errors [%].
    """

    chip: str
    framework: str
    n: int
    mean_abs_pct: float
    bias_pct: float

    def text(self) -> str:
        """Return the class as one line."""
        hardware = " and ".join(word for word in (self.chip, self.framework) if word) or "any chip"
        return (
            f"{self.mean_abs_pct:.0f}% either way, mean of {self.n} published steps on {hardware}"
            f" (bias {self.bias_pct:+.0f}%)"
        )


def expected_step(chip: str, framework: str) -> StepClass | None:
    """Return the nearest class of a chip and a framework; None without measurements."""
    if framework == "none":
        return None
    known = known_classes(STEP_DATA, StepClass)
    keys = (chip, framework), (chip, ""), ("", framework)
    return next((known[key] for key in keys if key in known), None)


def expected_text(chip: str, framework: str) -> str:
    """Return the text of the expected error, or the reason why it is unknown."""
    result = expected_step(chip, framework)
    if result is not None:
        return result.text()
    if framework == "none":
        return "unknown without a host model; add 'host: {framework: pytorch}' to the workload"
    return "unknown: no comparable published step"
