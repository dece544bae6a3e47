"""What a host and a GPU pay for launching collectives one after the other.

**Hardware** A thread enqueues the kernel of every GPU it drives; a GPU starts the next kernel of its stream when the
last has ended; a kernel of NCCL reads its work before it moves data and flushes its counters behind.
**Model** A period of the host, which grows with the GPUs one process drives, and a fixed time per kernel on the GPU.
**Not modelled** Which launch of an iteration is slow; queues that run full; noise of the operating system.
**Parameters** The figures below, by vendor of the CPU and architecture of the GPU.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, calibrated, measured

__all__ = [
    "EMPTY_CALL",
    "GRAPH_NODE",
    "GROUP_BASE",
    "GROUP_CHANNEL",
    "GROUP_LAUNCH",
    "GROUP_SKEW",
    "HOST_LAUNCH",
    "KERNEL_OVERHEAD",
    "P2P_TASK",
    "STREAM_LAUNCH",
]

_SIMLLM = "all-reduce, all-gather, reduce-scatter and broadcast of 8 B to 1 MiB on 2 and 4 GPUs, one process each"

KERNEL_OVERHEAD: dict[str, Figure] = {
    "ampere": calibrated(
        "7.3us",
        f"{_SIMLLM} (A100 mesh, simllm): 7.0 to 8.0 us more than the steps, of which 1.8 us are the pipelined launch",
    ),
    "hopper": calibrated(
        "4.8us",
        f"{_SIMLLM} (GH200 mesh, simllm): 4.3 to 5.4 us more than the steps, of which 1.3 us are the launch",
    ),
    "blackwell": calibrated("4.8us", "not measured; as Hopper"),
    "ada": calibrated("6us", "not measured; between Ampere and Hopper, as its clock"),
    "volta": calibrated("7.3us", "not measured; as Ampere"),
    "pascal": calibrated("8us", "not measured; as Ampere, at a lower clock"),
    "cdna": calibrated("12us", "not measured; RCCL's smallest all-reduces take about twice NCCL's"),
    "host": calibrated("0", "an ideal host"),
}
"""From the end of the steps of one kernel to the first step of the next one in the stream, by GPU architecture."""

_UNMEASURED = ("pascal", "volta", "ada", "blackwell", "cdna")

GRAPH_NODE: dict[str, Figure] = {
    "ampere": measured("0.79us", "graph node on A100 and x86 (simllm); a launch takes 1.81 us"),
    "hopper": measured("0.59us", "graph node on GH200 (simllm); a launch takes 1.30 us"),
    **{arch: calibrated("0.59us", "not measured; as Hopper") for arch in _UNMEASURED},
    "host": calibrated("0", "an ideal host"),
}
"""Launch of a kernel out of a CUDA graph, by GPU architecture."""

STREAM_LAUNCH: dict[str, Figure] = {
    "ampere": measured("1.81us", "pipelined launches on A100 and x86 (simllm)"),
    "hopper": measured("1.30us", "pipelined launches on GH200 (simllm)"),
    **{arch: calibrated("1.30us", "not measured; as Hopper") for arch in _UNMEASURED},
    "host": calibrated("0", "an ideal host"),
}
"""Launch of a kernel in a stream, which `KERNEL_OVERHEAD` contains, by GPU architecture."""

HOST_LAUNCH: dict[str, Figure] = {
    "intel": calibrated(
        "4.5us", "one collective by one thread for one GPU; below what any kernel takes"
    ),
    "amd": calibrated("6us", "8.1 us for 1 KiB on 2 A100 and EPYC (simllm) is the kernel; a bound"),
    "arm": calibrated("4.5us", "5.1 us for 8 B on 2 GH200 (simllm) is the kernel; a bound"),
    "other": calibrated("5us", "not measured; between the others"),
}
"""Time of a host thread for a collective on one GPU, by vendor of the CPU."""

GROUP_BASE: dict[str, Figure] = {
    "intel": calibrated(
        "17us", "19.5 to 23.3 us on 4 H100, 25.6 to 29.9 us on 8 H100 and H200, -g 4 and -g 8"
    ),
    "amd": calibrated("17us", "as Intel, with more per launch"),
    "arm": calibrated("15us", "not measured"),
    "other": calibrated("17us", "not measured; as Intel"),
}
"""Time of a grouped launch over the GPUs of one process besides the launches, by vendor of the CPU."""

GROUP_LAUNCH: dict[str, Figure] = {
    "intel": calibrated("1.4us", "25.6 to 29.9 us on 8 GPUs against 19.5 to 23.3 us on 4 H100"),
    "amd": calibrated("2.2us", "34.5 us on 8 A100 with -g 8 (superbench)"),
    "arm": calibrated("1.4us", "not measured; as Intel"),
    "other": calibrated("1.8us", "not measured; between the others"),
}
"""Time of every launch in a group, by vendor of the CPU."""

P2P_TASK: dict[str, Figure] = {
    "intel": calibrated("0.3us", "not measured; below AMD as its launches"),
    "amd": calibrated(
        "0.41us", "all-to-all on 8 A100 with -g 8 takes 87 us at every small size (superbench)"
    ),
    "arm": calibrated("0.3us", "not measured"),
    "other": calibrated("0.4us", "not measured; as AMD"),
}
"""Time of a host thread for one send or receive inside a group, by vendor of the CPU."""

GROUP_SKEW: dict[str, Figure] = {
    vendor: calibrated(
        "2.8us",
        "8 B to 256 KiB all-reduce out of graphs on 4 H100 with -g 4 takes 9 us more than on GPUs with a process each"
        " (waynehacking8); 64 KiB to 64 MiB on 8 H100 and 8 A100 with -g 8 takes 20 to 26 us more (Azure, superbench)",
    )
    for vendor in HOST_LAUNCH
}
"""How much later each further GPU of a process starts its kernel; a collective waits for the last one, by vendor of
the CPU."""

GROUP_CHANNEL: dict[str, Figure] = {
    "intel": calibrated(
        "0",
        "256 KiB with 16 channels takes no longer than with one, 4 H100 with -g 4 (waynehacking8)",
    ),
    "amd": calibrated(
        "0.12us",
        "1 MiB with 24 channels takes 14 (all-reduce, Azure) to 30 us (others, superbench) more than kernel and skew on"
        " 8 A100 with -g 8",
    ),
    "arm": calibrated("0", "not measured; as Intel"),
    "other": calibrated("0.05us", "not measured; between the others"),
}
"""Time per channel and GPU beyond the first in which one process hands work to its GPUs, by vendor of the CPU."""

EMPTY_CALL: dict[str, Figure] = {
    vendor: measured(
        "0.14us", "collectives of 0 B on 4 H100 with -g 4 take 0.56 us (nccl-collectives-bench)"
    )
    for vendor in HOST_LAUNCH
}
"""A call that has nothing to move, per GPU, by vendor of the CPU."""
