"""Layer tables of ASTRA-sim and SimAI, as the work of one rank in a training step.

A layer has computation and communication in three parts: forward, input gradient and weight gradient. `LayerTable`
reads the file and adds its work to a `RankStep`, which is repeated for all ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS, pause_collector
from clusim.base.terms.operations import OPERATIONS
from clusim.formats.recordings.model import (
    MOST_BYTES,
    PS_PER_NS,
    Event,
    EventKind,
    Recording,
    group_of,
)
from clusim.formats.recordings.source import lines

MAX_NS = 10**15
MOST_LAYER_EVENTS = 1_000_000
"""Maximum number of events of all ranks, and of steps of one rank.

With more events, rank 0 represents all ranks.
"""

MAX_LAYERS = 1_000_000
COLUMNS = 12
"""Columns of a layer: its name, an unused number, three per part, and the update."""

FORWARD, INPUT, WEIGHT = range(3)
_PARTS = ("forward", "input gradient", "weight gradient")

_OPERATIONS = {item.astra: item.name for item in OPERATIONS.values() if item.astra}

Strides = Mapping[str, tuple[int, int]]
"""Role of groups -> stride between the ranks of a group, and number of its ranks."""


class RankStep:
    """Events of one rank, in order.

    Attributes
    ----------
    events : list of Event
        Events of rank 0; the stream of a collective is the role of its groups.
    now : tuple of int
        Events that the next computation or communication waits for.
    calls : Counter
        Number of collectives by role.
    most : int or None
        Requested number of calls; later events are omitted.
    """

    kind = ""

    def __init__(self, name: str, limit: int | None) -> None:
        self.name, self.most = name, limit
        self.found = Recording(self.kind, name)
        self.events: list[Event] = []
        self.now: tuple[int, ...] = ()
        self.calls: Counter[str] = Counter()

    def bad(self, line: int, message: str) -> InputError:
        """Return an error that names the line."""
        return InputError(f"{self.name}:{line}: {message}")

    def add(
        self, kind: EventKind, stream: str, name: str, line: int, **fields: Any
    ) -> int:
        """Add an event of a line that waits for `now`; return its index."""
        if kind == "collective":
            fields["sequence"] = self.calls[stream]
            self.calls[stream] += 1
        fields = {"deps": self.now, "where": f"{self.name}:{line}", **fields}
        self.events.append(Event(kind, 0, stream, name, **fields))
        return len(self.events) - 1

    def recording(self, num_ranks: int, strides: Strides) -> Recording:
        """Return the recording in which all ranks execute the events.

        Above `MOST_LAYER_EVENTS` events it contains only those of rank 0.
        """
        if num_ranks > MOST_RANKS:
            raise InputError(f"{self.name}: {num_ranks} ranks; at most {MOST_RANKS}")
        calls = (
            at for at, event in enumerate(self.events) if event.kind == "collective"
        )
        steps = self.events
        if self.most is not None:
            steps = steps[
                : next(islice(calls, self.most - 1, None), len(steps) - 1) + 1
            ]
        if len(steps) < len(self.events):
            self.found.assume(
                f"the first {self.most} calls of each rank, of {self.calls.total()}"
            )
        result = self.found
        result.num_ranks, result.alike = (
            num_ranks,
            num_ranks * len(steps) > MOST_LAYER_EVENTS,
        )
        with pause_collector():
            _repeat(result, steps, strides)
        return result.finish()


def _repeat(recording: Recording, steps: Sequence[Event], strides: Strides) -> None:
    """Add the events of every rank, or only of rank 0 if `recording.alike`."""
    numbers: dict[tuple[str, int], int] = {}
    for rank in range(1 if recording.alike else recording.num_ranks):
        first = len(recording.events)
        for event in steps:
            group = event.group
            if event.kind == "collective":
                ranks = group_of(*strides[event.stream], rank)
                key = (event.stream, ranks[0])
                if key not in numbers:
                    numbers[key] = recording.group(event.stream, ranks)
                group = numbers[key]
            deps = tuple(first + d for d in event.deps)
            recording.events.append(
                Event(
                    event.kind, rank, event.stream, event.name, deps, duration_ps=event.duration_ps, flops=event.flops,
                    group=group, sequence=event.sequence, operation=event.operation, bytes=event.bytes,
                    dtype=event.dtype, root=event.root, where=event.where,
                )
            )  # fmt: skip


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
    parts: tuple[LayerPart, ...]
    update_ns: int
    policy: str


class LayerTable(RankStep, ABC):
    """A file of layers, and the events of one rank.

    Attributes
    ----------
    words : list of str
        The first line: the parallelism, and its parameters.
    layers : list of TableLayer
    strides : mapping
        Groups by role; communication of other roles is skipped.
    gathers_parts : bool
        True if the size of an all-gather is the input of one rank, and not its output.
    """

    gathers_parts = False

    def __init__(self, name: str, limit: int | None) -> None:
        super().__init__(name, limit)
        self.strides: Strides = {}
        self._same: dict[LayerPart, LayerPart] = {}
        self._updates = 0
        rows = (
            (line, words) for line, text in lines(name) if (words := text.split())
        )
        _, self.words = next(rows, (0, []))
        line, second = next(rows, (0, []))
        if (
            len(second) != 1
            or not second[0].isdecimal()
            or not 1 <= len(second[0]) <= 9
        ):
            raise self.bad(
                line or 2,
                f"{' '.join(second)[:40]!r}: the second line must be the number of layers",
            )
        declared = int(second[0])
        if not 1 <= declared <= MAX_LAYERS:
            raise self.bad(line, f"{declared} layers; must be 1..{MAX_LAYERS}")
        self.layers: list[TableLayer] = []
        for line, words in rows:
            if len(self.layers) == declared:
                self.found.skipped[
                    f"lines after the {declared} layers of the second line"
                ] += 1
                continue
            self.layers.append(self._layer(line, words))
        if len(self.layers) < declared:
            raise InputError(
                f"{name}: the second line declares {declared} layers and {len(self.layers)} follow; is the file cut?"
            )

    def _layer(self, line: int, words: list[str]) -> TableLayer:
        if len(words) not in (COLUMNS, COLUMNS + 1):
            raise self.bad(
                line,
                f"{len(words)} columns; a layer has {COLUMNS}: name, -1, three times computing,"
                " communication and size (forward, input gradient, weight gradient), update",
            )
        parts = tuple(self._part(line, words[at : at + 3]) for at in (2, 5, 8))
        update = self._number(line, "update", words[11], MAX_NS)
        return TableLayer(words[0], line, parts, update, "".join(words[COLUMNS:]))

    def _part(self, line: int, words: list[str]) -> LayerPart:
        compute = self._number(line, "computing", words[0], MAX_NS)
        size = self._number(line, "size", words[2], MOST_BYTES)
        word = words[1].upper()
        operation, _, suffix = word.partition("_")
        part = LayerPart(compute)
        if operation not in _OPERATIONS:
            if word != "NONE":
                self.found.skipped[f"communications {word[:40]}"] += 1
        elif size < 1:
            self.found.skipped["communications of 0 bytes"] += 1
        else:
            part = LayerPart(compute, _OPERATIONS[operation], suffix, size, word)
        return self._same.setdefault(part, part)  # layers repeat

    def _number(self, line: int, field: str, text: str, limit: int) -> int:
        try:
            value = float(text) if len(text) < 40 else float("nan")
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not 0 <= value <= limit:
            raise self.bad(
                line, f"{field} {text[:40]!r}: must be a number from 0 to {limit}"
            )
        return int(text) if text.isdecimal() else round(value)

    def parameter(self, limit: int, *keys: str) -> int | None:
        """Return a parameter ``key: N`` of the first line; None if missing."""
        for at, word in enumerate(self.words):
            key, colon, value = word.partition(":")
            if key not in keys:
                continue
            words_after = self.words[at + 1 :]
            value = value or (
                words_after[1]
                if not colon and words_after[:1] == [":"]
                else (words_after or [""])[0]
            )
            text = value.removesuffix(".0")
            if not text.isdecimal() or len(text) > 15 or int(text) > limit:
                raise self.bad(1, f"{key}: {value[:40]!r}: must be 0..{limit}")
            return int(text)
        return None

    @abstractmethod
    def role(self, layer: TableLayer, part: int) -> str:
        """Return the role of a communication's groups; empty if unknown."""

    def compute(self, layer: TableLayer, part: int) -> None:
        """Add a computation after the current dependencies."""
        duration_ps = layer.parts[part].compute_ns * PS_PER_NS
        if duration_ps > 0:
            name = f"{layer.name} {_PARTS[part]}"
            self.now = (
                self._add(
                    layer, "compute", "compute", name, duration_ps=duration_ps
                ),
            )

    def communicate(self, layer: TableLayer, part: int) -> int | None:
        """Start a communication; return its last event, None without a call."""
        comm, role = layer.parts[part], self.role(layer, part)
        if not comm.operation:
            return None
        _, ranks = self.strides.get(role, (0, 0))
        if ranks < 2:
            reason = (
                "in groups of one rank" if ranks else f"without a group: {comm.word}"
            )
            self.found.skipped[f"communications {reason}"] += 1
            return None
        gathered = self.gathers_parts and comm.operation == "all_gather"
        name, size = (
            f"{layer.name} {_PARTS[part]}",
            comm.size * (ranks if gathered else 1),
        )
        end = self._add(
            layer, "collective", role, name, operation=comm.operation, bytes=size
        )
        if not layer.update_ns:
            return end
        stream, name = f"update {self._updates}", f"{layer.name} update"
        self._updates += 1
        duration_ps = layer.update_ns * PS_PER_NS
        return self._add(
            layer, "delay", stream, name, deps=(end,), duration_ps=duration_ps
        )

    def _add(
        self,
        layer: TableLayer,
        kind: EventKind,
        stream: str,
        name: str,
        **fields: Any,
    ) -> int:
        if len(self.events) >= MOST_LAYER_EVENTS:
            raise self.bad(
                layer.line,
                f"more than {MOST_LAYER_EVENTS} steps of a rank; use fewer layers or micro-batches",
            )
        return self.add(kind, stream, name, layer.line, **fields)

    def wait(self, end: int | None) -> None:
        """Let all later events wait for the end of a communication."""
        if end is None:
            return
        passed = set(self.events[end].deps)
        passed.update(*(self.events[d].deps for d in self.events[end].deps))
        self.now = (*(n for n in self.now if n not in passed), end)

    def run(self, layer: TableLayer, part: int, *, wait: bool = False) -> int | None:
        """Compute a part and start its communication; return its end if it is not waited for."""
        self.compute(layer, part)
        end = self.communicate(layer, part)
        if wait:
            self.wait(end)
        return None if wait else end

    def transformer(self, checkpoints: set[int], restarts: set[int]) -> None:
        """Run the blocking communication of input gradients, with recomputation of layers.

        Parameters
        ----------
        checkpoints, restarts : set of int
            Layers with stored inputs, and layers before whose backward pass the forward pass is repeated from the
            last checkpoint.
        """
        for layer in self.layers:
            self.run(layer, FORWARD, wait=True)
        for at in range(len(self.layers) - 1, -1, -1):
            if at in restarts:
                start = max((c for c in checkpoints if c <= at), default=None)
                if start is None:
                    raise self.bad(
                        1,
                        f"layer {at} is in checkpoint_initiates, and no checkpoint is at or before it",
                    )
                for layer in self.layers[start:at]:
                    self.run(layer, FORWARD, wait=True)
            self.run(self.layers[at], INPUT, wait=True)
            self.run(self.layers[at], WEIGHT)
