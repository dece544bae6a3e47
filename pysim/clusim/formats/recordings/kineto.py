"""Traces of the PyTorch profiler (Kineto): kernels and collectives of ranks on streams.

One file is one rank. GPU activities are kept, with the gaps between them; host activities only determine the
dependencies of kernels and the calls of collectives. A recorded duration already includes the effect of concurrent
kernels, so it is replayed unchanged. `kineto_trace` reads a file, `kineto_calls` its collectives.

**Dependencies** With ``enable_cuda_sync_events`` the profiler records every wait of one stream for another. Without
it, host calls are recorded without their streams. Then a collective waits for the last kernel launched before it (as
in ProcessGroupNCCL), and calls of ``cudaStreamWaitEvent`` outside NCCL are the waits for collectives, in order, if
their numbers agree. Otherwise an idle stream that continues when a collective ends is assumed to wait for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS, pause_collector
from clusim.base.terms.operations import OF_NCCL, ROOTED
from clusim.formats.recordings.kineto_calls import Resolver, number_calls
from clusim.formats.recordings.kineto_trace import (
    MOST_KERNELS,
    KinetoCall,
    Span,
    Trace,
    external,
    read_trace,
)
from clusim.formats.recordings.model import Event, EventKind, Recording, messages_of
from clusim.formats.recordings.source import Paths, streams

_TOLERANCE = 1_000_000
"""Longest overlap that is ignored [ps]: times of old releases are in whole microseconds."""

_SLACK = 50_000_000
"""Maximum delay after a collective for a kernel on an idle stream to depend on it [ps]."""

_MOST_LANES = 8
_MOST_STREAMS = 16

Needs = dict[int, set[int]]
"""Span -> spans that it waits for; most have no entry."""


def lanes(spans: Sequence[Span]) -> tuple[list[str], Needs, int]:
    """Assign spans that overlap on one stream (graphs, programmatic launches) to lanes.

    Returns
    -------
    names, deps, crowded : list of str, dict, int
        Stream per span, with a suffix if the stream was busy; dependencies between lanes of one stream; number of
        spans without a free lane.
    """
    last: dict[str, list[int]] = {}
    names: list[str] = []
    deps: Needs = {}
    crowded = 0
    for at, span in enumerate(spans):
        ends = last.setdefault(span.stream, [])
        done = [
            lane for lane, other in enumerate(ends) if _before(spans[other], span)
        ]
        if len(done) > 1:
            deps[at] = {ends[lane] for lane in done[1:]}
        lane = done[0] if done else len(ends)
        if lane == _MOST_LANES:
            lane, crowded = 0, crowded + 1
        elif lane == len(ends):
            ends.append(at)
            deps[at] = _latest(spans, names, span, at)
        ends[lane] = at
        names.append(span.stream if not lane else f"{span.stream}+{lane}")
    return names, deps, crowded


def _latest(
    spans: Sequence[Span], names: Sequence[str], span: Span, at: int
) -> set[int]:
    """Return the nearest span before `at` on its stream that ended before its start."""
    for other in range(at - 1, max(-1, at - 4096), -1):
        if names[other].partition("+")[0] == span.stream and _before(
            spans[other], span
        ):
            return {other}
    return set()


def _before(one: Span, other: Span) -> bool:
    return one.end <= other.start + _TOLERANCE


class _Waits:
    """Dependencies between the streams of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.spans = trace, trace.spans
        self.collectives = [at for at, span in enumerate(self.spans) if span.nccl]
        self.launches: dict[str, list[tuple[int, int]]] = {}
        for at, span in enumerate(self.spans):
            self.launches.setdefault(span.stream, []).append((span.launch, at))
        for launched in self.launches.values():
            launched.sort()
        talking = {self.spans[at].stream for at in self.collectives}
        self.quiet = [stream for stream in self.launches if stream not in talking]

    def find(self) -> tuple[Needs, int]:
        """Return the dependencies, and the number inferred from times."""
        pairs = [*self._recorded_waits(), *self._synchronised_spans()]
        guessed: list[tuple[int, int]] = []
        if self.collectives and not self.trace.told:
            leaving = self._host_order()
            if leaving is None:
                leaving = guessed = list(self._idle())
            pairs += [*self._entering(), *leaving]
        result: Needs = {}
        for at, other in pairs:
            if other < at and _before(self.spans[other], self.spans[at]):
                result.setdefault(at, set()).add(other)
        return result, len(guessed)

    def _first(self, stream: str, since: int) -> int | None:
        """Return the first span launched on a stream after a call."""
        launched = self.launches.get(stream, [])
        at = bisect_left(launched, (since, -1))
        return launched[at][1] if at < len(launched) else None

    def _last(self, stream: str, until: int) -> int | None:
        """Return the last span launched on a stream before a call."""
        at = bisect_left(self.launches.get(stream, []), (until, -1)) - 1
        return self.launches[stream][at][1] if at >= 0 else None

    def _recorded_waits(self) -> Iterator[tuple[int, int]]:
        for waiting, since, on, until in self.trace.told:
            after, before = self._first(waiting, since), self._last(on, until)
            if after is not None and before is not None and waiting != on:
                yield after, before

    def _synchronised_spans(self) -> Iterator[tuple[int, int]]:
        """Yield spans launched after a host synchronisation, with the spans that it waited for."""
        for since, stream, until in sorted(self.trace.syncs):
            before = [
                self._last(on, until)
                for on in ([stream] if stream else self.launches)
            ]
            earlier = [at for at in before if at is not None]
            earlier = sorted(earlier, key=lambda at: self.spans[at].end)[
                -_MOST_STREAMS:
            ]
            for waiting in self.launches:
                after = self._first(waiting, since)
                if after is not None:
                    yield from (
                        (after, at)
                        for at in earlier
                        if self.spans[at].stream != waiting
                    )

    def _entering(self) -> Iterator[tuple[int, int]]:
        """Yield collectives with the last kernel launched before each, on the calling stream."""
        computing = {span.stream for span in self.spans if span.kernel}.intersection(
            self.quiet
        )
        for at in self.collectives:
            launch = self.spans[at].launch
            if not launch:
                continue
            before = [self._last(stream, launch) for stream in sorted(computing)]
            earlier = [o for o in before if o is not None and self.spans[o].launch]
            if earlier:
                yield at, max(earlier, key=lambda other: self.spans[other].launch)

    def _host_order(self) -> list[tuple[int, int]] | None:
        """Return the waits for collectives by the order of host calls; None if they do not match."""
        spans = self.spans
        inside = {external(spans[at].args) for at in self.collectives} - {0}
        calls = sorted(
            launch for launch, of in self.trace.host_waits if of not in inside
        )
        done = sorted(self.collectives, key=lambda at: spans[at].launch)
        if not inside or len(calls) != len(done):
            return None
        if any(
            call <= spans[at].launch for call, at in zip(calls, done, strict=True)
        ):
            return None
        result: list[tuple[int, int]] = []
        for call, at in zip(calls, done, strict=True):
            after = [self._first(stream, call) for stream in self.quiet]
            later = [other for other in after if other is not None]
            if later:
                result.append(
                    (min(later, key=lambda other: spans[other].launch), at)
                )
        return result

    def _idle(self) -> Iterator[tuple[int, int]]:
        """Yield spans that started when a collective ended, on an idle stream."""
        spans = self.spans
        streams = {
            stream: sorted(at for _, at in self.launches[stream])
            for stream in self.quiet
        }
        starts = {
            stream: [spans[at].start for at in run]
            for stream, run in streams.items()
        }
        for at in self.collectives:
            end = spans[at].end
            for stream, run in streams.items():
                first = bisect_left(starts[stream], end)
                if first == len(run) or starts[stream][first] > end + _SLACK:
                    continue
                if not first or spans[run[first - 1]].end < end:
                    yield run[first], at


KIND = "kineto"

_MOST_PS = 1 << 60
"""Longest recording: 13 days [ps]."""

_CLOCKS_PS = 100_000_000
"""Largest clock difference that is not corrected [ps].

NCCL's collectives end on all ranks within microseconds.
"""

_TOGETHER = (
    *(name for name in OF_NCCL if name not in (*ROOTED, "sendrecv")),
    "barrier",
)

Spread = dict[tuple[int, int], dict[int, tuple[int, ...]]]


def read(paths: Paths) -> Recording:
    """Read the traces of one job, one file per rank.

    Files may be plain or compressed, or in a directory or an archive.

    Raises
    ------
    InputError
        A file is not such a trace, or two files claim the same rank.
    """
    with pause_collector():
        return _read(paths)


def _read(paths: Paths) -> Recording:
    result = Recording(KIND, "")
    traces: list[Trace] = []
    for file in streams(paths, lambda name: ".json" in name):
        traces.append(read_trace(file, len(traces), result.skipped))
        if sum(len(trace.spans) for trace in traces) > MOST_KERNELS:
            raise InputError(
                f"{file.name}: more than {MOST_KERNELS} kernels; record fewer steps"
            )
    traces.sort(key=lambda trace: trace.rank)
    _apart(traces)
    result.name, result.num_ranks = traces[0].name, _num_ranks(traces)
    result.nccl_version = next(
        (trace.version for trace in traces if trace.version), ""
    )
    for note in (note for trace in traces for note in trace.notes):
        result.assume(note)
    _resolve(result, traces)
    _one_clock(result, traces)
    _from_zero(traces)
    spread = _uneven(result, traces)
    guessed = sum(_Writer(result, trace, spread).write() for trace in traces)
    _say(result, traces, guessed)
    if len(traces) == result.num_ranks and all(trace.host for trace in traces):
        result.hosts = [trace.host for trace in traces]
    return result.finish()


def _apart(traces: Sequence[Trace]) -> None:
    """Raise `InputError` for two files of one rank."""
    owner: dict[int, str] = {}
    for trace in traces:
        other = owner.setdefault(trace.rank, trace.name)
        if other != trace.name:
            raise InputError(
                f"{trace.name}: is rank {trace.rank}, like {other}; use one file per rank"
            )


def _num_ranks(traces: Sequence[Trace]) -> int:
    ends = ((trace.rank, *map(max, trace.groups.values())) for trace in traces)
    world = max(trace.world for trace in traces)
    world = max(world, *(rank + 1 for ranks in ends for rank in ranks))
    if world > MOST_RANKS:
        raise InputError(f"{traces[0].name}: {world} ranks; at most {MOST_RANKS}")
    return world


def _resolve(recording: Recording, traces: Sequence[Trace]) -> None:
    """Find and number the calls of each trace by span."""
    for trace in traces:
        trace.resolved = Resolver(trace, recording).calls()
    highest = (max(group.ranks) + 1 for group in recording.groups)
    recording.num_ranks = max([recording.num_ranks, *highest])
    calls = [
        (t.rank, call)
        for t in traces
        for at in sorted(t.resolved)
        for call in t.resolved[at]
    ]
    for note in number_calls(calls, recording.groups):
        recording.assume(note)


def _one_clock(recording: Recording, traces: Sequence[Trace]) -> None:
    """Align clocks by the ends of collectives, if they clearly differ."""
    ends: dict[tuple[int, int], dict[int, int]] = {}
    for which, trace in enumerate(traces):
        for at, call in (
            (at, call) for at, calls in trace.resolved.items() for call in calls
        ):
            if call.operation in _TOGETHER:
                ends.setdefault((call.group, call.number), {})[which] = trace.spans[
                    at
                ].end
    keys: dict[int, list[tuple[int, int]]] = {}
    for key, per in ends.items():
        for which in per if len(per) > 1 else ():
            keys.setdefault(which, []).append(key)
    shift: dict[int, int] = {}
    waiting = list(range(len(traces)))
    while waiting:
        offsets = ((which, _offset(which, ends, keys, shift)) for which in waiting)
        clocks = ((which, offset) for which, offset in offsets if offset is not None)
        which, offset = next(clocks, (waiting[0], 0))
        shift[which] = offset if abs(offset) > _CLOCKS_PS else 0
        waiting.remove(which)
    moved = [which for which, offset in shift.items() if offset]
    for which in moved:
        for span in traces[which].spans:
            span.start -= shift[which]
    if moved:
        max_shift = max(abs(shift[which]) for which in moved)
        recording.assumed.append(
            f"clocks of {len(moved)} ranks were up to {max_shift / 1e9:.3f} ms off, by the ends of their collectives;"
            " set right"
        )


def _offset(
    which: int,
    ends: dict[tuple[int, int], dict[int, int]],
    keys: dict[int, list[tuple[int, int]]],
    shift: dict[int, int],
) -> int | None:
    """Return the lead of a clock over aligned clocks [ps]; None without a common collective."""
    off: list[int] = []
    for key in keys.get(which, [])[:256]:
        other = next((o for o in ends[key] if o in shift), None)
        if other is not None:
            off.append(ends[key][which] - (ends[key][other] - shift[other]))
    return round(median(off)) if off else None


def _from_zero(traces: Sequence[Trace]) -> None:
    """Shift times to begin at 0; files count from 1970 or from a base per file."""
    first = min(span.start for trace in traces for span in trace.spans)
    for trace in traces:
        for span in trace.spans:
            span.start -= first
            if span.end > _MOST_PS:
                raise InputError(
                    f"{trace.name}: kernels are {span.end / 3.6e15:.0f} hours apart; do the files belong together?"
                )


def _uneven(recording: Recording, traces: Sequence[Trace]) -> Spread:
    """Return the bytes that every rank sends in all-to-alls with uneven splits.

    Only calls recorded by all ranks of the group are included.
    """
    sent: Spread = {}
    uneven: set[tuple[int, int]] = set()
    for trace in traces:
        for call in (call for calls in trace.resolved.values() for call in calls):
            if call.splits:
                uneven.add((call.group, call.number))
            if call.operation == "alltoall":
                size = len(recording.groups[call.group].ranks)
                even = (call.bytes // size,) * size
                sent.setdefault((call.group, call.number), {})[trace.rank] = (
                    call.splits or even
                )
    complete = {
        key
        for key in uneven
        if len(sent[key]) == len(recording.groups[key[0]].ranks)
    }
    if len(complete) < len(uneven):
        recording.assumed.append(
            "uneven all-to-alls of partly recorded groups are assumed even, with the largest buffer"
        )
    return {key: sent[key] for key in complete}


class _Writer:
    """Converter of the spans of one rank to events."""

    def __init__(self, recording: Recording, trace: Trace, spread: Spread) -> None:
        self.found, self.trace, self.spread = recording, trace, spread
        self.first = array(
            "q", [len(recording.events)]
        )  # first event of each span, and of the next

    def write(self) -> int:
        """Append the events of the rank; return the number of dependencies inferred from times."""
        spans = self.trace.spans
        names, same, crowded = lanes(spans)
        waits, guessed = _Waits(self.trace).find()
        if crowded:
            self.found.assumed.append(
                f"{self.trace.name}: {crowded} kernels overlap with many on their stream; run one after the other"
            )
        for at, span in enumerate(spans):
            before = sorted({*same.get(at, ()), *waits.get(at, ())})
            event = Event(
                "compute", self.trace.rank, names[at], span.name[:80],
                tuple(number for other in before for number in range(*self.first[other : other + 2])),
                span.start, span.length, where=f"{self.trace.name}: event {span.at}", sms=1,
            )  # fmt: skip
            self.found.events += self._events(at, event)
            self.first.append(len(self.found.events))
        return guessed

    def _events(self, at: int, event: Event) -> list[Event]:
        """Return the event of a span: `event`, or its collective or messages."""
        calls = self.trace.resolved.get(at, [])
        if not calls:
            return [event]
        first = calls[0]
        if first.operation in ("send", "recv"):
            return [self._message(event, call, at) for call in calls]
        if (first.group, first.number) in self.spread:
            return self._parts(event, first, at)
        return [
            replace(
                event, kind="collective", group=first.group, sequence=first.number, operation=first.operation,
                bytes=first.bytes, dtype=first.dtype, redop=first.redop, root=first.root,
            )
        ]  # fmt: skip

    def _message(self, event: Event, call: KinetoCall, at: int) -> Event:
        kind: EventKind = "send" if call.operation == "send" else "recv"
        return replace(
            event, kind=kind, group=call.group, sequence=call.number, bytes=call.bytes, dtype=call.dtype,
            peer=call.peer, bunch=at,
        )  # fmt: skip

    def _parts(self, event: Event, call: KinetoCall, at: int) -> list[Event]:
        """Return the messages of an uneven all-to-all, without the rank's message to itself."""
        ranks, sent = (
            self.found.groups[call.group].ranks,
            self.spread[call.group, call.number],
        )
        position, message = ranks.index(event.rank), self._message(event, call, at)
        splits = sent[event.rank], [sent[rank][position] for rank in ranks]
        return messages_of(message, position, splits) or [
            replace(event, duration_ps=0)
        ]


def _say(recording: Recording, traces: Sequence[Trace], guessed: int) -> None:
    """Add the assumptions about dependencies and recorded times."""
    if guessed:
        recording.assumed.append(
            f"kernels that wait for collectives are not recorded: {guessed} that began as one ended are assumed to wait"
            " (record with enable_cuda_sync_events)"
        )
    communicates = any(trace.resolved for trace in traces)
    if communicates and len(traces) < recording.num_ranks:
        recording.assumed.append(
            "measured times of collectives include waiting for ranks that did not record"
        )
