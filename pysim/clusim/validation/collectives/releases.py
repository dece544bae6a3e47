"""Measurements without NCCL version: predictions for every possible version.

A version of `clusim.validation.collectives.narrowing` is excluded if it cannot run the forced algorithm, or if it
would need much longer for the largest size than was measured: there the wires decide, and a prediction is a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusim.base.executors import Jobs
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import Failure, PerfKernel, Progress, kernels
from clusim.nccltests.sweep import TESTS
from clusim.simulation.request import Request
from clusim.validation.collectives.breakdown import Point, TimeSpan, times_us
from clusim.validation.collectives.narrowing import other_releases, releases_of
from clusim.validation.collectives.systems import setup_of
from clusim.validation.collectives.validate import CollectiveReport

LARGE_BYTES = 64 << 20
"""Size from which the wires decide."""

TOO_SLOW = 1.25
"""Minimum factor over the measured time at which a version is excluded."""

Kernels = Mapping[Request, PerfKernel | Failure]
Others = Mapping[Point, Sequence[Request]]


def with_releases(
    report: CollectiveReport,
    *,
    granularity: str | int = "auto",
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> CollectiveReport:
    """Return a report with ranges over all possible versions, for points without a version."""
    further_cases: dict[Point, list[Request]] = {}
    for group, points in report.by_group().items():
        if not group.nccl_version:
            setup, operation = setup_of(group), TESTS[group.collective].of.name
            by_release = {
                version: replace(setup, version=str(version))
                for version in releases_of(setup)
                if group.releases is None
                or group.releases[0] <= version <= group.releases[1]
            }
            for point in points:
                case = Request(
                    setup, operation, point.row.size_bytes, granularity=granularity
                )
                further_cases[point] = other_releases(case, by_release.values())
    result = kernels(
        (case for some in further_cases.values() for case in some),
        jobs=jobs,
        progress=progress,
    )
    widened = {}
    for curve_points in report.by_group().values():
        curve = {
            point: further_cases[point]
            for point in curve_points
            if point in further_cases
        }
        out = ruled_out(curve, result)
        for point, cases in curve.items():
            remaining = [case for case in cases if case.setup.version not in out]
            widened[point] = _widen_point(point, remaining, result)
    return replace(
        report, points=[widened.get(point, point) for point in report.points]
    )


def _widen_point(point: Point, cases: Sequence[Request], computed: Kernels) -> Point:
    times = []
    for case in cases:
        kernel = computed[case]
        if isinstance(kernel, PerfKernel):
            host = kernel.host or host_of(case.setup.comm)
            times += times_us(point.row, host, case.operation, kernel)
    if not times:
        return point
    span = point.span or TimeSpan(point.predicted_us, point.predicted_us, "")
    return replace(point, span=span.wider(times, "release"))


def ruled_out(curve: Others, computed: Kernels) -> set[str]:
    """Return the versions that are too slow for the largest size of a curve."""
    out: set[str] = set()
    largest = max((point.row.size_bytes for point in curve), default=0)
    for point, cases in curve.items():
        if largest < LARGE_BYTES or point.row.size_bytes < largest:
            continue
        for case in cases:
            kernel = computed[case]
            if (
                isinstance(kernel, PerfKernel)
                and kernel.time_ps / 1e6 > TOO_SLOW * point.row.time_us
            ):
                out.add(case.setup.version)
    return out
