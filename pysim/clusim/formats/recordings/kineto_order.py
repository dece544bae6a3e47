"""What waits for what on one GPU, as far as a trace of the PyTorch profiler shows it.

With ``enable_cuda_sync_events`` the profiler records every wait of a stream for another. Without it the calls of the
host are there, but not their streams: then a collective waits for the last kernel launched before it (as
ProcessGroupNCCL does), and calls of ``cudaStreamWaitEvent`` outside of NCCL's are the waits for the collectives in
their order, if there are as many. Where not even that is so, a stream that was idle and goes on when a collective ends
waited for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from clusim.formats.recordings.kineto_trace import Span, Trace, external

_TOLERANCE = 1_000_000
"""Times of old releases are whole microseconds: what overlaps by less, does not [ps]."""

_SLACK = 50_000_000
"""A kernel that starts at most so long after a collective ended, on an idle stream, waited for it [ps]."""

_MOST_LANES = 8
_MOST_STREAMS = 16

Launches = dict[str, list[tuple[int, int]]]
Needs = dict[int, set[int]]
"""The spans that a span waits for; most wait for none."""


def lanes(spans: Sequence[Span]) -> tuple[list[str], Needs, int]:
    """Tell spans apart that overlap on one stream (graphs, programmatic launches).

    Returns
    -------
    names, deps, crowded : list of str, dict, int
        Per span its stream, with a suffix if the stream was busy; the spans of the same stream but another lane that
        some follow; how many found no free lane.
    """
    last: dict[str, list[int]] = {}
    names: list[str] = []
    deps: Needs = {}
    crowded = 0
    for at, span in enumerate(spans):
        own = last.setdefault(span.stream, [])
        done = [lane for lane, other in enumerate(own) if _before(spans[other], span)]
        if len(done) > 1:
            deps[at] = {own[lane] for lane in done[1:]}
        if done:
            lane = done[0]
        elif len(own) < _MOST_LANES:
            lane = len(own)
            own.append(at)
            deps[at] = _latest(spans, names, span, at)
        else:
            lane, crowded = 0, crowded + 1
        own[lane] = at
        names.append(span.stream if not lane else f"{span.stream}+{lane}")
    return names, deps, crowded


def _latest(spans: Sequence[Span], names: Sequence[str], span: Span, at: int) -> set[int]:
    """Return the nearest span before `at` on its stream that had ended."""
    for other in range(at - 1, max(-1, at - 4096), -1):
        if names[other].partition("+")[0] == span.stream and _before(spans[other], span):
            return {other}
    return set()


def _before(one: Span, other: Span) -> bool:
    return one.end <= other.start + _TOLERANCE


def waits(trace: Trace, collectives: Sequence[int]) -> tuple[Needs, int]:
    """Return what spans wait for on other streams, and how many waits were only concluded from times.

    Parameters
    ----------
    collectives : sequence of int
        Positions of what NCCL ran, in order of their starts.
    """
    spans = trace.spans
    deps: Needs = {}
    launches: Launches = {}
    for at, span in enumerate(spans):
        launches.setdefault(span.stream, []).append((span.launch, at))
    for own in launches.values():
        own.sort()
    for at, other in (*_told(trace, launches), *_synced(trace, launches)):
        deps.setdefault(at, set()).add(other)
    guessed: list[tuple[int, int]] = []
    if collectives and not trace.told:
        for at, other in _entering(spans, collectives, launches):
            deps.setdefault(at, set()).add(other)
        leaving = _host_order(trace, collectives, launches)
        if leaving is None:
            leaving = guessed = list(_idle(spans, collectives))
        for at, other in leaving:
            deps.setdefault(at, set()).add(other)
    kept = {
        at: {o for o in own if o < at and _before(spans[o], spans[at])} for at, own in deps.items()
    }
    return kept, len(guessed)


def _first(launches: Launches, stream: str, since: int) -> int | None:
    """Return the first span launched on a stream after a call."""
    own = launches.get(stream, [])
    at = bisect_left(own, (since, -1))
    return own[at][1] if at < len(own) else None


def _last(launches: Launches, stream: str, until: int) -> int | None:
    """Return the last span launched on a stream before a call."""
    at = bisect_left(launches.get(stream, []), (until, -1)) - 1
    return launches[stream][at][1] if at >= 0 else None


def _told(trace: Trace, launches: Launches) -> Iterator[tuple[int, int]]:
    for waiting, since, on, until in trace.told:
        after, before = _first(launches, waiting, since), _last(launches, on, until)
        if after is not None and before is not None and waiting != on:
            yield after, before


def _synced(trace: Trace, launches: Launches) -> Iterator[tuple[int, int]]:
    """Yield what was launched after the host had waited, and what it had waited for."""
    for since, stream, until in sorted(trace.syncs):
        before = [_last(launches, on, until) for on in ([stream] if stream else launches)]
        known = [at for at in before if at is not None]
        known = sorted(known, key=lambda at: trace.spans[at].end)[-_MOST_STREAMS:]
        for waiting in launches:
            after = _first(launches, waiting, since)
            if after is not None:
                yield from ((after, at) for at in known if trace.spans[at].stream != waiting)


def _entering(
    spans: Sequence[Span], collectives: Sequence[int], launches: Launches
) -> Iterator[tuple[int, int]]:
    """Yield what collectives wait for: the last kernel launched before, on the stream they were called from."""
    talk = {spans[at].stream for at in collectives}
    quiet = sorted({span.stream for span in spans if span.kernel} - talk)
    for at in collectives:
        if not spans[at].launch:
            continue
        before = [_last(launches, stream, spans[at].launch) for stream in quiet]
        known = [other for other in before if other is not None and spans[other].launch]
        if known:
            yield at, max(known, key=lambda other: spans[other].launch)


def _host_order(
    trace: Trace, collectives: Sequence[int], launches: Launches
) -> list[tuple[int, int]] | None:
    """Return who waits for collectives by the order of the host's calls, None if they do not fit."""
    spans = trace.spans
    talk = {spans[at].stream for at in collectives}
    inside = {external(spans[at].args) for at in collectives} - {0}
    calls = sorted(launch for launch, of in trace.host_waits if of not in inside)
    done = sorted(collectives, key=lambda at: spans[at].launch)
    if not inside or len(calls) != len(done):
        return None
    if any(call <= spans[at].launch for call, at in zip(calls, done, strict=True)):
        return None
    quiet = [stream for stream in launches if stream not in talk]
    found: list[tuple[int, int]] = []
    for call, at in zip(calls, done, strict=True):
        after = [_first(launches, stream, call) for stream in quiet]
        known = [other for other in after if other is not None]
        if known:
            found.append((min(known, key=lambda other: spans[other].launch), at))
    return found


def _idle(spans: Sequence[Span], collectives: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield spans that began when a collective ended, on a stream that was idle before."""
    talk = {spans[at].stream for at in collectives}
    streams: dict[str, list[int]] = {}
    for at, span in enumerate(spans):
        if span.stream not in talk:
            streams.setdefault(span.stream, []).append(at)
    starts = {stream: [spans[at].start for at in own] for stream, own in streams.items()}
    for at in collectives:
        end = spans[at].end
        for stream, own in streams.items():
            first = bisect_left(starts[stream], end)
            if first == len(own) or starts[stream][first] > end + _SLACK:
                continue
            if not first or spans[own[first - 1]].end < end:
                yield own[first], at
