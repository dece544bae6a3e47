"""GPUs (and plain hosts): SMs, memory, latencies inside the chip.

**Hardware** A packet for an SM's store crosses the chip to the L2 slice that owns the address; a remote load costs
an L2 or HBM access at the far end. Collectives keep their FIFOs in L2 as far as they fit.
**Model** Fixed latencies behind the wire, one memory server per GPU, and a share of communication bytes that
reaches HBM.
**Not modelled** L2 partitions, banks, row buffers, TLBs.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, calibrated, measured, published
from clusim.hardware.pcie import x16_rate

__all__ = [
    "CHIPS",
    "L2_HOLDS",
    "L2_PARTLY",
    "L2_SMALL",
    "common",
    "identity",
    "pcie",
    "traffic",
]

_CUDA = "NVIDIA, CUDA GPU compute capability (developer.nvidia.com/cuda-gpus)"
_MAMF = "largest matrix product rate found by search, ml-engineering accelerator benchmarks (MAMF)"

_LATENCY_SPLIT = (
    "split of a remote store, SM to peer L2 visible, 450-600 ns in total: egress 150-200, SerDes 2 x 50,"
    " NVSwitch 100-150, L2 write 100; tuned on NCCL's 0.6 us per LL ring step (nccl src/graph/tuning.cc)"
)
_RING_TRAFFIC = (
    "user-buffer traffic of a ring all-reduce: one read and one write of S per 2(n-1)/n S bytes sent and received,"
    " 4/7 at n = 8"
)


def common(slots: int) -> dict[str, Figure]:
    """Return what all chips with `slots` multiprocessors have alike."""
    return {
        "cta_slots": assumed(
            slots, "as many concurrent CTAs of collectives as SMs; NCCL uses up to 64 channels"
        ),
        "write_latency": calibrated("100ns", _LATENCY_SPLIT),
        "read_latency": calibrated(
            "350ns",
            "remote load about twice a remote store; HBM 470-570 and L2 200-260 cycles at 1.4-1.8 GHz",
        ),
        "response_latency": calibrated("100ns", _LATENCY_SPLIT),
        "memory_quantum": assumed(
            "2us", "interval of re-sharing memory; short against kernels of 10 us and more"
        ),
    }


def identity(
    architecture: str,
    capability: float,
    memory: str,
    *,
    gemm: Figure | None = None,
    peers: Figure | None = None,
    sheet: str = "data sheet",
) -> dict[str, Figure]:
    """Return what a chip says of itself to NCCL, to launching and to kernels.

    Parameters
    ----------
    architecture : str
        Row of `clusim.hardware.protocols` and `clusim.hardware.launch`.
    capability : float
        CUDA compute capability, such as 8.6.
    memory : str
        Size of its memory.
    gemm : Figure or None
        Part of the dense peak that large matrix products reach; None: nobody has measured it.
    peers : Figure or None
        Whether the driver lets two of them reach each other over PCIe; None: it does.
    """
    return {
        "architecture": published(
            architecture, _CUDA + ("; Turing is taken as Volta" if capability == 7.5 else "")
        ),
        "compute_capability": published(capability, _CUDA),
        "peer_access": peers or published(True, "CUDA peer access over PCIe, data centre boards"),
        "memory": published(memory, sheet),
        "gemm_fraction": gemm or assumed(0.80, "between the measured A100 (0.87) and B200 (0.78)"),
    }


def pcie(generation: int, lanes: int = 16) -> dict[str, Figure]:
    """Return the host interface of a chip."""
    return {"pcie_rate": published(x16_rate(generation, lanes), f"PCIe Gen{generation} x{lanes}")}


def traffic(share: float, why: str) -> dict[str, Figure]:
    """Return the share of communication bytes that reaches memory."""
    source = f"{_RING_TRAFFIC}; {why}"
    return {
        "memory_per_delivered": calibrated(share, source),
        "memory_per_read": calibrated(share, source),
        "memory_per_injected": calibrated(share, source),
    }


L2_HOLDS = "the FIFO slices under way stay in L2"
L2_PARTLY = (
    "plus 1/4: the FIFO slices under way (24 channels x 1-2 MiB) are about the size of L2 (40 MB)"
)
L2_SMALL = "plus 3/4: the FIFO slices under way exceed L2 several times (4 to 6 MB)"

_A100_GEMM = measured(0.87, f"271 of 312 TFLOP/s bf16 on the 80 GB variant, {_MAMF}")
_H100_GEMM = measured(0.80, f"794.5 of 989 TFLOP/s bf16, {_MAMF}")
_B200_GEMM = measured(0.78, f"1745 of 2250 TFLOP/s bf16, {_MAMF}")

_WHITEPAPER = "NVIDIA data sheet and architecture whitepaper"

CHIPS: dict[str, dict[str, Figure]] = {
    "p100-sxm2": {
        **identity(
            "pascal", 6.0, "16GiB", gemm=assumed(0.85, "plain FMA units, no tensor cores to feed")
        ),
        "sms": published(56, f"Tesla P100, {_WHITEPAPER}"),
        **common(56),
        "memory_rate": published("732 GB/s", f"Tesla P100, 4 stacks HBM2, {_WHITEPAPER}"),
        "memory_efficiency": measured(
            0.75, "STREAM-like copies on P100 reach about 75% of the peak"
        ),
        **traffic(1.32, L2_SMALL),
        "peak_flops": published({"f32": 10.6e12, "f16": 21.2e12}, f"Tesla P100, {_WHITEPAPER}"),
        "links": published(4, "Tesla P100: 4 NVLink 1 links"),
        **pcie(3),
    },
    "v100-sxm2": {
        **identity(
            *("volta", 7.0, "32GiB"),
            gemm=assumed(
                0.80, "cuBLAS on V100 tensor cores is usually quoted at 95 to 105 of 125 TFLOP/s"
            ),
            sheet="data sheet; the first ones had 16 GiB",
        ),
        "sms": published(80, f"Tesla V100, {_WHITEPAPER}"),
        **common(80),
        "memory_rate": published("900 GB/s", f"Tesla V100, 4 stacks HBM2, {_WHITEPAPER}"),
        "memory_efficiency": measured(0.92, "STREAM-like copies on V100: 830-850 of 900 GB/s"),
        **traffic(1.32, L2_SMALL),
        "peak_flops": published({"f32": 15.7e12, "f16": 125e12}, f"Tesla V100, {_WHITEPAPER}"),
        "links": published(6, "Tesla V100: 6 NVLink 2 links"),
        **pcie(3),
    },
    "a100-sxm4-40gb": {
        **identity("ampere", 8.0, "40GiB", gemm=_A100_GEMM),
        "sms": published(108, f"A100, {_WHITEPAPER}"),
        **common(108),
        "memory_rate": published("1555 GB/s", f"A100 40 GB, 5 stacks HBM2, {_WHITEPAPER}"),
        "memory_efficiency": measured(0.88, "copy 1.35-1.4 TB/s of 1.555 TB/s"),
        **traffic(0.82, L2_PARTLY),
        "peak_flops": published(
            {"f32": 19.5e12, "f16": 312e12, "bf16": 312e12}, f"A100, dense, {_WHITEPAPER}"
        ),
        "links": published(12, "A100: 12 NVLink 3 links"),
        **pcie(4),
    },
    "a100-sxm4-80gb": {
        **identity("ampere", 8.0, "80GiB", gemm=_A100_GEMM),
        "sms": published(108, f"A100, {_WHITEPAPER}"),
        **common(108),
        "memory_rate": published("2039 GB/s", f"A100 80 GB, 5 stacks HBM2e, {_WHITEPAPER}"),
        "memory_efficiency": measured(
            0.85,
            "read 1770 (86.8%), write 1791 (87.8%), copy 1672 GB/s (82%) of 2039, simllm A100 envelope",
        ),
        **traffic(0.82, L2_PARTLY),
        "peak_flops": published(
            {"f32": 19.5e12, "f16": 312e12, "bf16": 312e12}, f"A100, dense, {_WHITEPAPER}"
        ),
        "links": published(12, "A100: 12 NVLink 3 links"),
        **pcie(4),
    },
    "h100-sxm5": {
        **identity("hopper", 9.0, "80GiB", gemm=_H100_GEMM),
        "sms": published(132, f"H100 SXM, {_WHITEPAPER}"),
        **common(132),
        "memory_rate": published("3350 GB/s", f"H100 SXM, 5 stacks HBM3, {_WHITEPAPER}"),
        "memory_efficiency": measured(
            0.87, "BabelStream copy 2.90 of 3.35 TB/s (86.6%), Azure ND H100 v5"
        ),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": published(
            {"f32": 67e12, "f16": 989e12, "bf16": 989e12, "f8": 1979e12},
            f"H100 SXM, dense, {_WHITEPAPER}",
        ),
        "links": published(18, "H100: 18 NVLink 4 links"),
        **pcie(5),
    },
    "h200-sxm5": {
        **identity("hopper", 9.0, "141GB", gemm=_H100_GEMM),
        "sms": published(132, f"H200 SXM, {_WHITEPAPER}"),
        **common(132),
        "memory_rate": published("4800 GB/s", f"H200 SXM, 6 stacks HBM3e, {_WHITEPAPER}"),
        "memory_efficiency": measured(
            0.84, "BabelStream copy 4.01 of 4.8 TB/s (83.5%), Azure ND H200 v5"
        ),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": published(
            {"f32": 67e12, "f16": 989e12, "bf16": 989e12, "f8": 1979e12},
            f"H200 SXM, dense, {_WHITEPAPER}",
        ),
        "links": published(18, "H200: 18 NVLink 4 links"),
        **pcie(5),
    },
    "b200-sxm": {
        **identity(
            *("blackwell", 10.0, "180GB"),
            gemm=_B200_GEMM,
            sheet="data sheet: 180 GB usable in HGX B200",
        ),
        "sms": published(148, f"B200, {_WHITEPAPER}"),
        **common(148),
        "memory_rate": published("8 TB/s", f"B200, 8 stacks HBM3e, {_WHITEPAPER}"),
        "memory_efficiency": assumed(0.9, "the predecessors reach 84 to 93%"),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": published(
            {"f32": 80e12, "f16": 2250e12, "bf16": 2250e12, "f8": 4500e12},
            f"B200, dense, {_WHITEPAPER}",
        ),
        "links": published(18, "B200: 18 NVLink 5 links"),
        **pcie(5),
    },
    "gb200": {
        **identity("blackwell", 10.0, "186GB", gemm=_B200_GEMM),
        "sms": published(148, f"GB200, {_WHITEPAPER}; 148 to 152 are seen"),
        **common(148),
        "memory_rate": published("8 TB/s", f"GB200, 8 stacks HBM3e per GPU, {_WHITEPAPER}"),
        "memory_efficiency": assumed(0.9, "the predecessors reach 84 to 93%"),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": published(
            {"f32": 80e12, "f16": 2500e12, "bf16": 2500e12, "f8": 5000e12},
            f"GB200, dense, {_WHITEPAPER}",
        ),
        "links": published(18, "GB200: 18 NVLink 5 links per GPU"),
    },
    "gh200": {
        **identity("hopper", 9.0, "96GB", gemm=_H100_GEMM),
        "sms": published(132, f"GH200, {_WHITEPAPER}"),
        **common(132),
        "memory_rate": measured(
            "4023 GB/s", "GH200 96 GB HBM3: clock x bus width, simllm envelope"
        ),
        "memory_efficiency": measured(
            0.86, "read 3758 (93.4%), copy 3451 of 4023 GB/s (85.8%), simllm GH200 envelope"
        ),
        **traffic(0.57, L2_HOLDS),
        "peak_flops": published(
            {"f32": 67e12, "f16": 989e12, "bf16": 989e12, "f8": 1979e12},
            f"GH200, dense, {_WHITEPAPER}",
        ),
        "links": published(18, "GH200: 18 NVLink 4 links; the CPU is on NVLink-C2C"),
    },
    "host": {
        "architecture": assumed("host", "an ideal host: all delay is the network's"),
        "sms": assumed(64, "cores of a server"),
        "cta_slots": assumed(256, "no limit of interest: flows of a host"),
        "write_latency": assumed(
            "1ps", "an ideal traffic source and sink: delay is the network's only"
        ),
        "read_latency": assumed("1ps", "see write_latency"),
        "response_latency": assumed("1ps", "see write_latency"),
        "memory_quantum": assumed("2us", "as for GPUs"),
        "memory_rate": assumed("100 TB/s", "never the limit"),
        "memory_efficiency": assumed(1.0, "never the limit"),
        "memory_per_delivered": assumed(0.0, "memory of hosts is not modelled"),
        "memory_per_read": assumed(0.0, "memory of hosts is not modelled"),
        "memory_per_injected": assumed(0.0, "memory of hosts is not modelled"),
        "peak_flops": assumed({}, "hosts run no kernels"),
        "links": assumed(0, "any number"),
    },
}
"""Endpoint chips by name."""

CHIPS["a800-sxm4-80gb"] = CHIPS["a100-sxm4-80gb"] | {
    "links": published(8, "A800: 400 GB/s of NVLink 3, 8 links; otherwise an A100"),
}
CHIPS["h800-sxm5"] = CHIPS["h100-sxm5"] | {
    "links": measured(
        8, "H800: 8 active links, 160 of 200 GB/s per direction (DeepSeek-V3 reports)"
    ),
}
CHIPS["h20-sxm5"] = CHIPS["h100-sxm5"] | {
    "memory": published("96GiB", "data sheet"),
    "sms": published(78, "H20: 78 SMs"),
    **common(78),
    "memory_rate": published("4000 GB/s", "H20: 96 GB HBM3, 4.0 TB/s"),
    "peak_flops": published(
        {"f32": 44e12, "f16": 148e12, "bf16": 148e12, "f8": 296e12}, "H20, dense"
    ),
}
CHIPS["b300-sxm"] = CHIPS["b200-sxm"] | {
    **identity("blackwell", 10.3, "288GB", gemm=_B200_GEMM),
    "peak_flops": published(
        {"f32": 76e12, "f16": 2250e12, "bf16": 2250e12, "f8": 4500e12}, "B300, dense"
    ),
    **pcie(6),
}
CHIPS["gb300"] = CHIPS["gb200"] | {
    **identity("blackwell", 10.3, "288GB", gemm=_B200_GEMM),
    "peak_flops": published(
        {"f32": 80e12, "f16": 2500e12, "bf16": 2500e12, "f8": 5000e12}, "GB300, dense"
    ),
    **pcie(6),
}
