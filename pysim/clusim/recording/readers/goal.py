"""Reads GOAL, the schedules of LogGOPSim and ATLAHS: computation and messages of every rank, and what waits for what.

A rank's operations are ``calc T`` [ns], ``send Nb to R`` and ``recv Nb from R``, with ``tag``, ``cpu`` and ``nic``;
``a requires b`` lets `a` wait for the end of `b`, ``a irequires b`` for its start. Independent operations run side by
side. A send of at most `EAGER_BYTES` is done for its own rank as soon as it starts, as there; a receive never waits for
the rank's own sends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from clusim.errors import InputError
from clusim.recording.model import ABSENT, Event, EventKind, Group, Recording
from clusim.recording.readers.source import Paths, lines, names_of

__all__ = ["EAGER_BYTES", "read"]

EAGER_BYTES = 65_535
"""Largest message whose sender does not wait for its receiver [bytes]: LogGOPSim's default of ``S``."""

MAX_RANKS = 1 << 17
MAX_NS = 10**15
MAX_BYTES = 2**40
PS_PER_NS = 1000

_RANKS = re.compile(r"num_ranks\s+([0-9]{1,9})")
_RANK = re.compile(r"rank\s+([0-9]{1,9})")
_NEEDS = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)")
_CALC = re.compile(r"(?:(\w+)\s*:\s*)?calc\s+([0-9]{1,18})((?:\s+\w+\s+-?[0-9]{1,9})*)")
_MESSAGE = re.compile(
    r"(?:(\w+)\s*:\s*)?(send|recv)\s+([0-9]{1,15})b\s+(to|from)\s+(-?[0-9]{1,9})((?:\s+\w+\s+-?[0-9]{1,18})*)"
)
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(slots=True)
class _Step:
    """An operation of a rank; `needs` and `starts` are the operations whose end and start it waits for."""

    kind: EventKind
    line: int
    label: str
    size: int = 0
    peer: int = ABSENT
    tag: int = 0
    cpu: int = 0
    needs: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


class _Rank:
    """The operations of one rank while they are read."""

    def __init__(self, number: int, where: str) -> None:
        self.number, self.where = number, where
        self.steps: list[_Step] = []
        self.labels: dict[str, int] = {}
        self.edges: list[tuple[int, str, str, str]] = []

    def add(self, step: _Step) -> None:
        """Append an operation."""
        if step.label:
            if step.label in self.labels:
                raise InputError(
                    f"{self.where}:{step.line}: label {step.label[:40]} is there twice in rank {self.number}"
                )
            self.labels[step.label] = len(self.steps)
        self.steps.append(step)

    def close(self) -> None:
        """Resolve the labels, which may come after their use."""
        for line, later, how, earlier in self.edges:
            for label in (later, earlier):
                if label not in self.labels:
                    raise InputError(
                        f"{self.where}:{line}: rank {self.number} has no operation {label[:40]}"
                    )
            step = self.steps[self.labels[later]]
            (step.starts if how == "irequires" else step.needs).append(self.labels[earlier])
        self.edges.clear()

    def order(self) -> list[int]:
        """Return the operations with all that wait after what they wait for, else as in the file."""
        waiting = [len(step.needs) + len(step.starts) for step in self.steps]
        wakes: list[list[int]] = [[] for _ in self.steps]
        for at, step in enumerate(self.steps):
            for other in (*step.needs, *step.starts):
                wakes[other].append(at)
        ready = [at for at, count in enumerate(waiting) if not count]
        heapify(ready)
        found = []
        while ready:
            at = heappop(ready)
            found.append(at)
            for other in wakes[at]:
                waiting[other] -= 1
                if not waiting[other]:
                    heappush(ready, other)
        if len(found) < len(self.steps):
            stuck = next(at for at, count in enumerate(waiting) if count)
            raise InputError(
                f"{self.where}:{self.steps[stuck].line}: operations of rank {self.number} wait for each other in a"
                " circle; remove a requires"
            )
        return found


def read(paths: Paths) -> Recording:
    """Read a GOAL text file; raises `InputError` that names the line if it makes no sense."""
    names = names_of(paths)
    if len(names) != 1:
        raise InputError(f"{names[1]}: a GOAL schedule is one file; give only {names[0]}")
    return _Reader(names[0]).recording()


class _Reader:
    """The state of reading one file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_ranks = 0
        self.ranks: dict[int, _Rank] = {}
        self.skipped: Counter[str] = Counter()

    def recording(self) -> Recording:
        """Read the file."""
        rank: _Rank | None = None
        line = 0
        for line, text in _statements(self.name):
            if text == "{":
                continue
            if text == "}":
                if rank is None:
                    raise self._bad(line, "'}' without a rank")
                rank.close()
                rank = None
            elif rank is None:
                rank = self._outside(line, text)
            else:
                self._inside(rank, line, text)
        if rank is not None:
            raise self._bad(line, f"rank {rank.number} has no closing '}}'; is the file complete?")
        if not self.num_ranks:
            raise self._bad(line, "no num_ranks; a GOAL schedule begins with `num_ranks N`")
        return self._finish()

    def _bad(self, line: int, what: str) -> InputError:
        return InputError(f"{self.name}:{line}: {what}")

    def _outside(self, line: int, text: str) -> _Rank | None:
        """Read a statement between ranks; returns the rank that begins."""
        count = _RANKS.fullmatch(text)
        if count is not None:
            if self.num_ranks or not 1 <= int(count[1]) <= MAX_RANKS:
                raise self._bad(line, f"{text[:60]}: must be there once, with 1..{MAX_RANKS}")
            self.num_ranks = int(count[1])
            return None
        begin = _RANK.fullmatch(text)
        if begin is None:
            raise self._bad(line, f"{text[:60]!r}: expected `num_ranks N` or `rank R {{`")
        number = int(begin[1])
        if number >= self.num_ranks or number in self.ranks:
            what = "is there twice" if number in self.ranks else f"num_ranks is {self.num_ranks}"
            raise self._bad(line, f"rank {number}: {what}")
        self.ranks[number] = _Rank(number, self.name)
        return self.ranks[number]

    def _inside(self, rank: _Rank, line: int, text: str) -> None:
        needs = _NEEDS.fullmatch(text)
        if needs is not None:
            rank.edges.append((line, needs[1], needs[2], needs[3]))
            return
        calc = _CALC.fullmatch(text)
        if calc is not None:
            if int(calc[2]) > MAX_NS:
                raise self._bad(line, f"calc {calc[2]}: at most {MAX_NS} ns")
            step = _Step("compute", line, calc[1] or "", int(calc[2]))
            self._attributes(step, calc[3])
            rank.add(step)
            return
        message = _MESSAGE.fullmatch(text)
        if message is None:
            raise self._bad(
                line,
                f"{text[:60]!r}: expected calc T, send Nb to R, recv Nb from R or A requires B",
            )
        rank.add(self._message(rank, line, message))

    def _message(self, rank: _Rank, line: int, found: re.Match[str]) -> _Step:
        kind, word, peer = found[2], found[4], int(found[5])
        if word != ("to" if kind == "send" else "from"):
            raise self._bad(line, f"{kind} ... {word}: must be `send Nb to R` or `recv Nb from R`")
        if not 0 <= peer < self.num_ranks or peer == rank.number:
            raise self._bad(
                line, f"{kind} {word} {peer}: must be another rank of 0..{self.num_ranks - 1}"
            )
        if int(found[3]) > MAX_BYTES:
            raise self._bad(line, f"{kind} {found[3]}b: at most 1 TiB")
        event: EventKind = "send" if kind == "send" else "recv"
        step = _Step(event, line, found[1] or "", int(found[3]), peer)
        self._attributes(step, found[6])
        if step.tag < 0:
            raise self._bad(line, f"tag {step.tag}: receives of any tag are not supported")
        return step

    def _attributes(self, step: _Step, text: str) -> None:
        words = text.split()
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name == "tag":
                step.tag = int(value)
            elif name == "cpu":
                step.cpu = int(value)
            else:
                self.skipped[f"attribute {name[:40]}"] += 1

    def _finish(self) -> Recording:
        found = Recording("goal", self.name, self.num_ranks)
        found.groups.append(Group("world", tuple(range(self.num_ranks))))
        messages: Counter[tuple[str, int, int, int]] = Counter()
        beside = 0
        for number in sorted(self.ranks):
            beside += self._events(found, self.ranks[number], messages)
        if not found.events:
            raise InputError(f"{self.name}: no rank does anything; nothing can be simulated")
        lonely = sum(
            abs(count - messages["recv" if kind == "send" else "send", src, dst, tag])
            for (kind, src, dst, tag), count in list(messages.items())
            if kind == "send" or not messages["send", src, dst, tag]
        )
        if lonely:
            found.assumed.append(
                f"{lonely} messages have only one end; the other one is taken to be ready"
            )
        if beside:
            found.assumed.append(
                f"{beside} ranks have calcs of one cpu in several chains; those that nothing orders run side by side"
            )
        found.skipped = dict(self.skipped)
        return found

    def _events(
        self, found: Recording, rank: _Rank, messages: Counter[tuple[str, int, int, int]]
    ) -> bool:
        """Append the events of a rank; returns whether calcs of one cpu are independent."""
        event_of: dict[int, int] = {}
        waits: dict[int, tuple[int, ...]] = {}
        streams = _Streams()
        sequences = self._sequences(rank, messages)
        for at in rank.order():
            step = rank.steps[at]
            deps = _waits(rank, at, waits)
            waits[at] = deps
            event_of[at] = len(found.events)
            found.events.append(
                Event(
                    step.kind,
                    rank.number,
                    streams.of(at, deps, step),
                    step.label or step.kind,
                    deps=tuple(event_of[other] for other in deps),
                    duration_ps=step.size * PS_PER_NS if step.kind == "compute" else ABSENT,
                    group=ABSENT if step.kind == "compute" else 0,
                    sequence=sequences.get(at, 0),
                    bytes=0 if step.kind == "compute" else step.size,
                    dtype="uint8",
                    peer=step.peer,
                    tag=step.tag,
                    where=f"{self.name}:{step.line}",
                )
            )
        return streams.beside

    def _sequences(
        self, rank: _Rank, messages: Counter[tuple[str, int, int, int]]
    ) -> dict[int, int]:
        """Return which message of its pair and tag every send and recv is, in the order of the file."""
        found = {}
        for at, step in enumerate(rank.steps):
            if step.kind == "compute":
                continue
            pair = (rank.number, step.peer) if step.kind == "send" else (step.peer, rank.number)
            key = (step.kind, *pair, step.tag)
            found[at] = messages[key]
            messages[key] += 1
        return found


def _waits(rank: _Rank, at: int, waits: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the operations whose end an operation waits for.

    Who waits for a start waits for what that one waits for; so does who waits for a send that does not block.
    """
    step = rank.steps[at]
    found: list[int] = []
    for other in step.needs:
        before = rank.steps[other]
        free = before.kind == "send" and (before.size <= EAGER_BYTES or step.kind == "recv")
        found += waits[other] if free else (other,)
    for other in step.starts:
        found += waits[other]
    return tuple(dict.fromkeys(found))


class _Streams:
    """Puts operations that follow each other on one stream, and independent ones on several."""

    def __init__(self) -> None:
        self.last: dict[int, str] = {}
        self.count = 0
        self.beside = False
        self._cpus: dict[int, set[str]] = {}

    def of(self, at: int, deps: tuple[int, ...], step: _Step) -> str:
        """Return the stream of an operation, that of the latest it waits for if nothing follows it there yet."""
        name = next((self.last.pop(other) for other in reversed(deps) if other in self.last), "")
        if not name:
            name = str(self.count)
            self.count += 1
        self.last[at] = name
        if step.kind == "compute":
            own = self._cpus.setdefault(step.cpu, set())
            own.add(name)
            self.beside = self.beside or len(own) > 1
        return name


def _statements(name: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and statements; braces are statements; comments are left out."""
    commented = False
    for line, raw in lines(name):
        text = raw
        if commented:
            end = text.find("*/")
            if end < 0:
                continue
            text, commented = text[end + 2 :], False
        text = _COMMENT.sub(" ", text)
        start = text.find("/*")
        if start >= 0:
            text, commented = text[:start], True
        text = text.split("//", 1)[0].split("#", 1)[0]
        for part in re.split(r"([{};])", text):
            statement = part.strip()
            if statement and statement != ";":
                yield line, statement
