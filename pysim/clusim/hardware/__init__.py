"""Hardware as data: every figure with its unit, how it is known, and its source."""

from __future__ import annotations

from clusim.hardware.cards import CARDS
from clusim.hardware.chips import CHIPS as _SERVER_CHIPS
from clusim.hardware.cpus import CPUS, ROOTS
from clusim.hardware.figures import Figure, Mark, Preset, Value, lookup
from clusim.hardware.links import GPU_FORMATS, GPU_LINKS
from clusim.hardware.networks import NETWORK_FORMATS, NETWORK_LINKS, NETWORK_SWITCHES
from clusim.hardware.nics import NICS, RATE_CONTROLS
from clusim.hardware.numa import DRAM_LINKS, MEMORY, NUMA_FORMATS, NUMA_LINKS
from clusim.hardware.pcie import PCIE_FORMATS, PCIE_LINKS, PCIE_SWITCHES
from clusim.hardware.protocols import ARCHITECTURES, CTA_SKEW, P2P, WINDOW
from clusim.hardware.switches import NVSWITCHES

__all__ = [
    "ARCHITECTURES",
    "CHIPS",
    "CPUS",
    "CTA_SKEW",
    "FORMATS",
    "LINKS",
    "MEMORY",
    "NICS",
    "P2P",
    "RATE_CONTROLS",
    "SWITCHES",
    "WINDOW",
    "Figure",
    "Mark",
    "Preset",
    "Value",
    "lookup",
]

CHIPS: dict[str, Preset] = {**_SERVER_CHIPS, **CARDS, **MEMORY}
"""GPUs, hosts and DRAM by name."""

FORMATS: dict[str, Preset] = {**GPU_FORMATS, **PCIE_FORMATS, **NUMA_FORMATS, **NETWORK_FORMATS}
"""Packet formats by name."""

LINKS: dict[str, Preset] = {
    **GPU_LINKS,
    **PCIE_LINKS,
    **NUMA_LINKS,
    **DRAM_LINKS,
    **NETWORK_LINKS,
}
"""Link types by name."""

SWITCHES: dict[str, Preset] = {**NVSWITCHES, **PCIE_SWITCHES, **ROOTS, **NETWORK_SWITCHES}
"""Switch chips, PCIe switches and root complexes by name."""
