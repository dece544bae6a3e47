"""What the critical path spends in folded blocks: by what the rank of their pause does there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.charge import Charge
from clusim.analysis.walk import Step, StepKind
from clusim.results.diagnosis import CauseKind
from clusim.results.replicated import FoldedBlocks, merged

Array = NDArray[Any]


class BlockCharges:
    """Charges steps that are pauses for blocks.

    Parameters
    ----------
    tasks : int
        Tasks of the run.
    """

    def __init__(self, folded: FoldedBlocks, tasks: int) -> None:
        self._folded = folded
        self._pause = np.full(tasks, -1, np.int64)
        self._pause[folded.pauses_task] = np.arange(len(folded.pauses_task))

    def stands(self, step: Step) -> bool:
        """Return whether a step is the pause of a block."""
        own = step.kind is StepKind.DELAY and 0 <= step.task < len(self._pause)
        return bool(own and self._pause[step.task] >= 0)

    def charges(self, step: Step) -> Iterator[Charge]:
        """Yield the parts of the pause of a block; their times add up to its length."""
        folded, pause = self._folded, int(self._pause[step.task])
        block = int(np.searchsorted(folded.off, pause, side="right")) - 1
        place, slot = int(folded.blocks_place[block]), pause - int(folded.off[block])
        rank = f"rank {int(folded.ranks_rank[folded.places_ranks_off[place] + slot])}"
        own, length = folded.pattern(place, slot), step.length_ps
        compute = min(length, _length(own.compute))
        exposed = _length(merged(np.concatenate([own.compute, own.moving]))) - compute
        exposed = min(length - compute, exposed)
        words = "in folded blocks"
        yield Charge("work", f"kernels of {rank}", f"kernels {words}", compute, CauseKind.COMPUTE)
        what = f"communication {words} that nothing hides"
        yield Charge("work", f"data of {rank}", what, exposed, CauseKind.EXPOSED)
        rest = length - compute - exposed
        yield Charge("cost", f"waits of {rank}", f"waits {words}", rest, CauseKind.IDLE)


def _length(spans: Array) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())
