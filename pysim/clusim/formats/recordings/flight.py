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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import PurePath
from typing import Any

from clusim.base.errors import InputError, one_line
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import BLOCKWISE, GATHERING, ROOTED, operation_starting
from clusim.formats.recordings.common import Groups, clone_peers, finish
from clusim.formats.recordings.jsonstream import read_items
from clusim.formats.recordings.model import ABSENT, Event, EventKind, Recording
from clusim.formats.recordings.source import FileStream, Paths, integer, number, streams

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
    ("torch.jit._pickle", f"build_{kind}list") for kind in ("int", "double", "bool", "tensor")
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
        raise pickle.UnpicklingError(f"names {module[:40]}.{name[:40]}, which is not run")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to other files")


def unpickled(data: bytes, where: str) -> Any:
    """Return the value of a pickle.

    Raises
    ------
    InputError
        The pickle is damaged, too large, or contains more than plain values.
    """
    if len(data) > MOST_PICKLE_BYTES:
        raise InputError(f"{where}: a pickle of more than {MOST_PICKLE_BYTES >> 20} MiB")
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
PS_PER_NS = 1000
MOST_CALLS = 2_000_000
"""Maximum number of calls of all ranks."""

MOST_CALL_BYTES = 1 << 44
"""Largest call [bytes]."""

MOST_NS = 1 << 61
_RANK = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin))?(?:\.(?:gz|xz|bz2))?$")
_MESSAGE = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})")
_OUTER = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter",
          "all_gather_into_tensor_coalesced": "all_gather", "reduce_scatter_tensor_coalesced": "reduce_scatter",
          "allreduce_coalesced": "allreduce", "all_reduce_barrier": "barrier", "barrier": "barrier"}  # fmt: skip


@dataclass(slots=True)
class _Call:
    """Entry of a dump."""

    rank: int
    group: str
    kind: EventKind
    operation: str
    sequence: int
    size: int
    dtype: str
    created: int
    took_ps: int
    peer: int
    launch: int
    where: str


@dataclass(slots=True)
class _Job:
    """Content read so far; `ranks` has the known ranks of each group."""

    calls: list[_Call] = field(default_factory=list)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    recorded: dict[int, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    version: str = ""


def read(paths: Paths) -> Recording:
    """Read the dumps of one job (plain, compressed, a directory or an archive).

    Raises
    ------
    InputError
        A file is not a dump, or two are of the same rank.
    """
    job, name = _Job(), ""
    for index, file in enumerate(
        streams(paths, lambda base: not base.endswith((".py", ".md", ".log")))
    ):
        name = name or file.name
        _file(job, file, index)
    most = max((rank for own in job.ranks.values() for rank in own), default=-1)
    result = Recording(KIND, name, max(most, *job.recorded, -1) + 1, nccl_version=job.version)
    everyone = tuple(range(result.num_ranks))
    groups = Groups()
    kept = _whole(job, everyone)
    origin = min((call.created for call in kept if call.created >= 0), default=0)
    messages: Counter[tuple[str, int, int, str]] = Counter()
    for call in kept:
        own = job.ranks.get(call.group, everyone)
        size = len(own)
        event = _event(call, groups.add(call.group, own), size, origin)
        if call.kind != "collective":
            pair = (call.group, call.rank, call.peer, call.kind)
            event = _message(call, event, messages[pair])
            messages[pair] += 1
        result.events.append(event)
    if kept:
        _assume(result, job, kept)
        clone_peers(result, groups)
    return finish(result, groups, job.skipped)


def _file(job: _Job, file: FileStream, index: int) -> None:
    """Read one dump: a pickle in one pass, JSON in two, as its table of groups may be last."""
    if file.head(1) == b"\x80":
        data = unpickled(file.whole(), file.name)
        table = data if isinstance(data, dict) else None
    else:
        table, _ = read_items(file, "entries", lambda entry: None)
        data = None
    if table is None or (data is None and file.head(4096).lstrip()[:1] == b"["):
        raise InputError(f"{file.name}: not a dump of the flight recorder: no table of entries")
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
    job.version = job.version or (version if isinstance(version, str) and len(version) < 32 else "")
    _groups(job, table.get("pg_config"), file.name)
    taken = _Entries(job, rank, file.name)
    if data is None:
        if not read_items(file, "entries", taken.take)[1]:
            job.skipped["dumps without entries"] += 1
    elif isinstance(data.get("entries"), list):
        for entry in data["entries"]:
            taken.take(entry)
    else:
        job.skipped["dumps without entries"] += 1
    taken.calls.sort(key=lambda found: found[0])
    job.calls += [call for _, call in taken.calls]


class _Entries:
    """Collector of the entries of a dump, each with its number."""

    def __init__(self, job: _Job, rank: int, name: str) -> None:
        self.job, self.rank, self.name = job, rank, name
        self.calls: list[tuple[int, _Call]] = []
        self.at = 0

    def take(self, entry: Any) -> None:
        """Keep the call of an entry."""
        if not isinstance(entry, dict):
            return
        self.at += 1
        if len(self.job.calls) + len(self.calls) >= MOST_CALLS:
            self.job.skipped[f"calls after the first {MOST_CALLS}"] += 1
            return
        where = f"{self.name}: entry {self.at - 1}"
        call = _call(self.job, entry, self.rank, where)
        if call is not None:
            self.calls.append((integer(entry.get("record_id")) or 0, call))


def _groups(job: _Job, config: Any, where: str) -> None:
    """Record the ranks of groups."""
    if not isinstance(config, dict):
        return
    for name, about in config.items():
        listed = about.get("ranks") if isinstance(about, dict) else None
        if isinstance(listed, str) and len(listed) <= 1 << 22:
            listed = re.findall(r"\d{1,9}", listed)
        ranks = (
            tuple(integer(rank, MOST_RANKS - 1) for rank in listed)
            if isinstance(listed, list)
            else ()
        )
        own = tuple(rank for rank in ranks if rank is not None)
        if not own or len(set(own)) != len(ranks):
            continue
        key = str(name)[:200]
        if job.ranks.setdefault(key, own) != own:
            raise InputError(
                f"{where}: group {key!r} has other ranks than in another file; use the dumps of one job"
            )


def _call(job: _Job, entry: dict[str, Any], rank: int, where: str) -> _Call | None:
    """Return the call of an entry; None if it is not a call."""
    name = entry.get("profiling_name")
    backend, _, what = name.partition(":") if isinstance(name, str) else ("", "", "")
    if backend != "nccl" or what == "coalesced":
        job.skipped[
            f"entries of {backend[:20]}" if backend != "nccl" else "entries of complete launches"
        ] += 1
        return None
    state = entry.get("state")
    if state not in (None, "completed"):
        job.skipped[f"calls that were only {str(state)[:20]}"] += 1
        return None
    pair = entry.get("process_group")
    group = str(pair[0] if isinstance(pair, (list, tuple)) and pair else entry.get("pg_id", "0"))[
        :200
    ]
    message = _MESSAGE.match(what)
    operation = "" if message else _OUTER.get(what) or operation_starting(what) or ""
    sent, got = (
        _bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes"))
        for side in ("input", "output")
    )
    key = "p2p_seq_id" if message else "collective_seq_id"
    sequence = integer(entry.get(key))
    if sequence is None:
        sequence = integer(entry.get("seq_id"))
    if (not operation and not message) or sequence is None or sent is None or got is None:
        job.skipped[f"calls {what[:40]!r} without a known operation, number or size"] += 1
        return None
    kind: EventKind = "collective"
    peer = ABSENT
    if message:
        kind = "send" if message[1] == "send" else "recv"
        peer = int(message[4])
    size = len(job.ranks.get(group, ()))
    created = integer(entry.get("time_created_ns"), MOST_NS)
    kinds = entry.get("input_dtypes") or entry.get("output_dtypes")
    word = kinds[0] if isinstance(kinds, list) and kinds else kinds
    dtype = find_dtype(word) if isinstance(word, str) else None
    return _Call(
        rank, group, kind, operation, sequence, _size(operation, sent, got, size),
        dtype.name if dtype else "uint8", ABSENT if created is None else created, _took_ps(entry), peer,
        integer(entry.get("op_id")) or ABSENT, where,
    )  # fmt: skip


def _bytes(sizes: Any, kinds: Any) -> int | None:
    """Return the total size of tensors [bytes]; None if invalid."""
    if not isinstance(sizes, list):
        return 0 if sizes is None else None
    shapes = sizes if all(isinstance(shape, list) for shape in sizes) else [sizes]
    words = kinds if isinstance(kinds, list) else [kinds]
    total = 0
    for index, shape in enumerate(shapes):
        word = words[min(index, len(words) - 1)] if words else None
        dtype = find_dtype(word) if isinstance(word, str) else None
        numbers = [integer(size, MOST_CALL_BYTES) for size in shape]
        if len(numbers) > 64 or any(size is None for size in numbers):
            return None
        total += prod(size or 0 for size in numbers) * (dtype.size_bytes if dtype else 4)
        if total > MOST_CALL_BYTES:
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
    took = number(entry.get("duration_ms"))
    if took is not None and 0 < took < 1e9:
        return round(took * 1e9)
    ends = [
        integer(entry.get(f"time_discovered_{what}_ns"), MOST_NS)
        for what in ("started", "completed")
    ]
    if ends[0] and ends[1] and ends[1] > ends[0]:
        return min((ends[1] - ends[0]) * PS_PER_NS, 1 << 60)
    return ABSENT


def _whole(job: _Job, everyone: Sequence[int]) -> list[_Call]:
    """Return the calls still present on all recorded ranks of their group."""
    seen: Counter[tuple[str, str, int]] = Counter()
    ends: Counter[tuple[str, int, int, str]] = Counter()
    for call in job.calls:
        if call.kind == "collective":
            seen[call.group, call.operation, call.sequence] += 1
    kept: list[_Call] = []
    for call in job.calls:
        own = job.ranks.get(call.group, everyone)
        if call.rank not in own or (call.kind != "collective" and not 0 <= call.peer < len(own)):
            job.skipped["calls of ranks that their group does not have"] += 1
            continue
        if call.kind == "collective":
            recorded = sum(rank in job.recorded for rank in own)
            if seen[call.group, call.operation, call.sequence] != recorded:
                job.skipped["calls that not every rank of their group has (any more)"] += 1
                continue
        kept.append(call)
        if call.kind != "collective":
            ends[call.group, call.rank, call.peer, call.kind] += 1
    return [call for call in kept if call.kind == "collective" or _met(job, call, ends, everyone)]


def _met(
    job: _Job, call: _Call, ends: Counter[tuple[str, int, int, str]], everyone: Sequence[int]
) -> bool:
    """Return True if the peer was not recorded, or has the same number of messages."""
    own = job.ranks.get(call.group, everyone)
    other = "recv" if call.kind == "send" else "send"
    mine, peer = own.index(call.rank), own[call.peer]
    same = ends[call.group, call.rank, call.peer, call.kind] == ends[call.group, peer, mine, other]
    if peer in job.recorded and not same:
        job.skipped["messages with only one end recorded"] += 1
        return False
    return True


def _event(call: _Call, group: int, size: int, origin: int) -> Event:
    return Event(
        call.kind, call.rank, call.group,
        start_ps=(call.created - origin) * PS_PER_NS if call.created >= 0 else ABSENT,
        duration_ps=call.took_ps, group=group, sequence=call.sequence, operation=call.operation,
        bytes=call.size, dtype=call.dtype, root=0 if call.operation in ROOTED else ABSENT, where=call.where,
    )  # fmt: skip


def _message(call: _Call, event: Event, sequence: int) -> Event:
    return Event(
        event.kind, event.rank, event.stream, start_ps=event.start_ps, duration_ps=event.duration_ps,
        group=event.group, sequence=sequence, bytes=event.bytes, dtype=event.dtype, peer=call.peer,
        bunch=call.sequence, where=event.where,
    )  # fmt: skip


def _assume(found: Recording, job: _Job, kept: list[_Call]) -> None:
    """Add the assumptions about missing information."""
    found.assumed.append(
        "only calls are recorded: the work between them is the pause between their times"
    )
    if any(call.operation in ROOTED for call in kept):
        found.assumed.append("roots are not recorded; taken as the first rank of the group")
    unknown = {call.group for call in kept} - set(job.ranks)
    if unknown:
        found.assumed.append(
            f"the ranks of group {min(unknown)} are not recorded: all {found.num_ranks} ranks"
        )
    if not any(call.took_ps > 0 for call in kept):
        found.assumed.append("no measured times (TORCH_NCCL_ENABLE_TIMING=1 records them)")
