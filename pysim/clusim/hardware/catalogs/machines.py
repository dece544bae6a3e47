"""Catalogue of processors, NICs and switches, by name and by PCI identity."""

from __future__ import annotations

from clusim.hardware.cpu import Cpu, HostCosts, cpu_of, host_of
from clusim.hardware.datafiles import FOLDER, read
from clusim.hardware.nic import Nic, Pci, nic_of, pci_of
from clusim.hardware.switch import Switch, switch_of
from clusim.hardware.transport import Transport, transport_of

_PROCESSORS, _NICS = read(FOLDER / "processors.yaml"), read(FOLDER / "nics.yaml")

PROCESSORS: dict[str, Cpu] = {
    name: cpu_of(name, entry) for name, entry in _PROCESSORS["processors"].items()
}
"""Processors by the name of their root complex."""

_INTEL = host_of("intel", _PROCESSORS["hosts"]["intel"], None)

HOST_COSTS: dict[str, HostCosts] = {
    "intel": _INTEL,
    **{
        vendor: host_of(vendor, entry, _INTEL)
        for vendor, entry in _PROCESSORS["hosts"].items()
        if vendor != "intel"
    },
}
"""Launch costs of hosts, by processor vendor."""

TRANSPORTS: dict[str, Transport] = {
    name: transport_of(name, entry) for name, entry in read(FOLDER / "transports.yaml").items()
}
"""Transports between NCCL and NICs, by name."""

ADAPTERS: dict[str, Nic] = {
    name: nic_of(name, entry, TRANSPORTS) for name, entry in _NICS["nics"].items()
}
"""NICs by name."""

CROSSBARS: dict[str, Switch] = {
    name: switch_of(name, entry) for name, entry in read(FOLDER / "switches.yaml").items()
}
"""Switches by name, without root complexes."""

PCIE_SWITCH_IDS = {identity: item.name for item in CROSSBARS.values() for identity in item.pci_ids}
"""PCIe switches by PCI vendor and device number."""

USUAL_SWITCHES = {what: item.name for item in CROSSBARS.values() for what in item.usual_for}
"""Switch that a link, or a kind of network, usually leads to."""

ADAPTER_IDS: dict[tuple[int, int], Pci] = {
    (item.vendor, item.device): item for item in map(pci_of, _NICS["pci_ids"])
}
"""NICs by PCI vendor and device numbers."""
