"""Functions for scripts: training steps of a workload on a system, by name or as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs
from clusim.simulation.api import as_policy
from clusim.simulation.job import RunOptions
from clusim.simulation.request import taken
from clusim.simulation.session import Progress, Watch, shown_in_notebook
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.training.request import TrainRequest
from clusim.training.result import TrainingResult
from clusim.training.run import trained
from clusim.workload import Workload, load_workload


def inputs(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    nodes: int | None = None,
    faults: Sequence[Any] = (),
    policy: str | type[Any] = "",
) -> tuple[Setup, Workload]:
    """Return the setup and the workload: the first two fields of a `TrainRequest`.

    Parameters
    ----------
    fabric : Fabric or str or Path or None
        None is the system that the workload names, with its number of nodes.
    nodes : int or None
        Number of nodes to join.
    faults : sequence
        Faults in addition to the system's.
    policy : str or type
        Sender policy of all NICs, as of `clusim.traffic`.
    """
    spec = workload if isinstance(workload, Workload) else load_workload(workload)
    topology = spec.topology if fabric is None else fabric
    if not topology:
        raise InputError("topology missing in the workload; set topology")
    count = nodes if nodes is not None or fabric is not None else spec.nodes
    setup = Setup(topology, count, faults=tuple(faults), policy=as_policy(policy))
    return setup, spec


def train_request(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    **options: Any,
) -> TrainRequest:
    """Return the request of options: ``nodes``, ``faults``, ``policy`` of `inputs`, and fields of `TrainRequest`."""
    setup, spec = inputs(
        workload,
        fabric,
        options.pop("nodes", None),
        options.pop("faults", ()),
        options.pop("policy", ""),
    )
    return TrainRequest(setup, spec, **options)


class EstimateOptions(TypedDict, total=False):
    """Further options of `clusim.training.estimate.estimate`; see `TrainOptions`."""

    nodes: int | None
    steps: int
    strict_memory: bool
    granularity: str | int
    seed: int
    faults: Sequence[Any]
    confirm: bool | None


class TrainOptions(EstimateOptions, total=False):
    """Further options of `train`.

    Attributes
    ----------
    nodes : int
        Number of nodes to join; by default set by the workload.
    steps : int
        Steps; the last one is reported. 2 by default.
    fold : str
        Equal blocks of work to simulate once: ``auto``, ``all``, ``proved`` or ``none``.
    strict_memory : bool
        Insufficient memory is an error rather than a note.
    granularity, seed, faults, trace_out, progress, command
        As in `clusim.simulate`.
    confirm : bool or None
        Whether `StepResult.diagnose` simulates all changes (True) or no change (False); None: those that are cheap.
    watch : clusim.simulation.session.Watch
        Wall-clock limit, which raises `StepsEnded`.
    """

    fold: Literal["auto", "all", "proved", "none"] | None
    trace_out: str | Path | None
    progress: Progress | None
    command: str
    watch: Watch


def train(
    workload: str | Path | Workload,
    fabric: str | Path | Fabric | None = None,
    **options: Unpack[TrainOptions],
) -> TrainingResult:
    """Simulate training steps, as ``clusim train`` does.

    Parameters
    ----------
    workload : str or Path or Workload
        A YAML file, the name of a shipped one, or a result of `clusim.workload.loads_workload`.
    fabric : Fabric or str or Path or None
        The system; None is the system that the workload names.
    **options
        See `TrainOptions`.

    Returns
    -------
    TrainingResult
        `step_time_s` [s], `mfu`, `mean("exposed")` [s] and the rest of the command's output; `result` has the wires.

    Raises
    ------
    InputError
        An invalid name, size or option, or with `strict_memory` too little memory.
    clusim.training.proof.StepsEnded
        The limit of `watch` was reached; `known` is the partial result.
    """
    values: dict[str, Any] = dict(options)
    how = RunOptions(
        **taken(values, RunOptions, known=TrainOptions.__optional_keys__)
    )
    with guard_inputs(), shown_in_notebook(how.progress) as progress:
        return trained(
            train_request(workload, fabric, **values),
            replace(how, progress=progress),
        )
