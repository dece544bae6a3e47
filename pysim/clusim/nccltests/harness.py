"""The program around a collective: what launches it, how often, and between which looks at the clock.

**Real programs** nccl-tests (common.cu, BenchTime) runs one iteration of every size before it looks at the clock, lets
all threads and processes meet, enqueues ``-n`` iterations and asks every stream whether it is idle. So what it divides
by the iterations is the host's time for the first one, the start of a kernel on an idle GPU, all iterations, and the
time until the host notices. A loop around torch.distributed does the same with a slower host: a call goes through
Python and its dispatcher, makes a work object, records events and, as NCCL has a stream of its own there, makes either
stream wait for the other.
**Model** What is enqueued at once (a group of ``-m`` collectives, a whole graph) takes the host and the GPU a time
each. Of many, all but the first take the longer of the two, and the first both of them.
**Not modelled** Queues that run full; iterations that are slower than others; what the first launch of a graph costs
more than the next; how far processes are apart when they leave a barrier of MPI; garbage collection.
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
"""nccl-tests; a Python loop around torch.distributed; a program of who measured; several of these."""

AVERAGES = {0: 0.5, 1: 0.5, 2: 0.0, 3: 1.0}
"""nccl-tests' ``-a`` -> which part of what threads leave a barrier apart counts: thread 0, mean, least, most."""


def kind_named(word: str) -> str:
    """Return a kind of harness as `KINDS` has it, "" if it is not known; raises `InputError` for other words."""
    name = word.strip().lower().replace("_", "-")
    if name and name not in KINDS:
        raise InputError(
            f"harness {word[:40]!r}: must be one of {', '.join(KINDS)}{suggest(name, KINDS)}"
        )
    return name


def iterations_of(kind: str, given: int) -> int:
    """Return the iterations of a measurement that may not say them: nccl-tests' own number, or 0 for other programs."""
    return given or (0 if kind in ("torch", "own") else DEFAULT_ITERATIONS)


@dataclass(frozen=True, slots=True)
class Harness:
    """Measurement method of a table.

    Attributes
    ----------
    kind : str
        One of `KINDS`; "" is not known.
    launch : Launch
        How it launches collectives: GPUs a thread, threads a process, groups, graph, waiting.
    iterations : int
        Iterations between two looks at the clock, or in a graph; 0 is so many that start and end do not count.
    warmups : int
        Iterations before; they change nothing, because one more comes before the first look at the clock.
    graphs : int
        How often a graph is launched, nccl-tests' ``-G``.
    average : int
        Whose time is printed, nccl-tests' ``-a``: thread 0, mean, least or most.
    """

    kind: str = "nccl-tests"
    launch: Launch = field(default_factory=Launch)
    iterations: int = 0
    warmups: int = 1
    graphs: int = 1
    average: int = 1

    def processes(self, num_ranks: int) -> int:
        """Return the processes of a job."""
        each = max(1, self.launch.gpus_per_thread) * max(1, self.launch.threads)
        return max(1, ceil(num_ranks / each))

    def time_ps(self, host: Host, operation: str, kernel_ps: int, channels: int = 1) -> int:
        """Return the time per iteration that it prints [ps]; 0 is a call without data."""
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
        """Return the host's time per iteration, nccl-tests' ``-C`` [ps]: all of it where it waits for each."""
        launch = self.launch
        if launch.blocking or kernel_ps == 0:
            return self.time_ps(host, operation, kernel_ps, channels)
        times = max(1, launch.aggregated)
        if launch.graph:
            return self.graphs * graph_ps(host, launch) // (max(1, self.iterations) * times)
        return self._enqueued(host, operation, kernel_ps, channels)[0] // times

    def around_ps(self, host: Host) -> int:
        """Return start and end: what is in no iteration, besides the host's time for the first one [ps]."""
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
        """Return the time of a barrier: threads are released one after the other, processes in rounds [ps]."""
        rounds = (self.processes(host.num_ranks) - 1).bit_length()
        return (max(1, self.launch.threads) - 1 + rounds) * wake_ps(host)
