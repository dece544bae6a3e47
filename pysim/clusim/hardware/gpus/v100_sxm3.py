"""NVIDIA Tesla V100 SXM3, of the DGX-2."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.gpu import COPIES, GEMM, units
from clusim.hardware.gpus.v100_sxm2 import GPU as BASE

SHEET = "nvidia-smi of a DGX-2 (32,768 MiB, 7.0); the GV100 of all V100"

GPU = BASE.variant(
    "v100-sxm3",
    products=("Tesla V100-SXM3-32GB",),
    machines=("dgx.?2",),
    pci_ids=((0x10DE, 0x1DB8),),
    stands_for=("switch:6",),
    switch="nvswitch1",
    planes=(1, 1, 1, 1, 1, 1),
    cube_mesh="",
    figures={
        **units(80, SHEET),
        "memory": published("32GiB", SHEET),
        "power": published(350, f"{SHEET}: thermal design power"),
        "memory_rate": assumed(
            "900 GB/s", "as V100 SXM2; no data sheet of the SXM3 module is public"
        ),
        "memory_efficiency": COPIES,
        "peak_flops": assumed(
            {"f32": 15.7e12, "f16": 125e12},
            "as V100 SXM2; NVIDIA gives 2 PFLOP/s for the 16 of a DGX-2, 125 TFLOP/s each",
        ),
        "gemm_fraction": GEMM,
        "links": published(
            6, "6 NVLink 2 links, one to each of the six NVSwitches of a DGX-2 board"
        ),
    },
)
