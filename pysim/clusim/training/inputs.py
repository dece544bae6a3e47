"""The workload and the machine of a training run, by their names or as they are."""

from __future__ import annotations

from pathlib import Path

from clusim.errors import InputError
from clusim.fabric import Fabric, load
from clusim.workload import Workload, load_workload

__all__ = ["inputs"]


def inputs(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    nodes: int | None = None,
) -> tuple[Workload, Fabric]:
    """Return what trains and on what.

    Parameters
    ----------
    fabric : Fabric or str or Path or None
        None is the machine that the workload names, with its number of nodes.
    nodes : int or None
        Join so many of these machines.
    """
    spec = workload if isinstance(workload, Workload) else load_workload(workload)
    if isinstance(fabric, Fabric):
        if nodes is not None:
            raise InputError(f"nodes={nodes}: {fabric.name} is joined already; load it with nodes")
        return spec, fabric
    topology = fabric or spec.topology
    if topology is None:
        raise InputError("the workload names no topology; give one")
    count = nodes if nodes is not None or fabric is not None else spec.nodes
    return spec, load(topology, nodes=count)
