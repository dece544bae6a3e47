"""clusim: a cycle-level emulator of GPU clusters.

>>> import clusim
>>> fabric = clusim.load("dgx-a100")
>>> result = clusim.collective(fabric, "allreduce", "1MiB", algorithm="nccl")

The names in ``__all__`` are public and stable; they are imported on first use, because a command
line that only prints its help should not wait for NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clusim.base import display, importer_hook

if TYPE_CHECKING:
    from clusim import collectives, schedule, topology
    from clusim import topology as fabric
    from clusim.api import nccl_tests, replay
    from clusim.base.errors import ClusimError
    from clusim.multijob.api import run_jobs
    from clusim.nccltests.expected import expected
    from clusim.policies import policy
    from clusim.programs import annotations as torch
    from clusim.results.result import Result
    from clusim.schedule import Schedule
    from clusim.serving.api import serve
    from clusim.simulation.api import collective, simulate
    from clusim.simulation.traffic import Traffic
    from clusim.simulation.traffic_api import simulate_traffic, traffic
    from clusim.studies.plan.api import plan
    from clusim.topology import Fabric, FabricBuilder, load
    from clusim.training.api import train
    from clusim.validation.calibration.api import calibrate
    from clusim.workload import prices as kernels

    __version__: str

__all__ = [
    "ClusimError",
    "Fabric",
    "FabricBuilder",
    "Result",
    "Schedule",
    "Traffic",
    "__version__",
    "calibrate",
    "collective",
    "collectives",
    "expected",
    "fabric",
    "kernels",
    "load",
    "nccl_tests",
    "plan",
    "policy",
    "replay",
    "run_jobs",
    "schedule",
    "serve",
    "simulate",
    "simulate_traffic",
    "topology",
    "torch",
    "traffic",
    "train",
]

_HOME = {
    "ClusimError": "clusim.base.errors",
    "Fabric": "clusim.topology",
    "FabricBuilder": "clusim.topology",
    "Result": "clusim.results.result",
    "Schedule": "clusim.schedule",
    "Traffic": "clusim.simulation.traffic",
    "load": "clusim.topology",
    "policy": "clusim.policies",
    "collective": "clusim.simulation.api",
    "simulate": "clusim.simulation.api",
    "simulate_traffic": "clusim.simulation.traffic_api",
    "traffic": "clusim.simulation.traffic_api",
    "nccl_tests": "clusim.api",
    "replay": "clusim.api",
    "run_jobs": "clusim.multijob.api",
    "serve": "clusim.serving.api",
    "train": "clusim.training.api",
    "plan": "clusim.studies.plan.api",
    "expected": "clusim.nccltests.expected",
    "calibrate": "clusim.validation.calibration.api",
}
_MODULES = {
    "collectives": "clusim.collectives",
    "fabric": "clusim.topology",  # its earlier name
    "kernels": "clusim.workload.prices",
    "schedule": "clusim.schedule",
    "topology": "clusim.topology",
    "torch": "clusim.programs.annotations",
}

importer_hook.register(lambda: import_module("clusim.formats.topologies"))
display.register(
    "Fabric", lambda: import_module("clusim.topology.picture").plot_fabric
)
display.register("Result", lambda: import_module("clusim.report.plots").plot_result)
display.register(
    "Sensitivity", lambda: import_module("clusim.report.charts").plot_sensitivity
)
display.register(
    "TrainingResult", lambda: import_module("clusim.training.sweep").plot_step
)
display.register("Table", lambda: import_module("clusim.nccltests.api").plot_table)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from clusim.base.version import version

        return version()
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'clusim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
