"""Plan of a run, made once from its request: by algorithm name, plan file, or NCCL's choice (`nccl_choice`).

All later stages take the plan: approximation, lowering, and diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from clusim import collectives
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.resources import or_shipped
from clusim.base.terms.operations import (
    is_plan,
    operation_named,
)
from clusim.lowering import Lowered, lower, plan_change
from clusim.lowering.faults import on_redirected
from clusim.nccl.choice import Communicators
from clusim.nccl.env import force_variables
from clusim.nccl.launch import (
    engine_start_ps,
)
from clusim.results.provenance import LaunchContext
from clusim.schedule import Schedule
from clusim.schedule.shapes import Shape
from clusim.simulation.nccl_choice import NcclChoice, nccl_choice
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.pcie_paths import redirect_peers

NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """Schedule of a run, its notes, and its launch overhead, None if NCCL does not launch it."""

    schedule: Schedule
    notes: tuple[str, ...] = ()
    around: LaunchContext | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes
    ----------
    options : Request or ScheduleRequest
        Granularity, seed, engine and verification of the run; of a collective also its operation and data.
    choice : NcclChoice or None
        NCCL's choice; None where NCCL does not run.
    """

    options: Request | ScheduleRequest
    choice: NcclChoice | None = None

    @property
    def setup(self) -> Setup:
        """Nodes, communicator and faults of the run."""
        return self.options.setup

    @property
    def topology(self) -> Fabric:
        """Topology that packets see, with all parts that fail."""
        return redirect_peers(self.options.setup.fabric)

    @cached_property
    def program(self) -> PlannedProgram:
        """Schedule with its notes, written when it is first needed.

        Raises
        ------
        InputError
            No algorithm implements the operation, or an option is set that the algorithm does not have.
        """
        options, setup, choice = self.options, self.setup, self.choice
        if isinstance(options, ScheduleRequest):
            return PlannedProgram(options.schedule, options.notes)
        result = written(options, choice)
        if setup.known is setup.fabric:
            return result
        if choice is not None:
            choice = nccl_choice(choice.request, healthy=True)
        healthy = written(options, choice, healthy=True)
        change = plan_change(healthy.schedule.calls, result.schedule.calls)
        return replace(result, notes=(*result.notes, change))

    @property
    def schedule(self) -> Schedule:
        """Programs of all ranks."""
        return self.program.schedule

    @property
    def verifies(self) -> bool:
        """True if data are checked; custom message patterns have no definition to compare with."""
        defined = all(call.operation != "messages" for call in self.schedule.calls)
        return self.options.verify and (
            isinstance(self.options, ScheduleRequest) or defined
        )


def plan(request: Request | ScheduleRequest) -> Plan:
    """Return the plan of a request, with NCCL's choice where NCCL runs.

    Raises
    ------
    InputError
        Unknown words, ranks or variables, or variables that contradict an option.
    """
    if isinstance(request, ScheduleRequest):
        return Plan(request)
    operation = operation_named(
        request.operation, tuple(collectives.ALGORITHMS)
    ).name
    size_bytes = 0 if operation == "barrier" else request.size_bytes
    request = replace(request, operation=operation, size_bytes=size_bytes)
    if is_plan(request.algorithm):
        return Plan(request)
    _check_ranks(request.setup)
    default = not request.algorithm and _runs_nccl(request.setup, operation)
    if not default and request.algorithm != NCCL:
        for name, value in (
            ("--env", request.setup.env),
            ("--nccl-version", request.setup.version),
            ("a call's configuration", request.wanted),
        ):
            if value:
                raise InputError(f"{name} is for NCCL's plans; add --algorithm nccl")
        return Plan(request)
    choice = nccl_choice(_with_variables(request))
    notes = _idle_notes(idle_variables(request, choice), "this run")
    return Plan(request, replace(choice, notes=(*choice.notes, *notes)))


THREADS = ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS")
"""Variables with the threads of a CTA, which limit channels of small sizes."""


def idle_variables(
    request: Request, choice: NcclChoice, names: Iterable[str] | None = None
) -> list[str]:
    """Return the variables that are obeyed, without which topology and programs are the same; of `names` if set."""
    setup, result = request.setup, []
    questioned = choice.comm.settings.names if names is None else tuple(names)
    for name in choice.comm.settings.names:
        if name not in questioned:
            continue
        env = tuple(item for item in setup.env if item[0] != name)
        if len(env) == len(setup.env):
            continue  # from an option, or an older name
        try:
            other = nccl_choice(
                _with_variables(replace(request, setup=replace(setup, env=env)))
            )
        except InputError:
            continue  # only the variable permits the run
        if (
            _choice_key(other) == _choice_key(choice)
            and other.schedule() == choice.schedule()
        ):
            result.append(name)
    return result


def idle_notes(
    requests: Iterable[Request],
    names: Iterable[str] | None = None,
    where: str = "these sizes",
) -> tuple[str, ...]:
    """Return the note on variables that change no plan of NCCL for some requests; empty without any.

    Parameters
    ----------
    names : iterable of str or None
        Variables in question; None is all of the environment.
    where : str
        The requests, as text.
    """
    idle = None if names is None else sorted(names)
    planned = False
    for request in requests:
        if not request.setup.env or idle == []:
            break
        try:
            idle = idle_variables(
                request, nccl_choice(_with_variables(request)), idle
            )
        except InputError:
            continue  # its row has the error
        planned = True
    return _idle_notes(idle or [], where) if planned else ()


def _idle_notes(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the note on variables without effect; empty without any."""
    if not names:
        return ()
    return (
        f"obeyed, without effect on {where}: {', '.join(names)}{_why_idle(names)}",
    )


def _choice_key(choice: NcclChoice) -> tuple[object, ...]:
    """Return the topology and way of a choice: without an equal one, programs need no comparison."""
    return choice.way, choice.request.setup.fabric


def _why_idle(names: Sequence[str]) -> str:
    """Return the reason why variables of threads change only channels; empty without such variables."""
    if not set(names) & set(THREADS):
        return ""
    return " (threads limit the channels of small sizes; CTA rates are calibrated with NCCL's default threads)"


def _runs_nccl(setup: Setup, operation: str) -> bool:
    """Return True if NCCL has the operation and all ranks are GPUs of a known generation."""
    machine, ranks = setup.known, setup.ranks
    chosen = machine.ranks if ranks is None else [machine.ranks[r] for r in ranks]
    ends = [machine.nodes[machine.node_index[name]].endpoint for name in chosen]
    are_gpus = all(end is not None and end.compute_capability > 0 for end in ends)
    return are_gpus and len(chosen) > 1 and Communicators.knows(operation)


def written(
    request: Request, choice: NcclChoice | None, *, healthy: bool = False
) -> PlannedProgram:
    """Return the program of a request, planned with or without the faults that are active at time 0."""
    setup = request.setup
    machine = setup.fabric if healthy else setup.known
    if is_plan(request.algorithm):
        return _of_file(request, machine)
    if choice is not None:
        return PlannedProgram(
            choice.schedule(), (*choice.comm.notes, *choice.notes), choice.around
        )
    schedule = named_schedule(request, machine)
    options = _in_graph(machine, schedule)
    notes = (
        () if options is None else ("launch: one of many kernels in a CUDA graph",)
    )
    return PlannedProgram(schedule, notes, options)


def named_options(
    request: Request, shape: Shape | None = None
) -> collectives.Options:
    """Return the options of a named algorithm."""
    return {
        "ranks": request.setup.ranks,
        "channels": request.channels,
        "protocol": request.protocol,
        "dtype": request.dtype,
        "redop": request.redop,
        "root": request.root,
        "shape": shape,
    }


def named_schedule(
    request: Request, machine: Fabric, shape: Shape | None = None
) -> Schedule:
    """Return the schedule of a named algorithm, with its shape for the size if none is given."""
    return collectives.build(
        machine,
        request.operation,
        request.algorithm or None,
        request.size_bytes,
        **named_options(request, shape),
    )


def _in_graph(machine: Fabric, schedule: Schedule) -> LaunchContext | None:
    """Return the cost of an inference engine's kernel in a CUDA graph; None for other kernels."""
    call = schedule.calls[0]
    prelude_ps = collectives.REGISTRY[call.operation, call.algorithm].prelude_ps
    if prelude_ps is None:
        return None
    end = machine.nodes[machine.node_index[machine.ranks[call.ranks[0]]]].endpoint
    start_ps = None if end is None else engine_start_ps(end.chip)
    if start_ps is None:
        return None
    return LaunchContext(start_ps + prelude_ps, 0)


def _check_ranks(setup: Setup) -> None:
    machine, ranks = setup.known, setup.ranks
    for rank in ranks or ():
        if not 0 <= rank < machine.num_ranks:
            raise InputError(
                f"rank {rank}: {machine.name} has ranks 0 to {machine.num_ranks - 1}"
            )
    if ranks is not None and len(set(ranks)) < len(ranks):
        raise InputError(f"ranks {', '.join(map(str, ranks))}: one of them twice")


def _of_file(request: Request, machine: Fabric) -> PlannedProgram:
    """Return the schedule of a plan of MSCCL or MSCCL++, also a shipped one; the file names its collective."""
    path, setup = or_shipped(request.algorithm), request.setup
    for value, flag in (
        (setup.env, "--env"),
        (setup.version, "--nccl-version"),
        (request.channels, "--channels"),
        (request.wanted, "a call's configuration"),
    ):
        if value:
            raise InputError(f"{flag} is not for {path}, a plan with given channels")
    # Few runs need plan files.
    from clusim.formats.algorithms import plan_reader
    from clusim.formats.algorithms.layout import WantedPlan

    reader = plan_reader(path)
    read = reader.read_plan(path)
    if request.operation not in ("allreduce", read.operation):
        raise InputError(
            f"{path}: is {read.operation}, not {request.operation}; leave out --collective"
        )
    plan_of_file = WantedPlan(
        request.size_bytes,
        setup.ranks,
        request.dtype,
        request.redop,
        request.root,
        protocol=request.protocol,
    )
    return PlannedProgram(reader.build(read, machine, plan_of_file))


def lower_on(
    setup: Setup, schedule: Schedule, options: Request | ScheduleRequest
) -> Lowered:
    """Return the image of a schedule on a system with its faults, at the granularity and seed of `options`."""
    fabric, faults = (
        redirect_peers(setup.fabric),
        on_redirected(setup.fabric, setup.broken.faults),
    )
    return lower(fabric, schedule, options.granularity, options.seed, faults=faults)


def _with_variables(request: Request) -> Request:
    """Return a NCCL request with its channels and protocol as environment variables."""
    setup = request.setup
    added = force_variables(protocol=request.protocol, channels=request.channels)
    for name, _ in added:
        if name in dict(setup.env):
            option = "protocol" if name == "NCCL_PROTO" else "channels"
            raise InputError(
                f"--env {name} and --{option} are the same setting; use one"
            )
    return (
        replace(request, setup=replace(setup, env=(*setup.env, *added)))
        if added
        else request
    )
