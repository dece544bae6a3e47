"""Groups of ranks that span nodes: layout, and rings and trees that cross the network once per node.

**Hardware** NCCL orders rings node by node, enters a node at the GPU next to the NIC of the channel and
leaves it over the same NIC number, so that traffic stays on its rail; trees are chains inside nodes and double
binary trees over them (``src/graph/{rings,trees}.cc``). **Model** The same: channel ``c`` uses rail ``c`` modulo the
number of NICs; a path through a node leads from the GPU nearest to that NIC to another equally near one, or to the
GPU before it. On direct meshes the path is a ring of `orders` cut open, and channels use the rail that suits their
ring. **Not modelled** NCCL's search over NICs and paths. **Parameters** `Rails`, the rings of `orders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.topology.rails import Rails


@dataclass(frozen=True, slots=True)
class Passage:
    """A way through the positions of one node; `links` pins its hops, -1 is not pinned."""

    order: tuple[int, ...]
    links: tuple[int, ...]

    def from_position(self, first: int) -> Passage:
        """Return a passage through the same positions that begins with `first`; only pins before the cut stay."""
        if self.order[0] == first:
            return self
        at = self.order.index(first)
        order = (*self.order[at:], *self.order[:at])
        links = (*self.links[at:], -1, *self.links[: max(0, at - 1)])
        return Passage(order, links[: len(order) - 1])


@dataclass(slots=True)
class Layout:
    """The positions of a group by node.

    Attributes
    ----------
    machines : list of list of int
        Positions of each node, in the order of the group.
    rails : Rails or None
        NICs; None if the fabric is not known.
    live : list of int
        Rails on the network in every node.
    """

    machines: list[list[int]]
    ranks: tuple[int, ...] = ()
    rails: Rails | None = None
    live: list[int] = field(default_factory=list)
    _usage: dict[int, int] = field(default_factory=dict)

    @property
    def local_size(self) -> int:
        """Positions of every node, if all have the same number; else 0."""
        sizes = {len(positions) for positions in self.machines}
        return sizes.pop() if len(sizes) == 1 else 0

    def even(self, algorithm: str) -> int:
        """Return the positions per node; raises `InputError` unless all nodes have the same number."""
        if not self.local_size:
            sizes = sorted({len(positions) for positions in self.machines})
            raise InputError(
                f"{algorithm}: nodes take part with {sizes[0]} to {sizes[-1]} ranks; it needs the same number"
                " in each, use ring or tree"
            )
        return self.local_size

    def heads(self, machine: int, rail: int) -> list[int]:
        """Return the positions of a node that are nearest to a NIC, the NIC's GPU first."""
        positions = self.machines[machine]
        if self.rails is None or rail < 0:
            return positions[:1]
        place = {self.ranks[position]: position for position in positions}
        return [
            place[rank] for rank in self.rails.heads(list(place), rail)
        ] or positions[:1]

    def passage(self, machine: int, rail: int) -> Passage:
        """Return the path from NIC `rail` and back through a node with all-to-all connected GPUs."""
        positions, heads = self.machines[machine], self.heads(machine, rail)
        at = positions.index(heads[0])
        order = positions[at:] + positions[:at]
        if len(heads) > 1:
            order.remove(heads[1])
            order.append(heads[1])
        return Passage(tuple(order), (-1,) * (len(order) - 1))

    def fit(self, machine: int, passage: Passage, rail: int) -> int:
        """Return the number of ends of a passage that are nearest to a NIC: 0, 1 or 2."""
        heads = self.heads(machine, rail)
        return (passage.order[0] in heads) + (passage.order[-1] in heads)

    def rail(self, channel: int) -> int:
        """Return the rail of a channel if all rails are equally suited; -1 if there is none."""
        return self.live[channel % len(self.live)] if self.live else -1

    def take_rail(self, fits: Sequence[int], channel: int) -> int:
        """Return the rail of `channel` and count its use: the best of `fits` (per live rail), then the least used."""
        count = len(fits)
        best = min(
            range(count),
            key=lambda r: (-fits[r], self._usage.get(r, 0), (r - channel) % count),
        )
        self._usage[best] = self._usage.get(best, 0) + 1
        return self.live[best]


def find_layout(fabric: Fabric | None, ranks: Sequence[int]) -> Layout | None:
    """Return the nodes of a group's positions, or None if all are in one node (or nothing is known)."""
    if fabric is None or fabric.num_zones < 2:
        return None
    arrays = arrays_of(fabric)
    by_zone: dict[int, list[int]] = {}
    for position, rank in enumerate(ranks):
        by_zone.setdefault(arrays.zone_of(rank), []).append(position)
    if len(by_zone) < 2:
        return None
    rails = Rails(arrays)
    machines = list(by_zone.values())
    live = _near_rails(rails, ranks, machines, rails.live(by_zone))
    return Layout(machines, tuple(ranks), rails, live)


def _near_rails(
    rails: Rails,
    ranks: Sequence[int],
    machines: Sequence[Sequence[int]],
    live: list[int],
) -> list[int]:
    """Return the rails in `live` that are nearest to a participating rank in every node.

    NCCL's search starts from the NICs that are near to the GPUs of the communicator: one GPU per node uses its local
    NIC, not those of idle neighbours. If no rail is near in all nodes, all remain.
    """
    nearest = [
        set().union(*(rails.nearest_rails(ranks[position]) for position in machine))
        for machine in machines
    ]
    common = set.intersection(*nearest) if nearest else set()
    return [rail for rail in live if rail in common] or live


def even_layout(fabric: Fabric | None, ranks: Sequence[int]) -> Layout:
    """Return where the positions are; without a fabric two halves, or a node for each if they are odd in number."""
    result = find_layout(fabric, ranks)
    if result is not None:
        return result
    size = len(ranks)
    if fabric is not None:
        return Layout([list(range(size))], tuple(ranks))
    if size % 2:
        return Layout([[position] for position in range(size)], tuple(ranks))
    half = size // 2
    return Layout([list(range(half)), list(range(half, size))], tuple(ranks))
