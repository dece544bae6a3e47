"""Compare estimates of the shipped workloads with the engine: a column of docs/training.md.

Each workload runs one step. Parts are cached in a new folder; the first estimate simulates them, the
second reuses them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from clusim.base.kept import SampleCache
from clusim.training import TrainRequest, trained
from clusim.training.api import inputs
from clusim.training.estimate import estimated

WORKLOADS = (
    "gpt3-175b-megatron",
    "megatron-22b",
    "dlrm-16",
    "resnet50-dgx1v",
    "bert-allreduce",
    "bert-parameter-server",
    "mixtral-8x7b-ep8",
)


def main(names: tuple[str, ...]) -> None:
    """Print a row for every workload."""
    print(
        "| in `traces/` | engine | exposed | estimate | exposed | error | engine | parts | estimate |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        request = TrainRequest(*inputs(name), steps=1)
        began_s = time.process_time()
        real = trained(request)
        marks = [began_s, time.process_time()]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                result = estimated(request, SampleCache(Path(folder)))
                marks.append(time.process_time())
        engine_s, parts_s, again_s = (b - a for a, b in pairwise(marks))
        error = result.step_time_s / real.step_time_s - 1
        print(
            f"| `{name}` | {real.step_time_s * 1e3:,.3f} ms | {real.mean('exposed') * 1e3:,.3f} ms"
            f" | {result.step_time_s * 1e3:,.3f} ms | {result.mean('exposed') * 1e3:,.3f} ms | {error:+.2%}"
            f" | {engine_s:.1f} s | {parts_s:.1f} s | {again_s * 1e3:.0f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or WORKLOADS)
