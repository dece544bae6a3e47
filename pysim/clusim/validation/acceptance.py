"""Acceptance of a cluster: measured bus bandwidths against expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.base.json_schema import JsonObject, Round3
from clusim.nccltests.expected import ExpectedTime, expected
from clusim.nccltests.sweep import program_named
from clusim.validation.collectives.measuredcurve import read_curve


@dataclass(frozen=True, slots=True)
class AcceptedRow(JsonObject):
    """Expected and measured bus bandwidth of a size.

    Attributes
    ----------
    least_GBps, measured_GBps : float or None
        Least accepted and measured bus bandwidth [10^9 bytes/s]; None if unknown.
    verdict : str
        ``passed`` or ``failed``; empty without a measurement.
    """

    KEYS = ("*expected", "least_GBps", "measured_GBps", "verdict")

    expected: ExpectedTime
    least_GBps: Round3 | None
    measured_GBps: Round3 | None

    @property
    def verdict(self) -> str:
        """Return the judgement of the measurement."""
        if self.measured_GBps is None or self.least_GBps is None:
            return ""
        return "failed" if self.measured_GBps < self.least_GBps else "passed"


@dataclass(frozen=True, slots=True)
class Acceptance(JsonObject):
    """Expected bandwidths of a system.

    Attributes
    ----------
    passed : bool
        False if a row failed.
    """

    KEYS = ("system", "passed=all_pass", "rows")

    system: str
    rows: list[AcceptedRow]

    @property
    def all_pass(self) -> bool:
        """Return True if no row failed."""
        return all(row.verdict != "failed" for row in self.rows)


def accept(
    where: tuple[str, str, int],
    sizes: Sequence[int],
    against: str | None = None,
    tolerance_pct: float | None = None,
) -> Acceptance:
    """Return the expected bandwidths of sizes, or of the sizes of an output of nccl-tests.

    Parameters
    ----------
    where : (str, str, int)
        System, operation and number of ranks.
    tolerance_pct : float or None
        Tolerated deviation below the expected bandwidth [%]; None is the interval of comparable measured rows.

    Raises
    ------
    InputError
        The output has another number of ranks, or a size has no interval and no tolerance is given.
    """
    system, operation, ranks = where
    measured_us: dict[int, float] = {}
    launch = 1, 1
    if against is not None:
        curve = read_curve(against, program_named(operation))
        if curve.num_ranks not in (0, ranks):
            raise InputError(f"{against}: {curve.num_ranks} GPUs, not {ranks}")
        launch = max(1, curve.gpus), max(1, curve.threads)
        measured_us = {size: us for size, us in curve.times_us.items() if size}
    rows = []
    for size in measured_us or sizes:
        one = expected(system, operation, size, ranks, launch)
        least_us = one.high_us
        if tolerance_pct is not None:
            least_us = one.time_us / (1 - min(tolerance_pct, 99.9) / 100)
        if least_us is None and against is not None:
            raise InputError(
                f"{system}: no interval ({one.why}); set --tolerance PCT"
            )
        work = one.busbw_GBps * one.time_us
        rows.append(
            AcceptedRow(
                one,
                None
                if least_us is None
                else work / least_us / (1 + one.bound_pct / 100),
                work / measured_us[size] if measured_us else None,
            )
        )
    return Acceptance(system, rows)
