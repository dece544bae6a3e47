"""Data parallelism with complete weights on every rank: gradient buckets of DDP, ZeRO 1 and 2.

**Hardware** DDP (VLDB 2020) fills buckets with parameters in reverse order, 25 MiB each and the first 1
MiB; when the gradients of a bucket are complete, its all-reduce starts during the rest of the backward
pass. ZeRO 1 and the distributed optimiser of Megatron-LM replace it by a reduce-scatter, and gather the
weights after the step; ZeRO 2 keeps only its part of the gradients and therefore reduces every
microbatch. With fewer shards than replicas (instances of the distributed optimiser) a rank's part of a
sum is reduced over the copies, once a step. **Model** The same; gradients of a layer are complete when
its backward pass ends. **Not modelled** Copies into buckets; buffers of unused parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clusim.workload.layers import Layer
from clusim.workload.parallel.emitter import Emitter, Exchange, Tails
from clusim.workload.parallel.offload import step_on_host
from clusim.workload.recipes import handed_bytes


class Bucket(NamedTuple):
    """Gradients that are reduced together: layers, number of elements, and a flag for experts.

    Attributes
    ----------
    factors : int
        Elements whose products use 8 bits if products can.
    """

    layers: frozenset[tuple[int, int]]
    elements: int
    expert: bool = False
    factors: int = 0


def fill_buckets(
    chunks: Sequence[Sequence[Layer]],
    element_bytes: int,
    first_bytes: int,
    bucket_bytes: int,
    *,
    expert: bool = False,
) -> list[Bucket]:
    """Return the buckets of a stage in the order of filling; layers are (chunk, index)."""
    result: list[Bucket] = []
    layers: set[tuple[int, int]] = set()
    elements, factors, limit = 0, 0, first_bytes
    for chunk in range(len(chunks) - 1, -1, -1):
        for index in range(len(chunks[chunk]) - 1, -1, -1):
            for tensor in reversed(chunks[chunk][index].tensors):
                if tensor.expert != expert:
                    continue
                layers.add((chunk, index))
                elements += tensor.elements
                factors += tensor.elements if tensor.factor else 0
                if elements * element_bytes >= limit:
                    result.append(Bucket(frozenset(layers), elements, expert, factors))
                    layers, elements, factors, limit = set(), 0, 0, bucket_bytes
    if elements:
        result.append(Bucket(frozenset(layers), elements, expert, factors))
    return result


class DataParallel:
    """Work that data parallelism adds to a stage; the base class adds only the optimizer."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        self.emitter, self.stage = emitter, stage
        self.plan = emitter.plan
        self.chunks = emitter.plan.stages[stage]

    def hooked(self, kind: str, microbatch: int, last: bool) -> bool:
        """True if passes of this kind have to be written layer by layer."""
        return False

    def completes(self, kind: str) -> bool:
        """True if passes of this kind produce weight gradients."""
        return kind in (("W", "BW") if self.plan.splits_backward else ("B",))

    def begin(self) -> None:
        """Start a step."""

    def before(self, kind: str, chunk: int, index: int) -> None:
        """Add work before a pass of a layer."""

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Add work after a pass of a layer; `last` marks the last microbatch."""

    def post(self) -> None:
        """Post results that other workers need before this step can end."""

    def ready(self) -> bool:
        """True if other workers have posted the results that this step waits for."""
        return True

    def finish(self) -> None:
        """End a step: remaining reductions, the optimiser, new weights."""
        self.complete()
        self.step()

    def complete(self) -> None:
        """Reduce the remaining gradients, and wait for them."""

    def step(self) -> None:
        """Add the optimiser step, and distribute the new weights."""
        self.optimize()

    def optimize(self) -> None:
        """Add the optimiser's kernel."""
        ranks, elements = self.emitter.ranks(self.stage), self.plan.stepped(self.stage)
        if self.plan.workload.offload.optimizer and elements:
            step_on_host(self.emitter, ranks, elements)
        else:
            self.emitter.optimizer(ranks, elements)


class Unfilled:
    """Layers that buckets still wait for."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._missing = [set(bucket.layers) for bucket in buckets]

    def __bool__(self) -> bool:
        """True if any bucket waits."""
        return any(self._missing)

    def filled(self, chunk: int, index: int) -> list[int]:
        """Return the buckets that are complete with this layer, and were not before."""
        result = []
        for number, missing in enumerate(self._missing):
            if (chunk, index) in missing:
                missing.discard((chunk, index))
                result += [] if missing else [number]
        return result

    def rest(self) -> list[int]:
        """Return the buckets that still wait, in their present state."""
        result = [number for number, missing in enumerate(self._missing) if missing]
        for number in result:
            self._missing[number].clear()
        return result


class Replicated(DataParallel):
    """DDP, its unoverlapped and naive forms, reduction at a driver, ZeRO 1 and 2."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        super().__init__(emitter, stage)
        own = self.plan.workload.data
        self.own = own
        size = self.plan.element_bytes_reduced
        single = own.kind in ("naive", "driver")
        limits = (1 << 60, 1 << 60) if single else (own.first_bucket, own.bucket)
        self.buckets = [
            bucket
            for expert in (False, True)
            for bucket in fill_buckets(self.chunks, size, *limits, expert=expert)
            if emitter.groups("expert_replica" if expert else "replica", stage)
        ]
        self.overlap = own.overlap and not single
        self.every = own.kind == "zero2" or not own.accumulate
        self.scatter = self.plan.zero in (1, 2)
        self.unfilled = Unfilled(self.buckets)
        self.done: list[Tails] = []

    def hooked(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for the passes that complete gradients."""
        if not self.buckets or not self.overlap:
            return False
        return self.completes(kind) and (last or self.every)

    def begin(self) -> None:
        """Start a step."""
        self.unfilled, self.done = Unfilled(self.buckets), []

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Reduce the buckets that are complete with this layer."""
        for number in self.unfilled.filled(chunk, index):
            self.done.append(self.reduce(self.buckets[number], last=last))
        if self.every and not self.unfilled:
            self.unfilled = Unfilled(self.buckets)

    def reduce(self, bucket: Bucket, *, last: bool = True) -> Tails:
        """Add the reduction of a bucket after the ranks' previous work."""
        operation = "reduce_scatter" if self.scatter else "allreduce"
        algorithm = "driver" if self.own.kind == "driver" else None
        dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
        size = bucket.elements * self.plan.element_bytes_reduced
        dim = self._dim(bucket)
        exchange = Exchange(dim, operation, size, "gradients", algorithm, dtype)
        result = self.emitter.collectives(exchange, self.emitter.groups(dim, self.stage))
        if not self.scatter or not (last or not self.own.accumulate):
            return result
        mesh, dim = self.plan.mesh, "expert_copy" if bucket.expert else "copy"
        parts = mesh.expert_shards if bucket.expert else mesh.shards
        part = Exchange(dim, "allreduce", -(-size // parts), "gradients", None, dtype)
        groups = self.emitter.groups(dim, self.stage)
        return result | self.emitter.collectives(part, groups, "data copies", result)

    def _dim(self, bucket: Bucket) -> str:
        """Return the dimension over which a bucket is reduced."""
        if self.scatter:
            return "expert_shard" if bucket.expert else "shard"
        return "expert_replica" if bucket.expert else "replica"

    def complete(self) -> None:
        """Reduce the remaining buckets, and wait for them."""
        if not (self.every and self.overlap):
            for number in self.unfilled.rest():
                self.done.append(self.reduce(self.buckets[number]))
        for done in self.done:
            self.emitter.join(done)

    def step(self) -> None:
        """Add the optimiser step, and gather the weights if each rank stepped only a part."""
        self.optimize()
        if self.scatter:
            gathered = [self._gather(bucket) for bucket in self.buckets]
            for done in gathered:
                self.emitter.join(done)

    def _gather(self, bucket: Bucket) -> Tails:
        dim, plan = self._dim(bucket), self.plan
        size = bucket.elements * plan.precision.bytes
        if plan.workload.primary_weights == "fp8":
            saved = plan.precision.bytes - handed_bytes(plan.precision)
            size -= round(bucket.factors * saved)
        exchange = Exchange(dim, "all_gather", size, "weights")
        return self.emitter.collectives(exchange, self.emitter.groups(dim, self.stage))
