"""Harness of a collective: launch, iterations, and the interval that is timed.

**Real programs** nccl-tests (common.cu, BenchTime) runs one iteration of every size before it reads the clock, waits
for all threads and processes, enqueues ``-n`` iterations and polls every stream until it is idle. So the time that it
divides by the iterations contains the host's time for the first one, the start of a kernel on an idle GPU, all
iterations, and the delay until the host notices. A loop around torch.distributed does the same with a slower host: a
call passes through Python and its dispatcher, creates a work object, records events and, as NCCL has a separate stream
there, each of the two streams waits for the other.
**Model** Work enqueued at once (a group of ``-m`` collectives, a complete graph) needs a host time and a GPU time.
The first contributes both, and each later one the longer of the two.
**Not modelled** Full queues; iterations that are slower than others; the additional cost of the first launch
of a graph; skew of processes after an MPI barrier; garbage collection.
**Parameters** The fields of `HostCosts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from clusim.base.errors import InputError, suggest
from clusim.nccl.calls.launch import (
    DEFAULT_ITERATIONS,
    Host,
    Launch,
    empty_ps,
    enqueued_ps,
    graph_ps,
    iteration_ps,
    start_and_end_ps,
    torch_ps,
    wake_ps,
)
from clusim.results.result import mean_iteration_ps

KINDS = ("nccl-tests", "torch", "own", "mixed")
"""nccl-tests; a Python loop around torch.distributed; a program of the authors; several harnesses."""

AVERAGES = {0: 0.5, 1: 0.5, 2: 0.0, 3: 1.0}
"""nccl-tests' ``-a`` -> counted share of the threads' skew after a barrier: thread 0, mean, least, most."""


def kind_named(word: str) -> str:
    """Return a kind of harness as spelled in `KINDS`, "" if unknown.

    Raises `InputError` for other words.
    """
    name = word.strip().lower().replace("_", "-")
    if name and name not in KINDS:
        raise InputError(
            f"harness {word[:40]!r}: must be one of {', '.join(KINDS)}{suggest(name, KINDS)}"
        )
    return name


def iterations_of(kind: str, given: int) -> int:
    """Return the iterations of a measurement; by default nccl-tests' number, or 0 for others."""
    return given or (0 if kind in ("torch", "own") else DEFAULT_ITERATIONS)


@dataclass(frozen=True, slots=True)
class Harness:
    """Measurement method of a table.

    Attributes
    ----------
    kind : str
        One of `KINDS`; "" is unknown.
    launch : Launch
        Launch of collectives: GPUs per thread, threads per process, groups, graph, waiting.
    iterations : int
        Iterations between two clock readings, or in a graph; 0 is a number at which start and end are negligible.
    warmups : int
        Earlier iterations; without effect, because a further one precedes the first clock reading.
    graphs : int
        Number of graph launches, nccl-tests' ``-G``.
    average : int
        Average over threads, nccl-tests' ``-a``: thread 0, mean, least or most.
    """

    kind: str = "nccl-tests"
    launch: Launch = field(default_factory=Launch)
    iterations: int = 0
    warmups: int = 1
    graphs: int = 1
    average: int = 1

    def processes(self, num_ranks: int) -> int:
        """Return the number of processes of a job."""
        each = max(1, self.launch.gpus_per_thread) * max(1, self.launch.threads)
        return max(1, ceil(num_ranks / each))

    def time_ps(self, host: Host, operation: str, kernel_ps: int, channels: int = 1) -> int:
        """Return the reported time per iteration [ps]; `kernel_ps` 0 is a call without data."""
        launch = self.launch
        if kernel_ps == 0:
            return empty_ps(host, launch)
        if launch.graph:
            return self._of_graphs(host, operation, kernel_ps)
        host_ps, gpu_ps = self._enqueued(host, operation, kernel_ps, channels)
        times = max(1, launch.aggregated)
        if launch.blocking:
            met = self._barrier_ps(host) if launch.blocking == 1 else 0
            return (host_ps + gpu_ps + self.around_ps(host) + met) // times
        mean_ps = mean_iteration_ps((host_ps, gpu_ps), self.around_ps(host), self.iterations)
        return mean_ps // times

    def host_time_ps(self, host: Host, operation: str, kernel_ps: int, channels: int = 1) -> int:
        """Return the host's time per iteration, nccl-tests' ``-C`` [ps].

        The full time if the host waits for each iteration.
        """
        launch = self.launch
        if launch.blocking or kernel_ps == 0:
            return self.time_ps(host, operation, kernel_ps, channels)
        times = max(1, launch.aggregated)
        if launch.graph:
            return self.graphs * graph_ps(host, launch) // (max(1, self.iterations) * times)
        return self._enqueued(host, operation, kernel_ps, channels)[0] // times

    def around_ps(self, host: Host) -> int:
        """Return the time at start and end that belongs to no iteration [ps].

        Excludes the host's time for the first iteration.
        """
        apart = AVERAGES[self.average] * (max(1, self.launch.threads) - 1) * wake_ps(host)
        return sum(start_and_end_ps(host)) + round(apart)

    def _enqueued(
        self, host: Host, operation: str, kernel_ps: int, channels: int
    ) -> tuple[int, int]:
        host_ps, gpu_ps = enqueued_ps(host, operation, kernel_ps, self.launch, channels)
        if self.kind != "torch":
            return host_ps, gpu_ps
        call_ps, waits_ps = torch_ps(host)
        return host_ps + call_ps, gpu_ps + waits_ps

    def _of_graphs(self, host: Host, operation: str, kernel_ps: int) -> int:
        node_ps = iteration_ps(host, operation, kernel_ps, self.launch)
        if not self.iterations:
            return node_ps
        number = self.iterations * max(1, self.launch.aggregated)
        each_ps = graph_ps(host, self.launch), number * node_ps
        return mean_iteration_ps(each_ps, self.around_ps(host), self.graphs) // number

    def _barrier_ps(self, host: Host) -> int:
        """Return the time of a barrier [ps].

        Threads are released one after the other, processes in rounds.
        """
        rounds = (self.processes(host.num_ranks) - 1).bit_length()
        return (max(1, self.launch.threads) - 1 + rounds) * wake_ps(host)
