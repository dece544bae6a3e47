"""Look-ups in the arrays of a topology by name or rank."""

from __future__ import annotations

import numpy as np

from clusim.topology import FabricArrays


def target_of(arrays: FabricArrays, name: str) -> int:
    """Return the target index of an endpoint or a NIC."""
    return int(np.flatnonzero(arrays.targets["node"] == arrays.fabric.node_index[name])[0])


def rail_of(arrays: FabricArrays, nic: int) -> int:
    """Return the index of a NIC (a target) within its node."""
    return arrays.nics(int(arrays.targets["zone"][nic])).index(nic)


def hop_latency_ps(arrays: FabricArrays, source: int, target: int) -> int:
    """Return the latency of a header-only write between two ranks without contention [ps]."""
    return arrays.latency_ps(arrays.path(source, target))
