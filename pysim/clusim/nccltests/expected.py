"""Expected times of collectives, from a cache: for gates of cluster acceptance, schedulers and compilers.

The times of a system, operation and number of ranks are simulated at `STEPS` + 1 sizes of each factor of 4, as
nccl-tests reports them, and kept in memory and in the cache of this installation. Other sizes follow by lines in
logarithms between their neighbours. The bound of the error is the distance to the times of both neighbours: it holds
while times rise with size. `clusim.simulation.expected` has the intervals.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round3
from clusim.base.kept import SampleCache
from clusim.base.terms.operations import bus_factor
from clusim.base.units import parse_size
from clusim.nccl.launch import DEFAULT_ITERATIONS, Launch, host_of
from clusim.nccltests.jobs import kernel
from clusim.nccltests.sweep import Harness, program_named
from clusim.simulation.expected import expected_on
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

SEGMENT = 4
"""Factor between the ends of a range of sizes that is simulated together."""

STEPS = 8
"""Simulated intervals of such a range."""

LEAST_BYTES, MOST_BYTES = 1 << 6, 1 << 34
"""Sizes with an expected time; smaller ones have the time of the least."""


@dataclass(frozen=True, slots=True)
class ExpectedTime(JsonObject):
    """Expected time of a collective, as nccl-tests reports it.

    Attributes
    ----------
    time_us, busbw_GBps : float
        Time [us] and bus bandwidth [10^9 bytes/s].
    low_us, high_us : float or None
        Interval of 90% of comparable measured times; None if no comparable system was measured.
    bound_pct : float
        Bound of the error of the interpolation in size [%].
    why : str
        Reason for a missing interval.
    """

    operation: str
    size_bytes: int
    ranks: int
    time_us: Round3
    busbw_GBps: Round3
    low_us: Round3 | None
    high_us: Round3 | None
    bound_pct: Round3
    why: str


_KEPT = SampleCache()


def expected(
    topology: str | Path,
    operation: str,
    size: int | str,
    ranks: int,
    launch: tuple[int, int] = (1, 1),
) -> ExpectedTime:
    """Return the expected time of a collective; the first of a range of sizes is simulated.

    Parameters
    ----------
    topology : str or Path
        Preset or file of one node or of a cluster; more ranks than it has join equal nodes.
    size : int or str
        Bytes, as nccl-tests counts them.
    ranks : int
        Participating GPUs, of complete nodes if there are several.
    launch : (int, int)
        GPUs per thread and threads per process, as ``-g`` and ``-t``.

    Raises
    ------
    InputError
        An unknown operation, a size outside of `LEAST_BYTES` to `MOST_BYTES`, or ranks of no nodes.
    """
    return _interpolate(os.fspath(topology), operation, size, ranks, launch)


@lru_cache(1 << 16)
def _interpolate(
    name: str, operation: str, size: int | str, ranks: int, launch: tuple[int, int]
) -> ExpectedTime:
    test = program_named(operation)
    size_bytes = (
        parse_size(size, binary_suffix=True) if isinstance(size, str) else size
    )
    if not 1 <= size_bytes <= MOST_BYTES:
        raise InputError(f"size {size!r}: must be from 1 B to {MOST_BYTES} B")
    low = LEAST_BYTES
    while low * SEGMENT < size_bytes:
        low *= SEGMENT
    part = _segment(name, test.of.name, (ranks, *launch), low)
    sizes, times_us = part["sizes"], part["times_us"]
    at = max(1, bisect_left(sizes, size_bytes)) if size_bytes > sizes[0] else 1
    ends_us = times_us[at - 1], times_us[at]
    share = log(max(size_bytes, sizes[0]) / sizes[at - 1]) / log(
        sizes[at] / sizes[at - 1]
    )
    time_us = exp((1 - share) * log(ends_us[0]) + share * log(ends_us[1]))
    ratios = [time_us / end_us for end_us in ends_us] if 0 < share < 1 else [1.0]
    bound_pct = 100 * (max(max(ratio, 1 / ratio) for ratio in ratios) - 1)
    low_pct, high_pct = part["limits_pct"] or (None, None)
    return ExpectedTime(
        test.name,
        size_bytes,
        ranks,
        time_us,
        size_bytes / time_us / 1e3 * bus_factor(test.of.name, ranks),
        None if low_pct is None else time_us * (1 + low_pct / 100),
        None if high_pct is None else time_us * (1 + high_pct / 100),
        bound_pct,
        part["why"],
    )


@lru_cache(1 << 12)
def _segment(
    name: str, operation: str, ranks: tuple[int, int, int], low: int
) -> dict[str, Any]:
    """Return the times of the ends and the middle of a range of sizes, kept or simulated, and their interval."""
    # Files of users may change or name others: their times are kept in memory.
    cache = SampleCache(None) if Path(name).exists() else _KEPT
    question = ("expected", name, operation, ranks, low)
    answer = cache.get(question)
    if answer is None:
        answer = _simulate(_setup_of(name, ranks[0]), operation, ranks[1:], low)
        cache.put(question, answer)
    result: dict[str, Any] = answer
    return result


def _simulate(
    setup: Setup, operation: str, launch: tuple[int, int], low: int
) -> dict[str, Any]:
    harness, host = _harness(launch), host_of(setup.comm)
    powers = [SEGMENT ** (step / STEPS) for step in range(STEPS + 1)]
    sizes = [round(low * power / 16) * 16 for power in powers]
    times_us: list[float] = []
    algorithm = ""
    for size in sizes:
        timed = kernel(Request(setup, operation, size, granularity="quick"))
        times_us.append(harness.time_ps(host, operation, timed) / 1e6)
        algorithm = timed.algorithm
    error = expected_on(setup, low * 2, algorithm)
    limits = error.nearest and [error.nearest.low_pct, error.nearest.high_pct]
    return {
        "sizes": sizes,
        "times_us": times_us,
        "limits_pct": limits,
        "why": error.why,
    }


def _harness(launch: tuple[int, int]) -> Harness:
    gpus, threads = launch
    return Harness(
        launch=Launch(gpus, threads=threads), iterations=DEFAULT_ITERATIONS
    )


def _setup_of(name: str, ranks: int) -> Setup:
    """Return the nodes and GPUs of a number of ranks."""
    setup = Setup(name)
    fabric = setup.fabric
    zones = max(1, fabric.num_zones)
    has = fabric.num_ranks // zones
    nodes, remainder = divmod(ranks, has)
    if ranks < 2 or (nodes and remainder) or (zones > 1 and nodes != zones):
        raise InputError(
            f"{ranks} ranks of {name}: must be 2 to {has} of a node, or all of several nodes"
        )
    if nodes > 1 and zones == 1:
        return replace(setup, nodes=nodes)
    return setup if nodes else replace(setup, per_node=ranks)
