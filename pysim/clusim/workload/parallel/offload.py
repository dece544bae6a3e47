"""On the host: the optimiser, with gradients copied there and weights back; activations until they are needed again.

**Hardware** ZeRO-Offload (arXiv 2101.06840): states and master weights are in the host's memory; the CPU steps over a
tile of parameters while the gradients of the next one come and the weights of the one before go. **Model** The same,
a tile for each bucket of data parallelism; the CPU's step takes what its memory traffic takes, with the GPU's part of
the host's memory. Activations (Transformer Engine's offloading) of all layers of a pass but the last one leave behind
their forward pass; a layer waits until those of the layer before the one before it are gone, so that two are there.
They come back while the layer behind is in its backward pass. **Not modelled** Copies of gradients under the backward
pass; CPUs too slow for their memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusim.workload.hostlink import TO_HOST, host_way
from clusim.workload.parallel.emitter import Emitter, Tails
from clusim.workload.pipeline_schedules import Action

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
                stream = TO_HOST if name.endswith("to host") else name
                task = emitter.builder.delay(rank, delay_ps, stream=stream, name=name, after=after)
                after = (task,)
        emitter.tail[rank] = after


class Away:
    """Activations of a stage that are on the host between the passes of a microbatch."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        self.emitter = emitter
        self.ranks = emitter.ranks(stage)
        self.chunks = emitter.plan.stages[stage]
        self.rate_Bps = host_way(emitter.plan.fabric).rate_Bps
        self._gone: dict[tuple[int, int, int], Tails] = {}
        self._back: dict[tuple[int, int, int], Tails] = {}

    def before(self, action: Action, index: int) -> None:
        """Wait for room before a forward pass; have activations before a backward pass, and fetch the next ones."""
        kind, microbatch, chunk = action
        if kind == "F":
            self.emitter.join(self._gone.get((microbatch, chunk, index - 2), {}))
        elif kind in ("B", "BW"):
            for wanted in (index, index - 1):
                place = (microbatch, chunk, wanted)
                if place in self._gone:
                    self._back[place] = self._copy(place, "activations from host")
            self.emitter.join(self._back.pop((microbatch, chunk, index), {}))

    def after(self, action: Action, index: int) -> None:
        """Send what a layer keeps to the host behind its forward pass; the last layer's is needed at once."""
        kind, microbatch, chunk = action
        if kind == "F" and index < len(self.chunks[chunk]) - 1:
            place = (microbatch, chunk, index)
            self._gone[place] = self._copy(place, "activations to host")

    def _copy(self, place: tuple[int, int, int], name: str) -> Tails:
        _, chunk, index = place
        size = self.chunks[chunk][index].kept(self.emitter.plan.workload.recompute)
        delay_ps = round(size / self.rate_Bps * 1e12)
        stream = TO_HOST if name.endswith("to host") else name
        there = self._gone.pop(place, {})
        found: Tails = {}
        for rank in self.ranks:
            after = (*self.emitter.tail.get(rank, ()), *there.get(rank, ()))
            task = self.emitter.builder.delay(rank, delay_ps, stream=stream, name=name, after=after)
            found[rank] = (task,)
        return found
