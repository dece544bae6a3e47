"""Endpoints of a fabric: what a GPU, a host or its memory does, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COST_ONE = 1 << 16
"""Unit of the `cost16` fields: 2^-16 ps per byte."""


def cost16(bytes_per_s: float) -> int:
    """Return the cost of one byte at a rate [2^-16 ps per byte], at least 1; 0 for a rate that is infinite."""
    if bytes_per_s == float("inf"):
        return 0
    return min(max(1, round(COST_ONE * 1e12 / bytes_per_s)), 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Properties of an endpoint (GPU or host): packets, memory and CTAs.

    Attributes
    ----------
    sms : int
        Streaming multiprocessors; every running CTA of a collective holds one.
    cta_slots : int
        Flows that can be active at once, 1..256.
    write_latency_ps, read_latency_ps, response_latency_ps : int
        Accepted by memory -> visible; request accepted -> response ready; response accepted -> in registers [ps].
    mem_Bps : float
        Peak memory bandwidth [B/s]; `mem_efficiency` of it can be reached.
    mem_quantum_ps : int
        Interval at which memory is shared anew between communication and kernels [ps].
    deliver_256, read_256, inject_256 : int
        Memory bytes per payload byte delivered, read for a remote request, injected [1/256].
    slow_1024 : int
        1024 is the nominal speed; 2048 makes CTAs and kernels take twice as long.
    peak_flops : dict
        Peak dense rate per data type [FLOP/s].
    chip : str
        Name of the chip; `links` is how many links to other GPUs it has (0: any number).
    pcie_Bps : float
        Payload-layer rate of its widest PCIe link [B/s]; 0 is unknown.
    architecture : str
        Row of the presets of protocols and of launching; empty is unknown.
    compute_capability : int
        CUDA compute capability times ten, what NCCL decides by; 0 is unknown.
    peer_access : bool or None
        Whether the driver lets two such chips reach each other over PCIe; None is unknown.
    mem_bytes : int
        Size of its memory [bytes]; 0 is unknown.
    gemm_fraction : float
        Part of the peak that large matrix products reach; 0 is unknown.
    power_W : float
        What it may draw for long [W]; 0 is unknown.
    kernels : str
        Whose measured kernels it takes: a chip, or a file; empty: those of its architecture.
    """

    sms: int = 132
    cta_slots: int = 128
    write_latency_ps: int = 100_000
    read_latency_ps: int = 350_000
    response_latency_ps: int = 100_000
    mem_Bps: float = 3.35e12
    mem_efficiency: float = 0.87
    mem_quantum_ps: int = 2_000_000
    deliver_256: int = 146
    read_256: int = 146
    inject_256: int = 146
    slow_1024: int = 1024
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    chip: str = ""
    links: int = 0
    pcie_Bps: float = 0.0
    architecture: str = ""
    compute_capability: int = 0
    peer_access: bool | None = None
    mem_bytes: int = 0
    gemm_fraction: float = 0.0
    power_W: float = 0.0
    kernels: str = ""

    @property
    def mem_cost16(self) -> int:
        """Cost of a byte of memory traffic [2^-16 ps]."""
        return cost16(self.mem_Bps * self.mem_efficiency)
