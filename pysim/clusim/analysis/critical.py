"""A run prepared for questions about its critical path, whether its records are in a file or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusim.analysis.blockcharges import BlockCharges
from clusim.analysis.charge import Charge, Charger
from clusim.analysis.network import Network
from clusim.analysis.rivals import Rivals
from clusim.analysis.units import unit_busy_ps
from clusim.analysis.usage import Usage
from clusim.analysis.walk import Step, Walk
from clusim.base.errors import TraceError
from clusim.results.result import Result
from clusim.results.trace.held import Inputs, Records


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace says of a run, without its completed slices."""

    path: Path
    result: Result
    inputs: Inputs
    network: Network

    @classmethod
    def of(cls, path: Path, result: Result, inputs: Inputs) -> Traced:
        """Return a run with its network."""
        return cls(path, result, inputs, Network(inputs, result.wires.names, result.wires.classes))


@dataclass(frozen=True, slots=True)
class Critical:
    """A run with its completed slices: steps of the critical path and what they are charged to."""

    traced: Traced
    walk: Walk
    charger: Charger
    blocks: BlockCharges | None = None

    def charges(self, step: Step) -> Iterator[Charge]:
        """Yield the parts of a step; their times add up to its length."""
        if self.blocks is not None and self.blocks.stands(step):
            return self.blocks.charges(step)
        return self.charger.charges(step)


def require_tasks(traced: Traced) -> None:
    """Raise `TraceError` for a run that has no critical path."""
    if not traced.result.tasks.names:
        raise TraceError(
            f"{traced.path}: a trace of synthetic traffic; only programs have a critical path"
        )


def critical_of(traced: Traced, records: Records) -> Critical:
    """Prepare a walk along the critical path of a run; raises `TraceError` if it has none."""
    require_tasks(traced)
    result, network = traced.result, traced.network
    walk = Walk(records, network, result.tasks.start_ps, result.tasks.end_ps)
    units = unit_busy_ps(records, walk.slices, network, result.bins.edge_ps)
    usage = Usage(result.bins, network.image["endpoints"]["mem_cost16"], units)
    used = result.wires.counters["packets"] > 0
    rivals = Rivals(walk, network, traced.inputs)
    folded, many = result.tasks.folded, len(result.tasks.names)
    blocks = BlockCharges(folded, many) if folded is not None else None
    return Critical(traced, walk, Charger(walk, network, usage, used, rivals), blocks)
