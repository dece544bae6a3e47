"""Given flows of synthetic traffic: who sends to whom, how much and from when.

**Model** A flow is a queue pair (or a stream) with a source of its own, which sends its packets back to back and holds
one injection slot of its endpoint; an endpoint serves its flows packet by packet in turn. A flow is divided into up to
`PARTS` messages, so that their arrivals show its rate over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clusim.base.errors import InputError, UnitError
from clusim.base.limits import read_text
from clusim.base.records import dataclass
from clusim.base.tables import table_rows
from clusim.base.units import parse_size, parse_time
from clusim.results.result import Messages
from clusim.topology import Fabric, FabricArrays
from clusim.topology.rows import classes_of

PARTS = 64
"""Maximum number of messages of a flow."""

NEEDED = ("source", "destination", "bytes")
"""Columns of a table of flows."""

OPTIONAL = ("start", "class")
"""Further columns that it may have."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Data from one rank to another: size [bytes], start [ps] and class of traffic (None: as its NIC)."""

    source: int
    destination: int
    size_bytes: int
    start_ps: int = 0
    traffic_class: int | None = None


def read_flows(path: str | Path, fabric: Fabric) -> tuple[Flow, ...]:
    """Read a CSV table of flows.

    Columns: ``source`` and ``destination`` (numbers or names of ranks), ``bytes`` (with a unit if desired), ``start``
    (a time such as ``10us``; empty is 0), ``class`` (of traffic; empty is that of the NIC).

    Raises
    ------
    InputError
        A column is missing, or a cell is invalid; the message has file and line.
    """
    names = {name: number for number, name in enumerate(fabric.ranks)}
    flows = []
    for cells, where in table_rows(path, read_text(path), NEEDED):
        for name, text in cells.items():
            if name not in (*NEEDED, *OPTIONAL):
                raise InputError(f"{where}: unknown column {name!r} ({text!r}); use source,"
                                 " destination, bytes, start and class")  # fmt: skip
        try:
            source, destination = (
                _rank(cells[name], names, fabric) for name in NEEDED[:2]
            )
            size_bytes = parse_size(cells["bytes"], binary_suffix=True)
            start_ps = parse_time(cells.get("start") or "0ps")
            traffic_class = _class(cells.get("class") or "", fabric)
        except (InputError, UnitError) as error:
            raise InputError(f"{where}: {error}") from None
        if source == destination:
            raise InputError(
                f"{where}: from {cells['source']} to itself; use two ranks"
            )
        if size_bytes < 1:
            raise InputError(f"{where}: a flow of 0 bytes; use at least 1")
        flows.append(Flow(source, destination, size_bytes, start_ps, traffic_class))
    if not flows:
        raise InputError(f"{path}: no flows; add a row")
    return tuple(flows)


def _class(text: str, fabric: Fabric) -> int | None:
    if text and not (
        text.isascii() and text.isdecimal() and int(text) < classes_of(fabric)
    ):
        raise InputError(
            f"class {text!r}: {fabric.name} has {classes_of(fabric)}, from 0 (`schedule`, `traffic_class`)"
        )
    return int(text) if text else None


def _rank(text: str, names: dict[str, int], fabric: Fabric) -> int:
    rank = int(text) if text.isascii() and text.isdecimal() else names.get(text, -1)
    if not 0 <= rank < fabric.num_ranks:
        raise InputError(
            f"no rank {text!r}; {fabric.name} has 0 to {fabric.num_ranks - 1}"
            f" ({fabric.ranks[0]} to {fabric.ranks[-1]})"
        )
    return rank


def flow_messages(flows: Sequence[Flow], packet_bytes: int) -> Messages:
    """Return the messages of flows in order: equal numbers of packets, except the last of a flow."""
    columns: list[list[int]] = [[] for _ in range(5)]
    for number, flow in enumerate(flows):
        packets = -(-flow.size_bytes // packet_bytes)
        part_bytes = -(-packets // min(PARTS, packets)) * packet_bytes
        for low in range(0, flow.size_bytes, part_bytes):
            size_bytes = min(part_bytes, flow.size_bytes - low)
            row = (flow.source, flow.destination, size_bytes, flow.start_ps, number)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    source, destination, sizes, start_ps, numbers = (
        np.array(column, np.int64) for column in columns
    )
    ends = source.astype(np.uint32), destination.astype(np.uint32)
    return Messages(
        *ends, sizes, start_ps, np.full(len(sizes), -1, np.int64), numbers
    )


def check_slots(arrays: FabricArrays, flows: Sequence[Flow]) -> None:
    """Raise `InputError` if an endpoint sends more flows than it has injection slots."""
    counts = np.bincount([flow.source for flow in flows], minlength=arrays.num_ranks)
    slots = arrays.endpoints["cta_slots"][arrays.rank_endpoint]
    for rank in np.flatnonzero(counts > slots)[:1].tolist():
        name = arrays.fabric.ranks[rank]
        raise InputError(
            f"{name} sends {counts[rank]} flows; at most {slots[rank]} of an endpoint are simulated"
        )
