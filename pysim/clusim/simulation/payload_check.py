"""Real numbers that a run carries along, so that its data are checked and not only its times."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.engine.outcome import Engine
from clusim.results.bins import BinRecorder
from clusim.schedule import Schedule

Array = NDArray[Any]

VERIFY_LIMIT_BYTES = 4 << 30
"""Most memory the real numbers of a verified run may take."""


def require_room(schedule: Schedule) -> None:
    """Refuse to carry data that would take too much memory."""
    need_bytes = sum(3 * call.bytes * len(call.ranks) for call in schedule.calls)
    if need_bytes > VERIFY_LIMIT_BYTES:
        raise InputError(
            f"verify: real data would take {need_bytes / 2**30:.1f} GiB of memory; the largest is "
            f"{VERIFY_LIMIT_BYTES >> 30} GiB: use a smaller size"
        )


class Checker:
    """Carries real numbers along with a run, as a sink of its completion records.

    The numbers are random, so float results may differ from the exact ones by rounding; more than one unit in
    the last place per rank is an error. How large the difference is shows how an algorithm orders its sums.
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
        """Nothing to flush."""

    def outcome(self) -> tuple[bool, str]:
        """Return True if the data are right, and a note for people."""
        checks = self._executor.check(float(self._most))
        bad = [check for check in checks if not check.ok]
        if bad:
            return False, f"{bad[0].operation}: {bad[0].wrong} elements wrong, first {bad[0].first}"
        worst = max((check.max_ulp for check in checks), default=0.0)
        exact = "every element equals the definition"
        return True, f"rounding differs by at most {worst:.2f} ulp" if worst else exact
