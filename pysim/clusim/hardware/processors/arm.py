"""NVIDIA Grace and other Arm servers."""

from __future__ import annotations

from clusim.hardware.cpu import Cpu, HostCosts, root, same_as, threads
from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.processors.amd import WHOLE
from clusim.hardware.processors.intel import HOST as INTEL

_LATENCY = assumed("150ns", "coherent mesh between C2C, PCIe and memory, as the other CPUs")
_SOCKET = published(6.0, "NCCL, src/graph/topo.h")

_STEP = "as on Intel: NCCL counts 1 us a step for its proxy thread on all but AMD (tuning.cc)"
_GRACE = threads(
    1.0,
    _STEP,
    calibrated(
        "15ns",
        "Tree LL all-reduce of 8 B to 1 KiB on 2 Alps nodes: 1.9 us for 128 lines a crossing; every cache line comes"
        " over NVLink-C2C",
        "alps-2",
    ),
)
_THREADS = threads(1.0, _STEP, assumed("15ns", "as Grace: no DMA into the cache"))
_GB10 = threads(
    1.0,
    _STEP,
    calibrated(
        "5ns",
        "Ring LL all-reduce of 16 to 64 KiB on 2 DGX Spark (NVIDIA/dgx-spark-playbooks thread 103): 32 to 68 us; CPU"
        " and GPU share memory and a system-level cache",
        "dgx-spark-2",
    ),
)

CPUS = (
    Cpu(
        name="grace",
        pace=assumed(1.3, "3.4 GHz, a third more work per clock than Zen 2"),
        figures=root(_LATENCY, WHOLE, "NVIDIA Grace", "arm grace", _GRACE),
        numa="grace-c2c",
        numa_links=1,
        memory="lpddr5x-grace",
        cpuid=((0, 0xD4F, 0xD4F),),
        maker="nvidia",
        socket_GBps=_SOCKET,
    ),
    Cpu(
        name="gb10-cpu",
        pace=assumed(
            1.4, "10 Cortex-X925 of 3.9 GHz beside 10 smaller cores; against Grace's 3.4 GHz"
        ),
        figures=root(_LATENCY, WHOLE, "the CPU of a GB10", "arm arm", _GB10),
        numa="grace-c2c",
        numa_links=1,
        memory="lpddr5x-gb10",
        cpuid=((0, 0xD85, 0xD87),),
        socket_GBps=_SOCKET,
    ),
    Cpu(
        name="arm",
        figures=root(_LATENCY, WHOLE, "other Arm servers", "arm arm", _THREADS),
        numa="upi-11.2",
        numa_links=1,
        memory="ddr4-3200x8",
        usual=True,
        socket_GBps=_SOCKET,
    ),
)

HOST = HostCosts(
    vendor="arm",
    launch=assumed("4.5us", "5.1 us for 8 B on 2 GH200 (simllm) is the kernel; a bound"),
    group_base=assumed("15us", "somewhat less than Intel, as its launches"),
    group_launch=same_as(INTEL.group_launch, "Intel"),
    p2p_task=same_as(INTEL.p2p_task, "Intel"),
    group_channel=same_as(INTEL.group_channel, "Intel"),
    empty_call=same_as(INTEL.empty_call, "Intel"),
    first_start=same_as(INTEL.first_start, "Intel"),
    notice=same_as(INTEL.notice, "Intel"),
    wake=same_as(INTEL.wake, "Intel"),
    graph_launch=same_as(INTEL.graph_launch, "Intel"),
    torch_call=same_as(INTEL.torch_call, "Intel"),
)
