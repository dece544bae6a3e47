"""Work of every layer of a plan, for one microbatch on one GPU, without simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clusim.base.units import format_size, format_time
from clusim.training.stepjson import LayerRowJson, LayersJson
from clusim.workload.kernels import Chip, Kernel
from clusim.workload.layers import Comm, Layer, backward_steps
from clusim.workload.parallel.plan import ParallelPlan

PARTS = ("forward", "input", "weight")


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One of several equal layers of a pipeline stage, for one microbatch on one GPU.

    Attributes
    ----------
    count : int
        Number of equal layers in the stage.
    flops, traffic_bytes, time_ps : dict
        By part: ``forward``, and backward towards ``input`` (activation gradients, with recomputation) and
        ``weight``. Executed operations, memory traffic [bytes], time by the roofline [ps].
    activation_bytes : int
        Activations kept for the backward pass [bytes].
    memory_bound : float
        Share of the time in which kernels are limited by memory rather than arithmetic.
    messages : list of str
        Collectives, forwards and backwards, e.g. ``2 x allreduce tensor 32 MiB``.
    """

    stage: int
    name: str
    count: int
    parameters: int
    flops: dict[str, int]
    traffic_bytes: dict[str, int]
    time_ps: dict[str, int]
    activation_bytes: int
    memory_bound: float
    messages: dict[str, list[str]]

    def to_json(self) -> LayerRowJson:
        """Return the row with its units in the names."""
        return {
            "stage": self.stage,
            "layer": self.name,
            "count": self.count,
            "parameters": self.parameters,
            "forward_flops": self.flops["forward"],
            "input_flops": self.flops["input"],
            "weight_flops": self.flops["weight"],
            "forward_hbm_bytes": self.traffic_bytes["forward"],
            "input_hbm_bytes": self.traffic_bytes["input"],
            "weight_hbm_bytes": self.traffic_bytes["weight"],
            "forward_s": self.time_ps["forward"] / 1e12,
            "input_s": self.time_ps["input"] / 1e12,
            "weight_s": self.time_ps["weight"] / 1e12,
            "activation_bytes": self.activation_bytes,
            "memory_bound": round(self.memory_bound, 4),
            "collectives": self.messages,
        }


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
    recompute = plan.workload.recompute
    steps = {"forward": list(layer.forward), "backward": backward_steps(layer, recompute)}
    kernels = [
        step for part_steps in steps.values() for step in part_steps if isinstance(step, Kernel)
    ]
    by_part: dict[str, list[Kernel]] = {
        part: [k for k in kernels if k.part == part] for part in PARTS
    }
    times = {
        part: sum(plan.chip.time_ps(k) for k in part_steps) for part, part_steps in by_part.items()
    }
    bound = sum(plan.chip.time_ps(k) for k in kernels if _waits_for_memory(plan.chip, k))
    return LayerRow(
        stage,
        layer.name,
        count,
        layer.parameters,
        {part: sum(k.flops for k in part_steps) for part, part_steps in by_part.items()},
        {part: sum(k.bytes for k in part_steps) for part, part_steps in by_part.items()},
        times,
        layer.kept(recompute),
        bound / max(1, sum(times.values())),
        {name: list(_messages(part_steps)) for name, part_steps in steps.items()},
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


def optimizer_row(plan: ParallelPlan, stage: int) -> tuple[int, int, int]:
    """Return parameters, memory traffic [bytes] and time [ps] of a stage's optimiser step."""
    elements = plan.stepped(stage)
    kernel = plan.optimizer.kernel(elements)
    return elements, kernel.bytes, plan.chip.time_ps(kernel) if elements else 0


def layer_json(plan: ParallelPlan) -> LayersJson:
    """Return the output of ``clusim train --layers --json``."""
    chip = plan.chip
    steps = [optimizer_row(plan, stage) for stage in range(len(plan.stages))]
    return {
        "workload": plan.workload.name,
        "model": plan.model.name,
        "chip": chip.name,
        "peak_flops": chip.peak_flops,
        "gemm_fraction": chip.gemm_fraction,
        "attention_fraction": chip.attention_fraction,
        "memory_Bps": chip.memory_Bps,
        "sustained": chip.sustained,
        "microbatches": plan.microbatches,
        "layers": [row.to_json() for row in layer_rows(plan)],
        "optimizer": [
            {"stage": stage, "parameters": count, "hbm_bytes": moved, "step_s": time_ps / 1e12}
            for stage, (count, moved, time_ps) in enumerate(steps)
        ],
    }


def layer_report(plan: ParallelPlan) -> str:
    """Return the table that ``clusim train --layers`` prints."""
    chip, workload = plan.chip, plan.workload
    lines = [
        f"{workload.name}: layers of {plan.model.name} on one GPU, for one of {plan.microbatches} microbatches",
        f"  {chip.name}: {chip.peak_flops / 1e12:.4g} TFLOP/s {workload.precision} (products: at most"
        f" {chip.gemm_fraction:.0%}, fused attention: {chip.attention_fraction:.0%});"
        f" {chip.memory_Bps / 1e9:,.0f} GB/s of memory; {chip.sustained:.0%} of both in long runs",
        "",
        f"  {'':<22} {'':>5} {'':>11}  {'GFLOP':^29}  {'memory traffic':^31}",
        f"  {'stage, layer':<22} {'count':>5} {'parameters':>11}  {'forward':>9} {'input':>9} {'weight':>9}"
        f"  {'forward':>10} {'input':>10} {'weight':>9}  {'kept':>10}  {'forward':>9} {'backward':>9}"
        f" {'waits for memory':>16}",
    ]
    for row in layer_rows(plan):
        lines += _lines(row)
    for stage in range(len(plan.stages)):
        elements, moved, time_ps = optimizer_row(plan, stage)
        label = f"{stage}, {workload.optimizer} (per step)"
        lines.append(
            f"  {label:<22} {1:>5} {elements:>11,}  {'':>9} {'':>9} {'':>9}  {format_size(moved):>10}"
            f" {'':>10} {'':>9}  {'':>10}  {format_time(time_ps):>9}"
        )
    return "\n".join(lines)


def _lines(row: LayerRow) -> list[str]:
    flops = " ".join(f"{row.flops[part] / 1e9:>9.4g}" for part in PARTS)
    sizes = [format_size(row.traffic_bytes[part]) for part in PARTS]
    backward = row.time_ps["input"] + row.time_ps["weight"]
    label = f"{row.stage}, {row.name}"
    result = [
        f"  {label:<22} {row.count:>5} {row.parameters:>11,}  {flops}  {sizes[0]:>10} {sizes[1]:>10} {sizes[2]:>9}"
        f"  {format_size(row.activation_bytes):>10}  {format_time(row.time_ps['forward']):>9}"
        f" {format_time(backward):>9} {row.memory_bound:>16.0%}"
    ]
    for name, messages in row.messages.items():
        if messages:
            result.append(f"    {name}: {', '.join(messages)}")
    return result
