"""NVIDIA RTX PRO 6000 Blackwell, Workstation Edition."""

from __future__ import annotations

from clusim.hardware.figures import published
from clusim.hardware.gpu import DRIVER, PEERS, flops, units
from clusim.hardware.gpus.rtx_5090 import GPU as BASE

SHEET = "NVIDIA's announcement of 2025-03 (188 SMs, 125 TFLOP/s, 4000 sparse f4) and hmc-tech.com for f16 and f8"

GPU = BASE.variant(
    "rtx-pro-6000",
    model="PRO 6000",
    products=("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
    names=("RTX PRO 6000 Blackwell", "RTX PRO 6000"),
    pci_ids=((0x10DE, 0x2BB1),),
    figures={
        **units(188, SHEET),
        "memory": published("97887MiB", DRIVER),
        "power": published(600, f"{SHEET}: thermal design power"),
        "memory_rate": published(
            "1792 GB/s", f"{SHEET}: GDDR7, 32 chips of 24 Gbit, 512 bit at 28 Gb/s"
        ),
        "peak_flops": flops(SHEET, f32=125, f16=503.8, bf16=503.8, f8=1007.6),
        "peer_access": PEERS,
    },
)
