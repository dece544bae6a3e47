"""NVIDIA (Mellanox) ConnectX and BlueField, for InfiniBand and for RoCE."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.nic import Nic, Pci, adapter
from clusim.hardware.transports.verbs import TRANSPORT as VERBS

LATENCY = assumed(
    "150ns",
    "verbs writes take 0.9-1.0 us back to back (ConnectX-5 to 7), of which two adapters 0.3 us",
)
_CX3_LATENCY = assumed("200ns", "as later ConnectX, somewhat slower")
_TWO_PORTS = published(2, "network ports of the adapter")


def _ib(name: str, gbps: int, *, usual: bool = False, ports: int = 1) -> Nic:
    family = name.partition("-")[0]
    latency = _CX3_LATENCY if family == "cx3" else LATENCY
    figures = adapter(VERBS, latency, gbps, **({"ports": _TWO_PORTS} if ports == 2 else {}))
    return Nic(name=name, figures=figures, kind="ib", family=family, gbps=gbps, usual=usual)


def _roce(name: str, gbps: int, *, usual: bool = False, ports: int = 1) -> Nic:
    control = assumed(f"dcqcn-{gbps}", "DCQCN, its steps scaled with the rate")
    more = {"ports": _TWO_PORTS} if ports == 2 else {}
    figures = adapter(VERBS, LATENCY, gbps, rate_control=control, **more)
    family = name.partition("-")[0]
    return Nic(name=name, figures=figures, kind="roce", family=family, gbps=gbps, usual=usual)


NICS = (
    _ib("cx3-fdr", 56, usual=True),
    _ib("cx4-edr", 100),
    _ib("cx5-edr", 100, usual=True),
    _ib("cx6-hdr", 200, usual=True),
    _ib("cx6-hdr100", 100),
    _ib("cx6-fdr", 56),
    _ib("cx7-ndr", 400, usual=True),
    _ib("cx7-ndr200", 200, ports=2),
    _ib("cx8-xdr", 800, usual=True),
    _roce("cx4-roce25", 25, usual=True, ports=2),
    _roce("cx5-roce100", 100, usual=True),
    _roce("cx6-roce100", 100, ports=2),
    _roce("cx6-roce200", 200, usual=True),
    _roce("cx7-roce200", 200, ports=2),
    _roce("cx7-roce400", 400, usual=True),
    _roce("cx8-roce800", 800, usual=True),
    _roce("bf3", 400),
    _ib("bf3-ndr", 400),
)

PCI_IDS = (
    Pci(0x15B3, 0x1013, "cx4", 100),
    Pci(0x15B3, 0x1014, "cx4", 100),
    Pci(0x15B3, 0x1015, "cx4", 25, ethernet=True),
    Pci(0x15B3, 0x1016, "cx4", 25, ethernet=True),
    Pci(0x15B3, 0x1017, "cx5", 100),
    Pci(0x15B3, 0x1018, "cx5", 100),
    Pci(0x15B3, 0x1019, "cx5", 100),
    Pci(0x15B3, 0x101A, "cx5", 100),
    Pci(0x15B3, 0x101B, "cx6", 200),
    Pci(0x15B3, 0x101C, "cx6", 200),
    Pci(0x15B3, 0x101D, "cx6", 100, ethernet=True),
    Pci(0x15B3, 0x101E, "cx7", 200),
    Pci(0x15B3, 0x101F, "cx6", 25, ethernet=True),
    Pci(0x15B3, 0x1021, "cx7", 400),
    Pci(0x15B3, 0x1023, "cx8", 800),
    Pci(0x15B3, 0xA2D6, "cx6", 200),
    Pci(0x15B3, 0xA2DC, "bf3", 400),
)
