"""What a schedule computes: proved on real numbers, without a machine and without time."""

from __future__ import annotations

from clusim.schedule.executor import CallCheck, Executor
from clusim.schedule.ir import Schedule
from clusim.schedule.untimed import run_untimed


def verify(schedule: Schedule, *, data: str = "exact", seed: int = 0) -> list[CallCheck]:
    """Run `schedule` untimed and compare every call with its definition.

    With ``data="random"`` float reductions may differ by one unit in the last place per rank.
    """
    executor = Executor(schedule, data=data, seed=seed)
    run_untimed(executor)
    most = max((len(call.ranks) for call in schedule.calls), default=1)
    return executor.check(float(most) if data == "random" else None)
