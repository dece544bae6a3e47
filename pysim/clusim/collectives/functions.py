"""One function per algorithm, for scripts: ``ring_allreduce(fabric, 1 << 20)``.

Each takes a fabric (or just a number of ranks), the size [bytes] and the options of
`clusim.collectives.Options`, and returns a `Schedule`.
"""

from __future__ import annotations

from typing import Unpack

from clusim.collectives.front import Options, build
from clusim.fabric.model import Fabric
from clusim.schedule.ir import Schedule

Target = Fabric | int


def ring_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce over rings."""
    return build(fabric, "allreduce", "ring", bytes, **options)


def tree_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce over two complementary binary trees."""
    return build(fabric, "allreduce", "tree", bytes, **options)


def oneshot_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in which everybody sends everything to everybody."""
    return build(fabric, "allreduce", "oneshot", bytes, **options)


def twoshot_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce as a direct reduce-scatter and a direct all-gather."""
    return build(fabric, "allreduce", "twoshot", bytes, **options)


def oneshot_ll_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in one step by packets that carry their flags, without handshake."""
    return build(fabric, "allreduce", "oneshot-ll", bytes, **options)


def twoshot_ll_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in two steps by packets that carry their flags, without handshake."""
    return build(fabric, "allreduce", "twoshot-ll", bytes, **options)


def multimem_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce of symmetric buffers by the switches, between two barriers."""
    return build(fabric, "allreduce", "multimem", bytes, **options)


def butterfly_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce by recursive halving and doubling."""
    return build(fabric, "allreduce", "butterfly", bytes, **options)


def nvls_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce by the reduction units of the switches."""
    return build(fabric, "allreduce", "nvls", bytes, **options)


def lamport_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in one step of stores without flags."""
    return build(fabric, "allreduce", "oneshot-lamport", bytes, **options)


def oneshot_pull_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in which every rank loads everything of everybody, between two barriers."""
    return build(fabric, "allreduce", "oneshot-pull", bytes, **options)


def twoshot_pull_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in two steps of loads, a barrier before each."""
    return build(fabric, "allreduce", "twoshot-pull", bytes, **options)


def ld_st_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce in which every rank loads its part of everybody and stores the sum to all, between two barriers."""
    return build(fabric, "allreduce", "ld-st", bytes, **options)


def hierarchical_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce inside machines, then in rings over the network, then inside machines again."""
    return build(fabric, "allreduce", "hierarchical", bytes, **options)


def sharp_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce by the reduction units of the switches between machines."""
    return build(fabric, "allreduce", "sharp", bytes, **options)


def naive_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce as the textbook's all-pairs exchange of whole vectors."""
    return build(fabric, "allreduce", "naive", bytes, **options)


def driver_allreduce(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """All-reduce at one driver rank, which then sends the result to each."""
    return build(fabric, "allreduce", "driver", bytes, **options)


def reduce_scatter(
    fabric: Target, bytes: int, algorithm: str = "ring", **options: Unpack[Options]
) -> Schedule:
    """Reduce `bytes` of every rank; rank `i` keeps block `i`."""
    return build(fabric, "reduce_scatter", algorithm, bytes, **options)


def all_gather(
    fabric: Target, bytes: int, algorithm: str = "ring", **options: Unpack[Options]
) -> Schedule:
    """Give every rank all blocks, `bytes` in total."""
    return build(fabric, "all_gather", algorithm, bytes, **options)


def broadcast(
    fabric: Target, bytes: int, algorithm: str = "ring", **options: Unpack[Options]
) -> Schedule:
    """Give every rank the root's `bytes`."""
    return build(fabric, "broadcast", algorithm, bytes, **options)


def reduce(
    fabric: Target, bytes: int, algorithm: str = "ring", **options: Unpack[Options]
) -> Schedule:
    """Reduce `bytes` of every rank at the root."""
    return build(fabric, "reduce", algorithm, bytes, **options)


def gather(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """Give the root all blocks, `bytes` in total."""
    return build(fabric, "gather", "direct", bytes, **options)


def scatter(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """Give rank `i` block `i` of the root's `bytes`."""
    return build(fabric, "scatter", "direct", bytes, **options)


def alltoall(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """Send block `i` of every rank's `bytes` to rank `i`."""
    return build(fabric, "alltoall", "direct", bytes, **options)


def sendrecv(fabric: Target, bytes: int, **options: Unpack[Options]) -> Schedule:
    """Send every rank's `bytes` to the next rank."""
    return build(fabric, "sendrecv", "direct", bytes, **options)


def barrier(fabric: Target, **options: Unpack[Options]) -> Schedule:
    """Let nobody go on before everybody has come."""
    return build(fabric, "barrier", "dissemination", 0, **options)
