"""HPE Slingshot."""

from __future__ import annotations

from clusim.hardware.adapters.nvidia import LATENCY
from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.nic import Nic, Pci, adapter
from clusim.hardware.transports.cxi import TRANSPORT as CXI
from clusim.hardware.transports.verbs import TRANSPORT as VERBS

NICS = (
    Nic(
        name="cassini-200g",
        kind="slingshot",
        family="cassini",
        gbps=200,
        usual=True,
        figures=adapter(
            CXI,
            calibrated(
                "400ns",
                "Slingshot 11 (Cassini): MPI latency 1.8 us between neighbours (De Sensi et al.)",
                "slingshot",
            ),
            200,
            mtu=assumed(2048, "Cassini cuts messages into 2 KiB packets"),
        ),
    ),
    Nic(
        name="cx5-slingshot",
        kind="slingshot",
        family="cx5",
        gbps=100,
        figures=adapter(
            VERBS,
            LATENCY,
            100,
            adaptive=published(True, "Slingshot 10: Rosetta routes every packet by load"),
        ),
    ),
)

PCI_IDS = (Pci(0x17DB, 0x0501, "cassini", 200),)
