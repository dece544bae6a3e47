"""Groups of jobs whose ranks all do the same work: those of one rank, and their peer groups.

Ranks fill nodes in order; rank 0's groups have equal distances.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.errors import InputError
from clusim.formats.recordings.model import tile

RankGroups = tuple[tuple[int, ...], ...]


def split_of(ranks: Sequence[int], size: int) -> tuple[int, RankGroups]:
    """Return the number of nodes of a group, and the GPUs per node of it and its peer groups.

    Parameters
    ----------
    size : int
        GPUs per node.

    Raises
    ------
    InputError
        The group does not have the same GPUs on every node, or they are not part of a regular division.
    """
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    machines = sorted({rank // size for rank in ranks})
    local = tuple(rank % size for rank in ranks if rank // size == machines[0])
    span = local[-1] - local[0] + 1 if len(machines) == 1 else size
    apart = min(stride, size)
    regular = len(local) * len(machines) == len(ranks) and all(
        rank == machines[at // len(local)] * size + local[at % len(local)]
        for at, rank in enumerate(ranks)
    )
    block = apart * len(local)
    if (
        not regular
        or size % block
        or (len(local) > 1 and span > block)
        or local[0] != 0
    ):
        raise InputError(
            f"groups of {len(ranks)} ranks at stride {stride} do not divide nodes of {size} GPUs evenly"
        )
    parts = [
        tuple(first + gpu for gpu in local)
        for start in range(0, size, block)
        for first in range(start, start + apart)
    ]
    return len(machines), tuple(parts)


def whole_groups(ranks: Sequence[int], num_ranks: int) -> RankGroups | None:
    """Return a group and its peer groups; None if they are not a regular grid of all ranks."""
    tiles = {tile(ranks, rank) for rank in range(num_ranks)}
    groups = tuple(sorted(group for group in tiles if group is not None))
    complete = sorted(rank for group in groups for rank in group) == list(
        range(num_ranks)
    )
    return groups if complete else None


def groups_on(nodes: int, ranks: Sequence[int], size: int) -> RankGroups:
    """Return a group and its peer groups on a smaller number of nodes, of `size` GPUs each.

    Raises
    ------
    InputError
        As `split_of`.
    """
    machines, parts = split_of(ranks, size)
    span = min(machines, nodes)
    return tuple(
        tuple(
            node * size + gpu for node in range(first, first + span) for gpu in part
        )
        for first in range(0, nodes - span + 1, span)
        for part in parts
    )
