"""Entries of the algorithm registry, and helpers shared by all collective algorithms.

A decorator creates an entry from a writer function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import OPERATIONS
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import Shape, shape_of, whole_shape
from clusim.topology.model import Fabric

if TYPE_CHECKING:
    from clusim.collectives.rings_and_trees import Hop, Ring, Tree


def in_turn(count: int, channel: int, channels: int) -> list[int]:
    """Return 0 .. `count` - 1 as a rotation that differs by channel.

    At any time the channels of a rank that visit their peers in this order are spread over all peers, and so are
    the channels that visit one rank. On direct meshes a link is idle while no channel visits its peer.
    """
    first = (
        channel * count // channels if channels < count else channel % max(1, count)
    )
    return [(first + index) % count for index in range(count)]


def chunk_prims(
    prim: Prim, chunks: Sequence[int], position: int, nchunks: int
) -> list[Prim]:
    """Return `prim` for each chunk in order, merging runs of equal steps into one primitive.

    Chunk numbers are written relative to `position`, the rotation of the instance, so that ranks whose
    programs are rotations of each other share a template.
    """
    prims: list[Prim] = []
    start = 0
    while start < len(chunks):
        end, step = start + 1, 0
        if end < len(chunks):
            step = _signed_difference(chunks[end] - chunks[start], nchunks)
            while (
                end < len(chunks)
                and _signed_difference(chunks[end] - chunks[end - 1], nchunks)
                == step
            ):
                end += 1
        base = _signed_difference(chunks[start] - position, nchunks)
        prims.append(replace(prim, base=base, coef=1, step=step, repeat=end - start))
        start = end
    return prims


def _signed_difference(difference: int, modulus: int) -> int:
    """Return the representative of a difference that is nearest to zero."""
    wrapped = difference % modulus
    return wrapped - modulus if wrapped > modulus // 2 else wrapped


def connect_ring(writer: CollectiveWriter, ring: Ring, channel: int) -> list[int]:
    """Return the connections of a ring's hops; hop `i` leaves ring index `i`."""
    size = len(ring.order)
    pipes = []
    for hop, src in enumerate(ring.order):
        fields = hop_fields(ring.hop(hop))
        pipes.append(
            writer.connect(src, ring.order[(hop + 1) % size], channel, **fields)
        )
    return pipes


def connect_tree(
    writer: CollectiveWriter, tree: Tree, channel: int, *, down: bool
) -> dict[int, int]:
    """Return the connection between each position and its parent: up the tree, or down."""
    pipes = {}
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            fields = hop_fields(tree.hop(child, down=down))
            ends = (parent, child) if down else (child, parent)
            pipes[child] = writer.connect(*ends, channel, **fields)
    return pipes


def hop_fields(hop: Hop) -> dict[str, Any]:
    """Return the `Connection` fields for a hop."""
    fields: dict[str, Any] = (
        {} if hop.link < 0 else {"policy": "pinned", "key": hop.link}
    )
    if hop.rail_in >= 0:
        fields["rail"] = hop.rail_in
        if hop.rail_out != hop.rail_in:
            fields["rail_out"] = hop.rail_out
    return fields


def connect_all(
    writer: CollectiveWriter,
    sources: Iterable[int],
    targets: Iterable[int],
    channel: int,
    **fields: Any,
) -> dict[tuple[int, int], int]:
    """Return a connection from every source to every other target; `fields` as in `Connection`."""
    peers = list(targets)
    pairs = [(a, b) for a in sources for b in peers if a != b]
    return {(a, b): writer.connect(a, b, channel, **fields) for a, b in pairs}


def connect_flags(
    writer: CollectiveWriter, channel: int, positions: Sequence[int] | None = None
) -> dict[tuple[int, int], int]:
    """Return a flag connection between every pair of positions, each to itself included, by their indices."""
    ends = list(enumerate(range(writer.size) if positions is None else positions))
    return {(i, j): writer.flag(a, b, channel) for i, a in ends for j, b in ends}


Writer = Callable[[CollectiveWriter, Fabric | None], None]
Shaper = Callable[[CollectiveCall, Fabric | None], Shape]
W = TypeVar("W", bound=Callable[..., None])

RANKS: dict[str, Callable[[int], bool]] = {
    "any number": lambda count: count > 0,
    "a power of two": lambda count: count & (count - 1) == 0,
}
"""Requirements of an algorithm on the number of its ranks."""


GROWTHS = {
    "steps": "a step of equal bytes per rank, sent to one neighbour",
    "node steps": "a step of equal bytes per node, in rings over nodes that share NICs",
    "exchange": "a step of equal bytes per rank, sent to all others",
    "levels": "a level of a tree, with equal bytes on every node",
    "": "not known",
}
"""Growths of a collective's time with the number of nodes, by which it can be extrapolated."""


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """An algorithm of an operation.

    Attributes
    ----------
    operation, name : str
        As in ``clusim run --collective OPERATION --algorithm NAME``.
    write : callable
        Writes the programs of a `CollectiveWriter`.
    shape : callable
        Chooses chunk, slice and slot sizes for a call.
    ranks : str
        Required number of ranks, a key of `RANKS`.
    default : bool
        True if it runs where no algorithm is named; one for each operation.
    channels : str
        Key of the default channel count in `Fabric.channels`, if not the algorithm's name.
    drop_channels : bool
        True if small sizes use fewer channels.
    paired : bool
        True if each half of the channels completes the other's work: their default number is even, or one for sizes
        that are not worth two.
    many_peers : bool
        True if a rank exchanges with many others at once, each channel with one at a time: on a direct mesh there is a
        channel for every neighbour.
    protocols : tuple of str
        Supported protocols; empty for all.
    blocks : callable or None
        Returns the default channels for a size [bytes] and a number of ranks, on every fabric.
    prelude_ps : int or None
        Time of an inference engine's kernel before its first data [ps]; None for other kernels.
    growth : str
        Growth of the time with the number of nodes, a key of `GROWTHS`; empty is not known.
    """

    operation: str
    name: str
    write: Writer
    shape: Shaper
    ranks: str = "any number"
    default: bool = False
    channels: str = ""
    drop_channels: bool = True
    paired: bool = False
    many_peers: bool = False
    protocols: tuple[str, ...] = ()
    blocks: Callable[[int, int], int] | None = None
    prelude_ps: int | None = None
    growth: str = ""

    @property
    def has_root(self) -> bool:
        """True if its operation has a root."""
        return OPERATIONS[self.operation].rooted

    def fits(self, num_ranks: int) -> bool:
        """Return True if the algorithm is defined for a number of ranks."""
        return RANKS[self.ranks](num_ranks)

    def check_ranks(self, num_ranks: int) -> None:
        """Raise `InputError` unless the algorithm is defined for a number of ranks."""
        if not self.fits(num_ranks):
            alternatives = [
                entry.name
                for entry in sorted(
                    ENTRIES.values(), key=lambda entry: not entry.default
                )
                if entry.operation == self.operation and entry.fits(num_ranks)
            ]
            raise InputError(
                f"{self.operation} by {self.name}: {num_ranks} ranks; it needs {self.ranks}"
                + (f", use {' or '.join(alternatives[:2])}" if alternatives else "")
            )


ENTRIES: dict[tuple[str, str], AlgorithmEntry] = {}
"""Decorated functions by operation and name, in the order in which their files were imported."""


def step_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return chunks of one slot, as for algorithms whose steps depend on each other."""
    return shape_of(call.protocol, protocols=fabric.protocols if fabric else None)


def ring_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the chunks of NCCL's rings."""
    return shape_of(
        call.protocol, ring=True, protocols=fabric.protocols if fabric else None
    )


def message_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return one chunk for the complete message."""
    return whole_shape(call.bytes)


def algorithm(
    operation: str, name: str, shape: Shaper = step_shape, **options: Any
) -> Callable[[W], W]:
    """Register the decorated function; `options` are further fields of its `AlgorithmEntry`."""

    def register(write: W) -> W:
        assert (operation, name) not in ENTRIES, (
            f"{operation} has two algorithms {name}"
        )
        entry = AlgorithmEntry(operation, name, write, shape, **options)
        assert entry.ranks in RANKS, f"ranks: one of {', '.join(RANKS)}"
        assert entry.growth in GROWTHS, f"growth: one of {', '.join(GROWTHS)}"
        ENTRIES[operation, name] = entry
        return write

    return register
