"""Which layers are in which part of which pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from clusim.errors import InputError
from clusim.workload.kernels import Chip, Kernel
from clusim.workload.layers import Layer, backward_steps
from clusim.workload.models import Model, Transformer
from clusim.workload.orders import StageLayout
from clusim.workload.partition import balanced
from clusim.workload.recompute import Recomputer
from clusim.workload.spec import Workload

__all__ = ["COPY", "divide", "stages_of"]

COPY = "embedding copy"
"""Tensor of the last stage, if the head uses the weights of the embedding, which is in the first."""


def stages_of(
    workload: Workload, model: Model, layers: Sequence[Layer], layout: StageLayout, chip: Chip
) -> list[list[list[Layer]]]:
    """Return the layers by stage and part, with what each computes again."""
    own = workload.pipeline
    if own.partition == "balanced":
        times = [_time_ps(layer, workload, chip) for layer in layers]
        parts = _cut(layers, balanced(times, layout.parts))
    else:
        parts = divide(layers, layout, own.layers)
    stages = [
        [parts[layout.part(stage, chunk)] for chunk in range(layout.chunks)]
        for stage in range(layout.stages)
    ]
    _copy_embedding(stages, model, layout, own.schedule)
    again = Recomputer(workload)
    return [[again.part(chunk) for chunk in chunks] for chunks in stages]


def divide(
    layers: Sequence[Layer], layout: StageLayout, counts: Sequence[int] | None = None
) -> list[list[Layer]]:
    """Return the layers by part: as many blocks in each as `counts` says, else as even as can be.

    What comes before the blocks is in the first part, what comes behind in the last.
    """
    first = [layer for layer in layers if layer.kind in ("embedding", "stem")]
    last = [layer for layer in layers if layer.kind == "head"]
    blocks = [layer for layer in layers if layer not in first and layer not in last]
    parts = layout.parts
    if counts is None:
        if len(blocks) < parts:
            chunks = parts // layout.stages
            cut = f"{layout.stages} stages" + (f" x {chunks} chunks" if chunks > 1 else "")
            raise InputError(f"{len(blocks)} layers cannot be divided into {cut}")
        base, more = divmod(len(blocks), parts)
        counts = [base + (part < more) for part in range(parts)]
    if len(counts) != parts or sum(counts) != len(blocks):
        raise InputError(
            f"layers {list(counts)}: must be {parts} numbers, whose sum is {len(blocks)}"
        )
    found = _cut(blocks, counts)
    found[0] = first + found[0]
    found[-1] = found[-1] + last
    if not all(found):
        raise InputError(f"layers {list(counts)}: a part has no layer at all")
    return found


def _cut(layers: Sequence[Layer], counts: Sequence[int]) -> list[list[Layer]]:
    ends = [*accumulate(counts)]
    return [list(layers[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _time_ps(layer: Layer, workload: Workload, chip: Chip) -> int:
    """Return what the kernels of a layer take for a microbatch [ps]."""
    steps = (*layer.forward, *backward_steps(layer, workload.recompute))
    return sum(chip.time_ps(step) for step in steps if isinstance(step, Kernel))


def _copy_embedding(
    stages: list[list[list[Layer]]], model: Model, layout: StageLayout, schedule: str
) -> None:
    """Give the last of several stages its own copy of an embedding that the head uses too, as Megatron-LM does.

    Where the first stage also has the last part both use the same.
    """
    tied = isinstance(model, Transformer) and model.tied
    if len(stages) == 1 or not tied or schedule == "pipedream" or layout.shape != "round":
        return
    last, embedding = stages[-1][-1], stages[0][0][0].tensors[0]
    last[-1] = replace(last[-1], tensors=(replace(embedding, name=COPY), *last[-1].tensors))
