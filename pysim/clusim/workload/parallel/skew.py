"""Expert imbalance: tokens of each rank's experts, and the all-to-all with uneven parts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusim.schedule.builder import CollectiveWriter, Part, ProgramBuilder
from clusim.schedule.ir import CollectiveCall, Prim
from clusim.schedule.shapes import shape_of
from clusim.topology.model import Fabric


def expert_loads(
    ranks: int, skew: float, capacity: float = 0.0, seed: int = 0, *, pad: bool = False
) -> list[float]:
    """Return the load of each rank's experts relative to the mean.

    The busiest rank has 1 + `skew`, at most `capacity`. The others decrease linearly, shuffled with `seed`,
    so that the mean is 1 before the limit is applied. With `pad` all are filled up to the limit.
    """
    if pad and capacity:
        return [capacity] * max(1, ranks)
    if ranks < 2 or skew <= 0:
        load = min(1.0, capacity) if capacity else 1.0
        return [load] * max(1, ranks)
    top = min(1 + skew, ranks)
    weights = [(ranks - 1 - i) / (ranks - 1) for i in range(ranks)]
    mean = sum(weights[1:]) / (ranks - 1)
    rest = (ranks - top) / (ranks - 1)
    others = [rest if mean == 0 else min(top, rest * w / mean) for w in weights[1:]]
    loads = [top, *others]
    scale = ranks / sum(loads)
    loads = [load * scale for load in loads]
    random.Random(seed).shuffle(loads)
    return [min(load, capacity) if capacity else load for load in loads]


@dataclass(frozen=True, slots=True)
class Uneven:
    """All-to-all of a group in which a rank receives in proportion to the load of its experts.

    Attributes
    ----------
    size_bytes : int
        Size that a rank receives with a load of 1 [bytes].
    loads : sequence of float
        Load of each rank's experts relative to the mean.
    back : bool
        True if a rank sends in proportion to its load: the results of experts return to the tokens' ranks.
    """

    group: Sequence[int]
    size_bytes: int
    loads: Sequence[float]
    back: bool = False

    def parts(self) -> list[int]:
        """Return the size that each rank's experts exchange with every other rank [bytes]."""
        share = self.size_bytes / len(self.group)
        return [max(16, round(share * load) // 16 * 16) for load in self.loads]


def write_uneven(
    builder: ProgramBuilder,
    fabric: Fabric,
    uneven: Uneven,
    stream: str,
    after: Mapping[int, Sequence[int]],
) -> tuple[tuple[int, ...], int]:
    """Add an uneven all-to-all; return its tasks and the bytes sent."""
    group, parts = uneven.group, uneven.parts()
    count = len(group)
    call = CollectiveCall("alltoallv", sum(parts), tuple(group), "uint8", algorithm="direct")
    shape = shape_of("simple", fabric=fabric)
    writer = CollectiveWriter.add(
        builder, call, shape, stream=stream, after=[after.get(rank, ()) for rank in group]
    )
    offsets = [sum(parts[:index]) for index in range(count)]
    for src in range(count):
        for hop in range(1, count):
            dst = (src + hop) % count
            expert = src if uneven.back else dst
            part = Part(hop % 8, offsets[expert], parts[expert])
            pipe = writer.connect(src, dst, part.channel)
            writer.program(src, part, [Prim("send", send=0)], [pipe], name="alltoallv send")
            writer.program(dst, part, [Prim("recv", recv=0)], [pipe], name="alltoallv recv", sm=0)
    return writer.tasks, (count - 1) * sum(parts)
