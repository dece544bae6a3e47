"""Expected error of a simulated step, from held-out steps on its GPU and framework.

``accuracy.json`` contains the classes; only ``clusim validate --data`` writes it, from the steps of a validation.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

STEP_DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""


@dataclass(frozen=True, slots=True)
class StepClass:
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

    def to_json(self) -> dict[str, Any]:
        """Return it by the names of the attributes."""
        return asdict(self)


@lru_cache(maxsize=1)
def _classes() -> tuple[StepClass, ...]:
    if not STEP_DATA.exists():
        return ()
    data = json.loads(STEP_DATA.read_text(encoding="utf-8"))
    return tuple(StepClass(*row) for row in data["classes"])


def expected_step(chip: str, framework: str) -> StepClass | None:
    """Return the nearest class of a chip and a framework; None without measurements."""
    known = {(item.chip, item.framework): item for item in _classes()}
    if framework == "none":
        return None
    for key in ((chip, framework), (chip, ""), ("", framework)):
        if key in known:
            return known[key]
    return None


def expected_text(chip: str, framework: str) -> str:
    """Return the text of the expected error, or the reason why it is unknown."""
    result = expected_step(chip, framework)
    if result is not None:
        return result.text()
    if framework == "none":
        return "unknown without a host model; add 'host: {framework: pytorch}' to the workload"
    return "unknown: no comparable published step"
