"""Path from a GPU to the memory of its host: PCIe and its switches, or NVLink-C2C.

**Model** All GPUs of a node copy at the same time, each to the nearest memory; a link or memory used by
several GPUs is shared evenly. **Not modelled** Other traffic on these links: that of NICs.

Traffic of a GPU to others: inside its node, and its part of the node's network traffic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric, Link


def joins_gpus(link: Link) -> bool:
    """True if a link is NVLink among GPUs and their switches, and not to a host."""
    return link.format.startswith("nvlink") and "c2c" not in link.format


def peer_rates(fabric: Fabric) -> tuple[float, float]:
    """Return the first GPU's rates over NVLink (or PCIe) and over its node's network [B/s].

    All GPUs of a node share its network evenly; without a network the second rate equals the first.
    """
    by_name = {node.name: node for node in fabric.nodes}
    first = fabric.nodes[arrays_of(fabric).node_of(0)]
    near: dict[bool, float] = {}
    out = 0.0
    for link in fabric.links:
        rate = float(link.rate.bytes_per_s * link.count)
        ends = by_name[link.a], by_name[link.b]
        if first in ends:
            nvlink = joins_gpus(link)
            near[nvlink] = near.get(nvlink, 0.0) + rate
        zones = {node.zone for node in ends}
        if first.zone in zones and len(zones) > 1:
            out += rate
    gpus = sum(node.kind == "gpu" and node.zone == first.zone for node in fabric.nodes)
    inside = near.get(True) or near.get(False) or out / gpus
    return inside, out / gpus or inside


TO_HOST = "copies to host"
"""Stream of all copies to the host, which run in sequence."""


@dataclass(frozen=True, slots=True)
class HostWay:
    """A GPU's share of the path to host memory when all GPUs of the node use it.

    Attributes
    ----------
    rate_Bps : float
        Copies in one direction [B/s].
    memory_Bps : float
        Its share of the host memory bandwidth for CPU kernels [B/s].
    """

    rate_Bps: float
    memory_Bps: float


def host_way(fabric: Fabric) -> HostWay:
    """Return the path of the first GPU to its host's memory."""
    by_name = {node.name: node for node in fabric.nodes}
    first = fabric.nodes[arrays_of(fabric).node_of(0)]
    near: dict[str, list[tuple[str, Link]]] = {}
    for link in fabric.links:
        if joins_gpus(link):
            continue
        for one, two in ((link.a, link.b), (link.b, link.a)):
            if by_name[one].zone == by_name[two].zone == first.zone:
                near.setdefault(one, []).append((two, link))
    used: Counter[int] = Counter()
    shared: Counter[str] = Counter()
    ways = {}
    for node in fabric.nodes:
        if node.kind != "gpu" or node.zone != first.zone:
            continue
        memory, links = _to_memory(
            node.name, near, {n for n in near if by_name[n].kind == "memory"}
        )
        ways[node.name] = memory, links
        used.update(id(link) for link in links)
        shared[memory] += 1
    memory, links = ways.get(first.name, ("", []))
    if not links:
        raise InputError(f"{fabric.name}: {first.name} has no way to memory of a host")
    rate = min(link.rate.bytes_per_s * link.count / used[id(link)] for link in links)
    end = by_name[memory].endpoint
    assert end is not None, "memories are endpoints"
    return HostWay(rate, end.mem_Bps * end.mem_efficiency / shared[memory])


def _to_memory(
    start: str, near: dict[str, list[tuple[str, Link]]], memories: set[str]
) -> tuple[str, list[Link]]:
    """Return the nearest memory and the links to it; empty if it is unreachable."""
    reached: dict[str, list[Link]] = {start: []}
    row = [start]
    while row:
        following = []
        for name in row:
            if name in memories:
                return name, reached[name]
            for other, link in near.get(name, ()):
                if other not in reached:
                    reached[other] = [*reached[name], link]
                    following.append(other)
        row = following
    return "", []
