"""Vectorised scan of a block of lines: its regular NCCL lines, their writers, and calls.

A line is *regular* if it has one header, ``host:pid:tid [device] NCCL INFO ``, and further occurrences
of NCCL only in names of variables (``NCCL_...``). `lines.parts` reads all other lines one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_COUNT, MOST_RANKS
from clusim.formats.logs.digits import (
    PADDING,
    decimals,
    hashes,
    hexadecimals,
    positions,
    word,
    words,
)

Positions = NDArray[np.int64]
T = TypeVar("T")

_HEADER = b"NCCL INFO "
_BARE = tuple(
    word(text)
    for text in (b"Channel ", b"Ring ", b"Tree ", b"Trees [", b"Pattern ", b"RCCL ver", b"CPU/")
)
_SPACE, _NEWLINE = ord(" "), ord("\n")
_LEADS = np.frombuffer(b"# 0123456789.-n+=", np.uint8)


@dataclass(slots=True)
class Scan:
    """The lines of a block; the arrays after `regular` have one row per regular line."""

    buffer: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    spaces: Positions
    has_nccl: NDArray[np.bool_]
    regular: Positions
    message: Positions
    token: Positions
    token_end: Positions

    @classmethod
    def of(cls, data: bytes) -> Scan:
        """Scan a block that ends with a newline."""
        buffer = np.frombuffer(data + b"\0" * PADDING, np.uint8)
        size = len(data)
        low = np.flatnonzero(buffer[:size] <= _SPACE)
        which = buffer[low]
        newlines, spaces = low[which == _NEWLINE], low[which == _SPACE]
        starts = np.concatenate(([0], newlines[:-1] + 1))
        nccl = positions(buffer, b"NCCL")
        line = np.searchsorted(starts, nccl, "right") - 1
        has_nccl = np.zeros(len(starts), np.bool_)
        has_nccl[line] = True
        word_of_its_own = buffer[nccl + 4] != ord("_")
        nccl, line = nccl[word_of_its_own], line[word_of_its_own]
        number = np.bincount(line, minlength=len(starts))
        at = nccl[number[line] == 1]
        line = line[number[line] == 1]
        view = words(buffer)
        header, mask = word(_HEADER[:8])
        tail, tail_mask = word(_HEADER[8:])
        good = (view[at] == header & mask) & ((view[at + 8] & tail_mask) == tail)
        good &= at - starts[line] >= 10
        at, line = at[good], line[good]
        # Backwards: "] ", the device, "[", a space, the token, and the front.
        close = at - 2
        good = (buffer[at - 1] == _SPACE) & (buffer[close] == ord("]"))
        bracket = close - 2
        for _ in range(3):
            bracket = np.where(buffer[bracket] == ord("["), bracket, bracket - 1)
        good &= (buffer[bracket] == ord("[")) & (buffer[bracket - 1] == _SPACE)
        good &= bracket > starts[line]
        space = np.searchsorted(spaces, bracket - 1) - 1
        before = np.where(space >= 0, spaces[np.maximum(space, 0)] + 1, 0) if len(spaces) else at
        token = np.maximum(before, starts[line])
        keep = np.flatnonzero(good)
        ends = newlines.copy()
        return cls(
            buffer, starts, ends, spaces, has_nccl, line[keep], at[keep] + len(_HEADER),
            token[keep], close[keep] + 1,
        )  # fmt: skip

    BYTES: ClassVar[np.uint64] = word(b"Bytes ->")[0]

    def head_words(self, at: Positions) -> NDArray[np.uint64]:
        """Return the 8 bytes from each position on."""
        return words(self.buffer)[at]

    def _behind_label(self, start: Positions) -> Positions:
        """Return the starts of lines after ``[1,0]<stdout>:`` or ``12: ``.

        Lines such as ``2026-...`` get a position outside the text.
        """
        at, buffer = start.copy(), self.buffer
        tagged = np.flatnonzero(buffer[start] == ord("["))
        if len(tagged):
            begin = start[tagged]
            result = np.full(len(tagged), -1, np.int64)
            for j in range(24, 6, -1):
                mark = (buffer[begin + j - 1] == ord(">")) & (buffer[begin + j] == ord(":"))
                result = np.where(mark, begin + j + 1, result)
            at[tagged] = np.where(result < 0, begin, result)
        numbered = np.flatnonzero((buffer[at] >= ord("0")) & (buffer[at] <= ord("9")))
        if len(numbered):
            end = at[numbered]
            for _ in range(12):
                end = end + ((buffer[end] >= ord("0")) & (buffer[end] <= ord("9")))
            label = (buffer[end] == ord(":")) & (buffer[end + 1] == _SPACE)
            plain = (buffer[end] == _SPACE) | (buffer[end] == _NEWLINE)
            nowhere = len(buffer) - PADDING // 2  # zeros
            at[numbered] = np.where(label, end + 2, np.where(plain, at[numbered], nowhere))
        return at

    def candidates(self, rests: bool) -> NDArray[np.bool_]:
        """Return the mask of usable lines without NCCL: comments, tables, messages and `rests`."""
        result = np.zeros(len(self.starts), np.bool_)
        rows = np.flatnonzero(~self.has_nccl & (self.ends > self.starts))
        if len(rows) == 0:
            return result
        first = self.starts[rows]
        at = self._behind_label(first)
        for _ in range(3):  # most lines are decided by their first letters
            at = at + (self.buffer[at] == _SPACE)
        lead, heads = self.buffer[at], words(self.buffer)[at]
        good = np.isin(lead, _LEADS)
        for value, mask in _BARE:
            good |= (heads & mask) == value
        if rests:
            good |= self.ends[rows] - first < 24
        result[rows] = good
        if rests:
            via = positions(self.buffer, b"] via ")
            line = np.searchsorted(self.starts, via, "right") - 1
            result[line] |= ~self.has_nccl[line]
        return result


@dataclass(slots=True)
class Calls:
    """Calls among the regular lines of a block, as columns; `rows` are their rows in the scan."""

    rows: Positions
    name_start: Positions
    name_end: Positions
    op_count: NDArray[np.uint64]
    count: NDArray[np.uint64]
    type: NDArray[np.uint64]
    op: NDArray[np.uint64]
    root: NDArray[np.uint64]
    n_ranks: NDArray[np.uint64]
    in_place: NDArray[np.bool_]
    comm: tuple[Positions, Positions]
    comm_hash: NDArray[np.uint64]
    stream: tuple[Positions, Positions]
    stream_hash: NDArray[np.uint64]
    global_rank: NDArray[np.int64]

    def only(self, good: NDArray[np.bool_]) -> Calls:
        """Return the calls that are `good`."""
        return only(self, good)


def only(table: T, good: NDArray[np.bool_]) -> T:
    """Return the rows of a table of columns that are `good`."""
    if good.all():
        return table
    kept: dict[str, Any] = {}
    for column in fields(cast(Any, table)):
        value = getattr(table, column.name)
        kept[column.name] = (
            tuple(x[good] for x in value) if isinstance(value, tuple) else value[good]
        )
    return type(table)(**kept)


_OP_COUNT = word(b"opCount ")
_WORDS = {
    b"sendbuff": 3, b"recvbuff": 5, b"count ": 7, b"datatype": 9, b"op ": 11, b"root ": 13,
    b"comm 0x": 15, b"[nranks=": 17, b"stream ": 18,
}  # fmt: skip
_TASK_WORDS = {b"task ": 20, b"globalra": 22}
_POINTER_BYTES = 18


def _equal(
    view: NDArray[np.uint64], start: Positions, end: Positions, other: Positions, stop: Positions
) -> NDArray[np.bool_]:
    """Return a mask of equal pairs of texts of at most 24 bytes."""
    length = end - start
    same: NDArray[np.bool_] = length == stop - other
    for j in (0, 8, 16):
        left = np.clip(length - j, 0, 8).astype(np.uint64)
        if not left.any():
            break
        mask = ~((~np.uint64(0) << (left * np.uint64(4))) << (left * np.uint64(4)))
        same &= (view[start + j] ^ view[other + j]) & mask == 0
    return same


def find_calls(scan: Scan) -> tuple[Calls | None, NDArray[np.bool_]]:
    """Return the calls of a block, and the mask of their rows in the scan.

    A row that starts as a call in another format is not a call; `lines` reads it again.
    """
    view, spaces = words(scan.buffer), scan.spaces
    chosen = np.zeros(len(scan.regular), np.bool_)
    first = np.searchsorted(spaces, scan.message)
    inside = first < len(spaces)
    first = np.where(inside, first, 0)
    candidate = inside & (len(spaces) > 0)
    if not candidate.any():
        return None, chosen
    after = spaces[first] + 1
    rows = np.flatnonzero(candidate & (view[after] == _OP_COUNT[0]))
    if len(rows) == 0:
        return None, chosen
    ends = scan.ends[scan.regular[rows]]
    ends = ends - (scan.buffer[ends - 1] == _SPACE)
    first = first[rows]
    tokens = np.searchsorted(spaces, ends) - first + 1
    acc = np.zeros(len(rows), np.int64)
    third = first + 6
    third_ok = third < len(spaces)
    value, mask = word(b"acc ")
    at = spaces[np.where(third_ok, third, 0)] + 1
    acc[third_ok & ((view[at] & mask) == value)] = 2
    task = np.where(tokens - acc == 24, 4, 0)
    good = (tokens - acc - task == 20) & third_ok
    rows, first, ends, acc, task = (x[good] for x in (rows, first, ends, acc, task))
    if len(rows) == 0:
        return None, chosen

    # Token k is between the spaces before[k] and before[k + 1]; RCCL has two more tokens before the seventh.
    plain = spaces[first + np.arange(7)[:, None]]
    more = spaces[np.minimum(first + acc + np.arange(6, 20)[:, None], len(spaces) - 1)]

    def start(index: int) -> Positions:
        at: Positions = (plain[index - 1] if index < 7 else more[index - 7]) + 1
        return at

    def end(index: int) -> Positions:
        at: Positions = plain[index] if index < 7 else more[index - 6]
        return at

    good = scan.buffer[plain[0] - 1] == ord(":")
    for text, index in _WORDS.items():
        value, mask = word(text)
        good &= (view[start(index)] & mask) == value
    numbers = {}
    for name, index in (("count", 8), ("type", 10), ("op", 12), ("root", 14)):
        numbers[name], fine = decimals(scan.buffer, start(index), end(index))
        good &= fine
    op_count, fine = hexadecimals(scan.buffer, start(2), end(2))
    good &= fine
    n_ranks, fine = decimals(scan.buffer, start(17) + 8, end(17) - 1)
    good &= fine & (scan.buffer[end(17) - 1] == ord("]")) & (end(16) - start(16) <= _POINTER_BYTES)
    stream = (start(19), np.where(task == 0, ends, end(19)))
    stream_ok = (view[stream[0]] & word(b"0x")[1]) == word(b"0x")[0]
    good &= stream_ok | ((view[stream[0]] & word(b"(nil)")[1]) == word(b"(nil)")[0])
    good &= stream[1] - stream[0] <= _POINTER_BYTES
    global_rank = np.full(len(rows), -1, np.int64)
    tasked = np.flatnonzero(task > 0)
    if len(tasked):
        begin = spaces[first[tasked] + acc[tasked] + 22] + 1
        rank, fine = decimals(scan.buffer, begin, ends[tasked])
        global_rank[tasked] = np.where(fine, rank.astype(np.int64), -1)
        for text, index in _TASK_WORDS.items():
            value, mask = word(text)
            at = spaces[first[tasked] + acc[tasked] + index - 1] + 1
            good[tasked] &= (view[at] & mask) == value
    good &= (op_count < MOST_COUNT) & (numbers["count"] < MOST_COUNT) & (n_ranks <= MOST_RANKS)
    good &= (numbers["type"] < 1 << 31) & (numbers["op"] < 1 << 31) & (numbers["root"] < MOST_RANKS)
    comm = (start(16), end(16))
    calls = Calls(
        rows, scan.message[rows], plain[0] - 1, op_count, numbers["count"], numbers["type"],
        numbers["op"], numbers["root"], n_ranks, _equal(view, start(4), end(4), start(6), end(6)),
        comm, hashes(scan.buffer, *comm, 24), stream, hashes(scan.buffer, *stream, 24), global_rank,
    )  # fmt: skip
    chosen[rows[good]] = True
    return calls.only(good), chosen
