"""NCCL's plans as programs: any collective of a communicator, appended to a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import redop_named
from clusim.base.terms.operations import (
    COLLECTIVE_OF,
    OF_NCCL,
    PATTERNS,
    ROOTED,
    Algorithm,
    Collective,
    Protocol,
)
from clusim.collectives.algorithms import chain, nvls, ring, sharp, tree
from clusim.nccl.communicator import Communicator, NcclPlan
from clusim.nccl.graph import CollectivePayload
from clusim.nccl.programs import heads, pat
from clusim.nccl.programs.context import Context
from clusim.nccl.programs.messages import emit_pattern
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, CollectiveCall, Schedule
from clusim.schedule.shapes import Shape, shape_of
from clusim.topology.model import Fabric

BY_HEADS = (
    Algorithm.NVLS,
    Algorithm.NVLS_TREE,
    Algorithm.COLLNET_DIRECT,
    Algorithm.COLLNET_CHAIN,
)
"""Algorithms with stages synchronised through flags, in complete chunks."""

Writer = Callable[[Context], None]


def _ring_writer(context: Context) -> None:
    writers = {
        Collective.ALLREDUCE: ring.write_allreduce,
        Collective.ALLGATHER: ring.write_all_gather,
        Collective.REDUCESCATTER: ring.write_reduce_scatter,
        Collective.BROADCAST: chain.write_broadcast,
        Collective.REDUCE: chain.write_reduce,
    }
    writers[context.collective](context.writer, context.fabric, context.ring_ways)


def _tree_writer(context: Context) -> None:
    tree.write_allreduce(context.writer, context.fabric, context.tree_ways)


def _nvls_writer(context: Context) -> None:
    """Write NVLS; over nodes its heads let the network's switches reduce (SHARP)."""
    writer, fabric = context.writer, context.fabric
    if context.collective is Collective.ALLGATHER:
        nvls.write_all_gather(writer, fabric, context.parts)
    elif context.collective is Collective.REDUCESCATTER:
        nvls.write_reduce_scatter(writer, fabric, context.parts)
    elif context.comm.group.num_nodes > 1:
        sharp.write_allreduce(writer, fabric)
    else:
        nvls.write_allreduce(writer, fabric)


def _sharp_writer(context: Context) -> None:
    """Write CollNetDirect: GPUs of a node exchange with the heads directly, not by their switches."""
    sharp.write_allreduce(context.writer, context.fabric, switches=False)


def _pat_writer(context: Context) -> None:
    if context.collective is Collective.ALLGATHER:
        pat.write_all_gather(context)
    else:
        pat.write_reduce_scatter(context)


def _all_pairs_writer(context: Context) -> None:
    from clusim.nccl.programs.allpairs import write_all_pairs

    write_all_pairs(context)


WRITERS: dict[tuple[Algorithm, Collective], Writer] = {
    **{(Algorithm.RING, collective): _ring_writer for collective in Collective},
    (Algorithm.TREE, Collective.ALLREDUCE): _tree_writer,
    (Algorithm.NVLS, Collective.ALLREDUCE): _nvls_writer,
    (Algorithm.NVLS, Collective.ALLGATHER): _nvls_writer,
    (Algorithm.NVLS, Collective.REDUCESCATTER): _nvls_writer,
    (Algorithm.NVLS_TREE, Collective.ALLREDUCE): heads.write_nvls_tree,
    (Algorithm.COLLNET_DIRECT, Collective.ALLREDUCE): _sharp_writer,
    (Algorithm.COLLNET_CHAIN, Collective.ALLREDUCE): heads.write_collnet_chain,
    (Algorithm.PAT, Collective.ALLGATHER): _pat_writer,
    (Algorithm.PAT, Collective.REDUCESCATTER): _pat_writer,
    (Algorithm.MSCCL, Collective.ALLREDUCE): _all_pairs_writer,
}
"""Writers by algorithm and collective."""


def _shape(
    context_algorithm: Algorithm, choice: NcclPlan, call: CollectiveCall, f: Fabric
) -> Shape:
    """Return the FIFO of the connections; the parts set the chunk sizes."""
    chunk = max(16, choice.chunks.chunk_bytes // 16 * 16)
    if context_algorithm in BY_HEADS:
        return Shape(chunk)
    looping = call.operation not in ROOTED
    base = shape_of(
        call.protocol,
        ring=looping and context_algorithm is Algorithm.RING,
        protocols=f.protocols,
    )
    return replace(base, chunk_bytes=chunk)


def emit(
    site: Site,
    fabric: Fabric,
    comm: Communicator,
    moved: CollectivePayload,
    plan: NcclPlan | None = None,
) -> tuple[int, ...]:
    """Append a collective as NCCL runs it to a schedule under construction.

    Parameters
    ----------
    moved : CollectivePayload
        Payload; its root is a position in the communicator.
    plan : clusim.nccl.NcclPlan or None
        Plan to run; by default the tuner's choice.

    Returns
    -------
    tuple of int
        The task of every position.

    Raises
    ------
    InputError
        The operation is not NCCL's, or its algorithm has no program for it.
    """
    operation, root = moved.operation, moved.root
    if operation in PATTERNS:
        return emit_pattern(site, fabric, comm, moved)
    if operation not in COLLECTIVE_OF:
        listing = ", ".join(OF_NCCL)
        raise InputError(
            f"collective {operation!r}: not one of NCCL's; use one of {listing}"
        )
    collective = COLLECTIVE_OF[operation]
    if operation in ("broadcast", "reduce") and root == ABSENT:
        root = 0
    choice = plan or comm.plan(
        collective, moved.bytes, element_bytes=element(moved.dtype).size_bytes
    )
    algorithm, protocol = choice.selection.algorithm, choice.selection.protocol
    writer = WRITERS.get((algorithm, collective))
    if writer is None:
        algorithms = [a.value for a, c in WRITERS if c is collective]
        raise InputError(
            f"{operation}: {algorithm.value} is not modelled for it; use {', '.join(algorithms)} (NCCL_ALGO)"
        )
    call = CollectiveCall(
        operation,
        moved.bytes,
        comm.ranks,
        moved.dtype,
        redop_named(moved.redop),
        ABSENT if root == ABSENT else comm.ranks[root],
        algorithm.key,
        protocol.key,
        max(1, choice.num_channels),
    )
    shape = _shape(algorithm, choice, call, fabric)
    output = CollectiveWriter.add(
        site.builder, call, shape, stream=site.stream, after=site.after
    )
    context = Context(output, fabric, comm, choice, collective)
    if protocol is Protocol.SIMPLE and algorithm in (Algorithm.RING, Algorithm.TREE):
        output.shape = replace(shape, slice_min=context.least_slice)
    writer(context)
    return output.tasks


def build(
    fabric: Fabric,
    comm: Communicator,
    moved: CollectivePayload,
    plan: NcclPlan | None = None,
) -> Schedule:
    """Return the schedule of one collective as NCCL runs it; parameters as of `emit`."""
    name = f"NCCL {moved.operation} {moved.bytes} B on {len(comm.ranks)} ranks"
    builder = ProgramBuilder(fabric.num_ranks, name)
    emit(Site(builder), fabric, comm, moved, plan)
    return builder.build()
