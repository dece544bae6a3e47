"""Time to accuracy: epochs that a batch needs, from the workload's measurements of its model.

**Model** Epochs `by_batch`, linear in the logarithm of the batch between the rows; or the `epochs` of small batches, to
which `critical_batch` adds a share: ``epochs * (1 + batch / critical_batch)`` (arXiv 1812.06162).
An epoch is `samples` samples (sequences of a language model). **Not modelled** Learning rates, stale gradients,
evaluation; batches outside the table are an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from clusim.base.json_schema import JsonObject, Round3
from clusim.workload.spec import Workload
from clusim.workload.workload_file import complain


@dataclass(frozen=True, slots=True)
class Convergence(JsonObject):
    """Training to an accuracy.

    Attributes
    ----------
    epochs : float
        Epochs with this batch.
    steps : int
        Steps in these epochs.
    time_s : float
        Duration of the steps [s].
    """

    KEYS = ("epochs", "steps", "time_s")

    epochs: Round3
    steps: int
    time_s: Round3

    @property
    def text(self) -> str:
        """Time, epochs and steps."""
        hours = (
            f"{self.time_s / 3600:,.4g} h"
            if self.time_s >= 3600
            else f"{self.time_s:,.4g} s"
        )
        return f"{hours}, {self.epochs:.4g} epochs of {self.steps / self.epochs:,.0f} steps"


def epochs_of(workload: Workload) -> float:
    """Return the epochs to accuracy with the workload's batch.

    Raises
    ------
    InputError
        The batch is outside the table.
    """
    spec, batch = workload.convergence, workload.batch.all
    assert spec is not None
    if spec.epochs is not None:
        return spec.epochs * (
            1 + batch / spec.critical_batch if spec.critical_batch else 1
        )
    assert spec.by_batch is not None
    table = sorted((int(size), epochs) for size, epochs in spec.by_batch.items())
    low, high = table[0][0], table[-1][0]
    if not low <= batch <= high:
        message = (
            f"batch {batch} is outside {low} to {high}; add the epochs that it needs"
        )
        raise complain(workload, ("convergence", "by_batch"), message)
    batches, epochs = zip(*table, strict=True)
    return float(np.interp(np.log(batch), np.log(batches), epochs))


def convergence_of(workload: Workload, step_s: float) -> Convergence | None:
    """Return the training to accuracy in steps of a duration; None for a workload without epochs."""
    if workload.convergence is None:
        return None
    epochs = epochs_of(workload)
    steps = ceil(epochs * workload.convergence.samples / workload.batch.all)
    return Convergence(epochs, steps, steps * step_s)
