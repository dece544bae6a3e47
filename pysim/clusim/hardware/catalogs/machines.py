"""The processors, adapters and switches there are, by name and by PCI identity."""

from __future__ import annotations

from clusim.hardware import adapters, processors, switchgear, transports
from clusim.hardware.cpu import Cpu, HostCosts
from clusim.hardware.nic import Nic, Pci
from clusim.hardware.registry import objects_of
from clusim.hardware.switch import Switch
from clusim.hardware.transport import Transport

PROCESSORS: dict[str, Cpu] = {item.name: item for _, item in objects_of(processors, Cpu, "CPUS")}
"""Processors by the name of their root complex."""

HOST_COSTS: dict[str, HostCosts] = {
    item.vendor: item for _, item in objects_of(processors, HostCosts, "HOST")
}
"""Launch costs of hosts, by processor vendor."""

TRANSPORTS: dict[str, Transport] = {
    item.name: item for _, item in objects_of(transports, Transport, "TRANSPORT")
}
"""Transports by which NCCL reaches adapters, by name."""

ADAPTERS: dict[str, Nic] = {item.name: item for _, item in objects_of(adapters, Nic, "NICS")}
"""Network adapters by name."""

CROSSBARS: dict[str, Switch] = {
    item.name: item for _, item in objects_of(switchgear, Switch, "SWITCHES")
}
"""Switches by name, without root complexes."""

PCIE_SWITCH_IDS = {identity: item.name for item in CROSSBARS.values() for identity in item.pci_ids}
"""PCIe switches by PCI vendor and device number."""

USUAL_SWITCHES = {what: item.name for item in CROSSBARS.values() for what in item.usual_for}
"""Switch that a link, or a kind of network, usually leads to."""

ADAPTER_IDS: dict[tuple[int, int], Pci] = {
    (item.vendor, item.device): item for _, item in objects_of(adapters, Pci, "PCI_IDS")
}
"""NICs by PCI vendor and device numbers."""
