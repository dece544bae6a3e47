"""NCCL's choice for a request: communicator, algorithm, protocol, program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusim import collectives
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import COLLECTIVE_OF, ROOTED, weighted_bytes
from clusim.nccl import programs
from clusim.nccl.callconfig import CallConfig
from clusim.nccl.choice import Way, choose, way_of
from clusim.nccl.communicator import Communicator, NcclPlan
from clusim.nccl.launch import (
    DEFAULT_ITERATIONS,
    Launch,
    host_of,
    overhead_ps,
    period_ps,
    start_and_end_ps,
)
from clusim.nccl.programs import CollectivePayload
from clusim.nccl.symmetric import COPIES, Picked, pick, possible, why_not
from clusim.nccl.symmetriccosts import SymmetricCall, copy_floor_us
from clusim.results.provenance import LaunchContext
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT

if TYPE_CHECKING:
    from clusim.simulation.request import Request

OVERLAPPING = ("broadcast", "reduce")
"""Operations with overlapping iterations: the first ranks of the pipeline finish long before the last."""


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice for a collective.

    Attributes
    ----------
    request : Request
        The collective, with its channels and protocol as environment variables.
    plan : NcclPlan or None
        None is messages, or a kernel for symmetric memory.
    kernel : Picked or None
        The kernel for symmetric memory that runs.
    notes : tuple of str
        Notes in addition to the communicator's.
    """

    request: Request
    comm: Communicator
    plan: NcclPlan | None
    kernel: Picked | None
    notes: tuple[str, ...]

    @property
    def way(self) -> Way:
        """Algorithm, protocol and channels; of kernels for symmetric memory by the names of `clusim.collectives`."""
        if self.kernel is None:
            return way_of(self.comm, self.plan)
        protocol = "LL" if self.kernel.kernel.low_latency else "Simple"
        return Way(
            self.kernel.kernel.algorithm, protocol, max(1, self.kernel.blocks)
        )

    @property
    def around(self) -> LaunchContext:
        """Launch overhead and NCCL's estimate, with one process per GPU and nccl-tests' iterations."""
        host, launch = host_of(self.comm), Launch()
        time_us = 0.0 if self.plan is None else self.plan.selection.time_us
        model_us = time_us if time_us > 0 else None
        if self.kernel is not None:
            model_us = self.kernel.time_us
        if self.request.operation in OVERLAPPING:
            return LaunchContext(None, None, model_us)
        times_ps = (
            overhead_ps(host, launch),
            period_ps(host, self.request.operation, launch),
        )
        return LaunchContext(
            *times_ps, model_us, sum(start_and_end_ps(host)), DEFAULT_ITERATIONS
        )

    def schedule(self) -> Schedule:
        """Return its schedule."""
        request, setup = self.request, self.request.setup
        if self.kernel is None:
            return nccl_program(request, self.comm, self.plan)
        schedule = collectives.build(
            setup.known,
            request.operation,
            self.way.algorithm,
            request.size_bytes,
            ranks=setup.comm.ranks,
            channels=self.way.channels,
            dtype=request.dtype,
            redop=request.redop,
        )
        if self.kernel.kernel is not COPIES:
            return schedule
        launched_ps = overhead_ps(host_of(self.comm), Launch())
        start_ps = max(0, round(copy_floor_us(self.comm) * 1e6) - launched_ps)
        instances = tuple(
            replace(item, start_ps=start_ps) for item in schedule.instances
        )
        return replace(schedule, instances=instances)


def nccl_choice(request: Request, *, healthy: bool = False) -> NcclChoice:
    """Return NCCL's choice for a collective, without the faults that are active at time 0 if `healthy`."""
    operation, setup = request.operation, request.setup
    comm = setup.healthy if healthy else setup.comm
    if request.root is not None and operation not in ROOTED:
        raise InputError(
            f"{operation}: takes no root; leave out root {request.root}"
        )
    if request.root is not None and request.root not in comm.ranks:
        raise InputError(f"--root {request.root}: is not a participating rank")
    kernel, reason = _symmetric(request, comm)
    if kernel is not None:
        return NcclChoice(request, comm, None, kernel, (kernel.note,))
    result = choose(
        comm,
        operation,
        request.size_bytes,
        element_bytes=element(request.dtype).size_bytes,
        overrides=request.wanted,
    )
    used = way_of(comm, result.plan).channels
    other = ""
    if request.channels and used != request.channels:
        other = f"{used} channels in place of {request.channels}: messages and small sizes use a different number"
    notes = tuple(note for note in (result.note, other, reason) if note)
    return NcclChoice(request, comm, result.plan, None, notes)


def _symmetric(request: Request, comm: Communicator) -> tuple[Picked | None, str]:
    """Return the kernel for symmetric buffers, or None and the reason; empty for other buffers."""
    if not comm.settings.symmetric:
        return None, ""
    if request.operation not in COLLECTIVE_OF:
        if comm.settings.cta_policy:
            return (
                None,
                f"{request.operation} by copy engines is not planned (--algorithm copy-engines)",
            )
        return None, f"{request.operation} lacks a kernel for symmetric memory"
    collective = COLLECTIVE_OF[request.operation]
    call = SymmetricCall(
        collective, request.size_bytes, request.dtype, request.redop
    )
    if reason := why_not(comm, call):
        return None, reason
    config = request.wanted
    if not isinstance(config, CallConfig):
        return pick(comm, call), ""
    config.check(comm, request.operation)
    selected, limited = config.kernels(comm.settings), config.on(comm)
    if selected is None or possible(limited, call, selected):
        return pick(limited, call, selected), ""
    return (
        None,
        f"no kernel for symmetric memory in {config.select!r} can do the call",
    )


def nccl_program(
    request: Request, comm: Communicator, chosen: NcclPlan | None
) -> Schedule:
    """Return the schedule of a NCCL plan for a collective."""
    if request.operation == "hypercube":
        return _hypercube(request, comm)
    if request.operation == "weighted_alltoall":
        return _uneven_messages(request, comm)
    return programs.build(request.setup.known, comm, moved_of(request), chosen)


def moved_of(request: Request) -> CollectivePayload:
    """Return the payload of a NCCL collective: types and root of the request."""
    root = (
        ABSENT
        if request.root is None
        else request.setup.comm.ranks.index(request.root)
    )
    size_bytes = request.size_bytes
    return CollectivePayload(
        request.operation, size_bytes, request.dtype, request.redop, root
    )


def _uneven_messages(request: Request, comm: Communicator) -> Schedule:
    """Return nccl-tests' alltoallv: messages that grow with the distance of the ranks."""
    setup, count = request.setup, comm.group.num_ranks
    name = f"alltoallv {request.size_bytes} B on {count} ranks"
    builder = ProgramBuilder(setup.fabric.num_ranks, name)
    messages = [
        (rank, (rank + hop) % count, size)
        for rank in range(count)
        for hop, size in enumerate(weighted_bytes(request.size_bytes, count))
        if size
    ]
    programs.emit_messages(Site(builder), setup.known, comm, messages)
    return builder.build()


def _hypercube(request: Request, comm: Communicator) -> Schedule:
    """Return the grouped exchanges of nccl-tests' hypercube.

    In each exchange, a rank swaps all its data with a rank at twice the previous distance.
    """
    setup, size_bytes, count = (
        request.setup,
        request.size_bytes,
        comm.group.num_ranks,
    )
    if count & (count - 1):
        raise InputError(
            f"hypercube: {count} ranks; their number must be a power of two"
        )
    builder = ProgramBuilder(
        setup.fabric.num_ranks, f"hypercube {size_bytes} B on {count} ranks"
    )
    block = max(1, size_bytes // count)
    after: list[tuple[int, ...]] | None = None
    mask = 1
    while mask < count:
        swaps = [(rank, rank ^ mask, block * mask) for rank in range(count)]
        tasks = programs.emit_messages(
            Site(builder, after=after), setup.known, comm, swaps
        )
        after = [(task,) for task in tasks]
        mask *= 2
    return builder.build()
