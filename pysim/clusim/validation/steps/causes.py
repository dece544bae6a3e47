"""Changes of a workload or its system that may explain a measured step, in the order of their cost.

**Model** Extents are assumed: half the rate of links, 10 and 20% slower kernels (power, clocks), a host thread of half
the speed, a rank with 1.5 times the compute time, 20 ms of data loading per microbatch. A change that is invalid for
the workload, or that needs more memory than the GPUs have, is omitted.
**Not modelled** Other jobs on the network, garbage collection, checkpoints and validation between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, get_args

from clusim.base.errors import ClusimError
from clusim.topology.changes import with_faster_links
from clusim.training.request import TrainRequest
from clusim.validation.collectives.hypotheses import system_hypotheses
from clusim.workload import Workload, make_plan
from clusim.workload.spec import HostSpec

LIBRARIES = ("flash1", "flash-triton", "flash2", "flash3", "cudnn")
"""Libraries of fused attention that measured jobs use."""

_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "kernels 10% slower (power or clocks)": {"hardware.speed": 0.9},
    "kernels 20% slower (power or clocks)": {"hardware.speed": 0.8},
    "no recomputation": {"recompute": "none"},
    "selective recomputation": {"recompute": "selective"},
    "full recomputation": {"recompute": "full"},
    "unfused attention": {"attention": "plain"},
    **{
        f"attention by {name}": {"hardware.attention_library": name}
        for name in LIBRARIES
    },
    "gradients reduced without overlap": {"data.overlap": False},
    "tensor parallelism without overlap": {"tensor.overlap": False},
    "data loading of 20 ms per microbatch": {"host.data_loading": "20ms"},
    "host thread at half speed": {"host.speed": 0.5},
    **{
        f"host of {name}": {"host.framework": name}
        for name in get_args(HostSpec.model_fields["framework"].annotation)
        if name != "none"
    },
    "rank 0 slow (x1.5)": {"stragglers.ranks": {"0": 1.5}},
}
"""Title -> keys of the workload by their path; slow ranks last, which are simulated in full."""


@dataclass(frozen=True, slots=True)
class StepHypothesis:
    """A change that may explain a step; `change` is in the words of ``clusim what-if``."""

    title: str
    change: str
    request: TrainRequest


def step_hypotheses(request: TrainRequest) -> Iterator[StepHypothesis]:
    """Yield the changes that apply to a workload, settings first, then links and failed parts."""
    for title, changes in _SETTINGS.items():
        workload = _change_workload(request, changes)
        if workload is not None:
            words = " ".join(
                f"{key}={str(value).lower()}" for key, value in changes.items()
            )
            yield StepHypothesis(title, words, replace(request, workload=workload))
    fabric = request.setup.fabric
    for name in sorted({link.cls for link in fabric.links}):
        slower = with_faster_links(fabric, name, Fraction(1, 2))
        setup = replace(request.setup, topology=slower, nodes=None)
        yield StepHypothesis(
            f"{name} at half rate", f"{name} x0.5", replace(request, setup=setup)
        )
    for item in system_hypotheses(request.setup):
        yield StepHypothesis(
            item.title, item.change, replace(request, setup=item.setup)
        )


def _change_workload(
    request: TrainRequest, changes: Mapping[str, Any]
) -> Workload | None:
    """Return a workload with other values; None if it is equal, invalid or needs too much memory."""
    data = request.workload.model_dump(by_alias=True, exclude_unset=True)
    for dotted, value in changes.items():
        *above, last = dotted.split(".")
        section = data
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    with suppress(ClusimError, ValueError):
        workload = Workload.model_validate(data)
        plan = make_plan(workload, request.setup.known)
        full = any(plan.memory(stage).missing for stage in range(plan.mesh.pipeline))
        if workload != request.workload and not full:
            return workload
    return None
