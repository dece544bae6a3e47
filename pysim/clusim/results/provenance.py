"""Provenance of a run: inputs, versions, and launch costs of its collective."""

from __future__ import annotations

from clusim.base.json_schema import JsonObject
from clusim.base.records import dataclass
from clusim.base.terms.times import ticks_ps


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """Costs of a collective besides its kernel, and the estimate of NCCL's tuner.

    Attributes
    ----------
    launch_ps, host_ps : int or None
        From the end of a kernel to the start of the next in a stream of kernels [ps], and the host time to launch
        one, which is the shortest possible iteration [ps]. None if iterations overlap.
    model_us : float or None
        Estimate of NCCL's tuner for its choice [us]; None if it did not choose.
    edge_ps, iterations : int
        Time before the first kernel and after the last [ps], and the iterations that share it; 0 is very many.
    """

    launch_ps: int | None
    host_ps: int | None
    model_us: float | None = None
    edge_ps: int = 0
    iterations: int = 0

    def iteration_ps(self, kernel_ps: int) -> int | None:
        """Return the time of an iteration of a stream of kernels of `kernel_ps` each [ps]."""
        if self.launch_ps is None or self.host_ps is None:
            return None
        gpu_ps = kernel_ps + self.launch_ps
        return mean_iteration_ps(
            (self.host_ps, gpu_ps), self.edge_ps, self.iterations
        )


def elapsed_ps(each_ps: tuple[int, int], edge_ps: int, iterations: int) -> int:
    """Return the time of iterations between two readings of the clock [ps].

    Parameters
    ----------
    each_ps : (int, int)
        Host and GPU time of an iteration [ps]: the first lasts the sum, each later one the maximum of both.
    edge_ps : int
        Time before the first and after the last [ps].
    iterations : int
        Number of iterations; 0 is one of so many that `edge_ps` is negligible.
    """
    if not iterations:
        return max(each_ps)
    return ticks_ps(iterations * max(each_ps) + min(each_ps) + edge_ps)


def mean_iteration_ps(
    each_ps: tuple[int, int], edge_ps: int, iterations: int
) -> int:
    """Return the mean time of an iteration between two readings of the clock [ps], as `elapsed_ps`."""
    return elapsed_ps(each_ps, edge_ps, iterations) // max(1, iterations)


@dataclass(frozen=True, slots=True)
class Provenance(JsonObject):
    """Origin of the result, sufficient to reproduce it.

    Attributes
    ----------
    fabric, engine : str
        Topology and engine of the run.
    granularity : str
        Requested granularity: a word or bytes.
    burst_packets : int
        Packets in a burst; 1 is exact.
    granularity_note : str
        Simulated granularity.
    error_bound : float or None
        Error limit of the granularity as a share of the time: 0 is exact; otherwise a limit that held for random
        systems and collectives. The limit of an extrapolated time is relative to the runs that were used. None if
        no limit is known.
    seed : int
        Seed of the random numbers.
    faults, notes : list of str
        Faults, and remarks on the plan.
    version : str
        Version of clusim.
    around : LaunchContext or None
        Overheads that the time excludes; None if nothing is launched.
    read_files : tuple of str
        Files of the topology.
    """

    KEYS = (
        "fabric",
        "engine",
        "granularity",
        "burst_packets",
        "granularity_note",
        "error_bound",
        "seed",
        "faults",
        "notes",
        "version",
    )

    fabric: str
    fabric_text: str
    schedule_text: str
    engine: str
    granularity: str
    granularity_note: str
    burst_packets: int
    seed: int
    version: str
    command: str = ""
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error_bound: float | None = None
    around: LaunchContext | None = None
    read_files: tuple[str, ...] = ()
