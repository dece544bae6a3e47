"""Layout of a plan's chunks in the buffers of a call, and the call itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import redop_named
from clusim.base.terms.operations import (
    BLOCKWISE,
    GATHERING,
    OF_NCCL,
    ROOTED,
    SCATTERING,
    find_operation,
)
from clusim.schedule.builder import CollectiveWriter, ProgramBuilder, check_call
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, CollectiveCall, Task
from clusim.schedule.shapes import shape_of
from clusim.topology.model import Fabric

PLANNED = (*(name for name in OF_NCCL if name != "sendrecv"), "custom")
"""Operations of plans; ``custom`` operations are ``messages`` in clusim."""

SMALL = {*(("i", name) for name in GATHERING), *(("o", name) for name in SCATTERING)}
"""Buffers of plans that hold one block, each with its operation."""


@dataclass(frozen=True, slots=True)
class PlanLayout:
    """Data layout of a plan.

    Attributes
    ----------
    where : str
        File.
    chunks, room : int
        Chunks of the largest buffer of the collective, and of the largest buffer of the plan (its scratch may be
        larger).
    grain : int
        Number of equal grains that a chunk must be divided into.
    """

    where: str
    tool: str
    operation: str
    gpus: int
    chunks: int
    room: int
    channels: int
    in_place: bool
    root: int = 0
    grain: int = 1


@dataclass(frozen=True, slots=True)
class WantedPlan:
    """Requested call: bytes as in `clusim.schedule.CollectiveCall`, ranks of the plan's GPUs.

    By default all ranks in order, and the plan's protocol.
    """

    bytes: int
    ranks: Sequence[int] | None = None
    dtype: str = "float32"
    redop: str = "sum"
    root: int | None = None
    protocol: str = ""


def operation_of(word: str) -> str:
    """Return the operation of a plan, empty if plans do not support it."""
    result = find_operation(word)
    return result.name if result and {result.name, *result.others} & set(PLANNED) else ""


def start(
    layout: PlanLayout, fabric: Fabric | None, wanted: WantedPlan
) -> tuple[CollectiveWriter, int]:
    """Return the call of a plan to write programs for, and the size of its chunks [bytes].

    Chunks are equal and large enough for the data; if they do not divide the size, padding after the data is
    moved as well.
    """
    count = fabric.num_ranks if fabric is not None else layout.gpus
    group = tuple(range(count)) if wanted.ranks is None else tuple(wanted.ranks)
    if len(group) != layout.gpus:
        raise InputError(
            f"{layout.where}: a plan for {layout.gpus} GPUs, not {len(group)}; choose {layout.gpus} with"
            " --ranks"
        )
    rooted = layout.operation in ROOTED
    _check_root(layout, group, wanted.root, rooted)
    call = CollectiveCall(
        layout.operation,
        wanted.bytes,
        group,
        element(wanted.dtype).name,
        redop_named(wanted.redop),
        group[layout.root] if rooted else ABSENT,
        layout.tool,
        wanted.protocol,
        layout.channels,
        in_place=layout.in_place,
    )
    builder = ProgramBuilder(
        max(count, max(group, default=0) + 1),
        f"{call.operation} {call.algorithm} {call.bytes} B on {len(group)} ranks",
    )
    check_call(call, builder.num_ranks)
    size = element(call.dtype).size_bytes
    chunk = chunk_elements(layout, call.bytes // size) * size
    call = replace(call, block_bytes=chunk * (layout.chunks // len(group)))
    if layout.operation not in BLOCKWISE:
        call = replace(call, block_bytes=-(-(call.bytes // size) // len(group)) * size)
    number = builder.call(call)
    tasks = [
        builder.task(Task("program", rank, name=f"{call.operation} {layout.tool}", call=number))
        for rank in group
    ]
    shape = shape_of(wanted.protocol, ring=True, fabric=fabric)
    return CollectiveWriter(builder, call, shape, tuple(tasks), chunk), chunk


def chunk_elements(layout: PlanLayout, elements: int) -> int:
    """Return the size of a chunk [elements]: the smallest for which all data fit."""
    if layout.operation in BLOCKWISE:
        own = layout.chunks // layout.gpus
        block = -(-elements // layout.gpus)
        size = -(-block // own)
    else:
        size = -(-elements // layout.chunks)
    return -(-size // layout.grain) * layout.grain


def _check_root(layout: PlanLayout, group: Sequence[int], root: int | None, rooted: bool) -> None:
    if root is None:
        return
    if root not in group:
        raise InputError(f"root {root}: is not a rank of this collective")
    if rooted and group.index(root) != layout.root:
        raise InputError(
            f"{layout.where}: its root is GPU {layout.root}, which rank {group[layout.root]} plays"
        )
