"""Amazon's Nitro cards: EFA and ENA."""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, calibrated, published
from clusim.hardware.nic import Nic, Pci, adapter
from clusim.hardware.transports.efa import TRANSPORT as EFA
from clusim.hardware.transports.sockets import TRANSPORT as SOCKETS

_P5EN = "all-reduce on 4 p5en with one channel (ncclgauge)"
_OLDER = "as on p5en, by the 20 and 18 us per message that aws-ofi-nccl's tuner counts for p4d and p5, and for p5en"


_NAMES = ("transit", "ack", "rendezvous", "progress")
"""The delays of SRD, whose firmware keeps order, and of the plugin."""

_ONE, _SIXTEEN = ("p5en-1-channel", "p5en-8-channels"), ("p5en-16-channels",)


def _delays(us: tuple[float, float, float, float], why: str) -> dict[str, Figure]:
    """Return delays that are assumed."""
    times = zip(_NAMES, us, strict=True)
    return {name: assumed(f"{round(time * 1000)}ns", why) for name, time in times}


def _efa(name: str, gbps: int, delays: dict[str, Figure], *, usual: bool = True) -> Nic:
    """Return an EFA adapter; `delays` are those of its messages."""
    figures = adapter(
        EFA,
        assumed("1us", "Nitro card: forwarding of a packet, part of the latency end to end"),
        gbps,
        mtu=published(4096, "ibv_devinfo of EFA: active_mtu 4096"),
        plugin_latency=published(
            "75us" if gbps == 100 else "35us",
            "aws-ofi-nccl states 75 us on p4d and p5, 35 us since p5en, to NCCL's tuner",
        ),
        **delays,
    )
    return Nic(name=name, figures=figures, kind="efa", family="efa", gbps=gbps, usual=usual)


_FIRST = _delays((9, 18, 3.5, 1.5), _OLDER)
_THIRD = {
    "transit": calibrated("8000ns", f"Tree LL of 1 KiB, 15 us a crossing: {_P5EN}", *_ONE),
    "ack": calibrated("16000ns", f"Ring LL of 1 KiB, 28.5 us for 8 steps: {_P5EN}", *_ONE),
    "rendezvous": calibrated("3500ns", f"Tree LL and LL128 of 2 to 8 KiB: {_P5EN}", *_ONE),
    "progress": calibrated(
        "1500ns",
        "Ring LL128 of 512 KiB with 16 channels, two of them a GPU, on 4 p5en (ncclgauge): 2.6 us of a thread a"
        " message",
        *_SIXTEEN,
    ),
}
_NEXT = _delays((8, 16, 3.5, 1.5), "as on p5en")

NICS = (
    _efa("efa-25g", 25, _FIRST),
    _efa("efa-100g", 100, _FIRST),
    _efa("efa-100g-v2", 100, _FIRST, usual=False),
    _efa("efa-200g", 200, _THIRD),
    _efa("efa-400g", 400, _NEXT),
    Nic(
        name="ena-25g",
        kind="tcp",
        family="ena",
        gbps=25,
        usual=True,
        figures=adapter(
            SOCKETS,
            assumed("2us", "Nitro card"),
            25,
            mtu=published(8960, "jumbo frames of ENA, MTU 9001"),
        ),
    ),
)

PCI_IDS = (
    Pci(0x1D0F, 0xEFA0, "efa", 100),
    Pci(0x1D0F, 0xEFA1, "efa", 100),
    Pci(0x1D0F, 0xEFA2, "efa", 200),
    Pci(0x1D0F, 0xEFA3, "efa", 400),
)
