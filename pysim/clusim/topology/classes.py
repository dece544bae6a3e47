"""Classes of traffic: their virtual channels and schedules, and those of headers of trimmed packets.

**Hardware** Traffic classes of switches and NICs (IEEE 802.1Q): strict priority, deficit round robin (M. Shreedhar and
G. Varghese, "Efficient fair queuing using deficit round robin", SIGCOMM 1995). Trimming: NDP (Handley et al., SIGCOMM
2017), Ultra Ethernet; headers have priority in both.
**Model** Class 0 has the virtual channels of the topology, each further class one, headers the last one.
**Not modelled** Buffers and pauses that classes share; classes on paths with datelines, or by detours.
**Parameters** `Link.priority`, `Link.weights`, `Link.trim_bytes`, `NicTraits.traffic_class`.
"""

from __future__ import annotations

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TopologyError
from clusim.engine.abi import CLASSES
from clusim.engine.image import empty
from clusim.topology.model import Fabric, Link

QUANTUM_BYTES = 4096
"""Bytes by which a class of weight 1 grows its deficit per turn."""


def class_vcs(fabric: Fabric, traffic_class: Array) -> Array:
    """Return the virtual channels of the flows of classes."""
    return np.where(traffic_class == 0, 0, fabric.num_vcs + traffic_class - 1)


def total_vcs(fabric: Fabric) -> int:
    """Return the virtual channels of a topology, its classes and headers."""
    return fabric.num_vcs + fabric.classes - 1 + (fabric.trim_bytes > 0)


def _schedule_row(fabric: Fabric, link: Link) -> tuple[list[int], list[int]]:
    """Return priorities and quanta by virtual channel."""
    of_vc = [0] * fabric.num_vcs + list(range(1, fabric.classes))
    priority = dict(enumerate(link.priority))
    weights = dict(enumerate(link.weights))
    levels = [priority.get(number, 0) for number in of_vc]
    quanta = [weights.get(number, 1) * QUANTUM_BYTES for number in of_vc]
    if fabric.trim_bytes:
        levels = [level + 1 for level in levels] + [0]
    padding = [0] * (CLASSES - len(levels))
    return levels + padding, quanta + [QUANTUM_BYTES] * (CLASSES - len(quanta))


def schedule_wires(fabric: Fabric, wires: Array) -> Array:
    """Set schedules and channels of headers of `wires`; return the rows of schedules.

    Raises
    ------
    TopologyError
        More virtual channels than wires have, or classes beside datelines.
    """
    total = total_vcs(fabric)
    if total > CLASSES or (total > fabric.num_vcs and wires["dateline"].any()):
        why = "a torus in dimension order has none" if total <= CLASSES else f"{total} of {CLASSES}"
        raise TopologyError(
            f"{fabric.name}: traffic classes and trim: need virtual channels, {why}; fewer classes"
        )
    times = [2 * link.count for link in fabric.links]
    rows: dict[tuple[tuple[int, ...], tuple[int, ...], bool], int] = {}
    numbers, table = [], []
    for link in fabric.links:
        key = link.priority, link.weights, link.trim_bytes > 0
        if any(key) and key not in rows:
            table.append(_schedule_row(fabric, link))
            rows[key] = len(table)
        numbers.append(rows.get(key, 0))
    wires["schedule"] = np.repeat(np.array(numbers, np.uint32), times)
    trims = np.repeat(np.array([link.trim_bytes > 0 for link in fabric.links], bool), times)
    wires["trim_vc"][trims & (wires["queue_bytes"] > 0)] = total - 1
    schedules = empty("schedules", len(table))
    for row, (priority, quantum) in zip(schedules, table, strict=True):
        row["priority"], row["quantum"] = priority, quantum
    return schedules
