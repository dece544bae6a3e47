"""Cost of the faults of a run, against the same run without them."""

from __future__ import annotations

from dataclasses import replace

from clusim.base.errors import ClusimError, TimeLimitReached, one_line
from clusim.base.json_schema import JsonObject
from clusim.base.records import dataclass
from clusim.base.units import format_time
from clusim.results.result import Result
from clusim.simulation.api import whole_of
from clusim.simulation.job import RunOptions
from clusim.simulation.plan import Plan, plan
from clusim.simulation.request import Request
from clusim.simulation.reruns import Repeats


@dataclass(frozen=True, slots=True)
class FaultCost(JsonObject):
    """Times with and without the faults of a run.

    Attributes
    ----------
    sound_us : float
        Time without the faults [us].
    added_us : float
        Additional time by the faults; both runs are planned for their system [us].
    held_us : float or None
        Time with the faults and the plan of the sound system [us]; None if it cannot run.
    why : str
        Reason why it cannot run.
    """

    KEYS = ("sound_us", "added_us", "held_us", "why")

    sound_ps: int
    added_ps: int
    held_ps: int | None
    why: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a report."""
        sign = "-" if self.added_ps < 0 else "+"
        added = (
            f"{sign}{format_time(abs(self.added_ps))} ({self._pct(self.added_ps)})"
        )
        rows = [
            (
                "fault cost",
                f"{added} against the sound system, {format_time(self.sound_ps)}",
            )
        ]
        if self.held_ps is None:
            rows.append(("", f"the sound system's plan cannot run: {self.why}"))
        elif self.held_ps != self.sound_ps + self.added_ps:
            held_text = f"{format_time(self.held_ps)} ({self._pct(self.held_ps - self.sound_ps)})"
            rows.append(("", f"with the sound system's plan {held_text}"))
        return rows

    def _pct(self, added_ps: int) -> str:
        return f"{100 * added_ps / max(1, self.sound_ps):+.1f}%"


def fault_cost(
    planned: Plan, result: Result, how: Repeats | None = None
) -> FaultCost | None:
    """Simulate a run without the faults of its request, and that plan with the faults.

    Faults in the topology's file are part of both runs.

    Parameters
    ----------
    how : Repeats or None
        Settings of both runs.

    Returns
    -------
    FaultCost or None
        None if the request has no faults, the run was ended early, or the sound system was not simulated.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `how` was reached.
    """
    request, how = planned.options, how or Repeats()
    if not (
        request.setup.faults and result.complete and isinstance(request, Request)
    ):
        return None
    confirm = how.confirm
    if not (how.budget.allows(result, 2) if confirm is None else confirm):
        return None
    options = RunOptions(watch=how.watch)
    where = "the run without the faults"
    sound = plan(replace(request, setup=replace(request.setup, faults=())))
    held_ps, why = None, ""
    try:
        held_request = replace(request.of(sound.schedule), setup=request.setup)
        held_ps = whole_of(held_request, options, where).time_ps
    except TimeLimitReached:
        raise
    except ClusimError as error:
        why = one_line(str(error))
    sound_ps = whole_of(sound, options, where).time_ps
    return FaultCost(sound_ps, result.time_ps - sound_ps, held_ps, why)
