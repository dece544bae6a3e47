"""An adapter that nothing is known of."""

from __future__ import annotations

from clusim.hardware.adapters.nvidia import LATENCY
from clusim.hardware.nic import Nic, Pci, adapter
from clusim.hardware.transports.verbs import TRANSPORT as VERBS

NICS = (Nic(name="nic", figures=adapter(VERBS, LATENCY, 0)),)

PCI_IDS: tuple[Pci, ...] = ()
