"""Cost of overlap: SMs of communication's CTAs, and time that kernels lose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from clusim.schedule.ir import Schedule
from clusim.workload.parallel.fold import Folded


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sums over all ranks and the whole run.

    Attributes
    ----------
    kernel_ps, alone_ps : int
        Time of all kernels, and what they take when they have their GPU for themselves [ps].
    sm_ps : int
        SMs held by CTAs of collectives and messages, times how long [SM x ps].
    moving_ps : int
        Time of these collectives and messages [ps].
    """

    kernel_ps: int = 0
    alone_ps: int = 0
    sm_ps: int = 0
    moving_ps: int = 0

    @property
    def lost_ps(self) -> int:
        """Time that kernels lose."""
        return max(0, self.kernel_ps - self.alone_ps)

    @property
    def sms(self) -> float:
        """SMs that are held on average while a collective or message is under way."""
        return self.sm_ps / max(1, self.moving_ps)


def sharing(
    schedule: Schedule, start_ps: Any, end_ps: Any, folded: Iterable[Folded] = ()
) -> Sharing:
    """Return the cost of a run's communication; `folded` are the blocks that pauses stand for."""
    held: dict[int, int] = {}
    for item in schedule.instances:
        held[item.task] = held.get(item.task, 0) + item.sm
    kernel = alone = sms = moving = 0
    for index, task in enumerate(schedule.tasks):
        if task.kind not in ("kernel", "program"):
            continue
        length = int(end_ps[index]) - int(start_ps[index])
        if task.kind == "kernel":
            kernel += length
            alone += task.compute_ps
        else:
            sms += held.get(index, 0) * length
            moving += length
    for block in folded:
        kernel += block.sharing[0]
        alone += block.sharing[1]
        sms += block.sharing[2]
        moving += block.sharing[3]
    return Sharing(kernel, alone, sms, moving)
