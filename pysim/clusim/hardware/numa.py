"""Host interior: links between sockets, links between CPU and GPU, DRAM.

**Hardware** Sockets are joined by two to four coherent links that carry cache lines of 64 B with
separate framing. DRAM channels are half duplex and reach 75 to 90% of their peak.
**Model** A socket link has its physical rate and pays a header per cache line; DRAM is a `memory` node
with the peak of its channels and an efficiency, behind a link of that rate in each direction, so that
reads and writes together are limited by the node.
**Not modelled** Snoops and directories, NUMA clusters inside a socket, last-level caches (DDIO), banks
and refresh.
**Parameters** The figures of ``socket_links.yaml``, by the keys of a topology file.
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import read
from clusim.hardware.figures import Preset, figures, presets
from clusim.hardware.pcie import PCIE_WEIGHT

_DATA = read(Path(__file__).with_name("socket_links.yaml"))

NUMA_FORMATS = presets(_DATA["formats"])
"""Packet formats by name."""

NUMA_LINKS = presets(_DATA["links"])
"""Links between sockets, and between a Grace and its GPU, by name."""


_DRAM = {
    name: dict(
        zip(
            ("peak", "subject", "efficiency", "cpu", "format"),
            (*row, "dram")[:5],
            strict=True,
        ),
        weight=PCIE_WEIGHT,
    )
    for name, row in _DATA["dram"].items()
}

MEMORY: dict[str, Preset] = {
    name: figures(_DATA["memory"], row) for name, row in _DRAM.items()
}
"""DRAM of a socket by name, for nodes of kind `memory`."""

DRAM_LINKS: dict[str, Preset] = {
    f"dram-{name}": figures(_DATA["memory_link"], row) for name, row in _DRAM.items()
}
"""Links between a root complex and its memory, by name."""
