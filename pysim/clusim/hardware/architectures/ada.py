"""Ada Lovelace: RTX 40, L4, L40."""

from __future__ import annotations

from clusim.hardware.architecture import IDLE, STEADY, Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="ada",
    nvlink="nvlink4",
    kernel_overhead=assumed("6us", "between Ampere and Hopper, as its clock"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    kernels=assumed(
        "a100-sxm4-80gb",
        "none were measured; tensor cores multiply for a warp at a time, as Ampere's (CUTLASS, guides to MMA"
        " programming): its form at the chip's own clock and figures",
    ),
    steady=STEADY,
    idle_power=assumed(30, IDLE),
    flop_energy=assumed(0.69, "4 nm, as Hopper"),
    p2p=pushes(),
    protocols=protocols(
        "ada", Pace(1.0, 1.1, "clock 2.5 against 1.98 GHz, no asynchronous bulk copies")
    ),
)
