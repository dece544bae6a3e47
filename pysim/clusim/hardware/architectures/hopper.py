"""Hopper: H100, H200, H800, H20, GH200."""

from __future__ import annotations

from clusim.hardware.architecture import ENGINES, IDLE, STEADY, TABLES, Architecture, pushes
from clusim.hardware.figures import assumed, calibrated
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="hopper",
    nvlink="nvlink4",
    kernel_overhead=calibrated(
        "4.8us",
        "all-reduce, all-gather, reduce-scatter and broadcast of 8 B to 1 MiB on 2 and 4 GPUs, one process each (GH200"
        " mesh, simllm): 4.3 to 5.4 us more than the steps, of which 1.3 us are the launch",
        "simllm-gh200",
    ),
    graph_node=calibrated("0.59us", "graph node on GH200 (simllm, launch table)", "launch-table"),
    stream_launch=calibrated(
        "1.30us", "pipelined launches on GH200 (simllm, launch table)", "launch-table"
    ),
    kernel_floor=assumed("1.81us", "as A100; pipelined launches on GH200 take 1.30 us"),
    engine_start=calibrated(
        "0.35us", f"{ENGINES}: 2.4 us, of which 2.1 are barriers and data", "sglang-kernels"
    ),
    kernels=calibrated("h100-sxm5", TABLES, "matrix-tables"),
    steady=STEADY,
    idle_power=assumed(100, IDLE),
    flop_energy=calibrated(
        0.69,
        "half of the products above 100 us on H100 (microsoft/vidur), by hash: 0.814 of short ones at 700 W, of which"
        " 0.958 is the clock",
        "matrix-loops",
    ),
    p2p=pushes(),
    protocols=protocols("hopper", Pace()),
)
