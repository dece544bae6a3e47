"""Software of measured curves from their shape: releases of NCCL, or of a network plugin.

Releases switch algorithm, protocol and chunks at different sizes, and generations of plugins have other buffers and
message costs, so that shelves and jumps of a curve are at different sizes. A curve is predicted for every release of
NCCL with a plan of its own, or, on several nodes with such a plugin, for every generation of the plugin. The error of a
shape is the mean distance of the logarithmic errors from their median: a wrong rate or launch does not count. Software
is excluded if its error is at least `CLEAR` times the least; if none is excluded, the curve does not show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean, median

from typing_extensions import TypedDict

from clusim.base.errors import ClusimError
from clusim.base.executors import Jobs
from clusim.base.tables import group_values
from clusim.hardware import TRANSPORTS
from clusim.hardware.nic import plugin_release
from clusim.nccl.launch import host_of
from clusim.nccltests.jobs import Failure, PerfKernel, Progress, kernels
from clusim.nccltests.sweep import TESTS
from clusim.simulation.request import Request
from clusim.validation.collectives.breakdown import times_us
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.collectives.narrowing import CLEAR, releases_of, way_key
from clusim.validation.collectives.systems import setup_of

LEAST_BYTES = 16 << 10
"""Least size that counts [bytes]: below, curves are flat."""

FEWEST_SIZES, MOST_SIZES = 6, 14
"""Sizes of a curve that are predicted, spread evenly."""


class SoftwareJson(TypedDict):
    """Inferred software of one curve; errors in percent."""

    curve: str
    system: str
    source: str
    fits: list[str]
    excluded: list[str]
    errors_pct: dict[str, float]
    why_not: str


class InferenceJson(TypedDict):
    """Inferred software of the curves."""

    inferred: list[SoftwareJson]


@dataclass(frozen=True, slots=True)
class InferredSoftware:
    """Software that fits a curve.

    Attributes
    ----------
    errors : dict
        Software, as releases with equal plans -> error of the shape.
    why_not : str
        Reason for an empty `errors`.
    """

    group: CurveGroup
    source: str
    errors: Mapping[tuple[str, ...], float]
    why_not: str = ""

    def fitting(self, *, fits: bool = True) -> list[str]:
        """Return the software that fits the curve, or that is excluded, oldest first."""
        limit = CLEAR * min(self.errors.values(), default=0.0)
        names = [
            names for names, error in self.errors.items() if (error < limit) is fits
        ]
        return sorted((name for some in names for name in some), key=_order)

    def line(self) -> str:
        """Return a line for people."""
        start = f"{self.group.system} {self.group.title} ({self.source}): "
        if self.why_not:
            return f"{start}not inferred, {self.why_not}"
        out = self.fitting(fits=False)
        best = f"{100 * min(self.errors.values()):.1f}%"
        if not out:
            return f"{start}cannot be told, all known software fits within {CLEAR:g}x of {best}"
        worst = min(
            error
            for error in self.errors.values()
            if error >= CLEAR * min(self.errors.values())
        )
        return (
            f"{start}fits {', '.join(self.fitting())} (error of the shape {best});"
            f" excluded: {', '.join(out)} ({100 * worst:.1f}% and more)"
        )

    def to_json(self) -> SoftwareJson:
        """Return it as JSON."""
        return {
            "curve": self.group.title,
            "system": self.group.system,
            "source": self.source,
            "fits": self.fitting(),
            "excluded": self.fitting(fits=False),
            "errors_pct": {
                ", ".join(names): round(100 * error, 2)
                for names, error in self.errors.items()
            },
            "why_not": self.why_not,
        }


def _order(name: str) -> tuple[int, ...]:
    """Return the order of releases; ``<1.16`` is before ``1.16``."""
    text = name.rpartition(" ")[2]
    return (
        *plugin_release(text.removeprefix("<")),
        0 if text.startswith("<") else 1,
    )


def infer(
    rows: Sequence[Row],
    *,
    granularity: str | int = "quick",
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> list[InferredSoftware]:
    """Return the software of every curve without a release of NCCL or of its network plugin."""
    curves = {
        curve: _chosen(some)
        for curve, some in group_values(
            ((row.group, row.source), row) for row in rows
        ).items()
    }
    requests_of: dict[
        tuple[CurveGroup, str], dict[tuple[str, ...], list[Request]]
    ] = {}
    reasons: dict[tuple[CurveGroup, str], str] = {}
    for curve, some in curves.items():
        try:
            requests_of[curve] = _candidates(curve[0], some, granularity)
            if len(requests_of[curve]) < 2:
                reasons[curve] = (
                    "known releases have the same plan, or its software is given"
                )
        except ClusimError as error:
            reasons[curve] = str(error)
        if len(some) < FEWEST_SIZES:
            reasons[curve] = f"fewer than {FEWEST_SIZES} sizes from 16 KiB on"
    cases = [
        case
        for curve, by_software in requests_of.items()
        if curve not in reasons
        for some in by_software.values()
        for case in some
    ]
    computed = kernels(cases, jobs=jobs, progress=progress)
    result = []
    for curve, some in curves.items():
        errors: dict[tuple[str, ...], float] = {}
        for names, requests in (
            () if curve in reasons else requests_of[curve].items()
        ):
            if (distance := _shape_error(some, requests, computed)) is not None:
                errors[names] = distance
        why_not = reasons.get(curve, "" if errors else "no release runs all sizes")
        result.append(InferredSoftware(*curve, errors, why_not))
    return result


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each of at most `MOST_SIZES` sizes."""
    by_size = {row.size_bytes: row for row in rows if row.size_bytes >= LEAST_BYTES}
    sizes = sorted(by_size)
    return [by_size[size] for size in sizes[:: -(-len(sizes) // MOST_SIZES) or 1]]


def _candidates(
    group: CurveGroup, rows: Sequence[Row], granularity: str | int
) -> dict[tuple[str, ...], list[Request]]:
    """Return the requests of a curve for every plan of releases, or for every generation of its plugin."""
    operation = TESTS[group.collective].of.name
    plugins = list(_generations(group))
    if plugins:
        groups = {name: replace(group, plugin=name) for name in plugins}
        return {
            (name,): _requests(its, operation, rows, granularity)
            for name, its in groups.items()
        }
    if group.nccl_version or group.release:
        return {}
    by_plan: dict[object, tuple[list[str], list[Request]]] = {}
    for version in releases_of(setup_of(group)):
        its = replace(group, nccl_version=str(version))
        try:
            requests = _requests(its, operation, rows, granularity)
            key = tuple(repr(way_key(case)) for case in requests)
        except ClusimError:
            continue
        by_plan.setdefault(key, ([], requests))[0].append(str(version))
    return {tuple(names): requests for names, requests in by_plan.values()}


def _requests(
    group: CurveGroup, operation: str, rows: Sequence[Row], granularity: str | int
) -> list[Request]:
    setup = setup_of(group)
    return [
        Request(setup, operation, row.size_bytes, granularity=granularity)
        for row in rows
    ]


def _generations(group: CurveGroup) -> Iterator[str]:
    """Yield the generations of the network plugin of a curve on several nodes, if it is not given."""
    if group.n_nodes == 1 or group.plugin:
        return
    nics = {
        node.nic.plugin
        for node in setup_of(group).fabric.nodes
        if node.nic is not None
    }
    for transport in (TRANSPORTS[name] for name in sorted(nics)):
        steps = sorted(
            {*transport.since.values(), transport.mailbox} - {""}, key=plugin_release
        )
        word = transport.title.split()[0]
        for index, step in enumerate(steps):
            if index == 0:
                yield f"{word} <{step}"
            yield f"{word} {step}"


def _shape_error(
    rows: Sequence[Row],
    requests: Sequence[Request],
    computed: Mapping[Request, PerfKernel | Failure],
) -> float | None:
    """Return the mean distance of the logarithmic errors from their median; None if a size cannot run."""
    errors = []
    for row, case in zip(rows, requests, strict=True):
        kernel = computed[case]
        if not isinstance(kernel, PerfKernel):
            return None
        host = kernel.host or host_of(case.setup.comm)
        errors.append(
            log(times_us(row, host, case.operation, kernel)[0] / row.time_us)
        )
    middle = median(errors)
    return fmean(abs(error - middle) for error in errors)
