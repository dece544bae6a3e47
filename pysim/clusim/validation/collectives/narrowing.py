"""Releases of NCCL with different plans for a measured collective; ranges of releases narrowed by measurements.

Of the versions that support the GPU and run a collective in the same way, the newest represents all. If a table has a
range of releases, the rows with a different plan by release on the fewest nodes of a campaign select a release, for
all rows of the campaign. Newer releases are excluded if their mean error is at least `CLEAR` times its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

from clusim.base.errors import ClusimError, InputError
from clusim.base.executors import Jobs
from clusim.base.tables import group_values
from clusim.base.terms.times import REGIMES
from clusim.nccl.choice import choose, way_of
from clusim.nccl.constants import FEATURES, NEWEST, Version, since
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import Failure, PerfKernel, kernels
from clusim.nccltests.sweep import TESTS
from clusim.schedule.dtypes import element
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.validation.collectives.breakdown import times_us
from clusim.validation.collectives.measurements import Row
from clusim.validation.collectives.systems import setup_of

OLDEST = (2, 7)
"""Oldest version considered: the first with sends and receives."""

CLEAR = 2.0
"""Ratio of mean errors from which a release is excluded; assumed, above the spread of repeated measurements."""

WITNESSES = 12
"""Most rows that select a release."""

_KNOWS = {"hopper": "speeds of hopper", "blackwell": "speeds of blackwell"}
"""Architecture -> the feature that NCCL introduced with its support."""


def other_releases(case: Request, setups: Iterable[Setup] = ()) -> list[Request]:
    """Return a request with other versions, one for each plan unlike the plan of `case`.

    Parameters
    ----------
    setups : iterable of Setup
        Its nodes with other versions, newest first; by default all versions that support its GPUs.
    """
    keys = {way_key(case)}
    result = []
    for setup in setups or [
        replace(case.setup, version=str(v)) for v in releases_of(case.setup)
    ]:
        other = replace(case, setup=setup)
        try:
            plan_key = way_key(other)
        except ClusimError:
            continue
        if plan_key not in keys:
            keys.add(plan_key)
            result.append(other)
    return result


def releases_of(setup: Setup) -> Iterator[Version]:
    """Yield versions that support the GPUs, newest first: the newest, and the last before each new feature."""
    first = FEATURES.get(_KNOWS.get(setup.comm.architecture, ""), OLDEST)
    yield NEWEST
    for major, minor in sorted(set(FEATURES.values()), reverse=True):
        if (major, minor - 1) >= first:
            yield Version(major, minor - 1)


def way_key(case: Request) -> object:
    """Return a key of a case's plan: equal keys have equal times."""
    comm = case.setup.comm
    size = element(case.dtype).size_bytes
    plan = choose(comm, case.operation, case.size_bytes, element_bytes=size).plan
    if plan is None:
        cut = since(comm.version, "messages are cut for simple")
        return comm.p2p_channels, comm.p2p_per_peer, cut
    return way_of(comm, plan), plan.chunks


@dataclass(frozen=True, slots=True)
class _Witness:
    """A row with a different plan by release, and its case for every release."""

    row: Row
    cases: Mapping[Version, Request]


def narrow_rows(
    rows: Sequence[Row], *, granularity: str | int, jobs: Jobs = None
) -> list[Row]:
    """Return the rows with narrowed ranges of releases, and a note on each narrowed row."""
    campaigns = group_values(
        ((row.group.system, row.campaign, row.group.release), row)
        for row in rows
        if row.group.release and not row.group.nccl_version
    )
    ranges = {
        key: _narrow_campaign(some, granularity, jobs)
        for key, some in campaigns.items()
    }
    result = []
    for row in rows:
        range_, note = ranges.get(
            (row.group.system, row.campaign, row.group.release), ("", "")
        )
        if range_ and not row.group.nccl_version:
            group = replace(row.group, release=range_)
            row = replace(row, group=group, unused=(*row.unused, note))
        result.append(row)
    return result


def _narrow_campaign(
    rows: Sequence[Row], granularity: str | int, jobs: Jobs
) -> tuple[str, str]:
    """Return the range of releases of a campaign without excluded ones, and a note; empty if none is excluded."""
    limits = rows[0].group.releases
    assert limits is not None
    fewest = min(row.group.n_nodes for row in rows)
    candidates = [
        witness
        for row in rows
        if row.group.n_nodes == fewest
        if (witness := _witness(row, limits, granularity)) is not None
    ]
    witnesses = candidates[:: -(-len(candidates) // WITNESSES)] if candidates else []
    computed = kernels(
        (case for item in witnesses for case in item.cases.values()), jobs=jobs
    )
    releases = sorted({v for item in witnesses for v in item.cases}, reverse=True)
    errors = {
        v: error
        for v in releases
        if (error := _error(v, witnesses, computed)) is not None
    }
    if limits[1] not in errors:
        return "", ""
    best = min(errors, key=lambda version: errors[version])
    if errors[limits[1]] < CLEAR * errors[best]:
        return "", ""
    note = (
        f"releases of NCCL after {best} excluded: mean error of {len(witnesses)} rows on {fewest} nodes"
        f" {100 * errors[best]:.0f}% with {best}, {100 * errors[limits[1]]:.0f}% with {limits[1]}"
    )
    return f"{limits[0]} to {best}", note


def _witness(
    row: Row, limits: tuple[Version, Version], granularity: str | int
) -> _Witness | None:
    """Return a row with its case for every possible release; None if all have the same plan."""
    try:
        setup = setup_of(row.group)
    except InputError:
        return None
    inside = (v for v in releases_of(setup) if limits[0] <= v < limits[1])
    cases: dict[Version, Request] = {}
    by_plan: dict[object, Request] = {}
    operation = TESTS[row.group.collective].of.name
    for version in (limits[1], *inside):
        other = replace(setup, version=str(version))
        case = Request(other, operation, row.size_bytes, granularity=granularity)
        try:
            cases[version] = by_plan.setdefault(way_key(case), case)
        except ClusimError:
            continue
    return _Witness(row, cases) if len(by_plan) > 1 else None


def _error(
    version: Version,
    witnesses: Sequence[_Witness],
    computed: Mapping[Request, PerfKernel | Failure],
) -> float | None:
    """Return the mean absolute logarithmic error with a release; None if it cannot run one of the rows."""
    errors = []
    for item in witnesses:
        kernel = computed[item.cases[version]] if version in item.cases else None
        if not isinstance(kernel, PerfKernel):
            return None
        case = item.cases[version]
        host = kernel.host or host_of(case.setup.comm)
        time_us = times_us(item.row, host, case.operation, kernel)[0]
        errors.append(abs(log(time_us / item.row.time_us)))
    return fmean(errors)


def thin_rows(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return at most `limit` rows, spread evenly within each regime.

    The shares of the regimes are as equal as their numbers of rows allow.
    """
    if len(rows) <= limit:
        return list(rows)
    parts = [
        [row for row in rows if low <= row.size_bytes < high]
        for low, high in REGIMES.values()
    ]
    shares = [0] * len(parts)
    remaining = limit
    while remaining:
        # Large sizes first: they matter most to users.
        for index in reversed(range(len(parts))):
            if remaining and shares[index] < len(parts[index]):
                shares[index] += 1
                remaining -= 1
    return [
        row
        for part, share in zip(parts, shares, strict=True)
        for row in _spread(part, share)
    ]


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Return `count` rows, evenly spaced and including the last."""
    if count == 1:
        return [rows[len(rows) // 2]]
    return [rows[round(at * (len(rows) - 1) / (count - 1))] for at in range(count)]
