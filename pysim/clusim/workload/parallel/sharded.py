"""Fully sharded data parallelism (ZeRO 3, FSDP): weights gathered by layer, gradients scattered.

**Hardware** PyTorch FSDP: a unit per layer; its weights are gathered before its forward and again before
its backward pass, `prefetch` units ahead, and freed afterwards; gradients are reduce-scattered when they
are complete. **Model** The same. The gather of a unit ahead starts when the unit before the present one
is complete, which is FSDP's limit on memory. With fewer shards than replicas (HSDP) a unit is gathered
and its gradients scattered inside a group of shards; a rank's part is then summed over the copies, for
the last microbatch, or for all if gradients are not accumulated. **Not modelled** Copies in and out of
flat buffers.
"""

from __future__ import annotations

from clusim.workload.parallel.data import DataParallel
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.exchanges import Exchange, Tails


class Sharded(DataParallel):
    """FSDP on a stage."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        super().__init__(emitter, stage)
        settings = self.plan.workload.data
        self.prefetch, self.reshard, self.accumulate = (
            settings.prefetch,
            settings.reshard,
            settings.accumulate,
        )
        self._gathered: dict[tuple[int, int], Tails] = {}
        self._reduced: list[Tails] = []

    def writes_layers(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for every pass."""
        return self._shards_parameters

    @property
    def _shards_parameters(self) -> bool:
        return any(
            self.emitter.groups(dim, self.stage)
            for dim in ("replica", "expert_replica")
        )

    def _sum_copies(self, chunk: int, index: int, scattered: Tails) -> Tails:
        """Sum the parts of a layer's gradients over the copies, after their scatter."""
        element, mesh = self.plan.element_bytes_reduced, self.plan.mesh
        result = dict(scattered)
        for expert, dim, parts in (
            (False, "copy", mesh.shards),
            (True, "expert_copy", mesh.expert_shards),
        ):
            tensors = self.chunks[chunk][index].tensors
            elements = -(
                -sum(t.elements for t in tensors if t.expert == expert) // parts
            )
            dtype = "float32" if element == 4 else None
            exchange = Exchange(
                dim, "allreduce", elements * element, "gradients", dtype=dtype
            )
            groups = self.emitter.groups(dim, self.stage) if elements else []
            tasks = self.emitter.collectives(
                exchange, groups, "data copies", scattered
            )
            for rank, task_ids in tasks.items():
                result[rank] = (*result.get(rank, ()), *task_ids)
        return result

    def before(self, kind: str, chunk: int, index: int) -> None:
        """Wait for the weights of a layer, and start the gathers of the next layers."""
        if kind == "W":
            return
        step = 1 if kind == "F" else -1
        for ahead in range(self.prefetch + 1):
            prefetched = index + step * ahead
            if (
                0 <= prefetched < len(self.chunks[chunk])
                and (chunk, prefetched) not in self._gathered
            ):
                self._gathered[chunk, prefetched] = self._collect(
                    chunk, prefetched, "all_gather"
                )
        self.emitter.join(self._gathered[chunk, index])

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Free the weights of a layer; scatter its gradients."""
        if kind == "F" and not self.reshard:
            self._gathered[chunk, index] = {}
        elif kind != "W":
            self._gathered.pop((chunk, index), None)
        if self.completes(kind):
            scattered = self._collect(chunk, index, "reduce_scatter")
            if last or not self.accumulate:
                scattered = self._sum_copies(chunk, index, scattered)
            self._reduced.append(scattered)

    def _collect(self, chunk: int, index: int, operation: str) -> Tails:
        result: Tails = {}
        scatter = operation == "reduce_scatter"
        element = (
            self.plan.element_bytes_reduced if scatter else self.plan.precision.bytes
        )
        dtype = "float32" if element == 4 else None
        for expert, dim in ((False, "shard"), (True, "expert_shard")):
            tensors = self.chunks[chunk][index].tensors
            elements = sum(t.elements for t in tensors if t.expert == expert)
            groups = self.emitter.groups(dim, self.stage) if elements else []
            # Gathers and scatters have separate communicators, so that they can run at the same time.
            name, stream = (
                ("gradients", "data scatter") if scatter else ("weights", "data")
            )
            exchange = Exchange(
                dim, operation, elements * element, name, dtype=dtype
            )
            for rank, task_ids in self.emitter.collectives(
                exchange, groups, stream
            ).items():
                result[rank] = (*result.get(rank, ()), *task_ids)
        return result

    def complete(self) -> None:
        """Wait for all gradients."""
        for done in self._reduced:
            self.emitter.join(done)
        self._reduced = []
        self._gathered = {}

    def step(self) -> None:
        """Add the optimiser step over the rank's shard."""
        self.optimize()
