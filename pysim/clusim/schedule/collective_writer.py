"""Programs of collectives: calls and their checks, parts of buffers, sends and receives by rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, Unpack

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import REDUCTIONS
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.dtypes import element
from clusim.schedule.ir import (
    ABSENT,
    CTA_WARPS,
    CollectiveCall,
    Connection,
    Instance,
    Mode,
    Prim,
    Schedule,
    Task,
)
from clusim.schedule.shapes import Shape, shape_of


class Part(NamedTuple):
    """The range of a buffer (or of every block of a buffer) that one channel processes [bytes].

    `chunk` is its chunk size [bytes]; 0 selects the shape's. `way` is the index of its ring or tree in the given list;
    -1 selects the channel's. `share` is the number of parts per CTA.
    """

    channel: int
    offset: int
    length: int
    chunk: int = 0
    way: int = -1
    share: int = 1

    @property
    def route(self) -> int:
        """Return the index of its ring or tree."""
        return self.channel if self.way < 0 else self.way


def split(length: int, channels: int) -> list[Part]:
    """Split `length` bytes into at most `channels` contiguous, even parts, in multiples of 16 bytes."""
    cells = -(-length // 16)
    bounds = [
        min(length, cells * index // channels * 16) for index in range(channels + 1)
    ]
    pairs = pairwise(bounds)
    return [
        Part(index, low, high - low)
        for index, (low, high) in enumerate(pairs)
        if high > low
    ]


def blocks(total: int, count: int, element_bytes: int) -> int:
    """Return the size of one of `count` blocks that cover `total` bytes, rounded to elements [bytes]."""
    return -(-(total // element_bytes) // count) * element_bytes


class ProgramFields(TypedDict, total=False):
    """Further fields of a program: name, chunks and mode of its template, the others as in `Instance`."""

    name: str
    nchunks: int
    mode: Mode
    rotation: int
    chunk_bytes: int
    slices: int
    slots_per_slice: int
    slice_min: int
    protocol: str
    stride: int
    limit: int
    align: int
    sm: int
    fixed_div: int
    start_ps: int
    shared: bool
    warps: float


def _check_ranks(ranks: Sequence[int], num_ranks: int) -> None:
    first_use: set[int] = set()
    for rank in ranks:
        if not 0 <= rank < num_ranks:
            raise InputError(
                f"rank {rank}: out of range; this fabric has ranks 0..{num_ranks - 1}"
            )
        if rank in first_use:
            raise InputError(
                f"rank {rank}: named twice in the group; name each rank once"
            )
        first_use.add(rank)


MAX_BYTES = 2**40
"""Largest size of a collective [bytes]: more than any GPU's memory."""

_NO_BYTES = ("barrier",)


def check_call(call: CollectiveCall, num_ranks: int) -> None:
    """Raise `InputError` unless sizes, ranks, root and channels of `call` are valid."""
    size = element(call.dtype).size_bytes
    if call.redop not in REDUCTIONS:
        raise InputError(
            f"redop {call.redop!r}: unknown; use one of {', '.join(REDUCTIONS)}"
        )
    _check_ranks(call.ranks, num_ranks)
    if len(call.ranks) < 2:
        raise InputError(
            f"{call.operation}: a group of {len(call.ranks)}; at least 2 ranks are needed"
        )
    if call.operation not in _NO_BYTES:
        if not 0 < call.bytes <= MAX_BYTES:
            raise InputError(
                f"{call.operation}: size {call.bytes} bytes; must be at least 1 byte and at most 1 TiB"
            )
        if call.bytes % size:
            raise InputError(
                f"{call.operation}: size {call.bytes} bytes is not a multiple of {call.dtype} elements;"
                f" use a multiple of {size}"
            )
    if call.root != ABSENT and call.root not in call.ranks:
        raise InputError(
            f"{call.operation}: root {call.root} is not in the group {list(call.ranks)}"
        )
    if not 1 <= call.channels <= 64:
        raise InputError(
            f"{call.operation}: {call.channels} channels; must be 1..64"
        )


@dataclass(slots=True)
class CollectiveWriter:
    """One collective being written: a program task per rank of the group, parts per channel.

    Positions `0 .. n-1` number the ranks of the group; all arguments below are positions.

    Examples
    --------
    >>> writer = CollectiveWriter.create("broadcast", 1 << 20, ranks=2, channels=1)
    >>> for part in writer.parts():
    ...     pipe = writer.connect(0, 1, part.channel)
    ...     writer.program(0, part, [Prim("copySend", send=0)], [pipe])
    ...     writer.program(1, part, [Prim("recv", recv=0)], [pipe])
    >>> schedule = writer.schedule()
    """

    builder: ProgramBuilder
    call: CollectiveCall
    shape: Shape
    tasks: tuple[int, ...]
    stride: int = field(default=0)

    @classmethod
    def create(
        cls,
        operation: str,
        bytes: int,
        *,
        ranks: int | Sequence[int],
        num_ranks: int | None = None,
        shape: Shape | None = None,
        **call_fields: Any,
    ) -> CollectiveWriter:
        """Start a schedule of this one collective over `ranks` (a count, or an ordered group)."""
        group = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
        count = max(group, default=0) + 1 if num_ranks is None else num_ranks
        call = CollectiveCall(operation, bytes, group, **call_fields)
        builder = ProgramBuilder(
            count, f"{operation} {call.algorithm} {bytes} B on {len(group)} ranks"
        )
        return cls.add(builder, call, shape)

    @classmethod
    def add(
        cls,
        builder: ProgramBuilder,
        call: CollectiveCall,
        shape: Shape | None = None,
        *,
        stream: str = "comm0",
        after: Sequence[Iterable[int]] | None = None,
    ) -> CollectiveWriter:
        """Append `call` to `stream` of every rank of its group; `after[position]` are further dependencies."""
        call = replace(call, dtype=element(call.dtype).name)
        check_call(call, builder.num_ranks)
        stride = blocks(call.bytes, len(call.ranks), element(call.dtype).size_bytes)
        call = replace(call, block_bytes=stride)
        index = builder.call(call)
        tasks = []
        for position, rank in enumerate(call.ranks):
            task = Task(
                "program",
                rank,
                stream,
                name=f"{call.operation} {call.algorithm}",
                call=index,
            )
            tasks.append(builder.task(task, after[position] if after else ()))
        return cls(
            builder, call, shape or shape_of(call.protocol), tuple(tasks), stride
        )

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self.call.ranks)

    def parts(self, *, blocked: bool = False) -> list[Part]:
        """Return the channels' parts of the buffer, or of every block if `blocked`."""
        return split(self.stride if blocked else self.call.bytes, self.call.channels)

    def connect(self, src: int, dst: int, channel: int, **fields: Any) -> int:
        """Add a connection between two positions on `channel`; `fields` as in `Connection`."""
        ranks = self.call.ranks
        usual = {
            "slots": self.shape.slots,
            "protocol": self.call.protocol,
            "key": channel,
        }
        fields = {**usual, **fields}
        return self.builder.connection(
            Connection(ranks[src], ranks[dst], channel, **fields)
        )

    def flag(self, src: int, dst: int, channel: int) -> int:
        """Add a flag connection."""
        return self.connect(src, dst, channel, kind="flag")

    def program(
        self,
        position: int,
        part: Part,
        prims: Iterable[Prim] | int,
        connections: Sequence[int] = (),
        **given: Unpack[ProgramFields],
    ) -> None:
        """Let the rank at `position` run `prims` (or the index of a template) on `part`."""
        shape, mode = self.shape, given.pop("mode", "interleaved")
        name = given.pop("name", f"{self.call.operation}/{self.call.algorithm}")
        nchunks, rotation = given.pop("nchunks", 1), given.pop("rotation", 0)
        template = prims
        if not isinstance(template, int):
            template = self.builder.template(name, template, nchunks, mode)
        fields: dict[str, Any] = {
            "chunk_bytes": part.chunk or shape.chunk_bytes,
            "slices": shape.slices,
            "slots_per_slice": shape.slots_per_slice,
            "slice_min": shape.slice_min,
            "protocol": self.call.protocol,
        }
        if mode == "blocked":
            fields |= {"stride": self.stride, "limit": self.call.bytes}
        fields |= given
        if part.share > 1:
            fields["warps"] = fields.get("warps", CTA_WARPS) / part.share
        self.builder.instance(
            Instance(
                self.tasks[position],
                self.call.ranks[position],
                template,
                tuple(connections),
                part.channel,
                rotation,
                part.offset,
                part.length,
                **fields,
            )
        )

    def add_rotated(
        self,
        position: int,
        part: Part,
        prims: Iterable[Prim] | int,
        connections: Sequence[int] = (),
        **given: Unpack[ProgramFields],
    ) -> None:
        """Add a program with a chunk per rank in every loop, numbered from the rank's position."""
        given = {"rotation": position, "nchunks": self.size, **given}
        self.program(position, part, prims, connections, **given)

    def schedule(self) -> Schedule:
        """Return the checked schedule of everything in the builder."""
        return self.builder.build()
