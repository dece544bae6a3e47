"""Intel Xeon."""

from __future__ import annotations

from clusim.hardware.cpu import Cpu, HostCosts, root, threads
from clusim.hardware.figures import assumed, calibrated, published

LATENCY = assumed(
    "130ns",
    "half of what DMA reads of DRAM take (400-700 ns, Neugebauer et al., SIGCOMM 2018) less links and DRAM",
)
_SPLIT = published(
    "64B",
    "peer to peer through an Intel root complex moves 64 B TLPs: NCCL INTEL_P2P_OVERHEAD, src/graph/topo.h",
)
_NCCL = "NCCL, src/graph/topo.h"
_STEP = "NCCL counts 1 us a step for its proxy thread on Intel (tuning.cc)"
_SPR_THREADS = threads(
    1.0,
    _STEP,
    calibrated(
        "1ns",
        "Ring LL all-reduce on 4 p5en with one channel (ncclgauge) levels off at 5.0 GB/s, 6.6 us a message of which"
        " the thread needs 2.5 besides; DMA writes into the cache",
        "p5en-1-channel",
    ),
)
THREADS = threads(1.0, _STEP, assumed("1ns", "as Sapphire Rapids: DMA writes into the cache"))
_QPI, _UPI = published(6.0, _NCCL), published(10.0, _NCCL)
_SPR, _EMR = published(22.0, _NCCL), published(40.0, _NCCL)


_NULL = (
    "a kernel that does nothing takes some 9 us from its call until a host knows of its end, of which the call takes 2"
    " to 3 us"
)


def _models(*numbers: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((6, number, number) for number in numbers)


CPUS = (
    Cpu(
        name="xeon-ivb",
        pace=assumed(0.75, "3.0 to 3.5 GHz, two thirds of Zen 2's work per clock"),
        figures=root(LATENCY, _SPLIT, "Ivy Bridge E5 v2", "intel broadwell", THREADS),
        numa="qpi-8",
        numa_links=2,
        memory="ddr3-1866x4",
        cpuid=_models(62),
        socket_GBps=_QPI,
    ),
    Cpu(
        name="xeon-bdw",
        pace=assumed(0.85, "3.6 GHz, four fifths of Zen 2's work per clock"),
        figures=root(LATENCY, _SPLIT, "Broadwell E5 v4", "intel broadwell", THREADS),
        numa="qpi",
        numa_links=2,
        memory="ddr4-2400x4",
        cpuid=_models(63, 79, 86),
        socket_GBps=_QPI,
    ),
    Cpu(
        name="xeon-skl",
        pace=assumed(1.0, "3.8 GHz, nine tenths of Zen 2's work per clock"),
        figures=root(LATENCY, _SPLIT, "Skylake and Cascade Lake SP", "intel skylake", THREADS),
        numa="upi",
        numa_links=2,
        memory="ddr4-2666x6",
        cpuid=_models(85),
        socket_GBps=_UPI,
    ),
    Cpu(
        name="xeon-icx",
        pace=assumed(1.2, "3.5 GHz, a sixth more work per clock than Zen 2"),
        figures=root(LATENCY, _SPLIT, "Ice Lake SP", "intel skylake", THREADS),
        numa="upi-11.2",
        numa_links=3,
        memory="ddr4-3200x8",
        cpuid=_models(106, 108),
        usual=True,
        socket_GBps=_UPI,
    ),
    Cpu(
        name="xeon-spr",
        pace=assumed(1.5, "3.8 GHz, a third more work per clock than Zen 2"),
        figures=root(LATENCY, _SPLIT, "Sapphire Rapids", "intel sapphire rapids", _SPR_THREADS),
        numa="upi-16",
        numa_links=3,
        memory="ddr5-4800x8",
        cpuid=_models(143),
        socket_GBps=_SPR,
    ),
    Cpu(
        name="xeon-emr",
        pace=assumed(1.55, "4.0 GHz, a third more work per clock than Zen 2"),
        figures=root(LATENCY, _SPLIT, "Emerald Rapids", "intel emerald rapids", THREADS),
        numa="upi-20",
        numa_links=3,
        memory="ddr5-5600x8",
        cpuid=_models(207),
        socket_GBps=_EMR,
    ),
    Cpu(
        name="xeon-gnr",
        pace=assumed(1.6, "3.9 GHz, two fifths more work per clock than Zen 2"),
        figures=root(LATENCY, _SPLIT, "Granite Rapids", "intel emerald rapids", THREADS),
        numa="upi-24",
        numa_links=3,
        memory="ddr5-6400x12",
        cpuid=_models(173, 174),
        socket_GBps=_EMR,
    ),
)

HOST = HostCosts(
    vendor="intel",
    launch=assumed(
        "4.5us", "one collective by one thread for one GPU; below what any kernel takes"
    ),
    group_base=calibrated(
        "17us",
        "nccl-tests: 19.5 to 23.3 us on 4 H100 with -g 4, 25.6 to 29.9 us on 8 H100 and H200 with -g 8",
        "wayne-h100",
        "azure-hopper",
    ),
    group_launch=calibrated(
        "1.4us",
        "nccl-tests: 25.6 to 29.9 us on 8 GPUs against 19.5 to 23.3 us on 4 H100",
        "wayne-h100",
        "azure-hopper",
    ),
    p2p_task=assumed("0.26us", "AMD's, in the ratio of their launches in a group"),
    group_channel=calibrated(
        "0.04us",
        "collectives of 256 KiB with 16 channels take 3 to 5 us more than those of 4 KiB with one on 4 H100 with -g 4"
        " (waynehacking8), 0 to 1 us more on 8 H200 with -g 8 (Azure)",
        "wayne-h100",
        "azure-hopper",
    ),
    empty_call=calibrated(
        "0.14us",
        "collectives of 0 B on 4 H100 with -g 4 take 0.56 us (waynehacking8)",
        "wayne-h100",
    ),
    first_start=assumed("3us", _NULL),
    notice=assumed("3us", f"as much as a start: {_NULL}"),
    wake=assumed("1us", "a mutex handed on to a thread that sleeps; a message between processes"),
    graph_launch=calibrated(
        "28us",
        "8 B to 16 KiB all-reduce out of graphs on 4 H100 with -g 4 takes 7 us more per iteration than kernels"
        " (waynehacking8), in graphs of 20, which is nccl-tests' default",
        "wayne-h100",
    ),
    torch_call=calibrated(
        "33us",
        "38 us with NCCL's launch: what all-reduces of 2 KiB to 512 KiB take at any size on 4 and 8 H100 (vidur), under"
        " a profiler",
        "vidur",
    ),
)
