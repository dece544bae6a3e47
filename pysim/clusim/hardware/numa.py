"""Host interior: links between sockets, links between CPU and GPU, DRAM.

**Hardware** Sockets are joined by two to four coherent links that carry cache lines of 64 B with
separate framing. DRAM channels are half duplex and reach 75 to 90% of their peak.
**Model** A socket link has its physical rate and pays a header per cache line; DRAM is a `memory` node
with the peak of its channels and an efficiency, behind a link of that rate in each direction, so that
reads and writes together are limited by the node.
**Not modelled** Snoops and directories, NUMA clusters inside a socket, last-level caches (DDIO), banks
and refresh.
**Parameters** The figures of ``socket_links.yaml`` and of DRAM below, by the keys of a topology file.
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import read
from clusim.hardware.figures import Preset, assumed, presets, published
from clusim.hardware.pcie import PCIE_WEIGHT

_DATA = read(Path(__file__).with_name("socket_links.yaml"))

NUMA_FORMATS = presets(_DATA["formats"])
"""Packet formats by name."""

NUMA_LINKS = presets(_DATA["links"])
"""Links between sockets, and between a Grace and its GPU, by name."""


def _memory(peak: str, subject: str, efficiency: float, cpu: str) -> Preset:
    zero = assumed(0, "no links but the one to its socket")
    one = assumed(1.0, "every byte that is delivered or fetched crosses the channels once", "0%")
    return {
        "sms": assumed(1, "runs no kernels; the processes that serve a NIC are its CTAs"),
        "cta_slots": assumed(256, "the number of flows of the engine"),
        "write_latency": assumed("60ns", "accepted by the memory controller"),
        "read_latency": assumed(
            "90ns", f"idle load from local DRAM, 80 to 110 ns ({cpu})", ["80ns", "110ns"]
        ),
        "response_latency": assumed("50ns", "through the CPU's mesh into a core"),
        "memory_quantum": assumed("2us", "as for GPUs"),
        "memory_rate": published(peak, f"{subject} ({cpu})"),
        "memory_efficiency": assumed(
            efficiency, f"STREAM on {cpu} reaches 75 to 90% of the peak", [0.75, 0.9]
        ),
        "memory_per_delivered": one,
        "memory_per_read": one,
        "memory_per_injected": one,
        "peak_flops": assumed({}, "runs no kernels"),
        "links": zero,
    }


MEMORY: dict[str, Preset] = {name: _memory(*row) for name, row in _DATA["dram"].items()}
"""DRAM of a socket by name, for nodes of kind `memory`."""


def _dram(peak: str, subject: str, efficiency: float, cpu: str) -> Preset:
    return {
        "rate": published(peak, f"{subject} ({cpu}); in each direction, the node limits the sum"),
        "latency": assumed("10ns", "between mesh and memory controller"),
        "format": published("dram", "no packets"),
        "buffer": assumed("128KiB", "queues of the memory controllers"),
        "weight": assumed(PCIE_WEIGHT, "NVLink is preferred for any number of hops"),
        "class": assumed("dram", "class in reports"),
    }


DRAM_LINKS: dict[str, Preset] = {f"dram-{name}": _dram(*row) for name, row in _DATA["dram"].items()}
"""Links between a root complex and its memory, by name."""
