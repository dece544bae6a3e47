"""Systems of a communicator's nodes, and the graphs that NCCL finds in them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from functools import lru_cache, partial

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.nccl.constants import Pattern, Version, max_channels, since
from clusim.nccl.env import Settings
from clusim.nccl.graph import NVLS_ID, Graph
from clusim.nccl.rcclgraphs import known_graphs
from clusim.nccl.search import search
from clusim.nccl.system import System
from clusim.nccl.topology import build_system
from clusim.topology import shelf
from clusim.topology.model import Fabric
from clusim.topology.subset import parts_of


def systems_by_node(
    fabric: Fabric,
    version: Version,
    settings: Settings,
    members: dict[int, list[int]],
) -> dict[int, System]:
    """Return NCCL's view of each node, by its number; equal nodes share a system."""
    alike: dict[tuple[object, ...], System] = {}
    result = {}
    for zone, numbers in sorted(members.items()):
        key = (_visible(fabric, zone), tuple(numbers))
        if key not in alike:
            alike[key] = build_system(
                fabric, version, settings, zone=zone, ranks=numbers
            )
        result[zone] = alike[key]
    return result


def _visible(fabric: Fabric, zone: int) -> tuple[tuple[object, ...], ...]:
    """Return the parts of a node that NCCL distinguishes, by their names in the node."""
    cache: dict[int, tuple[tuple[object, ...], ...]] = fabric.cache.setdefault(
        "visible", {}
    )
    if zone not in cache:
        parts = parts_of(fabric, zone)
        result: list[tuple[object, ...]] = []
        for node in parts.nodes.values():
            end = node.endpoint
            chip = end and (
                end.chip,
                end.compute_capability,
                end.peer_access,
                end.pcie_Bps,
            )
            result.append(
                (short_name(node.name), node.kind, node.cpu, node.nic, chip)
            )
        for link in parts.inside:
            rate = link.rate.bytes_per_s
            result.append(
                (
                    short_name(link.a),
                    short_name(link.b),
                    link.count,
                    link.cls,
                    link.name,
                    rate,
                )
            )
        cache[zone] = tuple(result)
    return cache[zone]


def short_name(name: str) -> str:
    """Return the name of a graph node without its server."""
    return name.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class ComparedSystem:
    """A system that compares equal to equivalent systems."""

    key: tuple[Hashable, ...]
    system: System = field(compare=False)


@lru_cache(512)
def search_graphs(looked: ComparedSystem) -> tuple[Graph, ...]:
    """Return the result of `_search_all`, cached because a rack of 72 GPUs needs half a second."""
    build = partial(_search_all, looked.system)
    return (
        shelf.cached_answer(("graphs", looked.key), build)
        if resources.cached
        else build()
    )


def _search_all(system: System) -> tuple[Graph, ...]:
    """Return ring, tree, NVLS, CollNet chain and CollNet direct of a node."""
    settings = system.settings
    recognised = known_graphs(system)
    ring = _read_graph(system, 0) or (
        recognised[0] if recognised else search(system, Pattern.RING)
    )
    count = ring.num_channels
    tree = _read_graph(system, 1) or (
        recognised[1]
        if recognised
        else search(
            system, Pattern.BALANCED_TREE, min_channels=count, channel_limit=count
        )
    )
    nvls = Graph(Pattern.NVLS)
    if since(system.version, "nvls") and settings.nvls_enable:
        nvls = _read_graph(system, NVLS_ID) or search(system, Pattern.NVLS)
    chain, direct = Graph(Pattern.TREE), Graph(Pattern.COLLNET_DIRECT)
    chain = replace(chain, type_intra=ring.type_intra)
    direct = replace(direct, type_intra=ring.type_intra)
    if (
        settings.collnet_enable
        and system.adapters
        and all(n.collective for n in system.adapters)
    ):
        chain = _read_graph(system, 2) or search(
            system,
            Pattern.TREE,
            min_channels=count,
            channel_limit=count,
            collective=True,
        )
        limit = max_channels(system.version)
        direct = _read_graph(system, 4) or search(
            system, Pattern.COLLNET_DIRECT, channel_limit=limit, collective=True
        )
    return ring, tree, nvls, chain, direct


def _read_graph(system: System, number: int) -> Graph | None:
    """Return the graph of ``NCCL_GRAPH_FILE`` with an id; None leaves it to the search."""
    settings = system.settings
    if settings.graph_file is None:
        return None
    if settings.library is not None:
        raise InputError("NCCL_GRAPH_FILE: not simulated with RCCL; omit it")
    devices = len(system.gpus), len(system.adapters)
    return settings.graph_file.find(number, devices, settings.cross_nic)
