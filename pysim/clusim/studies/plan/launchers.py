"""Arguments of training frameworks for a layout.

Names of arguments: Megatron-LM, megatron/training/arguments.py; TorchTitan, torchtitan/config/job_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusim.studies.plan.layouts import FSDP, HSDP, OPTIMIZER, ParallelLayout
from clusim.workload.models import Model, Transformer
from clusim.workload.spec import Workload

CANNOT = {"megatron": (HSDP,), "torchtitan": (OPTIMIZER,)}
"""Placements of states that a framework does not have."""


def launch_arguments(
    framework: str, layout: ParallelLayout, workload: Workload, model: Model
) -> list[str]:
    """Return the arguments of ``megatron`` or ``torchtitan`` for a layout."""
    arguments = _megatron if framework == "megatron" else _torchtitan
    return list(arguments(layout, workload, model))


def _megatron(
    layout: ParallelLayout, workload: Workload, model: Model
) -> Iterator[str]:
    yield f"--tensor-model-parallel-size {layout.tensor}"
    yield f"--pipeline-model-parallel-size {layout.pipeline}"
    yield f"--context-parallel-size {layout.context}"
    if layout.expert > 1:
        yield f"--expert-model-parallel-size {layout.expert}"
    if layout.chunks > 1 and isinstance(model, Transformer):
        layers = model.layers // (layout.pipeline * layout.chunks)
        yield f"--num-layers-per-virtual-pipeline-stage {layers}"
    yield f"--micro-batch-size {layout.micro}"
    yield f"--global-batch-size {workload.batch.all}"
    yield f"--seq-length {workload.sequence}"
    if layout.tensor > 1:
        yield "--sequence-parallel"
    if layout.states == OPTIMIZER:
        yield "--use-distributed-optimizer"
    if layout.states == FSDP:
        yield "--use-torch-fsdp2"
    if layout.recompute == "selective":
        yield "--recompute-granularity selective"
    if layout.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def _torchtitan(
    layout: ParallelLayout, workload: Workload, _: Model
) -> Iterator[str]:
    replicas = layout.data * layout.context // layout.shard if layout.shard else 1
    yield f"--parallelism.tensor_parallel_degree {layout.tensor}"
    yield f"--parallelism.pipeline_parallel_degree {layout.pipeline}"
    yield f"--parallelism.context_parallel_degree {layout.context}"
    yield f"--parallelism.data_parallel_shard_degree {layout.data // replicas}"
    yield f"--parallelism.data_parallel_replicate_degree {replicas}"
    if layout.pipeline > 1:
        schedule = "Interleaved1F1B" if layout.chunks > 1 else "1F1B"
        yield f"--parallelism.pipeline_parallel_schedule {schedule}"
    if layout.expert > 1:
        yield f"--parallelism.expert_parallel_degree {layout.expert}"
    yield f"--training.local_batch_size {layout.micro}"
    yield f"--training.global_batch_size {workload.batch.all}"
    yield f"--training.seq_len {workload.sequence}"
    yield f"--activation_checkpoint.mode {layout.recompute}"
