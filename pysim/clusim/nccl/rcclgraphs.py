"""Rings and trees of RCCL on the nodes that it recognises, which replace the search."""

from __future__ import annotations

from clusim.nccl.constants import Path, Pattern
from clusim.nccl.graph import Graph
from clusim.nccl.rccl import KnownNode, recognise
from clusim.nccl.system import System


def known_node(system: System) -> tuple[KnownNode, tuple[int, ...]] | None:
    """Return the node that RCCL recognises in a system, and the system's GPUs by place."""
    library = system.settings.library
    if library is None:
        return None
    links = {}
    for gpu in system.gpus:
        for link in gpu.links:
            if (
                link.kind == "nvl"
                and link.remote.kind == "gpu"
                and gpu.index < link.remote.index
            ):
                links[gpu.index, link.remote.index] = round(
                    link.rate / library.link_GBps
                )
    order = recognise(len(system.adapters), links, len(system.gpus))
    return order if order is not None and library.has_cost_model(order[0]) else None


def known_graphs(system: System) -> tuple[Graph, Graph] | None:
    """Return ring and tree of a node that RCCL recognises, None for others.

    Every channel has the same part of a GPU's xGMI bandwidth; trees are the chains of the rings.
    """
    recognised = known_node(system)
    if recognised is None:
        return None
    node, place = recognised
    orders = tuple(tuple(place[gpu] for gpu in order) for order in node.orders)
    total = max(
        sum(link.rate for link in gpu.links if link.kind == "nvl")
        for gpu in system.gpus
    )
    kind = _farthest(system)
    graphs = []
    for pattern, second in ((Pattern.RING, -1), (Pattern.BALANCED_TREE, 1)):
        ends = [
            (_nearest_nic(system, order[0]), _nearest_nic(system, order[second]))
            for order in orders
        ]
        graphs.append(
            Graph(
                pattern,
                len(orders),
                total / len(orders),
                total / len(orders),
                Path.NVL,
                kind,
                same_channels=True,
                orders=orders,
                adapters=tuple(ends) if system.adapters else (),
                alternating=pattern is Pattern.RING and bool(system.adapters),
            )
        )
    return graphs[0], graphs[1]


def _nearest_nic(system: System, gpu: int) -> int:
    """Return the NIC of a GPU; 0 without NICs."""
    net = system.local_adapter(system.gpus[gpu], 0)
    return net.index if net is not None else 0


def _farthest(system: System) -> Path:
    """Return the farthest path type between a GPU and its NIC."""
    kinds = [
        route.type
        for gpu in system.gpus
        if (net := system.local_adapter(gpu, 0)) is not None
        and (route := system.route(gpu, net)) is not None
    ]
    return max(kinds, default=Path.PIX)
