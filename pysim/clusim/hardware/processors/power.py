"""IBM POWER."""

from __future__ import annotations

from dataclasses import replace

from clusim.hardware.cpu import Cpu, root
from clusim.hardware.figures import assumed, published
from clusim.hardware.processors.amd import LATENCY
from clusim.hardware.processors.other import HOST as OTHER
from clusim.hardware.processors.other import THREADS

CPUS = (
    Cpu(
        name="power9",
        figures=root(
            LATENCY,
            assumed("128B", "cache lines of POWER are 128 B"),
            "POWER9 with PHB4 bridges",
            "power power9",
            THREADS,
        ),
        numa="power9-x",
        numa_links=1,
        memory="ddr4-2666x8",
        usual=True,
        socket_GBps=published(32.0, "NCCL, src/graph/topo.h"),
    ),
)

HOST = replace(OTHER, vendor="power")
