"""Launcher of the calls of a log: nccl-tests with the flags of its header, or unknown."""

from __future__ import annotations

from clusim.formats.logs import Log
from clusim.nccl.calls.launch import Launch
from clusim.nccltests.harness import Harness, iterations_of

_MOST_SAID = 1_000_000
"""Upper limit on the numbers of a header."""


def harness_of(log: Log, comm: int) -> Harness:
    """Return the harness of a communicator's calls: nccl-tests by its header, or unlimited."""
    run = log.run_of(log.communicators[comm])
    if run is None:
        return Harness(kind="own", iterations=0)
    said = {
        name: max(least, min(run.config.get(name, least), _MOST_SAID))
        for name, least in (
            ("nGpus", 1),
            ("nThread", 1),
            ("agg iters", 1),
            ("graph", 0),
            ("iters", 0),
        )
    }
    gpus, threads = min(said["nGpus"], 64), min(said["nThread"], 64)
    launch = Launch(gpus, said["graph"] > 0, said["agg iters"], threads=threads)
    iterations = iterations_of("nccl-tests", said["iters"])
    return Harness("nccl-tests", launch, iterations, graphs=max(1, said["graph"]))


def flags_of(harness: Harness) -> str:
    """Return the flags of nccl-tests that change times."""
    launch = harness.launch
    flags = {"t": launch.threads, "g": launch.gpus_per_thread, "m": launch.aggregated}
    more = [f"-{flag} {value}" for flag, value in flags.items() if value > 1]
    graphs = [f"-G {harness.graphs}"] if launch.graph else []
    return " ".join([*more, f"-n {harness.iterations}", *graphs])
