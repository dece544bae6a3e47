"""Offload to the host: the optimiser with its gradients and weights, and activations.

**Hardware** ZeRO-Offload (arXiv 2101.06840): states and master weights are in host memory; the CPU steps
over a tile of parameters while the gradients of the next tile arrive and the weights of the previous one
leave. **Model** The same, a tile for each bucket of data parallelism; the duration of the CPU's step is
that of its memory traffic, at the GPU's part of host memory bandwidth. Activations (Transformer Engine's
offloading) of all layers of a pass except the last are copied out after their forward pass; a layer
waits for the copy of the second layer before it, so that two are resident. They return while the
following layer is in its backward pass. **Not modelled** Copies of gradients during the backward pass;
CPUs too slow for their memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusim.workload.hostlink import TO_HOST, host_way
from clusim.workload.parallel.emitter import Emitter, Tails
from clusim.workload.pipeline_schedules import Action

MOST_TILES = 64
"""Most tiles of a step: more do not change its time."""


def step_on_host(emitter: Emitter, ranks: Iterable[int], elements: int) -> None:
    """Add an optimiser step over this number of parameters of each rank, on its host."""
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
        """Wait for memory (forward) or for activations (backward), and prefetch the next ones."""
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
        """Copy a layer's activations to the host after its forward pass, except the last layer's."""
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
        result: Tails = {}
        for rank in self.ranks:
            after = (*self.emitter.tail.get(rank, ()), *there.get(rank, ()))
            task = self.emitter.builder.delay(rank, delay_ps, stream=stream, name=name, after=after)
            result[rank] = (task,)
        return result
