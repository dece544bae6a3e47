"""Times of completed runs: images that are equal, byte for byte, are one run.

Curves request the same run in several forms: a size from which larger ones are extrapolated, two nodes from which both
eight and sixteen are extrapolated, an algorithm that is forced or chosen by NCCL. Their requests differ, their images
do not. The laws of a run are checked when it is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusim.simulation.job import Job, RunOptions, run_job

BRIEF = RunOptions(histories=False)
"""Options for runs that only return a time."""

Times = dict[tuple[bytes, str], int]
"""Digest of an image and name of the engine -> end of the run [ps]."""

_TIMES: Times = {}


def time_of(job: Job, options: RunOptions = BRIEF) -> int:
    """Return the end time of a job [ps], simulated unless this process has run an equal one.

    Raises
    ------
    TimeLimitReached
        The wall-clock limit of `options` was reached.
    """
    key = job.image.digest(), job.provenance.engine
    if key not in _TIMES:
        options.watch.begins(f"{job.provenance.fabric} stands for it")
        result = run_job(job, options)
        if result.unfinished is not None:
            raise result.unfinished.reached(
                f"a run on {job.provenance.fabric} that stands for the whole"
            )
        _TIMES[key] = result.time_ps
    return _TIMES[key]


def learn(times: Mapping[tuple[bytes, str], int]) -> None:
    """Add times that other processes found."""
    _TIMES.update(times)


def known_times() -> Times:
    """Return the cached times, in the order of their insertion."""
    return _TIMES
