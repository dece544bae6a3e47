"""Calls of all ranks matched to operations of communicators, with logged algorithms.

The tuner's n-th line for a thread, name and size belongs to the n-th call with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.match import match_rows, row_hash, turns
from clusim.base.terms.dtypes import BY_NUMBER
from clusim.base.terms.operations import BLOCKWISE, ENDS, find_operation
from clusim.formats.logs.columns import NONE, Repeating, count_rows, small
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.raw_log import RawLog

Numbers = NDArray[np.integer]


def find_choices(facts: RawLog, *sizes: NDArray[np.int64]) -> Numbers:
    """Return the tuner's choice for each call, NONE if the same thread did not print it.

    The device in the header of a tuner's line can differ from that of the call: a thread that drives several
    GPUs prints one line for the calls of all, with the current device. Calls without a line of the same
    device are therefore matched without the device.

    Parameters
    ----------
    sizes : ndarray
        The size of each kind of call [B]; the first array with a matching line counts.

    Returns
    -------
    ndarray
        The number of the choice of each call.
    """
    tunings, calls = facts.tunings.columns(), facts.calls
    if len(tunings["choice"]) == 0:
        return np.broadcast_to(np.full(1, NONE, np.int8), len(calls))
    chosen = np.full(len(calls), NONE, np.min_scalar_type(-len(facts.choices) - 1))
    matching = _Matching(facts, chosen, np.ones(len(tunings["choice"]), np.bool_))
    for speaker in (np.arange(max(len(facts.threads), 1)), _without_device(facts)):
        for size in sizes:
            for named in (True, False):
                matching.attach(speaker, size, named=named)
    return chosen


def _without_device(facts: RawLog) -> NDArray[np.int64]:
    """Return a number for each thread that is equal for all devices it drives."""
    ids: dict[tuple[int, int], int] = {}
    threads = [ids.setdefault((t.process, t.tid), len(ids)) for t in facts.threads]
    return np.array(threads or [0], np.int64)


@dataclass
class _Matching:
    """Choices of calls, and the tuner's lines that are not assigned to a call yet."""

    facts: RawLog
    chosen: Numbers
    free: NDArray[np.bool_]

    def attach(
        self, speaker: NDArray[np.int64], sizes: NDArray[np.int64], *, named: bool
    ) -> None:
        """Assign free tuner lines to calls without a choice, by handle, size and name if present."""
        lines, key, numbers = self._lines(speaker, named=named)
        if len(lines) == 0:
            return
        keys, begin, count = np.unique(key, return_index=True, return_counts=True)
        calls = self.facts.calls
        kinds, which = calls.kinds, calls.which
        name = kinds["name"].astype(np.int64)
        spoken = speaker[kinds["thread"].astype(np.int64)]
        hashes = row_hash(spoken, sizes, name if named else np.full_like(name, NONE))
        at = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
        line_of = np.where(keys[at] == hashes, at, NONE)
        rows = np.flatnonzero((line_of[which] >= 0) & (self.chosen == NONE))
        of_line = line_of[which[rows]]
        place = turns(of_line, kinds["member"][which[rows]])
        fits = place < count[of_line]
        hit = (begin[of_line] + place)[fits]
        self.chosen[rows[fits]] = numbers[hit]
        self.free[lines[hit]] = False

    def _lines(
        self, speaker: NDArray[np.int64], *, named: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Return the free lines with or without a name, sorted by key, with keys and choices."""
        facts, tunings = self.facts, self.facts.tunings.columns()
        has_name = np.array([bool(choice.name) for choice in facts.choices])
        lines = np.flatnonzero(self.free)
        lines = lines[has_name[tunings["choice"][lines]] == named]
        numbers = tunings["choice"][lines].astype(np.int64)
        names = {name: i for i, name in enumerate(facts.names)}
        name = np.array(
            [names.get(choice.name, NONE) for choice in facts.choices], np.int64
        )
        size = np.array([choice.size for choice in facts.choices], np.int64)
        spoken = speaker[tunings["thread"][lines].astype(np.int64)]
        key = row_hash(
            spoken,
            size[numbers],
            name[numbers] if named else np.full_like(spoken, NONE),
        )
        order = np.argsort(key, kind="stable")
        return lines[order], key[order], numbers[order]


Columns = dict[str, NDArray[np.integer]]

DATATYPES = tuple(item.name for item in BY_NUMBER)
TYPE_BYTES = np.array([item.size_bytes for item in BY_NUMBER], np.int64)

MOST_ALIKE = 1 << 15
"""Maximum number of kinds of operations, by size and choice, in summaries."""


def _has_blocks(name: str) -> bool:
    result = find_operation(name)
    return result is not None and result.name in BLOCKWISE


def message_bytes(
    facts: RawLog, calls: Columns, n_ranks: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return the size of each call as defined by nccl-tests: its largest buffer [B].

    0 for unknown types.
    """
    kind = calls["type"].astype(np.int64)
    element_bytes = np.where(
        kind < len(TYPE_BYTES), TYPE_BYTES[np.minimum(kind, len(TYPE_BYTES) - 1)], 0
    )
    has_blocks = np.array([_has_blocks(name) for name in facts.names] or [False])
    scale = (
        np.where(has_blocks[calls["name"].astype(np.int64)], n_ranks, 1)
        if len(kind)
        else 1
    )
    # Invalid numbers of a damaged log must not result in a size.
    size = calls["count"].astype(np.float64) * element_bytes * scale
    return np.where(size < 2.0**62, size, 0).astype(np.int64)


def find_operations(
    facts: RawLog, communicators: Sequence[LoggedCommunicator]
) -> Repeating:
    """Return the operations in the order of their first line.

    Columns: `communicator`, `name`, `op_count`, `count`, `type`, `op`, `root`, `size` [B], `ranks` (number
    of calls found), `agree` (1 if they are equal), `stream`, `choice`, `time_ns` and `line` of the first.
    Calls of one communicator with one opCount and name form one operation; each Send, Recv or one-sided call is a
    separate operation, with the caller as `rank`.
    """
    of_member = np.full(max(len(facts.members), 1), NONE, np.int64)
    n_ranks = np.ones(max(len(facts.members), 1), np.int64)
    for communicator in communicators:
        of_member[communicator.handles] = communicator.number
        n_ranks[communicator.handles] = max(communicator.n_ranks, 1)
    calls = facts.calls
    if not len(calls):
        return _from_tunings(facts, of_member)
    sizes = message_bytes(facts, calls.kinds, n_ranks[calls.kinds["member"]])
    of_a_rank = message_bytes(facts, calls.kinds, np.ones(1, np.int64))
    choices = find_choices(facts, of_a_rank, sizes)
    # Calls of one operation share one opCount; opCounts are matched in shares to limit memory.
    shares = 1 + len(calls) // _TOGETHER
    share = (calls.column("op_count") % shares).astype(np.min_scalar_type(shares))
    parts = []
    for number in range(shares):
        rows = np.flatnonzero(share == number)
        some = {name: calls.column(name, rows) for name in ("member", *_OF_FIRST)}
        some |= {"size": sizes[calls.which[rows]], "choice": choices[rows]}
        matched = _match_members(facts, some, of_member)
        parts.append({name: small(column) for name, column in matched.items()})
    operations = _empty()
    merged = {
        name: np.concatenate([part[name] for part in parts])
        for name in operations.names
    }
    order = np.argsort(merged["line"], kind="stable")
    operations.add({name: column[order] for name, column in merged.items()})
    return operations


_OF_FIRST = (
    "name",
    "op_count",
    "count",
    "type",
    "op",
    "root",
    "stream",
    "time_ns",
    "line",
)

_TOGETHER = 1 << 19
"""Approximate number of calls that are matched together."""


def _empty() -> Repeating:
    return Repeating(
        "communicator", "ranks", "agree", "rank", "choice", "size", *_OF_FIRST,
        running=("op_count", "time_ns", "line"),
    )  # fmt: skip


def _match_members(
    facts: RawLog, calls: Columns, of_member: NDArray[np.int64]
) -> Columns:
    """Return the operations of these calls, in the order of their first lines."""
    member, name, op_count = calls["member"], calls["name"], calls["op_count"]
    rank_of = np.array([member.rank for member in facts.members] or [NONE], np.int64)
    point = np.array([name in ENDS for name in facts.names])[name]
    caller = np.where(point, member.astype(np.int32), NONE)
    key = of_member[member], op_count, name, caller
    order, starts = match_rows(key, member, calls["line"])
    first = order[starts]
    agree = np.ones(len(starts), np.bool_)
    for column in ("count", "type", "op", "root"):
        values = calls[column][order]
        agree &= _reduce_groups(np.minimum, values, starts) == _reduce_groups(
            np.maximum, values, starts
        )
    result: Columns = {
        "communicator": of_member[member[first]],
        "ranks": np.diff(starts, append=len(order)),
        "agree": agree.astype(np.int8),
        "rank": np.where(point[first], rank_of[member[first]], NONE),
        "choice": _reduce_groups(np.maximum, calls["choice"][order], starts),
        "size": calls["size"][first],
    }
    result |= {column: calls[column][first] for column in _OF_FIRST}
    by_line = np.argsort(result["line"])
    return {column: values[by_line] for column, values in result.items()}


def _reduce_groups(
    ufunc: np.ufunc, values: NDArray[np.integer], starts: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Return the smallest or largest value of each group of rows; empty without rows."""
    return np.asarray(ufunc.reduceat(values, starts)) if len(starts) else values


def _from_tunings(facts: RawLog, of_member: NDArray[np.int64]) -> Repeating:
    """Return the operations of a log with only tuner lines: rank 0 prints one per operation."""
    tunings = facts.tunings.columns()
    spoken = np.array(
        [facts.spoken_of(t) for t in range(len(facts.threads))] or [NONE], np.int64
    )
    names = np.array(
        [facts.name_of(c.name) if c.name else NONE for c in facts.choices] or [NONE]
    )
    sizes = np.array([c.size for c in facts.choices] or [0], np.int64)
    operations = _empty()
    choice, member = tunings["choice"], spoken[tunings["thread"]]
    one = np.ones(len(choice), np.int64)
    operations.add(
        dict.fromkeys(operations.names, -one)
        | {
            "communicator": np.where(member >= 0, of_member[member], NONE),
            "name": names[choice], "op_count": 0 * one, "size": sizes[choice], "ranks": one,
            "agree": one, "choice": choice, "line": tunings["line"],
        }
    )  # fmt: skip
    return operations


def alike(
    operations: Repeating, ranks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the kinds of operations, their counts, and the number of omitted kinds.

    Parameters
    ----------
    ranks : ndarray
        Number of ranks by communicator, the last for operations without a communicator.

    Returns
    -------
    kinds : ndarray, shape (at most `MOST_ALIKE`, 6)
        Ranks, name, size [B], type, reduction and choice; above the limit the rarest are omitted.
    counts : ndarray
        Operations of each.
    """
    table = operations.tally("communicator", "name", "size", "type", "op", "choice")
    table[:, 0] = ranks[table[:, 0]]
    table = count_rows(table)
    left_out = max(0, len(table) - MOST_ALIKE)
    if left_out:
        table = table[np.argsort(-table[:, -1], kind="stable")[:MOST_ALIKE]]
    return table[:, :-1], table[:, -1], left_out
