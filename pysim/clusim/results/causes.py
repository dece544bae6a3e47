"""Causes of a run's time, each with its place: resource and instance, and the number of instances in the run.

Parts of a time are keyed by cause, resource and instance (`PartKey`); every level of the tree adds up to the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from clusim.base.json_schema import IfKnown, JsonObject, Round6
from clusim.base.records import dataclass
from clusim.base.terms.links import (
    is_network,
    kind_of,
    link_class_name,
    link_name,
    tier_of,
)
from clusim.base.units import format_time
from clusim.results.cause_kinds import APART, BANDWIDTHS, WORDS, CauseKind

Key = tuple[CauseKind, str]
"""Kind and detail of a cause."""

PartKey = tuple[CauseKind, str, str, str]
"""Kind and detail of a cause, its resource and the instance; the last two are empty if unknown."""

Parts = Mapping[PartKey, int]
"""Time by cause, resource and instance [ps]."""

ALSO = 0.8
"""Utilisation from which a wire limits a run together with its bottleneck."""

AS_BUSY = 0.9
"""Share of the busy time of the busiest instance on the path from which another instance limits as well."""

SHOWN_PLACES = 3
"""Instances that a line names."""

MOST_PLACES = 32
"""Instances of a resource in JSON; further ones are merged."""


@dataclass(frozen=True, slots=True)
class CauseInstance(JsonObject):
    """Instance of a resource with its part of a cause.

    Attributes
    ----------
    name : str
        Link, NIC, rank or switch.
    time_ps : int
        Its part of the cause [ps].
    """

    name: str
    time_ps: int


class Census(NamedTuple):
    """Instances of the class of a resource in a run.

    Attributes
    ----------
    unit : str
        Plural noun of an instance.
    total : int
        Instances in the run.
    limiting : tuple of str or None
        Instances that are at least `AS_BUSY` as busy as the busiest instance; None: unknown load.
    named : tuple of str
        Instances that differ from their class by more than its spread.
    down : int
        Instances that never carried data because of a fault.
    parts : tuple of str
        Graph nodes without a remaining link, and other links that are down.
    notes : mapping of str to str
        Deviation of instances: ``slow x1.3``.
    """

    unit: str
    total: int
    limiting: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()
    down: int = 0
    parts: tuple[str, ...] = ()
    notes: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CauseResource(JsonObject):
    """Resource of a cause, and its instances in the run.

    Attributes
    ----------
    name : str
        Link class (``nvlink gpu->switch``) or hardware (``CTAs``).
    time_ps : int
        Its part of the cause, the sum of its places [ps].
    places : tuple of CauseInstance
        Instances on the path, the longest first; if there are more than 32, the shortest are merged.
    on_path : int
        Number of instances on the path.
    unit : str
        Plural noun of an instance: links, NICs, ranks, proxy threads, reduction units, hosts.
    in_class : int
        Instances of the class in the run.
    limiting : int or None
        Instances at least 90% as busy as the busiest instance; None if their load is unknown.
    named : tuple of str
        At most three instances that are fuller or slower than the others by more than the spread of the others, with
        their deviation.
    down : int
        Instances that are down during the complete run.
    down_parts : tuple of str
        Switches, NICs or links that are down, if the limiting instances carry more than the mean of the class.
    """

    name: str
    time_ps: int
    places: tuple[CauseInstance, ...] = ()
    on_path: int = 0
    unit: IfKnown[str] = ""
    in_class: IfKnown[int] = 0
    limiting: int | None = None
    named: IfKnown[tuple[str, ...]] = ()
    down: IfKnown[int] = 0
    down_parts: IfKnown[tuple[str, ...]] = ()

    @classmethod
    def of(
        cls, name: str, times: Mapping[str, int], census: Census
    ) -> CauseResource:
        """Return a resource, given the time of each place [ps]."""
        ordered = sorted(times.items(), key=lambda item: (-item[1], item[0]))
        busy_places = [CauseInstance(place, ps) for place, ps in ordered if place]
        words = (
            f"{one} {census.notes[one]}" if one in census.notes else one
            for one in census.named
        )
        limiting = None if census.limiting is None else len(census.limiting)
        sizes = (
            census.unit,
            census.total,
            limiting,
            tuple(words),
            census.down,
            census.parts,
        )
        places, smaller = busy_places[:MOST_PLACES], busy_places[MOST_PLACES:]
        if smaller:
            places.append(
                CauseInstance(
                    f"{len(smaller)} others", sum(place.time_ps for place in smaller)
                )
            )
        return cls(
            name, sum(times.values()), tuple(places), len(busy_places), *sizes
        )

    def lost(self) -> str:
        """Return the parts that are down in words; empty if the limiting instances carry no more because of them."""
        if not self.down_parts:
            return ""
        more = ", ..." if len(self.down_parts) > SHOWN_PLACES else ""
        return f"{self.down} down: {', '.join(self.down_parts[:SHOWN_PLACES])}{more}"

    def count(self) -> str:
        """Return the number of limiting instances in words; empty if their load is unknown."""
        remaining_count, number = self.in_class - self.down, self.limiting
        if not number or remaining_count < 1:
            return ""
        remaining = f"remaining {self.unit}" if self.down else self.unit
        every = number >= remaining_count and remaining_count > 1
        words = (
            f"all {remaining_count} {remaining}"
            if every
            else f"{number} of {remaining_count} {remaining}"
        )
        remarks = ["" if every else ", ".join(self.named), self.lost()]
        inside = "; ".join(text for text in remarks if text)
        return f"{words} ({inside})" if inside else words


@dataclass(frozen=True, slots=True)
class CausePart(JsonObject):
    """Cause with its part of a time.

    Attributes
    ----------
    kind : CauseKind
        Kind of the cause.
    what : str
        Detail: ``NVLink, GPU-NVSwitch``; empty if the kind is sufficient.
    time_ps : int
        Its part, the sum of its resources [ps].
    resources : tuple of CauseResource
        Resources in which it was found, the longest first; empty if it has no place.
    """

    kind: CauseKind
    what: str
    time_ps: int
    resources: tuple[CauseResource, ...] = ()

    @property
    def key(self) -> Key:
        """Return kind and detail."""
        return self.kind, self.what

    @property
    def label(self) -> str:
        """Name the cause without its place."""
        text = WORDS[self.kind][0]
        if self.kind in BANDWIDTHS:
            link, _, ends = self.what.partition(", ")
            return f"{link} {text}, {ends}" if ends else f"{link} {text}"
        return (
            f"{text}{',' if self.kind in APART else ''} {self.what}"
            if self.what
            else text
        )

    def words(self) -> str:
        """Name the cause, the number of limiting instances, and parts that are down."""
        if not self.resources:
            return self.label
        if self._is_named:
            down = self.resources[0].lost()
            return f"{self.label} ({down})" if down else self.label
        count = self.resources[0].count()
        return f"{self.label}, {count}" if count else self.label

    @property
    def _is_named(self) -> bool:
        """Return True if the detail is the place."""
        counted = (*BANDWIDTHS, CauseKind.MEMORY, CauseKind.CREDIT, CauseKind.RATE)
        return bool(self.what) and self.kind not in counted

    def parts(self) -> dict[PartKey, int]:
        """Return the time by resource and instance [ps]."""
        result = {
            (self.kind, self.what, resource.name, place.name): place.time_ps
            for resource in self.resources
            for place in resource.places
        }
        for resource in self.resources:
            if not resource.places:
                result[self.kind, self.what, resource.name, ""] = resource.time_ps
        return result or {(self.kind, self.what, "", ""): self.time_ps}


@dataclass(frozen=True, slots=True)
class VerdictCause(CausePart):
    """Cause with a share of a run's time.

    Attributes
    ----------
    saving_ps : int or None
        Saving by its remedy, found by re-simulation [ps]; None if not re-simulated.
    remedy : str
        Change that accelerates it, in the words of ``clusim what-if``; empty without such a change.
    settings : str
        Settings of NCCL that change it; of a training step, settings of the workload with their savings.
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

    saving_ps: int | None = None
    then: str = ""
    also: tuple[str, ...] = ()
    remedy: IfKnown[str] = ""
    settings: IfKnown[str] = ""
    share: Round6 = field(default=0.0, compare=False)

    @property
    def fix(self) -> str:
        """Remedy in the words of ``clusim what-if``, or its meaning: ``if all hidden``."""
        return self.remedy or WORDS[self.kind][1]


@dataclass(frozen=True, slots=True)
class Phase(JsonObject):
    """Phase of the run [ps] and its causes.

    `name` is ``start``, the kind of work of the middle, or ``tail``; training steps: `clusim.training.step_diagnosis`.

    Attributes
    ----------
    kind : CauseKind
        Kind of its dominant cause.
    what : str
        Detail of that cause.
    causes : tuple of CausePart
        Its causes, the longest first; their times add up to the phase.
    words : str
        It in a line.
    """

    KEYS = ("*", "words")

    name: str
    start_ps: int
    end_ps: int
    kind: CauseKind
    what: str = ""
    causes: tuple[CausePart, ...] = ()

    def words(self) -> str:
        """Name the phase's time and its dominant cause."""
        label = CausePart(self.kind, self.what, 0).label
        return f"{self.name} {format_time(self.end_ps - self.start_ps)}: {label}"


def wire_key(wire_class: str) -> Key:
    """Return kind and detail of traffic on the wires of a class: PCIe is one, however it branches."""
    kind, tier = kind_of(wire_class), tier_of(wire_class)
    if kind == "pcie":
        return CauseKind.PCIE, link_name(kind)
    at_nic = is_network(kind) and "nic" in tier.split("-")
    return CauseKind.NIC if at_nic else CauseKind.WIRE, link_class_name(wire_class)


def also_limiting(
    busy: Iterable[tuple[str, float]], bottleneck: Key
) -> tuple[str, ...]:
    """Return other links busy for at least `ALSO`, given class and busy share of wires."""
    shares: dict[Key, float] = {}
    for name, share in busy:
        if share >= ALSO:
            key = wire_key(name)
            shares[key] = max(shares.get(key, 0.0), share)
    shares.pop(bottleneck, None)
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        f"{CausePart(*key, 0).label} ({share:.1%} busy)" for key, share in ordered
    )


def divide_time(parts: Mapping[Any, int], total_ps: int) -> dict[Any, int]:
    """Divide a time in the proportions of `parts`, to the picosecond; parts of 0 are left out."""
    result: dict[Any, int] = {}
    before_ps = done_ps = 0
    all_ps = sum(parts.values())
    for key, ps in parts.items():
        before_ps += ps
        result[key] = before_ps * total_ps // all_ps - done_ps
        done_ps += result[key]
    return {key: ps for key, ps in result.items() if ps}


def sum_times(several: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    """Return the total time by key."""
    result: Counter[Any] = Counter()
    for parts in several:
        result.update(parts)
    return result


def by_cause(parts: Parts) -> dict[Key, int]:
    """Return the time by cause [ps]."""
    result: Counter[Key] = Counter()
    for (kind, what, *_), ps in parts.items():
        result[kind, what] += ps
    return result


def resources_of(
    parts: Parts, census: Callable[[Key, str], Census]
) -> dict[Key, tuple[CauseResource, ...]]:
    """Return the resources of every cause, the longest first; `census` counts the instances of one."""
    tree: dict[Key, dict[str, dict[str, int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for (kind, what, resource, place), ps in parts.items():
        if resource:
            tree[kind, what][resource][place] = ps
    return {
        key: tuple(
            sorted(
                (
                    CauseResource.of(name, times, census(key, name))
                    for name, times in rows.items()
                ),
                key=lambda row: (-row.time_ps, row.name),
            )
        )
        for key, rows in tree.items()
    }
