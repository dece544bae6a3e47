"""Builds schedules: tasks on streams, and programs of collectives written with a `CollectiveWriter`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypedDict, Unpack

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.dtypes import REDUCTIONS
from clusim.schedule.checks import validate
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
    Template,
)
from clusim.schedule.shapes import Shape, shape_of
from clusim.schedule.variables import Awaited, Names, Variables


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


def split(length: int, channels: int, unit: int = 16) -> list[Part]:
    """Split `length` bytes into at most `channels` contiguous, even parts, in multiples of `unit` bytes."""
    cells = -(-length // unit)
    bounds = [
        min(length, cells * index // channels * unit)
        for index in range(channels + 1)
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


class ProgramBuilder:
    """Builder of a checked `Schedule` from tasks, templates, connections and instances.

    Tasks of one rank and stream run in sequence; streams run concurrently. `after` adds dependencies.
    """

    def __init__(self, num_ranks: int, name: str = "schedule") -> None:
        if num_ranks < 1:
            raise InputError(f"schedule {name!r}: {num_ranks} ranks; must be >= 1")
        self.num_ranks = num_ranks
        self.name = name
        self._calls: list[CollectiveCall] = []
        self._templates: dict[Template, int] = {}
        self._by_tuple: dict[
            tuple[int, str, int, Mode], tuple[tuple[Prim, ...], int]
        ] = {}
        self._connections: list[Connection] = []
        self._instances: list[Instance] = []
        self._tasks: list[Task] = []
        self._last: dict[tuple[int, str], tuple[int, ...]] = {}
        self._groups = 0
        self._shared: dict[Hashable, int] = {}
        self._variables = Variables()

    def task(self, task: Task, after: Iterable[int] = ()) -> int:
        """Append `task` to its rank's stream and return its index."""
        deps = self._waits(task.rank, task.stream, (*task.deps, *after))
        return self._append(task if deps == task.deps else replace(task, deps=deps))

    def _waits(
        self, rank: int, stream: str, after: Iterable[int]
    ) -> tuple[int, ...]:
        """Return the dependencies of the next task of a stream."""
        return tuple(sorted({*self._last.get((rank, stream), ()), *after}))

    def _append(self, task: Task) -> int:
        """Append a task that has all its dependencies."""
        if not 0 <= task.rank < self.num_ranks:
            raise InputError(
                f"rank {task.rank}: out of range; must be 0..{self.num_ranks - 1}"
            )
        self._tasks.append(task)
        self._last[task.rank, task.stream] = (len(self._tasks) - 1,)
        return len(self._tasks) - 1

    def kernel(
        self,
        rank: int,
        *,
        stream: str = "compute",
        compute_ps: int = 0,
        flops: int = 0,
        precision: str = "",
        hbm_bytes: int = 0,
        sms: int = 0,
        name: str = "kernel",
        after: Iterable[int] = (),
    ) -> int:
        """Add a kernel: `compute_ps` [ps] or `flops` on `sms` SMs (0 = all), and `hbm_bytes` of memory traffic."""
        if compute_ps < 0 or flops < 0 or hbm_bytes < 0 or (compute_ps and flops):
            raise InputError(
                f"kernel {name!r}: set compute_ps or flops, not negative"
            )
        deps = self._waits(rank, stream, after)
        work = (compute_ps, flops, precision, hbm_bytes, sms)
        return self._append(Task("kernel", rank, stream, name, deps, ABSENT, *work))

    def delay(
        self,
        rank: int,
        delay_ps: int,
        *,
        stream: str = "compute",
        name: str = "",
        after: Iterable[int] = (),
    ) -> int:
        """Add a pause of `delay_ps` [ps]."""
        if delay_ps < 0:
            raise InputError(f"delay of rank {rank}: {delay_ps} ps; must be >= 0")
        deps = self._waits(rank, stream, after)
        return self._append(
            Task("delay", rank, stream, name, deps, delay_ps=delay_ps)
        )

    def marker(
        self,
        rank: int,
        name: str,
        *,
        stream: str = "compute",
        after: Iterable[int] = (),
    ) -> int:
        """Add a named moment."""
        return self.task(Task("marker", rank, stream, name=name), after)

    def wait(
        self, rank: int, tasks: int | Iterable[int], *, stream: str = "compute"
    ) -> None:
        """Make all later tasks of the stream depend on `tasks` as well."""
        awaited = (tasks,) if isinstance(tasks, int) else tuple(tasks)
        self._last[(rank, stream)] = self._last.get((rank, stream), ()) + awaited

    def push(
        self,
        operation: Callable[[Awaited], object],
        *,
        read: Names = (),
        mutate: Names = (),
    ) -> tuple[int, ...]:
        """Add an operation with dependencies from the variables that it reads and mutates.

        Parameters
        ----------
        operation : callable
            Adds tasks to this builder, on any streams and ranks; the first must wait for its argument: ``after``
            of a kernel, ``after.by_rank`` of a collective.
        read, mutate : sequence, or dict of int to sequence
            Names of variables; one that is in both is mutated. Names by rank are variables of that rank.

        Returns
        -------
        tuple of int
            The operation's last tasks.

        Raises
        ------
        InputError
            The operation added no task, or tasks that do not wait.

        Examples
        --------
        >>> builder = ProgramBuilder(1)
        >>> def load(after):
        ...     return builder.kernel(0, compute_ps=10, stream="copies", after=after)
        >>> def add(after):
        ...     return builder.kernel(0, compute_ps=10, stream="compute", after=after)
        >>> builder.push(load, mutate=["A"]), builder.push(add, read=["A"], mutate=["B"])
        ((0,), (1,))
        >>> builder.build().tasks[1].deps
        (0,)
        """
        return self._variables.push(self._tasks, operation, read, mutate)

    def call(self, call: CollectiveCall) -> int:
        """Add a collective call and return its index."""
        self._calls.append(call)
        return len(self._calls) - 1

    @property
    def last_call(self) -> CollectiveCall:
        """The collective call that was added last."""
        return self._calls[-1]

    def assign(self, task: int, call: int) -> None:
        """Let a program task belong to a call that was added after it."""
        self._tasks[task] = replace(self._tasks[task], call=call)

    def template(
        self,
        name: str,
        prims: Iterable[Prim],
        nchunks: int = 1,
        mode: Mode = "interleaved",
    ) -> int:
        """Return the index of a template with these primitives, sharing equal ones.

        Passing the same tuple object again skips the comparison.
        """
        key = id(prims), name, nchunks, mode
        if key in self._by_tuple:
            return self._by_tuple[key][1]
        template = Template(name, tuple(prims), nchunks, mode)
        index = self._templates.setdefault(template, len(self._templates))
        if isinstance(prims, tuple):  # keeps the tuple alive while its id is a key
            self._by_tuple[key] = prims, index
        return index

    def shared_template(
        self,
        key: Hashable,
        name: str,
        make: Callable[[], Iterable[Prim]],
        nchunks: int = 1,
        mode: Mode = "interleaved",
    ) -> int:
        """Return the index of the template of many primitives that `make` returns, called once per `key`."""
        if key not in self._shared:
            self._shared[key] = self.template(name, make(), nchunks, mode)
        return self._shared[key]

    def connection(self, connection: Connection) -> int:
        """Add a connection and return its index."""
        self._connections.append(connection)
        return len(self._connections) - 1

    def new_group(self) -> int:
        """Return the number of a new aggregation group: the `key` of its connections."""
        self._groups += 1
        return self._groups - 1

    def instance(self, instance: Instance) -> None:
        """Add an instance of a template."""
        self._instances.append(instance)

    def build(self) -> Schedule:
        """Return the checked schedule."""
        instances = sorted(self._instances, key=attrgetter("task"))
        schedule = Schedule(
            self.name,
            self.num_ranks,
            tuple(self._calls),
            tuple(self._templates),
            tuple(self._connections),
            tuple(instances),
            tuple(self._tasks),
        )
        validate(schedule)
        return schedule


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


@dataclass(frozen=True, slots=True)
class Site:
    """Target of appended tasks: a schedule under construction, the stream of its ranks, and dependencies.

    Attributes
    ----------
    after : sequence of iterable of int, or None
        Dependencies beside the stream's order, per rank of the group in its order.
    """

    builder: ProgramBuilder
    stream: str = "comm0"
    after: Sequence[Iterable[int]] | None = None


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
