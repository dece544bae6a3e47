"""The link by which a GPU reaches its host: PCIe, or NVLink-C2C."""

from __future__ import annotations

from clusim.errors import InputError
from clusim.fabric.arrays import arrays_of
from clusim.fabric.model import Fabric

__all__ = ["host_rate_Bps"]


def host_rate_Bps(fabric: Fabric) -> float:
    """Return what the first GPU's link to its host carries in each direction [B/s]."""
    name = fabric.nodes[arrays_of(fabric).node_of(0)].name
    for link in fabric.links:
        if name in (link.a, link.b) and ("c2c" in link.format or link.format.startswith("pcie")):
            return link.rate.bytes_per_s * link.count
    raise InputError(f"{fabric.name}: {name} has no link to a host")
