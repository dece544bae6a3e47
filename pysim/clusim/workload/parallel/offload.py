"""The optimiser on the host: gradients are copied there, the CPU steps, weights are copied back.

**Hardware** ZeRO-Offload (arXiv 2101.06840): states and master weights are in the host's memory; the CPU steps over a
tile of parameters while the gradients of the next one come and the weights of the one before go. **Model** The same,
a tile for each bucket of data parallelism; the CPU's step takes what its memory traffic takes, with the GPU's part of
the host's memory. **Not modelled** Copies of gradients under the backward pass; CPUs too slow for their memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusim.workload.hostlink import host_way
from clusim.workload.parallel.emitter import Emitter

__all__ = ["MOST_TILES", "step_on_host"]

MOST_TILES = 64
"""Tiles of a step at most: more make no difference to its time."""


def step_on_host(emitter: Emitter, ranks: Iterable[int], elements: int) -> None:
    """Add a step of the optimiser over so many parameters of each rank, on its host."""
    plan = emitter.plan
    way, size = host_way(plan.fabric), plan.element_bytes_reduced
    wanted = -(-elements * size // plan.workload.data.bucket)
    tiles = max(1, min(MOST_TILES, wanted))
    part = elements / tiles
    stages = (
        ("gradients to host", part * size / way.rate_Bps),
        ("optimizer on host", plan.optimizer.kernel(elements).bytes / tiles / way.memory_Bps),
        ("weights from host", part * plan.precision.bytes / way.rate_Bps),
    )
    for rank in ranks:
        start = emitter.tail.get(rank, ())
        for _ in range(tiles):
            after = start
            for name, seconds in stages:
                delay_ps = round(seconds * 1e12)
                after = (
                    emitter.builder.delay(rank, delay_ps, stream=name, name=name, after=after),
                )
        emitter.tail[rank] = after
