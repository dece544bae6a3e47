"""Small machines with NICs, as topology files, and the clusters of them that tests look at."""

from __future__ import annotations

from typing import Any

from clusim.topology import Fabric
from clusim.topology.graph import from_data

__all__ = ["SWITCHES", "box_text", "cluster", "cluster_data"]

SWITCHES = {
    "eight": {"ports": 8, "latency": "200ns"},
    "sixteen": {"ports": 16, "latency": "200ns"},
    "any": {"latency": "200ns"},
}
"""Small switches, so that small clusters have several levels."""

LINKS = {
    "cable": {"rate": "25 GB/s", "latency": "100ns", "format": "infiniband", "class": "infiniband"},
    "fast": {"rate": "50 GB/s", "latency": "100ns", "format": "infiniband", "class": "infiniband"},
}


def box_text(gpus: int = 2, nics: int = 2, network: str = "") -> str:
    """Return a machine of GPUs on an NVSwitch; GPU i and NIC i share PCIe switch i, and host memory is behind all."""
    slots = max(gpus, nics)
    return f"""
name: box
{network}
nodes:
  gpu0..{gpus - 1}: {{kind: gpu, chip: a100-sxm4-80gb}}
  nvswitch: {{kind: switch, latency: 100ns}}
  pcie0..{slots - 1}: {{kind: switch, latency: 110ns, tier: pcie}}
  root: {{kind: switch, latency: 200ns, tier: root}}
  memory: {{kind: memory, chip: ddr4-3200x8}}
  nic0..{nics - 1}: {{kind: nic, nic: cx6-hdr}}
links:
  - {{from: gpu0..{gpus - 1}, to: nvswitch, count: 3, type: nvlink3}}
  - {{from: gpu0..{gpus - 1}, to: pcie0..{gpus - 1}, pair: zip, type: pcie-gen4-x16, weight: 4}}
  - {{from: pcie0..{nics - 1}, to: nic0..{nics - 1}, pair: zip, type: pcie-gen4-x16, weight: 4}}
  - {{from: pcie0..{slots - 1}, to: root, type: pcie-gen4-x16, weight: 4}}
  - {{from: root, to: memory, rate: 200 GB/s, latency: 50ns, format: pcie-gen4}}
"""


def cluster_data(node: str, nodes: int, **network: Any) -> dict[str, Any]:
    """Return a cluster file; `network` has small switches and plain cables unless it says otherwise."""
    keys = {"link": "cable", "switch": "eight", **network}
    return {
        "name": "cluster",
        "switches": dict(SWITCHES),
        "link_types": dict(LINKS),
        "cluster": {"node": node, "nodes": nodes, "network": keys},
    }


def cluster(node: str, nodes: int, **network: Any) -> Fabric:
    """Return a cluster of the machine in file `node`."""
    return from_data(cluster_data(node, nodes, **network))
