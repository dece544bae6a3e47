"""Layout of a plan's chunks in the buffers of a call, and the call itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.collective_writer import CollectiveWriter, check_call
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, Buffer, CollectiveCall, Task
from clusim.schedule.shapes import shape_of
from clusim.topology.model import Fabric

PLANNED = (*(name for name in OF_NCCL if name != "sendrecv"), "custom")
"""Operations of plans; ``custom`` operations are ``messages`` in clusim."""

SMALL = {*(("i", name) for name in GATHERING), *(("o", name) for name in SCATTERING)}
"""Buffers of plans that hold one block, each with its operation."""


Place = tuple[Buffer, int]
"""A buffer and the index of a chunk or grain."""

Key = tuple[int, int]
"""A GPU and one of its thread blocks."""


@dataclass(frozen=True, slots=True)
class AlgorithmPlan(ABC):
    """A plan of MSCCL or MSCCL++; `chunks` is the number of chunks of its largest buffer.

    GPUs have `chunks` of their buffers ``i``, ``o`` and ``s``, and thread blocks.
    """

    tool: ClassVar[str] = ""

    where: str
    name: str
    operation: str
    protocol: str
    chunks: int
    in_place: bool
    root: int
    gpus: tuple[Any, ...]

    @property
    @abstractmethod
    def channels(self) -> int:
        """Number of channels in use."""

    def bad(self, line: int, message: str) -> InputError:
        """Return an error that names the line."""
        return InputError(f"{self.where}:{line}: {message}")

    @property
    def room(self) -> int:
        """Chunks of the largest buffer, scratch included."""
        scratch = (gpu.chunks["s"] for gpu in self.gpus)
        return int(max(self.chunks, *scratch))

    def thread_blocks(self) -> dict[Key, Any]:
        """Return the thread blocks of all GPUs."""
        return {
            (number, at): block
            for number, gpu in enumerate(self.gpus)
            for at, block in enumerate(gpu.blocks)
        }


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
    return (
        result.name
        if result and {result.name, *result.others} & set(PLANNED)
        else ""
    )


def start(
    plan: AlgorithmPlan, fabric: Fabric | None, request: WantedPlan, grain: int = 1
) -> tuple[CollectiveWriter, int]:
    """Return the call of a plan to write programs for, and the size of its chunks [bytes].

    Chunks are equal, divisible into `grain` parts, and large enough for the data; if they do not divide the size,
    padding after the data is moved as well.
    """
    count = fabric.num_ranks if fabric is not None else len(plan.gpus)
    group = tuple(range(count)) if request.ranks is None else tuple(request.ranks)
    if len(group) != len(plan.gpus):
        raise InputError(
            f"{plan.where}: a plan for {len(plan.gpus)} GPUs, not {len(group)}; choose {len(plan.gpus)} with --ranks"
        )
    rooted = plan.operation in ROOTED
    _check_root(plan, group, request.root, rooted)
    call = CollectiveCall(
        plan.operation,
        request.bytes,
        group,
        element(request.dtype).name,
        redop_named(request.redop),
        group[plan.root] if rooted else ABSENT,
        plan.tool,
        request.protocol,
        plan.channels,
        in_place=plan.in_place,
    )
    builder = ProgramBuilder(
        max(count, max(group, default=0) + 1),
        f"{call.operation} {call.algorithm} {call.bytes} B on {len(group)} ranks",
    )
    check_call(call, builder.num_ranks)
    size = element(call.dtype).size_bytes
    chunk = chunk_elements(plan, call.bytes // size, grain) * size
    block_bytes = chunk * (plan.chunks // len(group))
    if plan.operation not in BLOCKWISE:
        block_bytes = -(-(call.bytes // size) // len(group)) * size
    call = replace(call, block_bytes=block_bytes)
    number = builder.call(call)
    tasks = [
        builder.task(
            Task("program", rank, name=f"{call.operation} {plan.tool}", call=number)
        )
        for rank in group
    ]
    shape = shape_of(
        request.protocol, ring=True, protocols=fabric.protocols if fabric else None
    )
    return CollectiveWriter(builder, call, shape, tuple(tasks), chunk), chunk


def chunk_elements(plan: AlgorithmPlan, elements: int, grain: int = 1) -> int:
    """Return the size of a chunk [elements]: the smallest for which all data fit."""
    gpus = len(plan.gpus) if plan.operation in BLOCKWISE else 1
    block = -(-elements // gpus)
    size = -(-block // (plan.chunks // gpus))
    return -(-size // grain) * grain


def place_chunks(count: int, src: Place | None, dst: Place | None) -> dict[str, Any]:
    """Return the fields of a primitive that moves `count` chunks from `src` to `dst`."""
    fields: dict[str, Any] = {"step": 1 if count > 1 else 0, "repeat": count}
    if src is not None:
        fields |= {"src": src[0], "base": src[1]}
    if dst is not None:
        fields["dst"] = dst[0]
        if src is None:
            fields["base"] = dst[1]
        elif dst[1] != src[1]:
            fields |= {"dst_base": dst[1], "dst_step": fields["step"]}
    return fields


def _check_root(
    plan: AlgorithmPlan, group: Sequence[int], root: int | None, rooted: bool
) -> None:
    if root is None:
        return
    if root not in group:
        raise InputError(f"root {root}: is not a rank of this collective")
    if rooted and group.index(root) != plan.root:
        raise InputError(
            f"{plan.where}: its root is GPU {plan.root}, which rank {group[plan.root]} plays"
        )
