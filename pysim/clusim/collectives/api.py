"""Schedules of collectives by name, with checked arguments.

The algorithms are those of the modules in `clusim.collectives.algorithms`, and of extensions: modules that other
distributions name in the entry point group ``clusim.algorithms``. Extensions are imported for a name that clusim does
not define, and when names are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TypedDict, Unpack

from clusim.base.errors import InputError, ScheduleError, suggest
from clusim.base.extensions import extensions
from clusim.base.terms.dtypes import redop_named
from clusim.base.terms.operations import (
    OPERATIONS,
    operation_named,
    own_word,
    protocol_named,
)
from clusim.collectives import algorithms
from clusim.collectives.entry import ENTRIES, AlgorithmEntry
from clusim.collectives.machines import find_layout
from clusim.collectives.rings_and_trees import direct_links
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.collective_writer import CollectiveWriter, check_call
from clusim.schedule.dtypes import element
from clusim.schedule.ir import ABSENT, MOST_PROGRAMS, CollectiveCall, Schedule
from clusim.schedule.shapes import Shape, default_channels
from clusim.topology.model import Fabric


def _sorted_entries() -> dict[tuple[str, str], AlgorithmEntry]:
    places = {operation: place for place, operation in enumerate(OPERATIONS)}
    result = ENTRIES.values()
    entries = sorted(
        result, key=lambda e: (places[e.operation], not e.default, e.name)
    )
    return {(entry.operation, entry.name): entry for entry in entries}


for _module in iter_modules(algorithms.__path__):
    import_module(f"{algorithms.__name__}.{_module.name}")

REGISTRY = _sorted_entries()
"""Every algorithm by (operation, name); the first of an operation is its default."""


def _algorithms() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for operation, algorithm in REGISTRY:
        names[operation] = (*names.get(operation, ()), algorithm)
    return names


ALGORITHMS = _algorithms()
"""Names of the algorithms of every operation; the first is the default."""


@cache
def load_extensions() -> None:
    """Add the algorithms of extensions to `REGISTRY` and `ALGORITHMS`.

    Raises
    ------
    InputError
        An extension cannot be imported, defines an algorithm twice, or a default; the message names its distribution.
    """
    for extension in extensions("clusim.algorithms").values():
        before = set(ENTRIES)
        extension.module()
        for key in ENTRIES.keys() - before:
            entry = ENTRIES[key]
            if entry.default:
                raise extension.failure(
                    f"{entry.name} is a default; only clusim has defaults"
                )
            ENTRIES[key] = replace(entry, write=extension.guard(entry.write))
    REGISTRY.update(_sorted_entries())
    ALGORITHMS.update(_algorithms())


class Options(TypedDict, total=False):
    """Options every collective takes.

    Attributes
    ----------
    ranks : sequence of int
        The group, in its order; by default all ranks of the fabric.
    channels : int
        Channels, 1..64; by default the fabric's, fewer for small sizes.
    protocol : str
        ``simple``, ``ll`` or ``ll128``.
    dtype, redop : str
        Element type and reduction operator.
    root : int
        Rank of the root, for rooted operations; by default the first of the group.
    shape : Shape
        Chunk, slice and slot sizes instead of the protocol's.
    """

    ranks: Sequence[int] | None
    channels: int | None
    protocol: str
    dtype: str
    redop: str
    root: int | None
    shape: Shape | None


def _find(name: str, algorithm: str | None) -> tuple[str, str, AlgorithmEntry]:
    """Return the names of an operation and of its algorithm, and the algorithm."""
    operation = operation_named(name, tuple(ALGORITHMS)).name
    chosen = own_word(algorithm) if algorithm else ALGORITHMS[operation][0]
    if (operation, chosen) not in REGISTRY:
        load_extensions()
    if (operation, chosen) not in REGISTRY:
        raise InputError(
            f"{operation}: unknown algorithm {chosen!r} (nccl is NCCL's choice)"
            f"{suggest(chosen, ALGORITHMS[operation])}"
        )
    return operation, chosen, REGISTRY[operation, chosen]


MOST_CHANNELS = 64
"""Most channels of a collective."""


MESSAGE_CHANNELS = 8
"""Most channels of messages between nodes (NCCL halves them until those of all peers fit), and of two-shot and
butterfly all-reduces, which have two connections for each pair of ranks.
"""


NIC_CHANNELS = 192
"""Most channels of all ranks of a node that may meet at one NIC: each needs a proxy there."""


def _over_machines(
    channels: int, fabric: Fabric | None, ranks: Sequence[int], key: str
) -> int:
    """Return the default channels of a group: if it spans nodes, every rail gets the same number."""
    layout = find_layout(fabric, ranks)
    if layout is None:
        return channels
    if key in ("p2p", "twoshot"):
        max_ranks = max(len(positions) for positions in layout.machines)
        return max(1, min(channels, MESSAGE_CHANNELS, NIC_CHANNELS // max_ranks))
    rails = max(1, len(layout.live))
    return max(channels, min(MOST_CHANNELS, -(-channels // rails) * rails))


def _check_nics(channels: int, fabric: Fabric | None, ranks: Sequence[int]) -> None:
    """Reject channels whose proxies do not fit on the GPU next to a NIC, before any program is written.

    Over PXN all GPUs of a node send to the NIC of each rail, a proxy per channel, in addition to that GPU's programs.
    """
    layout = find_layout(fabric, ranks)
    if fabric is None or layout is None or not fabric.pxn or len(layout.live) < 2:
        return
    max_ranks = max(len(positions) for positions in layout.machines)
    if channels * (max_ranks + 1) > MOST_PROGRAMS:
        raise ScheduleError(
            f"{channels} channels of messages between nodes of {max_ranks} ranks: a GPU has room for {MOST_PROGRAMS}"
            f" programs and proxies; use at most {MOST_PROGRAMS // (max_ranks + 1)} channels"
        )


def _side_by_side(channels: int, fabric: Fabric, ranks: Sequence[int]) -> int:
    """Return the default channels of an algorithm with many peers: on a direct mesh at least one per neighbour.

    A channel is with one peer at a time, and only the link to it carries data.
    """
    ends = Counter(end for a, b, _ in direct_links(fabric, ranks) for end in (a, b))
    return max(channels, min(MOST_CHANNELS, max(ends.values(), default=0)))


def make_call(
    target: Fabric | int, operation: str, name: str, bytes: int, options: Options
) -> CollectiveCall:
    """Return the checked call of an algorithm called `name`, with all defaults filled in."""
    fabric = None if isinstance(target, int) else target
    num_ranks = target if isinstance(target, int) else target.num_ranks
    algorithm = REGISTRY[operation, name]
    if not isinstance(bytes, int):
        raise InputError(
            f"{operation}: size {bytes!r}; must be an integer number of bytes"
        )
    rank_list = options.get("ranks")
    ranks = tuple(range(num_ranks) if rank_list is None else rank_list)
    first = algorithm.protocols[0] if algorithm.protocols else "simple"
    protocol = protocol_named(options.get("protocol") or first).key
    if algorithm.protocols and protocol not in algorithm.protocols:
        raise InputError(
            f"{name}: not with protocol {protocol}; use {', '.join(algorithm.protocols)}"
        )
    channels = options.get("channels")
    exchanging = algorithm.many_peers and algorithm.channels == "p2p"
    if channels is not None and (exchanging or algorithm.blocks is not None):
        _check_nics(channels, fabric, ranks)
    if channels is None and algorithm.blocks is not None:
        channels = _over_machines(
            algorithm.blocks(bytes, len(ranks)), fabric, ranks, "p2p"
        )
    elif channels is None:
        channels = fabric.num_channels(algorithm.channels or name) if fabric else 1
        if fabric and algorithm.many_peers:
            channels = _side_by_side(channels, fabric, ranks)
        channels = _over_machines(
            channels, fabric, ranks, algorithm.channels or name
        )
        if algorithm.paired:
            channels += channels % 2
        if algorithm.drop_channels:
            channels = default_channels(bytes, channels, protocol, len(ranks))
            if algorithm.paired and channels > 1:
                channels += channels % 2
    root = options.get("root")
    if not algorithm.has_root:
        if root is not None:
            raise InputError(f"{operation}: takes no root; leave out root {root}")
        root = ABSENT
    elif root is None:
        root = ranks[0] if ranks else ABSENT
    call = CollectiveCall(
        operation=operation,
        bytes=bytes,
        ranks=ranks,
        dtype=element(options.get("dtype") or "float32").name,
        redop=redop_named(options.get("redop") or "sum"),
        root=root,
        algorithm=name,
        protocol=protocol,
        channels=channels,
    )
    check_call(call, num_ranks)
    return call


def emit(
    builder: ProgramBuilder,
    target: Fabric | int,
    operation: str,
    algorithm: str | None,
    bytes: int,
    *,
    stream: str = "comm0",
    after: Sequence[Iterable[int]] | None = None,
    **options: Unpack[Options],
) -> tuple[int, ...]:
    """Append a collective to a schedule under construction and return its task of every position."""
    call, shape = cut(target, operation, algorithm, bytes, **options)
    writer = CollectiveWriter.add(builder, call, shape, stream=stream, after=after)
    fabric = None if isinstance(target, int) else target
    REGISTRY[call.operation, call.algorithm].write(writer, fabric)
    return writer.tasks


def cut(
    target: Fabric | int,
    operation: str,
    algorithm: str | None,
    bytes: int,
    **options: Unpack[Options],
) -> tuple[CollectiveCall, Shape]:
    """Return the checked call of a collective, with all defaults filled in, and its shape."""
    operation, name, entry = _find(operation, algorithm)
    call = make_call(target, operation, name, bytes, options)
    entry.check_ranks(len(call.ranks))
    fabric = None if isinstance(target, int) else target
    return call, options.get("shape") or entry.shape(call, fabric)


def build(
    fabric: Fabric | int,
    operation: str,
    algorithm: str | None = None,
    bytes: int = 0,
    **options: Unpack[Options],
) -> Schedule:
    """Return the schedule of one collective.

    Parameters
    ----------
    fabric : Fabric or int
        Topology, or only a number of ranks.
    operation, algorithm : str
        Names in `ALGORITHMS`, the operation's also with ``_`` or ``-`` between its words; without `algorithm` the
        operation's first.
    bytes : int
        Size [bytes], as in `CollectiveCall.bytes`.
    **options
        See `Options`.
    """
    num_ranks = fabric if isinstance(fabric, int) else fabric.num_ranks
    operation, name, _ = _find(operation, algorithm)
    group = options.get("ranks")
    count = num_ranks if group is None else len(group)
    builder = ProgramBuilder(
        num_ranks, f"{operation} {name} {bytes} B on {count} ranks"
    )
    emit(builder, fabric, operation, name, bytes, **options)
    return builder.build()
