"""Results of a baseline and its changes, side by side, and the types of their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import TypedDict

from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim.report.comparison import Compared, Loads, comparison_page
from clusim.results.diagnosis import Verdict, VerdictJson


class OutcomeJson(TypedDict):
    """Outcome of one run.

    Attributes
    ----------
    time_ps : int or None
        Time [ps]; None if it cannot run.
    plan : str
        Algorithm, protocol and channels.
    error : str or None
        Why it cannot run.
    """

    time_ps: int | None
    plan: str
    error: str | None
    verdict: VerdictJson | None


class BaselineJson(OutcomeJson):
    """A run of the baseline.

    Attributes
    ----------
    of : str
        Size of nccl-tests, if there are several runs; otherwise empty.
    """

    of: str


class ChangeJson(TypedDict):
    """Change and its results.

    Attributes
    ----------
    of : str
        The run of the baseline that it changes, if there are several; otherwise empty.
    held : object or None
        With the baseline's plan; None if the change alters the plan itself.
    planned : object
        Re-planned for the change.
    notes : list of str
        Explanations of the two times.
    """

    change: str
    of: str
    baseline: OutcomeJson
    held: OutcomeJson | None
    planned: OutcomeJson
    notes: list[str]


class WhatIfJson(TypedDict):
    """Baseline and changes to it.

    Attributes
    ----------
    baseline : list
        Its runs: one, or one per size.
    title, times : str
        Description of the baseline, and the kind of time that is compared.
    """

    baseline: list[BaselineJson]
    title: str
    times: str
    rows: list[ChangeJson]


NONE = "-"


@dataclass(frozen=True)
class ChangeOutcome:
    """Outcome of one run.

    Attributes
    ----------
    time_ps : int
        Time [ps]; 0 if it cannot run.
    way : str
        Algorithm, protocol and channels.
    verdict : Verdict or None
        Bottleneck of the run.
    error : str
        Why it cannot run.
    busbw_GBps : float or None
        Bus bandwidth of one collective, as in nccl-tests [10^9 bytes/s].
    loads : dict
        Utilisation of wires, as in `clusim.report.comparison.Compared`.
    """

    time_ps: int = 0
    way: str = ""
    verdict: Verdict | None = None
    error: str = ""
    busbw_GBps: float | None = None
    loads: Loads = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """Bottleneck and its share, or the error."""
        if self.error:
            return f"cannot run: {self.error}"
        first = self.verdict.headline if self.verdict is not None else None
        if self.verdict is None or first is None:
            return "not known"
        return f"{self.verdict.share(first):.1%} {first.words()}"

    def to_json(self) -> OutcomeJson:
        """Return the numbers for scripts."""
        return {
            "time_ps": self.time_ps or None,
            "plan": self.way,
            "error": self.error or None,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }


@dataclass(frozen=True)
class ChangeRow:
    """Change and its results.

    Attributes
    ----------
    of : str
        The run of the baseline that it changes: a size of nccl-tests; empty if there is one run.
    held : ChangeOutcome or None
        With the baseline's plan; None if the change alters the plan itself, or is impossible without a new plan.
    planned : ChangeOutcome
        Re-planned for the change.
    notes : tuple of str
        Notes on the plans.
    """

    change: str
    base: ChangeOutcome
    held: ChangeOutcome | None
    planned: ChangeOutcome
    of: str = ""
    notes: tuple[str, ...] = ()

    def told(self) -> list[str]:
        """Return the notes, and explanations of the two times if they need any."""
        lines = [f"note: {note}" for note in self.notes]
        if self.held is None:
            return lines
        if self.held.cause != self.planned.cause:
            lines.append(f"same plan: {self.held.cause}")
        planned = not self.planned.error and self.planned.time_ps
        if planned and self.planned.time_ps < self.base.time_ps <= self.held.time_ps:
            lines.append(
                f"faster only by its plan, {self.planned.way} instead of {self.base.way}: with the plan held it is"
                f" {_ratio(self.held, self.base)}"
            )
        return lines

    def to_json(self) -> ChangeJson:
        """Return the numbers for scripts."""
        return {
            "change": self.change,
            "of": self.of,
            "baseline": self.base.to_json(),
            "held": None if self.held is None else self.held.to_json(),
            "planned": self.planned.to_json(),
            "notes": [
                *self.notes,
                *(text for text in self.told() if not text.startswith("note: ")),
            ],
        }


@dataclass
class WhatIf:
    """Baseline and changes to it.

    Attributes
    ----------
    title : str
        Description of the baseline.
    time : str
        Kind of time that is compared.
    baseline : list of (str, ChangeOutcome)
        Its runs: one, or one per size.
    """

    title: str
    time: str
    baseline: list[tuple[str, ChangeOutcome]] = field(default_factory=list)
    rows: list[ChangeRow] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        head = ("", "change", "same plan", "re-planned", "plan", "bottleneck")
        table: list[tuple[str, ...]] = [head]
        told: list[list[str]] = [[]]
        for of, base in self.baseline:
            table.append((of, "baseline", "", _time(base), base.way, base.cause))
            told.append([])
            for row in (row for row in self.rows if row.of == of):
                held = NONE if row.held is None else _against(row.held, base)
                planned = row.planned
                cells = (of, row.change, held, _against(planned, base), planned.way, planned.cause)
                table.append(cells)
                told.append(row.told())
        lines = [self.title, f"  times: {self.time}", ""]
        of = "  {:<..}" if any(cells[0] for cells in table) else "{}"
        shown = text_table(of + "  {:<..}" * 4 + "  {}", table)
        for line, more in zip(shown, told, strict=True):
            lines += [line, *(f"      {text}" for text in more)]
        return lines

    def page(self) -> str:
        """Return the results as an HTML page."""
        groups = []
        for of, base in self.baseline:
            runs = [_compared("baseline", base, None, ())]
            runs += [
                _compared(row.change, row.planned, row.held, tuple(row.told()))
                for row in self.rows
                if row.of == of
            ]
            groups.append((of, runs))
        return comparison_page(self.title, groups, self.time)

    def to_json(self) -> WhatIfJson:
        """Return the numbers for scripts."""
        return {
            "baseline": [{"of": of, **outcome.to_json()} for of, outcome in self.baseline],
            "title": self.title,
            "times": self.time,
            "rows": [row.to_json() for row in self.rows],
        }


def _compared(
    name: str, outcome: ChangeOutcome, held: ChangeOutcome | None, told: tuple[str, ...]
) -> Compared:
    held_ps = held.time_ps if held is not None and not held.error else None
    facts = {"Plan": outcome.way}
    told = (outcome.cause, *told) if outcome.error else told
    return Compared(
        *(
            name,
            outcome.time_ps,
            outcome.verdict,
            outcome.busbw_GBps,
            facts,
            outcome.loads,
            held_ps,
            told,
        )
    )


def _time(outcome: ChangeOutcome) -> str:
    return NONE if outcome.error else format_time(outcome.time_ps)


def _ratio(outcome: ChangeOutcome, base: ChangeOutcome) -> str:
    return f"{(outcome.time_ps - base.time_ps) / max(1, base.time_ps):+.1%}"


def _against(outcome: ChangeOutcome, base: ChangeOutcome) -> str:
    return NONE if outcome.error else f"{format_time(outcome.time_ps)} {_ratio(outcome, base)}"
