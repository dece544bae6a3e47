"""Sensitivity of a run: the derivative of its time by each figure of its hardware, and the interval by their bounds."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from clusim.base.display import Columns, Shown, Summary
from clusim.base.json_schema import IfKnown, JsonObject, Round6
from clusim.base.records import dataclass
from clusim.base.tables import text_table, wrap_line
from clusim.base.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEAST_SHOWN = 0.01
"""Smallest absolute elasticity of a printed row."""


LEAST_SCATTER = 0.1
"""Smallest printed scatter of an elasticity: 0.1% of the run at a change by 1%."""


def _saving(gain_ps: int) -> str:
    """Return a saving as the change of the time."""
    return f"{'-' if gain_ps >= 0 else '+'}{format_time(abs(gain_ps))}"


@dataclass(frozen=True, slots=True)
class Derivative(JsonObject):
    """Derivative of the time of a run by one figure.

    Attributes
    ----------
    figure : str
        Name of the figure: ``NVLink, GPU-NVSwitch rate``.
    elasticity : float
        Change of the time per change of the figure [% per %]: negative if a larger figure shortens the run.
    gain_us : float
        First-order estimate of the time saved by a figure that is 1% better [us].
    reach : float or None
        Largest tested improvement, as a factor of the figure, for which time and first-order estimate differ by at
        most 1% of the run; otherwise 1. The estimate is linear in the time per byte of rates. None: not checked.
    basis : str
        ``path`` (critical path), or ``re-simulated`` where the path is wrong.
    path_elasticity : float
        Estimate of the critical path.
    scatter : float or None
        Largest difference between `elasticity` and the elasticity of a single change by 1% or 2%; None: fewer than two
        changes were simulated.
    """

    KEYS = (
        "figure",
        "elasticity",
        "gain_us",
        "reach",
        "basis",
        "path_elasticity",
        "scatter",
    )

    figure: str
    elasticity: Round6
    gain_ps: int
    reach: Round6 | None
    basis: str
    path_elasticity: Round6
    scatter: Round6 | None = None

    @property
    def basis_words(self) -> str:
        """Basis, and the scatter of single changes if it is large."""
        if self.scatter is None or self.scatter < LEAST_SCATTER:
            return self.basis
        return f"{self.basis}, scatter {self.scatter:.2f}"

    @property
    def valid(self) -> str:
        """Range of validity in words."""
        if self.reach is None:
            return "not checked"
        return f"{self.reach:g}x better" if self.reach > 1 else "below 1.1x"


@dataclass(frozen=True, slots=True)
class Contribution(JsonObject):
    """Effect of the bounds of one figure on the time of a run.

    Attributes
    ----------
    figure : str
        Places of the figure, as in ``clusim topo show --figures``.
    bounds : str
        Lowest and highest value; of several numbers, relative changes.
    half_width_us : float
        Half of the range of simulated times between the bounds [us].
    at_low_us, at_high_us : float
        Change of the time at each bound [us].
    """

    KEYS = ("figure", "bounds", "half_width_us", "at_low_us", "at_high_us")

    figure: str
    bounds: str
    half_width_ps: int
    at_low_ps: int
    at_high_ps: int


@dataclass(frozen=True, slots=True)
class Interval(JsonObject):
    """Interval with 90% of the times of a run, if the figures of its hardware vary within their bounds.

    Attributes
    ----------
    low_us, high_us : float
        5% and 95% of the times [us].
    figures : list of Contribution
        Figures with bounds that change the time, the largest half-width first.
    unknown : list of str
        Figures of the run without known bounds, which the interval omits.
    note : str
        Reason for a missing interval.
    """

    KEYS = ("low_us", "high_us", "figures", "unknown", "note")

    low_ps: int
    high_ps: int
    figures: list[Contribution] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    note: str = ""

    def lines(self, time_ps: int) -> list[str]:
        """Return the lines that the command prints: time, interval, and the figures with the largest half-widths."""
        if self.note:
            return [f"interval  {self.note}"]
        ends = f"{format_time(self.low_ps)} to {format_time(self.high_ps)}"
        lines = [f"interval  {ends} (5% to 95%; time {format_time(time_ps)})"]
        rows_above = [
            row for row in self.figures if row.half_width_ps >= LEAST_SHOWN * time_ps
        ]
        rows = [
            (row.figure, f"{format_time(row.half_width_ps)}", row.bounds)
            for row in rows_above
        ]
        if rows:
            titles = ("by figure", "half-width", "bounds")
            lines += text_table("  {:<..}  {:>..}  {:<..}", [titles, *rows])
        hidden = len(self.figures) - len(rows_above)
        lines += [f"  {hidden} figures below {LEAST_SHOWN:.0%}"] if hidden else []
        unknown = f"  no bounds known for: {'; '.join(self.unknown)}"
        return lines + (wrap_line(unknown, hang="    ") if self.unknown else [])


@dataclass(frozen=True, slots=True)
class MeasuredInterval(JsonObject):
    """Interval with 90% of the times that nccl-tests would measure: launch, host, and errors of the model included.

    Attributes
    ----------
    low_us, high_us, time_us : float
        5% and 95% of the times, and the predicted time with launch, start and end [us].
    origin : str
        Measured rows with these errors.
    note : str
        Reason for a missing interval.
    """

    KEYS = ("low_us", "high_us", "time_us", "origin", "note")

    low_ps: int = 0
    high_ps: int = 0
    time_ps: int = 0
    origin: str = ""
    note: str = ""

    def lines(self) -> list[str]:
        """Return the lines that the command prints."""
        if self.note:
            return [f"measured  not known ({self.note})"]
        ends = f"{format_time(self.low_ps)} to {format_time(self.high_ps)}"
        time = format_time(self.time_ps)
        text = f"measured  {ends} (5% to 95%; with launch {time}; {self.origin})"
        return wrap_line(text, hang="  ")


@dataclass(frozen=True, slots=True, repr=False)
class Sensitivity(Shown, JsonObject):
    """Derivatives of the time of a run, the largest first.

    Attributes
    ----------
    time_ps : int
        Time of the run [ps].
    derivatives : list of Derivative
        Figures in the image of the run.
    note : str
        Extent of the re-simulation, or the reason why there are no derivatives.
    unfinished : str
        Re-simulations missing because of a time limit.
    interval : Interval or None
        Interval of the time by the bounds of the figures; None: not simulated.
    measured : MeasuredInterval or None
        Interval of measured times; None for runs other than a collective.
    """

    KEYS: ClassVar = ("derivatives", "note", "unfinished", "interval", "measured")

    time_ps: int
    derivatives: list[Derivative] = field(default_factory=list)
    note: str = ""
    unfinished: IfKnown[str] = ""
    interval: IfKnown[Interval | None] = None
    measured: IfKnown[MeasuredInterval | None] = None

    @property
    def shown(self) -> list[Derivative]:
        """Derivatives of at least 1%, which tables and figures show."""
        return [d for d in self.derivatives if abs(d.elasticity) >= LEAST_SHOWN]

    def lines(self) -> list[str]:
        """Return the table as the command prints it, without figures below 1%."""
        rows_above = self.shown
        titles = ("sensitivity", "% per %", "1% better", "valid up to", "basis")
        rows = [
            (
                d.figure,
                f"{d.elasticity:+.3f}",
                _saving(d.gain_ps),
                d.valid,
                d.basis_words,
            )
            for d in rows_above
        ]
        lines = text_table("{:<..}  {:>..}  {:>..}  {:>..}  {:<..}", [titles, *rows])
        hidden = len(self.derivatives) - len(rows_above)
        lines += [f"  {hidden} figures below {LEAST_SHOWN:.0%}"] if hidden else []
        lines += [f"  {self.note}"] if self.note else []
        lines += [f"  not simulated: {self.unfinished}"] if self.unfinished else []
        lines += ["", *self.interval.lines(self.time_ps)] if self.interval else []
        return lines + (["", *self.measured.lines()] if self.measured else [])

    def summary(self) -> Summary:
        """Return the largest derivatives."""
        rows = {d.figure: f"{d.elasticity:+.3f}" for d in self.derivatives}
        values = tuple(f"{name} {value}" for name, value in [*rows.items()][:2])
        return Summary("derivatives of the time", values, self.note, rows)

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the derivatives."""
        return {"derivatives": self._columns}

    def _columns(self) -> Columns:
        names = (
            "figure",
            "elasticity",
            "gain_ps",
            "reach",
            "basis",
            "path_elasticity",
            "scatter",
        )
        columns: dict[str, Any] = {
            name: [getattr(d, name) for d in self.derivatives] for name in names
        }
        return columns
