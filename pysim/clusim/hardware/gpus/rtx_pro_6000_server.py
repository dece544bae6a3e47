"""NVIDIA RTX PRO 6000 Blackwell, Server Edition: slower memory and clock, passive cooling."""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, published
from clusim.hardware.gpu import units
from clusim.hardware.gpus.rtx_pro_6000 import GPU as BASE

SHEET = "RTX PRO 6000 Blackwell Server Edition, NVIDIA data sheet"


def _peaks() -> Figure:
    """Return the Workstation Edition's dense peaks at the clock of 120 of its 125 TFLOP/s of f32."""
    whole = BASE.figures["peak_flops"].value
    assert isinstance(whole, dict)
    peaks = {kind: 0.96 * float(rate) for kind, rate in whole.items()}
    return assumed(
        peaks,
        f"{SHEET}: 120 TFLOP/s of f32 where the Workstation Edition has 125; others in this ratio",
    )


GPU = BASE.variant(
    "rtx-pro-6000-server",
    model="PRO 6000",
    products=("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    names=("RTX PRO 6000 Server Edition", "RTX PRO 6000 Server"),
    pci_ids=((0x10DE, 0x2BB5),),
    figures={
        **units(188, SHEET),
        "memory_rate": published("1597 GB/s", f"{SHEET}: GDDR7 with ECC, 512 bit"),
        "power": published(600, f"{SHEET}: configurable up to 600 W"),
        "peak_flops": _peaks(),
    },
)
