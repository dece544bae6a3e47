"""A switch as one object: ports, latency, reduction unit.

**Hardware** NVSwitch is a single-stage crossbar; generation 3 and 4 replicate multicast stores and reduce on the way
(NVLink SHARP), as do SHARP units in InfiniBand switches. PCIe and Ethernet switches cut through.
**Model** Virtual cut-through with input buffers and virtual output queues; one reduction unit per chip.
**Not modelled** Internal speed-up and the arbiter's pipeline; shared buffers with dynamic thresholds.
**Parameters** The figures of `Switch`; a section of ``switches.yaml`` for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusim.hardware.datafiles import Entry, build, figures, pci_id
from clusim.hardware.figures import Figure, Preset, check_figures

_UNITS = {
    "latency": "s",
    "store_and_forward": "true or false",
    "ports": "ports",
    "buffer": "B",
    "tier": "word",
    "reduction_latency": "s",
    "reduction_capacity": "B",
    "reduction_rate": "B/s",
    "reduction_slots": "packets",
}
_REQUIRED = ("latency", "store_and_forward")


@dataclass(frozen=True, slots=True)
class Switch:
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
    """

    name: str
    figures: Preset
    pci_ids: tuple[tuple[int, int], ...] = ()
    usual_for: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS, [key for key in _UNITS if key not in _REQUIRED])

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from self.figures.values()


def switch_of(name: str, entry: Entry) -> Switch:
    """Return the switch of a section of ``switches.yaml``."""
    ids = tuple(map(pci_id, entry.get("pci_ids", ())))
    return build(Switch, {**entry, "name": name}, figures=figures(entry["figures"]), pci_ids=ids)
