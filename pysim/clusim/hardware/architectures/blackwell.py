"""Blackwell, of data centres (compute capability 10) and of cards (12)."""

from __future__ import annotations

from clusim.hardware.architecture import Architecture, pushes
from clusim.hardware.figures import assumed
from clusim.hardware.protocols import Pace, protocols

ARCHITECTURE = Architecture(
    name="blackwell",
    nvlink="nvlink5",
    kernel_overhead=assumed("4.8us", "as Hopper"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    attention_fraction=assumed(0.62, "as the A100"),
    p2p=pushes(),
    protocols=protocols(
        "blackwell",
        Pace(
            1.25,
            1.0,
            "NCCL's tree rate per channel 70 against 38.7 GB/s on Hopper; half of that gain",
        ),
    ),
)
