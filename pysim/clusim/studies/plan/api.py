"""Function for scripts: the fastest layouts of a model on a system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict, Unpack

import yaml

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs, write_text
from clusim.base.resources import shipped_workloads
from clusim.studies.plan.layouts import ParallelLayout
from clusim.studies.plan.search import (
    ESTIMATED,
    PhaseNotice,
    PlanSearch,
    plan_search,
)
from clusim.topology import Fabric
from clusim.training.api import inputs
from clusim.workload import Workload, load_workload
from clusim.workload.models import find_model


def plan_workload(
    model: str | os.PathLike[str] | Workload,
    *,
    batch: int | None = None,
    sequence: int | None = None,
) -> Workload:
    """Return the workload of a search: of a model with a batch, or of a file with changes.

    Raises
    ------
    InputError
        The model is unknown, or the batch of a model is missing.
    """
    if isinstance(model, Workload):
        return model
    values: dict[str, Any] = {"batch.global": batch, "sequence": sequence}
    changes = {key: value for key, value in values.items() if value is not None}
    name = os.fspath(model)
    if Path(name).is_file() or name in shipped_workloads():
        return load_workload(name, changes)
    find_model(name)
    if batch is None:
        raise InputError(
            f"{name}: the batch is missing; set the samples of a step, e.g. --batch 128"
        )
    length = {} if sequence is None else {"sequence": sequence}
    return Workload.model_validate(
        {"name": name, "model": name, "batch": {"global": batch}, **length}
    )


class PlanOptions(TypedDict, total=False):
    """Further options of `plan`.

    Attributes
    ----------
    nodes : int or None
        Number of nodes to join.
    batch, sequence : int or None
        Samples of a step over all GPUs, and tokens of a sample; by default of the workload.
    estimates : int
        Number of layouts that are estimated.
    notify : callable
        Called with the name of each phase.
    """

    nodes: int | None
    batch: int | None
    sequence: int | None
    estimates: int
    notify: PhaseNotice


def plan(
    model: str | os.PathLike[str] | Workload,
    topology: str | Path | Fabric | None = None,
    **options: Unpack[PlanOptions],
) -> PlanSearch:
    """Return the fastest layouts of a model on all GPUs of a system, as ``clusim plan`` does.

    Parameters
    ----------
    model : str or Path or Workload
        Name of a model, or a workload; its other keys are kept.
    topology : Fabric or str or Path or None
        The system; None is the system that the workload names.
    **options
        See `PlanOptions`.

    Returns
    -------
    PlanSearch
        `steps`, the fastest first, and the number of omitted layouts.

    Raises
    ------
    InputError
        An invalid name or size, or no layout that fits.
    """
    spec = plan_workload(
        model, batch=options.get("batch"), sequence=options.get("sequence")
    )
    setup, spec = inputs(spec, topology, options.get("nodes"))
    notify = options.get("notify", _ignore)
    with guard_inputs():
        return plan_search(
            setup, spec, most=options.get("estimates", ESTIMATED), notify=notify
        )


def _ignore(_: str) -> None:
    """Ignore the name of a phase."""


def write_workload(
    workload: Workload,
    layout: ParallelLayout,
    path: Path,
    system: tuple[str, int | None],
) -> None:
    """Write the workload with a layout, and its system, as YAML."""
    topology, nodes = system
    base = workload.model_dump(by_alias=True, exclude_unset=True)
    spec = layout.workload(
        {**base, "topology": topology, **({"nodes": nodes} if nodes else {})}
    )
    data = spec.model_dump(by_alias=True, exclude_unset=True, mode="json")
    write_text(
        path,
        str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)),
    )
