"""Calls of all ranks matched to operations of communicators, with the algorithm each used where the log tells it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.facts import Facts
from clusim.vocabulary.dtypes import BY_NUMBER
from clusim.vocabulary.operations import BLOCKWISE, find_operation

__all__ = [
    "DATATYPES", "MOST_ALIKE", "TYPE_BYTES", "Columns", "alike", "find_operations", "message_bytes",
]  # fmt: skip

Columns = dict[str, NDArray[np.integer]]

DATATYPES = tuple(item.name for item in BY_NUMBER)
TYPE_BYTES = np.array([item.size_bytes for item in BY_NUMBER], np.int64)

MOST_ALIKE = 1 << 15
"""Kinds of operations, by size and what was chosen, that are told apart in summaries."""

_POINT = ("Send", "Recv")


def _has_blocks(name: str) -> bool:
    found = find_operation(name)
    return found is not None and found.name in BLOCKWISE


def message_bytes(facts: Facts, calls: Columns, n_ranks: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the size of each call as nccl-tests counts it: what the largest buffer holds [B], 0 for unknown types."""
    kind = calls["type"].astype(np.int64)
    each = np.where(kind < len(TYPE_BYTES), TYPE_BYTES[np.minimum(kind, len(TYPE_BYTES) - 1)], 0)
    many = np.array([_has_blocks(name) for name in facts.names] or [False])
    scale = np.where(many[calls["name"].astype(np.int64)], n_ranks, 1) if len(kind) else 1
    # Nonsense in a damaged log must not become a size.
    size = calls["count"].astype(np.float64) * each * scale
    return np.where(size < 2.0**62, size, 0).astype(np.int64)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def row_hash(*keys: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return one number for each row of keys."""
    value = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        value = (value ^ key.astype(np.uint64)) * _FACTOR
        value ^= value >> np.uint64(29)
    return value


def _sorted(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the stable order of `values`, in a narrow type."""
    order = np.argsort(values, kind="stable")
    return order.astype(np.int32) if len(order) < 1 << 31 else order


def _in_lines(lines: NDArray[np.integer], key: NDArray[np.uint64]) -> NDArray[np.integer]:
    """Return the order by `key`, rows with the same one by line."""
    if (lines[1:] >= lines[:-1]).all():
        return _sorted(key)
    by_line = _sorted(lines)
    order: NDArray[np.integer] = by_line[_sorted(key[by_line])]
    return order


def _ordinals(*keys: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return for each row how many rows with the same keys came before it."""
    value = row_hash(*keys)
    n = len(value)
    order = _sorted(value)
    value = value[order]
    starts = np.flatnonzero(np.concatenate(([True], value[1:] != value[:-1]))) if n else order
    del value
    ordinal = np.arange(n, dtype=order.dtype)
    ordinal -= np.repeat(starts.astype(order.dtype), np.diff(starts, append=n))
    result = np.empty(n, order.dtype)
    result[order] = ordinal
    return result


def _choices(facts: Facts, calls: Columns, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the tuner's choice for each call, NONE where it was not printed by the same thread.

    The device in front of a tuner's line need not be that of the call: a thread that drives GPUs prints one line
    for the calls of all, on whatever device it is then. So what no line of the same device fits is matched without it.
    """
    chosen = np.full(len(sizes), NONE, np.int32)
    tunings = facts.tunings.columns()
    if len(tunings["choice"]) == 0 or len(sizes) == 0:
        return chosen
    used = np.zeros(len(tunings["choice"]), np.bool_)
    for speaker in (np.arange(len(facts.threads)), _without_device(facts)):
        _attach(facts, calls, sizes, (chosen, used), speaker)
    return chosen


def _without_device(facts: Facts) -> NDArray[np.int64]:
    """Return a number for each thread that is the same for all devices it drives."""
    known: dict[tuple[int, int], int] = {}
    threads = [known.setdefault((t.process, t.tid), len(known)) for t in facts.threads]
    return np.array(threads or [0], np.int64)


def _attach(
    facts: Facts,
    calls: Columns,
    sizes: NDArray[np.int64],
    done: tuple[NDArray[np.int32], NDArray[np.bool_]],
    speaker: NDArray[np.int64],
) -> None:
    """Give calls without a choice that of the tuner's line of the same speaker, name and size, the n-th the n-th.

    `done` are the choices of calls, and which of the tuner's lines are theirs already.
    """
    chosen, used = done
    free = ~used
    tunings = facts.tunings.columns()
    number = tunings["choice"].astype(np.int64)
    tuned_bytes = np.array([choice[1] for choice in facts.choices], np.int64)[number]
    names = {name: i for i, name in enumerate(facts.names)}
    tuned_name = np.array([names.get(c[0], NONE) for c in facts.choices], np.int64)[number]
    has_name = np.array([bool(c[0]) for c in facts.choices])[number]
    tuned_by = speaker[tunings["thread"].astype(np.int64)]
    speakers = np.zeros(int(speaker.max()) + 1, np.bool_)
    speakers[tuned_by] = True
    rows = np.flatnonzero((chosen == NONE) & speakers[speaker[calls["thread"].astype(np.int64)]])
    if len(rows) == 0:
        return
    own_thread = calls["thread"][rows].astype(np.int64)
    thread, name = speaker[own_thread], calls["name"][rows].astype(np.int64)
    member = calls["member"][rows].astype(np.int64)
    kind = np.minimum(calls["type"][rows].astype(np.int64), len(TYPE_BYTES) - 1)
    own = calls["count"][rows].astype(np.int64) * TYPE_BYTES[kind]
    for call_bytes in (own, sizes[rows]):
        for named in (True, False):
            tuned = np.flatnonzero((has_name == named) & free)
            if len(tuned) == 0:
                continue
            left = (thread, call_bytes, name if named else np.full_like(name, NONE))
            right = (
                tuned_by[tuned], tuned_bytes[tuned],
                tuned_name[tuned] if named else np.full(len(tuned), NONE),
            )  # fmt: skip
            one = row_hash(*left, _ordinals(*left, member))
            two = row_hash(*right, _ordinals(*right))
            order = np.argsort(two)
            at = np.minimum(np.searchsorted(two[order], one), len(two) - 1)
            hit = two[order][at] == one
            found = np.where(hit, number[tuned[order[at]]], NONE)
            used[tuned[order[at[hit]]]] = True
            chosen[rows] = np.where(chosen[rows] == NONE, found, chosen[rows])


def find_operations(
    facts: Facts, calls: Columns, communicators: Sequence[LoggedCommunicator]
) -> Columns:
    """Return the operations in the order of their first line.

    Columns: `communicator`, `name`, `op_count`, `count`, `type`, `op`, `root`, `size` [B], `ranks` (how many calls
    were found), `agree` (1 if they say the same), `stream`, `choice`, `time_ns` and `line` of the first. Calls of one
    communicator with one opCount and name are one operation; a Send or Recv is one of its own, its `rank` the caller's.
    """
    of_member = np.full(max(len(facts.members), 1), NONE, np.int64)
    n_ranks = np.ones(max(len(facts.members), 1), np.int64)
    rank_of = np.array([member.rank for member in facts.members] or [NONE], np.int64)
    for communicator in communicators:
        of_member[communicator.handles] = communicator.number
        n_ranks[communicator.handles] = max(communicator.n_ranks, 1)
    if len(calls["line"]) == 0:
        return _from_tunings(facts, of_member)
    # The columns stay as narrow as they are: a log may have tens of millions of calls.
    member, name, op_count = calls["member"], calls["name"], calls["op_count"]
    sizes = message_bytes(facts, calls, n_ranks[member])
    choice = _choices(facts, calls, sizes)
    point = np.array([name in _POINT for name in facts.names])[name]
    caller = np.where(point, member.astype(np.int32), NONE)
    key = row_hash(of_member[member], op_count, name, _ordinals(member, op_count, name), caller)
    del caller
    order = _in_lines(calls["line"], key)
    key = key[order]
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    del key
    first = order[starts]
    agree = np.ones(len(starts), np.bool_)
    for column in ("count", "type", "op", "root"):
        values = calls[column][order]
        agree &= np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
    result: Columns = {
        "communicator": of_member[member[first]],
        "name": name[first],
        "op_count": op_count[first].astype(np.uint64),
        "size": sizes[first],
        "ranks": np.diff(starts, append=len(order)),
        "agree": agree.astype(np.int8),
        "rank": np.where(point[first], rank_of[member[first]], NONE),
        "choice": np.maximum.reduceat(choice[order], starts),
    }
    for column in ("count", "type", "op", "root", "stream", "time_ns", "line"):
        result[column] = calls[column][first]
    by_line = np.argsort(result["line"], kind="stable")
    return {column: values[by_line] for column, values in result.items()}


def _from_tunings(facts: Facts, of_member: NDArray[np.int64]) -> Columns:
    """Return the operations of a log that has only the tuner's lines: rank 0 prints one for each."""
    tunings = facts.tunings.columns()
    n = len(tunings["choice"])
    choice = tunings["choice"].astype(np.int64)
    spoken = np.array([facts.spoken_of(t) for t in range(len(facts.threads))] or [NONE], np.int64)
    member = spoken[tunings["thread"].astype(np.int64)] if n else np.zeros(0, np.int64)
    names = np.array([facts.name_of(c[0]) if c[0] else NONE for c in facts.choices] or [NONE])
    none = np.full(n, NONE, np.int64)
    return {
        "communicator": np.where(member >= 0, of_member[member], NONE),
        "name": names[choice], "op_count": np.zeros(n, np.uint64),
        "size": np.array([c[1] for c in facts.choices] or [0], np.int64)[choice],
        "ranks": np.ones(n, np.int64), "agree": np.ones(n, np.int8), "rank": none,
        "choice": choice, "count": none, "type": none, "op": none, "root": none,
        "stream": none, "time_ns": none, "line": tunings["line"],
    }  # fmt: skip


def alike(
    operations: Columns, ranks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return what operations differ in, how many there are of each, and how many kinds are left out.

    Parameters
    ----------
    ranks : ndarray
        Number of ranks by communicator, the last one for operations of none.

    Returns
    -------
    kinds : ndarray, shape (at most `MOST_ALIKE`, 6)
        Ranks, name, size [B], type, reduction and choice; the rarest are left out if there are more.
    counts : ndarray
        Operations of each.
    """
    columns = [
        ranks[operations["communicator"].astype(np.int64)],
        *(operations[name].astype(np.int64) for name in ("name", "size", "type", "op", "choice")),
    ]
    _, first, counts = np.unique(row_hash(*columns), return_index=True, return_counts=True)
    left_out = max(0, len(first) - MOST_ALIKE)
    if left_out:
        kept = np.argsort(-counts, kind="stable")[:MOST_ALIKE]
        first, counts = first[kept], counts[kept]
    return np.stack([column[first] for column in columns], 1), counts, left_out
