"""HPE Slingshot."""

from __future__ import annotations

from clusim.hardware.adapters.nvidia import LATENCY
from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.nic import Nic, Pci, adapter

NICS = (
    Nic(
        name="cassini-200g",
        kind="slingshot",
        family="cassini",
        gbps=200,
        usual=True,
        figures=adapter(
            calibrated(
                "400ns",
                "Slingshot 11 (Cassini): MPI latency 1.8 us between neighbours (De Sensi et al.)",
                "slingshot",
            ),
            200,
            mtu=assumed(2048, "Cassini cuts messages into 2 KiB packets"),
            transit=calibrated(
                "1.8us",
                "libfabric and cxi: Tree LL all-reduce of 8 B on 2 Alps nodes, 6 us a crossing",
                "alps-2",
            ),
            ack=assumed("1.8us", "as long as the message"),
            adaptive=published(True, "Rosetta routes every packet by load"),
        ),
    ),
    Nic(
        name="cx5-slingshot",
        kind="slingshot",
        family="cx5",
        gbps=100,
        figures=adapter(
            LATENCY,
            100,
            adaptive=published(True, "Slingshot 10: Rosetta routes every packet by load"),
        ),
    ),
)

PCI_IDS = (Pci(0x17DB, 0x0501, "cassini", 200),)
