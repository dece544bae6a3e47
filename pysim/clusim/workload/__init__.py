"""Training runs: models, memory and parallelism, written as schedules.

A `Workload` (from YAML) and a topology yield a `ParallelPlan`; a `StepWriter` writes its steps with a
`ScheduleBuilder`.
"""

from __future__ import annotations

from clusim.workload.chips import chip_of
from clusim.workload.kernels import PRECISIONS, Chip, Gemm, Kernel
from clusim.workload.layers import Layer, Shard
from clusim.workload.memory import Memory
from clusim.workload.mesh import Mesh
from clusim.workload.models import MODELS, find_model, read_config
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.fold import Folder
from clusim.workload.parallel.pipeline import StepWriter
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from clusim.workload.spec import Workload
from clusim.workload.workload_file import load_workload, loads_workload

__all__ = [
    "MODELS",
    "PRECISIONS",
    "Chip",
    "Emitter",
    "Folder",
    "Gemm",
    "Kernel",
    "Layer",
    "Memory",
    "Mesh",
    "ParallelPlan",
    "Shard",
    "StepWriter",
    "Workload",
    "chip_of",
    "find_model",
    "load_workload",
    "loads_workload",
    "make_plan",
    "read_config",
]
