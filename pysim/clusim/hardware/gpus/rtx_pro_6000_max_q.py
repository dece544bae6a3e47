"""NVIDIA RTX PRO 6000 Blackwell, Max-Q Workstation Edition: half the power."""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, published
from clusim.hardware.gpus.rtx_pro_6000 import GPU as BASE

SHEET = "RTX PRO 6000 Blackwell Max-Q Workstation Edition, NVIDIA data sheet"


def _peaks() -> Figure:
    """Return the Workstation Edition's dense peaks at the clock of 110 of its 125 TFLOP/s of f32."""
    whole = BASE.figures["peak_flops"].value
    assert isinstance(whole, dict)
    peaks = {kind: 0.88 * float(rate) for kind, rate in whole.items()}
    return assumed(
        peaks,
        f"{SHEET}: 110 TFLOP/s of f32 where the Workstation Edition has 125; others in this ratio",
    )


GPU = BASE.variant(
    "rtx-pro-6000-max-q",
    model="PRO 6000 Max-Q",
    products=("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    names=("RTX PRO 6000 Max-Q",),
    pci_ids=((0x10DE, 0x2BB4),),
    figures={
        "power": published(300, f"{SHEET}: thermal design power"),
        "peak_flops": _peaks(),
    },
)
