"""Which algorithms exist for which operation, and how each cuts its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusim.collectives import (
    alltoall,
    barrier,
    butterfly,
    chain,
    direct,
    gather,
    hierarchical,
    loadstore,
    lowlatency,
    multimem,
    naive,
    nvls,
    p2p,
    ring,
    sharp,
    tree,
)
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import CollectiveCall
from clusim.schedule.shapes import Shape, shape_of, whole_shape
from clusim.topology.model import Fabric

Writer = Callable[[CollectiveWriter, Fabric | None], None]
Shaper = Callable[[CollectiveCall, Fabric | None], Shape]


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """One way to do an operation.

    Attributes
    ----------
    write : callable
        Writes the programs of a `CollectiveWriter`.
    shape : callable
        Chooses chunk, slice and slot sizes for a call.
    channels : str
        Key of the default channel count in `Fabric.channels`, if not the algorithm's name.
    drop_channels : bool
        Whether small sizes use fewer channels.
    paired : bool
        Whether half of the channels do what the other half leaves to do: their default number is even, or one for sizes
        that are not worth two.
    many_peers : bool
        Whether a rank exchanges with many others at once, each channel with one at a time: on a direct mesh there is a
        channel for every neighbour.
    rooted : bool
        Whether the operation has a root.
    protocols : tuple of str
        Protocols it can use; empty for all.
    blocks : callable or None
        Returns the default channels for a size [bytes] and so many ranks, whatever the fabric has.
    prelude_ps : int or None
        Of kernels of inference engines: what theirs does before it moves data [ps].
    """

    write: Writer
    shape: Shaper
    channels: str = ""
    drop_channels: bool = True
    paired: bool = False
    many_peers: bool = False
    rooted: bool = False
    protocols: tuple[str, ...] = ()
    blocks: Callable[[int, int], int] | None = None
    prelude_ps: int | None = None


def _ring(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    return shape_of(call.protocol, ring=True, fabric=fabric)


def _step(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    return shape_of(call.protocol, fabric=fabric)


def _whole(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    return whole_shape(call.bytes)


def _nvls(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    return nvls.nvls_shape(call.bytes, call.channels, len(call.ranks))


def _tree(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return smaller chunks for sizes that would not fill the pipeline of a tree.

    NCCL up to 2.12 (``src/enqueue.cc``): 128, 64, 32 KiB below 8, 4, 1 chunks per channel and level.
    """
    shape = shape_of(call.protocol, fabric=fabric)
    depth = len(call.ranks).bit_length()
    if call.protocol != "simple":
        return shape
    for chunks, smaller in ((8, 128 * 1024), (4, 64 * 1024), (1, 32 * 1024)):
        if call.bytes < call.channels * shape.chunk_bytes * depth * chunks:
            shape = shape.with_chunk(min(shape.chunk_bytes, smaller))
    return shape


def _rooted(
    write: Writer,
    channels: str,
    shape: Shaper = _step,
    *,
    many_peers: bool = False,
    paired: bool = False,
) -> AlgorithmEntry:
    return AlgorithmEntry(
        write, shape, channels=channels, rooted=True, many_peers=many_peers, paired=paired
    )


def _blocks_nvls(write: Writer) -> AlgorithmEntry:
    return AlgorithmEntry(write, _nvls, channels="nvls", drop_channels=False, protocols=("simple",))


def _loads(write: Writer, blocks: Callable[[int, int], int] | None = None) -> AlgorithmEntry:
    return AlgorithmEntry(
        write,
        loadstore.pass_shape,
        channels="twoshot",
        many_peers=True,
        protocols=("simple",),
        blocks=blocks,
        prelude_ps=None if blocks is None else 0,
    )


def _multimem(write: Writer) -> AlgorithmEntry:
    return AlgorithmEntry(
        write,
        multimem.multimem_shape,
        channels="nvls",
        drop_channels=False,
        protocols=("simple",),
    )


def _blocks_ll(write: Writer) -> AlgorithmEntry:
    return AlgorithmEntry(
        write,
        lowlatency.twoshot_shape,
        channels="direct",
        drop_channels=False,
        many_peers=True,
        protocols=("ll",),
    )


REGISTRY: dict[tuple[str, str], AlgorithmEntry] = {
    ("allreduce", "ring"): AlgorithmEntry(ring.write_allreduce, _ring),
    ("allreduce", "tree"): AlgorithmEntry(tree.write_allreduce, _tree, paired=True),
    ("allreduce", "oneshot"): AlgorithmEntry(direct.write_oneshot, _step, many_peers=True),
    ("allreduce", "twoshot"): AlgorithmEntry(direct.write_twoshot, _step, many_peers=True),
    ("allreduce", "oneshot-ll"): AlgorithmEntry(
        lowlatency.write_oneshot,
        lowlatency.oneshot_shape,
        channels="oneshot",
        drop_channels=False,
        many_peers=True,
        protocols=("ll",),
    ),
    ("allreduce", "twoshot-ll"): AlgorithmEntry(
        lowlatency.write_twoshot,
        lowlatency.twoshot_shape,
        channels="twoshot",
        drop_channels=False,
        many_peers=True,
        protocols=("ll",),
    ),
    ("allreduce", "oneshot-lamport"): AlgorithmEntry(
        lowlatency.write_lamport,
        lowlatency.lamport_shape,
        channels="oneshot",
        many_peers=True,
        protocols=("simple",),
        blocks=lowlatency.blocks_of_lamport,
        prelude_ps=lowlatency.LAMPORT_PRELUDE_PS,
    ),
    ("allreduce", "oneshot-pull"): _loads(loadstore.write_oneshot, loadstore.blocks_of_oneshot),
    ("allreduce", "twoshot-pull"): _loads(loadstore.write_twoshot, loadstore.blocks_of_twoshot),
    ("allreduce", "ld-st"): _loads(loadstore.write_allreduce),
    ("allreduce", "multimem"): _multimem(multimem.write_allreduce),
    ("allreduce", "butterfly"): AlgorithmEntry(
        butterfly.write_allreduce, _step, channels="twoshot", many_peers=True
    ),
    ("allreduce", "nvls"): AlgorithmEntry(
        nvls.write_allreduce, _nvls, drop_channels=False, protocols=("simple",)
    ),
    ("allreduce", "hierarchical"): AlgorithmEntry(
        hierarchical.write_allreduce, _step, channels="ring", many_peers=True
    ),
    ("allreduce", "sharp"): AlgorithmEntry(
        sharp.write_allreduce,
        sharp.sharp_shape,
        channels="nvls",
        drop_channels=False,
        protocols=("simple",),
    ),
    ("allreduce", "naive"): AlgorithmEntry(naive.write_naive, _whole),
    ("allreduce", "driver"): AlgorithmEntry(naive.write_driver, _whole),
    ("reduce_scatter", "ring"): AlgorithmEntry(ring.write_reduce_scatter, _ring),
    ("reduce_scatter", "nvls"): _blocks_nvls(nvls.write_reduce_scatter),
    ("reduce_scatter", "direct"): AlgorithmEntry(
        direct.write_reduce_scatter, _step, many_peers=True
    ),
    ("reduce_scatter", "ll"): _blocks_ll(lowlatency.write_reduce_scatter),
    ("reduce_scatter", "multimem"): _multimem(multimem.write_reduce_scatter),
    ("reduce_scatter", "ld"): _loads(loadstore.write_reduce_scatter),
    ("all_gather", "ring"): AlgorithmEntry(ring.write_all_gather, _ring),
    ("all_gather", "nvls"): _blocks_nvls(nvls.write_all_gather),
    ("all_gather", "direct"): AlgorithmEntry(direct.write_all_gather, _step, many_peers=True),
    ("all_gather", "ll"): _blocks_ll(lowlatency.write_all_gather),
    ("all_gather", "multimem"): _multimem(multimem.write_all_gather),
    ("all_gather", "st"): _loads(loadstore.write_all_gather),
    ("broadcast", "ring"): _rooted(chain.write_broadcast, "ring"),
    ("broadcast", "tree"): _rooted(tree.write_broadcast, "tree", _tree, paired=True),
    ("reduce", "ring"): _rooted(chain.write_reduce, "ring"),
    ("reduce", "tree"): _rooted(tree.write_reduce, "tree", _tree, paired=True),
    ("gather", "direct"): _rooted(gather.write_gather, "p2p", many_peers=True),
    ("scatter", "direct"): _rooted(gather.write_scatter, "p2p", many_peers=True),
    ("alltoall", "direct"): AlgorithmEntry(
        alltoall.write_alltoall, _step, channels="p2p", many_peers=True
    ),
    ("sendrecv", "direct"): AlgorithmEntry(p2p.write_sendrecv, _step, channels="p2p"),
    ("send", "direct"): AlgorithmEntry(p2p.write_send, _step, channels="p2p"),
    ("barrier", "dissemination"): AlgorithmEntry(barrier.write_barrier, _step, drop_channels=False),
}
"""Every algorithm by (operation, name); the first of an operation is its default."""
