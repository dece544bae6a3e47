"""Diagnosis of a run: time breakdown, saving without the bottleneck, expected error.

`diagnose` makes every `Verdict` from an additive split of the time: of the critical path (`clusim.analysis.judge`), of
a training step by the tasks of its ranks (`clusim.training.step_diagnosis`), or of a recorded job by its calls
(`clusim.replays.report`). `clusim.simulation.proof` adds simulated savings. Every command, page and script
shows the same wording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from clusim.base.errors import TraceError
from clusim.base.json_schema import IfKnown, JsonObject
from clusim.base.records import dataclass
from clusim.base.units import format_time
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import (
    CauseInstance,
    CausePart,
    CauseResource,
    Census,
    Key,
    PartKey,
    Parts,
    Phase,
    VerdictCause,
    by_cause,
    resources_of,
    sum_times,
)
from clusim.results.servers import ServerClass

MOST_SHOWN = 5
"""Causes that text names, the bottleneck included."""

LEAST_SHARE = 0.01
"""Smallest share of the run of a printed cause; the bottleneck is always printed."""

LEAST_PHASE = 0.02
"""Smallest share of the run of a printed phase."""


BY_PATH = "the critical path"
"""Basis of a verdict on a run of collectives."""


def _change_words(saving_ps: int) -> str:
    """Return a saving as the change of the run's time: ``-667.5 us``."""
    return f"{'-' if saving_ps >= 0 else '+'}{format_time(abs(saving_ps))}"


class SplitSpan(NamedTuple):
    """Span of a run and its time by cause and place, which adds up to its length [ps].

    A span without `name` is not a phase.
    """

    name: str
    start_ps: int
    end_ps: int
    parts: Parts


@dataclass(frozen=True, slots=True)
class Verdict(JsonObject):
    """Diagnosis of a run.

    Attributes
    ----------
    time_ps : int
        Time of the run, the total of the causes [ps].
    causes : tuple of VerdictCause
        All causes, the bottleneck first; their times add up to the run.
    phases : tuple of Phase
        Phases of the run in order, which add up to it; empty if it is not divided.
    order : str
        Order of the causes, if it is not that of their shares by definition.
    unfinished : str
        Re-simulations missing because of a time limit.
    basis : str
        Basis of the computation, or the reason why there is no critical path.
    includes, expected : str
        Content of the time, and the expected error; may be empty.
    figures : tuple of str
        Figures to read first, as ``label: value``.
    uneven : tuple of str
        Classes of wires between switches that are used unevenly.
    proof : str
        Certainty of the bottleneck: which changes were simulated, and which could save more.
    servers : tuple of ServerClass
        Serial servers by class, the fullest first.
    text : list of str
        The verdict as commands print it.
    """

    KEYS = (
        "time_ps",
        "basis",
        "order",
        "causes",
        "phases",
        "includes",
        "expected",
        "unfinished",
        "figures",
        "uneven",
        "proof",
        "servers",
        "text=lines",
    )

    time_ps: int
    causes: tuple[VerdictCause, ...]
    phases: tuple[Phase, ...] = ()
    basis: str = BY_PATH
    includes: str = ""
    expected: str = ""
    uneven: tuple[str, ...] = ()
    order: IfKnown[str] = ""
    unfinished: IfKnown[str] = ""
    figures: IfKnown[tuple[str, ...]] = ()
    proof: IfKnown[str] = ""
    servers: IfKnown[tuple[ServerClass, ...]] = ()

    def __post_init__(self) -> None:
        """Set the shares of the causes."""
        shares = (cause.time_ps / max(1, self.time_ps) for cause in self.causes)
        causes = tuple(
            replace(one, share=share)
            for one, share in zip(self.causes, shares, strict=True)
        )
        object.__setattr__(self, "causes", causes)

    @property
    def headline(self) -> VerdictCause | None:
        """Return the longest cause."""
        return self.causes[0] if self.causes else None

    @property
    def parts(self) -> dict[PartKey, int]:
        """Time by cause, resource and instance, which adds up to `time_ps` [ps]."""
        return {
            key: ps for cause in self.causes for key, ps in cause.parts().items()
        }

    @property
    def main_phases(self) -> list[Phase]:
        """Phases of at least `LEAST_PHASE`."""
        least_ps = max(1.0, LEAST_PHASE * self.time_ps)
        return [
            phase
            for phase in self.phases
            if phase.end_ps - phase.start_ps >= least_ps
        ]

    def lines(self) -> list[str]:
        """Return the diagnosis as text, one statement a line, the most important first."""
        lines = self.headlines()
        lines += [f"phase {phase.words()}" for phase in self.main_phases]
        lines += [
            f"next: {cause.share:.1%} {cause.words()}{self._next(cause)}"
            for cause in self.causes[1:MOST_SHOWN]
            if cause.share >= LEAST_SHARE
        ]
        lines += [f"order: {self.order}"] if self.order else []
        lines += [f"uneven paths: {text}" for text in self.uneven]
        lines += [f"time: {self.includes}"] if self.includes else []
        return lines + ([self.expected] if self.expected else [])

    def headlines(self) -> list[str]:
        """Return the lines on the bottleneck: its share of the time, its saving, the proof, further limits."""
        first = self.headline
        if first is None:
            return [f"unknown: {self.basis}"]
        lines = [
            f"{first.share:.1%} of the time: {first.words()}",
            *self._saving(first),
        ]
        return lines + (
            [f"not simulated: {self.unfinished}"] if self.unfinished else []
        )

    def _next(self, cause: VerdictCause) -> str:
        """Return the saving of a further cause, if it was simulated."""
        if cause.saving_ps is None:
            return ""
        return f"; {cause.fix}: {_change_words(cause.saving_ps)}"

    def _saving(self, cause: VerdictCause) -> list[str]:
        """Describe the re-simulated saving of a remedy, its certainty, settings, and the next bottleneck."""
        lines: list[str] = []
        if cause.saving_ps is not None:
            part = -cause.saving_ps / max(1, self.time_ps)
            lines.append(
                f"{cause.fix}: {_change_words(cause.saving_ps)} ({part:+.1%}, simulated)"
            )
        lines += [self.proof] if self.proof else []
        lines += [f"settings: {cause.settings}"] if cause.settings else []
        lines += [f"then: {cause.then}"] if cause.then else []
        return lines + (
            [f"also limiting: {', '.join(cause.also)}"] if cause.also else []
        )

    @classmethod
    def from_json(cls, data: Any, where: str) -> Verdict:
        """Return the result of `to_json`; raises `TraceError` for anything else."""
        try:
            causes = tuple(_cause(row) for row in data["causes"])
            phases = tuple(_phase(row) for row in data["phases"])
            basis, *texts = (
                _text(data[name]) for name in ("basis", "includes", "expected")
            )
            order, unfinished = (
                _text(data.get(name, "")) for name in ("order", "unfinished")
            )
            uneven, figures = (
                _texts(data.get(name, ())) for name in ("uneven", "figures")
            )
            more = texts[0], texts[1], uneven, order, unfinished, figures
            proof = _text(data.get("proof", ""))
            servers = tuple(
                ServerClass.of_json(row, _text) for row in data.get("servers", ())
            )
            return cls(
                int(data["time_ps"]), causes, phases, basis, *more, proof, servers
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise TraceError(
                f"{where}: no verdict that this version can read"
            ) from None


class ProvableVerdict:
    """Verdict of a result, and its proof by simulations of remedies, which is made once on request.

    Parameters
    ----------
    verdict : Verdict
        The verdict known without these simulations.
    prove : callable or None
        Returns the proven verdict; None: no change is simulated.

    Attributes
    ----------
    verdict : Verdict
        The verdict; proven after `diagnose`.
    """

    def __init__(
        self, verdict: Verdict, prove: Callable[[], Verdict] | None = None
    ) -> None:
        self.verdict, self._prove = verdict, prove

    def diagnose(self) -> Verdict:
        """Return the proven verdict."""
        if self._prove is not None:
            self.verdict, self._prove = self._prove(), None
        return self.verdict

    def __call__(self, _run: object) -> Verdict:
        """Return the verdict, also on the run with this result."""
        return self.verdict

    def prove(self, _run: object) -> Verdict:
        """Return the proven verdict, also on the run with this result."""
        return self.diagnose()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the verdict."""
        return ProvableVerdict, (self.verdict,)


def _text(value: Any) -> str:
    """Return a text of a file; raises `ValueError` for terminal control characters."""
    if not isinstance(value, str) or not (value.isprintable() or not value):
        raise ValueError("no text that can be shown")
    return value


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_text, values))


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _resource(row: Mapping[str, Any]) -> CauseResource:
    return CauseResource(
        _text(row["name"]),
        int(row["time_ps"]),
        tuple(
            CauseInstance(_text(place["name"]), int(place["time_ps"]))
            for place in row["places"]
        ),
        int(row["on_path"]),
        _text(row.get("unit", "")),
        int(row.get("in_class", 0)),
        _number(row["limiting"]),
        _texts(row.get("named", ())),
        int(row.get("down", 0)),
        _texts(row.get("down_parts", ())),
    )


def _part(row: Mapping[str, Any]) -> CausePart:
    resources = tuple(map(_resource, row["resources"]))
    return CausePart(
        CauseKind(row["kind"]), _text(row["what"]), int(row["time_ps"]), resources
    )


def _cause(row: Mapping[str, Any]) -> VerdictCause:
    part = _part(row)
    return VerdictCause(
        part.kind,
        part.what,
        part.time_ps,
        part.resources,
        _number(row["saving_ps"]),
        then=_text(row["then"]),
        also=_texts(row["also"]),
        remedy=_text(row.get("remedy", "")),
        settings=_text(row.get("settings", "")),
    )


def _phase(row: Mapping[str, Any]) -> Phase:
    ends = int(row["start_ps"]), int(row["end_ps"])
    dominant = CauseKind(row["kind"]), _text(row["what"])
    return Phase(
        _text(row["name"]), *ends, *dominant, tuple(map(_part, row["causes"]))
    )


def _phase_of(span: SplitSpan, census: Callable[[Key, str], Census]) -> Phase:
    """Return a span with its causes, the dominant one first."""
    sums = by_cause(span.parts)
    resources = resources_of(span.parts, census)
    ordered = sorted(sums, key=lambda key: (sums[key], key), reverse=True)
    causes = tuple(
        CausePart(*key, sums[key], resources.get(key, ())) for key in ordered
    )
    kind, what = ordered[0]
    # A pipeline fills and drains with any load of its stages.
    detail = "" if kind is CauseKind.BUBBLE else what
    return Phase(span.name, span.start_ps, span.end_ps, kind, detail, causes)


def diagnose(
    spans: Sequence[SplitSpan],
    order: Callable[[Mapping[Key, int]], Iterable[Key]],
    census: Callable[[Key, str], Census],
    finish: Callable[[VerdictCause], VerdictCause] = lambda cause: cause,
) -> Verdict:
    """Return the diagnosis of a run from its additive split.

    Parameters
    ----------
    spans : sequence of SplitSpan
        The run from begin to end; spans without a name are no phases.
    order : callable
        Returns the causes, the bottleneck first, given the time of each [ps].
    census : callable
        Counts the instances of a cause's resource.
    finish : callable
        Adds other limits and savings to a cause.
    """
    parts = sum_times(span.parts for span in spans)
    sums, resources = by_cause(parts), resources_of(parts, census)
    causes = (
        finish(VerdictCause(*key, sums[key], resources.get(key, ())))
        for key in order(sums)
        if sums[key]
    )
    phases = tuple(_phase_of(span, census) for span in spans if span.name)
    return Verdict(sum(sums.values()), tuple(causes), phases)
