"""Data parallelism with complete weights on every rank: DDP, ZeRO 1 and 2, 1F1B-RR, servers.

**Gradient buckets.** **Hardware** DDP (VLDB 2020) fills buckets with parameters in reverse order, 25
MiB each and the first 1 MiB; when the gradients of a bucket are complete, its all-reduce starts during
the rest of the backward pass. ZeRO 1 and the distributed optimiser of Megatron-LM replace it by a
reduce-scatter, and gather the weights after the step; ZeRO 2 keeps only its part of the gradients and
therefore reduces every microbatch. With fewer shards than replicas (instances of the distributed
optimiser) a rank's part of a sum is reduced over the copies, once a step. **Model** The same; gradients
of a layer are complete when its backward pass ends. **Not modelled** Copies into buckets; buffers of
unused parameters.

**Replicated stages** (1F1B-RR). **Hardware** PipeDream (SOSP 2019): the workers of a stage process its
microbatches in turn; PyTorch's DDP sums the gradients of a round, one microbatch of each worker, during
their backward passes, and every worker steps when it has all sums. **Model** The same: a bucket is
summed when the last worker of the round has computed it. **Not modelled** Versions of weights that
differ while a microbatch is in flight: they cost memory but no time.

**Parameter servers**: workers push gradients and pull weights; each server has a part. **Hardware** Li
et al., OSDI 2014. In a bulk-synchronous step a server sums the gradients of all workers, steps once,
and answers all; asynchronously it steps for every worker and answers it at once. **Model** A bucket of
gradients is divided evenly over the servers; pushes start when its gradients are complete. Servers are
separate ranks, or workers in a second role. **Not modelled** Stale gradients: time does not depend on
their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clusim.workload.kernels import Kernel
from clusim.workload.layers import Layer
from clusim.workload.parallel.checkpoints import step_on_host
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.exchanges import Exchange, Tails
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
                    result.append(
                        Bucket(frozenset(layers), elements, expert, factors)
                    )
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

    def writes_layers(self, kind: str, microbatch: int, last: bool) -> bool:
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
        ranks, elements = (
            self.emitter.ranks(self.stage),
            self.plan.optimizer_parameters(self.stage),
        )
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

    def fill_buckets(self, chunk: int, index: int) -> list[int]:
        """Return the buckets that are complete with this layer, and were not before."""
        result = []
        for number, missing in enumerate(self._missing):
            if (chunk, index) in missing:
                missing.discard((chunk, index))
                result += [] if missing else [number]
        return result

    def remaining_buckets(self) -> list[int]:
        """Return the buckets that still wait, in their present state."""
        result = [number for number, missing in enumerate(self._missing) if missing]
        for number in result:
            self._missing[number].clear()
        return result


class Replicated(DataParallel):
    """DDP, its unoverlapped and naive forms, reduction at a driver, ZeRO 1 and 2."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        super().__init__(emitter, stage)
        settings = self.plan.workload.data
        self.own = settings
        size = self.plan.element_bytes_reduced
        single = settings.kind in ("naive", "driver")
        limits = (
            (1 << 60, 1 << 60)
            if single
            else (settings.first_bucket, settings.bucket)
        )
        self.buckets = [
            bucket
            for expert in (False, True)
            for bucket in fill_buckets(self.chunks, size, *limits, expert=expert)
            if emitter.groups("expert_replica" if expert else "replica", stage)
        ]
        self.overlap = settings.overlap and not single
        self.every = settings.kind == "zero2" or not settings.accumulate
        self.scatter = self.plan.zero in (1, 2)
        self.unfilled = Unfilled(self.buckets)
        self.done: list[Tails] = []

    def writes_layers(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for the passes that complete gradients."""
        if not self.buckets or not self.overlap:
            return False
        return self.completes(kind) and (last or self.every)

    def begin(self) -> None:
        """Start a step."""
        self.unfilled, self.done = Unfilled(self.buckets), []

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Reduce the buckets that are complete with this layer."""
        for number in self.unfilled.fill_buckets(chunk, index):
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
        result = self.emitter.collectives(
            exchange, self.emitter.groups(dim, self.stage)
        )
        if not self.scatter or not (last or not self.own.accumulate):
            return result
        mesh, dim = self.plan.mesh, "expert_copy" if bucket.expert else "copy"
        parts = mesh.expert_shards if bucket.expert else mesh.shards
        part = Exchange(
            dim, "allreduce", -(-size // parts), "gradients", None, dtype
        )
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
            for number in self.unfilled.remaining_buckets():
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
        return self.emitter.collectives(
            exchange, self.emitter.groups(dim, self.stage)
        )


@dataclass
class Board:
    """Results of a stage's workers: last tasks of each bucket and of its sum, by round.

    Attributes
    ----------
    given : int
        Buckets that workers have posted so far.
    """

    workers: range
    made: dict[tuple[int, int], Tails] = field(default_factory=dict)
    summed: dict[tuple[int, int], Tails] = field(default_factory=dict)
    given: int = 0

    def worker(self, microbatch: int) -> int:
        """Return the worker of a microbatch, assigned round-robin."""
        return self.workers[microbatch % len(self.workers)]


class Rounds(DataParallel):
    """Worker of a replicated stage."""

    def __init__(self, emitter: Emitter, stage: int, board: Board) -> None:
        super().__init__(emitter, stage)
        settings = self.plan.workload.data
        self.board, self.overlap, self.round = board, settings.overlap, -1
        size = self.plan.element_bytes_reduced
        self.buckets = fill_buckets(
            self.chunks, size, settings.first_bucket, settings.bucket
        )
        self.unfilled = Unfilled([])

    def writes_layers(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for backward passes."""
        return self.overlap and kind == "B"

    def begin(self) -> None:
        """Start a round."""
        self.round += 1
        self.unfilled = Unfilled(self.buckets)

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Post the buckets that are complete with this layer."""
        for number in self.unfilled.fill_buckets(chunk, index):
            self._give(number)

    def post(self) -> None:
        """Post the remaining buckets."""
        for number in self.unfilled.remaining_buckets():
            self._give(number)

    def ready(self) -> bool:
        """True if all of this round is being summed."""
        return all(
            (self.round, number) in self.board.summed
            for number in range(len(self.buckets))
        )

    def complete(self) -> None:
        """Wait for the sums."""
        for number in range(len(self.buckets)):
            done = self.board.summed[self.round, number]
            self.emitter.join(
                {rank: done[rank] for rank in self.emitter.ranks(self.stage)}
            )

    def _give(self, number: int) -> None:
        """Record a bucket of this worker; the last worker adds the sum."""
        board, key = self.board, (self.round, number)
        tasks = board.made.setdefault(key, {})
        tasks |= {
            rank: self.emitter.tail.get(rank, ())
            for rank in self.emitter.ranks(self.stage)
        }
        board.given += 1
        groups = [
            *zip(
                *(self.emitter.ranks(worker) for worker in board.workers),
                strict=True,
            )
        ]
        if len(tasks) < len(groups) * len(board.workers):
            return
        size = self.buckets[number].elements * self.plan.element_bytes_reduced
        dtype = "float32" if self.plan.element_bytes_reduced == 4 else None
        exchange = Exchange("replica", "allreduce", size, "gradients", dtype=dtype)
        done = board.summed.setdefault(key, {})
        for group in groups:
            done |= self.emitter.collective(exchange, group, after=tasks)


SERVER = "server"
"""First word of the streams of kernels of parameter servers."""


class Served(DataParallel):
    """Data parallelism with one or several parameter servers."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        super().__init__(emitter, stage)
        self.own = self.plan.workload.data
        size = self.plan.element_bytes_reduced
        self.buckets = fill_buckets(
            self.chunks, size, self.own.first_bucket, self.own.bucket
        )
        self.unfilled = Unfilled(self.buckets)
        self.pulled: list[Tails] = []
        self.workers = emitter.ranks(stage)

    def writes_layers(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for the backward passes that complete gradients."""
        return kind == "B" and last and self.own.overlap

    def begin(self) -> None:
        """Start a step."""
        self.unfilled = Unfilled(self.buckets)

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Push the buckets that are complete with this layer."""
        for number in self.unfilled.fill_buckets(chunk, index):
            self._exchange(self.buckets[number])

    def complete(self) -> None:
        """Push the remaining gradients; the next step waits for the weights."""
        for number in self.unfilled.remaining_buckets():
            self._exchange(self.buckets[number])
        for done in self.pulled:
            self.emitter.join(done)
        self.pulled = []

    def step(self) -> None:
        """Do no work: the servers have stepped."""

    def _exchange(self, bucket: Bucket) -> None:
        """Push a bucket from all workers to all servers, step there, and pull the weights."""
        plan, servers = self.plan, self.plan.servers
        part = -(-bucket.elements // len(servers))
        for server in servers:
            pushed: dict[int, tuple[int, ...]] = {}
            for worker in self.workers:
                tail = self.emitter.tail.get(worker, ())
                if worker == server:
                    pushed[worker] = tail
                    continue
                size = part * plan.element_bytes_reduced
                push = Exchange("data", "send", size, "push")
                _, arrived = self.emitter.message(
                    push, (worker, server), {worker: tail}
                )
                pushed[worker] = (arrived,)
            updates = self._updates(server, part, pushed)
            for worker in self.workers:
                if worker == server:
                    self.pulled.append({worker: updates[worker]})
                    continue
                size = part * plan.precision.bytes
                pull = Exchange("data", "send", size, "pull")
                tails = {server: updates[worker]}
                _, got = self.emitter.message(pull, (server, worker), tails)
                self.pulled.append({worker: (got,)})

    def _updates(
        self, server: int, part: int, pushed: dict[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
        """Add the kernels of a server; return the tasks that precede the weights of each worker."""
        plan = self.plan
        step = plan.optimizer.kernel(part)
        if self.own.mode == "async":
            done: dict[int, tuple[int, ...]] = {}
            for worker, arrived in pushed.items():
                task = self._kernel(server, step, f"update {worker}", arrived)
                done[worker] = (task,)
            return done
        all_tasks = tuple(
            sorted({task for tasks in pushed.values() for task in tasks})
        )
        reduce = Kernel(
            "sum", bytes=(len(pushed) + 1) * part * plan.element_bytes_reduced
        )
        summed = self._kernel(server, reduce, "sum", all_tasks)
        task = self._kernel(server, step, "update", (summed,))
        return {worker: (task,) for worker in pushed}

    def _kernel(
        self, server: int, kernel: Kernel, name: str, after: tuple[int, ...]
    ) -> int:
        chip = self.plan.chip
        return self.emitter.builder.kernel(
            server,
            stream=f"{SERVER} {name}" if name.startswith("update ") else SERVER,
            compute_ps=chip.time_ps(kernel),
            hbm_bytes=chip.moved_bytes(kernel),
            name=f"server {name}",
            after=after,
        )
