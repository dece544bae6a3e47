"""Graph nodes and links of a parsed node: the PCIe tree, CPUs with their memory, and NICs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusim.base.limits import natural, printable
from clusim.formats.topologies.common import CHIP_OPTION, Draft, set_usage
from clusim.formats.topologies.identify import (
    PCIE_GTS,
    BusId,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    generation,
    gts,
    identify,
    processor,
)
from clusim.formats.topologies.nvlinks import connect_gpus
from clusim.formats.topologies.presets import (
    Adapter,
    adapter_of,
    given_chip,
    gpu_pcie,
    known_chip,
    network_of,
    nic_keys,
    numa_link,
    pcie_switch,
    pcie_type,
    shared_c2c,
)
from clusim.hardware import GPUS, Cpu

_DISPLAYS = {0x1A03: "ASPEED", 0x102B: "Matrox", 0x8086: "Intel", 0x1234: "QEMU", 0x15AD: "VMware"}
_WIDTHS = (1, 2, 4, 8, 16)
_DEVICE = re.compile(r"[\w.-]{1,64}(:[0-9]{1,3})?")


def wire_machine(machine: ImportedMachine, draft: Draft) -> None:
    """Fill `draft` with the graph nodes and links of `machine`."""
    _Wiring(machine, draft).run()


class _Wiring:
    def __init__(self, machine: ImportedMachine, draft: Draft) -> None:
        self.machine = machine
        self.draft = draft
        self.forced = given_chip(draft) or None
        self.gpus: list[ImportedDevice] = []
        self.names: dict[int, str] = {}  # of a device, by id()
        self.chips: dict[int, str] = {}
        self.cpu_names: list[str] = []
        self.processors: list[Cpu] = []
        self.nets: list[tuple[Net, ImportedDevice | None, ImportedCpu]] = []
        self.net_names: dict[int, str] = {}
        self.adapters: dict[str, Adapter] = {}
        self.extra: list[tuple[str, dict[str, Any]]] = []

    def run(self) -> None:
        for cpu in self.machine.cpus:
            cpu.devices = [_flattened(device, self.draft) for device in cpu.devices]
        self._find_gpus()
        self._find_nets()
        self._identify()
        self._identify_nets()
        self._add_gpus()
        self._name_cpus()
        for name, cpu in zip(self.cpu_names, self.machine.cpus, strict=True):
            for device in cpu.devices:
                self._attach(device, name)
        by_bus: dict[BusId, str] = {}
        for device in self.gpus:
            if device.bus:
                by_bus.setdefault(device.bus, self.names[id(device)])
        gpus = [(self.names[id(d)], _gpu_of(d), GPUS[self.chips[id(d)]]) for d in self.gpus]
        connect_gpus(self.draft, gpus, by_bus, self._cpu_of())
        self._add_nics()
        self._add_cpus()
        self._network()
        names = [self.names[id(device)] for device in self.gpus]
        set_usage(self.draft, names, self.chips[id(self.gpus[0])])

    # Existing devices.

    def _find_gpus(self) -> None:
        result = [device for device in self.machine.walk() if device.gpu is not None]
        if not result:
            result = [device for device in self.machine.walk() if _looks_like_gpu(device)]
            for device in result:
                device.gpu = ImportedGpu(stated=False, line=device.line)
        if not result:
            raise self.draft.fail(
                "names no GPU; `clusim topo import FILE --onto MACHINE` puts a partial file onto a machine"
            )
        if not any(_gpu_of(device).stated or _gpu_of(device).dev is not None for device in result):
            self.draft.assume(
                f"{len(result)} GPUs",
                "PCI devices of class 0x03 (display) and 0x12 (accelerator) are GPUs, in the order of the file",
                "no <gpu> elements in the file; NCCL adds them when it runs",
            )
        ranks = [_gpu_of(device).rank for device in result]
        devs = [_gpu_of(device).dev for device in result]
        if _distinct(ranks):
            result.sort(key=lambda device: _gpu_of(device).rank or 0)
        elif _distinct(devs):
            result.sort(key=lambda device: _gpu_of(device).dev or 0)
        unique = _distinct(devs)
        for index, device in enumerate(result):
            number = _gpu_of(device).dev if unique else index
            self.names[id(device)] = f"gpu{number}"
        self.gpus = result

    def _find_nets(self) -> None:
        seen: dict[tuple[str, str, int | None], ImportedCpu] = {}
        for cpu in self.machine.cpus:
            for device in cpu.walk():
                self._device_nets(device, cpu)
            for net in cpu.nets:
                key = (net.name, net.guid, net.dev)
                if key in seen and net.name:
                    self.draft.assume(
                        net.name,
                        "one NIC, at the first CPU that lists it",
                        "the file lists the same interface below several CPUs",
                    )
                    continue
                seen[key] = cpu
                self.nets.append((net, None, cpu))
        devs = [net.dev for net, _, _ in self.nets]
        unique = _distinct(devs)
        if unique:
            self.nets.sort(key=lambda item: item[0].dev or 0)
        for index, (net, _, _) in enumerate(self.nets):
            self.net_names[id(net)] = f"nic{net.dev if unique else index}"

    def _identify_nets(self) -> None:
        newest = max(GPUS[chip].pcie for chip in self.chips.values())
        for net, device, _ in self.nets:
            self.adapters[self.net_names[id(net)]] = adapter_of(net, device, newest)

    def _device_nets(self, device: ImportedDevice, cpu: ImportedCpu) -> None:
        if device.gpu is not None:
            device.nets = []
        elif not device.nets and device.is_class(0x02) and not device.is_bridge:
            device.nets = [Net(line=device.line)]
            self.draft.assume(
                device.text or "a device of class 0x02",
                "a NIC with one port",
                "no <net> elements in the file; NCCL adds them when it runs",
            )
        self.nets += [(net, device, cpu) for net in device.nets]

    # Device models.

    def _identify(self) -> None:
        for device in self.gpus:
            chip, why = identify(self.machine, device, self.forced, self.draft.where)
            if why:
                settles = CHIP_OPTION if "--chip" in why else ""
                self.draft.assume(self.names[id(device)], f"chip {chip}", why, settles=settles)
            self.chips[id(device)] = chip

    def _add_gpus(self) -> None:
        for device in self.gpus:
            name, chip = self.names[id(device)], self.chips[id(device)]
            self.draft.node(name, "gpu", chip=known_chip(self.draft, chip, name))
            gpu = _gpu_of(device)
            said = [device.text]
            said += [f"dev {gpu.dev}"] if gpu.dev is not None and device.line else []
            said += [f"rank {gpu.rank}"] if gpu.rank is not None else []
            self.draft.source(name, _said(*said, line=device.line))

    def _name_cpus(self) -> None:
        numas = [cpu.numa for cpu in self.machine.cpus]
        hosts = list(dict.fromkeys(cpu.host for cpu in self.machine.cpus))
        unique = _distinct(numas)
        if -1 in numas:
            self.draft.assume("numaid=-1", "a separate NUMA node", "its number is not in the file")
        for index, cpu in enumerate(self.machine.cpus):
            self.cpu_names.append(f"cpu{cpu.numa if unique else index}")
            result, why = processor(cpu.arch, cpu.vendor, cpu.family, cpu.model)
            chips = {self.chips[id(d)] for d in self.machine.walk() if self._beside(d)}
            if chips and not (cpu.arch or cpu.vendor):
                result, why = (
                    processor("arm64", "NVIDIA", None, None)[0],
                    f"{min(chips)} has it beside it",
                )
            if self.draft.cpu is not None:
                known = (cpu.arch or cpu.vendor) and not why and result is not self.draft.cpu
                why = f"given; the file names {result.name}" if known else ""
                result = self.draft.cpu
            if why:
                self.draft.assume(self.cpu_names[-1], f"processor {result.name}", why)
            self.processors.append(result)
        if len(hosts) > 1:
            self.draft.assume(
                f"{len(hosts)} hosts",
                "one node; their CPUs are joined by GPU links and the network only",
                "the file has several host_hash values",
            )

    def _cpu_of(self) -> dict[str, str]:
        result = {}
        for name, cpu in zip(self.cpu_names, self.machine.cpus, strict=True):
            for device in cpu.walk():
                if id(device) in self.names:
                    result[self.names[id(device)]] = name
        return result

    # The PCIe tree.

    def _attach(self, device: ImportedDevice, parent: str) -> None:
        """Add a device and all below it, joined to the node `parent`."""
        if id(device) in self.names:
            chip = GPUS[self.chips[id(device)]]
            name = self.names[id(device)]
            if among := self._beside(device):
                self.draft.link(name, parent, **shared_c2c(among))
                self.draft.assume(name, "NVLink-C2C to its CPU", f"what {chip.name} has")
            else:
                link = self._pcie(device, name, chip.pcie, 16, f"what {chip.name} has")
                self.draft.link(name, parent, type=gpu_pcie(link))
                self._told(device, [name], link)
            for child in device.children:
                self._attach(child, parent)
        elif device.nets:
            self._attach_nic(device, parent)
        elif device.is_bridge or device.children:
            name = f"pcie{sum(n.startswith('pcie') for n, _ in self.extra)}"
            gen = max(self._newest(d) for d in device.walk()) or 4
            switch, why = pcie_switch(device.vendor, device.device)
            if why and (device.vendor is not None or device.cls is not None):
                self.draft.assume(name, f"PCIe switch {switch}", why)
            self.extra.append((name, {"switch": switch}))
            self.draft.source(name, _said(device.text, line=device.line))
            link = self._pcie(device, name, gen, 16, "the fastest device below it")
            self._suspicious(device, name)
            self.draft.link(name, parent, type=link)
            for child in device.children:
                self._attach(child, name)
        elif not device.ignored:
            what = (
                "a display adapter without <gpu>"
                if device.is_class(0x03)
                else "not a GPU, NIC or switch"
            )
            self.draft.assume(
                device.text or f"line {device.line}",
                "ignored",
                f"{what}: PCI class 0x{device.cls or 0:06x}",
            )

    def _beside(self, device: ImportedDevice) -> int:
        """Return the number of GPUs on the CPU of this GPU if they share its NVLink-C2C.

        0 if the GPU does not have NVLink-C2C, or the file names the CPU.
        """
        if id(device) not in self.chips or GPUS[self.chips[id(device)]].form != "superchip":
            return 0
        for cpu in self.machine.cpus:
            devices = list(cpu.walk())
            if any(other is device for other in devices):
                said = cpu.arch or cpu.vendor or device.speed
                return 0 if said else sum(id(other) in self.chips for other in devices)
        return 0

    def _newest(self, device: ImportedDevice) -> int:
        """Return the PCIe generation of a device in the file, otherwise its probable generation."""
        given = generation(device.speed)
        if given is None and id(device) in self.chips:
            given = GPUS[self.chips[id(device)]].pcie
        if given is None and device.nets:
            given = _slot_gen(self.adapters[self.net_names[id(device.nets[0])]].gbps)
        return given or 0

    def _attach_nic(self, device: ImportedDevice, parent: str) -> None:
        names = [self.net_names[id(net)] for net in device.nets]
        gen = _slot_gen(max(self.adapters[name].gbps for name in names))
        link = self._pcie(device, names[0], gen, 16, "enough for the rate of the NIC")
        self._told(device, names, link)
        if len(names) > 1:
            card = f"card{sum(n.startswith('card') for n, _ in self.extra)}"
            switch, _ = pcie_switch(device.vendor, device.device)
            self.extra.append((card, {"switch": switch, "latency": "1ns"}))
            self.draft.source(card, _said(device.text, f"{len(names)} ports", line=device.line))
            self.draft.link(card, parent, type=link)
            self.draft.assume(
                names,
                f"ports of one card share its {link} slot",
                "interfaces of one PCI device",
            )
            parent = card
        for name in names:
            self.draft.link(name, parent, type=link)

    def _told(self, device: ImportedDevice, names: list[str], link: str) -> None:
        """Note the PCIe slot that NCCL reads if it differs from the existing slot."""
        if not device.told_speed and device.told_width is None:
            return
        gen = generation(device.told_speed or device.speed)
        lanes = device.told_width or device.width
        told = pcie_type(gen, lanes) if gen and lanes in _WIDTHS else link
        if told != link:
            slot = told.removeprefix("pcie-")
            self.draft.settings.setdefault("told_pcie", {}).update(dict.fromkeys(names, slot))

    def _pcie(self, device: ImportedDevice, name: str, gen: int, width: int, why: str) -> str:
        """Return the type of the link between a device and its parent."""
        given, lanes = generation(device.speed), device.width
        said = printable(device.speed, 24) if device.speed else ""
        if given is None:
            if said:
                self.draft.assume(name, f"PCIe generation {gen}", f"unknown speed {said!r}; {why}")
            else:
                self.draft.assume(name, f"PCIe generation {gen}", f"no speed in the file; {why}")
            given = gen
        elif gts(device.speed) != PCIE_GTS[given]:
            self.draft.assume(
                name, f"PCIe generation {given}", f"the nearest to the file's {said!r}"
            )
        if not lanes or lanes < 0:
            self.draft.assume(name, f"{width} lanes", f"no width in the file; {why}")
            lanes = width
        elif lanes not in _WIDTHS:
            nearest = min(_WIDTHS, key=lambda w: (abs(w - (lanes or 0)), -w))
            self.draft.assume(name, f"{nearest} lanes", f"the nearest to the file's {lanes}")
            lanes = nearest
        return pcie_type(given, lanes)

    def _suspicious(self, device: ImportedDevice, name: str) -> None:
        up = (generation(device.speed) or 0, device.width or 0)
        below = max((generation(child.speed) or 0 for child in device.children), default=0)
        if up[0] and below - up[0] >= 2:
            self.draft.assume(
                name,
                f"its link to the CPU runs at generation {up[0]}, as in the file",
                f"devices below it run at generation {below}: an idle link may have been asleep"
                " when the file was written",
            )

    # NICs, CPUs, network.

    def _add_nics(self) -> None:
        for net, device, cpu in self.nets:
            name = self.net_names[id(net)]
            adapter = self.adapters[name]
            keys = nic_keys(self.draft, adapter, net.gdr)
            self.draft.node(name, "nic", **keys)
            if adapter.why:
                self.draft.assume(name, f"NIC {keys['nic']}", adapter.why)
            said = [net.name, device.text if device is not None else ""]
            said += [f"{net.speed_mbps / 1000:g} Gb/s"] if net.speed_mbps else []
            said += ["reduces in the network"] if net.collective else []
            self.draft.source(name, _said(*said, line=net.line))
            own = net.name if net.port in (None, 1) else f"{net.name}:{net.port}"
            if _DEVICE.fullmatch(own):
                self.draft.settings.setdefault("nic_names", {})[name] = own
            if device is None:
                parent = self.cpu_names[
                    next(i for i, c in enumerate(self.machine.cpus) if c is cpu)
                ]
                self.draft.link(name, parent, type=pcie_type(3, 16))
                self.draft.assume(
                    name,
                    "joined to its CPU like a PCIe Gen3 x16 card",
                    "an interface without a PCI device: virtual",
                )
        for name, keys in self.extra:
            self.draft.node(name, "switch", **keys)

    def _add_cpus(self) -> None:
        hosts = [cpu.host for cpu in self.machine.cpus]
        for name, result in zip(self.cpu_names, self.processors, strict=True):
            self.draft.node(name, "switch", switch=result.name)
        memory = {}
        for name, result in zip(self.cpu_names, self.processors, strict=True):
            dram = name.replace("cpu", "mem", 1)
            self.draft.node(dram, "memory", chip=result.memory)
            self.draft.link(name, dram, type=f"dram-{result.memory}")
            memory[dram] = result.name
        self.draft.assume(
            memory,
            "the memory its processor usually has",
            "the file does not mention host memory",
        )
        pairs = [
            (i, j)
            for i in range(len(hosts))
            for j in range(i + 1, len(hosts))
            if hosts[i] == hosts[j]
        ]
        for i, j in pairs:
            result = self.processors[i]
            count = result.numa_links if len(hosts) == 2 else 1
            keys = numa_link(result)
            self.draft.link(self.cpu_names[i], self.cpu_names[j], count=count, **keys)
            self.draft.assume(
                [self.cpu_names[i], self.cpu_names[j]],
                f"joined to the other NUMA nodes by {count} x {keys['type']}",
                "links of CPUs are not in the file; every pair, as NCCL assumes",
            )

    def _network(self) -> None:
        result = network_of(self.adapters)
        if result is not None:
            keys, members = result
            self.draft.settings["network"] = keys
            self.draft.assume(
                members,
                "with --nodes, joined by "
                + ", ".join(f"{key} {value}" for key, value in keys.items()),
                "the file describes one node; the usual network of such NICs",
            )


def _slot_gen(gbps: float) -> int:
    """Return the PCIe generation of an x16 slot that carries a rate."""
    return 3 if gbps <= 100 else 4 if gbps <= 200 else 5 if gbps <= 400 else 6


def _said(*parts: str, line: int) -> str:
    """Return the names of an element in the file, and its line."""
    words = [*dict.fromkeys(part for part in parts if part)]
    words += [f"line {line}"] if line else []
    return ", ".join(words) or "not named"


def _distinct(numbers: list[int | None]) -> bool:
    """Return True if all numbers are given, differ, and can be part of a name."""
    given = [number for number in numbers if number is not None and 0 <= number < 10**6]
    return len(given) == len(numbers) == len(set(given))


def _gpu_of(device: ImportedDevice) -> ImportedGpu:
    return device.gpu if device.gpu is not None else ImportedGpu()


def _looks_like_gpu(device: ImportedDevice) -> bool:
    display = device.is_class(0x03, 0x12) and not device.children
    return display and device.vendor not in _DISPLAYS


_SPLIT_SWITCHES: Mapping[tuple[int, int], str] = {
    (0x1000, 0xC010): "Broadcom PEX 88000",
    (0x1000, 0xC030): "Broadcom PEX 89000",
}


def _flattened(device: ImportedDevice, draft: Draft) -> ImportedDevice:
    """Join the virtual switches of one Broadcom chip, as NCCL does."""
    identity = (device.vendor or 0, device.device or 0)
    device.children = [_flattened(child, draft) for child in device.children]
    if identity not in _SPLIT_SWITCHES or device.subdevice is None:
        return device
    kept: list[ImportedDevice] = []
    joined: list[str] = []
    for child in device.children:
        same = (child.vendor or 0, child.device or 0) == identity and child.subvendor == 0x1000
        if same and child.is_bridge and child.gpu is None and not child.nets:
            kept += child.children
            joined.append(child.text)
        else:
            kept.append(child)
    if joined:
        device.children = kept
        draft.assume(
            sorted(joined, key=natural),
            "a part of the switch above it",
            f"one {_SPLIT_SWITCHES[identity]} shows itself as two levels; NCCL joins them as well",
        )
    return device
