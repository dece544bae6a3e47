"""Plan of a request: its schedule, by algorithm name, plan file, or NCCL's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusim import collectives
from clusim.base.errors import InputError
from clusim.base.terms.operations import COLLECTIVE_OF, ROOTED, is_plan, operation_named
from clusim.formats.algorithms import msccl, mscclpp
from clusim.formats.algorithms.layout import WantedPlan
from clusim.lowering import plan_change
from clusim.nccl import Communicator, NcclPlan, programs
from clusim.nccl.choice import Communicators, choose, way_of
from clusim.nccl.env import forced
from clusim.nccl.launch import (
    DEFAULT_ITERATIONS,
    Launch,
    engine_start_ps,
    host_of,
    overhead_ps,
    period_ps,
    start_and_end_ps,
)
from clusim.nccl.programs import CollectivePayload
from clusim.nccl.symmetric import SymmetricCall, pick, why_not
from clusim.results.result import LaunchContext
from clusim.schedule import Schedule
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT
from clusim.simulation.request import Request, ScheduleRequest
from clusim.topology import Fabric

NCCL = "nccl"


OVERLAPPING = ("broadcast", "reduce")
"""Operations with overlapping iterations: the first ranks of the pipeline finish long before the last."""


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes
    ----------
    notes : tuple of str
        Notes to show with the result.
    around : LaunchContext or None
        Launch overhead, not included in the kernel time; None where NCCL does not launch the run.
    """

    schedule: Schedule
    notes: tuple[str, ...] = ()
    around: LaunchContext | None = None


def planned(request: Request | ScheduleRequest) -> Plan:
    """Return the plan of a request.

    Raises
    ------
    InputError
        No algorithm implements it, or an option is set that the algorithm does not have.
    """
    if isinstance(request, ScheduleRequest):
        return Plan(request.schedule, request.notes)
    setup = request.setup
    result = _written(request, whole=False)
    if setup.known is setup.fabric:
        return result
    healthy = _written(request, whole=True)
    change = plan_change(healthy.schedule.calls, result.schedule.calls)
    return Plan(result.schedule, (*result.notes, change), result.around)


def runs_nccl(machine: Fabric, ranks: tuple[int, ...] | None, operation: str) -> bool:
    """Return True if NCCL has the operation and all ranks are GPUs of a known generation."""
    chosen = machine.ranks if ranks is None else [machine.ranks[r] for r in ranks]
    ends = [machine.nodes[machine.node_index[name]].endpoint for name in chosen]
    known = all(end is not None and end.compute_capability > 0 for end in ends)
    return known and len(chosen) > 1 and Communicators.knows(operation)


def can_verify(schedule: Schedule) -> bool:
    """Return True if data can be checked; custom message patterns have no definition."""
    return all(call.operation != "messages" for call in schedule.calls)


def _written(request: Request, *, whole: bool) -> Plan:
    setup = request.setup
    machine = setup.fabric if whole else setup.known
    operation = operation_named(request.operation, tuple(collectives.ALGORITHMS)).name
    size_bytes = 0 if operation == "barrier" else request.size_bytes
    if is_plan(request.algorithm):
        return _of_plan(machine, operation, size_bytes, request)
    choice = nccl_choice(request, whole=whole)
    if choice is not None:
        return Plan(choice.schedule(), choice.notes, choice.around)
    for name, given in (("--env", setup.env), ("--nccl-version", setup.version)):
        if given:
            raise InputError(f"{name} is for NCCL's plans; add --algorithm nccl")
    schedule = collectives.build(
        machine,
        operation,
        request.algorithm or None,
        size_bytes,
        ranks=setup.ranks,
        channels=request.channels,
        protocol=request.protocol,
        dtype=request.dtype,
        redop=request.redop,
        root=request.root,
    )
    around = _in_graph(machine, schedule)
    notes = () if around is None else ("launch: one of many kernels in a CUDA graph",)
    return Plan(schedule, notes, around)


def _in_graph(machine: Fabric, schedule: Schedule) -> LaunchContext | None:
    """Return the cost of an inference engine's kernel in a CUDA graph; None for other kernels."""
    call = schedule.calls[0]
    prelude_ps = collectives.REGISTRY[call.operation, call.algorithm].prelude_ps
    end = machine.nodes[machine.node_index[machine.ranks[call.ranks[0]]]].endpoint
    start_ps = None if end is None else engine_start_ps(end.chip)
    if prelude_ps is None or start_ps is None:
        return None
    return LaunchContext(start_ps + prelude_ps, 0)


def _checked_ranks(machine: Fabric, ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
    for rank in ranks or ():
        if not 0 <= rank < machine.num_ranks:
            raise InputError(f"rank {rank}: {machine.name} has ranks 0 to {machine.num_ranks - 1}")
    if ranks is not None and len(set(ranks)) < len(ranks):
        raise InputError(f"ranks {', '.join(map(str, ranks))}: one of them twice")
    return ranks


def _of_plan(machine: Fabric, operation: str, size_bytes: int, request: Request) -> Plan:
    """Return the schedule of a plan of MSCCL or MSCCL++; the file names its collective."""
    path, setup = request.algorithm, request.setup
    for given, flag in (
        (setup.env, "--env"),
        (setup.version, "--nccl-version"),
        (request.channels, "--channels"),
    ):
        if given:
            raise InputError(f"{flag} is not for {path}, a plan with given channels")
    reader = msccl if path.lower().endswith(".xml") else mscclpp
    plan = reader.read_plan(path)
    if operation not in ("allreduce", plan.operation):
        raise InputError(f"{path}: is {plan.operation}, not {operation}; leave out --collective")
    wanted = WantedPlan(
        *(size_bytes, setup.ranks, request.dtype, request.redop, request.root),
        protocol=request.protocol,
    )
    return Plan(reader.build(plan, machine, wanted))


def _with_variables(request: Request) -> Request:
    """Return a NCCL request with its channels and protocol as environment variables."""
    setup = request.setup
    told = forced(protocol=request.protocol, channels=request.channels)
    for name, _ in told:
        if name in dict(setup.env):
            option = "protocol" if name == "NCCL_PROTO" else "channels"
            raise InputError(f"--env {name} and --{option} are the same setting; use one")
    return replace(request, setup=replace(setup, env=(*setup.env, *told))) if told else request


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's plan for a request.

    Attributes
    ----------
    request : Request
        The request with its channels and protocol as environment variables.
    plan : NcclPlan or None
        None is messages.
    in_place : SymmetricChoice or None
        The kernel for symmetric memory that runs instead.
    """

    request: Request
    comm: Communicator
    operation: str
    size_bytes: int
    plan: NcclPlan | None
    in_place: SymmetricChoice | None
    notes: tuple[str, ...]
    around: LaunchContext

    def schedule(self) -> Schedule:
        """Return its schedule."""
        if self.in_place is not None:
            return self.in_place.schedule(self.request)
        return nccl_program(self.request, self.comm, self.operation, self.size_bytes, self.plan)


def nccl_choice(request: Request, *, whole: bool = False) -> NcclChoice | None:
    """Return NCCL's plan for a request; None if another plan is requested.

    Parameters
    ----------
    whole : bool
        Choose without the faults that are active at time 0.
    """
    setup = request.setup
    machine = setup.fabric if whole else setup.known
    if is_plan(request.algorithm):
        return None
    operation = operation_named(request.operation, tuple(collectives.ALGORITHMS)).name
    ranks = _checked_ranks(machine, setup.ranks)
    default = not request.algorithm and runs_nccl(machine, ranks, operation)
    if not default and request.algorithm != NCCL:
        return None
    told = _with_variables(request)
    size_bytes = 0 if operation == "barrier" else request.size_bytes
    return _choice(told, told.setup.communicator(whole=whole), operation, size_bytes)


def _choice(request: Request, comm: Communicator, operation: str, size_bytes: int) -> NcclChoice:
    if request.root is not None and operation not in ROOTED:
        raise InputError(f"{operation}: takes no root; leave out root {request.root}")
    if request.root is not None and request.root not in comm.ranks:
        raise InputError(f"--root {request.root}: is not a participating rank")
    plan, in_place, notes = kernel_plan(request, comm, operation, size_bytes)
    around = _around(comm, operation, plan)
    if in_place is not None:
        around = replace(around, model_us=in_place.model_us)
    return NcclChoice(
        *(request, comm, operation, size_bytes, plan, in_place),
        *((*comm.notes, *notes), around),
    )


def kernel_plan(
    request: Request, comm: Communicator, operation: str, size_bytes: int
) -> tuple[NcclPlan | None, SymmetricChoice | None, tuple[str, ...]]:
    """Return NCCL's plan, or the kernel for symmetric memory that runs instead, and notes."""
    in_place = symmetric(request, comm, operation, size_bytes)
    if in_place is not None and in_place.algorithm:
        return None, in_place, (in_place.note,)
    result = choose(
        *(comm, operation, size_bytes),
        element_bytes=element(request.dtype).size_bytes,
        wanted=request.wanted,
    )
    used = way_of(comm, result.plan).channels
    other = ""
    if request.channels and used != request.channels:
        other = f"{used} channels in place of {request.channels}: messages and small sizes use a different number"
    told = "" if in_place is None else in_place.note
    return result.plan, None, tuple(note for note in (result.note, other, told) if note)


@dataclass(frozen=True, slots=True)
class SymmetricChoice:
    """NCCL's choice for symmetric buffers.

    Attributes
    ----------
    note : str
        The kernel, or the reason why NCCL uses no symmetric kernel.
    algorithm : str
        The kernel's algorithm in `clusim.collectives`; empty without a kernel.
    """

    note: str
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    model_us: float = 0.0

    def schedule(self, request: Request) -> Schedule:
        """Return the schedule of the kernel."""
        setup = request.setup
        return collectives.build(
            *(setup.known, request.operation, self.algorithm, request.size_bytes),
            ranks=setup.comm.ranks,
            channels=self.channels,
            dtype=request.dtype,
            redop=request.redop,
        )


def symmetric(
    request: Request, comm: Communicator, operation: str, size_bytes: int
) -> SymmetricChoice | None:
    """Return NCCL's choice for symmetric buffers; None for other buffers."""
    if not comm.settings.symmetric:
        return None
    if operation not in COLLECTIVE_OF:
        return SymmetricChoice(f"{operation} lacks a kernel for symmetric memory")
    call = SymmetricCall(COLLECTIVE_OF[operation], size_bytes, request.dtype, request.redop)
    reason = why_not(comm, call)
    if reason:
        return SymmetricChoice(reason)
    result = pick(comm, call)
    kernel = result.kernel
    protocol = "LL" if kernel.low_latency else "Simple"
    return SymmetricChoice(result.note, kernel.algorithm, protocol, result.blocks, result.time_us)


def nccl_program(
    request: Request, comm: Communicator, operation: str, size_bytes: int, plan: NcclPlan | None
) -> Schedule:
    """Return the schedule of a NCCL plan for `size_bytes`."""
    return programs.build(request.setup.known, comm, moved_of(request, operation, size_bytes), plan)


def moved_of(request: Request, operation: str, size_bytes: int) -> CollectivePayload:
    """Return the payload of a NCCL collective: types and root of the request."""
    ranks = request.setup.comm.ranks
    root = ABSENT if request.root is None else ranks.index(request.root)
    return CollectivePayload(operation, size_bytes, request.dtype, request.redop, root)


def _around(comm: Communicator, operation: str, plan: NcclPlan | None) -> LaunchContext:
    """Return the launch overhead and NCCL's estimate.

    Assumes one process per GPU and nccl-tests' iterations.
    """
    host, launch = host_of(comm), Launch()
    model_us = plan.selection.time_us if plan is not None and plan.selection.time_us > 0 else None
    if operation in OVERLAPPING:
        return LaunchContext(None, None, model_us)
    each = overhead_ps(host, launch), period_ps(host, operation, launch)
    return LaunchContext(*each, model_us, sum(start_and_end_ps(host)), DEFAULT_ITERATIONS)
