"""Processors that nothing is known of."""

from __future__ import annotations

from clusim.hardware.cpu import Cpu, HostCosts, root, same_as, threads
from clusim.hardware.figures import assumed
from clusim.hardware.processors.amd import WHOLE
from clusim.hardware.processors.intel import HOST as INTEL
from clusim.hardware.processors.intel import LATENCY

THREADS = threads(1.0, "as on Intel", assumed("15ns", "between Intel and AMD, as Grace"))

CPUS = (
    Cpu(
        name="root-complex",
        figures=root(LATENCY, WHOLE, "unknown CPU", "other unknown", THREADS),
        numa="upi-11.2",
        numa_links=2,
        memory="ddr4-3200x8",
        usual=True,
    ),
)

HOST = HostCosts(
    vendor="other",
    launch=assumed("5us", "between the others"),
    group_base=same_as(INTEL.group_base, "Intel"),
    group_launch=assumed("1.8us", "between the others"),
    p2p_task=assumed("0.4us", "as on AMD hosts"),
    group_channel=assumed("0.1us", "between the others"),
    empty_call=same_as(INTEL.empty_call, "Intel"),
    first_start=same_as(INTEL.first_start, "Intel"),
    notice=same_as(INTEL.notice, "Intel"),
    wake=same_as(INTEL.wake, "Intel"),
    graph_launch=same_as(INTEL.graph_launch, "Intel"),
    torch_call=assumed("40us", "between the others"),
)
