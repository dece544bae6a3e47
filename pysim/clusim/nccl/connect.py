"""From the channels inside each node to rings and trees over all of them.

A ring enters a node at the first GPU of its order and leaves at the last. Trees are chains inside a node and a
double binary tree between nodes: every node is a leaf in one of the two trees, so together they use both
directions of every NIC. Half of the channels follow the first tree, half the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from clusim.base.records import dataclass
from clusim.nccl.constants import Pattern, Version, since
from clusim.nccl.graph import Graph
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.topology.rails import Rails

NONE = -1


@dataclass(frozen=True, slots=True)
class SearchedMachine:
    """The ranks of a node, by the index of their GPU, and what the search found there.

    Attributes
    ----------
    adapters : tuple of tuple of str
        Per NIC that NCCL sees, the NICs of the fabric it consists of.
    gpus : tuple of str
        Names of the GPUs in the fabric, in the order of `ranks`.
    """

    ranks: tuple[int, ...]
    ring: Graph
    tree: Graph
    nvls: Graph
    adapters: tuple[tuple[str, ...], ...] = ()
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of a communicator.

    Attributes
    ----------
    ring : tuple of int
        All ranks in the order of the ring; the last sends to the first.
    parent : tuple of int
        Per rank, the rank it reduces into in the tree; -1 is the root.
    children : tuple of tuple of int
        Per rank, the ranks it gets data from: in its node first, then of other nodes.
    ring_adapters, tree_adapters : tuple of tuple of int
        Per node, the NIC the channel enters by and the one it leaves by; empty on one node.
    """

    ring: tuple[int, ...]
    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    ring_adapters: tuple[tuple[int, int], ...] = ()
    tree_adapters: tuple[tuple[int, int], ...] = ()


def binary_tree(count: int, node: int) -> tuple[int, int, int, int]:
    """Return parent, first and second child of a node, and which child of its parent it is (0 or 1).

    A node with lowest set bit b hangs below ``(node ^ b) | 2b`` if that exists and below ``node ^ b`` otherwise, so
    odd nodes are leaves. Missing relatives are -1.
    """
    if node == 0:
        top = 1
        while top < count:
            top *= 2
        return NONE, NONE, top // 2 if count > 1 else NONE, 0
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    if parent >= count:
        parent = node ^ bit
    low = bit >> 1
    first = node - low if low else NONE
    second = node + low if low else NONE
    while second >= count:
        low >>= 1
        second = node + low if low else NONE
    return parent, first, second, 0 if node < parent else 1


def double_tree(count: int, node: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return `binary_tree` of a node in both trees; the second is the mirror image, or shifted by one if odd."""
    first = binary_tree(count, node)
    if count % 2:
        moved = binary_tree(count, (node - 1) % count)
        back = [
            (other + 1) % count if other != NONE else NONE for other in moved[:3]
        ]
    else:
        moved = binary_tree(count, count - 1 - node)
        back = [count - 1 - other if other != NONE else NONE for other in moved[:3]]
    return first, (back[0], back[1], back[2], moved[3])


def tree_detour_ps(fabric: Fabric, num_nodes: int) -> int:
    """Return the latency of the way up and down NCCL's trees over nodes, beyond that of equally near nodes [ps].

    Of the tree and the node with the longest way; first NICs stand for all, neighbours in a tree for near nodes.
    """
    longest, local = [], []
    for which in (0, 1):
        parents = [
            double_tree(num_nodes, node)[which][0] for node in range(num_nodes)
        ]
        hops = _hops_ps(fabric, parents)
        if not hops:
            return 0
        local += [hop for hop in hops if hop]
        for leaf in range(num_nodes):
            path = [leaf]
            while parents[path[-1]] != NONE:
                path.append(parents[path[-1]])
            longest.append((sum(hops[node] for node in path), len(path) - 1))
    return 2 * max(
        (way_ps - levels * min(local) for way_ps, levels in longest if levels),
        default=0,
    )


def ring_trip_ps(fabric: Fabric, num_nodes: int) -> int:
    """Return the longest round trip between neighbouring nodes of a ring, without costs of messages [ps].

    The first NICs represent all. Ways hide in the least time to an acknowledgement.
    """
    hops = _hops_ps(fabric, [(node + 1) % num_nodes for node in range(num_nodes)])
    nics = [node.nic for node in fabric.nodes if node.nic is not None]
    least_ps = max((nic.ack_ps - nic.transit_ps for nic in nics), default=0)
    return max(2 * max(hops, default=0), least_ps)


def _hops_ps(fabric: Fabric, targets: Sequence[int]) -> list[int]:
    """Return the latency from every node to its target, 0 for `NONE` [ps]; empty if a node has no NIC."""
    arrays = arrays_of(fabric)
    rails = Rails(arrays)
    nics = [rails.nics(zone)[:1] for zone in range(len(targets))]
    if not all(nics):
        return []
    return [
        0
        if target == NONE
        else arrays.latency_ps(
            arrays.steps(int(arrays.targets["node"][nics[node][0]]), nics[target])
        )
        for node, target in enumerate(targets)
    ]


def _channel_parity(
    graph: Graph, number: int, channels: int, version: Version
) -> int:
    """Return 1 if a node uses the other channel of each pair.

    Where rings leave by another NIC than they enter, odd nodes swap the channels of a pair, so that every hop
    between nodes stays on its rail. Before 2.22 they also did so for rings that cross NICs at will.
    """
    crossing = graph.cross_nic == 2 or (
        graph.cross_nic == 1 and not since(version, "crossing rings keep pairs")
    )
    return int(crossing and channels % 2 == 0 and number % 2 == 1)


def connect(
    machines: Sequence[SearchedMachine],
    num_searched: int,
    num_channels: int,
    version: Version,
    tree_channels: int = 0,
) -> list[Channel]:
    """Return the channels of a communicator.

    Parameters
    ----------
    num_searched : int
        Channels every node has; they are repeated, the second time with the other tree, up to `num_channels`.
    tree_channels : int
        Most channels before the other tree follows; 0 is `num_searched`.
    """
    trees = [double_tree(len(machines), n) for n in range(len(machines))]
    rings = [_ring(machines, c, num_searched, version) for c in range(num_searched)]
    both = [
        [_tree(machines, c, trees, which) for c in range(num_searched)]
        for which in (0, 1)
    ]
    result: list[Channel] = []
    turn = min(num_searched, tree_channels or num_searched)
    for number in range(num_channels):
        # The first doubling adds the second tree; further doublings repeat both trees.
        c, which = number % num_searched, number // turn % 2
        order, ring_adapters = rings[c]
        parent, children, tree_adapters = both[which][c]
        result.append(Channel(order, parent, children, ring_adapters, tree_adapters))
    return result


def _ring(
    machines: Sequence[SearchedMachine],
    channel: int,
    searched: int,
    version: Version,
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    order: list[int] = []
    adapters: list[tuple[int, int]] = []
    for number, machine in enumerate(machines):
        c = channel ^ _channel_parity(machine.ring, number, searched, version)
        step = -1 if machine.ring.alternating and number % 2 else 1
        order += [machine.ranks[gpu] for gpu in machine.ring.orders[c][::step]]
        if machine.ring.adapters:
            first, last = machine.ring.adapters[c][::step]
            adapters.append((first, last))
    start = order.index(machines[0].ranks[0])
    return tuple(order[start:] + order[:start]), tuple(adapters)


def _tree(
    machines: Sequence[SearchedMachine],
    channel: int,
    trees: Sequence[tuple[tuple[int, int, int, int], ...]],
    which: int,
) -> tuple[
    tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]
]:
    total = sum(len(machine.ranks) for machine in machines)
    parent = [NONE] * total
    children: list[list[int]] = [[] for _ in range(total)]
    heads: list[tuple[int, int, int]] = []
    adapters: list[tuple[int, int]] = []
    for machine in machines:
        graph = machine.tree
        chain = [machine.ranks[gpu] for gpu in graph.orders[channel]]
        for above, below in pairwise(chain):
            parent[below] = above
            children[above].append(below)
        second = min(1, len(chain) - 1)
        first_child = chain[0 if graph.pattern is Pattern.TREE else second]
        second_child = chain[second if graph.pattern is Pattern.SPLIT_TREE else 0]
        heads.append((chain[0], first_child, second_child))
        if graph.adapters:
            adapters.append(graph.adapters[channel])
    if len(machines) > 1:
        for number in range(len(machines)):
            up, _, _, side = trees[number][which]
            if up == NONE:
                continue
            below, above = heads[number][0], heads[up][1 + side]
            parent[below] = above
        for number in range(len(machines)):
            _, *down, _ = trees[number][which]
            for side, other in enumerate(down):
                if other != NONE:
                    children[heads[number][1 + side]].append(heads[other][0])
    return tuple(parent), tuple(tuple(below) for below in children), tuple(adapters)


def nvls_trees(
    heads: Sequence[Sequence[int]], num_nodes: int
) -> list[list[dict[int, tuple[int, tuple[int, ...]]]]]:
    """Return, for each of the two trees and each head, rank -> (parent, children) over the nodes.

    Parameters
    ----------
    heads : sequence
        Per head, its rank on every node.
    """
    result: list[list[dict[int, tuple[int, tuple[int, ...]]]]] = []
    trees = [double_tree(num_nodes, node) for node in range(num_nodes)]
    for which in (0, 1):
        per_head = []
        for ranks in heads:
            table = {}
            for node in range(num_nodes):
                up, first, second, _ = trees[node][which]
                below = tuple(ranks[n] for n in (first, second) if n != NONE)
                table[ranks[node]] = (ranks[up] if up != NONE else NONE, below)
            per_head.append(table)
        result.append(per_head)
    return result
