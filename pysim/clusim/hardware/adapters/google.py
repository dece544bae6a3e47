"""Google's Titanium cards."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.nic import Nic, Pci, adapter
from clusim.hardware.transport import Transport
from clusim.hardware.transports.fastrak import TRANSPORT as FASTRAK
from clusim.hardware.transports.tcpx import TRANSPORT as TCPX


def _gvnic(name: str, transport: Transport) -> Nic:
    figures = adapter(
        transport,
        assumed("2us", "Titanium card"),
        200,
        mtu=published(8192, "jumbo frames of gVNIC, MTU 8244 to 8896"),
    )
    return Nic(name=name, figures=figures, kind="tcp", family="gvnic", gbps=200)


NICS = (
    _gvnic("gvnic-200g", FASTRAK),
    _gvnic("gpudirect-tcpxo", FASTRAK),
    _gvnic("gpudirect-tcpx", TCPX),
)

PCI_IDS: tuple[Pci, ...] = ()
