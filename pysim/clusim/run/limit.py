"""How long a run may take by the clock on the wall, and what it is doing until its engine starts."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusim.errors import InputError, TimeLimitReached
from clusim.units import format_time

__all__ = ["Watch"]

PS_PER_S = 10**12


class Watch:
    """Looks at the clock for a run, from when it is made, and tells what is being prepared.

    Parameters
    ----------
    limit_ps : int or None
        Time on the wall that the run may take, all its preparations included [ps]; None is as long as it takes.
    tell : callable or None
        Called with what begins to be prepared, in words.
    """

    def __init__(
        self, limit_ps: int | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        if limit_ps is not None and limit_ps < 1:
            raise InputError(f"time limit {limit_ps} ps: must be more than nothing")
        self.limit_ps = limit_ps
        self._tell = tell
        self._end_s = None if limit_ps is None else time.monotonic() + limit_ps / PS_PER_S

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    @property
    def words(self) -> str:
        """The limit in words."""
        return f"time limit of {format_time(self.limit_ps or 0)}"

    def begins(self, what: str) -> None:
        """Say what begins to be prepared.

        Raises
        ------
        TimeLimitReached
            The time is up, before anything was simulated.
        """
        if self.over:
            raise TimeLimitReached(
                f"{self.words}: reached before {what}, so that nothing was simulated; give it longer"
            )
        if self._tell is not None:
            self._tell(what)
