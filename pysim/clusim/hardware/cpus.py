"""Root complexes: the switch that a CPU socket is for its PCIe ports, its memory and its neighbours.

**Hardware** A TLP from a root port enters the mesh of the socket; packets for another port (peer to peer) are split
into cache lines on most Intel parts, and forwarded whole on AMD's.
**Model** A switch of the latency of the mesh; `peer_payload` is the largest payload of packets between two PCIe
devices that cross it. Peer to peer is used only where the fabric says so, otherwise data are staged in host memory.
**Not modelled** Limits of root ports on packets in flight, the IOMMU and its misses, NUMA clusters (use one root per
cluster).
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, published

__all__ = ["CPUS", "ROOTS"]

_INTEL_LATENCY = calibrated(
    "130ns",
    "half of what DMA reads of DRAM take (400-700 ns, Neugebauer et al., SIGCOMM 2018) less links and DRAM",
)
_AMD_LATENCY = calibrated(
    "160ns",
    "I/O die between root port and data fabric; DMA reads take some 60 ns more than on Intel",
)
_GRACE_LATENCY = assumed("150ns", "coherent mesh between C2C, PCIe and memory, as the other CPUs")
_SPLIT = published(
    "64B",
    "peer to peer through an Intel root complex moves 64 B TLPs: NCCL INTEL_P2P_OVERHEAD, src/graph/topo.h",
)
_WHOLE = assumed("128B", "forwards the TLPs of a GPU as they are; NCCL charges nothing on AMD")


_TOPO = "NCCL, src/graph/topo.h and topo.cc: vendor and model of a CPU, by which it takes rates and distances"


def _root(latency: Figure, peer: Figure, what: str, cpu: str) -> Preset:
    return {
        "cpu": published(cpu, _TOPO),
        "latency": latency,
        "peer_payload": peer,
        "store_and_forward": assumed(False, f"{what}: TLPs are forwarded as they come"),
        "tier": assumed("root", "tier in reports"),
    }


ROOTS: dict[str, Preset] = {
    "xeon-ivb": _root(_INTEL_LATENCY, _SPLIT, "Ivy Bridge E5 v2", "intel broadwell"),
    "xeon-bdw": _root(_INTEL_LATENCY, _SPLIT, "Broadwell E5 v4", "intel broadwell"),
    "xeon-skl": _root(_INTEL_LATENCY, _SPLIT, "Skylake and Cascade Lake SP", "intel skylake"),
    "xeon-icx": _root(_INTEL_LATENCY, _SPLIT, "Ice Lake SP", "intel skylake"),
    "xeon-spr": _root(_INTEL_LATENCY, _SPLIT, "Sapphire Rapids", "intel sapphire rapids"),
    "xeon-emr": _root(_INTEL_LATENCY, _SPLIT, "Emerald Rapids", "intel emerald rapids"),
    "xeon-gnr": _root(_INTEL_LATENCY, _SPLIT, "Granite Rapids", "intel emerald rapids"),
    "epyc-naples": _root(_AMD_LATENCY, _WHOLE, "EPYC Naples", "amd naples"),
    "epyc-rome": _root(_AMD_LATENCY, _WHOLE, "EPYC Rome", "amd rome"),
    "epyc-milan": _root(_AMD_LATENCY, _WHOLE, "EPYC Milan", "amd milan"),
    "epyc-genoa": _root(_AMD_LATENCY, _WHOLE, "EPYC Genoa", "amd genoa"),
    "epyc-turin": _root(_AMD_LATENCY, _WHOLE, "EPYC Turin", "amd turin"),
    "power9": _root(
        _AMD_LATENCY,
        assumed("128B", "cache lines of POWER are 128 B"),
        "POWER9 with PHB4 bridges",
        "power power9",
    ),
    "grace": _root(_GRACE_LATENCY, _WHOLE, "NVIDIA Grace", "arm grace"),
    "arm": _root(_GRACE_LATENCY, _WHOLE, "other Arm servers", "arm arm"),
    "root-complex": _root(_INTEL_LATENCY, _WHOLE, "unknown CPU", "other unknown"),
}
"""Root complexes by name."""

CPUS: tuple[str, ...] = tuple(dict.fromkeys(str(root["cpu"].value) for root in ROOTS.values()))
"""Processors as NCCL tells them apart: vendor and model."""
