"""A training result as text."""

from __future__ import annotations

from clusim.base.tables import text_table
from clusim.base.units import format_ranges, format_size, format_time
from clusim.report.headline import ended_rows, pairs
from clusim.report.runreport import note_lines, verdict_lines
from clusim.training.breakdown import PARTS, Breakdown
from clusim.training.headline import headline_rows, room
from clusim.training.proof import EndedSteps
from clusim.training.result import StepResult
from clusim.workload.memory import MEMORY_PARTS, PROCESS_PARTS
from clusim.workload.parallel.plan import ParallelPlan

SHOWN_RANKS = 16
"""Maximum lines of the breakdown before only some ranks of each stage are shown."""

SHOWN_SPANS = 4
"""Maximum ranges of ranks in a line."""


def training_report(result: StepResult) -> str:
    """Return the output of `clusim train`."""
    parts = [
        _head(result),
        _headline(result),
        verdict_lines(result.verdict),
        _numbers(result),
        _ranks(result),
        _volumes(result),
        _memory(result),
        _checkpoint(result),
        _goodput(result),
        _wires(result.wires),
    ]
    parts.append(_foot(result))
    return "\n\n".join("\n".join(part) for part in parts if part)


def ended_report(known: EndedSteps) -> str:
    """Return the output of `clusim train` for steps that the wall-clock limit ended."""
    plan, before = known.plan, known.before
    done = f"{len(known.step_ps)} of {known.steps}"
    if known.step_ps:
        done += f": {', '.join(format_time(ps) for ps in known.step_ps)}"
    rows = [] if known.result is not None else [("ended by", known.why)]
    if known.result is not None:
        rows += [
            ("steps done", done),
            ("step in progress", f"{format_time(known.under_way_ps)} simulated"),
        ]
        rows += [*ended_rows(known.result), ("granularity", known.granularity)]
    if known.blocks_folded:
        rows.append(
            ("folded", f"{known.blocks_folded:,} blocks, not yet proved identical")
        )
    if before is not None:
        times = ", ".join(format_time(ps) for ps in before.step_ps)
        rows.append(("steps before", f"{times}; {before.granularity}"))
        if before.fold.folded:
            rows.append(("folded in them", before.fold.text))
    title = f"{plan.workload.name}: {plan.model.name} on {plan.mesh.size} GPUs of {plan.fabric.name}"
    return "\n".join([title, *pairs(rows)])


def _head(result: StepResult) -> list[str]:
    plan = result.plan
    mesh = plan.mesh
    sizes = {
        name: getattr(mesh, name)
        for name in ("tensor", "context", "expert", "data", "pipeline")
    }
    where = plan.placement()
    cut = ", ".join(
        f"{name} {size}"
        + (f" ({where[name]})" if where.get(name, "none") != "none" else "")
        for name, size in sizes.items()
        if size > 1
    )
    units = "sequences" if plan.model.unit == "tokens" else "samples"
    billions = plan.model.parameters / 1e9
    lines = [
        f"{plan.workload.name}: {plan.model.name}, {billions:.4g} billion parameters, on {mesh.size} GPUs of"
        f" {plan.fabric.name}",
        f"  {cut or 'one GPU'}; {plan.microbatches} x {plan.workload.batch.micro} {units},"
        f" {plan.workload.precision}, recompute {plan.workload.recompute}, {plan.workload.data.kind}"
        + (f" over {mesh.shards}" if mesh.shard else ""),
    ]
    if plan.crew.stages < mesh.pipeline:
        turns = ", ".join(
            f"{_layers(plan, stage)} on {workers}"
            for stage, workers in enumerate(plan.crew.replicas)
        )
        lines.append(f"  layers of stages on alternating GPUs: {turns}")
    lines += [f"  {line}" for line in note_lines(result.faults, ())]
    lines += [f"  warning: {note}" for note in result.notes]
    return lines + [f"  hint: {hint}" for hint in plan.hints()]


def _layers(plan: ParallelPlan, stage: int) -> int:
    return sum(len(chunk) for chunk in plan.stages[plan.crew.first(stage)])


def _numbers(result: StepResult) -> list[str]:
    plan, step = result.plan, result.mean("total")
    rows = [
        (
            "per GPU",
            f"{plan.model_flops * result.pace / plan.mesh.size / 1e12:.1f} TFLOP/s",
        ),
    ]
    if plan.workload.recompute != "none":
        rows.append(("HFU", f"{result.hfu:.1%} of the peak, with recomputation"))
    for name, label in PARTS.items():
        time_ps = round(result.mean(name) * 1e12)
        rows.append(
            (
                label,
                f"{format_time(time_ps)}, {result.mean(name) / step:.1%} of the step",
            )
        )
        if name == "exposed":
            rows += [
                (f"  {dim}", f"{format_time(round(mean * 1e12))}, {mean / step:.1%}")
                for dim, mean in result.exposed_by_dimension_s.items()
            ]
    hidden = result.mean("communication") - result.mean("exposed")
    rows.append(("hidden communication", format_time(max(0, round(hidden * 1e12)))))
    if result.sharing.moving_ps:
        lost = format_time(round(result.kernel_slowdown_s * 1e12))
        rows.append(
            (
                "SM sharing",
                f"{lost} of compute: communication holds {result.sharing.sms:.1f} of {plan.chip.sms} SMs, and memory",
            )
        )
    if result.switching is not None:
        switch, ring = result.switching.switch, result.switching.ring
        rows.append(
            (
                "in switches",
                f"{result.switching.collectives:,.0f} collectives per GPU hold {switch.sms:.0f} SMs and move"
                f" {format_size(round(switch.memory_bytes))} through its memory; rings {ring.sms:.0f} SMs and"
                f" {format_size(round(ring.memory_bytes))}",
            )
        )
    return pairs(rows)


def _headline(result: StepResult) -> list[str]:
    """Return the figures to read first."""
    rows = headline_rows(result.plan, result.step_ps[-1], result.memory)
    if result.convergence is not None:
        rows.append(("to accuracy", result.convergence.text))
    if result.worker_ps:
        fast, slow = (format_time(pick(result.worker_ps)) for pick in (min, max))
        rows.insert(1, ("by worker", f"asynchronous workers need {fast} to {slow}"))
    return pairs(rows)


def _ranks(result: StepResult) -> list[str]:
    """Return a line for each group of ranks with equal shares; of many groups, for a part of the ranks."""
    groups = _groups(result.ranks)
    if len(groups) > SHOWN_RANKS:
        groups = _groups(_shown(result))
    rows: list[tuple[str, ...]] = [
        ("ranks", "compute", "exposed", "host", "bubble", "idle")
    ]
    rows += [(_numbers_of(ranks), *shares) for shares, ranks in groups.items()]
    lines = text_table("  {:>6..}" + " {:>9}" * 5, rows)
    more = len(result.ranks) - sum(map(len, groups.values()))
    return (
        [*lines, f"  and {more} more ranks; --json has all"] if more > 0 else lines
    )


def _groups(rows: list[Breakdown]) -> dict[tuple[str, ...], list[int]]:
    """Return the ranks by their shares of the step, as printed."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        parts = (
            row.compute_ps,
            row.exposed_ps,
            row.host_ps,
            row.bubble_ps,
            row.idle_ps,
        )
        shares = tuple(f"{part / max(1, row.total_ps):.1%}" for part in parts)
        groups.setdefault(shares, []).append(row.rank)
    return groups


def _numbers_of(ranks: list[int]) -> str:
    """Return rank numbers as ranges; of many, only the first `SHOWN_SPANS`."""
    spans = format_ranges(ranks).split(",")
    if len(spans) <= SHOWN_SPANS:
        return ", ".join(spans)
    return f"{', '.join(spans[:SHOWN_SPANS])}, ... ({len(ranks)} ranks)"


def _shown(result: StepResult) -> list[Breakdown]:
    """Return the ranks to show; of many, equally many per pipeline stage."""
    mesh = result.plan.mesh
    if len(result.ranks) <= SHOWN_RANKS:
        return result.ranks
    ranks_per_stage = max(1, SHOWN_RANKS // mesh.pipeline)
    ranks = {
        rank
        for stage in range(mesh.pipeline)
        for rank in mesh.stage(stage)[:ranks_per_stage]
    }
    return [row for row in result.ranks if row.rank in ranks][: 2 * SHOWN_RANKS]


def _volumes(result: StepResult) -> list[str]:
    if not result.traffic:
        return []
    steps, size = len(result.step_ps), result.plan.mesh.size
    rows: list[tuple[str | int, ...]] = [
        ("dimension", "collectives", "sent per GPU", "  per step"),
        *(
            (
                dim,
                moved.calls // steps,
                format_size(round(moved.sent_bytes / steps / size)),
            )
            for dim, moved in result.traffic.items()
        ),
    ]
    return text_table("  {:<10} {:>11,} {:>13} {}", rows)


def _memory(result: StepResult) -> list[str]:
    worst = max(
        range(len(result.memory)), key=lambda stage: result.memory[stage].total
    )
    stages = sorted({0, worst, len(result.memory) - 1})
    memory_of_stages = [result.memory[stage] for stage in stages]
    process, has_capacity = result.plan.process, bool(memory_of_stages[0].capacity)
    rows: list[list[str | float]] = [
        ["GiB", *(f"stage {stage}" for stage in stages), ""]
    ]
    for name in (*MEMORY_PARTS, "total"):
        basis = process.basis(name) if name in PROCESS_PARTS and has_capacity else ""
        rows.append(
            [
                name,
                *(getattr(item, name) / 2**30 for item in memory_of_stages),
                basis,
            ]
        )
    table = text_table("  {:<..}" + " {:>7...2f}" * len(stages) + "  {}", rows)
    rooms = [
        (f"stage {stage}", f"{item.total / 2**30:.2f} GiB{room(item)}")
        for stage, item in zip(stages, memory_of_stages, strict=True)
    ]
    return [*table, *pairs(rooms)]


def _checkpoint(result: StepResult) -> list[str]:
    """Return the lines on the additional time of a step with a checkpoint."""
    saved = result.saved
    if saved is None:
        return []
    size, step = saved.checkpoint, result.step_time_s
    longer = f"{format_time(saved.stall_ps)} longer than without"
    if saved.every_steps:
        longer += f"; one of {saved.every_steps:,} steps: {saved.stall_s / saved.every_steps / step:.2%} on average"
    parts = (
        f"{format_size(size.bytes)}, up to {format_size(max(size.copied))} of a GPU: {size.copy_s:.4g} s to the host,"
        f" {size.write_s:.4g} s to storage"
    )
    return pairs([("step with a checkpoint", longer), ("its states", parts)])


def _goodput(result: StepResult) -> list[str]:
    """Return the lines on goodput with failures and checkpoints."""
    goodput = result.goodput
    if goodput is None:
        return []
    job = goodput.job
    rows = [
        (
            "goodput",
            f"{goodput.useful:.2%} of the time; {goodput.steps:,.0f} steps in {goodput.days:g} days",
        ),
        (
            "failures",
            f"{goodput.failures:.1f} expected, one in {job.mtbf_s / 3600:.4g} h of all GPUs",
        ),
        (
            "checkpoints",
            f"every {goodput.interval_steps:,} steps ({goodput.work_s:.4g} s): {goodput.checkpoints:.2%};"
            f" {format_size(goodput.checkpoint_bytes)}, training stops for {job.stall_s:.4g} s",
        ),
        (
            "lost",
            f"{goodput.redone:.2%} done again, {goodput.restarts:.2%} restarting",
        ),
    ]
    return pairs(rows)


def _wires(wires: list[tuple[str, float]]) -> list[str]:
    if not wires:
        return []
    return text_table("  {:<..} {:>7.1%}", [("busiest wires", "busy"), *wires])


def _foot(result: StepResult) -> list[str]:
    """Return the lines on origin, wall time and identity of the result."""
    rows = result.origin
    return pairs([*rows, ("wall time", f"{result.wall_s:.2f} s"), *result.identity])
