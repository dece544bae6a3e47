"""Traces of the PyTorch profiler (Kineto): kernels and collectives of every rank on their streams.

One file is one rank. What runs on a GPU is kept, with its pauses; what the host does is only used to find out which
kernel waits for which: a collective waits for what was launched before it on the stream it was called from (as
ProcessGroupNCCL does), and a kernel for the stream it was told to wait for, or, where the trace does not say, for the
collective at whose end it started.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusim.errors import InputError
from clusim.recording.model import ABSENT, Event, Recording
from clusim.recording.readers.common import (
    Groups,
    clone_peers,
    dtype_of,
    finish,
    full_bytes,
    operation_of,
)
from clusim.recording.readers.source import Part, Paths, integer, load_json, parts, time_ps

__all__ = ["KIND", "read"]

KIND = "kineto"
US = 1_000_000
SLACK_PS = 50 * US
"""A kernel that starts at most so long after a collective ended, on an idle stream, waited for it."""

MOST_PS = 1 << 60
"""Longest recording: 13 days [ps]."""

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_NCCL = re.compile(r"^(?:void )?(?:nccl|rccl)\w*", re.IGNORECASE)
_KERNEL = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)(?:_(\w+?))?_(LL128|LL|SIMPLE)",
    re.IGNORECASE,
)
_ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
_REDOPS = re.compile(r"_(Sum|Prod|Max|Min|Avg)(?:_|$)", re.IGNORECASE)
_RANK = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)


@dataclass(slots=True)
class _Span:
    """Something on a GPU: its times [ps], stream, launch number and what the profiler said of it."""

    start: int
    length: int
    stream: str
    launch: int
    name: str
    args: dict[str, Any]
    collective: bool = False


@dataclass(slots=True)
class _Trace:
    """One file."""

    name: str
    rank: int
    world: int
    spans: list[_Span]
    waits: list[tuple[str, int, str, int]]
    """Stream that waits, from which launch on, for which stream, up to which launch."""
    comms: dict[int, dict[str, Any]]
    """What the host knew of a collective, by external id."""
    groups: dict[str, tuple[int, ...]]
    version: str = ""
    notes: list[str] = field(default_factory=list)


def read(paths: Paths) -> Recording:
    """Read the traces of one job, one file per rank (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        A file is no such trace, or two claim the same rank.
    """
    skipped: Counter[str] = Counter()
    traces: list[_Trace] = []
    for part in parts(paths, lambda name: ".json" in name):
        traces.append(_trace(part, len(traces), skipped))
    owner: dict[int, str] = {}
    for trace in traces:
        other = owner.setdefault(trace.rank, trace.name)
        if other != trace.name:
            raise InputError(
                f"{trace.name}: is rank {trace.rank}, as is {other}; give one file for each rank"
            )
    traces.sort(key=lambda trace: trace.rank)
    _from_zero(traces)
    world = max(
        [trace.world for trace in traces]
        + [trace.rank + 1 for trace in traces]
        + [max(ranks) + 1 for trace in traces for ranks in trace.groups.values() if ranks]
    )
    found = Recording(KIND, traces[0].name, world)
    found.nccl_version = next((trace.version for trace in traces if trace.version), "")
    for trace in traces:
        found.assumed += [note for note in trace.notes if note not in found.assumed]
    groups = Groups()
    for trace in traces:
        _Writer(found, groups, trace, skipped).write()
    if len(traces) > 1:
        found.assumed.append(
            "clocks of machines are taken to agree; recorded pauses are kept per stream"
        )
    clone_peers(found, groups)
    return finish(found, groups, skipped)


def _from_zero(traces: list[_Trace]) -> None:
    """Let times begin at 0; those of the files are since 1970 or since a base of each file."""
    first = min(span.start for trace in traces for span in trace.spans)
    for trace in traces:
        for span in trace.spans:
            span.start -= first
            if _end(span) > MOST_PS:
                raise InputError(
                    f"{trace.name}: kernels are {_end(span) / 3.6e15:.0f} hours apart; do the files belong together?"
                )


def _trace(part: Part, order: int, skipped: Counter[str]) -> _Trace:
    notes: list[str] = []
    data = load_json(part, lambda text: notes.append(f"{part.name}: {text}"))
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError(
            f"{part.name}: has no list traceEvents; is it a trace of the PyTorch profiler?"
        )
    info = data.get("distributedInfo") if isinstance(data, dict) else None
    info = info if isinstance(info, dict) else {}
    rank = integer(info.get("rank"), 1 << 20)
    if rank is None:
        match = _RANK.search(part.name.rsplit("/", 1)[-1])
        rank = int(match[1]) if match else order
        notes.append(f"{part.name}: does not say its rank; taken as rank {rank}")
    version = info.get("nccl_version")
    found = _Trace(
        part.name, rank, integer(info.get("world_size"), 1 << 20) or 1, [], [], {}, {},
        version if isinstance(version, str) else "", notes,
    )  # fmt: skip
    _pg_config(found, info.get("pg_config"))
    base = integer(data.get("baseTimeNanoseconds")) if isinstance(data, dict) else None
    for event in events:
        if isinstance(event, dict):
            _sort_in(found, event, skipped, (base or 0) * 1000)
        else:
            skipped["entries that are no events"] += 1
    found.spans.sort(key=lambda span: (span.start, span.launch))
    if not found.spans:
        raise InputError(
            f"{part.name}: has no kernels; record with ProfilerActivity.CUDA to see the GPU"
        )
    return found


def _pg_config(found: _Trace, config: Any) -> None:
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict):
            ranks = _ranks(entry.get("ranks"))
            if ranks and entry.get("pg_name") is not None:
                found.groups[str(entry["pg_name"])] = ranks


def _ranks(value: Any) -> tuple[int, ...]:
    """Return a list of ranks, also if it is written in a string; none if it is cut or is no such list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list):
        return ()
    ranks = [integer(item, 1 << 20) for item in value]
    whole = [rank for rank in ranks if rank is not None]
    return tuple(whole) if len(whole) == len(ranks) == len(set(whole)) else ()


def _sort_in(found: _Trace, event: dict[str, Any], skipped: Counter[str], base_ps: int) -> None:
    """Keep what matters of one event; its times count from `base_ps`."""
    category = event.get("cat")
    if event.get("ph") != "X" or not isinstance(category, str):
        return
    category, name = category.lower(), str(event.get("name", ""))
    raw = event.get("args")
    args: dict[str, Any] = raw if isinstance(raw, dict) else {}
    if name == "record_param_comms":
        key = integer(args.get("External id"))
        if key is not None:
            found.comms[key] = args
    elif category == "cuda_sync" and name == "Stream Wait Event":
        launch, until = (
            integer(args.get("correlation")),
            integer(args.get("wait_on_cuda_event_record_corr_id")),
        )
        if launch is not None and until is not None:
            found.waits.append(
                (str(args.get("stream")), launch, str(args.get("wait_on_stream")), until)
            )
    elif category in _ON_GPU:
        start, length = time_ps(event.get("ts"), US), time_ps(event.get("dur"), US)
        if start is None or length is None:
            skipped["kernels without times"] += 1
            return
        stream = str(args.get("stream", event.get("tid", 0)))
        launch = integer(args.get("correlation")) or 0
        nccl = category == "kernel" and _NCCL.match(name) is not None
        found.spans.append(_Span(base_ps + start, length, stream, launch, name, args, nccl))


class _Writer:
    """Turns the spans of one rank into events."""

    def __init__(
        self, found: Recording, groups: Groups, trace: _Trace, skipped: Counter[str]
    ) -> None:
        self.found, self.groups, self.trace, self.skipped = found, groups, trace, skipped
        self.calls: Counter[int] = Counter()
        self.numbers = [len(found.events) + at for at in range(len(trace.spans))]
        self.streams: dict[str, list[int]] = {}
        for at, span in enumerate(trace.spans):
            self.streams.setdefault(span.stream, []).append(at)

    def write(self) -> None:
        """Append the events of the rank."""
        deps = _deps(self.trace, self.streams)
        for at, span in enumerate(self.trace.spans):
            own = tuple(sorted(self.numbers[other] for other in deps[at]))
            event = Event(
                "compute", self.trace.rank, span.stream, span.name[:80], own, span.start, span.length,
                where=self.trace.name,
            )  # fmt: skip
            self.found.events.append(self._collective(span, event) if span.collective else event)

    def _collective(self, span: _Span, event: Event) -> Event:
        """Return the event as a collective, or as computing of its length if its size is not known."""
        known = span.args
        if "Collective name" not in known:
            known = self.trace.comms.get(integer(span.args.get("External id")) or -1, {})
        operation = operation_of(known.get("Collective name"))
        kind, ranks = dtype_of(known.get("dtype")), self._group(known)
        if not operation or kind is None or not ranks:
            self.skipped[
                "communication kernels without operation, size and group: kept as kernels of their recorded length"
            ] += 1
            return event
        if self.trace.rank not in ranks:
            self.skipped["collectives of groups their rank is not in: kept as kernels"] += 1
            return event
        num_bytes = self._bytes(operation, known, kind[1], len(ranks))
        if num_bytes is None:
            self.skipped[
                "collectives without a size: kept as kernels of their recorded length"
            ] += 1
            return event
        if any(
            known.get(key) not in (None, "[]", []) for key in ("In split size", "Out split size")
        ):
            self._assume("all-to-alls with uneven splits are simulated with even ones")
        group = self.groups.add(str(known.get("Process Group Name", "")), ranks)
        sequence, self.calls[group] = self.calls[group], self.calls[group] + 1
        root = ABSENT
        if operation in ("broadcast", "reduce", "gather", "scatter"):
            root = integer(known.get("Root"), len(ranks) - 1) or 0
            if "Root" not in known:
                self._assume("roots are not recorded; taken as position 0 of the group")
        return replace(
            event, kind="collective", group=group, sequence=sequence, operation=operation, bytes=num_bytes,
            dtype=kind[0], root=root, **_from_name(span.name),
        )  # fmt: skip

    def _assume(self, text: str) -> None:
        if text not in self.found.assumed:
            self.found.assumed.append(text)

    def _group(self, known: dict[str, Any]) -> tuple[int, ...]:
        ranks = _ranks(known.get("Process Group Ranks"))
        ranks = ranks or self.trace.groups.get(str(known.get("Process Group Name")), ())
        size = integer(known.get("Group size"), 1 << 20)
        if not ranks and size and size == self.found.num_ranks:
            ranks = tuple(range(size))
        start, stride = (
            integer(known.get("Global rank start")),
            integer(known.get("Global rank stride")),
        )
        if not ranks and size and start is not None and stride:
            ranks = tuple(start + stride * i for i in range(size))
        if ranks and max(ranks) >= self.found.num_ranks:
            self.found.num_ranks = max(ranks) + 1
        return ranks

    @staticmethod
    def _bytes(operation: str, known: dict[str, Any], size: int, ranks: int) -> int | None:
        """Return the largest per-rank buffer of a collective [bytes]."""
        own, given = integer(known.get("In msg nelems")), integer(known.get("Out msg nelems"))
        if operation == "barrier":
            return 4
        if own is None and given is None:
            return None
        if operation in ("all_gather", "gather"):
            # Only the root of a gather has an output.
            most = max(given or 0, full_bytes(operation, own or 0, ranks))
        else:
            most = max(own or 0, given or 0)
            if operation == "reduce_scatter" and own is None:
                most *= ranks
        return most * size if 0 < most * size < 1 << 44 else None


def _from_name(name: str) -> dict[str, Any]:
    """Return algorithm, protocol and redop, as far as the name of a kernel has them."""
    found: dict[str, Any] = {}
    match = _KERNEL.search(name)
    if match:
        found["protocol"] = match[3].lower()
        if match[2] and match[2].lower() in _ALGORITHMS:
            found["algorithm"] = match[2].lower()
    redop = _REDOPS.search(name)
    if redop:
        found["redop"] = redop[1].lower()
    return found


def _deps(trace: _Trace, streams: dict[str, list[int]]) -> list[set[int]]:
    """Return what every span waits for on other streams."""
    deps: list[set[int]] = [set() for _ in trace.spans]
    launches = {
        stream: sorted((trace.spans[at].launch, at) for at in own)
        for stream, own in streams.items()
    }
    for waiting, since, on, until in trace.waits:
        after, before = launches.get(waiting, []), launches.get(on, [])
        first = bisect_left(after, (since, -1))
        last = bisect_left(before, (until, -1)) - 1
        if first < len(after) and last >= 0:
            deps[after[first][1]].add(before[last][1])
    for at, other in _guessed(trace, streams, launches):
        deps[at].add(other)
    for at, own in enumerate(deps):
        span = trace.spans[at]
        # What ends after its successor began was no dependency, whatever the numbers say.
        deps[at] = {o for o in own if o < at and _end(trace.spans[o]) <= span.start + SLACK_PS}
    return deps


def _end(span: _Span) -> int:
    return span.start + span.length


def _guessed(
    trace: _Trace, streams: dict[str, list[int]], launches: dict[str, list[tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
    """Yield (span, what it waits for) where the trace has no waits for a stream of collectives."""
    talk = {span.stream for span in trace.spans if span.collective}
    told = {waiting for waiting, _, on, _ in trace.waits} | {on for _, _, on, _ in trace.waits}
    quiet = [stream for stream in streams if stream not in talk]
    starts = {stream: [trace.spans[at].start for at in streams[stream]] for stream in quiet}
    for at, span in enumerate(trace.spans):
        if not span.collective or span.stream in told:
            continue
        for stream in quiet:
            own = launches[stream]
            last = bisect_left(own, (span.launch, -1)) - 1
            if span.launch and last >= 0:
                yield at, own[last][1]
            waiting = _first_after(trace.spans, streams[stream], starts[stream], span)
            if waiting is not None:
                yield waiting, at


def _first_after(
    spans: Sequence[_Span], own: Sequence[int], starts: Sequence[int], done: _Span
) -> int | None:
    """Return the span that began when `done` ended, on a stream that was idle before, if there is one."""
    first = bisect_left(starts, _end(done))
    if first == len(own) or starts[first] > _end(done) + SLACK_PS:
        return None
    if first and _end(spans[own[first - 1]]) >= _end(done):
        return None
    return own[first]
