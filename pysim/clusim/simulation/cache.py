"""Times of runs that were made already: images that are equal, byte for byte, are one run.

Curves ask for the same run in many ways: a size that is an anchor of larger ones, two machines that stand for eight
and for sixteen, an algorithm that is forced and one that NCCL chooses. Their requests differ, their images do not. The
laws of a run are checked when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusim.simulation.job import Job, RunOptions, run_job

BRIEF = RunOptions(histories=False)
"""Of these runs only the time is wanted."""

Times = dict[tuple[bytes, str], int]
"""Digest of an image and name of the engine -> end of the run [ps]."""

_TIMES: Times = {}


def time_of(job: Job, options: RunOptions = BRIEF) -> int:
    """Return when a job ends [ps]: simulated, unless this process knows of an equal one.

    Raises
    ------
    TimeLimitReached
        The time on the wall that `options` allow is up.
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
    """Take over times that other processes found."""
    _TIMES.update(times)


def known_times() -> Times:
    """Return the times that this process knows, in the order in which it came to know them."""
    return _TIMES
