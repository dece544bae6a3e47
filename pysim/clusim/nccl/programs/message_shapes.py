"""Shapes of sends and receives: parts of a message, its protocol, chunks and warps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusim.nccl.constants import since
from clusim.schedule.shapes import Shape, shape_of
from clusim.topology.model import Fabric

if TYPE_CHECKING:
    from clusim.nccl.communicator import Communicator

KIB = 1024

STEP = 512 * KIB
LONGEST = 8 * STEP
"""Size from which all messages are cut equally [bytes]."""

LL_THRESHOLD = 16 * KIB
"""Bytes per channel up to which messages inside a node use LL (``NCCL_P2P_LL_THRESHOLD``)."""


def message_parts(
    comm: Communicator, num_bytes: int, step: int = STEP
) -> tuple[int, int]:
    """Return the number of parts of a message and the part size [bytes]; `step` is its FIFO step."""
    nodes = comm.group.num_nodes
    min_part = step // 2 if nodes > 1 else step // 8
    max_part = step if nodes > 1 else step * 32
    count = comm.p2p_per_peer
    given_bytes, num_bytes = num_bytes, max(num_bytes, comm.p2p_least_bytes)
    while count > 1 and count * comm.group.num_ranks > comm.p2p_channels:
        count //= 2
    part = max(min_part, -(-num_bytes // count))
    while part > max_part and count <= comm.p2p_per_peer // 2:
        count *= 2
        part = -(-num_bytes // count)
    part = -(-part // 512) * 512
    count = max(1, -(-num_bytes // part))
    return count, part if given_bytes == num_bytes else -(
        -given_bytes // (count * 16)
    ) * 16


def message_class(comm: Communicator, fabric: Fabric, num_bytes: int) -> int:
    """Return the least power of two cut like messages of `num_bytes`, on as many channels."""
    result = 1 << max(0, num_bytes.bit_length() - 1)
    cut = _cut(comm, fabric, num_bytes)
    while result > 1 and _cut(comm, fabric, result // 2) == cut:
        result //= 2
    return result if _cut(comm, fabric, result) == cut else num_bytes


def _cut(comm: Communicator, fabric: Fabric, num_bytes: int) -> tuple[Any, ...]:
    shapes = [
        shape_of_message(comm, fabric, num_bytes, same) for same in (True, False)
    ]
    return message_parts(comm, num_bytes)[0], shapes


def early_ll(comm: Communicator, num_bytes: int, same: bool) -> bool:
    """Return True if a message uses LL and is cut for it, as in releases that choose the protocol first.

    They use LL for all sizes that LL could carry on all channels of a pair; later ones cut for Simple, then count the
    parts.
    """
    late = since(comm.version, "messages are cut for simple")
    if late or not since(comm.version, "messages of ll by all channels"):
        return False
    return same and num_bytes <= comm.p2p_per_peer * LL_THRESHOLD


def shape_of_message(
    comm: Communicator, fabric: Fabric, num_bytes: int, same: bool
) -> tuple[str, Shape]:
    """Return the protocol of a message, inside a node if `same`, and how it is cut."""
    channels = message_parts(comm, num_bytes)[0]
    num_bytes = max(num_bytes, comm.p2p_least_bytes)
    if early_ll(comm, num_bytes, same) or (
        same and num_bytes <= channels * LL_THRESHOLD
    ):
        return "ll", shape_of("ll", protocols=fabric.protocols)
    base = shape_of("simple", protocols=fabric.protocols)
    nvlink = same and comm.group.num_nodes == 1 and comm.group.nvlink_only
    settings = comm.settings
    chunk = settings.p2p_nvl_chunksize if nvlink else settings.p2p_pci_chunksize
    chunk = chunk or (STEP if nvlink else 128 * KIB)
    if not same:
        chunk = settings.p2p_net_chunksize or 128 * KIB
        if num_bytes < STEP:
            chunk //= 4
        elif num_bytes < LONGEST:
            chunk //= 2
    fifo = (settings.buffsize or base.slots * base.chunk_bytes) // base.slots
    chunk = max(512, min(chunk, base.chunk_bytes, fifo) // 16 * 16)
    return "simple", Shape(chunk, 1, base.slots, 1, 16)
