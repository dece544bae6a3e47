"""Diagnosis of a run: time breakdown, saving without the bottleneck, expected error.

`diagnose` makes every `Verdict` from an additive split of the time: of the critical path (`clusim.analysis.judge`), of
a training step by the tasks of its ranks (`clusim.training.step_diagnosis`), or of a recorded job by its calls
(`clusim.replays.report`). `confirmed` adds the saving of a run without the bottleneck. Every command, page and script
shows the same wording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from clusim.base.errors import DeadlockError, RangeExceeded, TimeLimitReached, TraceError
from clusim.base.json_schema import JsonObject, Round6
from clusim.base.terms.links import is_network, joined, kind_of, named, tier_of
from clusim.base.units import format_time

MOST_CAUSES = 3
"""Causes of the verdict on a critical path."""

LEAST_SHARE = 0.005
"""Smallest share of the run of a reported cause; the bottleneck is always reported."""

LEAST_PHASE = 0.02
"""Smallest share of the run that counts as a separate phase."""


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
"""Kind -> its label, and the fix."""

_HALVING = ("if 2x faster", "if half as long", "if half as much")
"""Fixes that halve the time of a cause; others remove it."""

_APART = (CauseKind.EXPOSED, CauseKind.BUBBLE, CauseKind.IDLE)
"""Kinds with a comma between label and detail."""

_BANDWIDTHS = (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
"""Kinds with the link name before the label: ``NVLink bandwidth, GPU-NVSwitch``."""

Key = tuple[CauseKind, str]
"""Kind and detail of a cause."""

Parts = Mapping[Key, int]
"""Time by cause [ps]."""

ALSO = 0.8
"""Utilisation from which a wire limits a run together with its bottleneck."""

SHOWN_PLACES = 3
"""Places of a cause that a sentence names."""


def _signed(saving_ps: int) -> str:
    """Return a saving as the change of the run's time: ``-667.5 us``."""
    return f"{'-' if saving_ps >= 0 else '+'}{format_time(abs(saving_ps))}"


@dataclass(frozen=True, slots=True)
class VerdictCause(JsonObject):
    """Cause with a share of a run's time.

    Attributes
    ----------
    kind : CauseKind
        Kind of the cause.
    what : str
        Detail: ``NVLink, GPU-NVSwitch``; empty if the kind is sufficient.
    places : tuple of str
        Ranks or links where it was found; equivalent entries are merged.
    time_ps : int
        Its part of the run [ps].
    saving_ps : int or None
        Critical-path estimate of the saving if it is fixed [ps]: too high if another path is almost as long. None if
        unknown.
    simulated_ps : int or None
        Saving found by re-simulation without the cause [ps]; None if not re-simulated.
    simulated_as : str
        Way of that re-simulation, if other causes were changed too: ``with twice the microbatches``.
    then : str
        Bottleneck of the re-simulation, with its share of the time; empty if unknown.
    also : tuple of str
        Other links almost as busy as the run is long, each with its busy share of the time; in training steps, of
        exposed communication, in jobs, of one call.
    words, fix : str
        Label of the cause in one line, and its fix.
    share : float
        Its part of the run, 0 to 1.
    """

    KEYS = ("*", "words", "fix", "share")

    kind: CauseKind
    what: str
    places: tuple[str, ...]
    time_ps: int
    saving_ps: int | None = None
    simulated_ps: int | None = None
    simulated_as: str = ""
    then: str = ""
    also: tuple[str, ...] = ()
    share: Round6 = field(default=0.0, compare=False)

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
class Phase(JsonObject):
    """Phase of the run [ps] and its dominant cause.

    `name` is ``start``, the kind of work of the middle, or ``tail``; training steps: `clusim.training.step_diagnosis`.

    Attributes
    ----------
    words : str
        It in a line.
    """

    KEYS = ("*", "words")

    name: str
    start_ps: int
    end_ps: int
    kind: CauseKind
    what: str = ""

    def words(self) -> str:
        """Name the phase's time and its causes."""
        cause = VerdictCause(self.kind, self.what, (), 0)
        return f"{self.name} {format_time(self.end_ps - self.start_ps)}: {cause.words()}"


def wire_key(wire_class: str) -> Key:
    """Return kind and detail of traffic on the wires of a class: PCIe is one, however it branches."""
    kind, tier = kind_of(wire_class), tier_of(wire_class)
    if kind == "pcie":
        return CauseKind.PCIE, named(kind)
    at_nic = is_network(kind) and "nic" in tier.split("-")
    return CauseKind.NIC if at_nic else CauseKind.WIRE, joined(wire_class)


def also_limiting(busy: Iterable[tuple[str, float]], bottleneck: Key) -> tuple[str, ...]:
    """Return other links busy for at least `ALSO`, given class and busy share of wires."""
    shares: dict[Key, float] = {}
    for name, share in busy:
        if share >= ALSO:
            key = wire_key(name)
            shares[key] = max(shares.get(key, 0.0), share)
    shares.pop(bottleneck, None)
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        f"{VerdictCause(*key, (), 0).words()} ({share:.1%} busy)" for key, share in ordered
    )


def remedied_ps(kind: CauseKind, time_ps: int) -> int:
    """Return the saving by the remedy of a cause if no other time changes [ps]."""
    if kind is CauseKind.OTHER:
        return 0
    return time_ps // 2 if _WORDS[kind][1] in _HALVING else time_ps


class SplitSpan(NamedTuple):
    """SplitSpan of a run and its time by cause, which adds up to its length [ps].

    A span without `name` is not shown as a phase.
    """

    name: str
    start_ps: int
    end_ps: int
    parts: Parts

    @property
    def phase(self) -> Phase:
        """The span with its dominant cause."""
        kind, what = max(self.parts, key=lambda key: (self.parts[key], key))
        # A pipeline fills and drains with any load of its stages.
        detail = "" if kind is CauseKind.BUBBLE else what
        return Phase(self.name, self.start_ps, self.end_ps, kind, detail)


@dataclass(frozen=True, slots=True)
class Verdict(JsonObject):
    """Diagnosis of a run.

    Attributes
    ----------
    time_ps : int
        Time of the run, the total of the causes [ps].
    causes : tuple of VerdictCause
        The three longest, the bottleneck first; of training steps and jobs all, in the order of savings.
    phases : tuple of Phase
        Phases of the run in order.
    basis : str
        Basis of the computation, or the reason why there is no critical path.
    includes, expected : str
        Content of the time, and the expected error; may be empty.
    uneven : tuple of str
        Classes of wires between switches that are used unevenly.
    text : list of str
        The verdict as commands print it.
    parts : mapping
        Time by cause, which adds up to `time_ps` [ps]; empty if read from a file.
    """

    KEYS = ("time_ps", "basis", "causes", "phases", "includes", "expected", "uneven", "text=lines")

    time_ps: int
    causes: tuple[VerdictCause, ...]
    phases: tuple[Phase, ...] = ()
    basis: str = "the critical path"
    includes: str = ""
    expected: str = ""
    uneven: tuple[str, ...] = ()
    parts: Parts = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Set the shares of the causes."""
        shares = (cause.time_ps / max(1, self.time_ps) for cause in self.causes)
        causes = tuple(
            replace(one, share=share) for one, share in zip(self.causes, shares, strict=True)
        )
        object.__setattr__(self, "causes", causes)

    @property
    def headline(self) -> VerdictCause | None:
        """Return the longest cause."""
        return self.causes[0] if self.causes else None

    def without_savings(self) -> Verdict:
        """Return a copy without savings, which are unknown for a run that was ended early."""
        return replace(self, causes=tuple(replace(one, saving_ps=None) for one in self.causes))

    def lines(self) -> list[str]:
        """Return the diagnosis as text, one statement a line, the most important first."""
        lines = self.headlines()
        lines += [f"phase {phase.words()}" for phase in self.phases]
        lines += [
            f"next: {cause.share:.1%} {cause.words()}"
            for cause in self.causes[1:]
            if cause.share >= LEAST_SHARE
        ]
        lines += [f"uneven paths: {text}" for text in self.uneven]
        lines += [f"time: {self.includes}"] if self.includes else []
        return lines + ([self.expected] if self.expected else [])

    def headlines(self) -> list[str]:
        """Return the lines on the bottleneck: its share of the time, its saving, further limits."""
        first = self.headline
        if first is None:
            return [f"unknown: {self.basis}"]
        return [f"{first.share:.1%} of the time: {first.words()}", *self._saving(first)]

    def _saving(self, cause: VerdictCause) -> list[str]:
        """Describe the re-simulated saving of a remedy, and the next bottleneck."""
        lines = []
        if cause.simulated_ps is not None:
            part = -cause.simulated_ps / max(1, self.time_ps)
            how = f"simulated {cause.simulated_as}".rstrip()
            lines.append(f"{cause.fix}: {_signed(cause.simulated_ps)} ({part:+.1%}, {how})")
        lines += [f"then: {cause.then}"] if cause.then else []
        return lines + ([f"also limiting: {', '.join(cause.also)}"] if cause.also else [])

    @classmethod
    def from_json(cls, data: Any, where: str) -> Verdict:
        """Return the result of `to_json`; raises `TraceError` for anything else."""
        try:
            causes = tuple(_cause(row) for row in data["causes"])
            phases = tuple(_phase(row) for row in data["phases"])
            basis, *texts = (_text(data[name]) for name in ("basis", "includes", "expected"))
            uneven = tuple(_text(text) for text in data.get("uneven", ()))
            return cls(int(data["time_ps"]), causes, phases, basis, texts[0], texts[1], uneven)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise TraceError(f"{where}: no verdict that this version can read") from None


def _text(value: Any) -> str:
    """Return a text of a file; raises `ValueError` for terminal control characters."""
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
        _text(row.get("then", "")),
        tuple(_text(link) for link in row.get("also", ())),
    )


def _phase(row: Mapping[str, Any]) -> Phase:
    ends = int(row["start_ps"]), int(row["end_ps"])
    return Phase(_text(row["name"]), *ends, CauseKind(row["kind"]), _text(row["what"]))


def scaled(parts: Parts, total_ps: int) -> dict[Key, int]:
    """Divide a time in the proportions of `parts`, to the picosecond; parts of 0 are left out."""
    result: dict[Key, int] = {}
    before_ps = done_ps = 0
    all_ps = sum(parts.values())
    for key, ps in parts.items():
        before_ps += ps
        result[key] = before_ps * total_ps // all_ps - done_ps
        done_ps += result[key]
    return {key: ps for key, ps in result.items() if ps}


def summed(several: Iterable[Parts]) -> dict[Key, int]:
    """Return the total time by cause."""
    result: Counter[Key] = Counter()
    for parts in several:
        result.update(parts)
    return result


def diagnose(
    spans: Sequence[SplitSpan],
    parts: Parts,
    cause_of: Callable[[Key], VerdictCause],
    most: int | None = None,
) -> Verdict:
    """Return the diagnosis of a run from its additive split.

    Parameters
    ----------
    spans : sequence of SplitSpan
        The run from begin to end.
    parts : mapping
        Time by cause in the order of what mending saves, the bottleneck first [ps].
    cause_of : callable
        Adds places and saving to a cause.
    most : int or None
        Number of causes that are told, none of them below `LEAST_SHARE` except the bottleneck; None: all.
    """
    time_ps = sum(parts.values())
    told = list(parts)
    if most is not None:
        told = [key for key in told[:most] if key == told[0] or parts[key] >= LEAST_SHARE * time_ps]
    least_ps = max(1.0, LEAST_PHASE * time_ps)
    phases = [s.phase for s in spans if s.name and s.end_ps - s.start_ps >= least_ps]
    return Verdict(time_ps, tuple(map(cause_of, told)), tuple(phases), parts=parts)


class Trial(NamedTuple):
    """Run without the bottleneck: its saving [ps] and its diagnosis, both or None if unknown."""

    saving_ps: int
    after: Verdict | None = None


def confirmed(verdict: Verdict, trial: Callable[[], Trial], how: str = "") -> Verdict:
    """Simulate a run again without its bottleneck; return the verdict with the saving and the next one.

    Unchanged if the changed system would need further changes, or more time than allowed.
    """
    try:
        saving_ps, after = trial()
    except (DeadlockError, RangeExceeded, TimeLimitReached):
        return verdict
    first = None if after is None else after.headline
    then = "" if after is None or first is None else f"{first.share:.1%} {first.words()}"
    first = replace(verdict.causes[0], simulated_ps=saving_ps, simulated_as=how, then=then)
    return replace(verdict, causes=(first, *verdict.causes[1:]))
