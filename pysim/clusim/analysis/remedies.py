"""Remedies of a run: changes of its image that remove a cause or halve it, in the words of ``clusim what-if``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction

from clusim.analysis.critical import Critical, Traced
from clusim.analysis.whatif import REPAIRS, Change, is_in_image, repair_change
from clusim.base.records import dataclass
from clusim.base.terms.links import kind_of
from clusim.results.cause_kinds import WHAT_IF, CauseKind
from clusim.results.causes import Key, wire_key


@dataclass(frozen=True, slots=True)
class Remedy:
    """Change to a run's image that removes a cause or halves it.

    Attributes
    ----------
    words : str
        The change in the words of ``clusim what-if``; empty without such words.
    change : Change
        The change.
    keys : tuple of Key
        The causes, the longest first; the first is the bottleneck if the change saves most.
    estimate_ps : int
        Saving by the critical path [ps].
    most_ps : int
        Limit of the saving by the busy time of the fullest server [ps].
    """

    words: str
    change: Change
    keys: tuple[Key, ...]
    estimate_ps: int
    most_ps: int


@dataclass(slots=True)
class OnPath:
    """Elements of a cause on the path."""

    wires: set[int] = field(default_factory=set)
    endpoints: set[int] = field(default_factory=set)
    rivals: set[int] = field(default_factory=set)


LEAST_PART = 0.002
"""Least part of the critical path of a cause with a simulated remedy, unless its servers are `HALF_FULL`."""

HALF_FULL = 0.5


Changes = dict[tuple[str, Change], list[Key]]
"""Changes of an image in words, each with the causes that it removes or halves."""


def remedies_of(
    run: Critical, sums: Mapping[Key, int], changes: Changes
) -> list[Remedy]:
    """Return the changes that may shorten a run, in descending order of their estimates."""
    time_ps = run.traced.result.time_ps
    full = {
        words
        for one in run.servers.classes
        if one.busy >= HALF_FULL
        for words in one.remedies
    }
    result = []
    for (words, change), keys in changes.items():
        longest = sorted(keys, key=lambda key: (-sums.get(key, 0), key))
        is_repair = change.what in REPAIRS
        estimate_ps = sum(sums.get(key, 0) for key in keys) // (
            1 if is_repair else 2
        )
        if estimate_ps < LEAST_PART * time_ps and words not in full:
            continue
        repaired = change.wires if is_repair else frozenset[int]()
        most_ps = max(0, time_ps - int(run.servers.least_ps(words, repaired)))
        limits = min(estimate_ps, most_ps), most_ps
        result.append(Remedy(words, change, tuple(longest), *limits))
    return sorted(
        result, key=lambda one: (-one.estimate_ps, -one.most_ps, one.words)
    )


def faster_hardware(traced: Traced, found: Mapping[Key, OnPath]) -> Changes:
    """Return the changes that double the speed of hardware, each with the causes that it halves."""
    network, changes = traced.network, Changes()
    for kind, words in WHAT_IF.items():
        change = Change(words.removesuffix(" x2"), Fraction(2))
        if is_in_image(network.image, change):
            keys = [key for key in found if key[0] is kind]
            changes[words, change] = keys or [(kind, _DETAILS.get(kind, ""))]
    busy = traced.result.wires.counters["busy_ps"]
    of_links: dict[str, set[int]] = defaultdict(set)
    for wire, name in enumerate(network.classes):
        of_links[kind_of(name)].add(wire)
    for link, wires in of_links.items():
        top = max(wires, key=lambda wire: int(busy[wire]))
        if busy[top]:
            keys = list(
                dict.fromkeys(wire_key(network.classes[w]) for w in sorted(wires))
            )
            keys = [key for key in keys if key in found] or [
                wire_key(network.classes[top])
            ]
            changes[f"{link} x2", Change("wires", Fraction(2), frozenset(wires))] = (
                keys
            )
    return changes


WITHOUT_RATE_CONTROL = "--policy sender=none", Change("uncontrolled", Fraction(1))
"""Remedy of flows that are held by their policy."""

SHORTER_TIMEOUTS = WHAT_IF[CauseKind.TIMEOUT], Change("timeout", Fraction(2))
"""Remedy of NICs that wait for timeouts."""

_DETAILS = {CauseKind.MEMORY: "of GPUs"}
"""Detail of a cause that is not on the critical path."""


def repair_of(run: Critical, key: Key, entry: OnPath) -> tuple[str, Change] | None:
    """Return the change that removes a fault, a slow rank, rate control or other collectives; None for other causes."""
    (kind, what), network = key, run.traced.network
    if kind is CauseKind.RATE:
        return WITHOUT_RATE_CONTROL
    if kind is CauseKind.FAULT:
        return f"{what} repaired", repair_change(
            network.wires, network.classes, entry.wires
        )
    if kind is CauseKind.STRAGGLER:
        slow = Change("straggler", Fraction(1), endpoints=frozenset(entry.endpoints))
        return f"{what} repaired", slow
    if kind is CauseKind.CONTENTION and run.charger.rivals is not None:
        tasks = run.charger.rivals.tasks_of(frozenset(entry.rivals))
        return "", Change("without", Fraction(1), tasks=tasks)
    return None
