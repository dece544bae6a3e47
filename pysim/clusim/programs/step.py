"""Simulation of a recorded step: kernels and collectives with shared SMs and wires.

**Model** If one rank represents all, its kernels and collectives share its SMs, and its collectives wires
(`clusim.replays.representative`). A step with several communicators, or of several running ranks, is simulated with all
ranks, as packets, unless it is large. Ranks begin a step at the times at which they ended the previous one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

from clusim.base.errors import InputError
from clusim.base.match import MatchCounts, MatchedEnd, by_number, by_pair
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_REPEATED,
    Event,
    Group,
    Recording,
    messages_of,
    tile,
)
from clusim.jobs.peers import split_of
from clusim.jobs.times import Times, shared_answers
from clusim.lowering import QUICK
from clusim.programs.clock import HOST, IssuedCall, Totals
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.replays.representative import Representative, played, representative
from clusim.simulation.request import Request

UNEVEN_LAUNCH = 1 << 40
"""Number of the first launch of an uneven all-to-all; batches of messages have lower numbers."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step.

    Attributes
    ----------
    alone_ps, time_ps : int
        Time without and with mutual disturbance of kernels and collectives [ps].
    whole : bool
        All ranks were simulated.
    apart : bool
        Several communicators were taken to share no wires, because the step is too large.
    """

    alone_ps: int
    time_ps: int
    whole: bool = False
    apart: bool = False


@dataclass(slots=True)
class RankRecord:
    """Operations of a rank in a step, its groups, and its times at the begin and the end [ps].

    `splits` has the bytes sent to and received from each rank by uneven all-to-alls, by number of the operation.
    """

    rank: int
    events: list[Event]
    groups: list[Group]
    began_ps: int = 0
    ended_ps: int = 0
    splits: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


@dataclass(slots=True)
class RankResult:
    """Result of a rank: its work, its steps, its virtual time [ps] and the peak of its memory [bytes].

    `rest` has the operations after the last step, if requested; `files` are the files of the program's modules.
    """

    totals: Totals
    steps: list[tuple[int, StepTime]]
    time_ps: int
    peak_bytes: int
    rest: RankRecord | None = None
    files: list[str] = field(default_factory=list)


class Steps:
    """Times of calls and steps of a job.

    Parameters
    ----------
    request : ReplayRequest
        System and NCCL.
    per_node : int
        Ranks per node, on its first GPUs.
    """

    def __init__(self, request: ReplayRequest, num_ranks: int, per_node: int) -> None:
        assert request.topology is not None
        self.request, self.num_ranks, self.per_node = request, num_ranks, per_node
        setup = request.setup(request.topology, request.version, request.env)
        job = Recording("torch", "program", num_ranks)
        self.machine: Representative = replace(representative(job, request, setup), size=per_node)
        nodes = machines_of(setup.fabric)
        self._gpus = [gpu for node in nodes for gpu in node[:per_node]]
        asked = request.nodes, request.env, request.version, str(request.faults), per_node
        self.identity = (*setup.identity, *asked)
        self.times = Times(QUICK, shared_answers())

    def time_of(self, call: IssuedCall) -> int:
        """Return the time of a call on its ranks, concurrent with the calls of all peer groups [ps].

        Messages and groups without peer groups are simulated in isolation.
        """
        if call.splits:
            # All ranks are as slow as an even exchange of the larger buffer.
            parts = max(1, -(-call.bytes // len(call.ranks)))
            call = replace(call, splits=(), bytes=parts * len(call.ranks), dtype="uint8")
        if call.peer < 0:
            call = replace(call, ranks=tile(call.ranks, 0) or call.ranks, number=0)
        else:
            # Both ends are one transfer, independent of its tag.
            ends = tuple(sorted((call.ranks[call.root], call.ranks[call.peer])))
            call = IssuedCall("sendrecv", call.bytes, ends, call.dtype)
        question = ("program call", self.identity, replace(call, where="", tag=0))
        return self.times.stored(question, partial(self._isolated, call))

    def _isolated(self, call: IssuedCall) -> int:
        event = Event(
            "collective", 0, operation=call.operation, bytes=call.bytes,
            dtype=call.dtype, redop=call.redop, root=call.root, where=f"torch.distributed {call.operation}",
        )  # fmt: skip
        try:
            split_of(call.ranks, self.machine.size)
            regular = call.operation != "sendrecv"
        except InputError:
            regular = False
        if regular:
            group = Group(f"group of {len(call.ranks)}", call.ranks)
            return self.machine.time(group, event).time_ps
        assert self.request.topology is not None
        setup = self.request.setup(self.request.topology, self.request.version, self.request.env)
        asked = Request(
            *(
                replace(setup, ranks=tuple(sorted(self._gpus[r] for r in call.ranks))),
                call.operation,
                call.bytes,
            ),
            dtype=call.dtype,
            redop=call.redop,
        )
        return self.times.kernel(asked).time_ps

    def simulate(self, records: Mapping[int, RankRecord], of: Sequence[int]) -> StepTime:
        """Return the time of a step; equal steps are simulated once.

        Parameters
        ----------
        records : dict
            Record of each running rank.
        of : sequence of int
            Running rank that represents each rank.
        """
        recording = recording_of(records, of)
        recording.hosts = [str(rank // self.per_node) for rank in range(self.num_ranks)]
        if not recording.events:
            return StepTime(0, 0)
        question = ("program step", self.identity, self.num_ranks, _digest(recording))
        first = min(record.began_ps for record in records.values())
        alone_ps = max(record.ended_ps for record in records.values()) - first

        def simulate() -> tuple[Any, ...]:
            several = len(records) > 1
            return astuple(
                self._of_several(recording, alone_ps) if several else self._of_one(recording)
            )

        return StepTime(*self.times.stored(question, simulate))

    def _of_one(self, recording: Recording) -> StepTime:
        """Return the time of a step of one rank that represents all."""
        groups = {event.group for event in recording.events if event.kind == "collective"}
        job = replace(recording, events=list(recording.events), alike=False)
        small = len(recording.events) * self.num_ranks <= MOST_REPEATED
        whole = len(groups) > 1 and small and len(job.finish().unrecorded) == self.num_ranks - 1
        alone = played(recording, self.machine, joint=not whole)
        time_ps = self._replayed(job) if whole else alone.time_ps
        return StepTime(alone.least_ps, time_ps, whole=whole)

    def _of_several(self, recording: Recording, alone_ps: int) -> StepTime:
        """Return the time of a step of several running ranks."""
        running = len({event.rank for event in recording.events})
        if len(recording.events) * self.num_ranks // running <= MOST_REPEATED:
            recording.finish()
        elif len(recording.events) > MOST_REPEATED:
            return StepTime(alone_ps, alone_ps, apart=True)
        return StepTime(alone_ps, self._replayed(recording), whole=True)

    def _replayed(self, job: Recording) -> int:
        asked = replace(self.request, gap="none", granularity=QUICK)
        return replay_recording(job, asked).total_ps


def recording_of(records: Mapping[int, RankRecord], of: Sequence[int]) -> Recording:
    """Return the operations of the running ranks in a step as a recording.

    Ranks that begin later than the first wait. A call that some of its ranks issue in another step lasts zero time. An
    uneven all-to-all is messages if all its ranks run, and otherwise even with the larger buffer.
    """
    result = Recording("torch", "step", len(of), representatives=tuple(of))
    first_ps = min((record.began_ps for record in records.values()), default=0)
    for rank, record in sorted(records.items()):
        numbers = [result.group(group.name, group.ranks) for group in record.groups]
        start = len(result.events)
        skew_ps = record.began_ps - first_ps
        if skew_ps:
            result.events.append(Event("delay", rank, HOST, "begin", duration_ps=skew_ps))
        firsts: list[int] = []
        for number, event in enumerate(record.events):
            firsts.append(len(result.events))
            deps = tuple(part for d in event.deps for part in range(firsts[d], firsts[d + 1])) or (
                (start,) if skew_ps else ()
            )
            group = numbers[event.group] if event.group >= 0 else ABSENT
            placed = replace(event, deps=deps, group=group)
            splits = record.splits.get(number, ())
            every = splits and records.keys() >= set(record.groups[event.group].ranks)
            if not every:
                result.events.append(placed)
                continue
            position = result.groups[group].ranks.index(rank)
            result.events += messages_of(
                replace(placed, bunch=UNEVEN_LAUNCH + event.sequence), position, splits
            ) or [Event("delay", rank, event.stream, event.name, deps, duration_ps=0)]
    if len(records) > 1:
        _complete(result, set(records))
    return result


def _complete(recording: Recording, running: set[int]) -> None:
    """Replace calls that are not in the step of all their running ranks by operations without time."""
    ends = {n: _end_of(recording, e) for n, e in enumerate(recording.events) if e.group >= 0}
    counts = MatchCounts()
    for end in ends.values():
        counts.add(end)
    present = [running.intersection(group.ranks) for group in recording.groups]
    for number, end in ends.items():
        event = recording.events[number]
        needed = present[event.group] if event.kind == "collective" else ("send", "recv")
        if counts.lone(end.key, needed):
            recording.events[number] = Event(
                "delay", event.rank, event.stream, event.name, event.deps, duration_ps=0
            )


def _end_of(recording: Recording, event: Event) -> MatchedEnd:
    if event.kind == "collective":
        return by_number(event.group, event.sequence, event.rank)
    own = recording.groups[event.group].ranks.index(event.rank)
    return by_pair((event.group, event.sequence), event.kind, own, event.peer, event.tag)


def _digest(recording: Recording) -> str:
    """Return the digest of all that a simulation reads of a recording."""
    events = [replace(event, where="") if event.where else event for event in recording.events]
    read = events, recording.groups, recording.representatives
    return hashlib.sha256(repr(read).encode()).hexdigest()
