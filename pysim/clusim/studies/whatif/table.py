"""Results of a baseline and its changes, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from clusim.base.json_schema import JsonObject, OrNull
from clusim.base.tables import text_table
from clusim.base.units import format_time
from clusim.report.comparison import Compared, Loads, comparison_page
from clusim.results.diagnosis import BY_PATH, Verdict

NONE = "-"


@dataclass(frozen=True)
class ChangeOutcome(JsonObject):
    """Outcome of one run.

    Attributes
    ----------
    time_ps : int or None
        Time [ps]; None if it cannot run.
    plan : str
        Algorithm, protocol and channels.
    error : str or None
        Why it cannot run.
    busbw_GBps : float or None
        Bus bandwidth of one collective, as in nccl-tests [10^9 bytes/s].
    limit : str
        Cause of a run without such a verdict.
    loads : dict
        Utilisation of wires, as in `clusim.report.comparison.Compared`.
    """

    KEYS = ("time_ps", "plan", "error", "verdict")

    time_ps: OrNull[int] = 0
    plan: str = ""
    verdict: Verdict | None = None
    error: OrNull[str] = ""
    busbw_GBps: float | None = None
    limit: str = ""
    loads: Loads = field(default_factory=dict)

    @property
    def cause(self) -> str:
        """Bottleneck and its share, or the error."""
        if self.error:
            return f"cannot run: {self.error}"
        first = self.verdict.headline if self.verdict is not None else None
        if self.verdict is None or first is None:
            return self.limit or "not known"
        return f"{first.share:.1%} {first.words()}"


@dataclass(frozen=True)
class BaselineRun(JsonObject):
    """A run of the baseline.

    Attributes
    ----------
    of : str
        Size of nccl-tests, if there are several runs; otherwise empty.
    notes : tuple of str
        Notes of the run.
    """

    KEYS = ("of", "*outcome", "notes")

    of: str
    outcome: ChangeOutcome
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChangeRow(JsonObject):
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

    KEYS = ("change", "of", "baseline", "held", "planned", "notes=script_notes")

    change: str
    baseline: ChangeOutcome
    held: ChangeOutcome | None
    planned: ChangeOutcome
    of: str = ""
    notes: tuple[str, ...] = ()

    def note_lines(self) -> list[str]:
        """Return the notes, and explanations of the two times if they need any."""
        return [*(f"note: {note}" for note in self.notes), *self._reasons()]

    def script_notes(self) -> list[str]:
        """Return the notes and explanations for scripts."""
        return [*self.notes, *self._reasons()]

    def _reasons(self) -> list[str]:
        lines: list[str] = []
        if self.held is None:
            return lines
        if self.held.cause != self.planned.cause:
            lines.append(f"same plan: {self.held.cause}")
        planned = not self.planned.error and self.planned.time_ps
        if (
            planned
            and self.planned.time_ps < self.baseline.time_ps <= self.held.time_ps
        ):
            lines.append(
                f"faster only by its plan, {self.planned.plan} instead of {self.baseline.plan}:"
                f" with the plan held it is {_ratio(self.held, self.baseline)}"
            )
        return lines


@dataclass
class WhatIf(JsonObject):
    """Baseline and changes to it.

    Attributes
    ----------
    baseline : list
        Its runs: one, or one per size.
    title, times : str
        Description of the baseline, and the kind of time that is compared.
    """

    KEYS = ("baseline", "title", "times", "rows")

    title: str
    times: str
    baseline: list[BaselineRun] = field(default_factory=list)
    rows: list[ChangeRow] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        head = ("", "change", "same plan", "re-planned", "plan")
        table: list[tuple[str, ...]] = [head]
        notes: list[list[str]] = [[]]
        for run in self.baseline:
            of, base = run.of, run.outcome
            table.append((of, "baseline", "", _time(base), base.plan))
            notes.append(
                [_bottleneck(base), *(f"note: {note}" for note in run.notes)]
            )
            for row in (row for row in self.rows if row.of == of):
                same_plan = NONE if row.held is None else _against(row.held, base)
                planned = row.planned
                table.append(
                    (
                        of,
                        row.change,
                        same_plan,
                        _against(planned, base),
                        planned.plan,
                    )
                )
                notes.append([_bottleneck(planned), *row.note_lines()])
        lines = [self.title, f"  times: {self.times}", ""]
        of = "  {:<..}" if any(cells[0] for cells in table) else "{}"
        table_lines = text_table(of + "  {:<..}" * 3 + "  {}", table, strip=False)
        for line, more in zip(table_lines, notes, strict=True):
            lines += [line.rstrip(), *(f"      {text}" for text in more)]
        return lines

    def page(self) -> str:
        """Return the results as an HTML page."""
        groups = []
        for run in self.baseline:
            of, base = run.of, run.outcome
            runs = [
                _compare_outcomes(
                    "baseline",
                    base,
                    None,
                    tuple(f"note: {note}" for note in run.notes),
                )
            ]
            runs += [
                _compare_outcomes(
                    row.change, row.planned, row.held, tuple(row.note_lines())
                )
                for row in self.rows
                if row.of == of
            ]
            groups.append((of, runs))
        return comparison_page(self.title, groups, self.times)


def _compare_outcomes(
    name: str,
    outcome: ChangeOutcome,
    same_plan: ChangeOutcome | None,
    notes: tuple[str, ...],
) -> Compared:
    held_ps = (
        same_plan.time_ps if same_plan is not None and not same_plan.error else None
    )
    facts = {"Plan": outcome.plan}
    notes = (outcome.cause, *notes) if outcome.error else notes
    return Compared(
        name,
        outcome.time_ps,
        outcome.verdict,
        outcome.busbw_GBps,
        facts,
        outcome.loads,
        held_ps,
        notes,
    )


def _bottleneck(outcome: ChangeOutcome) -> str:
    verdict = outcome.verdict
    first = verdict.headline if verdict is not None else None
    if verdict is None or first is None or outcome.error:
        return outcome.cause
    by_path = verdict.basis == BY_PATH and first.saving_ps is None
    return f"{'critical path' if by_path else 'bottleneck'}: {outcome.cause}"


def _time(outcome: ChangeOutcome) -> str:
    return NONE if outcome.error else format_time(outcome.time_ps)


def _ratio(outcome: ChangeOutcome, base: ChangeOutcome) -> str:
    return f"{(outcome.time_ps - base.time_ps) / max(1, base.time_ps):+.1%}"


def _against(outcome: ChangeOutcome, base: ChangeOutcome) -> str:
    return (
        NONE
        if outcome.error
        else f"{format_time(outcome.time_ps)} {_ratio(outcome, base)}"
    )
