"""Step with a checkpoint, compared with the same step without."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.workload.parallel.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class SavedStep:
    """Additional time of a step with a checkpoint.

    Attributes
    ----------
    stall_ps : int
        Additional time of that step [ps].
    every : int or None
        Steps from one checkpoint to the next; None if not set by the workload.
    """

    checkpoint: Checkpoint
    stall_ps: int
    every: int | None = None

    @property
    def stall_s(self) -> float:
        """Additional time of that step [s]."""
        return self.stall_ps / 1e12

    def to_json(self, step_s: float) -> dict[str, float | int | None]:
        """Return the numbers for JSON output; `step_s` is the step without checkpoint [s]."""
        mean = step_s + self.stall_s / self.every if self.every else None
        return {
            "bytes": self.checkpoint.bytes,
            "most_bytes_per_gpu": max(self.checkpoint.copied),
            "copy_s": round(self.checkpoint.copy_s, 9),
            "write_s": round(self.checkpoint.write_s, 9),
            "stall_s": round(self.stall_s, 9),
            "step_s": round(step_s + self.stall_s, 9),
            "every_steps": self.every,
            "mean_step_s": round(mean, 9) if mean is not None else None,
        }
