"""Parameter servers: workers push gradients and pull weights; each server has a part of them.

**Hardware** Li et al., OSDI 2014. In a bulk-synchronous step a server sums the gradients of all workers,
steps once, and answers all; asynchronously it steps for every worker and answers it at once. **Model** A
bucket of gradients is divided evenly over the servers; pushes start when its gradients are complete.
Servers are separate ranks, or workers in a second role. **Not modelled** Stale gradients: time does not
depend on their values.
"""

from __future__ import annotations

from clusim.workload.kernels import Kernel
from clusim.workload.parallel.data import Bucket, DataParallel, Unfilled, fill_buckets
from clusim.workload.parallel.emitter import Emitter, Exchange, Tails


class Served(DataParallel):
    """Data parallelism with one or several parameter servers."""

    def __init__(self, emitter: Emitter, stage: int) -> None:
        super().__init__(emitter, stage)
        self.own = self.plan.workload.data
        size = self.plan.element_bytes_reduced
        self.buckets = fill_buckets(self.chunks, size, self.own.first_bucket, self.own.bucket)
        self.unfilled = Unfilled(self.buckets)
        self.pulled: list[Tails] = []
        self.workers = emitter.ranks(stage)

    def hooked(self, kind: str, microbatch: int, last: bool) -> bool:
        """True for the backward passes that complete gradients."""
        return kind == "B" and last and self.own.overlap

    def begin(self) -> None:
        """Start a step."""
        self.unfilled = Unfilled(self.buckets)

    def after(self, kind: str, chunk: int, index: int, last: bool) -> None:
        """Push the buckets that are complete with this layer."""
        for number in self.unfilled.filled(chunk, index):
            self._exchange(self.buckets[number])

    def complete(self) -> None:
        """Push the remaining gradients; the next step waits for the weights."""
        for number in self.unfilled.rest():
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
                _, arrived = self.emitter.message(push, (worker, server), {worker: tail})
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
        together = tuple(sorted({task for tasks in pushed.values() for task in tasks}))
        reduce = Kernel("sum", bytes=(len(pushed) + 1) * part * plan.element_bytes_reduced)
        summed = self._kernel(server, reduce, "sum", together)
        task = self._kernel(server, step, "update", (summed,))
        return {worker: (task,) for worker in pushed}

    def _kernel(self, server: int, kernel: Kernel, name: str, after: tuple[int, ...]) -> int:
        chip = self.plan.chip
        return self.emitter.builder.kernel(
            server,
            stream=f"server {name}" if name.startswith("update ") else "server",
            compute_ps=chip.time_ps(kernel),
            hbm_bytes=kernel.bytes,
            name=f"server {name}",
            after=after,
        )
