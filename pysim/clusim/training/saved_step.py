"""Cost of a checkpoint: a step with it, compared with the same step without it."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.json_schema import JsonObject, Round9
from clusim.workload.parallel.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class SavedStep(JsonObject):
    """Additional time of a step with a checkpoint.

    Attributes
    ----------
    bytes : int
        Size of the complete checkpoint [bytes].
    stall_s : float
        Additional time of the step [s].
    plain_ps : int
        The step without it [ps].
    step_s, mean_step_s : float, float or None
        The step with it, and the mean over all steps, if the workload sets the interval [s].
    """

    KEYS = (
        "bytes=checkpoint.bytes",
        "most_bytes_per_gpu=checkpoint.most_bytes",
        "copy_s=checkpoint.copy_s",
        "write_s=checkpoint.write_s",
        "stall_s",
        "step_s",
        "every_steps",
        "mean_step_s",
    )

    checkpoint: Checkpoint
    stall_ps: int
    every_steps: int | None
    plain_ps: int

    @property
    def stall_s(self) -> Round9:
        """Additional time of that step [s]."""
        return self.stall_ps / 1e12

    @property
    def step_s(self) -> Round9:
        """The step with the checkpoint [s]."""
        return self.plain_ps / 1e12 + self.stall_s

    @property
    def mean_step_s(self) -> Round9 | None:
        """Mean over all steps [s]; None without an interval."""
        if not self.every_steps:
            return None
        return self.plain_ps / 1e12 + self.stall_s / self.every_steps
