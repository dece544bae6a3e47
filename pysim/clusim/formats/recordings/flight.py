"""Dumps of PyTorch's flight recorder: the last calls of a rank, as pickle or JSON.

Calls are matched by their group and ``collective_seq_id``. The recorder keeps only the last calls: those that a rank
has dropped, or never completed, are skipped and counted.

Pickles are read without executing anything in them: only dicts, lists, tuples, numbers and texts are accepted. All
instructions are checked before any is executed. Those that name a class or call a function are rejected, except for
the four functions with which PyTorch writes lists of one type, which are read as lists. Memo numbers, lengths and
copies of lists that exceed the size of the data are rejected, too.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import PurePath
from typing import Any

from clusim.base.errors import InputError, one_line
from clusim.base.limits import MOST_RANKS
from clusim.base.match import MatchCounts, MatchedEnd, by_number, by_pair
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import (
    BLOCKWISE,
    GATHERING,
    ROOTED,
    operation_starting,
)
from clusim.formats.recordings.jsonstream import (
    integer,
    integers,
    list_of,
    number,
    read_items,
    table_of,
)
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_BYTES,
    PS_PER_NS,
    Event,
    EventKind,
    Recording,
)
from clusim.formats.recordings.source import FileStream, Paths, streams

MOST_PICKLE_BYTES = 1 << 27
"""Largest pickle that is read [bytes]."""

_PLAIN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1",
    "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE",
    "NEWFALSE", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT", "EMPTY_LIST", "APPEND",
    "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "REDUCE",
    "STACK_GLOBAL",
})  # fmt: skip
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_LISTS = frozenset(
    ("torch.jit._pickle", f"build_{kind}list")
    for kind in ("int", "double", "bool", "tensor")
)


class _Plain(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # Each value in a list has at least one byte, unless a list is copied repeatedly.
        self._room = len(data)

    def _list(self, values: Any = ()) -> list[Any]:
        self._room -= len(values)
        if self._room < 0:
            raise pickle.UnpicklingError("lists of more values than it has bytes")
        return list(values)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _LISTS:
            return self._list
        raise pickle.UnpicklingError(
            f"names {module[:40]}.{name[:40]}, which is not run"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to other files")


def read_pickle(data: bytes, where: str) -> Any:
    """Return the value of a pickle.

    Raises
    ------
    InputError
        The pickle is damaged, too large, or contains more than plain values.
    """
    if len(data) > MOST_PICKLE_BYTES:
        raise InputError(
            f"{where}: a pickle of more than {MOST_PICKLE_BYTES >> 20} MiB"
        )
    try:
        for code, argument, at in pickletools.genops(data):
            if code.name not in _PLAIN:
                raise InputError(
                    f"{where}: byte {at}: {code.name} in a pickle of plain values; it is not read"
                )
            if code.name in _PUTS and int(argument or 0) > len(data):
                raise InputError(f"{where}: byte {at}: a memo number of {argument}")
        return _Plain(data).load()
    except InputError:
        raise
    except Exception as error:  # pickle raises any exception for damaged data
        text = one_line(" ".join(str(error).split())[:120])
        raise InputError(f"{where}: not a readable pickle: {text}") from None


KIND = "flight"
MOST_CALLS = 2_000_000
"""Maximum number of calls of all ranks."""

MOST_NS = 1 << 61
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin))?(?:\.(?:gz|xz|bz2))?$")
_MESSAGE = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})")


@dataclass(slots=True)
class _Job:
    """Content read so far; `ranks` has the known ranks of each group.

    Events have the name of their group as stream, times since the epoch, and for messages the peer's position.
    """

    recording: Recording
    calls: list[Event] = field(default_factory=list)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    recorded: dict[int, str] = field(default_factory=dict)
    everyone: tuple[int, ...] = ()

    def members(self, call: Event) -> tuple[int, ...]:
        """Return the ranks of the group of a call; all if unknown."""
        return self.ranks.get(call.stream, self.everyone)


def read(paths: Paths) -> Recording:
    """Read the dumps of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        A file is not a dump, or two are of the same rank.
    """
    result = Recording(KIND, "")
    job = _Job(result)
    for index, file in enumerate(
        streams(paths, lambda base: not base.endswith((".py", ".md", ".log")))
    ):
        result.name = result.name or file.name
        _file(job, file, index)
    last_rank = max(
        (rank for ranks in job.ranks.values() for rank in ranks), default=-1
    )
    result.num_ranks = max(last_rank, *job.recorded, -1) + 1
    job.everyone = tuple(range(result.num_ranks))
    matched = _match(job)
    matched_calls = [call for call, _ in matched]
    origin = min(
        (call.start_ps for call in matched_calls if call.start_ps >= 0), default=0
    )
    for call, match in matched:
        event = replace(
            call,
            group=result.group(call.stream, job.members(call)),
            start_ps=call.start_ps - origin if call.start_ps >= 0 else ABSENT,
            sequence=match,
            bunch=ABSENT if call.kind == "collective" else call.sequence,
        )
        result.events.append(event)
    if matched_calls:
        _assume(result, job, matched_calls)
    return result.finish()


def _file(job: _Job, file: FileStream, index: int) -> None:
    """Read one dump: a pickle in one pass, JSON in two, as its table of groups may be last."""
    pickled = file.head(1) == b"\x80"
    table: Any
    if pickled:
        table = read_pickle(file.read_all(), file.name)
    else:
        table, _ = read_items(file, "entries", lambda entry: None)
    if not isinstance(table, dict) or (
        not pickled and file.head(4096).lstrip()[:1] == b"["
    ):
        raise InputError(
            f"{file.name}: not a dump of the flight recorder: no table of entries"
        )
    rank = integer(table.get("rank"), MOST_RANKS - 1)
    match = _RANK.search(PurePath(file.name).name)
    if rank is None:
        rank = int(match[1]) if match else index
    if rank in job.recorded or rank >= MOST_RANKS:
        raise InputError(
            f"{file.name}: rank {rank}, as {job.recorded.get(rank, 'no job has')}; use the dumps of one job"
        )
    job.recorded[rank] = file.name
    version = table.get("nccl_version") or table.get("comm_lib_version")
    if (
        not job.recording.nccl_version
        and isinstance(version, str)
        and len(version) < 32
    ):
        job.recording.nccl_version = version
    _groups(job, table.get("pg_config"), file.name)
    calls: list[tuple[int, Event]] = []
    count = 0

    def take(entry: Any) -> None:
        nonlocal count
        if not isinstance(entry, dict):
            return
        count += 1
        if len(job.calls) + len(calls) >= MOST_CALLS:
            job.recording.skipped[f"calls after the first {MOST_CALLS}"] += 1
            return
        call = _call(job, entry, rank, f"{file.name}: entry {count - 1}")
        if call is not None:
            calls.append((integer(entry.get("record_id")) or 0, call))

    if pickled:
        listed = isinstance(table.get("entries"), list)
        for entry in list_of(table.get("entries")):
            take(entry)
    else:
        _, listed = read_items(file, "entries", take)
    if not listed:
        job.recording.skipped["dumps without entries"] += 1
    calls.sort(key=lambda item: item[0])
    job.calls += [call for _, call in calls]


def _groups(job: _Job, config: Any, where: str) -> None:
    """Record the ranks of groups."""
    for name, about in table_of(config).items():
        listed = table_of(about).get("ranks")
        if isinstance(listed, str) and len(listed) <= 1 << 22:
            listed = re.findall(r"\d{1,9}", listed)
        ranks = integers(listed, MOST_RANKS - 1)
        if not ranks or len(set(ranks)) != len(ranks):
            continue
        key = str(name)[:200]
        if job.ranks.setdefault(key, ranks) != ranks:
            raise InputError(
                f"{where}: group {key!r} has other ranks than in another file; use the dumps of one job"
            )


def _call(job: _Job, entry: dict[str, Any], rank: int, where: str) -> Event | None:
    """Return the call of an entry; None if it is not a call."""
    name = entry.get("profiling_name")
    backend, _, call_name = (
        name.partition(":") if isinstance(name, str) else ("", "", "")
    )
    if backend != "nccl":
        job.recording.skipped[f"entries of {backend[:20]}"] += 1
        return None
    if call_name == "coalesced":
        job.recording.skipped["entries of complete launches"] += 1
        return None
    state = entry.get("state")
    if state not in (None, "completed"):
        job.recording.skipped[f"calls that were only {str(state)[:20]}"] += 1
        return None
    pair = entry.get("process_group")
    group = (
        pair[0]
        if isinstance(pair, (list, tuple)) and pair
        else entry.get("pg_id", "0")
    )
    group = str(group)[:200]
    message = _MESSAGE.match(call_name)
    # PyTorch implements a barrier by an allreduce, and names it so.
    operation = (
        "barrier"
        if call_name == "all_reduce_barrier"
        else operation_starting(call_name)
    )
    operation = "" if message else operation
    sent, got = (
        _bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes"))
        for side in ("input", "output")
    )
    sequence = integer(entry.get("p2p_seq_id" if message else "collective_seq_id"))
    if sequence is None:
        sequence = integer(entry.get("seq_id"))
    if (
        (not operation and not message)
        or sequence is None
        or sent is None
        or got is None
    ):
        job.recording.skipped[
            f"calls {call_name[:40]!r} without a known operation, number or size"
        ] += 1
        return None
    kind: EventKind = "collective"
    if message:
        kind = "send" if message[1] == "send" else "recv"
    size = len(job.ranks.get(group, ()))
    created = integer(entry.get("time_created_ns"), MOST_NS)
    kinds = entry.get("input_dtypes") or entry.get("output_dtypes")
    dtype = find_dtype(str(kinds[0] if isinstance(kinds, list) and kinds else kinds))
    return Event(
        kind, rank, group, start_ps=ABSENT if created is None else created * PS_PER_NS, duration_ps=_took_ps(entry),
        sequence=sequence, operation=operation, bytes=_size(operation, sent, got, size),
        dtype=dtype.name if dtype else "uint8", root=0 if operation in ROOTED else ABSENT,
        peer=int(message[4]) if message else ABSENT, where=where,
    )  # fmt: skip


def _bytes(sizes: Any, kinds: Any) -> int | None:
    """Return the total size of tensors [bytes]; None if invalid."""
    if not isinstance(sizes, list):
        return 0 if sizes is None else None
    shapes = sizes if all(isinstance(shape, list) for shape in sizes) else [sizes]
    words = kinds if isinstance(kinds, list) else [kinds]
    total = 0
    for index, shape in enumerate(shapes):
        dtype = find_dtype(str(words[min(index, len(words) - 1)])) if words else None
        numbers = integers(shape, MOST_BYTES)
        if numbers is None or len(numbers) > 64:
            return None
        total += prod(numbers) * (dtype.size_bytes if dtype else 4)
        if total > MOST_BYTES:
            return None
    return total


def _size(operation: str, sent: int, got: int, ranks: int) -> int:
    """Return the size of a call: that of a rank's larger buffer [bytes]."""
    if operation in GATHERING:
        return max(got, sent * ranks)
    if operation in BLOCKWISE and operation != "alltoall":
        return max(sent, got * ranks)
    return sent or got


def _took_ps(entry: dict[str, Any]) -> int:
    """Return the duration of a call [ps]: from CUDA events, otherwise from the watchdog."""
    duration_ms = number(entry.get("duration_ms"))
    if duration_ms is not None and 0 < duration_ms < 1e9:
        return round(duration_ms * 1e9)
    ends = [
        integer(entry.get(f"time_discovered_{moment}_ns"), MOST_NS)
        for moment in ("started", "completed")
    ]
    if ends[0] and ends[1] and ends[1] > ends[0]:
        return min((ends[1] - ends[0]) * PS_PER_NS, 1 << 60)
    return ABSENT


def _match(job: _Job) -> list[tuple[Event, int]]:
    """Return the calls still present on all recorded ranks that take part, with the numbers of their matches."""
    skipped, counts = job.recording.skipped, MatchCounts()
    ends: list[tuple[Event, MatchedEnd, int]] = []
    for call in job.calls:
        ranks = job.members(call)
        if call.rank not in ranks or (
            call.kind != "collective" and not 0 <= call.peer < len(ranks)
        ):
            skipped["calls of ranks that their group does not have"] += 1
            continue
        if call.kind == "collective":
            end = by_number(call.stream, (call.operation, call.sequence), call.rank)
            ends.append((call, end, counts.number(end)))
        else:
            end = by_pair(call.stream, call.kind, ranks.index(call.rank), call.peer)
            ends.append((call, end, counts.add(end)))
    result = []
    for call, end, match in ends:
        ranks = job.members(call)
        needed: Iterable[Any] = ("send", "recv")
        reason = "messages with only one end recorded"
        if call.kind == "collective":
            needed = job.recorded.keys() & set(ranks)
            reason = "calls that not every rank of their group has (any more)"
        elif ranks[call.peer] not in job.recorded:
            needed = ()
        if counts.lone(end.key, needed):
            skipped[reason] += 1
        else:
            result.append((call, match))
    return result


def _assume(recording: Recording, job: _Job, events: list[Event]) -> None:
    """Add the assumptions about missing information."""
    recording.assumed.append(
        "only calls are recorded: the work between them is the pause between their times"
    )
    if any(call.operation in ROOTED for call in events):
        recording.assumed.append(
            "roots are not recorded; taken as the first rank of the group"
        )
    unknown = {call.stream for call in events} - set(job.ranks)
    if unknown:
        recording.assumed.append(
            f"the ranks of group {min(unknown)} are not recorded: all {recording.num_ranks} ranks"
        )
    if not any(call.duration_ps > 0 for call in events):
        recording.assumed.append(
            "no measured times (TORCH_NCCL_ENABLE_TIMING=1 records them)"
        )
