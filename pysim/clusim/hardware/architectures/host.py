"""Ideal hosts: only the network takes time."""

from __future__ import annotations

from clusim.hardware.architecture import FOREIGN, IDLE, Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import ideal_protocols

_FREE = assumed("0", "an ideal host: all delay is the network's")

ARCHITECTURE = Architecture(
    name="host",
    kernel_overhead=_FREE,
    graph_node=_FREE,
    stream_launch=_FREE,
    kernel_floor=assumed("1.81us", "as A100, for hosts that are given a peak"),
    kernels=assumed("a100-sxm4-80gb", FOREIGN),
    steady=assumed(1.0, "an ideal chip"),
    idle_power=assumed(0, IDLE),
    flop_energy=assumed(0.0, "an ideal chip"),
    p2p=pushes(),
    protocols=ideal_protocols(),
)
