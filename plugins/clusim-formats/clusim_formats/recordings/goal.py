"""GOAL schedules of LogGOPSim and ATLAHS: computation, messages, dependencies of ranks.

Operations of a rank are ``calc T`` [ns], ``send Nb to R`` and ``recv Nb from R``, with ``tag``, ``cpu`` and ``nic``;
``a requires b`` lets `a` wait for the end of `b`, ``a irequires b`` for its start. Independent operations run
concurrently, but a cpu executes one calc at a time. A send of at most `EAGER_BYTES` is complete for its sender as soon
as it starts, as in LogGOPSim; on the wire it is transferred as in NCCL, when its receiver is ready. `goal_order`
matches sends and receives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from clusim.base.errors import InputError
from clusim.base.match import ANY, MatchCounts, MatchedEnd
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_EVENTS,
    PS_PER_NS,
    Event,
    EventKind,
    Recording,
)
from clusim.formats.recordings.source import Paths, head, lines, only_file
from clusim_formats.recordings.goal_binary import is_binary, read_binary
from clusim_formats.recordings.goal_order import (
    MAX_BYTES,
    MAX_NS,
    MAX_RANKS,
    GoalOp,
    GoalStep,
    Order,
    play,
)

EAGER_BYTES = 65_535
"""Largest message that does not block its sender [bytes]: LogGOPSim's default of ``S``."""

_RANKS = re.compile(r"num_ranks\s+([0-9]{1,9})")
_RANK = re.compile(r"rank\s+([0-9]{1,9})")
_NEEDS = re.compile(r"(\w+)\s+(i?requires)\s+(\w+)")
_CALC = re.compile(
    r"(?:(\w+)\s*:\s*)?calc\s+([0-9]{1,18})((?:\s+\w+\s+-?[0-9]{1,9})*)"
)
_MESSAGE = re.compile(
    r"(?:(\w+)\s*:\s*)?(send|recv)\s+([0-9]{1,15})b\s+(to|from)\s+(-?[0-9]{1,9})((?:\s+\w+\s+-?[0-9]{1,18})*)"
)
_COMMENT = re.compile(r"/\*.*?\*/")


class _Rank:
    """Operations of one rank during reading."""

    def __init__(self, number: int, where: str) -> None:
        self.number, self.where = number, where
        self.steps: list[GoalStep] = []
        self.labels: dict[str, int] = {}
        self.edges: list[tuple[int, str, str, str]] = []

    def add(self, step: GoalStep) -> None:
        """Append an operation."""
        if step.label:
            if step.label in self.labels:
                raise InputError(
                    f"{self.where}:{step.line}: label {step.label[:40]} occurs twice in rank {self.number}"
                )
            self.labels[step.label] = len(self.steps)
        self.steps.append(step)

    def close(self) -> None:
        """Resolve the labels, which may be defined after their use."""
        for line, later, how, earlier in self.edges:
            for label in (later, earlier):
                if label not in self.labels:
                    raise InputError(
                        f"{self.where}:{line}: rank {self.number} has no operation {label[:40]}"
                    )
            step = self.steps[self.labels[later]]
            (step.starts if how == "irequires" else step.needs).append(
                self.labels[earlier]
            )
        self.edges.clear()


def read(paths: Paths) -> Recording:
    """Read a GOAL file, text or binary; raise `InputError` with the line if it is invalid."""
    name = only_file(paths, "a GOAL schedule")
    beginning = head(name, 4096)
    if is_binary(beginning):
        return _Reader(name).binary()
    if b"\0" in beginning:
        raise InputError(f"{name}: binary data, but not a GOAL schedule of txt2bin")
    return _Reader(name).recording()


class _Reader:
    """State of reading one file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.ranks: dict[int, _Rank] = {}
        self.found = Recording("goal", name)
        self.plain = name.replace("{", "{{").replace("}", "}}")
        self.where = f"{self.plain}:{{line}}"

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
                self._operation(rank, line, text)
        if rank is not None:
            raise self._bad(
                line,
                f"rank {rank.number} has no closing '}}'; is the file complete?",
            )
        if not self.found.num_ranks:
            raise self._bad(
                line, "no num_ranks; a GOAL schedule begins with `num_ranks N`"
            )
        return self._finish(
            {number: self.ranks[number].steps for number in sorted(self.ranks)}
        )

    def binary(self) -> Recording:
        """Read a file of ``txt2bin``; its operations have numbers instead of lines."""
        self.where = f"{self.plain}: rank {{rank}} operation {{line}}"
        return self._finish(read_binary(self.name, self.found))

    def _bad(self, line: int, message: str) -> InputError:
        return InputError(f"{self.name}:{line}: {message}")

    def _outside(self, line: int, text: str) -> _Rank | None:
        """Read a statement between ranks; return the rank that begins."""
        count = _RANKS.fullmatch(text)
        if count is not None:
            if self.found.num_ranks or not 1 <= int(count[1]) <= MAX_RANKS:
                raise self._bad(
                    line, f"{text[:60]}: must be there once, with 1..{MAX_RANKS}"
                )
            self.found.num_ranks = int(count[1])
            return None
        begin = _RANK.fullmatch(text)
        if begin is None:
            raise self._bad(
                line, f"{text[:60]!r}: expected `num_ranks N` or `rank R {{`"
            )
        number = int(begin[1])
        if number >= self.found.num_ranks or number in self.ranks:
            problem = (
                "occurs twice"
                if number in self.ranks
                else f"num_ranks is {self.found.num_ranks}"
            )
            raise self._bad(line, f"rank {number}: {problem}")
        self.ranks[number] = _Rank(number, self.name)
        return self.ranks[number]

    def _operation(self, rank: _Rank, line: int, text: str) -> None:
        self.count += 1
        if self.count > MOST_EVENTS:
            raise self._bad(
                line,
                f"more than {MOST_EVENTS} operations and requires; use a shorter schedule",
            )
        needs = _NEEDS.fullmatch(text)
        if needs is not None:
            rank.edges.append((line, needs[1], needs[2], needs[3]))
            return
        calc = _CALC.fullmatch(text)
        if calc is not None:
            if int(calc[2]) > MAX_NS:
                raise self._bad(line, f"calc {calc[2]}: at most {MAX_NS} ns")
            step = GoalStep("compute", line, calc[1] or "", int(calc[2]))
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

    def _message(self, rank: _Rank, line: int, match: re.Match[str]) -> GoalStep:
        kind, word, peer = match[2], match[4], int(match[5])
        if word != ("to" if kind == "send" else "from"):
            raise self._bad(
                line,
                f"{kind} ... {word}: must be `send Nb to R` or `recv Nb from R`",
            )
        anyone = kind == "recv" and peer == ANY
        if not anyone and not 0 <= peer < self.found.num_ranks:
            raise self._bad(
                line,
                f"{kind} {word} {peer}: must be a rank of 0..{self.found.num_ranks - 1}",
            )
        if int(match[3]) > MAX_BYTES:
            raise self._bad(line, f"{kind} {match[3]}b: at most 1 TiB")
        event: EventKind = "send" if kind == "send" else "recv"
        step = GoalStep(event, line, match[1] or "", int(match[3]), peer)
        self._attributes(step, match[6])
        if step.tag < (ANY if kind == "recv" else 0):
            raise self._bad(
                line,
                f"tag {step.tag}: must be at least 0; -1 is any, for receives only",
            )
        return step

    def _attributes(self, step: GoalStep, text: str) -> None:
        words = text.split()
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name == "tag":
                step.tag = int(value)
            elif name == "cpu":
                step.cpu = int(value)
            else:
                self.found.skipped[f"attribute {name[:40]}"] += 1

    def _finish(self, steps: dict[int, list[GoalStep]]) -> Recording:
        result = self.found
        result.group("world", range(result.num_ranks))
        if not any(steps.values()):
            raise InputError(f"{self.name}: no operations to simulate")
        order = play(steps, EAGER_BYTES)
        if order.stuck is not None:
            order = play(steps, MAX_BYTES)
            result.assumed.append(
                f"with sends above {EAGER_BYTES} bytes that wait for their receivers the ranks wait for each other"
                " forever; no send waits"
            )
        if order.stuck is not None:
            step = order.step(order.stuck)
            operation = f"{step.kind if step.kind != 'compute' else 'calc'} {step.label[:40]}".strip()
            rank = order.stuck.rank
            place = self.where.format(rank=rank, line=step.line)
            raise InputError(
                f"{place}: {operation} of rank {rank} never gets done: operations wait for each other in a circle;"
                " remove a requires, or change the order of sends and receives"
            )
        _Events(self.where, result, order).write()
        return result


class _Events:
    """Converter of operations to events, in order of their start."""

    def __init__(self, where: str, recording: Recording, order: Order) -> None:
        self.where, self.recording, self.order = where, recording, order
        self.event_of: dict[GoalOp, int] = {}
        self.waits: dict[GoalOp, tuple[int, ...]] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.first_cpu: dict[int, int] = {}
        self.turns = 0

    def write(self) -> None:
        """Append all events."""
        number = self._numbers()
        alone = inside = 0
        for op in self.order.started:
            step = self.order.step(op)
            self.waits[op] = self._waits(op, step)
            if step.kind == "compute":
                self._calc(op, step)
            elif op in number:
                self._message(op, step, *number[op])
            else:
                inside += self._inside(op)
                alone += not self._inside(op)
                self.event_of[op] = ABSENT
        if self.turns:
            self.recording.assumed.append(
                f"calcs that share a cpu without a requires between them run in the order of readiness: {self.turns}"
            )
        ends = Counter(number.values())
        lonely = sum(count < 2 for count in ends.values())
        if lonely:
            self.recording.assumed.append(
                f"{lonely} messages have only one end; the other one is taken to be ready"
            )
        if inside:
            self.recording.assumed.append(
                f"sends and receives of a rank with itself need no time: {inside}"
            )
        if alone:
            self.recording.skipped["receives from any rank without a send"] = alone

    def _numbers(self) -> dict[GoalOp, tuple[int, int, int, int]]:
        """Return source, target, tag and sequence number of every message with known ends."""
        counts = MatchCounts()
        result: dict[GoalOp, tuple[int, int, int, int]] = {}
        sent = {send: recv for recv, send in self.order.match.items()}
        for op in self.order.started:
            step = self.order.step(op)
            if self._inside(op):
                continue
            if step.kind == "send":
                key = (op.rank, step.peer, step.tag)
            elif (
                step.kind == "recv"
                and op not in self.order.match
                and step.peer != ANY
            ):
                key = (step.peer, op.rank, max(0, step.tag))
            else:
                continue
            result[op] = (*key, counts.add(MatchedEnd(key, "send")))
            if op in sent:
                result[sent[op]] = result[op]
        return result

    def _inside(self, op: GoalOp) -> bool:
        """Return True if an operation is a message of a rank to itself."""
        step = self.order.step(op)
        send = self.order.match.get(op)
        return (
            step.kind != "compute" and (send.rank if send else step.peer) == op.rank
        )

    def _waits(self, op: GoalOp, step: GoalStep) -> tuple[int, ...]:
        """Return the events whose end an operation waits for.

        A wait for a start is replaced by the waits of the started operation, as is a wait for a non-blocking send.
        """
        result: list[int] = []
        for at in step.needs:
            other = GoalOp(op.rank, at)
            before = self.order.step(other)
            free = before.kind == "send" and before.size <= self.order.eager_bytes
            if self.event_of[other] == ABSENT and other in self.order.match:
                result += self.waits[self.order.match[other]]
            gone = free or self.event_of[other] == ABSENT
            result += self.waits[other] if gone else (self.event_of[other],)
        for at in step.starts:
            result += self.waits[GoalOp(op.rank, at)]
        return tuple(dict.fromkeys(result))

    def _calc(self, op: GoalOp, step: GoalStep) -> None:
        cpu = (op.rank, step.cpu)
        before = self.last.get(cpu)
        if before is not None and before not in self.waits[op]:
            self.turns += not self._follows(self.waits[op], before)
            self.waits[op] = (*self.waits[op], before)
        # Compute events share the GPU, so calcs of other cpus are delays to run concurrently.
        first = self.first_cpu.setdefault(op.rank, step.cpu) == step.cpu
        self.last[cpu] = self._add(
            op,
            step,
            "compute" if first else "delay",
            f"cpu {step.cpu}",
            duration_ps=step.size * PS_PER_NS,
        )

    def _add(
        self, op: GoalOp, step: GoalStep, kind: EventKind, stream: str, **fields: Any
    ) -> int:
        """Add the event of an operation; return its index."""
        self.event_of[op] = len(self.recording.events)
        name = step.label or ("calc" if step.kind == "compute" else step.kind)
        where = self.where.format(rank=op.rank, line=step.line)
        self.recording.events.append(
            Event(kind, op.rank, stream, name, self.waits[op], where=where, **fields)
        )
        return self.event_of[op]

    def _follows(self, waits: tuple[int, ...], before: int) -> bool:
        """Return True if `waits` already imply a wait for `before`, or after 100 events searched."""
        ancestors = list(waits)
        for at in ancestors:
            if at == before or len(ancestors) > 100:
                return True
            ancestors += [
                d
                for d in self.recording.events[at].deps
                if d >= before and d not in ancestors
            ]
        return False

    def _message(self, op: GoalOp, step: GoalStep, *key: int) -> None:
        source, target, tag, sequence = key
        self._add(
            op, step, step.kind, f"{step.kind} {op.at}", group=0, sequence=sequence, bytes=step.size,
            dtype="uint8", peer=target if step.kind == "send" else source, tag=tag,
        )  # fmt: skip


def _statements(name: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and statements without comments; braces are statements."""
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
