"""Real numbers carried along with a run, to check its data in addition to its times."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.engine.outcome import Engine
from clusim.results.bins import BinRecorder
from clusim.schedule import Schedule

Array = NDArray[Any]

VERIFY_LIMIT_BYTES = 4 << 30
"""Memory limit for the real numbers of a verified run."""


def require_room(schedule: Schedule) -> None:
    """Raise if the data would exceed `VERIFY_LIMIT_BYTES`."""
    need_bytes = sum(3 * call.bytes * len(call.ranks) for call in schedule.calls)
    if need_bytes > VERIFY_LIMIT_BYTES:
        raise InputError(
            f"verify: real data would take {need_bytes / 2**30:.1f} GiB of memory; the largest is "
            f"{VERIFY_LIMIT_BYTES >> 30} GiB: use a smaller size"
        )


class Checker:
    """Sink of completion records that carries real numbers through a run.

    The numbers are random, so float results may differ from the exact sums by rounding; more than one unit in
    the last place per rank is an error. The size of the difference shows the order of an algorithm's sums.
    """

    takes_proxies = False

    def __init__(self, schedule: Schedule) -> None:
        from clusim.schedule.executor import Executor

        self._most = max((len(call.ranks) for call in schedule.calls), default=1)
        self._executor = Executor(schedule, data="random")

    def records(self, records: Array) -> None:
        """Perform the slices in the order of their completion."""
        columns = (records[name].tolist() for name in ("time_ps", "instance", "seq"))
        self._executor.apply(zip(*columns, strict=True))

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Ignore ticks: the check needs only records."""

    def outcome(self) -> tuple[bool, str]:
        """Return True if the data are right, and a text of the result."""
        checks = self._executor.check(float(self._most))
        bad = [check for check in checks if not check.ok]
        if bad:
            return False, f"{bad[0].operation}: {bad[0].wrong} elements wrong, first {bad[0].first}"
        worst = max((check.max_ulp for check in checks), default=0.0)
        exact = "every element equals the definition"
        return True, f"rounding differs by at most {worst:.2f} ulp" if worst else exact
