"""The workload and the machine of a training run, by their names or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.workload import Workload, load_workload


def inputs(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    nodes: int | None = None,
    faults: Sequence[Any] = (),
) -> tuple[Setup, Workload]:
    """Return on what is trained, and what: the first two of a `TrainRequest`.

    Parameters
    ----------
    fabric : Fabric or str or Path or None
        None is the machine that the workload names, with its number of nodes.
    nodes : int or None
        Join so many of these machines.
    faults : sequence
        What breaks besides the machine's own faults.
    """
    spec = workload if isinstance(workload, Workload) else load_workload(workload)
    topology = spec.topology if fabric is None else fabric
    if not topology:
        raise InputError("the workload names no topology; give one")
    count = nodes if nodes is not None or fabric is not None else spec.nodes
    return Setup(topology, count, faults=tuple(faults)), spec
