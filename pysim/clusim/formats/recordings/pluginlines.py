"""JSON lines of NCCL's profiler plugins CoMMA and minimal-profiler, one object per event.

CoMMA's object of a call contains its communicator (``comm_hash``), rank, size, and the duration of its proxies and
kernels (``child_dur``; ``dur`` is the enqueue time). minimal-profiler writes events when they end; the duration of a
call is that of its kernels, which are assigned by the call's address. Sizes are the input of a rank, as in NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import ROOTED, operation_written
from clusim.formats.recordings.commranks import Owner
from clusim.formats.recordings.jsonstream import objects
from clusim.formats.recordings.model import ABSENT, EventKind, Recording
from clusim.formats.recordings.plugincalls import (
    MOST_RECORDS,
    MOST_SIZE,
    PluginCall,
    PluginJob,
    read_files,
    recorded,
)
from clusim.formats.recordings.source import FileStream, Paths, integer

KIND = "jsonl"
_MOST_US = 1 << 52
_LONGEST_US = 1 << 40
_PID = re.compile(r"(?:pid|latency-)(\d{1,9})")


@dataclass(slots=True)
class _Lines:
    """Content read so far: calls, their processes, and the number of ranks of communicators."""

    job: PluginJob = field(default_factory=PluginJob)
    owners: list[tuple[str, int]] = field(default_factory=list)
    calls: list[PluginCall] = field(default_factory=list)
    n_ranks: dict[str, int] = field(default_factory=dict)
    numbers: Counter[tuple[str, int, str, int]] = field(default_factory=Counter)
    of_address: dict[tuple[int, str], PluginCall] = field(default_factory=dict)
    kernels: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    untimed: int = 0


def read(paths: Paths) -> Recording:
    """Read the files of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        The files contain no call, or contradict each other.
    """
    lines = _Lines()
    name = read_files(paths, lambda part: _file(lines, part))
    _settle(lines)
    return recorded(KIND, name, lines.job, lambda found: _assume(found, lines))


def _file(lines: _Lines, part: FileStream) -> None:
    """Read one file."""
    job = lines.job

    def damage(line: int) -> None:
        job.skip("texts that are not a complete JSON object", f"{part.name}:{line}")

    for line, record in objects(part, damage):
        where = f"{part.name}:{line}"
        if len(lines.calls) >= MOST_RECORDS:
            job.skip(f"events after the first {MOST_RECORDS} calls", where)
        elif "recordType" in record:
            _minimal(lines, record, where)
        elif record.get("cat") in ("COLL", "P2P"):
            _comma(lines, record, part.name, where)
        elif record.get("cat") not in ("PROXY", "GROUP"):
            job.skip("objects that are not a call", where)


def _comma(lines: _Lines, record: dict[str, Any], name: str, where: str) -> None:
    """Keep a call of CoMMA."""
    comm, rank = record.get("comm_hash"), integer(record.get("rank"), MOST_RANKS - 1)
    args = record.get("args")
    size = integer(args.get("size"), MOST_SIZE) if isinstance(args, dict) else None
    if not isinstance(comm, str) or rank is None or size is None:
        lines.job.skip("calls without communicator, rank or size", where)
        return
    number = integer(record.get("seq_num")) if record["cat"] == "COLL" else None
    begun = record.get("child_start_ts", record.get("ts"))
    took = _us(record.get("child_dur"), _LONGEST_US)
    call = _call(
        lines,
        record.get("name"),
        (intern(comm[:64]), rank, size, number),
        record.get("peer"),
        where,
    )
    if call is None:
        return
    call.start, call.took = _us(begun, _MOST_US) or 0, took or 0
    call.algorithm, call.protocol = _word(record.get("algo")), _word(record.get("proto"))
    call.channels = integer(record.get("n_max_channel"), 64) or 0
    match = _PID.search(name.rsplit("/", 1)[-1])
    lines.calls.append(call)
    lines.owners.append((name, int(match[1]) if match else ABSENT))
    lines.n_ranks[call.comm] = max(lines.n_ranks.get(call.comm, 0), rank + 1, call.peer + 1)


def _minimal(lines: _Lines, record: dict[str, Any], where: str) -> None:
    """Keep a call of minimal-profiler, or the duration of one."""
    if record.get("recordType") != "event" or record.get("isPxn") is True:
        return
    kind, details = record.get("type"), record.get("details")
    details = details if isinstance(details, dict) else {}
    start, stop = (_time(record.get(what)) for what in ("start", "stop"))
    pid = integer(record.get("myPid"), 1 << 32) or 0
    if kind == "ncclProfileKernelCh" and start is not None and stop is not None:
        _kernel(lines, (pid, str(record.get("parentObj"))[:20]), start, stop)
        return
    comm, rank = record.get("commId"), integer(record.get("rank"), MOST_RANKS - 1)
    if not isinstance(comm, int) or rank is None:
        if kind in ("ncclProfileColl", "ncclProfileP2p"):
            lines.job.skip("calls without communicator, rank or size", where)
        return
    name = intern(f"{comm:x}"[:64])
    if kind == "ProfilerLifecycle":
        n_ranks = integer(details.get("nranks"), MOST_RANKS)
        if n_ranks:
            lines.n_ranks[name] = max(lines.n_ranks.get(name, 0), n_ranks)
        return
    if kind not in ("ncclProfileColl", "ncclProfileP2p"):
        return
    dtype = find_dtype(str(details.get("dtype")))
    count = integer(details.get("count"), MOST_SIZE)
    if dtype is None or count is None or start is None:
        lines.job.skip("calls without type, count or time", where)
        return
    number = integer(details.get("seq")) if kind == "ncclProfileColl" else None
    named = (name, rank, count * dtype.size_bytes, number)
    call = _call(lines, details.get("func"), named, details.get("peer"), where)
    if call is None:
        return
    call.start = call.dumped = start
    call.algorithm, call.protocol = _word(details.get("algo")), _word(details.get("proto"))
    call.channels = integer(details.get("channels"), 64) or 0
    address = (pid, str(record.get("eventAddr"))[:20])
    span = lines.kernels.pop(address, None)
    if span is not None and span[0] >= start:
        call.start, call.took = span[0], span[1] - span[0]
    lines.of_address[address] = call
    gpu = str(record.get("gpuUuid", "")).removeprefix("GPU-").replace("-", "")
    own = int(gpu, 16) if re.fullmatch(r"[0-9a-fA-F]{1,32}", gpu) else pid
    lines.calls.append(call)
    lines.owners.append(("", own))
    lines.n_ranks[name] = max(lines.n_ranks.get(name, 0), rank + 1, call.peer + 1)


def _kernel(lines: _Lines, address: tuple[int, str], start: int, stop: int) -> None:
    """Record the times of a kernel, for a known call or for one that ends later."""
    call = lines.of_address.get(address)
    if call is not None and call.dumped <= start:
        first = start if call.took == 0 else min(call.start, start)
        call.took = max(call.start + call.took if call.took else 0, stop) - first
        call.start = first
        return
    known = lines.kernels.get(address, (start, stop))
    lines.kernels[address] = (min(known[0], start), max(known[1], stop))


def _call(
    lines: _Lines, name: Any, named: tuple[str, int, int, int | None], peer: Any, where: str
) -> PluginCall | None:
    """Return a call, with a number if it is a message; None if required data are missing."""
    comm, rank, size, number = named
    kind: EventKind = "collective"
    word = name.lower() if isinstance(name, str) else ""
    if word in ("send", "recv"):
        kind = "send" if word == "send" else "recv"
    operation = operation_written(name) if kind == "collective" else ""
    other = integer(peer, MOST_RANKS - 1) if kind != "collective" else ABSENT
    if kind == "collective" and not operation:
        lines.job.skip(f"calls of {str(name)[:40]!r}, unknown to clusim", where)
        return None
    if not size or other is None or other == rank or (kind == "collective" and number is None):
        lines.job.skip("calls without number, size or peer", where)
        return None
    if number is None:
        key = (comm, rank, kind, other)
        number = lines.numbers[key]
        lines.numbers[key] += 1
    return PluginCall(comm, rank, kind, operation, number, size, 0, 0, 0, "", "", 0, other, where)


def _settle(lines: _Lines) -> None:
    """Add all calls to the job, since the sizes of communicators are now known."""
    seen: dict[tuple[str, int, str], set[int]] = {}
    for call, owner in zip(lines.calls, lines.owners, strict=True):
        seen.setdefault((*owner, call.comm), set()).add(call.rank)
    merged = {owner[:2] for owner, ranks in seen.items() if len(ranks) > 1}
    numbers: dict[tuple[str, int], int] = {}
    for call, owner in zip(lines.calls, lines.owners, strict=True):
        # Usually one file per process. A file with several ranks of a communicator contains several processes, which
        # are identified by rank: ranks are assumed to have equal numbers in all communicators.
        pid = owner[1] if not owner[0] else numbers.setdefault(owner, len(numbers))
        whose: Owner = ("", call.rank if owner in merged else pid)
        if call.took == 0:
            lines.untimed += 1
        lines.job.add(call, whose, max(2, lines.n_ranks[call.comm]))
    lines.calls.clear()
    lines.owners.clear()
    lines.of_address.clear()


def _time(value: Any) -> int | None:
    return _us(value.get("ts"), _MOST_US) if isinstance(value, dict) else None


def _us(value: Any, most: int) -> int | None:
    """Return a time in us, with or without a fraction, in ns."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return round(value * 1000) if 0 <= value <= most else None


def _word(value: Any) -> str:
    return intern(value.lower()) if isinstance(value, str) and len(value) < 40 else ""


def _assume(found: Recording, lines: _Lines) -> None:
    """Add the assumptions about missing information."""
    job = lines.job
    kinds: Iterable[str] = {call.operation for call in job.calls}
    found.assumed.append("elements are taken for float32, and sums where something is reduced")
    if set(kinds) & set(ROOTED):
        found.assumed.append("roots are not recorded; taken as rank 0 of the communicator")
    if any(call.kind != "collective" for call in job.calls):
        found.assumed.append(
            "sends and receives wait only for previous ones with the same peer: groups are not recorded"
        )
    if len(job.comms) > 1:
        found.assumed.append("communicators run concurrently unless their order is recorded")
    if lines.untimed:
        found.assumed.append(
            f"{lines.untimed} calls without a time of their kernels or proxies (NCCL_PROFILER_TRACK_PROXYOP,"
            " NCCL_PROFILE_EVENT_MASK): not compared"
        )
