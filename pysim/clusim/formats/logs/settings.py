"""Regular lines of a block as columns: settings, trees, communicator handles and connections.

Ranks write equal texts: a cache by their hash reads each one once, and a few hundred texts cover millions of
lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_CHANNELS, MOST_RANKS
from clusim.formats.logs.digits import decimals, hashes, hexadecimals, word, words
from clusim.formats.logs.messages import NamedHandle, names_handle, note_setting, setting_of
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.repeating import NONE
from clusim.formats.logs.scan import Scan, only

_ROUTE_BYTES = 64
_CHANNEL, _VIA, _ARROW, _COLON = (word(t) for t in (b"Channel ", b"via ", b"-> ", b": "))
_SEND, _RECEIVE = word(b"[send] "), word(b"[receive")


@dataclass(slots=True)
class Connections:
    """Connection lines as columns.

    `rows` are their rows in the scan; `side` is 1 for send, 2 for receive, else 0.
    """

    rows: Positions
    channel: Positions
    index: Positions
    source: Positions
    target: Positions
    side: Positions
    route: tuple[Positions, Positions]
    route_hash: NDArray[np.uint64]

    def only(self, good: NDArray[np.bool_]) -> Connections:
        """Return the connections that are `good`."""
        return only(self, good)


def find_connections(scan: Scan, among: NDArray[np.bool_]) -> Connections | None:
    """Return the connections among these rows in the line format since 2.8."""
    rows = np.flatnonzero(among)
    view, spaces = words(scan.buffer), scan.spaces
    rows = rows[view[scan.message[rows]] == _CHANNEL[0]]
    first = np.searchsorted(spaces, scan.message[rows])
    inside = first + 7 < len(spaces)
    rows, first = rows[inside], first[inside]
    if len(rows) == 0:
        return None

    def start(index: int) -> Positions:
        at: Positions = spaces[first + index - 1] + 1
        return at

    def fits(at: Positions, text: tuple[np.uint64, np.uint64]) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = (view[at] & text[1]) == text[0]
        return result

    side = np.where(fits(start(6), _SEND), 1, np.where(fits(start(6), _RECEIVE), 2, 0))
    via = np.where(side > 0, start(7), start(6))
    ends = scan.ends[scan.regular[rows]]
    ends = ends - (scan.buffer[ends - 1] == ord(" "))
    good = fits(start(2), _COLON) & fits(start(4), _ARROW) & fits(via, _VIA)
    good &= (via + 4 < ends) & (ends - via - 4 <= _ROUTE_BYTES)
    numbers = []
    for at, stop, mark in ((start(1), start(2) - 1, "/"), (start(3), start(4) - 1, "[")):
        cut = _until(scan.buffer, at, stop, ord(mark))
        value, fine = decimals(scan.buffer, at, cut)
        good &= fine
        numbers.append(value)
        if mark == "/":
            index, fine = decimals(scan.buffer, cut + 1, stop)
            good &= fine | (cut == stop)
            numbers.append(np.where(cut == stop, 0, index))
    at, stop = start(5), start(6) - 1
    target, fine = decimals(scan.buffer, at, _until(scan.buffer, at, stop, ord("[")))
    good &= fine & (target < MOST_RANKS)
    for value in numbers:
        good &= value < MOST_RANKS
    good &= numbers[0] < MOST_CHANNELS
    if not good.any():
        return None
    rows, via, ends, side = rows[good], via[good] + 4, ends[good], side[good]
    channel, index_of, source = (value[good].astype(np.int64) for value in numbers)
    return Connections(
        rows, channel, index_of, source, target[good].astype(np.int64), side, (via, ends),
        hashes(scan.buffer, via, ends, _ROUTE_BYTES),
    )  # fmt: skip


def _until(buffer: NDArray[np.uint8], start: Positions, stop: Positions, mark: int) -> Positions:
    """Return the first position of `mark` in the first ten bytes of [start, stop), else stop."""
    result = stop.copy()
    for j in range(9, 0, -1):
        at = start + j
        result = np.where((at < stop) & (buffer[at] == mark), at, result)
    return result


_COMM, _RANK, _N_RANKS, _DEVICE, _NVML, _BUS, _ID, _INIT = (
    word(text)
    for text in (b"comm 0x", b"rank ", b"nranks ", b"cudaDev ", b"nvmlDev ", b"busId ", b"commId 0", b"- Init ")
)  # fmt: skip
_WORDS = (
    (_COMM, 1),
    (_RANK, 3),
    (_N_RANKS, 5),
    (_DEVICE, 7),
    (_NVML, 9),
    (_BUS, 11),
    (_ID, 13),
    (_INIT, 15),
)
_TOKENS = 18
_MOST_DIGITS = 9


def find_handles(scan: Scan, among: NDArray[np.bool_]) -> dict[int, NamedHandle]:
    """Return the handles in those rows that have the format of `ncclCommInitRank` since 2.18.

    ``NAME comm 0x.. rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 61000 commId 0x.. - Init COMPLETE``. Rows with
    more or fewer words, or with impossible numbers, are skipped.
    """
    view, spaces, buffer = words(scan.buffer), scan.spaces, scan.buffer
    rows = np.flatnonzero(among)
    first = np.searchsorted(spaces, scan.message[rows])
    inside = first + _TOKENS - 2 < len(spaces)
    rows, first = rows[inside], first[inside]
    rows, first = (x[(view[spaces[first] + 1] & _COMM[1]) == _COMM[0]] for x in (rows, first))
    ends = scan.ends[scan.regular[rows]]
    ends = ends - (buffer[ends - 1] == ord(" "))
    good = np.searchsorted(spaces, ends) - first == _TOKENS - 1
    rows, first, ends = rows[good], first[good], ends[good]
    if len(rows) == 0:
        return {}
    gaps = spaces[first + np.arange(_TOKENS - 1)[:, None]]
    for (value, mask), token in _WORDS:
        good = (view[gaps[token - 1] + 1] & mask) == value
        rows, ends, gaps = rows[good], ends[good], gaps[:, good]
    pointer, fine = hexadecimals(buffer, gaps[1] + 3, gaps[2])
    good = fine & (pointer > 0)
    numbers = []
    for token in (4, 6, 8, 10):
        number, fine = decimals(buffer, gaps[token - 1] + 1, gaps[token])
        good &= fine & (gaps[token] - gaps[token - 1] - 1 <= _MOST_DIGITS)
        numbers.append(number)
    bus, fine = hexadecimals(buffer, gaps[11] + 1, gaps[12])
    good &= fine
    comm_id, fine = hexadecimals(buffer, gaps[13] + 3, gaps[14])
    good &= fine & (buffer[gaps[13] + 2] == ord("x"))
    good &= (numbers[0] < numbers[1]) & (numbers[1] <= MOST_RANKS)
    rows, ends, gaps = rows[good], ends[good], gaps[:, good]
    result: dict[int, NamedHandle] = {}
    for row, begin, end, state, stop, where, who, *rest in zip(
        rows.tolist(), scan.message[rows].tolist(), gaps[0].tolist(), (gaps[-1] + 1).tolist(), ends.tolist(),
        pointer[good].tolist(), comm_id[good].tolist(), bus[good].tolist(), *(n[good].tolist() for n in numbers),
        strict=True,
    ):  # fmt: skip
        bus_id, rank, n_ranks, device, nvml = rest
        details = (("device", device), ("nvml", nvml), ("bus", bus_id), ("comm_id", who))
        function = buffer[begin:end].tobytes().decode("ascii", "replace")
        event = buffer[state:stop].tobytes().decode("ascii", "replace")
        if names_handle(function) and event.isalpha():
            name = function.removesuffix("_impl")
            result[row] = NamedHandle(name, where, rank, n_ranks, "Init", event, None, details)
    return result


Positions = NDArray[np.int64]

_TREES = word(b"Trees [")
_PER_CHANNEL = len(" [] //->->")
_SIX = 6
"""Numbers of a tree: channel, three children, rank, and parent."""

_BEFORE = tuple(np.frombuffer(text, np.uint8) for text in (b"[", b" ", b"/", b"/", b">", b">"))
_BEHIND = tuple(np.frombuffer(text, np.uint8) for text in (b"]", b"/", b"/", b"-", b"-", b" \n\0"))


@dataclass(slots=True)
class Branches:
    """Trees of lines: `rows` in the scan and `rank` are per line, the rest is per tree.

    `line` is the index of a tree's line in `rows`; `numbers` has channel, parent, rank and children.
    """

    rows: Positions
    rank: Positions
    line: Positions
    numbers: tuple[Positions, ...]


def find_branches(scan: Scan, among: NDArray[np.bool_]) -> Branches | None:
    """Return the lines of trees among these rows in the format since 2.8."""
    buffer = scan.buffer
    rows = np.flatnonzero(among)
    rows = rows[(scan.head_words(scan.message[rows]) & _TREES[1]) == _TREES[0]]
    if len(rows) == 0:
        return None
    begin, end = scan.message[rows] + len("Trees"), scan.ends[scan.regular[rows]]
    for _ in range(2):
        end = end - (buffer[end - 1] == ord(" "))
    # All bytes of the lines, and the mask of digits.
    length = end - begin
    first = np.concatenate(([0], np.cumsum(length)))
    at = np.arange(first[-1]) - np.repeat(first[:-1] - begin, length)
    digit = (buffer[at] - np.uint8(ord("0"))) < 10
    edge = np.flatnonzero(digit & ~np.concatenate(([False], digit[:-1])))
    stop = np.flatnonzero(digit & ~np.concatenate((digit[1:], [False]))) + 1
    if len(edge) != len(stop):
        return None
    start, behind = at[edge], at[stop - 1] + 1
    which = np.searchsorted(first, edge, "right") - 1
    count = np.bincount(which, minlength=len(rows))
    value, fine = decimals(buffer, start, behind)
    fine &= behind - start <= 9
    place = np.arange(len(start)) - np.repeat(np.cumsum(count) - count, count)
    kind = place % _SIX
    minus = (buffer[start - 1] == ord("-")) & (kind != 0) & (kind != 4)
    front = start - 1 - minus
    for number in range(_SIX):
        own = kind == number
        fine[own] &= np.isin(buffer[front[own]], _BEFORE[number])
        fine[own] &= np.isin(buffer[behind[own]], _BEHIND[number])
    # The numbers and the expected separators cover the line in full.
    written = np.bincount(which, behind - start + minus, len(rows)).astype(np.int64)
    good = (count > 0) & (count % _SIX == 0) & (written + count // _SIX * _PER_CHANNEL == length)
    good &= np.bincount(which, ~fine, len(rows)) == 0
    signed = np.where(minus, -value.astype(np.int64), value.astype(np.int64))
    legal = np.where(kind == 0, signed < MOST_CHANNELS, signed < MOST_RANKS)
    good &= np.bincount(which, ~legal, len(rows)) == 0
    if not good.any():
        return None
    kept = good[which]
    table = signed[kept].reshape(-1, _SIX)
    of_line = (np.cumsum(good) - 1)[which[kept]].reshape(-1, _SIX)[:, 0]
    ranks = table[np.searchsorted(of_line, np.arange(np.count_nonzero(good))), 4]
    channel, *children, rank, parent = table.T
    return Branches(rows[good], ranks, of_line, (channel, parent, rank, *children))


_MISSING = np.iinfo(np.int64).min
_MOST = 1 << 20


class KnownTexts:
    """A number for each text, looked up by many hashes at once."""

    def __init__(self) -> None:
        """Start without known texts."""
        self._keys = np.zeros(0, np.uint64)
        self._values = np.zeros(0, np.int64)

    def look(self, keys: NDArray[np.uint64], make: Callable[[int], int]) -> NDArray[np.int64]:
        """Return the number of each key; `make` computes a new one from the index of its row."""
        values = self._find(keys)
        missing = np.flatnonzero(values == _MISSING)
        if len(missing) == 0:
            return values
        unique, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
        made = np.array([make(int(missing[row])) for row in first], np.int64)
        values[missing] = made[inverse]
        if len(self._keys) + len(unique) > _MOST:  # texts do not repeat: restart
            self._keys, self._values = self._keys[:0], self._values[:0]
        both = np.concatenate([self._keys, unique[:_MOST]])
        order = np.argsort(both, kind="stable")
        self._keys = both[order]
        self._values = np.concatenate([self._values, made[:_MOST]])[order]
        return values

    def _find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        if len(self._keys) == 0:
            return np.full(len(keys), _MISSING, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._values[at], _MISSING)


_NAME = word(b"NCCL_")
_BYTES = 128


class SettingLines:
    """Recorder of settings in `facts`; repeated settings of a process are skipped."""

    def __init__(self, facts: RawLog) -> None:
        """Start without known texts."""
        self._facts = facts
        self._texts, self._noted = KnownTexts(), KnownTexts()
        self._settings: list[tuple[str, str]] = []

    def take(
        self, scan: Scan, processes: NDArray[np.int64], among: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Note the settings among these rows; return the mask of their rows."""
        taken = np.zeros(len(among), np.bool_)
        rows = np.flatnonzero(among)
        start, end = scan.message[rows], scan.ends[scan.regular[rows]]
        short = ((scan.head_words(start) & _NAME[1]) == _NAME[0]) & (end - start <= _BYTES)
        rows, start, end = rows[short], start[short], end[short]
        if len(rows) == 0:
            return taken

        def make(i: int) -> int:
            result = setting_of(scan.buffer[start[i] : end[i]].tobytes().decode("utf-8", "replace"))
            if result is None:
                return NONE
            self._settings.append(result)
            return len(self._settings) - 1

        setting = self._texts.look(hashes(scan.buffer, start, end, _BYTES), make)
        own = setting >= 0
        rows, setting, process = rows[own], setting[own], processes[rows[own]]

        def note(i: int) -> int:
            return int(note_setting(self._facts, int(process[i]), *self._settings[setting[i]]))

        both = setting.astype(np.uint64) << np.uint64(32) | process.astype(np.uint64)
        taken[rows[self._noted.look(both, note) > 0]] = True
        return taken
