"""Record of a step: the operations of the running ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusim.base.match import MatchCounts, MatchedEnd, by_number, by_pair
from clusim.formats.recordings.model import (
    ABSENT,
    Event,
    Group,
    Recording,
    messages_of,
)
from clusim.programs.clock import HOST, Totals

UNEVEN_LAUNCH = 1 << 40
"""Number of the first launch of an uneven all-to-all; batches of messages have lower numbers."""


@dataclass(slots=True)
class RankRecord:
    """Operations of a rank in a step, its groups, and its time at the begin [ps].

    `splits` has the bytes sent to and received from each rank by uneven all-to-alls, by number of the operation.
    """

    rank: int
    events: list[Event]
    groups: list[Group]
    began_ps: int = 0
    splits: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


@dataclass(slots=True)
class RankResult:
    """Result of a rank: its work, the times of its steps and its virtual time [ps], the peak of its memory [bytes].

    `record` has the operations of its last step, or of a program without steps, if requested; `files` are the files of
    the program's modules.
    """

    totals: Totals
    steps: list[int]
    time_ps: int
    peak_bytes: int
    record: RankRecord | None = None
    files: list[str] = field(default_factory=list)


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
            result.events.append(
                Event("delay", rank, HOST, "begin", duration_ps=skew_ps)
            )
        firsts: list[int] = []
        for number, event in enumerate(record.events):
            firsts.append(len(result.events))
            deps = tuple(
                part for d in event.deps for part in range(firsts[d], firsts[d + 1])
            ) or ((start,) if skew_ps else ())
            group = numbers[event.group] if event.group >= 0 else ABSENT
            placed = replace(event, deps=deps, group=group)
            splits = record.splits.get(number, ())
            every = splits and records.keys() >= set(
                record.groups[event.group].ranks
            )
            if not every:
                result.events.append(placed)
                continue
            position = result.groups[group].ranks.index(rank)
            result.events += messages_of(
                replace(placed, bunch=UNEVEN_LAUNCH + event.sequence),
                position,
                splits,
            ) or [
                Event("delay", rank, event.stream, event.name, deps, duration_ps=0)
            ]
    if len(records) > 1:
        _complete(result, set(records))
    return result


def _complete(recording: Recording, running: set[int]) -> None:
    """Replace calls that are not in the step of all their running ranks by operations without time."""
    ends = {
        n: _end_of(recording, e)
        for n, e in enumerate(recording.events)
        if e.group >= 0
    }
    counts = MatchCounts()
    for end in ends.values():
        counts.add(end)
    present = [running.intersection(group.ranks) for group in recording.groups]
    for number, end in ends.items():
        event = recording.events[number]
        needed = (
            present[event.group] if event.kind == "collective" else ("send", "recv")
        )
        if counts.lone(end.key, needed):
            recording.events[number] = Event(
                "delay",
                event.rank,
                event.stream,
                event.name,
                event.deps,
                duration_ps=0,
            )


def _end_of(recording: Recording, event: Event) -> MatchedEnd:
    if event.kind == "collective":
        return by_number(event.group, event.sequence, event.rank)
    position = recording.groups[event.group].ranks.index(event.rank)
    return by_pair(
        (event.group, event.sequence), event.kind, position, event.peer, event.tag
    )
