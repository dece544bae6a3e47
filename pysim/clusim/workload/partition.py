"""Cuts a row of layers into parts whose slowest is as fast as can be.

**Hardware** PipeDream (SOSP 2019), section 3.1: the best time of the first j layers on m stages is the least, over the
place i of the last cut, of the longer of the best time of the first i on m - 1 and what the layers behind i take.
**Model** The same, for stages that are not replicated. **Not modelled** Messages between stages, which run beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from clusim.errors import InputError

__all__ = ["balanced"]


def balanced(times: Sequence[int], parts: int) -> list[int]:
    """Return how many layers each part has, one at least, so that the slowest part takes as little as possible.

    Of several such cuts, later parts have more layers.
    """
    count = len(times)
    if parts < 1 or count < parts:
        raise InputError(f"{count} layers cannot be divided into {parts} parts")
    upto = [0, *accumulate(times)]
    # best[j]: the least time of the slowest of so many parts of the first j layers; cut: where the last one begins.
    best: list[float] = [0, *[float("inf")] * count]
    cuts: list[list[int]] = []
    for part in range(1, parts + 1):
        row: list[float] = [float("inf")] * (count + 1)
        cut = [0] * (count + 1)
        for j in range(part, count + 1):
            for i in range(part - 1, j):
                slowest = max(best[i], upto[j] - upto[i])
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
