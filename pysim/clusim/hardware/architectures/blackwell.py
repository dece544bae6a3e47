"""Blackwell, of data centres (compute capability 10) and of cards (12)."""

from __future__ import annotations

from clusim.hardware.architecture import ENGINES, IDLE, STEADY, TABLES, Architecture, pushes
from clusim.hardware.figures import assumed, calibrated
from clusim.hardware.protocols import Pace, protocols

_SMALL = "all-reduce and all-gather of 1 and 4 KiB on 2 and 8 B200 (aiconfigurator): 7.3 us and 1.4 to 1.5 us a step"
_ROUND = (
    "all-reduce of 1 to 64 KiB on 8 B200 (aiconfigurator): a step that fills a round of all threads (4 KiB) takes"
    " 0.1 us more than one that does not; a full one is taken to take what it takes on Hopper"
)

ARCHITECTURE = Architecture(
    name="blackwell",
    nvlink="nvlink5",
    kernel_overhead=calibrated("6.8us", _SMALL, "aiconfigurator-b200"),
    graph_node=assumed("0.59us", "as Hopper"),
    stream_launch=assumed("1.30us", "as Hopper"),
    kernel_floor=assumed("1.81us", "as A100, whose pipelined launches take so long"),
    engine_start=calibrated(
        "1.75us", f"{ENGINES}: 3.8 us, of which 2.1 are barriers and data", "sglang-kernels"
    ),
    kernels=calibrated("b200-sxm", TABLES, "matrix-tables"),
    steady=STEADY,
    idle_power=assumed(150, IDLE),
    flop_energy=calibrated(
        0.864,
        "half of the products above 100 us in long loops on B200 (MooreThreads/SimuMax), by hash: 0.645 of short ones"
        " at 1000 W, of which 0.759 is the clock",
        "matrix-loops",
    ),
    p2p=pushes(),
    protocols=protocols(
        "blackwell",
        Pace(
            why="a CTA that sends moves 20 to 22 GB/s, as on Hopper (all-to-all of 256 MiB)",
            rows=("aiconfigurator-b200",),
            flight={"ll": (0.65, _SMALL)},
            fixed={"ll": (0.31, _ROUND)},
            rates={"ll": (40.0, _ROUND)},
        ),
    ),
)
