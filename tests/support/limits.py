"""Clocks on the wall for tests: over after they were asked so often, whatever the time is."""

from __future__ import annotations

from clusim.base.errors import TimeLimitReached
from clusim.simulation.session import Watch

__all__ = ["SECOND_PS", "Again", "Asked", "Counted", "Reached", "Second"]

SECOND_PS = 10**12


class Asked(Watch):
    """Is over after engines asked it so many times; what is prepared may take as long as it does."""

    def __init__(self, asked: int) -> None:
        super().__init__(SECOND_PS)
        self._left = asked
        self.begun: list[str] = []

    @property
    def over(self) -> bool:
        self._left -= 1
        return self._left < 0

    def begins(self, what: str) -> None:
        self.begun.append(what)


class Reached(Watch):
    """Is over from when `progress`, given to a run as such, was told of a simulated time."""

    def __init__(self, now_ps: int) -> None:
        super().__init__(SECOND_PS)
        self._now_ps, self._late = now_ps, False

    @property
    def over(self) -> bool:
        return self._late

    def progress(self, _part: float, now_ps: int) -> None:
        """Look at the time that is simulated [ps]."""
        self._late = self._late or now_ps >= self._now_ps

    def begins(self, what: str) -> None:
        """Let it be prepared."""


class Counted(Watch):
    """Counts the runs that are prepared; is never over."""

    over = False

    def __init__(self) -> None:
        super().__init__(SECOND_PS)
        self.runs = 0

    def begins(self, what: str) -> None:
        """Count what every run begins with."""
        self.runs += what == "the fabric is built"


class Second(Counted):
    """Is over when the second run, whose `progress` is given to it as such, is under way."""

    _under_way = False

    @property
    def over(self) -> bool:
        return self._under_way

    def progress(self, _part: float, _now_ps: int) -> None:
        """See which run is under way."""
        self._under_way = self.runs == 2


class Again(Counted):
    """Is over when one run more than so many is prepared."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self._most = runs

    def begins(self, what: str) -> None:
        """Refuse the run that is one too many."""
        super().begins(what)
        if self.runs > self._most:
            raise TimeLimitReached(f"{self.words}: reached before {what}")
