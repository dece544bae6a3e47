"""How far predictions are from measurements: per group of measurements and over all, in three regimes of size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median
from typing import Any

from clusim.errors import InputError
from clusim.nccl.calls.launch import host_of
from clusim.nccltests.jobs import Failure, Progress, kernels
from clusim.nccltests.measurements import CurveGroup, Row, groups, setup_of
from clusim.nccltests.operations import TESTS
from clusim.report.accuracy import Curve
from clusim.run.request import Request

__all__ = ["PER_GROUP", "REGIMES", "Point", "Report", "thinned", "validate"]

MIB = 1 << 20
REGIMES = {"small": (0, MIB), "mid": (MIB, 64 * MIB), "large": (64 * MIB, 1 << 62)}
"""Name -> from which size to below which [bytes]."""

PER_GROUP = 4
"""Sizes per group that are predicted unless another number is asked for."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured row and its prediction [us]."""

    row: Row
    predicted_us: float
    algorithm: str
    protocol: str
    notes: tuple[str, ...]

    @property
    def error_pct(self) -> float:
        """Return by how much the prediction is too long [%]."""
        return 100 * (self.predicted_us / self.row.time_us - 1)


@dataclass(frozen=True, slots=True)
class Report:
    """All points, and what has none.

    Attributes
    ----------
    failed : list of (Row, str)
        Rows that could not be predicted and why.
    unusable : list of (Row, str)
        Rows without a time or a size.
    thinned : int
        Rows beyond the sizes per group.
    """

    points: list[Point]
    failed: list[tuple[Row, str]]
    unusable: list[tuple[Row, str]]
    thinned: int

    def by_group(self) -> dict[CurveGroup, list[Point]]:
        """Return the points by what they have in common."""
        found: dict[CurveGroup, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.row.group, []).append(point)
        return found

    def worst(self, count: int = 10) -> list[Point]:
        """Return the points that are farthest off, as ratio."""
        return sorted(self.points, key=_off, reverse=True)[:count]

    def curves(self) -> list[Curve]:
        """Return the points as curves of a figure."""
        found = []
        for group, points in self.by_group().items():
            sizes = [point.row.size_bytes for point in points]
            measured = [point.row.time_us for point in points]
            predicted = [point.predicted_us for point in points]
            found.append(Curve(group.system, group.title, sizes, measured, predicted))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return groups, the overall statistics and what was left out."""
        return {
            "groups": [_group_json(group, points) for group, points in self.by_group().items()],
            "overall": statistics(self.points),
            "single_node": statistics([p for p in self.points if p.row.group.n_nodes == 1]),
            "multi_node": statistics([p for p in self.points if p.row.group.n_nodes > 1]),
            "worst": [_point_json(point) for point in self.worst()],
            "points": len(self.points),
            "thinned": self.thinned,
            "failed": [{"where": row.where, "reason": reason} for row, reason in self.failed],
            "unusable": [{"where": row.where, "reason": reason} for row, reason in self.unusable],
        }


def _off(point: Point) -> float:
    ratio = point.predicted_us / point.row.time_us
    return max(ratio, 1 / ratio)


def _point_json(point: Point) -> dict[str, Any]:
    group = point.row.group
    return {
        **_names(group),
        "size_bytes": point.row.size_bytes,
        "measured_us": point.row.time_us,
        "predicted_us": round(point.predicted_us, 3),
        "error_pct": round(point.error_pct, 2),
        "ran": f"{point.algorithm} {point.protocol}",
        "where": point.row.where,
    }


def _names(group: CurveGroup) -> dict[str, Any]:
    return {
        "system": group.system,
        "n_nodes": group.n_nodes,
        "n_gpus": group.n_gpus,
        "collective": group.collective,
        "algorithm": group.algorithm,
        "protocol": group.protocol,
        "channels": group.channels or None,
        "nccl_version": group.nccl_version,
        "gpus_per_process": group.gpus_per_process or None,
        "threads_per_process": group.threads_per_process or None,
        "harness": group.harness or None,
        "cuda_graph": group.cuda_graph,
    }


def _group_json(group: CurveGroup, points: list[Point]) -> dict[str, Any]:
    notes = sorted({note for point in points for note in point.notes})
    return {**_names(group), "points": len(points), **statistics(points), "notes": notes}


def statistics(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Return the errors of every regime: number of points, median and mean of the absolute error, and bias [%].

    The bias is the median of the signed error; positive is predicted too long.
    """
    found = {}
    for name, (low, high) in REGIMES.items():
        errors = [p.error_pct for p in points if low <= p.row.size_bytes < high]
        sizes = [abs(error) for error in errors]
        found[name] = {
            "n": len(errors),
            "median_abs_pct": round(median(sizes), 2) if errors else None,
            "mean_abs_pct": round(fmean(sizes), 2) if errors else None,
            "bias_pct": round(median(errors), 2) if errors else None,
        }
    return found


def thinned(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most `most` rows: evenly over those of each regime, which get shares as equal as they can use."""
    if len(rows) <= most:
        return list(rows)
    parts = [
        [row for row in rows if low <= row.size_bytes < high] for low, high in REGIMES.values()
    ]
    shares = [0] * len(parts)
    left = most
    while left:
        # The large ones first: they are what users ask about.
        for index in reversed(range(len(parts))):
            if left and shares[index] < len(parts[index]):
                shares[index] += 1
                left -= 1
    return [row for part, share in zip(parts, shares, strict=True) for row in _spread(part, share)]


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Return `count` rows evenly over all, with the last."""
    if count == 1:
        return [rows[len(rows) // 2]]
    return [rows[round(at * (len(rows) - 1) / (count - 1))] for at in range(count)]


def validate(
    rows: Sequence[Row],
    *,
    per_group: int = PER_GROUP,
    jobs: int | None = None,
    granularity: str | int = "auto",
    progress: Progress | None = None,
) -> Report:
    """Predict measured rows and return both.

    Parameters
    ----------
    per_group : int
        Most sizes of a group; 0 is all.
    jobs : int or None
        Worker processes; None is one per core.
    """
    if per_group < 0:
        raise InputError(f"sizes per group {per_group}: must be at least 1, or 0 for all")
    usable, unusable = _usable(rows)
    chosen: list[Row] = []
    cases: dict[Row, Request] = {}
    for group, own in groups(usable).items():
        some = thinned(own, per_group) if per_group else own
        setup = setup_of(group)
        operation = TESTS[group.collective].of.name
        chosen += some
        for row in some:
            cases[row] = Request(setup, operation, row.size_bytes, granularity=granularity)
    found = kernels(cases.values(), jobs=jobs, progress=progress)
    points: list[Point] = []
    failed: list[tuple[Row, str]] = []
    for row in chosen:
        case = cases[row]
        kernel = found[case]
        if isinstance(kernel, Failure):
            failed.append((row, kernel.reason))
            continue
        host = kernel.host or host_of(case.setup.comm)
        time_ps = row.harness.time_ps(host, case.operation, kernel.time_ps, kernel.channels)
        notes = (*kernel.notes, *row.group.assumed)
        points.append(Point(row, time_ps / 1e6, kernel.algorithm, kernel.protocol, notes))
    return Report(points, failed, unusable, len(usable) - len(chosen))


def _usable(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    usable: list[Row] = []
    unusable: list[tuple[Row, str]] = []
    for row in rows:
        if row.size_bytes == 0:
            unusable.append((row, "size 0"))
        elif not (isfinite(row.time_us) and row.time_us > 0):
            unusable.append((row, f"time {row.time_us}"))
        else:
            usable.append(row)
    return usable, unusable
