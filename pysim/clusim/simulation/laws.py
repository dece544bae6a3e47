"""Laws of extrapolation: times of a collective by bytes, nodes and levels of trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusim.base.records import dataclass
from clusim.nccl.communicator import NcclPlan
from clusim.schedule.shapes import Shape
from clusim.simulation.request import Request

FOLLOWED = "from "
"""Prefix of notes on extrapolated times."""

Cut = NcclPlan | Shape | None
"""Fixed division of a run's data: a NCCL plan, the shape of a named algorithm, or None for sends and receives."""

Run = tuple[Request, Cut]


@dataclass(frozen=True, slots=True)
class Linear:
    """A quantity that grows equally with every unit of an axis.

    Attributes
    ----------
    at : tuple of float
        Places of two runs on the axis, in increasing order.
    to : float
        Place to extrapolate to.
    far_ps : float
        At `to`, additional time of the steps against near nodes [ps].
    """

    at: tuple[float, float]
    to: float
    axis: str = ""
    far_ps: float = 0.0

    def of(self, values: Sequence[float]) -> float:
        """Return the quantity at `to` from its values in the two runs."""
        (low, high), (first, last) = self.at, values
        return last + (last - first) * (self.to - high) / (high - low) + self.far_ps

    def each(self, first: Iterable[int], last: Iterable[int]) -> list[int]:
        """Return several quantities, rounded, from their values in the two runs."""
        return [round(self.of(values)) for values in zip(first, last, strict=True)]

    def words(self, _values: Sequence[float]) -> str:
        """Return a description of the law."""
        far_text = (
            f", {self.far_ps / 1e6:.3g}us between far nodes" if self.far_ps else ""
        )
        return f"linear in {self.axis}{far_text}"


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantity with a term per level of an algorithm, and a rest that is independent of the levels.

    The runs are the first chunk on two numbers of nodes, and all bytes on the larger if there are more.

    Attributes
    ----------
    levels : Linear
        Numbers of levels.
    share : float
        Factor of the rest.
    far_ps : tuple of float
        In the two runs and the complete collective, additional time on the longest way against near nodes [ps].
    """

    levels: Linear
    share: float = 1.0
    far_ps: tuple[float, float, float] = (0, 0, 0)

    def of(self, values: Sequence[float]) -> float:
        """Return the quantity from its values in the runs."""
        start, total = values[1], values[-1]
        more = self.levels.to - self.levels.at[1]
        added = more * self._each_value(values) + self.far_ps[2] - self.far_ps[1]
        return start + added + (total - start) * self.share

    def words(self, values: Sequence[float]) -> str:
        """Return the time of a level, and of the way between far nodes."""
        far_us = (self.far_ps[2] - self.far_ps[1]) / 1e6
        far_text = f", {far_us:.3g}us between far nodes" if far_us else ""
        return f"each further level {self._each_value(values) / 1e6:.3g}us{far_text}"

    def _each_value(self, values: Sequence[float]) -> float:
        low, high = self.levels.at
        close = [values[run] - self.far_ps[run] for run in (0, 1)]
        return max(0.0, (close[1] - close[0]) / (high - low))


@dataclass(frozen=True, slots=True)
class Steady:
    """Time of a long stream, whose loops over all chunks need equal times after the first.

    Attributes
    ----------
    at, to : float
        Size of the run, and size to extrapolate to [bytes].
    loop_bytes : float
        Bytes of a loop.
    """

    at: float
    to: float
    loop_bytes: float

    def of(self, values: Sequence[float]) -> float:
        """Return the time at `to` from the times of the run and of a loop [ps]."""
        time_ps, loop_ps = values
        return time_ps + loop_ps * (self.to - self.at) / self.loop_bytes

    def words(self, _values: Sequence[float]) -> str:
        """Return a description of the law."""
        return "equal times of further loops"


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Runs from which a collective is extrapolated, the longest last, and the law."""

    runs: tuple[Run, ...]
    law: Linear | Levels | Steady
    origin: str

    def of(self, values: Sequence[float]) -> tuple[int, str]:
        """Return a quantity of the complete collective from its values in the runs, and the method."""
        note = f"{FOLLOWED}{self.origin}, {self.law.words(values)}"
        return max(1, round(self.law.of(values))), note
