"""Measurements of nvbandwidth (JSON of ``-j``, or tables), compared with a topology.

Only copies of one pair at a time are compared. The reference is the maximum flow between the two ends
over wires that do not belong to other devices, less the packet headers of copy engines (``_ce``) or of
kernels (``_sm``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from clusim.base.errors import TopologyError
from clusim.base.limits import fail, json_problem, number, printable
from clusim.formats.topologies.kinds import BANDWIDTH_TEST
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.check_flow import device_wires, max_flow
from clusim.topology.check_links import Finding, by_level, list_names
from clusim.topology.model import Fabric
from clusim.topology.validate import read_text

MAX_DEVICES = 1024
_LOW = 0.9
"""Share of a test's median and of the wires' bandwidth below which a pair is reported."""

_CELL = re.compile(r"[0-9.]{1,20}|N/A")
_PAIRS = re.compile(
    r"(?:multinode_)?(host_to_device|device_to_host|device_to_device)_memcpy_(?:(read|write)_)?(ce|sm)"
)


@dataclass(frozen=True, slots=True)
class BandwidthTest:
    """A test: name, matrix [GB/s] (None: not measured), first line in the file (0 in JSON)."""

    name: str
    rows: tuple[tuple[float | None, ...], ...]
    line: int = 0

    @property
    def values(self) -> list[float]:
        """Return the measured values [GB/s], without the diagonal."""
        alone = len(self.rows) == 1
        return [
            value
            for i, row in enumerate(self.rows)
            for j, value in enumerate(row)
            if value and (alone or i != j)
        ]


def read_nvbandwidth(path: Path) -> list[BandwidthTest]:
    """Return the bandwidth tests in a file; raise `TopologyError` if it does not contain any."""
    where = printable(path, 200)
    text = read_text(path, where)
    result = list(
        _of_json(text, where) if text.lstrip()[:1] == "{" else _of_text(text, where)
    )
    if not result:
        raise fail(
            where,
            0,
            "no bandwidths of nvbandwidth; use the output of `nvbandwidth -j`",
        )
    return result


def _of_json(text: str, where: str) -> Iterator[BandwidthTest]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise fail(where, 0, f"invalid JSON: {json_problem(error)}") from None
    top = data.get("nvbandwidth") if isinstance(data, dict) else None
    cases = top.get("testcases") if isinstance(top, dict) else None
    for case in cases if isinstance(cases, list) else []:
        matrix = case.get("bandwidth_matrix") if isinstance(case, dict) else None
        if (
            not isinstance(matrix, list)
            or "ns" in str(case.get("bandwidth_description"))[-5:]
        ):
            continue  # tests that were waived, and latencies
        name = printable(case.get("name"), 80)
        rows = [row if isinstance(row, list) else [] for row in matrix]
        yield BandwidthTest(name, _check_matrix(rows, f"{where}: {name}"))


def _of_text(text: str, where: str) -> Iterator[BandwidthTest]:
    result = list(BANDWIDTH_TEST.finditer(text))
    ends = [match.start() for match in result[1:]] + [len(text)]
    for match, end in zip(result, ends, strict=False):
        body = text[match.end() : end].strip().splitlines()
        if len(body) < 3 or "bandwidth (GB/s)" not in body[0]:
            continue
        columns = body[1].split()
        rows: list[list[object]] = []
        for line in body[2:]:
            words = line.split()
            if len(words) != len(columns) + 1 or not all(
                _CELL.fullmatch(w) for w in words[1:]
            ):
                break
            rows.append(list(words[1:]))
        at = text.count("\n", 0, match.start()) + 1
        yield BandwidthTest(
            match[1], _check_matrix(rows, f"{where}:{at}: {match[1]}"), at
        )


def _check_matrix(
    rows: Sequence[Sequence[object]], where: str
) -> tuple[tuple[float | None, ...], ...]:
    """Return `rows` as a matrix; refuse other data."""
    width = len(rows[0]) if rows else 0
    if not 1 <= width <= MAX_DEVICES or len(rows) not in (1, width):
        raise TopologyError(
            f"{where}: {len(rows)} x {width} values; must be one row, or a square"
        )
    result = []
    for row in rows:
        values = [None if cell == "N/A" else number(cell) for cell in row]
        bad = [
            c
            for c, v in zip(row, values, strict=True)
            if c != "N/A" and (v is None or v < 0)
        ]
        if bad or len(row) != width:
            excerpt = (
                repr(printable(bad[0], 30))
                if bad
                else f"{len(row)} of {width} values"
            )
            raise TopologyError(f"{where}: {excerpt}; must be GB/s or N/A")
        result.append(tuple(values))
    return tuple(result)


def compare_tests(machine: Fabric, tests: Sequence[BandwidthTest]) -> list[Finding]:
    """Compare a topology with measurements; findings are warnings where they disagree."""
    paths = _Paths(machine)
    result: list[Finding] = []
    omitted = [test.name for test in tests if _PAIRS.fullmatch(test.name) is None]
    for test in tests:
        if test.name not in omitted:
            result += _of_test(paths, test)
    if omitted:
        result.append(Finding("info", f"not compared: {list_names(omitted)}"))
    return by_level(result)


def _of_test(paths: _Paths, test: BandwidthTest) -> Iterator[Finding]:
    size = len(test.rows[0])
    if size > paths.num_ranks:
        yield Finding(
            "warning", f"{test.name}: {size} GPUs; the system has {paths.num_ranks}"
        )
        return
    values = test.values
    if not values:
        yield Finding("info", f"{test.name}: no measurements")
        return
    usual = median(values)
    shares: list[float] = []
    low: list[str] = []
    for i, row in enumerate(test.rows):
        for j, value in enumerate(row):
            if not value or (len(test.rows) > 1 and i == j):
                continue
            name, limit_GBps = paths.of(test.name, i, j)
            share = value * 1e9 / limit_GBps if limit_GBps else 0.0
            shares.append(share)
            if value < _LOW * usual:
                low.append(f"{name} {value:g}")
    share = median(shares)
    span = (
        f"{min(values):g} to {max(values):g} GB/s"
        if len(values) > 1
        else f"{values[0]:g} GB/s"
    )
    text = f"{test.name}: {span} measured, {share:.0%} of the wires' payload rate (median)"
    yield Finding("info", text)
    if share > 1.01:
        yield Finding(
            "warning",
            f"{test.name}: faster than this system; another was measured, or a link is described too slow",
        )
    elif share < _LOW:
        yield Finding(
            "warning",
            f"{test.name}: {share:.0%} of this system's rate; another system was measured,"
            " or links run slower than described",
        )
    if low:
        yield Finding(
            "warning",
            f"{test.name}: below {_LOW:.0%} of the median of {usual:g} GB/s: {list_names(low)}",
        )


class _Paths:
    """Bandwidth of the wires from one end to another, without headers [B/s]."""

    def __init__(self, machine: Fabric) -> None:
        self.machine = machine
        self.arrays: FabricArrays = arrays_of(machine)
        self.num_ranks = self.arrays.num_ranks
        self.known: dict[tuple[object, ...], float] = {}
        self.peers = device_wires(self.arrays)
        self.nodes = [self.arrays.node_of(rank) for rank in range(self.num_ranks)]

    @cached_property
    def memories(self) -> list[int]:
        """Nodes of host memory."""
        return [
            at for at, node in enumerate(self.machine.nodes) if node.kind == "memory"
        ]

    def of(self, test: str, row: int, column: int) -> tuple[str, float]:
        """Return the label of a matrix element of a test, and the maximum flow of its pair."""
        match = _PAIRS.fullmatch(test)
        kind, direction, engine = (
            (match[1], match[2], match[3]) if match else ("", "", "ce")
        )
        ranks = self.machine.ranks
        if kind != "device_to_device":
            to_device = kind == "host_to_device"
            name = (
                f"host->{ranks[column]}" if to_device else f"{ranks[column]}->host"
            )
            return name, self._host(column, to_device=to_device, engine=engine)
        source, target = (row, column) if direction == "read" else (column, row)
        return f"{ranks[source]}->{ranks[target]}", self._peers(
            source, target, engine
        )

    def _host(self, rank: int, *, to_device: bool, engine: str) -> float:
        key = ("host", rank, to_device, engine)
        if key not in self.known:
            zone = self.machine.nodes[self.nodes[rank]].zone
            rates = [
                self._flow(
                    (m, self.nodes[rank]) if to_device else (self.nodes[rank], m),
                    engine,
                )
                for m in self.memories
                if self.machine.nodes[m].zone == zone
            ]
            self.known[key] = max(rates, default=0.0)
        return self.known[key]

    def _peers(self, a: int, b: int, engine: str) -> float:
        key = (self._ends(a), self._ends(b), self._between(a, b), engine)
        if key not in self.known:
            pair = (self.nodes[a], self.nodes[b])
            self.known[key] = self._flow(pair, engine, self.peers) or self._flow(
                pair, engine
            )
        return self.known[key]

    def _ends(self, rank: int) -> tuple[int, ...]:
        """Return the cache key of a rank: the rank, or its node if there are more than 64 ranks."""
        is_large = self.num_ranks > 64
        return (int(self.arrays.zone_of(rank)),) if is_large else (rank,)

    def _between(self, a: int, b: int) -> int:
        wires = self.arrays.wires
        return int(
            np.count_nonzero(
                (wires["src"] == self.nodes[a]) & (wires["dst"] == self.nodes[b])
            )
        )

    def _flow(
        self,
        pair: tuple[int, int],
        engine: str,
        only: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
    ) -> float:
        """Return the maximum flow of a pair, less headers on the wires at its two ends."""
        rate = max_flow(self.arrays, [pair[0]], [pair[1]], only=only)
        return (
            rate * min(self._share(node, engine, only) for node in pair)
            if rate
            else 0.0
        )

    def _share(
        self,
        node: int,
        engine: str,
        only: np.ndarray[tuple[int], np.dtype[np.bool_]] | None,
    ) -> float:
        """Return the payload share of a graph node's output, for its most efficient packet format."""
        wires = self.arrays.wires
        mask = wires["src"] == node
        if only is not None:
            mask &= only
        elif self.machine.nodes[node].kind != "memory":
            mask &= ~self.peers
        kinds = sorted({int(form) for form in wires["format"][mask]})
        shares = []
        for kind in kinds:
            form = self.machine.formats[self.arrays.format_names[kind]]
            payload = min(form.payload_bytes.get(engine, 128), form.limit_bytes[0])
            wire_bytes = (
                -(-(payload + form.header_bytes[0]) // form.flit_bytes)
                * form.flit_bytes
            )
            shares.append(payload / wire_bytes)
        return max(shares, default=1.0)
