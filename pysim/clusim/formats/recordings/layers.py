"""Layer tables of ASTRA-sim and SimAI, as the work of one rank in a training step.

A layer has computation and communication in three parts: forward, input gradient and weight gradient. `LayerTable`
reads the file, `RankStep` collects the work of a rank, and `recording` repeats it for all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import isfinite
from typing import Protocol

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS, uncollected
from clusim.base.terms.operations import OPERATIONS
from clusim.formats.recordings.common import Groups, finish
from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.formats.recordings.source import lines

MAX_NS = 10**15
MAX_BYTES = 2**44
MOST_LAYER_EVENTS = 1_000_000
"""Maximum number of events of all ranks, and of steps of one rank.

With more events, rank 0 represents all ranks.
"""

MAX_LAYERS = 1_000_000
PS_PER_NS = 1000
COLUMNS = 12
"""Columns of a layer: its name, an unused number, three per part, and the update."""

_OPERATIONS = {item.astra: item.name for item in OPERATIONS.values() if item.astra}


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Computation [ns], then communication: operation (empty if absent), group, size [bytes]."""

    compute_ns: int
    operation: str = ""
    suffix: str = ""
    size: int = 0
    word: str = ""


@dataclass(frozen=True, slots=True)
class TableLayer:
    """Line of the table; `update_ns` follows each communication, `policy` is its parallelism."""

    name: str
    line: int
    forward: LayerPart
    input_grad: LayerPart
    weight_grad: LayerPart
    update_ns: int
    policy: str = ""


class LayerTable:
    """A file of layers.

    Attributes
    ----------
    words : list of str
        The first line: the parallelism, and its parameters.
    layers : list of TableLayer
    """

    def __init__(self, name: str, *, policies: bool = False) -> None:
        self.name = name
        self.skipped: Counter[str] = Counter()
        self._same: dict[LayerPart, LayerPart] = {}
        rows = _rows(name)
        _, self.words = next(rows, (0, []))
        line, second = next(rows, (0, []))
        if len(second) != 1 or not second[0].isdecimal() or not 1 <= len(second[0]) <= 9:
            raise InputError(
                f"{name}:{line or 2}: {' '.join(second)[:40]!r}: the second line must be the number of layers"
            )
        declared = int(second[0])
        if not 1 <= declared <= MAX_LAYERS:
            raise InputError(f"{name}:{line}: {declared} layers; must be 1..{MAX_LAYERS}")
        self.layers: list[TableLayer] = []
        for line, words in rows:
            if len(self.layers) == declared:
                self.skipped[f"lines after the {declared} layers of the second line"] += 1
                continue
            self.layers.append(self._layer(line, words, policies=policies))
        if len(self.layers) < declared:
            raise InputError(
                f"{name}: the second line declares {declared} layers and {len(self.layers)} follow; is the file cut?"
            )

    def _layer(self, line: int, words: list[str], *, policies: bool) -> TableLayer:
        if len(words) not in (COLUMNS, COLUMNS + 1):
            raise InputError(
                f"{self.name}:{line}: {len(words)} columns; a layer has {COLUMNS}: name, -1, three times computing,"
                " communication and size (forward, input gradient, weight gradient), update"
            )
        parts = [self._once(self._part(line, words[at : at + 3])) for at in (2, 5, 8)]
        update = self._number(line, "update", words[11], MAX_NS)
        policy = words[12] if len(words) > COLUMNS else ""
        if policies and not policy:
            raise InputError(
                f"{self.name}:{line}: no parallelism in column {COLUMNS + 1}; HYBRID_CUSTOMIZED has one per layer"
            )
        return TableLayer(words[0], line, parts[0], parts[1], parts[2], update, policy)

    def _once(self, part: LayerPart) -> LayerPart:
        """Return one shared object for equal parts, since layers repeat."""
        return self._same.setdefault(part, part)

    def _part(self, line: int, words: list[str]) -> LayerPart:
        compute = self._number(line, "computing", words[0], MAX_NS)
        size = self._number(line, "size", words[2], MAX_BYTES)
        word = words[1].upper()
        operation, _, suffix = word.partition("_")
        if operation not in _OPERATIONS:
            if word != "NONE":
                self.skipped[f"communications {word[:40]}"] += 1
            return LayerPart(compute)
        if size < 1:
            self.skipped["communications of 0 bytes"] += 1
            return LayerPart(compute)
        return LayerPart(compute, _OPERATIONS[operation], suffix, size, word)

    def _number(self, line: int, what: str, text: str, most: int) -> int:
        try:
            value = float(text) if len(text) < 40 else float("nan")
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not 0 <= value <= most:
            raise InputError(
                f"{self.name}:{line}: {what} {text[:40]!r}: must be a number from 0 to {most}"
            )
        return int(text) if text.isdecimal() else round(value)


def _rows(name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and words of non-empty lines."""
    for line, text in lines(name):
        words = text.split()
        if words:
            yield line, words


def parameter(table: LayerTable, keys: Sequence[str], most: int) -> int | None:
    """Return a parameter ``key: N`` of the first line; None if missing."""
    for at, word in enumerate(table.words):
        key, colon, value = word.partition(":")
        if key not in keys:
            continue
        rest = table.words[at + 1 :]
        value = value or (rest[1] if not colon and rest[:1] == [":"] else (rest or [""])[0])
        text = value.removesuffix(".0")
        if not text.isdecimal() or len(text) > 15 or int(text) > most:
            raise InputError(f"{table.name}:1: {key}: {value[:40]!r}: must be 0..{most}")
        return int(text)
    return None


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """Event of every rank; `deps` are indices of templates, `role` selects the rank's group."""

    kind: str
    stream: str
    name: str
    line: int
    deps: tuple[int, ...]
    duration_ns: int = 0
    role: str = ""
    operation: str = ""
    bytes: int = 0
    sequence: int = 0
    root: int = ABSENT
    flops: int = 0


class LayerSource(Protocol):
    """File, with its entries that were not understood."""

    name: str
    skipped: Counter[str]


@dataclass
class RankStep:
    """Steps of one rank, in order.

    Attributes
    ----------
    sizes : mapping
        Role -> ranks in each of its groups; other roles are skipped.
    gathers_parts : bool
        True if the size of an all-gather is the input of one rank, and not its output.
    most : int or None
        Requested number of calls; later events are omitted.
    """

    table: LayerSource
    sizes: Mapping[str, int]
    gathers_parts: bool
    most: int | None = None
    events: list[EventTemplate] = field(default_factory=list)
    now: tuple[int, ...] = ()
    calls: Counter[str] = field(default_factory=Counter)
    updates: Iterator[int] = field(default_factory=count)

    def compute(self, layer: TableLayer, part: LayerPart, what: str) -> None:
        """Add a computation after the current dependencies."""
        if part.compute_ns > 0:
            name = f"{layer.name} {what}"
            self.now = (
                self._add(
                    EventTemplate("compute", "compute", name, layer.line, self.now, part.compute_ns)
                ),
            )

    def communicate(self, layer: TableLayer, part: LayerPart, what: str, role: str) -> int | None:
        """Start a communication of the groups `role`; return its last event, None without a call."""
        if not part.operation:
            return None
        ranks = self.sizes.get(role, 0)
        if ranks < 2:
            reason = "in groups of one rank" if ranks else f"without a group: {part.word}"
            self.table.skipped[f"communications {reason}"] += 1
            return None
        parts = self.gathers_parts and part.operation == "all_gather"
        call = self._add(
            EventTemplate(
                *("collective", role, f"{layer.name} {what}", layer.line, self.now),
                role=role,
                operation=part.operation,
                bytes=part.size * (ranks if parts else 1),
                sequence=self.calls[role],
            )
        )
        self.calls[role] += 1
        if not layer.update_ns:
            return call
        stream = f"update {next(self.updates)}"
        name = f"{layer.name} update"
        return self._add(EventTemplate("delay", stream, name, layer.line, (call,), layer.update_ns))

    def wait(self, end: int | None) -> None:
        """Let all later steps wait for the end of a communication."""
        if end is None:
            return
        passed = set(self.events[end].deps)
        passed.update(*(self.events[d].deps for d in self.events[end].deps))
        self.now = (*(n for n in self.now if n not in passed), end)

    def wanted(self) -> list[EventTemplate]:
        """Return the steps up to the last requested call."""
        calls = (at for at, event in enumerate(self.events) if event.kind == "collective")
        if self.most is None:
            return self.events
        last = next(islice(calls, self.most - 1, None), len(self.events) - 1)
        return self.events[: last + 1]

    def _add(self, event: EventTemplate) -> int:
        if len(self.events) >= MOST_LAYER_EVENTS:
            raise InputError(
                f"{self.table.name}:{event.line}: more than {MOST_LAYER_EVENTS} steps of a rank; use fewer layers or"
                " micro-batches"
            )
        self.events.append(event)
        return len(self.events) - 1


def recording(
    kind: str,
    step: RankStep,
    num_ranks: int,
    group_of: Callable[[str, int], Sequence[int]],
    assumed: list[str],
) -> Recording:
    """Return the recording in which all ranks execute `step`.

    Above `MOST_LAYER_EVENTS` events it contains only those of rank 0. `group_of` maps a role and a rank to a group.
    """
    name = step.table.name
    if num_ranks > MOST_RANKS:
        raise InputError(f"{name}: {num_ranks} ranks; at most {MOST_RANKS}")
    steps = step.wanted()
    if len(steps) < len(step.events):
        assumed.append(f"the first {step.most} calls of each rank, of {step.calls.total()}")
    groups = Groups()
    result = Recording(kind, name, num_ranks, assumed=assumed)
    result.alike = num_ranks * len(steps) > MOST_LAYER_EVENTS
    with uncollected():
        _repeat(result, steps, group_of, groups)
    return finish(result, groups, step.table.skipped)


def _repeat(
    found: Recording,
    steps: Sequence[EventTemplate],
    group_of: Callable[[str, int], Sequence[int]],
    groups: Groups,
) -> None:
    """Add the steps of every rank, or only those of rank 0 if `found.alike`."""
    numbers: dict[tuple[str, int], int] = {}
    for rank in range(1 if found.alike else found.num_ranks):
        first = len(found.events)
        for event in steps:
            group = -1
            if event.kind == "collective":
                ranks = group_of(event.role, rank)
                key = (event.role, ranks[0])
                if key not in numbers:
                    numbers[key] = groups.add(event.role, ranks)
                group = numbers[key]
            found.events.append(_event(event, rank, first, group, found.name))


def _event(event: EventTemplate, rank: int, first: int, group: int, name: str) -> Event:
    deps = tuple(first + d for d in event.deps)
    where = f"{name}:{event.line}"
    if event.kind == "collective":
        return Event(
            "collective",
            rank,
            event.stream,
            event.name,
            deps,
            group=group,
            sequence=event.sequence,
            operation=event.operation,
            bytes=event.bytes,
            root=event.root,
            where=where,
        )
    return Event(
        "compute" if event.kind == "compute" else "delay",
        rank,
        event.stream,
        event.name,
        deps,
        duration_ps=ABSENT if event.flops else event.duration_ns * PS_PER_NS,
        flops=event.flops,
        dtype="bfloat16" if event.flops else "float32",
        where=where,
    )
