"""The verdict on a run: what its time went into, what less of the first cause would save, how sure that is.

One object, made from the critical path (`clusim.analysis.judge`) or, of a training step, from what ranks did in it
(`clusim.training.step_diagnosis`), and one wording, which every command, page and script shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from typing_extensions import TypedDict

from clusim.base.errors import TraceError
from clusim.base.json_schema import FieldsOf
from clusim.base.units import format_time

MOST_CAUSES = 3
"""Causes of a verdict."""

LEAST_SHARE = 0.005
"""Least part of the run of a cause, behind the first, that is told."""

LEAST_PHASE = 0.02
"""Least part of the run that is a phase of its own."""


class CauseKind(StrEnum):
    """Kinds of causes."""

    LATENCY = "latency"
    STEP = "step"
    LAUNCH = "launch"
    PROXY = "proxy"
    WIRE = "wire"
    NIC = "nic"
    PCIE = "pcie"
    CTA = "cta"
    MEMORY = "memory"
    UNIT = "unit"
    STRAGGLER = "straggler"
    FAULT = "fault"
    UNEVEN = "uneven"
    CONTENTION = "contention"
    SHARING = "sharing"
    CREDIT = "credit"
    WINDOW = "window"
    SLOTS = "slots"
    COMPUTE = "compute"
    EXPOSED = "exposed"
    HOST = "host"
    BUBBLE = "bubble"
    IDLE = "idle"
    OTHER = "other"


_WORDS = {
    CauseKind.LATENCY: ("latency (propagation, flags, round trips)", "if half as long"),
    CauseKind.STEP: ("per-slice CTA overhead", "if half as much"),
    CauseKind.LAUNCH: ("staggered CTA start and pauses", "if half as long"),
    CauseKind.PROXY: ("proxy threads of the host", "if 2x faster"),
    CauseKind.WIRE: ("bandwidth", "if 2x faster"),
    CauseKind.NIC: ("bandwidth at the NICs", "if 2x faster"),
    CauseKind.PCIE: ("bandwidth", "if 2x faster"),
    CauseKind.CTA: ("CTA copy/reduce throughput", "if 2x faster"),
    CauseKind.MEMORY: ("memory bandwidth", "if 2x faster"),
    CauseKind.UNIT: ("in-switch reduction units", "if 2x faster"),
    CauseKind.STRAGGLER: ("slow rank:", "if as fast as its peers"),
    CauseKind.FAULT: ("degraded link:", "if as fast as its parallel links"),
    CauseKind.UNEVEN: ("uneven load on", "if evenly loaded"),
    CauseKind.CONTENTION: ("links shared with other collectives:", "without them"),
    CauseKind.SHARING: ("GPU sharing of kernels and communication", "without sharing"),
    CauseKind.CREDIT: ("credit stalls", "without them"),
    CauseKind.WINDOW: ("in-flight window full", "with a larger window"),
    CauseKind.SLOTS: ("CTA slots in use", "with more slots"),
    CauseKind.COMPUTE: ("compute", "if 2x faster"),
    CauseKind.EXPOSED: ("exposed communication", "if all hidden"),
    CauseKind.HOST: ("waiting for kernel launches by the host", "with launches in time"),
    CauseKind.BUBBLE: ("pipeline bubble", "without a bubble"),
    CauseKind.IDLE: ("waiting for other ranks", "without waiting"),
    CauseKind.OTHER: ("unattributed", ""),
}
"""Kind -> what it is, and what fixing it means."""

_APART = (CauseKind.EXPOSED, CauseKind.BUBBLE)
"""Kinds behind which a comma is before what says which."""

_BANDWIDTHS = (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
"""Kinds whose link is named before them: ``NVLink bandwidth, GPU-NVSwitch``."""

SHOWN_PLACES = 3
"""Places of a cause that a sentence names."""


def _signed(saving_ps: int) -> str:
    """Return a saving as the change of the run's time: ``-667.5 us``."""
    return f"{'-' if saving_ps >= 0 else '+'}{format_time(abs(saving_ps))}"


@dataclass(frozen=True, slots=True)
class VerdictCause:
    """Something that a run's time went into.

    Attributes
    ----------
    kind : CauseKind
        What it is.
    what : str
        Which, in words: ``NVLink, GPU-NVSwitch``; empty where the kind says all.
    places : tuple of str
        Ranks or links it was met at, alike ones once.
    time_ps : int
        Its part of the run [ps].
    saving_ps : int or None
        What fixing it would save by the critical path, in first order [ps]; None where that cannot be told.
    simulated_ps : int or None
        What fixing it does save when the run is simulated again without it [ps]; None if that was not done.
    simulated_as : str
        How that was done, if not as finely as the run: ``in bursts of 4096 B``.
    """

    kind: CauseKind
    what: str
    places: tuple[str, ...]
    time_ps: int
    saving_ps: int | None = None
    simulated_ps: int | None = None
    simulated_as: str = ""

    @property
    def fix(self) -> str:
        """Meaning of the remedy: ``if 2x faster``."""
        return _WORDS[self.kind][1]

    def words(self) -> str:
        """Name the cause, and its place if that is one place or a few."""
        text = _WORDS[self.kind][0]
        if self.kind in _BANDWIDTHS:
            link, _, ends = self.what.partition(", ")
            text = f"{link} {text}, {ends}" if ends else f"{link} {text}"
        elif self.what:
            text += f"{',' if self.kind in _APART else ''} {self.what}"
        if not self.places or len(self.places) > SHOWN_PLACES:
            return text
        return f"{text} ({', '.join(self.places)})"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run [ps] and what most of it went into.

    `name` is ``start``, the middle's work, or ``tail``; of training steps as `clusim.training.phases` has them.
    """

    name: str
    start_ps: int
    end_ps: int
    kind: CauseKind
    what: str = ""

    def words(self) -> str:
        """Name the phase's time and its causes."""
        cause = VerdictCause(self.kind, self.what, (), 0)
        return f"{self.name} {format_time(self.end_ps - self.start_ps)}: {cause.words()}"


class CauseWordsJson(TypedDict):
    """Words of a cause.

    Attributes
    ----------
    words, fix : str
        It in a line, and what fixing it means.
    share : float
        Its part of the run, 0 to 1.
    """

    words: str
    fix: str
    share: float


class PhaseWordsJson(TypedDict):
    """Words of a phase.

    Attributes
    ----------
    words : str
        It in a line.
    """

    words: str


class VerdictJson(TypedDict):
    """Diagnosis of a run.

    Attributes
    ----------
    time_ps : int
        Of the run, which the causes are parts of [ps].
    basis : str
        What it was computed from, or why there is no critical path.
    causes : list
        The three longest, the headline first.
    phases : list
        Of the run in order.
    includes, expected : str
        What the time includes, and what error to expect; empty where there is nothing to say.
    text : list of str
        The verdict as commands print it.
    """

    time_ps: int
    basis: str
    causes: list[Annotated[dict[str, Any], FieldsOf(VerdictCause, CauseWordsJson)]]
    phases: list[Annotated[dict[str, Any], FieldsOf(Phase, PhaseWordsJson)]]
    includes: str
    expected: str
    text: list[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Diagnosis of a run.

    Attributes
    ----------
    time_ps : int
        Of the run, which the causes are parts of [ps].
    causes : tuple of VerdictCause
        The three longest, the headline first; empty where no critical path is known.
    phases : tuple of Phase
        Of the run in order; empty where no critical path is known.
    basis : str
        What it was computed from, or why there is no critical path.
    includes : str
        What the time includes; empty where it is the whole run's.
    expected : str
        What error to expect on this machine, at this size and with this algorithm.
    """

    time_ps: int
    causes: tuple[VerdictCause, ...]
    phases: tuple[Phase, ...] = ()
    basis: str = "the critical path"
    includes: str = ""
    expected: str = ""

    @property
    def headline(self) -> VerdictCause | None:
        """Return the longest cause."""
        return self.causes[0] if self.causes else None

    def share(self, cause: VerdictCause) -> float:
        """Return a cause's part of the run, 0 to 1."""
        return cause.time_ps / max(1, self.time_ps)

    def simulated(self, saving_ps: int, how: str = "") -> Verdict:
        """Return the same with what fixing the headline saved when it was simulated [ps], and how if not as the run."""
        first = replace(self.causes[0], simulated_ps=saving_ps, simulated_as=how)
        return replace(self, causes=(first, *self.causes[1:]))

    def without_savings(self) -> Verdict:
        """Return the same of a run that was ended, of which nobody knows what a fix would save."""
        return replace(self, causes=tuple(replace(one, saving_ps=None) for one in self.causes))

    def lines(self) -> list[str]:
        """Return it as text, a statement a line, the first of which says most."""
        first = self.headline
        if first is None:
            lines = [f"unknown: {self.basis}"]
        else:
            lines = [f"{self.share(first):.1%} of the time: {first.words()}"]
            lines += self._saving(first)
        lines += [f"phase {phase.words()}" for phase in self.phases]
        lines += [f"next: {self.share(cause):.1%} {cause.words()}" for cause in self.causes[1:]]
        lines += [f"time: {self.includes}"] if self.includes else []
        return lines + ([self.expected] if self.expected else [])

    def _saving(self, cause: VerdictCause) -> list[str]:
        """Describe the saving of a remedy, and whether it was re-simulated or is an estimate."""
        if cause.simulated_ps is not None:
            result, how = cause.simulated_ps, f"re-simulated {cause.simulated_as}".rstrip()
            if cause.saving_ps is not None:
                how += f"; critical-path estimate {_signed(cause.saving_ps)}"
        elif cause.saving_ps is not None:
            result, how = cause.saving_ps, f"estimate by {self.basis}"
        else:
            return []
        part = -result / max(1, self.time_ps)
        return [f"{cause.fix}: {_signed(result)} ({part:+.1%}; {how})"]

    def to_json(self) -> VerdictJson:
        """Return it for a script."""
        return {
            "time_ps": self.time_ps,
            "basis": self.basis,
            "causes": [
                {**asdict(cause), "words": cause.words(), "fix": cause.fix}
                | {"share": round(self.share(cause), 6), "places": list(cause.places)}
                for cause in self.causes
            ],
            "phases": [asdict(phase) | {"words": phase.words()} for phase in self.phases],
            "includes": self.includes,
            "expected": self.expected,
            "text": self.lines(),
        }

    @classmethod
    def from_json(cls, data: Any, where: str) -> Verdict:
        """Return the result of `to_json`; raises `TraceError` for anything else."""
        try:
            causes = tuple(_cause(row) for row in data["causes"])
            phases = tuple(_phase(row) for row in data["phases"])
            texts = [_text(data[name]) for name in ("basis", "includes", "expected")]
            return cls(int(data["time_ps"]), causes, phases, *texts)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise TraceError(f"{where}: no verdict that this version can read") from None


def _text(value: Any) -> str:
    """Return a text of a file; raises `ValueError` for what a terminal would act on."""
    if not isinstance(value, str) or not (value.isprintable() or not value):
        raise ValueError("no text that can be shown")
    return value


def _cause(row: Mapping[str, Any]) -> VerdictCause:
    saving_ps, simulated_ps = (
        None if row[name] is None else int(row[name]) for name in ("saving_ps", "simulated_ps")
    )
    return VerdictCause(
        CauseKind(row["kind"]),
        _text(row["what"]),
        tuple(_text(place) for place in row["places"]),
        int(row["time_ps"]),
        saving_ps,
        simulated_ps,
        _text(row.get("simulated_as", "")),
    )


def _phase(row: Mapping[str, Any]) -> Phase:
    ends = int(row["start_ps"]), int(row["end_ps"])
    return Phase(_text(row["name"]), *ends, CauseKind(row["kind"]), _text(row["what"]))
