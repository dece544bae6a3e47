"""Partition of a row of layers into parts, with the slowest part as fast as possible.

**Hardware** PipeDream (SOSP 2019), section 3.1: the best time of the first j layers on m workers is the
minimum, over the place i of the last cut and the m' workers of the last stage, of the maximum of three
times: the best time of the first i layers on m - m' workers; the messages across the cut (the output of
layer i and its gradient); and the last stage, the longer of its layers' time and of the sum of their
gradients over m' workers, divided by m', as the workers alternate. **Model** The same, with 2 (m' -
1)/m' of the gradients for a sum over m' (a ring), and a worker's rate inside or across nodes: workers
are in order, so m determines which of the two a stage or a cut uses. **Not modelled** A separate copy of
the pipeline in every node (PipeDream's levels); memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clusim.base.errors import InputError


class LayerCost(NamedTuple):
    """Cost of a layer: time of a microbatch [s], gradients and output [bytes]."""

    time_s: float
    gradient_bytes: float
    output_bytes: float


class WorkerRates(NamedTuple):
    """Rates of a worker inside its node and to others [B/s], and the node of every worker."""

    inside_Bps: float
    across_Bps: float
    machines: tuple[int, ...]

    def between(self, first: int, last: int) -> float:
        """Return the rate among the workers from `first` to `last`."""
        same = len(set(self.machines[first : last + 1])) == 1
        return self.inside_Bps if same else self.across_Bps


def balanced(times: Sequence[int], replicas: Sequence[int]) -> list[int]:
    """Return the layers of each part, at least one, with the slowest part as fast as possible.

    Parameters
    ----------
    replicas : sequence of int
        Number of workers that alternate in each part.
    """
    count, parts = len(times), len(replicas)
    if count < parts:
        raise InputError(f"{count} layers cannot be divided into {parts} parts")
    upto = [0, *accumulate(times)]
    # best[j]: the least time of the slowest part when the first j layers form this number of parts; cut: where
    # the last one begins.
    best: list[float] = [0, *[float("inf")] * count]
    cuts: list[list[int]] = []
    for part, workers in enumerate(replicas, 1):
        row: list[float] = [float("inf")] * (count + 1)
        cut = [0] * (count + 1)
        for j in range(part, count + 1):
            for i in range(part - 1, j):
                slowest = max(best[i], (upto[j] - upto[i]) / workers)
                if slowest < row[j]:
                    row[j], cut[j] = slowest, i
        best = row
        cuts.append(cut)
    sizes: list[int] = []
    end = count
    for cut in reversed(cuts):
        sizes.append(end - cut[end])
        end = cut[end]
    return sizes[::-1]


def replicated(
    layers: Sequence[LayerCost], rates: WorkerRates, microbatches: int
) -> list[tuple[int, int]]:
    """Return layers and workers of every stage that maximise the pipeline's microbatch rate.

    The workers of a stage must be able to share the `microbatches` of a step evenly.
    """
    count, workers = len(layers), len(rates.machines)
    upto, gradients = (
        np.array([0, *accumulate(layer[column] for layer in layers)]) for column in (0, 1)
    )
    moved = np.array([0.0, *(2 * layer.output_bytes for layer in layers)])
    # best[m][j]: the least time of the first j layers on the first m workers; choice: the last cut and its workers.
    best = np.full((workers + 1, count + 1), np.inf)
    best[0, 0] = 0
    choice: dict[tuple[int, int], tuple[int, int]] = {}
    for all_of in range(1, workers + 1):
        for own in (n for n in range(1, all_of + 1) if not microbatches % n):
            before = all_of - own
            rate = rates.between(before, all_of - 1)
            across = moved / rates.between(before - 1, before) if before else moved * 0
            for j in range(1, count + 1):
                sums = 2 * (own - 1) / own * (gradients[j] - gradients[:j]) / rate
                last = np.maximum(upto[j] - upto[:j], sums) / own
                slowest = np.maximum(np.maximum(best[before, :j], across[:j]), last)
                at = int(slowest.argmin())
                if slowest[at] < best[all_of, j]:
                    best[all_of, j], choice[all_of, j] = slowest[at], (at, own)
    if (workers, count) not in choice:
        raise InputError(
            f"{count} layers cannot be divided over {workers} GPUs that share out {microbatches} microbatches evenly"
        )
    stages: list[tuple[int, int]] = []
    m, j = workers, count
    while j:
        cut, own = choice[m, j]
        stages.append((j - cut, own))
        m, j = m - own, cut
    return stages[::-1]
