"""An adapter that nothing is known of."""

from __future__ import annotations

from clusim.hardware.adapters.nvidia import LATENCY
from clusim.hardware.nic import Nic, Pci, adapter

NICS = (Nic(name="nic", figures=adapter(LATENCY, 0)),)

PCI_IDS: tuple[Pci, ...] = ()
