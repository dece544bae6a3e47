"""``clusim train``: training steps of a workload on a fabric."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clusim_cli import options
from clusim_cli.outputs import GuardedCommand, doubts
from clusim_cli.params import RANKS, TOPOLOGY, WORKLOAD, command_line, one_of
from clusim_cli.progress import counted_progress, shown_progress

if TYPE_CHECKING:
    from clusim.simulation.job import RunOptions
    from clusim.topology import Fabric
    from clusim.training import TrainRequest
    from clusim.training.proof import StepsEnded
    from clusim.training.result import StepResult
    from clusim.workload import Workload
    from clusim_cli.progress import Shown

TIME_LIMIT_PS = 60 * 10**12
"""Default wall-clock limit of the causes of ``--against`` [ps]."""


@click.command(
    "train", cls=GuardedCommand, short_help="Simulate training steps of a model."
)
@click.argument("workload", type=WORKLOAD)
@click.argument("topology", type=TOPOLOGY, required=False)
@options.nodes()
@click.option("--steps", type=click.IntRange(1, 1000), default=2, show_default=True,
              help="Steps; the last one is reported.")  # fmt: skip
@options.granularity(default="step")
@click.option("--fold", type=one_of("auto", "all", "proved", "none"), default=None,
              help="Simulate equal blocks of work once: all, proved, or as affordable.")  # fmt: skip
@click.option("--estimate", is_flag=True,
              help="Assemble the step from parts that were simulated before.")  # fmt: skip
@click.option("--layers", is_flag=True,
              help="Only show compute, traffic and memory of every layer, without simulation.")  # fmt: skip
@click.option(
    "--strict-memory", is_flag=True, help="Fail if memory is insufficient."
)
@click.option("--scaling", type=one_of("strong", "weak"), default=None,
              help="Run with several numbers of replicas and print a table.")  # fmt: skip
@click.option("--replicas", type=RANKS, default=None, metavar="LIST",
              help="Numbers of data-parallel replicas for --scaling, e.g. 1,2,4,8.")  # fmt: skip
@options.against(
    more="Causes are ranked if they are slow. FILE is a log of Megatron-LM, TorchTitan, DeepSpeed or nanoGPT,"
    " or a CSV table of steps."
)
@options.lost_rank(
    required=False, more="Steps then are those of the job before and after the loss."
)
@options.faults()
@options.policy()
@options.confirm(more="All changes; automatic up to about 0.5 s.")
@options.time_limit()
@options.trace_out()
@options.seed()
@options.strict()
@options.as_json("clusim_cli.forms:TrainJson")
@options.no_progress()
def command(workload: str, as_json: bool, no_progress: bool, **given: Any) -> int:
    """Simulate training steps of WORKLOAD, a YAML file or a shipped workload, on TOPOLOGY or the workload's topology.

    Prints time, throughput and utilisation of a step, time breakdown per rank, traffic per dimension of parallelism,
    memory use, and the busiest wires.

    With --against, the median measured step is compared with the prediction. If it deviates, possible causes, such as
    slower links or kernels, another attention library, recomputation or a slow rank, are simulated (with --estimate
    estimated) for at most 60 s (--time-limit), and ranked by their deviation from the measurement.
    """
    from clusim.simulation.job import RunOptions
    from clusim.simulation.request import taken
    from clusim.training import training_report
    from clusim.training.api import inputs
    from clusim.training.proof import StepsEnded

    setup, spec = inputs(
        workload,
        given["topology"],
        given["nodes"],
        given["faults"],
        given["policy"],
    )
    _refuse_options(given)
    doubtful = doubts(setup, given["strict"], quiet=as_json)
    if given["layers"]:
        _refuse_simulation(given)
        click.echo(
            _layers(spec, setup.fabric, as_json, strict=given["strict_memory"])
        )
        return 0
    _refuse_modes(given)
    _refuse_loss(given, lost=given["rank"] is not None)
    request = asked(workload=workload, **given)
    text = _other_mode(request, given, as_json, no_progress=no_progress)
    if text is not None:
        click.echo(text)
        return 0
    if not request.estimate:
        _warn_if_large(workload)
    with shown_progress(not no_progress, given["trace_out"]) as shown:
        given["watch"].tell = shown.begins
        given["confirm"] = given["confirm"] or None
        how = RunOptions(
            progress=shown.progress,
            command=command_line(),
            **taken(given, RunOptions),
        )
        try:
            result = _result(request, how)
        except StepsEnded as error:
            shown.stop()
            return _said_known(error, doubtful, as_json, shown)
    for note in result.notes if as_json else ():
        click.echo(f"clusim: warning: {note}", err=True)
    click.echo(
        json.dumps({**result.to_json(), "doubts": doubtful})
        if as_json
        else training_report(result)
    )
    if result.verdict.unfinished:
        return shown.ended(f"not simulated: {result.verdict.unfinished}")
    return 0


def _result(request: TrainRequest, how: RunOptions) -> StepResult:
    from clusim.training import trained
    from clusim.training.estimate import estimated

    estimate = request.estimate
    result = (
        estimated(request, confirm=how.confirm)
        if estimate
        else trained(request, how)
    )
    result.diagnose()
    return result


def _other_mode(
    request: TrainRequest, given: dict[str, Any], as_json: bool, *, no_progress: bool
) -> str | None:
    """Return the output of a mode with several steps; None for one step."""
    from clusim.training import scaling
    from clusim.training.estimate import stepped

    if given["against"]:
        return _compare(request, given, as_json, no_progress=no_progress)
    if given["rank"] is not None:
        return _shrunk(request, given, as_json)
    if not given["scaling"]:
        return None
    rows = [
        row.to_json()
        for row in scaling(request, given["replicas"], given["scaling"], stepped)
    ]
    return json.dumps(rows) if as_json else _table(rows)


def _compare(
    request: TrainRequest, given: dict[str, Any], as_json: bool, *, no_progress: bool
) -> str:
    """Return the comparison with measured steps."""
    from clusim.validation.steps.against import StepSearch, compare_step
    from clusim.validation.steps.steplog import read_step_log

    log, watch = read_step_log(given["against"]), given["watch"]
    watch.simulates()  # The limit is of the causes.
    limit_ps = watch.limit_ps or TIME_LIMIT_PS
    with counted_progress(not no_progress, "hypotheses") as progress:
        result = compare_step(log, request, StepSearch(request, limit_ps, progress))
    return json.dumps(result.to_json()) if as_json else "\n".join(result.lines())


def _refuse_modes(given: dict[str, Any]) -> None:
    """Raise an error for options that exclude or need others."""
    for option in (
        ("scaling", "rank", "trace_out", "confirm") if given["against"] else ()
    ):
        if given[option] not in (None, False):
            name = "lose" if option == "rank" else option.replace("_", "-")
            raise click.UsageError(f"--against: not with --{name}")
    if (given["scaling"] is None) != (given["replicas"] is None):
        raise click.UsageError(
            "--scaling needs --replicas, and --replicas needs --scaling"
        )
    if given["estimate"] and (given["trace_out"] or given["fold"]):
        raise click.UsageError("--estimate: not with --fold or --trace-out")


def _warn_if_large(workload: str) -> None:
    """Print alternatives to simulating a step of a large cluster in full."""
    from clusim.base.resources import cluster_workloads

    if workload in cluster_workloads():
        click.echo(
            f"clusim: warning: {workload} is too large to be simulated in minutes; use --estimate",
            err=True,
        )


def _refuse_simulation(given: dict[str, Any]) -> None:
    """Raise an error for options of a simulation, in addition to ``--layers``."""
    names = {"fault": "faults", "lose": "rank"}
    for option in (
        "fault",
        "fold",
        "estimate",
        "scaling",
        "replicas",
        "confirm",
        "trace-out",
        "lose",
        "against",
    ):
        value = given[names.get(option, option.replace("-", "_"))]
        if value or (option == "lose" and value is not None):
            raise click.UsageError(
                f"--layers does not simulate; not with --{option}"
            )


def _refuse_loss(given: dict[str, Any], *, lost: bool) -> None:
    """Raise an error for parameters of a loss without `--lose`, and for other modes with it."""
    if lost:
        for option in ("scaling", "confirm", "trace_out"):
            if given[option]:
                raise click.UsageError(
                    f"--lose: not with --{option.replace('_', '-')}"
                )
        if given["watch"].limit_ps is not None:
            raise click.UsageError("--lose: not with --time-limit")
        return
    for option in ("at_ps", "iterations", "detection_ps", "shrink_ps"):
        context = click.get_current_context()
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            word = {
                "at_ps": "at",
                "detection_ps": "detection",
                "shrink_ps": "shrink-time",
            }
            raise click.UsageError(f"--{word.get(option, option)} needs --lose")


def _shrunk(request: TrainRequest, given: dict[str, Any], as_json: bool) -> str:
    """Return the job of a workload that loses a rank."""
    from clusim.studies.shrink import RankLoss, lose_rank_in_training, shrunk_lines

    names = ("rank", "at_ps", "detection_ps", "shrink_ps")
    failure = RankLoss(*(given[name] for name in names))
    job = lose_rank_in_training(request, failure, iterations=given["iterations"])
    notes = [f"  note: {note}" for note in job.notes]
    return (
        json.dumps(job.to_json())
        if as_json
        else "\n".join([*shrunk_lines(job), *notes])
    )


def _refuse_options(given: dict[str, Any]) -> None:
    """Raise an error for a time limit or changes with modes other than one simulation."""
    if given["scaling"] and given["confirm"]:
        raise click.UsageError("--confirm: not with --scaling")
    for option in ("estimate", "layers", "scaling"):
        if (
            given["watch"].limit_ps is not None
            and given[option]
            and not given["against"]
        ):
            raise click.UsageError(f"--time-limit: not with --{option}")


def _said_known(
    error: StepsEnded, doubtful: list[str], as_json: bool, shown: Shown
) -> int:
    """Print the known part of steps that exceeded the time limit, and return the exit code."""
    from clusim.training.trainingreport import ended_report

    known = error.known
    message = {**known.to_json(), "doubts": doubtful}
    click.echo(json.dumps(message) if as_json else ended_report(known))
    return shown.ended(known.words)


def asked(changes: dict[str, Any] | None = None, **given: Any) -> TrainRequest:
    """Return the request of the options; `changes` are keys of the workload by their path."""
    from clusim.simulation.request import taken
    from clusim.simulation.setup import Setup
    from clusim.training import TrainRequest
    from clusim.training.api import train_request
    from clusim.workload import load_workload

    workload, topology = given.pop("workload"), given.pop("topology")
    spec = load_workload(workload, changes) if changes else workload
    return train_request(spec, topology, **taken(given, Setup, TrainRequest))


def _layers(spec: Workload, machine: Fabric, as_json: bool, *, strict: bool) -> str:
    from clusim.training.layertable import layer_report, layer_table
    from clusim.training.schedules import memory_notes
    from clusim.workload import make_plan

    plan = make_plan(spec, machine)
    memory_notes(
        plan, [plan.memory(stage) for stage in range(plan.mesh.pipeline)], strict
    )
    if as_json:
        return json.dumps(layer_table(plan).to_json())
    return layer_report(plan)


def _table(rows: list[dict[str, Any]]) -> str:
    from clusim.report.runreport import note_lines

    unit = next(name for name in rows[0] if name.endswith("_per_s"))
    lines = [
        f"  {'replicas':>8} {'GPUs':>6} {'step':>12} {unit.replace('_per_s', '/s'):>14} {'MFU':>6}"
        f" {'exposed':>8} {'efficiency':>10}"
    ]
    if rows[0]["convergence"] is not None:
        lines[0] += f" {'epochs':>8} {'to accuracy':>14}"
    for row in rows:
        lines.append(
            f"  {row['replicas']:>8} {row['gpus']:>6} {row['step_time_s'] * 1e3:>9.3f} ms {row[unit]:>14,.1f}"
            f" {row['mfu']:>6.1%} {row['exposed_comm_s'] / row['step_time_s']:>8.1%} {row['efficiency']:>10.1%}"
        )
        if row["convergence"] is not None:
            lines[-1] += f" {row['convergence']['epochs']:>8.4g}"
            lines[-1] += f" {row['convergence']['time_s']:>12,.4g} s"
    lines += [
        f"  expected error: {text}"
        for text in dict.fromkeys(row["expected_error_text"] for row in rows)
    ]
    faults = dict.fromkeys(text for row in rows for text in row["faults"])
    notes = dict.fromkeys(text for row in rows for text in row["notes"])
    return "\n".join([*lines, *(f"  {line}" for line in note_lines(faults, notes))])
