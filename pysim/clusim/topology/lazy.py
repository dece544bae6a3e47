"""The networkx functions without the import of networkx, which takes longer than all the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusim.topology.model import Fabric

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(fabric: Fabric) -> nx.MultiGraph[str]:
    """Return the fabric as an undirected multigraph; see `clusim.topology.graph.to_networkx`."""
    from clusim.topology import graph

    return graph.to_networkx(fabric)


def from_networkx(graph: nx.Graph[Any], **keys: Any) -> Fabric:
    """Return the fabric a graph stands for; see `clusim.topology.graph.from_networkx`."""
    from clusim.topology import graph as module

    return module.from_networkx(graph, **keys)
