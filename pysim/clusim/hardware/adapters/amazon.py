"""Amazon's Nitro cards: EFA and ENA."""

from __future__ import annotations

from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.nic import Nic, Pci, adapter

_EFA_1 = "20 us per message that aws-ofi-nccl's tuner counts for p4d and p5, less what hosts, PCIe and cards take"
_EFA_3 = (
    "18 us per message that aws-ofi-nccl's tuner counts for p5en, less what hosts, PCIe and cards take; 1 KiB LL"
    " all-reduce on 4 p5en takes 15 us (tree) to 25 us (ring) per crossing (ncclgauge)"
)


def _efa(name: str, gbps: int, transit_us: int, source: str, *, usual: bool = True) -> Nic:
    """Return an EFA adapter; `source` says where the delay of its messages is from."""
    figures = adapter(
        assumed("1us", "Nitro card: forwarding of a packet, part of the latency end to end"),
        gbps,
        flush=published("1us", "aws-ofi-nccl flushes by a local read"),
        mtu=published(4096, "ibv_devinfo of EFA: active_mtu 4096"),
        eager=published("8KiB", "aws-ofi-nccl, EAGER_MAX_SIZE (off in 1.14 only)"),
        adaptive=published(True, "SRD sprays the packets of a message over many paths"),
        plugin=published("efa", "NCCL reaches EFA through aws-ofi-nccl"),
        plugin_latency=published(
            "75us" if gbps == 100 else "35us",
            "aws-ofi-nccl states 75 us on p4d and p5, 35 us since p5en, to NCCL's tuner",
        ),
        transit=calibrated(f"{transit_us}us", f"SRD in firmware: {source}"),
    )
    return Nic(name=name, figures=figures, kind="efa", family="efa", gbps=gbps, usual=usual)


NICS = (
    _efa("efa-25g", 25, 13, _EFA_1),
    _efa("efa-100g", 100, 13, _EFA_1),
    _efa("efa-100g-v2", 100, 13, _EFA_1, usual=False),
    _efa("efa-200g", 200, 12, _EFA_3),
    _efa("efa-400g", 400, 12, _EFA_3),
    Nic(
        name="ena-25g",
        kind="tcp",
        family="ena",
        gbps=25,
        usual=True,
        figures=adapter(
            assumed("2us", "Nitro card"),
            25,
            post=assumed("12us", "TCP through the kernel, 25-30 us between two hosts"),
            completion=assumed("10us", "TCP through the kernel, 25-30 us between two hosts"),
            flush=published("0", "data are in host memory; nothing to flush"),
            mtu=published(8960, "jumbo frames of ENA, MTU 9001"),
            gpudirect=published(False, "no RDMA: data go through host memory"),
        ),
    ),
)

PCI_IDS = (
    Pci(0x1D0F, 0xEFA0, "efa", 100),
    Pci(0x1D0F, 0xEFA1, "efa", 100),
    Pci(0x1D0F, 0xEFA2, "efa", 200),
    Pci(0x1D0F, 0xEFA3, "efa", 400),
)
