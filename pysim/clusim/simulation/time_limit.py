"""Wall-clock limit of a run, and its progress until the engine starts."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusim.base.errors import InputError, TimeLimitReached
from clusim.base.units import format_time

PS_PER_S = 10**12


class Watch:
    """Looks at the clock for a run, from when it is made, and tells what is being prepared.

    What is prepared looks at it between its parts (`begins`). A command also calls `interrupt` from a timer, so that
    one long part, such as reading a large file, ends as well.

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
        self.tell = tell
        self._preparing = "its input was read"
        self._end_s = None if limit_ps is None else time.monotonic() + limit_ps / PS_PER_S

    @property
    def over(self) -> bool:
        """True if the time is up."""
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
        self._preparing = what
        self.interrupt()
        if self.tell is not None:
            self.tell(what)

    def simulates(self) -> None:
        """Note that an engine runs from now on, which looks at `over` itself."""
        self._preparing = ""

    def interrupt(self) -> None:
        """Raise `TimeLimitReached` if the time is up before anything was simulated."""
        if self._preparing and self.over:
            raise TimeLimitReached(
                f"{self.words}: reached before {self._preparing}, so that nothing was simulated; give it longer"
            )
