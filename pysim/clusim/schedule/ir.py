"""Schedule representation: the programs of all ranks as plain immutable descriptions.

A `Schedule` is a graph of tasks. A program task runs *instances*: each binds a *template* (a list
of primitives shared by ranks) to connections, a rotation and a range of the buffers of its
collective call. Engines see counts only; `clusim.schedule.semantics` also moves the data. Meaning
of every timing-relevant field: ``docs/model/contract.md``, sections 5, 7 and 9.

Every call has three buffers of `CollectiveCall.bytes` bytes per rank: ``input``, ``output`` and ``scratch``. A
chunk has the same position in all three.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from clusim.base.display import Columns, Shown, Summary, columns_of
from clusim.base.errors import ScheduleError
from clusim.base.records import dataclass
from clusim.base.units import format_size
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES

ABSENT = -1
"""Marks an absent index in a schedule."""

CTA_WARPS = 16
"""Warps of a CTA (512 threads) to which protocol throughputs refer; NCCL adds up to four."""

MOST_PROGRAMS = 256
"""Programs, and proxies of NICs, that an endpoint has room for at once."""

Buffer = Literal["input", "output", "scratch"]
Mode = Literal["interleaved", "blocked"]
ConnectionKind = Literal["data", "flag", "multimem", "aggregation"]
Policy = Literal["stripe", "pinned", "adaptive"]
TaskKind = Literal["program", "kernel", "delay", "marker"]


@dataclass(frozen=True, slots=True)
class Prim:
    """One primitive of a program, executed `repeat` times per loop.

    The source chunk is ``(base + coef*rotation + step*i) mod nchunks`` for ``i = 0 .. repeat-1``; the destination is
    the same chunk unless `dst_base` is given. Sizes always follow the source chunk.

    Attributes
    ----------
    op : str
        Name in `clusim.engine.image.OPCODES`.
    recv, send : int
        Index into the instance's connections, or `ABSENT`.
    sync : bool
        Moves a flag and no bytes; executed in every loop.
    src, dst : Buffer
        Buffers of local operands and of results.
    """

    op: str
    recv: int = ABSENT
    send: int = ABSENT
    base: int = 0
    coef: int = 0
    step: int = 0
    repeat: int = 1
    sync: bool = False
    src: Buffer = "input"
    dst: Buffer = "output"
    dst_base: int | None = None
    dst_coef: int = 0
    dst_step: int = 0

    def __post_init__(self) -> None:
        """Check that the opcode exists and has the connections it needs."""
        opcode = OPCODES.get(self.op)
        if opcode is None:
            raise ScheduleError(
                f"primitive {self.op!r}: unknown; use one of {', '.join(OPCODES)}"
            )
        needs_send = bool(
            opcode.flags & (Op.SEND | Op.MCAST | Op.REDUCE | Op.AGGREGATE)
        )
        if (self.recv != ABSENT) != bool(opcode.flags & Op.RECV):
            raise ScheduleError(
                f"primitive {self.op}: recv={self.recv} does not fit this opcode"
            )
        if (self.send != ABSENT) != needs_send:
            raise ScheduleError(
                f"primitive {self.op}: send={self.send} does not fit this opcode"
            )
        if self.repeat < 1:
            raise ScheduleError(
                f"primitive {self.op}: repeat={self.repeat}; must be >= 1"
            )


@dataclass(frozen=True, slots=True)
class Template:
    """Primitives that instances share: one loop over `nchunks` chunks.

    ``interleaved``: a loop covers `nchunks` consecutive chunks of the instance's range. ``blocked``: chunk `q`
    is block `q` of the buffer, and a loop covers the next piece of the same range of every block.
    """

    name: str
    prims: tuple[Prim, ...]
    nchunks: int = 1
    mode: Mode = "interleaved"

    @property
    def has_sync(self) -> bool:
        """True if a primitive is a sync primitive, so that at least one loop runs."""
        return any(prim.sync for prim in self.prims)


@dataclass(frozen=True, slots=True)
class Connection:
    """A FIFO of `slots` slots from one rank to another (or to all `members`, for ``multimem``).

    Attributes
    ----------
    src, dst : int
        Ranks; for ``multimem`` and ``aggregation`` both are the requesting rank.
    channel : int
        Channel of the connection; between nodes it also chooses among equally near NICs.
    kind : ConnectionKind
        ``data`` (written by the sender or read by the receiver, as set in the topology), ``flag`` (no data
        on wires), ``multimem`` (multicast and in-network reduction over `members`), ``aggregation``
        (reduction over `members` in the switches between nodes; `key` is the number of the group, in
        which every member has one connection).
    policy : Policy
        Distribution of packets over parallel first wires.
    key : int
        Stripe offset (``stripe``) or link number (``pinned``).
    protocol : str
        ``simple``, ``ll`` or ``ll128``.
    path : tuple of str
        Names of the graph nodes on an explicit path from `src` to `dst`, both included; empty for routed.
    rail : int
        NIC index in both nodes; `ABSENT` leaves the choice to the lowering.
    rail_out : int
        NIC index of the sender, if it differs from the receiver's.
    moved : str
        ``push`` (the sender writes) or ``pull`` (the receiver reads): overrides the topology's setting over NVLink.
    """

    src: int
    dst: int
    channel: int = 0
    kind: ConnectionKind = "data"
    policy: Policy = "stripe"
    key: int = 0
    slots: int = 8
    protocol: str = "simple"
    members: tuple[int, ...] = ()
    path: tuple[str, ...] = ()
    rail: int = ABSENT
    rail_out: int = ABSENT
    moved: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call of a collective: operation, size, ranks and algorithm.

    `bytes` is the size of the largest per-rank buffer: the vector of an all-reduce, broadcast or reduce, the
    gathered result of an all-gather or gather, the input of a reduce-scatter, scatter or all-to-all. `in_place` means
    that the outputs are the inputs: they begin with the inputs' data.
    """

    operation: str
    bytes: int
    ranks: tuple[int, ...]
    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT
    algorithm: str = "custom"
    protocol: str = "simple"
    channels: int = 1
    block_bytes: int = 0
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A template bound to a rank: one CTA's program (contract, section 7).

    Attributes
    ----------
    offset, length : int
        Covered range of the buffer (interleaved) or of every block (blocked) [bytes].
    chunk_bytes, stride, limit, slice_min : int
        Chunk size, distance of blocks, end of the buffer, least slice size [bytes].
    fixed_div : int
        One fixed protocol cost is paid per `fixed_div` slices: primitives that hardware does in one step
        (polling all members' flags with one load) share it.
    warps : float
        Number of a CTA's 16 warps that execute the instance; its throughput is this share of a CTA's.
    sm : int
        SMs held by the instance.
    start_ps : int
        Time from the start of its CTA to its first step [ps].
    shared : bool
        True if many connections share its buffers for other nodes, so that a step may have any position.
    """

    task: int
    rank: int
    template: int
    connections: tuple[int, ...] = ()
    channel: int = 0
    rotation: int = 0
    offset: int = 0
    length: int = 0
    chunk_bytes: int = 16
    stride: int = 0
    limit: int = 0
    align: int = 16
    slices: int = 1
    slots_per_slice: int = 1
    slice_min: int = 16
    protocol: str = "simple"
    fixed_div: int = 1
    sm: int = 1
    warps: float = CTA_WARPS
    start_ps: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A node of the task graph: starts when all `deps` (task indices) are done.

    Attributes
    ----------
    kind : TaskKind
        ``program`` runs its instances; ``kernel`` computes; ``delay`` waits; ``marker`` only marks a time.
    call : int
        Index of the collective call a program belongs to, or `ABSENT`.
    compute_ps, delay_ps : int
        Time of a kernel with all its `sms`; length of a delay [ps].
    flops : int
        Floating-point operations of a kernel; with `precision` it replaces `compute_ps` if that is 0.
    mem_bytes : int
        Memory traffic of a kernel [bytes].
    """

    kind: TaskKind
    rank: int
    stream: str = "comm0"
    name: str = ""
    deps: tuple[int, ...] = ()
    call: int = ABSENT
    compute_ps: int = 0
    flops: int = 0
    precision: str = ""
    mem_bytes: int = 0
    sms: int = 0
    delay_ps: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(Shown):
    """Everything all ranks do. `instances` are sorted by task; indices refer to the tuples here."""

    name: str
    num_ranks: int
    calls: tuple[CollectiveCall, ...] = ()
    templates: tuple[Template, ...] = ()
    connections: tuple[Connection, ...] = ()
    instances: tuple[Instance, ...] = ()
    tasks: tuple[Task, ...] = ()

    def instances_of(self, task: int) -> range:
        """Return the indices of the instances of `task`."""
        low = bisect_left(self.instances, task, key=lambda item: item.task)
        return range(
            low, bisect_right(self.instances, task, key=lambda item: item.task)
        )

    def summary(self) -> Summary:
        """Return its calls, and the numbers of tasks and programs."""
        result = Counter(
            (c.operation, c.bytes, c.algorithm, len(c.ranks)) for c in self.calls
        )
        calls = {
            f"{operation} {format_size(size)} ({algorithm}, {ranks} ranks)": f"{count} x"
            for (operation, size, algorithm, ranks), count in result.most_common(8)
        }
        lines = (
            [*calls][:1]
            if len(result) == 1
            else [f"{len(self.calls):,} collectives"]
        )
        counts = (f"{len(self.tasks):,} tasks", f"{len(self.instances):,} programs")
        return Summary(
            self.name, (*lines, f"{self.num_ranks} ranks", *counts), rows=calls
        )

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return its tasks, calls, programs of single ranks and channels, and connections."""
        return {
            "tasks": lambda: columns_of(Task, self.tasks),
            "calls": lambda: columns_of(CollectiveCall, self.calls),
            "instances": lambda: columns_of(Instance, self.instances),
            "connections": lambda: columns_of(Connection, self.connections),
        }
