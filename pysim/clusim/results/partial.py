"""Partial result of a run that was ended early."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import TimeLimitReached
from clusim.base.units import format_time
from clusim.results.resultjson import EndedJson

LEAST_PART = 0.01
"""Share of the work from which on the rest may be guessed."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Partial result of a run that was ended early.

    Attributes
    ----------
    why : str
        Reason for its end.
    part_done : float
        Share of the work that was done, an estimate from 0 to 1.
    least_ps : int
        Lower limit of the complete run [ps]: the simulated time, and the time in which the wires of the busiest
        endpoint transmit its data.
    """

    why: str
    part_done: float
    least_ps: int

    def words(self, time_ps: int) -> str:
        """Return the reason for the end of the run at `time_ps` [ps], in words."""
        at = f"{format_time(time_ps)} simulated, {self.part_done:.1%} of the work"
        return f"{self.why}: ended at {at}"

    def reached(self, where: str) -> TimeLimitReached:
        """Return the error of a result that needs this run; `where` names the run."""
        return TimeLimitReached(
            f"{self.why}: reached in {where}, of which {self.part_done:.0%} was done; give it longer"
        )

    def expected_ps(self, time_ps: int) -> int | None:
        """Return the time of the complete run at the same progress [ps]; None if unknown.

        It is unknown if hardly any work was done.
        """
        if self.part_done < LEAST_PART:
            return None
        return max(self.least_ps, round(time_ps / self.part_done))

    def to_json(self, time_ps: int, wall_s: float) -> EndedJson:
        """Return the progress of the run: `time_ps` [ps] simulated in `wall_s` [s]."""
        return {
            "complete": False,
            "ended_by": self.why,
            "part_done": round(self.part_done, 6),
            "least_time_ps": self.least_ps,
            "expected_time_ps": self.expected_ps(time_ps),
            "simulated_ps_per_s": round(time_ps / wall_s) if wall_s > 0 else None,
        }
