"""Regular lines of a block that name a rank's communicator handle, as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_RANKS
from clusim.formats.logs.digits import decimals, hexadecimals, word, words
from clusim.formats.logs.messages import NamedHandle, names_handle
from clusim.formats.logs.scan import Scan

Positions = NDArray[np.int64]

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
