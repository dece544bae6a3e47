"""Ampere: A100, A30 (compute capability 8.0), RTX 30, A10, A40 (8.6)."""

from __future__ import annotations

from clusim.hardware.architecture import ENGINES, IDLE, TABLES, Architecture, pulls
from clusim.hardware.figures import assumed, calibrated
from clusim.hardware.protocols import Pace, protocols

_PACE = Pace(
    speed=0.7,
    cost=1.3,
    why="clock 1.41 against 1.98 GHz; all-gather of 1 GiB on 2 A100 (simllm)",
    measured=True,
    rows=("simllm-a100",),
    fixed={
        "simple": (
            3.9,
            "all-gather, reduce-scatter of 4 MiB and all-reduce of 2 to 8 MiB on 4 A100 (simllm): 3.6 to 4.2 us a"
            " slice, which is pulled",
        ),
        "ll128": (1.8, "LL128 broadcast and all-reduce of 2 to 4 MiB on 4 A100 (simllm)"),
        "ll": (0.4, "8 B all-reduce on 4 A100 takes 3.9 us more than on 2 (simllm)"),
    },
    direct_us=0.4,
)

ARCHITECTURE = Architecture(
    name="ampere",
    nvlink="nvlink3",
    kernel_overhead=calibrated(
        "7.3us",
        "all-reduce, all-gather, reduce-scatter and broadcast of 8 B to 1 MiB on 2 and 4 GPUs, one process each (A100"
        " mesh, simllm): 7.0 to 8.0 us more than the steps, of which 1.8 us are the pipelined launch",
        "simllm-a100",
    ),
    graph_node=calibrated(
        "0.79us", "graph node on A100 and x86 (simllm, launch table)", "launch-table"
    ),
    stream_launch=calibrated(
        "1.81us", "pipelined launches on A100 and x86 (simllm, launch table)", "launch-table"
    ),
    kernel_floor=calibrated(
        "1.81us",
        "pipelined launches on A100 and x86 (simllm, launch table): shorter kernels wait for the next launch",
        "launch-table",
    ),
    engine_start=calibrated(
        "2.0us", f"{ENGINES}: 5.0 us, of which 3.0 are barriers and data", "sglang-kernels"
    ),
    kernels=calibrated("a100-sxm4-80gb", TABLES, "matrix-tables"),
    steady=calibrated(
        0.85,
        "iterations of 22 and 175 billion parameters on A100 SXM (arXiv 2205.05198)",
        "training-runs",
    ),
    idle_power=assumed(80, IDLE),
    flop_energy=assumed(
        0.875,
        "the largest products reach 0.81 of the peak on the card of 300 W and 0.87 on the module of 400 W"
        " (ml-engineering, MAMF), which the module's cap does not touch",
    ),
    p2p=pulls(),
    protocols=protocols("ampere", _PACE),
)
