"""Google's Titanium cards."""

from __future__ import annotations

from dataclasses import replace

from clusim.hardware.figures import assumed, published
from clusim.hardware.nic import Nic, Pci, adapter

_GVNIC = Nic(
    name="gvnic-200g",
    kind="tcp",
    family="gvnic",
    gbps=200,
    network="FasTrak",
    figures=adapter(
        assumed("2us", "Titanium card"),
        200,
        post=assumed("8us", "GPUDirect-TCPXO: a service process posts for NCCL"),
        completion=assumed("6us", "GPUDirect-TCPXO: a service process watches for NCCL"),
        mtu=published(8192, "jumbo frames of gVNIC, MTU 8244 to 8896"),
        gpudirect=published(True, "GPUDirect-TCPXO: headers to the host, payload to the GPU"),
    ),
)

NICS = (
    _GVNIC,
    replace(_GVNIC, name="gpudirect-tcpxo"),
    replace(_GVNIC, name="gpudirect-tcpx"),
)

PCI_IDS: tuple[Pci, ...] = ()
