"""Pascal: P100."""

from __future__ import annotations

from clusim.hardware.architecture import FOREIGN, IDLE, STEADY, Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="pascal",
    nvlink="nvlink1",
    kernel_overhead=assumed("8us", "as Ampere, at a lower clock"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    kernels=assumed("a100-sxm4-80gb", FOREIGN),
    steady=STEADY,
    idle_power=assumed(50, IDLE),
    flop_energy=assumed(0.0, "no tensor cores; its clock holds"),
    p2p=pushes(),
    protocols=protocols(
        "pascal",
        Pace(
            0.45,
            1.5,
            "clock 1.48 against 1.98 GHz, 4 loads in flight instead of 8 (unroll), no async copies",
        ),
    ),
)
