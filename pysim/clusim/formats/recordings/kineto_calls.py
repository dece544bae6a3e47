"""Calls in PyTorch profiler traces: operation, size and process group of NCCL's kernels.

The name of a kernel contains little: NCCL compiles one kernel per operation and names it ``RING_LL`` for any algorithm
and protocol (``best_kernel`` in its src/device/generate.py), so neither is read from it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from clusim.base.match import MatchCounts, by_number, by_order, by_pair
from clusim.base.terms.dtypes import find_dtype, find_redop
from clusim.base.terms.operations import (
    GATHERING,
    REDUCING,
    ROOTED,
    SCATTERING,
    full_bytes,
    operation_starting,
)
from clusim.formats.recordings.jsonstream import integer
from clusim.formats.recordings.kineto_arguments import (
    SIZES,
    has_collective,
    has_size,
    operation_of,
)
from clusim.formats.recordings.kineto_trace import (
    HostCall,
    KinetoCall,
    Span,
    Trace,
    external,
    ranks_in,
)
from clusim.formats.recordings.model import ABSENT, MOST_BYTES, Group, Recording

_MESSAGES = ("send", "recv")
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+?)(?:_|\(|$)")
_KERNEL_TYPE = re.compile(
    r"_(f16|bf16|f32|f64|f8e4m3|f8e5m2|[iu](?:8|32|64)|half|float|double|__nv_bfloat16)(?:_|\(|$)"
)
_UNKNOWN = "communication kernels without operation, size and group: kept as kernels of their recorded length"


class Resolver:
    """Resolver of the calls of one trace's kernels.

    Parameters
    ----------
    recording : Recording
        Receives the process groups, assumptions and kernels without a known call.
    """

    def __init__(self, trace: Trace, recording: Recording) -> None:
        self.trace, self.found = trace, recording
        self.by_id = {call.external: call for call in trace.calls if call.external}
        self.threads: dict[str, list[HostCall]] = {}
        for call in sorted(trace.calls, key=lambda call: (call.start, -call.length)):
            self.threads.setdefault(call.thread, []).append(call)
        self.starts = {
            thread: [c.start for c in calls]
            for thread, calls in self.threads.items()
        }

    def calls(self) -> dict[int, list[KinetoCall]]:
        """Return the calls of each NCCL span: several for a batch of messages, empty if unknown."""
        spans = self.trace.spans
        nccl = [at for at, span in enumerate(spans) if span.nccl]
        by_time: dict[int, list[dict[str, Any]]] = {}
        used: set[int] = set()
        for at in nccl:
            args = self._args(spans[at], used)
            by_time[at] = [args] if args is not None else []
        self._batches([at for at in nccl if not by_time[at]], by_time, used)
        result: dict[int, list[KinetoCall]] = {}
        for at in nccl:
            calls = [self._call(args) for args in by_time[at]]
            result[at] = [call for call in calls if call is not None]
            if not calls:
                self.found.skipped[_UNKNOWN] += 1
        return result

    def _args(self, span: Span, used: set[int]) -> dict[str, Any] | None:
        """Return the arguments of a kernel: recorded, or those of the host calls that launched it.

        Host calls are found by the number of their operation, or by the time of the launch.
        """
        number = external(span.args)
        used.add(number)
        if has_collective(span.args) and has_size(span.args):
            return span.args
        calls = self._enclosing_calls(span)
        # Some releases write the launch number instead of the operation's.
        call = self.by_id.get(number) if number != span.launch or not calls else None
        if call is not None and has_collective(call.args) and has_size(call.args):
            return call.args
        if call is not None:
            calls = [call, *(other for other in calls if other is not call)]
        for call in calls:
            used.add(call.external)
        result = combine_arguments(
            span.name, span.args, (call.args for call in calls)
        )
        return result if has_collective(result) else None

    def _enclosing_calls(self, span: Span) -> list[HostCall]:
        """Return the host calls during which a kernel was launched, the innermost first."""
        thread, time = self.trace.launches.get(span.launch, ("", ABSENT))
        calls = self.threads.get(thread, [])
        first = bisect_right(self.starts.get(thread, []), time)
        candidates = (calls[at] for at in range(first - 1, max(-1, first - 9), -1))
        return [
            call
            for call in candidates
            if call.length and call.start + call.length >= time
        ]

    def _batches(
        self,
        kernels: Sequence[int],
        by_time: dict[int, list[dict[str, Any]]],
        used: set[int],
    ) -> None:
        """Assign host messages without a kernel to the next send/receive kernel launched later."""
        waiting = self._unused_calls(used)
        spans, first = self.trace.spans, 0
        launched = [
            (self.trace.launches.get(spans[at].launch, ("", ABSENT))[1], at)
            for at in kernels
        ]
        for time, at in sorted(launched):
            if time == ABSENT or "sendrecv" not in spans[at].name.lower():
                continue
            last = first
            while last < len(waiting) and waiting[last].start <= time:
                last += 1
            by_time[at] = [call.args for call in waiting[first:last]]
            first = last

    def _unused_calls(self, used: set[int]) -> list[HostCall]:
        """Return host messages without a known kernel; nested calls of one message are joined."""
        result: list[HostCall] = []
        for calls in self.threads.values():
            outer: HostCall | None = None
            for call in calls:
                if (
                    call.external in used
                    or operation_of(call.args.get("Collective name"))
                    not in _MESSAGES
                ):
                    continue
                if outer is not None and _inside(call, outer):
                    outer.args = combine_arguments("", outer.args, [call.args])
                else:
                    outer = replace(call)
                    result.append(outer)
        return sorted(result, key=lambda call: call.start)

    def _call(self, args: dict[str, Any]) -> KinetoCall | None:
        """Return a call; None (counted) if its description is incomplete."""
        name = operation_of(args.get("Collective name"))
        kind, ranks = find_dtype(str(args.get("dtype"))), self._ranks(args)
        if not name or kind is None or not ranks:
            self.found.skipped[_UNKNOWN] += 1
            return None
        num_bytes = _bytes(name, args, kind.size_bytes, len(ranks))
        if num_bytes is None:
            self.found.skipped[
                "collectives without a size: kept as kernels of their recorded length"
            ] += 1
            return None
        seq = integer(args.get("Seq"), 1 << 48)
        result = KinetoCall(
            name,
            ABSENT,
            num_bytes,
            kind.carrier,
            number=ABSENT if seq is None else seq,
        )
        if name in _MESSAGES:
            peer = self._peer(name, args, ranks)
            if peer is None:
                self.found.skipped[
                    "messages without a peer: kept as kernels of their recorded length"
                ] += 1
                return None
            result.peer = peer
        elif name in ROOTED:
            root = integer(args.get("Root", args.get("Rank")), len(ranks) - 1)
            if root is None:
                self.found.assume(
                    "roots are not recorded; taken as position 0 of the group"
                )
            result.root = root or 0
        elif name == "alltoall":
            result.splits = self._splits(args, len(ranks), kind.size_bytes)
        result.redop = find_redop(str(args.get("Reduction", ""))) or "sum"
        result.group = self.found.group(
            str(args.get("Process Group Name", "")), ranks
        )
        return result

    def _ranks(self, args: dict[str, Any]) -> tuple[int, ...]:
        """Return the ranks of a process group; empty if unknown."""
        size = integer(args.get("Group size"), 1 << 20)
        for ranks in self._candidates(args, size):
            fits = size is None or len(ranks) == size
            if (
                ranks
                and fits
                and len(set(ranks)) == len(ranks)
                and self.trace.rank in ranks
            ):
                return ranks
        return ()

    def _candidates(
        self, args: dict[str, Any], size: int | None
    ) -> Iterator[tuple[int, ...]]:
        ranks, complete = ranks_in(args.get("Process Group Ranks"))
        if complete:
            yield ranks
        name = args.get("Process Group Name")
        if name is not None:
            yield self.trace.groups.get(str(name), ())
        if not complete and size and len(ranks) > 1:
            step = ranks[1] - ranks[0]
            regular = tuple(ranks[0] + i * step for i in range(size))
            if step > 0 and regular[: len(ranks)] == ranks:
                self.found.assume(
                    "lists of ranks are cut in the trace; continued in the steps they begin with"
                )
                yield regular
        if size and size == self.found.num_ranks:
            yield tuple(range(size))
        first, stride = (
            integer(args.get(f"Global rank {key}")) for key in ("start", "stride")
        )
        if size and first is not None and stride:
            yield tuple(first + stride * i for i in range(size))
        if size is None and args.get("shapes") and len(self.trace.groups) < 2:
            self.found.assume(
                "process groups are not recorded; every collective is taken to be of all ranks"
            )
            yield tuple(range(self.found.num_ranks))

    def _peer(
        self, name: str, args: dict[str, Any], ranks: tuple[int, ...]
    ) -> int | None:
        """Return the position of the other end of a message."""
        other = integer(args.get("Dst Rank" if name == "send" else "Src Rank"))
        at = integer(args.get("Rank"), len(ranks) - 1)
        if other is not None:
            at = ranks.index(other) if other in ranks else None
        return None if at is None or ranks[at] == self.trace.rank else at

    def _splits(self, args: dict[str, Any], size: int, item: int) -> tuple[int, ...]:
        """Return the bytes that an all-to-all sends to every position; empty if even or unknown."""
        parts, complete = ranks_in(args.get("In split size"))
        if not parts and not ranks_in(args.get("Out split size"))[0]:
            sent, got = (integer(args.get(key)) for key in SIZES)
            if got not in (None, sent):
                self.found.assume(
                    "splits of some all-to-alls are not recorded; taken as even"
                )
            return ()
        total, count = sum(parts), integer(args.get("In msg nelems")) or 0
        if not complete or len(parts) != size or not total or not count:
            self.found.assume(
                "splits of some all-to-alls are cut or missing; taken as even"
            )
            return ()
        if len(set(parts)) == 1:
            return ()
        return tuple(part * count // total * item for part in parts)


def _inside(call: HostCall, outer: HostCall) -> bool:
    """Return True if a call is nested in another of the same message.

    False if both have sizes from their metadata: these are separate messages.
    """
    kinds = {
        operation_of(other.args.get("Collective name")) for other in (call, outer)
    }
    have_sizes = all(
        has_size(other.args) and not other.args.get("shapes")
        for other in (call, outer)
    )
    within = call.start + call.length <= outer.start + outer.length
    return within and len(kinds) == 1 and not have_sizes


def _bytes(
    operation: str, args: dict[str, Any], size: int, ranks: int
) -> int | None:
    """Return the size of a message, or of the largest buffer of a collective's rank [bytes]."""
    sent, got = (
        integer(args.get("In msg nelems")),
        integer(args.get("Out msg nelems")),
    )
    if operation == "barrier":
        return 4
    if sent is None and got is None:
        return None
    sent, got = sent or 0, got or 0
    if operation in _MESSAGES:
        size_bytes = (sent if operation == "send" else got) or sent or got
    elif operation in GATHERING:
        # Only the root of a gather has an output.
        size_bytes = max(got, full_bytes(operation, sent, ranks))
    elif operation in SCATTERING:
        size_bytes = max(sent, full_bytes(operation, got, ranks))
    else:
        size_bytes = max(sent, got)
    return size_bytes * size if 0 < size_bytes * size < MOST_BYTES else None


def number_calls(
    calls: Sequence[tuple[int, KinetoCall]], groups: Sequence[Group]
) -> list[str]:
    """Number the calls of all ranks, so that matching calls have equal numbers.

    Calls are (rank, call) in the order of each rank. They are matched by PyTorch's ``Seq``, even if recordings of ranks
    began at different calls; without it, and messages, by order.

    Returns
    -------
    notes : list of str
        Assumptions.
    """
    of_group: dict[int, list[tuple[int, KinetoCall]]] = {}
    messages = MatchCounts()
    for rank, call in calls:
        if call.operation in _MESSAGES:
            position = groups[call.group].ranks.index(rank)
            call.number = messages.add(
                by_pair(call.group, call.operation, position, call.peer)
            )
        else:
            of_group.setdefault(call.group, []).append((rank, call))
    notes: list[str] = []
    for group, members in of_group.items():
        counts = MatchCounts()
        stated = all(call.number != ABSENT for _, call in members)
        for rank, call in members:
            end = (
                by_number(group, call.number, rank)
                if stated
                else by_order(group, rank)
            )
            call.number = counts.number(end)
        if not stated and counts.lone(group, {rank for rank, _ in members}):
            notes.append(
                "ranks recorded different numbers of calls of a group, without PyTorch's Seq; matched from the first"
            )
    return list(dict.fromkeys(notes))


@lru_cache(4096)
def of_kernel(name: str) -> tuple[str, str]:
    """Return the operation and element type in the name of an NCCL kernel; empty if unknown.

    Only reductions have an element type, other operations move bytes. Messages are not operations.
    """
    kernel = _KERNEL.search(name)
    operation = operation_starting(kernel[1]) if kernel else ""
    kind = _KERNEL_TYPE.search(name)
    reduces = operation in REDUCING
    return operation, (kind[1].removeprefix("__nv_") if kind and reduces else "")


def combine_arguments(
    kernel: str, recorded: dict[str, Any], calls: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Return the combined arguments of a kernel and of the calls around its launch.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    recorded : dict
        Arguments of the kernel.
    others : iterable of dict
        Arguments of the calls, the nearest first; a call of another operation than those before is skipped.
    """
    result = {
        key: value
        for key, value in recorded.items()
        if key not in ("External id", "correlation")
    }
    by_name, kind = of_kernel(kernel)
    for args in calls:
        words = {
            operation_of(some.get("Collective name")) for some in (args, result)
        }
        if len(words - {""}) > 1:
            continue
        have_sizes = has_size(result)
        for key, value in args.items():
            if key not in SIZES or not have_sizes:
                result.setdefault(key, value)
    if not has_collective(result) and by_name and has_size(result):
        result["Collective name"] = by_name
    if kind and find_dtype(str(result.get("dtype"))) is None:
        result["dtype"] = kind
    return result
