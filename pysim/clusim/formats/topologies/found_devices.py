"""GPUs, NICs and switches that a parsed node has, and their models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clusim.base.limits import natural
from clusim.base.records import dataclass
from clusim.formats.topologies.common import CHIP_OPTION, Draft
from clusim.formats.topologies.identify import (
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PlacedGpu,
    identify,
)
from clusim.formats.topologies.presets import (
    Adapter,
    adapter_of,
    given_chip,
    stated_adapter,
)
from clusim.hardware import CROSSBARS, GPUS, Cpu

_DISPLAYS = {
    0x1A03: "ASPEED",
    0x102B: "Matrox",
    0x8086: "Intel",
    0x1234: "QEMU",
    0x15AD: "VMware",
}
_SPLIT_SWITCHES: Mapping[tuple[int, int], str] = {
    (0x1000, 0xC010): "Broadcom PEX 88000",
    (0x1000, 0xC030): "Broadcom PEX 89000",
}


@dataclass(slots=True)
class Port:
    """A network interface, below a PCI device or virtual; the name of its graph node, and its model."""

    net: Net
    device: ImportedDevice | None
    cpu: ImportedCpu
    name: str = ""
    adapter: Adapter = field(init=False)


class FoundDevices:
    """GPUs and network interfaces of a parsed node."""

    def __init__(self, machine: ImportedMachine, draft: Draft) -> None:
        self.machine = machine
        self.draft = draft
        self.forced = given_chip(draft)
        self.gpus: dict[int, PlacedGpu] = {}  # by the id() of the device
        self.ports: dict[int, Port] = {}  # by the id() of the interface
        self.cpus: dict[str, Cpu] = {}
        self.extra: list[tuple[str, dict[str, Any]]] = []

    def _find_gpus(self) -> None:
        if not any(device.gpu for device in self.machine.walk()):
            for device in filter(_looks_like_gpu, self.machine.walk()):
                device.gpu = ImportedGpu(stated=False, line=device.line)
        result = [
            PlacedGpu(device, device.gpu, cpu)
            for cpu in self.machine.cpus
            for device in cpu.walk()
            if device.gpu is not None
        ]
        if not result:
            raise self.draft.fail(
                "names no GPU; `clusim topo import FILE --onto TOPOLOGY` puts a partial file onto a node"
            )
        if not any(item.gpu.stated or item.gpu.dev is not None for item in result):
            self.draft.assume(
                f"{len(result)} GPUs",
                "PCI devices of class 0x03 (display) and 0x12 (accelerator) are GPUs, in the order of the file",
                "no <gpu> elements in the file; NCCL adds them when it runs",
            )
        unique = are_distinct([item.gpu.dev for item in result])
        if are_distinct([item.gpu.rank for item in result]):
            result.sort(key=lambda item: item.gpu.rank or 0)
        elif unique:
            result.sort(key=lambda item: item.gpu.dev or 0)
        for index, item in enumerate(result):
            item.name = f"gpu{item.gpu.dev if unique else index}"
            self.gpus[id(item.device)] = item

    def _find_nets(self) -> None:
        result: list[Port] = []
        found_nets: set[tuple[str, str, int | None]] = set()
        for cpu in self.machine.cpus:
            for device in cpu.walk():
                result += [
                    Port(net, device, cpu) for net in self._device_nets(device)
                ]
            for net in cpu.nets:
                key = (net.name, net.guid, net.dev)
                if key in found_nets and net.name:
                    self.draft.assume(
                        net.name,
                        "one NIC, at the first CPU that lists it",
                        "the file lists the same interface below several CPUs",
                    )
                    continue
                found_nets.add(key)
                result.append(Port(net, None, cpu))
        unique = are_distinct([port.net.dev for port in result])
        if unique:
            result.sort(key=lambda port: port.net.dev or 0)
        for index, port in enumerate(result):
            port.name = f"nic{port.net.dev if unique else index}"
            self.ports[id(port.net)] = port

    def _device_nets(self, device: ImportedDevice) -> list[Net]:
        if device.gpu is not None:
            device.nets = []
        elif not device.nets and device.is_class(0x02) and not device.is_bridge:
            device.nets = [Net(line=device.line)]
            self.draft.assume(
                device.text or "a device of class 0x02",
                "a NIC with one port",
                "no <net> elements in the file; NCCL adds them when it runs",
            )
        return device.nets

    # Device models.

    def _identify(self) -> None:
        for item in self.gpus.values():
            chip, why = identify(
                self.machine, item.device, self.forced, self.draft.where
            )
            if why:
                settles = CHIP_OPTION if "--chip" in why else ""
                self.draft.assume(item.name, f"chip {chip}", why, settles=settles)
            item.chip = GPUS[chip]
        newest = max(item.chip.pcie for item in self.gpus.values())
        for port in self.ports.values():
            model = self._model(port.device, "nic")
            if model:
                port.adapter = stated_adapter(self.draft, port.net, model)
            else:
                port.adapter = adapter_of(port.net, port.device, newest)

    def _model(self, device: ImportedDevice | None, kind: str) -> str:
        """Return the model of a NIC (``nic``) or switch in the file's remarks; empty if it is not stated."""
        model = (
            self.draft.remarks.models.get(device.bus, "")
            if device is not None
            else ""
        )
        return model if (model in CROSSBARS) == (kind == "switch") else ""


def _looks_like_gpu(device: ImportedDevice) -> bool:
    display = device.is_class(0x03, 0x12) and not device.children
    return display and device.vendor not in _DISPLAYS


def join_virtual_switches(device: ImportedDevice, draft: Draft) -> ImportedDevice:
    """Join the virtual switches of one Broadcom chip, as NCCL does."""
    identity = (device.vendor or 0, device.device or 0)
    device.children = [
        join_virtual_switches(child, draft) for child in device.children
    ]
    if identity not in _SPLIT_SWITCHES or device.subdevice is None:
        return device
    devices: list[ImportedDevice] = []
    joined: list[str] = []
    for child in device.children:
        same = (
            child.vendor or 0,
            child.device or 0,
        ) == identity and child.subvendor == 0x1000
        if same and child.is_bridge and child.gpu is None and not child.nets:
            devices += child.children
            joined.append(child.text)
        else:
            devices.append(child)
    if joined:
        device.children = devices
        draft.assume(
            sorted(joined, key=natural),
            "a part of the switch above it",
            f"one {_SPLIT_SWITCHES[identity]} shows itself as two levels; NCCL joins them as well",
        )
    return device


def are_distinct(numbers: list[int | None]) -> bool:
    """Return True if all numbers are given, differ, and can be part of a name."""
    valid = [
        number for number in numbers if number is not None and 0 <= number < 10**6
    ]
    return len(valid) == len(numbers) == len(set(valid))
