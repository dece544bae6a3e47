"""Measured collectives for a calibration: tables and outputs of nccl-tests, and dumps of NCCL's Inspector.

The Inspector times the kernel of every rank of a call. Ranks wait for the last one: the shortest time
is the call's; repeated calls of a size have their median.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median

from clusim.base.errors import InputError
from clusim.base.tables import group_values
from clusim.base.terms.operations import find_operation
from clusim.formats.recordings.inspector import read as read_inspector
from clusim.formats.recordings.kinds import kind_of
from clusim.formats.recordings.model import Event, Recording
from clusim.lowering import QUICK
from clusim.nccltests.sweep import KERNEL
from clusim.validation.collectives.measurements import (
    CurveGroup,
    Row,
    groups,
    read_measurements,
)
from clusim.validation.collectives.narrowing import narrow_rows, thin_rows
from clusim.validation.steps.rows import is_step_table

SIZES = 8
"""Most sizes of a curve."""

LARGE_BYTES, LARGEST = 256 << 20, 2
"""Size from which times are proportional to it, and the number of such sizes that are used, the smallest."""


def calibration_rows(
    paths: Sequence[str | Path], system: str, sizes: int = SIZES
) -> list[Row]:
    """Return the rows of files that were measured on a system, at most `sizes` of a curve.

    Raises
    ------
    InputError
        A file cannot be read, or is without collectives.
    """
    rows: list[Row] = []
    dumps = [str(path) for path in paths if _is_dump(path)]
    if dumps:
        rows += inspector_rows(read_inspector(dumps), system)
    for path in paths:
        if is_step_table(path):
            raise InputError(
                f"{path}: steps, not collectives; measure kernels with clusim calibrate gpu"
            )
        if str(path) not in dumps:
            rows += read_measurements([path], system=system)
    usable = [
        row
        for row in rows
        if row.size_bytes and isfinite(row.time_us) and row.time_us > 0
    ]
    if not usable:
        raise InputError(f"{', '.join(map(str, paths))}: no row has size and time")
    curves = groups(narrow_rows(usable, granularity=QUICK)).values()
    return [row for curve in curves for row in thin_rows(_short(curve), sizes)]


def _short(curve: Sequence[Row]) -> list[Row]:
    """Return a curve, in the order of sizes, without all but its first large sizes."""
    large = [row.size_bytes for row in curve if row.size_bytes >= LARGE_BYTES]
    most_bytes = sorted(set(large))[:LARGEST][-1:]
    return [
        row for row in curve if row.size_bytes <= max(most_bytes, default=1 << 62)
    ]


def _is_dump(path: str | Path) -> bool:
    """Return True if a file is of the Inspector."""
    try:
        return kind_of(str(path)) == "inspector"
    except InputError:
        return False


def inspector_rows(recording: Recording, system: str) -> list[Row]:
    """Return a row per operation, group of ranks and size of a dump."""
    calls = group_values(
        ((call.group, call.operation, call.sequence), call)
        for call in recording.events
        if call.kind == "collective" and call.duration_ps > 0
    )
    sizes = group_values(
        (_case(recording, ranks[0]), min(call.duration_ps for call in ranks) / 1e6)
        for ranks in calls.values()
    )
    rows = []
    for (operation, group, size_bytes), times_us in sizes.items():
        entry = find_operation(operation)
        if entry is None or not entry.test or size_bytes == 0:
            continue
        members = recording.groups[group].ranks
        hosts = {recording.hosts[rank] for rank in members if recording.hosts}
        curve = CurveGroup(
            system,
            max(1, len(hosts)),
            len(members),
            entry.test,
            nccl_version=recording.nccl_version,
            gpus_per_process=1,
            harness=KERNEL,
        )
        rows.append(
            Row(
                curve,
                size_bytes,
                median(times_us),
                recording.name,
                f"{recording.name}: {operation} of {size_bytes} B",
            )
        )
    if not rows:
        raise InputError(f"{recording.name}: no timed collective of nccl-tests")
    return rows


def _case(recording: Recording, call: Event) -> tuple[str, int, int]:
    """Return operation, group and nccl-tests' size of a call [bytes]; equal groups are one."""
    equal = (
        number
        for number, group in enumerate(recording.groups)
        if group.ranks == recording.groups[call.group].ranks
    )
    return call.operation, next(equal), call.bytes
