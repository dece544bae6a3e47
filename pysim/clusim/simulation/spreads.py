"""Spreading of synthetic traffic over paths, and receivers that accept packets in order.

**Hardware** Switches with adaptive routing choose a path per packet, or per flowlet (Vanini et al., "Let it flow",
NSDI 2017). Routers of dragonflies compare a shortest path with a detour (UGAL: Kim et al., "Technology-driven,
highly-scalable dragonfly topology", ISCA 2008). RoCE and InfiniBand NICs drop early packets, or keep some;
NICs with out-of-order delivery (SRD, Slingshot, BlueField-3) place each packet in memory on arrival.
**Model** One spread per return latency of NAKs (contract, section 6). Detours turn at a random endpoint, or NIC in a
cluster; they use two further virtual channels after it.
**Not modelled** Order among messages of a flow; NAKs wait for no link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clusim.base.arrays import Array
from clusim.engine.abi import NONE, Load
from clusim.engine.image import empty
from clusim.topology import FabricArrays

BY_LOAD = ("adaptive", "credit", "flowlet", "ugal")
"""Routings by load: chance decides among equal wires."""

DETOUR_VCS = 2
"""Virtual channels of a dragonfly's shortest path, which a detour uses twice."""


@dataclass(frozen=True, slots=True)
class Spreading:
    """Spreading of packets, and the order at their receivers.

    Attributes
    ----------
    routing : str
        Routing of the traffic, not ``auto``.
    gap_ps : int or None
        ``flowlet``: shortest pause of a flow before a new path [ps].
    reorder_bytes : int or None
        Early packets of a message that a receiver keeps [bytes]; 0 drops them all, None accepts any order.
    """

    routing: str
    gap_ps: int | None
    reorder_bytes: int | None

    @property
    def num_vcs(self) -> int:
        """Least number of virtual channels."""
        return 2 * DETOUR_VCS if self.routing == "ugal" else 1

    def rows(self, arrays: FabricArrays, ends: Array, nics: bool) -> tuple[Array, Array]:
        """Return the spreads, and the spread of each source.

        Parameters
        ----------
        arrays : FabricArrays
            Topology.
        ends : ndarray, shape (sources, 2)
            Ranks of a message of each source.
        nics : bool
            True if the messages cross NICs.

        Returns
        -------
        spreads : ndarray
            Rows of an image.
        numbers : ndarray of uint32, shape (sources,)
            Rows of the sources, or NONE.
        """
        if self.routing not in BY_LOAD and self.reorder_bytes is None:
            return empty("spreads"), np.full(len(ends), NONE, np.uint32)
        naks = np.ones(len(ends), np.int64)
        if self.reorder_bytes is not None:
            ways = [arrays.latency_ps(arrays.path(to, source)) for source, to in ends.tolist()]
            naks = np.array(ways, np.int64)
        nak_ps, numbers = np.unique(naks, return_inverse=True)
        spreads = empty("spreads", len(nak_ps))
        spreads["nak_ps"] = nak_ps
        spreads["ordered"] = self.reorder_bytes is not None
        spreads["reorder_bytes"] = self.reorder_bytes or 0
        spreads["gap_ps"] = self.gap_ps or 0
        if self.routing in ("credit", "flowlet"):
            spreads["estimate"] = Load.CREDIT
        if self.routing == "ugal":
            spreads["detour_lo"] = len(arrays.endpoints) if nics else 0
            spreads["detour_hi"] = len(arrays.targets) if nics else len(arrays.endpoints)
            spreads["detour_vcs"] = DETOUR_VCS
        return spreads, numbers.astype(np.uint32)
