"""A trace opened for analysis: result, inputs and network, read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusim.analysis.charge import Charger
from clusim.analysis.network import Network
from clusim.analysis.units import unit_busy_ps
from clusim.analysis.usage import Usage
from clusim.analysis.walk import Walk
from clusim.errors import TraceError
from clusim.result import Result
from clusim.trace.inputs import Inputs, read_run
from clusim.trace.records import RecordFile

__all__ = ["Critical", "Traced", "critical", "open_traced"]


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace says of a run, without its completed slices."""

    path: Path
    result: Result
    inputs: Inputs
    network: Network


@dataclass(frozen=True, slots=True)
class Critical:
    """A trace with its completed slices open: steps of the critical path and what they are charged to."""

    traced: Traced
    walk: Walk
    charger: Charger


def open_traced(path: str | Path) -> Traced:
    """Read a trace; raises `TraceError` if it is none, or too old to hold its inputs."""
    result, inputs = read_run(path)
    network = Network(inputs, result.wires.names, result.wires.classes)
    return Traced(Path(path), result, inputs, network)


@contextmanager
def critical(path: str | Path) -> Iterator[Critical]:
    """Open a trace for a walk along its critical path."""
    traced = open_traced(path)
    if not traced.result.tasks.names:
        raise TraceError(
            f"{path}: a trace of synthetic traffic; only programs have a critical path"
        )
    result, network = traced.result, traced.network
    with RecordFile(path) as records:
        walk = Walk(records, network, result.tasks.start_ps, result.tasks.end_ps)
        units = unit_busy_ps(records, walk.slices, network, result.bins.edge_ps)
        cost16 = network.image["endpoints"]["mem_cost16"]
        usage = Usage(result.bins, cost16, units)
        used = result.wires.counters["packets"] > 0
        yield Critical(traced, walk, Charger(walk, network, usage, used))
