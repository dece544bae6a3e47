"""Compare replicated with full simulation of steps: the table of docs/accuracy-approximations.md.

``python benchmarks/folding.py NAME ...``: workloads, one step each; without names, all that are small
enough. Time is processor time of this process, including all rounds of a run. All runs use bursts of one
size, because blocks would otherwise use finer or coarser bursts than the step in full.
"""

from __future__ import annotations

import sys
import time
from typing import Literal

from clusim.training import TrainingResult, train
from clusim.workload import load_workload

WORKLOADS = (
    "resnet50-dgx1v",
    "bert-allreduce",
    "bert-parameter-server",
    "megatron-22b",
)
Fold = Literal["none", "auto", "all"]
GRANULARITY = 2048
"""Maximum bytes of a burst.

It follows from the smallest slots of any collective of these steps: blocks without this collective must
not use coarser bursts than the step in full.
"""


def timed(name: str, fold: Fold) -> tuple[TrainingResult, float]:
    """Return a step with a fold mode, and its processor time [s]."""
    began_s = time.process_time()
    result = train(load_workload(name), steps=1, fold=fold, granularity=GRANULARITY)
    return result, time.process_time() - began_s


def main(names: tuple[str, ...]) -> None:
    """Print a row for every workload."""
    print(
        "| in `traces/` | step | | `auto` | blocks, proved | | `all` | blocks, proved | |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        plain, plain_s = timed(name, "none")
        cells = [
            f"`{name}`",
            f"{plain.step_ps[-1] / 1e9:,.3f} ms",
            f"{plain_s:.1f} s",
        ]
        for result, took_s in (timed(name, "auto"), timed(name, "all")):
            error = result.step_ps[-1] / plain.step_ps[-1] - 1
            blocks = f"{result.fold.folded}, {result.fold.proved_identical}"
            cells += [f"{error:+.4%}", blocks, f"{took_s:.1f} s"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or WORKLOADS)
