"""Graph conversions that import networkx only when called, as its import dominates start-up time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusim.topology.model import Fabric

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(fabric: Fabric) -> nx.MultiGraph[str]:
    """Return the topology as a multigraph; see `clusim.topology.graph.to_networkx`."""
    from clusim.topology import graph

    return graph.to_networkx(fabric)


def from_networkx(graph: nx.Graph[Any], **keys: Any) -> Fabric:
    """Return the topology of a graph; see `clusim.topology.graph.from_networkx`."""
    from clusim.topology import graph as module

    return module.from_networkx(graph, **keys)
