"""Work of every layer of a plan, for one microbatch on one GPU, without simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from clusim.base.json_schema import JsonObject, Written
from clusim.base.tables import text_table
from clusim.base.units import format_size, format_time
from clusim.workload.kernels import Chip, Kernel
from clusim.workload.layers import Comm, Layer, backward_steps
from clusim.workload.parallel.plan import ParallelPlan

PARTS = ("forward", "input", "weight")


@dataclass(frozen=True, slots=True)
class LayerKernel(JsonObject):
    """A kernel of a layer, for one microbatch.

    Attributes
    ----------
    part : str
        ``forward``; or backward, towards the gradients of the ``input`` or the ``weight``.
    """

    KEYS = ("kernel", "part", "time_us")

    kernel: str
    part: str
    time_ps: int


@dataclass(frozen=True, slots=True)
class LayerRow(JsonObject):
    """A layer, for one microbatch on one GPU.

    Attributes
    ----------
    count : int
        Number of equal layers in the stage.
    forward_flops, input_flops, weight_flops : int
        Operations forwards, and backwards towards the gradients of inputs and of weights.
    forward_hbm_bytes, input_hbm_bytes, weight_hbm_bytes : int
        Memory traffic [bytes].
    activation_bytes : int
        Activations kept for the backward pass [bytes].
    memory_bound : float
        Share of the time in which kernels are limited by memory rather than arithmetic.
    collectives : dict
        Forwards and backwards, in words.
    kernels : list of LayerKernel
        In the order of execution.
    """

    KEYS = (
        "stage",
        "layer",
        "count",
        "parameters",
        "forward_flops",
        "input_flops",
        "weight_flops",
        "forward_hbm_bytes",
        "input_hbm_bytes",
        "weight_hbm_bytes",
        "forward_s",
        "input_s",
        "weight_s",
        "activation_bytes",
        "memory_bound",
        "collectives",
        "kernels",
    )

    stage: int
    layer: str
    count: int
    parameters: int
    forward_flops: int
    input_flops: int
    weight_flops: int
    forward_hbm_bytes: int
    input_hbm_bytes: int
    weight_hbm_bytes: int
    forward_ps: int
    input_ps: int
    weight_ps: int
    activation_bytes: int
    memory_bound: Annotated[float, Written(4)]
    collectives: dict[str, list[str]]
    kernels: list[LayerKernel]


@dataclass(frozen=True, slots=True)
class OptimizerRow(JsonObject):
    """The step of the optimiser of a stage on one GPU."""

    KEYS = ("stage", "parameters", "hbm_bytes", "step_s")

    stage: int
    parameters: int
    hbm_bytes: int
    step_ps: int


@dataclass(frozen=True)
class LayersOfPlan(JsonObject):
    """Work of every layer, before any simulation.

    Attributes
    ----------
    peak_flops : float
        Peak of the chip at the workload's precision [1/s].
    gemm_fraction, attention_fraction : float
        Largest share of the peak that matrix products and fused attention reach.
    sustained : float
        Share of the clock in long runs.
    """

    KEYS = (
        "workload=plan.workload.name",
        "model=plan.model.name",
        "chip=plan.chip.name",
        "peak_flops=plan.chip.peak_flops",
        "gemm_fraction=plan.chip.gemm_fraction",
        "attention_fraction=plan.chip.attention_fraction",
        "memory_Bps=plan.chip.memory_Bps",
        "sustained=plan.chip.sustained",
        "microbatches=plan.microbatches",
        "layers",
        "optimizer",
    )

    plan: ParallelPlan
    layers: list[LayerRow]
    optimizer: list[OptimizerRow]


def layer_table(plan: ParallelPlan) -> LayersOfPlan:
    """Return the work of every layer and of the optimiser."""
    steps = [optimizer_row(plan, stage) for stage in range(len(plan.stages))]
    return LayersOfPlan(plan, layer_rows(plan), steps)


def layer_rows(plan: ParallelPlan) -> list[LayerRow]:
    """Return the layers of every pipeline stage, consecutive equal layers as one row."""
    result: list[LayerRow] = []
    for stage, chunks in enumerate(plan.stages):
        layers = [layer for chunk in chunks for layer in chunk]
        counts: dict[int, int] = {}
        for layer in layers:
            counts[id(layer)] = counts.get(id(layer), 0) + 1
        for layer in {id(layer): layer for layer in layers}.values():
            result.append(_row(plan, stage, layer, counts[id(layer)]))
    return result


def _row(plan: ParallelPlan, stage: int, layer: Layer, count: int) -> LayerRow:
    steps = {"forward": list(layer.forward), "backward": backward_steps(layer)}
    kernels = [
        step
        for part_steps in steps.values()
        for step in part_steps
        if isinstance(step, Kernel)
    ]
    by_part: dict[str, list[Kernel]] = {
        part: [k for k in kernels if k.part == part] for part in PARTS
    }
    bound = sum(
        plan.chip.time_ps(k) for k in kernels if _waits_for_memory(plan.chip, k)
    )
    sums = {
        **{
            f"{part}_flops": sum(k.flops for k in own)
            for part, own in by_part.items()
        },
        **{
            f"{part}_hbm_bytes": sum(k.bytes for k in own)
            for part, own in by_part.items()
        },
        **{
            f"{part}_ps": sum(map(plan.chip.time_ps, own))
            for part, own in by_part.items()
        },
    }
    total_ps = sum(sums[f"{part}_ps"] for part in PARTS)
    return LayerRow(
        stage=stage,
        layer=layer.name,
        count=count,
        parameters=layer.parameters,
        activation_bytes=layer.kept_bytes,
        memory_bound=bound / max(1, total_ps),
        collectives={
            name: list(_messages(part_steps)) for name, part_steps in steps.items()
        },
        kernels=[LayerKernel(k.name, k.part, plan.chip.time_ps(k)) for k in kernels],
        **sums,
    )


def _waits_for_memory(chip: Chip, kernel: Kernel) -> bool:
    return chip.arithmetic_s(kernel) <= kernel.bytes / chip.memory_Bps


def _messages(steps: list[Any]) -> Iterator[str]:
    counts: dict[tuple[str, str, int], int] = {}
    for step in steps:
        if isinstance(step, Comm):
            key = (step.operation, step.dim, step.bytes)
            counts[key] = counts.get(key, 0) + 1
    for (operation, dim, size), count in counts.items():
        times = f"{count} x " if count > 1 else ""
        yield f"{times}{operation} {dim} {format_size(size)}"


def optimizer_row(plan: ParallelPlan, stage: int) -> OptimizerRow:
    """Return the work of a stage's optimiser step."""
    elements = plan.optimizer_parameters(stage)
    kernel = plan.optimizer.kernel(elements)
    step_ps = plan.chip.time_ps(kernel) if elements else 0
    return OptimizerRow(stage, elements, kernel.bytes, step_ps)


def layer_report(plan: ParallelPlan) -> str:
    """Return the table that ``clusim train --layers`` prints."""
    chip, workload = plan.chip, plan.workload
    lines = [
        f"{workload.name}: layers of {plan.model.name} on one GPU, for one of {plan.microbatches} microbatches",
        f"  {chip.name}: {chip.peak_flops / 1e12:.4g} TFLOP/s {workload.precision} (products: at most"
        f" {chip.gemm_fraction:.0%}, long runs {chip.sustained:.0%}; fused attention:"
        f" {chip.attention_fraction:.0%}); {chip.memory_Bps / 1e9:,.0f} GB/s of memory",
        "",
    ]
    table = layer_table(plan)
    rows: list[list[str]] = [list(_ABOVE), list(_TITLES), *map(_cells, table.layers)]
    for step in table.optimizer:
        label = f"{step.stage}, {workload.optimizer} step"
        size, time = format_size(step.hbm_bytes), format_time(step.step_ps)
        rows.append([label, "1", f"{step.parameters:,}", "", "", size, "", time])
    aligned = text_table("  {:<..}" + " {:>..}" * 9, rows, strip=False)
    head, titles, *body = (line.rstrip() for line in aligned)
    lines += [head, titles]
    for row, line in zip(table.layers, body, strict=False):
        lines += [line, *_collectives(row)]
    lines += body[len(table.layers) :]
    return "\n".join(lines)


_ABOVE = ("", "", "", "GFLOP", "GFLOP", "memory", "", "time", "time", "memory")
_TITLES = (
    "stage, layer",
    "count",
    "parameters",
    "forward",
    "back",
    "traffic",
    "kept",
    "forward",
    "back",
    "waits",
)


def _cells(row: LayerRow) -> list[str]:
    traffic = sum(getattr(row, f"{part}_hbm_bytes") for part in PARTS)
    return [
        f"{row.stage}, {row.layer}",
        str(row.count),
        f"{row.parameters:,}",
        f"{row.forward_flops / 1e9:.4g}",
        f"{(row.input_flops + row.weight_flops) / 1e9:.4g}",
        format_size(traffic),
        format_size(row.activation_bytes),
        format_time(row.forward_ps),
        format_time(row.input_ps + row.weight_ps),
        f"{row.memory_bound:.0%}",
    ]


def _collectives(row: LayerRow) -> list[str]:
    return [
        f"    {name}: {', '.join(messages)}"
        for name, messages in row.collectives.items()
        if messages
    ]
