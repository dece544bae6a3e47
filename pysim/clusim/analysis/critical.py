"""Run prepared for the analysis of its critical path, with records in a file or in memory.

A trace is read once: result, inputs and network. Reduction units have no
counters; their busy time is computed from the completed slices. Time of the critical path in replicated blocks is
broken down by the tasks of the paused rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.charge import Charge, Charger
from clusim.analysis.network import Network
from clusim.analysis.rivals import Rivals
from clusim.analysis.servers import Servers
from clusim.analysis.slices import Slices
from clusim.analysis.timeouts import TimeoutWaits
from clusim.analysis.walk import Step, StepKind, Walk
from clusim.analysis.whatif import Change
from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.base.records import dataclass
from clusim.engine.abi import ConnKind, Op
from clusim.engine.image import OP_FLAGS
from clusim.results.bins import Usage
from clusim.results.cause_kinds import CauseKind
from clusim.results.intervals import Union, spread
from clusim.results.replicated import BlockRows, is_moving
from clusim.results.result import Result
from clusim.results.trace.held import Inputs, Records


def unit_busy_ps(
    records: Records, slices: Slices, network: Network, edge_ps: Array
) -> Array | None:
    """Return the busy time of units by bin [ps], shape (units, bins); None without units.

    The operands of a slice are assumed evenly spread over its time and over the units of its connection.
    """
    image = network.image
    if (
        not len(image["units"])
        or not (image["conns"]["kind"] == ConnKind.MULTIMEM).any()
        or len(edge_ps) < 2
    ):
        return None
    reduces = (OP_FLAGS[image["prims"]["opcode"]] & Op.REDUCE) != 0
    busy = np.zeros((len(image["units"]), len(edge_ps) - 1))
    for block in records.blocks():
        for instance in np.unique(block["instance"]).tolist():
            table = slices.table(instance)
            if not reduces[table.prim].any():
                continue
            mine = np.flatnonzero(block["instance"] == instance)
            prims, size = (
                table.prims(block["seq"][mine]),
                table.bytes[block["seq"][mine]],
            )
            for prim in np.unique(prims[reduces[prims]]).tolist():
                connection = slices.connection(instance, prim, send=True)
                units = network.units_of(connection)
                off, group = (
                    image["mgroup_off"],
                    int(image["conns"]["mgroup"][connection]),
                )
                operands = int(off[group + 1] - off[group]) / max(1, len(units))
                now = prims == prim
                span = block["gate"][mine[now]], block["time"][mine[now]]
                amount = spread(*span, size[now] * operands, edge_ps)
                for unit in units:
                    busy[unit] += amount * (
                        int(image["units"]["cost16"][unit]) / 65536
                    )
    return busy


class BlockCharges:
    """Charges steps that are pauses for blocks.

    Parameters
    ----------
    tasks : int
        Tasks of the run.
    """

    def __init__(self, blocks: BlockRows, tasks: int) -> None:
        self._blocks = blocks
        self._order = np.argsort(blocks.pause, kind="stable")
        self._first = np.searchsorted(
            blocks.pause[self._order], np.arange(tasks + 1)
        )

    def _rows(self, step: Step) -> Array:
        """Return the rows of the tasks that a step represents."""
        if (
            step.kind is not StepKind.DELAY
            or not 0 <= step.task < len(self._first) - 1
        ):
            return self._order[:0]
        return self._order[self._first[step.task] : self._first[step.task + 1]]

    def stands(self, step: Step) -> bool:
        """Return True if a step is the pause of a block."""
        return bool(len(self._rows(step)))

    def charges(self, step: Step) -> Iterator[Charge]:
        """Yield the parts of the pause of a block; their times add up to its length."""
        blocks, rows, length = self._blocks, self._rows(step), step.length_ps
        last = int(blocks.rank[rows].max())
        rows = rows[blocks.rank[rows] == last]
        kernels = rows[blocks.kind[rows] == 0]
        moving = rows[
            is_moving(blocks.kind[rows], blocks.stream[rows], blocks.streams)
        ]
        spans = blocks.start[kernels], blocks.end[kernels]
        compute = min(length, Union(*spans).length_ps)
        both = zip(spans, (blocks.moves[moving], blocks.end[moving]), strict=True)
        exposed = Union(*(np.append(*side) for side in both)).length_ps - compute
        exposed = min(length - compute, exposed)
        words, rank = "in folded blocks", f"rank {last}"
        yield Charge(
            "work",
            f"kernels of {rank}",
            f"kernels {words}",
            compute,
            CauseKind.COMPUTE,
        )
        reason = f"communication {words} that nothing hides"
        yield Charge("work", f"data of {rank}", reason, exposed, CauseKind.EXPOSED)
        idle = length - compute - exposed
        yield Charge(
            "cost", f"waits of {rank}", f"waits {words}", idle, CauseKind.IDLE
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """Facts of a traced run, without its completed slices."""

    path: Path
    result: Result
    inputs: Inputs
    network: Network

    @classmethod
    def of(cls, path: Path, result: Result, inputs: Inputs) -> Traced:
        """Return a run with its network."""
        return cls(
            path,
            result,
            inputs,
            Network(inputs, result.wires.names, result.wires.classes),
        )

    @property
    def timeouts(self) -> TimeoutWaits:
        """Waits of NICs for timeouts of retransmission."""
        return TimeoutWaits(self.network, self.result.in_order)

    @property
    def facts(self) -> dict[str, Any]:
        """Time of the run, and True if it is complete, for the tables of analyses."""
        return {"time_ps": self.result.time_ps, "complete": self.result.complete}


@dataclass(frozen=True, slots=True)
class Critical:
    """Run with its completed slices: segments of the critical path and their time breakdown."""

    traced: Traced
    walk: Walk
    charger: Charger
    servers: Servers
    timeouts: TimeoutWaits
    blocks: BlockCharges | None = None

    def charges(self, step: Step) -> Iterable[Charge]:
        """Yield the parts of a step; their times add up to its length."""
        if self.blocks is not None and self.blocks.stands(step):
            return self.blocks.charges(step)
        waits, shorter = self.timeouts.split(step)
        return [*waits, *self.charger.charges(shorter)]

    def scaled_ps(self, steps: Iterable[Step], change: Change) -> int:
        """Return the time of segments, each shortened in isolation by a change [ps]."""
        return round(
            sum(self.charger.scaled_ps(step, change.scale) for step in steps)
        )


def require_tasks(traced: Traced) -> None:
    """Raise `TraceError` if a run lacks a critical path."""
    if not traced.result.tasks.names:
        raise TraceError(
            f"{traced.path}: a trace of synthetic traffic; only programs have a critical path"
        )


def critical_of(traced: Traced, records: Records) -> Critical:
    """Return a run prepared for its critical path; raises `TraceError` if it has no path."""
    require_tasks(traced)
    result, network = traced.result, traced.network
    walk = Walk(records, network, result.tasks.start_ps, result.tasks.end_ps)
    units = unit_busy_ps(records, walk.slices, network, result.bins.edge_ps)
    usage = Usage(result.bins, network.image["endpoints"]["mem_cost16"], units)
    used = result.wires.counters["packets"] > 0
    rivals = Rivals(walk, network, traced.inputs)
    rows, count = result.tasks.blocks, len(result.tasks.names)
    blocks = BlockCharges(rows, count) if rows is not None else None
    servers = Servers(
        result, network, walk.slices, traced.inputs.texts("tasks/stream")
    )
    waits, charger = traced.timeouts, Charger(walk, network, usage, used, rivals)
    return Critical(traced, walk, charger, servers, waits, blocks)


def open_traced(path: str | Path) -> Traced:
    """Read a trace; raises `TraceError` if it is not a trace, or too old to contain inputs."""
    from clusim.results.trace.inputs import read_run

    result, inputs = read_run(path)
    return Traced.of(Path(path), result, inputs)


@contextmanager
def critical(path: str | Path) -> Iterator[Critical]:
    """Open a trace for a walk along its critical path."""
    from clusim.results.trace.reader import open_records

    traced = open_traced(path)
    # Before the records are opened: synthetic traffic lacks them.
    require_tasks(traced)
    with open_records(path) as records:
        yield critical_of(traced, records)
