"""AMD EPYC."""

from __future__ import annotations

from clusim.hardware.cpu import Cpu, HostCosts, root, same_as, threads
from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.processors.intel import HOST as INTEL

LATENCY = assumed(
    "160ns",
    "I/O die between root port and data fabric; DMA reads take some 60 ns more than on Intel",
)
WHOLE = assumed("128B", "forwards the TLPs of a GPU as they are; NCCL charges nothing on AMD")
_STEP = "NCCL counts 2 us a step for its proxy thread on AMD (tuning.cc)"
_MILAN = threads(
    2.0,
    _STEP,
    calibrated(
        "15ns",
        "Tree LL all-reduce of 2 to 8 KiB on 2 Polaris nodes (ALCF): 4 us for 256 lines a crossing, 6.7 us for 512; DMA"
        " writes into DRAM",
        "polaris-2",
    ),
)
_THREADS = threads(2.0, _STEP, assumed("15ns", "as Milan: DMA writes into DRAM"))
_PACES = {
    "naples": assumed(0.8, "3.2 GHz, a sixth less work per clock than Zen 2"),
    "rome": assumed(1.0, "by definition: 3.4 GHz, Zen 2"),
    "milan": assumed(1.25, "3.5 to 3.7 GHz, a fifth more work per clock than Zen 2"),
    "genoa": assumed(1.45, "3.7 GHz, a third more work per clock than Zen 2"),
    "turin": assumed(1.75, "4.1 to 5.0 GHz, half more work per clock than Zen 2"),
}
_SOCKET = published(16.0, "NCCL, src/graph/topo.h")


def _epyc(name: str, numa: tuple[str, int], memory: str, *cpuid: tuple[int, int, int]) -> Cpu:
    return Cpu(
        name=f"epyc-{name}",
        figures=root(
            LATENCY,
            WHOLE,
            f"EPYC {name.title()}",
            f"amd {name}",
            _MILAN if name == "milan" else _THREADS,
        ),
        numa=numa[0],
        numa_links=numa[1],
        memory=memory,
        cpuid=cpuid,
        usual=name == "rome",
        socket_GBps=_SOCKET,
        pace=_PACES[name],
    )


CPUS = (
    _epyc("naples", ("xgmi", 4), "ddr4-2666x8", (0x17, 0, 0xF)),
    _epyc("rome", ("xgmi2", 3), "ddr4-3200x8", (0x17, 0x10, 0xFFFF)),
    _epyc("milan", ("xgmi2", 3), "ddr4-3200x8", (0x19, 0, 0xF)),
    _epyc("genoa", ("xgmi3", 3), "ddr5-4800x12", (0x19, 0x10, 0xFFFF)),
    _epyc("turin", ("xgmi3", 3), "ddr5-6400x12", (0x1A, 0, 0xFFFF)),
)

HOST = HostCosts(
    vendor="amd",
    launch=assumed("6us", "8.1 us for 1 KiB on 2 A100 and EPYC (simllm) is the kernel; a bound"),
    group_base=assumed("17us", "as Intel, with more per launch"),
    group_launch=calibrated("2.2us", "34.5 us on 8 A100 with -g 8 (superbench)", "superbench-a100"),
    p2p_task=calibrated(
        "0.41us",
        "all-to-all on 8 A100 with -g 8 takes 87 us at every small size (superbench)",
        "superbench-a100",
    ),
    group_channel=calibrated(
        "0.21us",
        "all-gather of 16 KiB to 1 MiB on 8 A100 with -g 8 (superbench): 34.8 us with one channel, 36.3 with 2, 40.2"
        " with 4, 46.5 with 8, 58.5 with 16, 73 with 24; all-reduce needs half of it (Azure)",
        "superbench-a100",
        "azure-a100",
    ),
    empty_call=same_as(INTEL.empty_call, "Intel"),
    first_start=same_as(INTEL.first_start, "Intel"),
    notice=same_as(INTEL.notice, "Intel"),
    wake=same_as(INTEL.wake, "Intel"),
    graph_launch=same_as(INTEL.graph_launch, "Intel"),
    torch_call=calibrated(
        "47us",
        "53 us with NCCL's launch: what all-reduces of 2 KiB to 2 MiB take at any size on 2 and 4 A100 (vidur), under"
        " a profiler; 26 to 64 us on 8",
        "vidur",
    ),
)
