"""Links between GPUs and their packet formats.

**Hardware** NVLink packets are flits of 16 B: one header flit and up to 16 data flits; SM stores use at
most 128 B of payload, copy engines 256 B. Acknowledgements and credits use the opposite wire.
**Model** Payload-layer rate per link, header and payload in whole flits, fractional control bytes per
packet on the opposite wire, a service factor on the packets of in-network operations.
**Not modelled** Lanes, FEC blocks, address-extension and byte-enable flits.
**Parameters** The figures of ``gpu_links.yaml``, by the keys of a topology file.

A switch as one object: ports, latency, reduction unit.

**Hardware** NVSwitch is a single-stage crossbar; generation 3 and 4 replicate multicast stores and reduce on the way
(NVLink SHARP), as do SHARP units in InfiniBand switches. PCIe and Ethernet switches cut through.
**Model** Virtual cut-through with input buffers and virtual output queues; one reduction unit per chip.
**Not modelled** Internal speed-up and the arbiter's pipeline; shared buffers with dynamic thresholds.
**Parameters** The figures of `Switch`; a section of ``switches.yaml`` for each.
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import Entry, pci_id, read
from clusim.base.records import dataclass
from clusim.hardware.figures import (
    OPTIONAL,
    UNITS,
    Preset,
    Sourced,
    build,
    check_figures,
    figures,
    presets,
)


@dataclass(frozen=True, slots=True)
class Switch(Sourced):
    """One kind of switch.

    Attributes
    ----------
    name : str
        As topology files have it.
    figures : Preset
        Its figures.
    pci_ids : tuple of (int, int)
        PCI vendor and device numbers.
    usual_for : tuple of str
        Links, and kinds of networks, that usually lead to it.
    links : tuple of str
        Link types of clusters that it joins if their description names no switch.
    """

    name: str
    figures: Preset
    pci_ids: tuple[tuple[int, int], ...] = ()
    usual_for: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, UNITS["switch"], OPTIONAL["switch"])


def switch_of(name: str, entry: Entry) -> Switch:
    """Return the switch of a section of ``switches.yaml``."""
    ids = tuple(map(pci_id, entry.get("pci_ids", ())))
    return build(
        Switch,
        {**entry, "name": name},
        figures=figures(entry["figures"]),
        pci_ids=ids,
    )


_DATA = read(Path(__file__).with_name("gpu_links.yaml"))

GPU_FORMATS = presets(_DATA["formats"])
"""Packet formats by name."""

GPU_LINKS = presets(_DATA["links"])
"""Link types by name."""

_NCCL_GBps = (
    (107, 31.2),
    (100, 40.1),
    (90, 20.6),
    (87, 12.0),
    (86, 12.0),
    (70, 20.0),
    (0, 18.0),
)


def nccl_link_GBps(compute_capability: int) -> float:
    """Return NCCL's bandwidth of a GPU's NVLink [GB/s] (src/graph/topo.h of 2.18 and later; 107: data of 2.32.3)."""
    return next(rate for lowest, rate in _NCCL_GBps if compute_capability >= lowest)
