"""Cuts a row of layers into parts whose slowest is as fast as can be.

**Hardware** PipeDream (SOSP 2019), section 3.1: the best time of the first j layers on m workers is the least, over the
place i of the last cut and the m' workers of the last stage, of the longest of the best time of the first i on m - m',
of the messages across the cut (what layer i makes and its gradient), and of the last stage: the longer of what its
layers take and of the sum of their gradients over m' workers, divided by m', as the workers take turns. **Model** The
same, with 2 (m' - 1)/m' of the gradients for a sum over m' (a ring), and a worker's rate inside or across machines:
workers are in their order, so which of the two a stage or a cut has follows from m. **Not modelled** Copies of a
pipeline of its own in every machine (PipeDream's levels); memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clusim.base.errors import InputError


class LayerCost(NamedTuple):
    """A layer: what a microbatch takes [s], its gradients, and what it hands on [bytes]."""

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
    """Return how many layers each part has, one at least, so that the slowest part takes as little as possible.

    Parameters
    ----------
    replicas : sequence of int
        How many workers take turns in each part.
    """
    count, parts = len(times), len(replicas)
    if count < parts:
        raise InputError(f"{count} layers cannot be divided into {parts} parts")
    upto = [0, *accumulate(times)]
    # best[j]: the least time of the slowest of so many parts of the first j layers; cut: where the last one begins.
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
    """Return layers and workers of every stage, so that the pipeline gives microbatches as fast as can be.

    The workers of a stage must share out the `microbatches` of a step evenly.
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
