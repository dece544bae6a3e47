"""Inference of facts that lines contain indirectly: the collective of a table, the transport of a connection.

An nccl-tests table without names: the size column is of the largest buffer, and the count column of a block:
they differ by the number of ranks if a buffer has a block per rank. Only reducing collectives name a reduction,
and only rooted collectives a root. The ratio of the two bandwidths, within their printed precision, permits one
number of ranks or several. The transport is the word of a connection line: ``P2P/CUMEM/read``,
``NET/IB/0(3)/GDRDMA/Shared``, ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import MOST_RANKS
from clusim.base.terms.dtypes import IN_TABLES, REDUCTIONS
from clusim.base.terms.operations import OPERATIONS, Operation


@dataclass(frozen=True, slots=True)
class LoggedRoute:
    """Path of data from one rank to another.

    `kind` is P2P, SHM, NET or COLLNET; `how` has details (IPC, CUMEM, MNNVL, direct, indirect, or the
    network's name). `nic` and `proxy` (the rank that owns the NIC, for PXN) are -1 if they are unused.
    """

    kind: str
    how: str
    read: bool = False
    copy_engine: bool = False
    nic: int = -1
    proxy: int = -1
    gdr: bool = False
    shared: bool = False

    @property
    def label(self) -> str:
        """The transport in a few words."""
        words = [self.kind, self.how] if self.how else [self.kind]
        if self.kind in ("NET", "COLLNET"):
            words.append("GDRDMA" if self.gdr else "no GDR")
            words += ["PXN"] if self.proxy >= 0 else []
        elif self.kind == "P2P":
            words += ["read"] if self.read else []
            words += ["CE"] if self.copy_engine else []
        return " ".join(words)


_P2P = re.compile(
    r"P2P/(direct pointer|direct|IPC|CUMEM|MNNVL|indirect/(\d{1,9})\[[0-9a-f]+\]|\d{1,9})(/read)?(/CE)?"
    r"(?: comm .*)?$"
)
_SHM = re.compile(
    r"(?:SHM(/direct|/CE)?(/direct|/CE)?|direct shared memory)(?: comm .*)?$"
)
_NET = re.compile(
    r"(NET|COLLNET)/([^/]+)/(\d{1,9})(?:\((\d{1,9})\))?(/GDRDMA(?:\([A-Za-z]+\))?)?(/Shared)?(?: comm .*)?$"
)


def parse_route(text: str) -> LoggedRoute | None:
    """Return the transport written as `text`, or None if it is unknown or truncated."""
    if match := _P2P.match(text):
        how, via = match[1], match[2]
        if via is not None:
            return LoggedRoute("P2P", "indirect", proxy=int(via))
        how = "direct" if how.startswith("direct") else how
        return LoggedRoute("P2P", how, bool(match[3]), bool(match[4]))
    if match := _SHM.match(text):
        return LoggedRoute("SHM", "", copy_engine="/CE" in text)
    if match := _NET.match(text):
        proxy = -1 if match[4] is None else int(match[4])
        return LoggedRoute(
            match[1], match[2], nic=int(match[3]), proxy=proxy, gdr=match[5] is not None,
            shared=match[6] is not None,
        )  # fmt: skip
    return None


_CLOSE = 0.05
"""Tolerance of a bus bandwidth, which is rounded."""

_LEAST_GBPS = 0.2
"""Bandwidths below this are printed too coarsely to distinguish collectives [GB/s]."""

_TESTS = [
    item
    for item in OPERATIONS.values()
    if item.test and item.test not in ("alltoallv", "hypercube")
]
_USUAL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "broadcast",
    "reduce",
)
_REDUCTIONS = (*REDUCTIONS, "mulsum")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The rows of a table: `algbw` and `busbw` in GB/s, `header` the titles before the times.

    `n_ranks` is 0 if the number of ranks is unknown, and at least `least`; `certain` if one process has them all.
    """

    source: str
    n_ranks: int
    least: int
    certain: bool
    header: tuple[str, ...]
    sizes: list[int]
    counts: list[int]
    types: list[str]
    ops: list[str]
    roots: list[int]
    algbw: NDArray[np.float64]
    busbw: NDArray[np.float64]


def infer_collective(rows: TableColumns, test: str = "") -> tuple[str, int]:
    """Return the collective and the number of ranks.

    Parameters
    ----------
    test : str
        The collective, if it is known.

    Returns
    -------
    name : str
        The collective, several (``a, b or c``) if all fit, or empty.
    n_ranks : int
        0 if the rows leave it open.
    """
    ratio = _bus_over_algorithm(rows)
    result = _fitting(rows, ratio, test)
    if not result and ratio == ratio and rows.n_ranks and not rows.certain:
        # No collective has this ratio on the listed ranks: the end of the list may be missing.
        more = replace(rows, n_ranks=0, least=rows.n_ranks + 1)
        result = _fitting(more, ratio, test)
        rows = more if result else rows
    numbers = set(result.values())
    n_ranks = rows.n_ranks or (numbers.pop() if len(numbers) == 1 else 0)
    names = [item.test for item in sorted(result, key=_usual)]
    name = (
        " or ".join([", ".join(names[:-1]), names[-1]])
        if len(names) > 1
        else "".join(names)
    )
    return test or name, n_ranks


def _fitting(rows: TableColumns, ratio: float, test: str) -> dict[Operation, int]:
    """Return the collectives that fit the rows, each with its number of ranks (0: open)."""
    blocks = _blocks(rows)
    if blocks == 0 and ratio != ratio and not test:
        return {}
    result = {}
    for item in _TESTS:
        if item.test == test or (not test and _fits(item, rows, blocks)):
            n_ranks = _ranks_of(item, rows, blocks, ratio)
            if n_ranks is not None:
                result[item] = n_ranks
    return result if test else _likely(rows, result)


def _likely(
    rows: TableColumns, candidates: dict[Operation, int]
) -> dict[Operation, int]:
    """Return the collectives without those for which such a table is unusual."""
    reducing = {item: n for item, n in candidates.items() if item.reduces}
    # Only some releases print the command line's reduction for all-to-all and messages.
    same = bool(rows.n_ranks) or set(candidates.values()) == set(reducing.values())
    if reducing and same and any(op in _REDUCTIONS for op in rows.ops):
        candidates = reducing
    named = _of_file(rows.source)
    return {
        item: n for item, n in candidates.items() if item.test in named
    } or candidates


def _ranks_of(
    item: Operation, rows: TableColumns, blocks: int, ratio: float
) -> int | None:
    """Return the number of ranks for which a collective has the rows' bandwidth ratio.

    0 if several numbers fit, None if no number does.
    """
    n_ranks = rows.n_ranks or (blocks if item.blocks and blocks > 1 else 0)
    if n_ranks < rows.least and n_ranks:
        return None
    if ratio != ratio:
        return n_ranks
    if n_ranks:
        factor = item.bus_factor(n_ranks)
        return (
            n_ranks if abs(factor - ratio) <= _CLOSE * max(factor, _CLOSE) else None
        )
    if item.bus == "all":
        return 0 if abs(1 - ratio) < _CLOSE else None
    low, high = (
        bound / (2 if item.bus == "twice" else 1) for bound in _ratio_bounds(rows)
    )
    if low > high:  # the rows have different numbers of ranks
        return None
    # (n - 1) / n is the ratio.
    first = max(2, rows.least, ceil(1 / (1 - low) - 1e-9) if low < 1 else MOST_RANKS)
    last = min(MOST_RANKS, floor(1 / (1 - high) + 1e-9) if high < 1 else inf)
    return None if first > last else int(first) if first == last else 0


def _ratio_bounds(rows: TableColumns) -> tuple[float, float]:
    """Return the limits of busbw / algbw over all rows, considering rounding."""
    good = (rows.algbw > _LEAST_GBPS) & (rows.busbw > 0)
    alg, bus = rows.algbw[good], rows.busbw[good]
    decimals = next(
        (d for d in (0, 1) if (np.round([alg, bus], d) == [alg, bus]).all()), 2
    )
    half = 0.5 * 10.0**-decimals
    return float(((bus - half) / (alg + half)).max()), float(
        ((bus + half) / (alg - half)).min()
    )


def _usual(item: Operation) -> int:
    return _USUAL.index(item.test) if item.test in _USUAL else len(_USUAL)


def _bus_over_algorithm(rows: TableColumns) -> float:
    """Return the median busbw / algbw of rows with enough precision, nan without such rows."""
    big = rows.algbw > 1 if (rows.algbw > 1).any() else rows.algbw > _LEAST_GBPS
    if not big.any():
        return float("nan")
    ratios = np.sort(rows.busbw[big] / rows.algbw[big])  # nan is sorted last
    if np.isnan(ratios[-1]):
        return float("nan")
    return float(ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2


def _blocks(rows: TableColumns) -> int:
    """Return the blocks of `count` elements in the largest buffer: 1, the ranks, 0 if unknown."""
    result = {
        round(size / (count * IN_TABLES[kind].size_bytes))
        for size, count, kind in zip(
            rows.sizes, rows.counts, rows.types, strict=False
        )
        if count > 0 and size % (count * IN_TABLES[kind].size_bytes) == 0
    }
    if len(result) != 1:
        return 0
    (number,) = result
    return number if number == 1 or rows.n_ranks in (0, number) else 0


def _fits(item: Operation, rows: TableColumns, blocks: int) -> bool:
    """Return True if a collective has the reduction, root and blocks of the rows."""
    rooted = max(rows.roots, default=-1) >= 0
    if rooted != item.rooted and (rooted or rows.header):
        return False
    if item.rooted and item.blocks and not rooted:
        return False  # gather and scatter are newer than the releases with a root in every table
    reduced = any(op in _REDUCTIONS for op in rows.ops)
    if reduced and not item.reduces:
        if item.test not in ("alltoall", "sendrecv"):
            return False
    elif rows.header and item.reduces and not reduced:
        return False
    if blocks == 0 or (blocks == 1 and rows.n_ranks == 1):
        return True
    return bool(item.blocks) == (blocks > 1)


def _of_file(source: str) -> set[str]:
    """Return the collectives named in the name of a file."""
    text = re.sub(r"[^a-z]", "", PurePath(source).name.lower())
    result = set()
    for item in sorted(_TESTS, key=lambda item: -len(item.test)):
        words = {item.test.replace("_", ""), *item.others}
        if any(word in text for word in words):
            result.add(item.test)
            for word in words:
                text = text.replace(word, " ")
    return result
