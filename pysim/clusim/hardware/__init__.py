"""Hardware as data: one object per GPU, processor and NIC.

Every figure has a unit, a mark and a source. Catalogues list the objects of GPUs, architectures, CPUs,
NICs and switches; links and packet formats are tables by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusim.base.datafiles import OnDemand
from clusim.hardware.bounds import Value
from clusim.hardware.catalog import (
    ADAPTER_IDS,
    ADAPTERS,
    CROSSBARS,
    FAMILIES,
    GPUS,
    HOST_COSTS,
    PCIE_SWITCH_IDS,
    PROCESSORS,
    SWITCHES_BY_LINK,
    TRANSPORTS,
    USUAL_SWITCHES,
    gfx_of,
    gpu,
    gpu_by_gfx,
    gpu_by_pci,
    stand_in,
    stand_ins,
)
from clusim.hardware.cpu import HOST, Cpu, HostCosts
from clusim.hardware.ctas import CTAS, DEEPEP
from clusim.hardware.figures import MARKS, Figure, Mark, Preset, count_marks
from clusim.hardware.frameworks import (
    BLAS_HANDLES,
    CONTEXT,
    FRAGMENTED,
    FRAMEWORKS,
    LAUNCH_QUEUE,
    Framework,
)
from clusim.hardware.gpu import Architecture, Gpu
from clusim.hardware.links import GPU_FORMATS, GPU_LINKS, Switch, nccl_link_GBps
from clusim.hardware.networks import NETWORK_FORMATS, NETWORK_LINKS
from clusim.hardware.nic import RATE_CONTROLS, Nic, Pci, Transport
from clusim.hardware.numa import DRAM_LINKS, MEMORY, NUMA_FORMATS, NUMA_LINKS
from clusim.hardware.pcie import PCIE_FORMATS, PCIE_LINKS
from clusim.hardware.protocols import CTA_SKEW, WINDOW

__all__ = [
    "ADAPTERS",
    "ADAPTER_IDS",
    "ARCHITECTURES",
    "BLAS_HANDLES",
    "CHIPS",
    "CONTEXT",
    "CPUS",
    "CROSSBARS",
    "CTA_SKEW",
    "DEEPEP",
    "FAMILIES",
    "FORMATS",
    "FRAGMENTED",
    "FRAMEWORKS",
    "GPUS",
    "HOST_COSTS",
    "KERNELS",
    "LAUNCH_QUEUE",
    "LINKS",
    "MARKS",
    "MEMORY",
    "NICS",
    "P2P",
    "PCIE_SWITCH_IDS",
    "PROCESSORS",
    "RATE_CONTROLS",
    "SWITCHES",
    "SWITCHES_BY_LINK",
    "TRANSPORTS",
    "USUAL_SWITCHES",
    "WINDOW",
    "Architecture",
    "Cpu",
    "Figure",
    "Framework",
    "Gpu",
    "HostCosts",
    "Mark",
    "Nic",
    "Pci",
    "Preset",
    "Switch",
    "Transport",
    "Value",
    "all_figures",
    "count_marks",
    "gfx_of",
    "gpu",
    "gpu_by_gfx",
    "gpu_by_pci",
    "nccl_link_GBps",
    "stand_in",
    "stand_ins",
]

_OTHERS: dict[str, Preset] = {"host": HOST, **MEMORY}


def _chip(name: str) -> Preset | None:
    """Return a chip without reading the others; raises KeyError if there is none."""
    return _OTHERS[name] if name in _OTHERS else GPUS[name].preset


CHIPS: Mapping[str, Preset] = OnDemand(
    lambda: {**{name: item.preset for name, item in GPUS.items()}, **_OTHERS}, _chip
)
"""Chips of topology files: GPUs, hosts and DRAM."""

ARCHITECTURES: Mapping[str, Mapping[str, Preset]] = OnDemand(
    lambda: {name: item.protocols for name, item in FAMILIES.items()}
)
"""Protocols by architecture and name."""

P2P: Mapping[str, Figure] = OnDemand(
    lambda: {name: item.p2p for name, item in FAMILIES.items()}
)
"""Direction of NCCL's point-to-point connections over NVLink (pull or push), by architecture."""

CPUS: Mapping[str, str] = OnDemand(
    lambda: {
        name: name
        for name in (str(i.figures["cpu"].value) for i in PROCESSORS.values())
    }
)
"""Processors as NCCL distinguishes them, by vendor and model."""

NICS: Mapping[str, Preset] = OnDemand(
    lambda: {name: item.figures for name, item in ADAPTERS.items()}
)
"""Figures of NICs by name."""

FORMATS: dict[str, Preset] = {
    **GPU_FORMATS,
    **PCIE_FORMATS,
    **NUMA_FORMATS,
    **NETWORK_FORMATS,
}
"""Packet formats by name."""

LINKS: dict[str, Preset] = {
    **GPU_LINKS,
    **PCIE_LINKS,
    **NUMA_LINKS,
    **DRAM_LINKS,
    **NETWORK_LINKS,
}
"""Link types by name."""

SWITCHES: Mapping[str, Preset] = OnDemand(
    lambda: {
        **{name: item.figures for name, item in CROSSBARS.items()},
        **{name: item.figures for name, item in PROCESSORS.items()},
    }
)
"""Switch chips, PCIe switches and root complexes by name."""


KERNELS: Preset = CTAS
"""Kernel parameters of every chip."""


def all_figures() -> list[Figure]:
    """Return the figures of all objects and tables, with repetitions."""
    from clusim.hardware.engines import ENGINES

    result: list[Figure] = []
    objects: tuple[Mapping[str, Any], ...] = (
        GPUS,
        FAMILIES,
        PROCESSORS,
        HOST_COSTS,
        FRAMEWORKS,
        ADAPTERS,
        CROSSBARS,
        ENGINES,
    )
    for table in objects:
        for item in table.values():
            result += item.all_figures()
    tables = (FORMATS, LINKS, RATE_CONTROLS, MEMORY)
    for presets in tables:
        result += [
            figure for preset in presets.values() for figure in preset.values()
        ]
    result += HOST.values()
    result += [CTA_SKEW, WINDOW, LAUNCH_QUEUE, CONTEXT, BLAS_HANDLES, FRAGMENTED]
    return [*result, *KERNELS.values(), *DEEPEP.values()]
