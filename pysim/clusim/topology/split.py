"""Topologies with split nodes: a node per host of a rack, or per group of GPUs with only NICs to others.

**Hardware** Without multi-node NVLink (``NCCL_MNNVL_ENABLE=0``) the hosts of a rack are nodes of NCCL. Without shared
memory (``NCCL_SHM_DISABLE=1``) the GPUs that have peer access to each other are one; with ``NCCL_P2P_DISABLE=1``, the
usual way to measure NICs, every GPU is. NCCL trims GPUs that it cannot reach from a node (``ncclTopoTrimSystem``).
**Model** Each part has separate graph nodes; graph nodes that parts share are copied. NVSwitches do not
block, and data between a GPU and its NICs pass no CPU with GPUDirect, so copies carry the same data as one
would. **Not modelled** Contention of several GPUs on a shared uplink, CPU or host memory, which matters
without GPUDirect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.topology import join_nodes
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.hosts import GPU_LINKS, hosts_of
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, Node, kind_of
from clusim.topology.rails import PathType, Rails, path_type

Owners = Mapping[str, int | None]
"""Graph node -> number of its part within its node, or None: shared by all parts; others are dropped."""


def by_host(fabric: Fabric) -> Fabric:
    """Return a topology with a node for every host of a rack; unchanged if every node is one host."""
    cached: Fabric | None = fabric.cache.get("by host")
    if cached is None:
        cached = fabric.cache["by host"] = _by_host(fabric)
    return cached


def _by_host(fabric: Fabric) -> Fabric:
    own_hosts = hosts_of(fabric)
    with_memory = {
        own_hosts[node.name] for node in fabric.nodes if node.kind == "memory"
    }
    order: dict[int, list[str]] = {}
    for node in fabric.nodes:
        if node.kind == "gpu" and own_hosts[node.name] in with_memory:
            hosts = order.setdefault(node.zone, [])
            hosts += (
                [own_hosts[node.name]] if own_hosts[node.name] not in hosts else []
            )
    if all(len(hosts) < 2 for hosts in order.values()):
        return fabric
    owners: dict[str, int | None] = {}
    for node in fabric.nodes:
        if node.zone == NETWORK:
            continue
        hosts = order.get(node.zone, [])
        home = own_hosts[node.name]
        owners[node.name] = hosts.index(home) if home in hosts else None
    result = split(fabric, owners)
    if fabric.num_zones > 1 or not any(node.kind == "nic" for node in fabric.nodes):
        return result
    return _join_rack(result)


def _join_rack(fabric: Fabric) -> Fabric:
    """Return the nodes of a rack without a network, equal to the first, joined by the rack's network."""
    names = {node.name for node in fabric.nodes if node.zone == 0}
    links = tuple(link for link in fabric.links if link.a in names)
    first = tuple(node for node in fabric.nodes if node.zone == 0)
    one = replace(fabric, nodes=first, links=links, ring_orders=None)
    return replace(
        join_nodes(one, fabric.num_zones),
        name=fabric.name,
        p2p_level=fabric.p2p_level,
    )


def by_peers(fabric: Fabric) -> Fabric:
    """Return a topology with a node for every group of GPUs with peer access, and their nearest NICs.

    Raises
    ------
    InputError
        Groups share a NIC, or no network joins the NICs.
    """
    cached: Fabric | None = fabric.cache.get("by peers")
    if cached is None:
        cached = fabric.cache["by peers"] = _by_peers(fabric)
    return cached


def _by_peers(fabric: Fabric) -> Fabric:
    arrays = arrays_of(fabric)
    group = _peer_groups(arrays)
    if len(set(group)) == len(
        {arrays.zone_of(rank) for rank in range(arrays.num_ranks)}
    ):
        return fabric
    if fabric.num_zones < 2:
        raise InputError(
            f"{fabric.name}: {_WHY}, which one node lacks: use --nodes 2 or more, with --ranks for one node"
        )
    switched = fabric.p2p_level != "loc"
    owners: dict[str, int | None] = {
        node.name: None
        for node in fabric.nodes
        if node.zone != NETWORK
        and node.kind in ("switch", "memory")
        and (switched or kind_of(node) != "nvswitch")
    }
    owners |= _own_nics(arrays, group)
    owners |= {fabric.ranks[rank]: number for rank, number in enumerate(group)}
    links = fabric.links
    if not switched:
        links = tuple(link for link in links if link.cls not in GPU_LINKS)
    return split(replace(fabric, links=links), owners)


_WHY = "without SHM (NCCL_SHM_DISABLE) GPUs without peer access (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL) need the network"


def _peer_groups(arrays: FabricArrays) -> list[int]:
    """Return, per rank, the number in its node of the group of GPUs that it has peer access to."""
    level = PathType[arrays.fabric.p2p_level.upper()]
    result: list[int] = []
    heads: dict[int, list[int]] = {}
    for rank in range(arrays.num_ranks):
        of_node = heads.setdefault(arrays.zone_of(rank), [])
        group = next(
            (
                n
                for n, head in enumerate(of_node)
                if _peers(arrays, head, rank, level)
            ),
            -1,
        )
        if group < 0:
            group = len(of_node)
            of_node.append(rank)
        result.append(group)
    return result


def _peers(arrays: FabricArrays, a: int, b: int, level: PathType) -> bool:
    path = arrays.steps(arrays.node_of(a), (int(arrays.rank_endpoint[b]),))
    return level > PathType.LOC and path_type(arrays, path) <= level


def _own_nics(arrays: FabricArrays, group: list[int]) -> dict[str, int]:
    """Return the group of each NIC: equally near groups receive NICs in turn."""
    rails = Rails(arrays)
    fabric = arrays.fabric
    nearest: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for rank, number in enumerate(group):
        mates = nearest.setdefault(
            (arrays.zone_of(rank), rails.nearest_rails(rank)), []
        )
        mates += [number] if number not in mates else []
    result: dict[str, int] = {}
    for (zone, nics), mates in nearest.items():
        if len(nics) < len(mates):
            message = f"{len(mates)} of them share {len(nics)} NICs of a node, which is not simulated"
            raise InputError(f"{fabric.name}: {_WHY}; {message}")
        for turn, rail in enumerate(nics):
            nic = int(arrays.targets["node"][rails.nics(zone)[rail]])
            result[fabric.nodes[nic].name] = mates[turn % len(mates)]
    return result


def split(fabric: Fabric, owners: Owners) -> Fabric:
    """Return a topology with nodes split into parts, numbered in the order of ranks.

    Raises
    ------
    InputError
        The ranks of a part are not consecutive.
    """
    parts: dict[int, int] = {}
    for node in fabric.nodes:
        part = owners.get(node.name)
        if part is not None:
            parts[node.zone] = max(parts.get(node.zone, 0), part + 1)
    starts: dict[int, int] = {}
    for zone in sorted(parts):
        starts[zone] = sum(parts[other] for other in starts)
    zones: list[list[Node]] = [[] for _ in range(sum(parts.values()))]
    network = [node for node in fabric.nodes if node.zone == NETWORK]
    for node in fabric.nodes:
        for part in _parts(node, owners, parts):
            zone = starts[node.zone] + part
            name = _copy_name(node, owners, part)
            zones[zone].append(replace(node, name=name, zone=zone))
    result = replace(
        fabric,
        nodes=(*(node for nodes in zones for node in nodes), *network),
        links=tuple(_links(fabric, owners, parts)),
        ring_orders=None,
    )
    if result.ranks != fabric.ranks:
        raise InputError(
            f"{fabric.name}: GPUs of one host are not consecutive ranks; reorder them"
        )
    return result


def _parts(node: Node, owners: Owners, parts: Mapping[int, int]) -> range:
    """Return the parts that a graph node belongs to."""
    if node.name not in owners or node.zone == NETWORK:
        return range(0)
    part = owners[node.name]
    return range(parts.get(node.zone, 0)) if part is None else range(part, part + 1)


def _copy_name(node: Node, owners: Owners, part: int) -> str:
    """Return the name of a graph node in a part."""
    return (
        f"{node.name}~{part}"
        if owners.get(node.name) is None and part
        else node.name
    )


def _links(fabric: Fabric, owners: Owners, parts: Mapping[int, int]) -> list[Link]:
    nodes = {node.name: node for node in fabric.nodes}
    result: list[Link] = []
    for link in fabric.links:
        a, b = nodes[link.a], nodes[link.b]
        if a.zone == b.zone == NETWORK:
            result.append(link)
            continue
        inner = [node for node in (a, b) if node.zone != NETWORK]
        common = set(_parts(inner[0], owners, parts)).intersection(
            *(_parts(node, owners, parts) for node in inner)
        )
        for part in sorted(common):
            ends = (
                n.name if n.zone == NETWORK else _copy_name(n, owners, part)
                for n in (a, b)
            )
            one, two = ends
            result.append(replace(link, a=one, b=two))
    return result
