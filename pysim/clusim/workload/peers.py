"""Traffic of a GPU to others: inside its node, and its part of the node's network traffic."""

from __future__ import annotations

from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric, Link


def joins_gpus(link: Link) -> bool:
    """Return True if a link is NVLink among GPUs and their switches, and not to a host."""
    return link.format.startswith("nvlink") and "c2c" not in link.format


def peer_rates(fabric: Fabric) -> tuple[float, float]:
    """Return what the first GPU sends over NVLink (without any, PCIe), and over its machine's network [B/s].

    All GPUs of a machine share its network alike; without one there is nobody to send to.
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
