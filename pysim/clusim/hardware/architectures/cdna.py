"""AMD CDNA, and GCN 5 (MI50, MI60), which is taken as CDNA."""

from __future__ import annotations

from clusim.hardware.architecture import FOREIGN, IDLE, STEADY, Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="cdna",
    nvlink="nvlink4",
    kernel_overhead=assumed("12us", "RCCL's smallest all-reduces take about twice NCCL's"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    kernels=assumed("h100-sxm5", FOREIGN),
    steady=STEADY,
    idle_power=assumed(100, IDLE),
    flop_energy=assumed(0.69, "5 to 7 nm, matrix cores: as Hopper"),
    p2p=pushes(),
    protocols=protocols(
        "cdna", Pace(0.6, 1.5, "RCCL runs one workgroup per channel, clock 2.1 GHz, no unroll")
    ),
)
