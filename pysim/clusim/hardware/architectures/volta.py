"""Volta, and Turing, which is taken as Volta: V100, T4, RTX 20."""

from __future__ import annotations

from clusim.hardware.architecture import FOREIGN, IDLE, STEADY, Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="volta",
    nvlink="nvlink2",
    kernel_overhead=assumed("7.3us", "as Ampere"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    kernels=assumed("a100-sxm4-80gb", FOREIGN),
    steady=STEADY,
    idle_power=assumed(50, IDLE),
    flop_energy=assumed(1.4, "12 nm against 7 nm: 1.6 times Ampere's"),
    p2p=pushes(),
    protocols=protocols(
        "volta",
        Pace(0.6, 1.4, "clock 1.53 against 1.98 GHz, 4 loads in flight instead of 8 (unroll)"),
    ),
)
