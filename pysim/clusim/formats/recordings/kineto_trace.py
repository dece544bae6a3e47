"""One file of the PyTorch profiler: GPU activities, and the host calls that launched them.

Fields differ between releases. Older releases have capitalised categories and times in whole microseconds, and their
NCCL kernels do not contain the collective: the host's record (``record_param_comms``, or the shapes of
``nccl:all_reduce`` and similar) is found by the number of the launching call, or by its time. `call_arguments` converts
each of them to the arguments of newer releases: ``c10d::allreduce_``, ``_c10d_functional::all_gather_into_tensor``,
``nccl:all_reduce``, or ``record_param_comms`` itself, each with a part of the information.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from sys import intern
from typing import Any

from clusim.base.errors import InputError
from clusim.formats.recordings.jsonstream import (
    integer,
    integers,
    read_items,
    table_of,
    tables_of,
    time_ps,
)
from clusim.formats.recordings.kineto_arguments import call_arguments
from clusim.formats.recordings.model import ABSENT, PS_PER_NS, PS_PER_US
from clusim.formats.recordings.source import FileStream

_NOTHING: dict[str, Any] = {}
_NOTED = (
    "record_param_comms",
    "nccl:",
    "c10d::",
    "_c10d_functional::",
    "c10d_functional::",
)
_MOST_RANK = 1 << 20
MOST_KERNELS = 2_000_000
"""Maximum number of kernels and copies of all ranks."""

_MOST_KEPT = 4 * MOST_KERNELS
"""Maximum number of kernels, launches and waits kept per file."""

_LOOK = 1 << 16
"""Number of events between checks of `_MOST_KEPT`."""
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_ON_HOST = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime")
_NCCL = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)\w*", re.IGNORECASE)
_RANK = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_OTHERS = re.compile(
    r"cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_|nvshmem|deep_ep",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Span:
    """GPU activity: times [ps], stream, launch (correlation) number; `args` of NCCL kernels."""

    start: int
    length: int
    stream: str
    launch: int
    name: str
    args: dict[str, Any]
    at: int
    """Position in the file."""
    nccl: bool = False
    kernel: bool = True

    @property
    def end(self) -> int:
        """End time [ps]."""
        return self.start + self.length


@dataclass(slots=True)
class HostCall:
    """Collective or message as recorded by the host; times in ps."""

    start: int
    length: int
    thread: str
    external: int
    args: dict[str, Any]


@dataclass(slots=True)
class KinetoCall:
    """Call of an NCCL kernel.

    Attributes
    ----------
    operation : str
        As in `clusim.formats.recordings.model.Event`, or ``send`` or ``recv``.
    number : int
        ``Seq`` of PyTorch, `ABSENT` if missing; `number_calls` replaces it by the number of the call in its group.
    redop : str
        Reduction; a sum unless recorded.
    splits : tuple of int
        Bytes that an all-to-all sends to every position of its group, if they differ.
    """

    operation: str
    group: int
    bytes: int
    dtype: str
    root: int = ABSENT
    peer: int = ABSENT
    number: int = ABSENT
    splits: tuple[int, ...] = ()
    redop: str = "sum"


@dataclass(slots=True)
class Trace:
    """Content of one file, which is one rank.

    Attributes
    ----------
    told : list
        Recorded waits: waiting stream, its first launch, stream waited for, its last launch.
    syncs : set
        Host synchronisations: first launch after it, stream waited for (empty: all), its last launch.
    host_waits : list
        Launch number and external id of calls of ``cudaStreamWaitEvent``, with unknown streams.
    launches : dict
        Launch number -> thread and time [ps] of the launching call.
    resolved : dict
        Calls of each NCCL span, by `kineto_calls.Resolver`.
    """

    name: str
    rank: int = 0
    world: int = 1
    spans: list[Span] = field(default_factory=list)
    told: list[tuple[str, int, str, int]] = field(default_factory=list)
    syncs: set[tuple[int, str, int]] = field(default_factory=set)
    host_waits: list[tuple[int, int]] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    launches: dict[int, tuple[str, int]] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    version: str = ""
    host: str = ""
    notes: list[str] = field(default_factory=list)
    resolved: dict[int, list[KinetoCall]] = field(default_factory=dict)


def read_trace(file: FileStream, order: int, skipped: Counter[str]) -> Trace:
    """Read the file of one rank, which is file number `order` of the job.

    Raises
    ------
    InputError
        The file is not such a trace, or contains no GPU activities.
    """
    result = Trace(file.name)
    events = _Events(result, skipped)
    top, listed = read_items(
        file,
        "traceEvents",
        events.take,
        lambda text: result.notes.append(f"{file.name}: {text}"),
    )
    if top is None or not listed:
        raise InputError(
            f"{file.name}: no list traceEvents; is it a trace of the PyTorch profiler?"
        )
    _job(result, top, order)
    base_ps = (integer(top.get("baseTimeNanoseconds")) or 0) * PS_PER_NS
    for span in result.spans:
        span.start += base_ps  # host times are compared within the file only
    result.spans.sort(key=lambda span: (span.start, span.launch, span.at))
    if len(result.spans) > MOST_KERNELS:
        raise InputError(
            f"{file.name}: more than {MOST_KERNELS} kernels; record fewer steps"
        )
    if not result.spans:
        raise InputError(
            f"{file.name}: no kernels; record with ProfilerActivity.CUDA to see the GPU"
        )
    _name_streams(result)
    return result


class _Events:
    """Reader of the events of a file, one at a time."""

    def __init__(self, trace: Trace, skipped: Counter[str]) -> None:
        self.found, self.skipped, self.at = trace, skipped, 0

    def take(self, event: Any) -> None:
        """Keep the relevant part of an event; raise `InputError` above `_MOST_KEPT` entries."""
        if isinstance(event, dict):
            self._sort_in(event)
        else:
            self.skipped["entries that are not events"] += 1
        self.at += 1
        if self.at % _LOOK == 0:
            trace = self.found
            lists: tuple[Sized, ...] = (
                trace.spans,
                trace.calls,
                trace.launches,
                trace.told,
            )
            if sum(map(len, (*lists, trace.syncs, trace.host_waits))) > _MOST_KEPT:
                raise InputError(
                    f"{trace.name}: more than {_MOST_KEPT} kernels, launches and waits; record fewer steps"
                )

    def _sort_in(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        category, name = category.lower(), str(event.get("name", ""))
        args = table_of(event.get("args"))
        if category in _ON_GPU:
            self._gpu(event, args, category == "kernel", name)
        elif category in _ON_HOST:
            self._runtime(event, args, name.removeprefix("cuda").removeprefix("hip"))
        elif category == "cuda_sync":
            self._sync(args, name)
        elif name.startswith(_NOTED) and category[:4] != "gpu_":
            self._host_call(event, args, name)

    def _gpu(
        self, event: dict[str, Any], args: dict[str, Any], kernel: bool, name: str
    ) -> None:
        start, length = _time(event.get("ts")), _time(event.get("dur"))
        if start is None or length is None:
            self.skipped["kernels without times"] += 1
            return
        if len(self.found.spans) > MOST_KERNELS:
            return  # rejected at the end of the file
        if kernel and _OTHERS.search(name):
            self.skipped[
                "kernels that communicate without NCCL: kept with their recorded length"
            ] += 1
        nccl = kernel and _NCCL.match(name) is not None
        stream = intern(_stream(args, event.get("tid", 0)))
        self.found.spans.append(
            Span(start, length, stream, _launch(args), intern(name), args if nccl else _NOTHING, self.at, nccl, kernel)
        )  # fmt: skip

    def _runtime(
        self, event: dict[str, Any], args: dict[str, Any], name: str
    ) -> None:
        """Record a runtime call: the thread of a launch, or a wait."""
        launch, start = _launch(args), _time(event.get("ts"))
        if not launch or start is None:
            return
        if name == "StreamWaitEvent":
            self.found.host_waits.append((launch, external(args)))
        elif name == "DeviceSynchronize":
            self.found.syncs.add((launch, "", launch))
        elif "Launch" in name or "Memcpy" in name or "Memset" in name:
            self.found.launches[launch] = (intern(str(event.get("tid"))), start)

    def _sync(self, args: dict[str, Any], name: str) -> None:
        """Record a wait from the GPU's tracing."""
        launch, trace = _launch(args), self.found
        until = integer(args.get("wait_on_cuda_event_record_corr_id"))
        if not launch:
            return
        if name == "Stream Wait Event" and until:
            trace.told.append(
                (_stream(args, 0), launch, _stream(args, 0, "wait_on_stream"), until)
            )
        elif name == "Stream Sync":
            trace.syncs.add((launch, _stream(args, 0), launch))
        elif name == "Event Sync" and until and "wait_on_stream" in args:
            trace.syncs.add((launch, _stream(args, 0, "wait_on_stream"), until))
        elif name == "Context Sync":
            trace.syncs.add((launch, "", launch))

    def _host_call(
        self, event: dict[str, Any], args: dict[str, Any], name: str
    ) -> None:
        start, length, call = (
            _time(event.get("ts")),
            _time(event.get("dur")),
            call_arguments(name, args),
        )
        if start is None or length is None or call is None:
            return
        number = external(args)
        if call is not args:
            call = call | {"External id": number}
        thread = intern(str(event.get("tid")))
        self.found.calls.append(HostCall(start, length, thread, number, call))


def _job(trace: Trace, top: dict[str, Any], order: int) -> None:
    """Read the rank and the description of the job."""
    info = table_of(top.get("distributedInfo"))
    rank = integer(info.get("rank"), _MOST_RANK)
    if rank is None:
        match = _RANK.search(trace.name.rsplit("/", 1)[-1])
        rank = int(match[1]) if match else order
        where = "by its name" if match else "by its place among the files"
        trace.notes.append(
            f"{trace.name}: no rank in the file; taken as rank {rank} {where}"
        )
    trace.rank, trace.world = rank, integer(info.get("world_size"), _MOST_RANK) or 1
    version, host = info.get("nccl_version"), top.get("host_name")
    trace.version = version if isinstance(version, str) else ""
    trace.host = host if isinstance(host, str) else ""
    for entry in tables_of(info.get("pg_config")):
        ranks, complete = ranks_in(entry.get("ranks"))
        if not ranks and integer(entry.get("pg_size")) == trace.world:
            ranks = tuple(
                range(trace.world)
            )  # PyTorch omits the list for groups of all ranks
        if ranks and complete and entry.get("pg_name") is not None:
            trace.groups[str(entry["pg_name"])] = ranks


def ranks_in(value: Any) -> tuple[tuple[int, ...], bool]:
    """Return the numbers of a list, also in a string, and whether the list is complete.

    A list in a string may be cut: ``[0, 1, ...]``.
    """
    complete = True
    if isinstance(value, str):
        text = value.strip().strip("[]")
        value = [item.strip() for item in text.split(",")] if text.strip() else []
        if "..." in value:
            value, complete = value[: value.index("...")], False
    ranks = integers(value, 1 << 50)
    return ((), True) if ranks is None else (ranks, complete)


def external(args: dict[str, Any]) -> int:
    """Return the number of the host operation of an event; 0 if unknown."""
    return integer(args.get("External id", args.get("external id"))) or 0


def _launch(args: dict[str, Any]) -> int:
    return integer(args.get("correlation")) or 0


def _stream(args: dict[str, Any], thread: Any, key: str = "stream") -> str:
    """Return a stream as ``DEVICE/STREAM``, since stream numbers are local to a device."""
    return f"{integer(args.get('device')) or 0}/{args.get(key, thread)}"[:80]


def _time(value: Any) -> int | None:
    """Return a time in microseconds, also in quotes, as ps."""
    if isinstance(value, str) and len(value) < 40:
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    return time_ps(value, PS_PER_US)


def _name_streams(trace: Trace) -> None:
    """Remove the device from stream names if there is only one."""
    devices = {span.stream.partition("/")[0] for span in trace.spans}
    if len(devices) > 1:
        trace.notes.append(
            f"{trace.name}: kernels on {len(devices)} devices; all are taken to be on the GPU of rank {trace.rank}"
        )
        return
    for span in trace.spans:
        span.stream = intern(span.stream.partition("/")[2])
    trace.told = [
        (a.partition("/")[2], since, b.partition("/")[2], until)
        for a, since, b, until in trace.told
    ]
    trace.syncs = {
        (since, s.partition("/")[2], until) for since, s, until in trace.syncs
    }
