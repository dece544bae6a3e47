"""Graph nodes and links of a parsed node: the PCIe tree, CPUs with their memory, and NICs (`found_devices`)."""

from __future__ import annotations

import re
from itertools import combinations

from clusim.base.limits import printable
from clusim.formats.topologies.common import Draft, set_usage
from clusim.formats.topologies.found_devices import (
    FoundDevices,
    are_distinct,
    join_virtual_switches,
)
from clusim.formats.topologies.identify import (
    PCIE_GTS,
    ImportedCpu,
    ImportedDevice,
    ImportedMachine,
    PlacedGpu,
    generation,
    gts,
    processor,
)
from clusim.formats.topologies.nvlinks import connect_gpus
from clusim.formats.topologies.presets import (
    USUAL_MEMORY,
    add_memory,
    gpu_pcie,
    known_chip,
    nic_keys,
    pcie_switch,
    pcie_type,
    set_network,
    shared_c2c,
)
from clusim.hardware import PROCESSORS, Gpu
from clusim.hardware.pcie import LANES

_DEVICE = re.compile(r"[\w.-]{1,64}(:[0-9]{1,3})?")


def wire_machine(machine: ImportedMachine, draft: Draft) -> None:
    """Fill `draft` with the graph nodes and links of `machine`."""
    _Wiring(machine, draft).run()


class _Wiring(FoundDevices):
    def run(self) -> None:
        for cpu in self.machine.cpus:
            cpu.devices = [
                join_virtual_switches(device, self.draft) for device in cpu.devices
            ]
        self._find_gpus()
        self._find_nets()
        self._identify()
        self._add_gpus()
        self._name_cpus()
        for cpu in self.machine.cpus:
            for device in cpu.devices:
                self._attach(device, cpu.name)
        gpus = list(self.gpus.values())
        connect_gpus(self.draft, gpus)
        self._add_nics()
        self._add_cpus()
        set_network(
            self.draft, {port.name: port.adapter for port in self.ports.values()}
        )
        set_usage(self.draft, [item.name for item in gpus], gpus[0].chip.name)
        self._apply_remarks()

    def _apply_remarks(self) -> None:
        """Set the settings and the keys of graph nodes that an export by clusim states."""
        self.draft.settings |= self.draft.remarks.settings
        for port in self.ports.values():
            latency = (
                self.draft.remarks.latencies.get(port.device.bus)
                if port.device
                else None
            )
            if latency is not None:
                self.draft.nodes[port.name]["latency"] = latency

    def _add_gpus(self) -> None:
        for item in self.gpus.values():
            chip = known_chip(self.draft, item.chip.name, item.name)
            self.draft.node(item.name, "gpu", chip=chip)
            texts = [item.device.text]
            texts += (
                [f"dev {item.gpu.dev}"]
                if item.gpu.dev is not None and item.device.line
                else []
            )
            texts += [f"rank {item.gpu.rank}"] if item.gpu.rank is not None else []
            self.draft.source(
                item.name, _describe_element(*texts, line=item.device.line)
            )

    def _name_cpus(self) -> None:
        unique = are_distinct([cpu.numa for cpu in self.machine.cpus])
        if any(cpu.numa == -1 for cpu in self.machine.cpus):
            self.draft.assume(
                "numaid=-1", "a separate NUMA node", "its number is not in the file"
            )
        for index, cpu in enumerate(self.machine.cpus):
            cpu.name = f"cpu{cpu.numa if unique else index}"
            result, why = processor(cpu.arch, cpu.vendor, cpu.family, cpu.model)
            if (chip := self._superchip(cpu)) is not None:
                result, why = (
                    PROCESSORS[chip.processor],
                    f"{chip.name} has it beside it",
                )
            if self.draft.cpu is not None:
                is_named = (
                    (cpu.arch or cpu.vendor)
                    and not why
                    and result is not self.draft.cpu
                )
                why = f"given; the file names {result.name}" if is_named else ""
                result = self.draft.cpu
            if why:
                self.draft.assume(cpu.name, f"processor {result.name}", why)
            self.cpus[cpu.name] = result
        hosts = {cpu.host for cpu in self.machine.cpus}
        if len(hosts) > 1:
            self.draft.assume(
                f"{len(hosts)} hosts",
                "one node; their CPUs are joined by GPU links and the network only",
                "the file has several host_hash values",
            )

    def _superchip(self, cpu: ImportedCpu) -> Gpu | None:
        """Return the GPU that shares a coherent link with a CPU which the file does not name."""
        if cpu.vendor or cpu.family is not None or cpu.model is not None:
            return None
        attached = (
            item
            for item in self.gpus.values()
            if item.cpu is cpu and item.chip.processor
        )
        return next(
            (i.chip for i in attached if i.gpu.c2c_MBps or self._gpus_per_cpu(i)),
            None,
        )

    # The PCIe tree.

    def _attach(self, device: ImportedDevice, parent: str) -> None:
        """Add a device and all below it, joined to the node `parent`."""
        if (item := self.gpus.get(id(device))) is not None:
            name, why = item.name, f"what {item.chip.name} has"
            if among := self._gpus_per_cpu(item):
                self.draft.link(name, parent, **shared_c2c(among))
                self.draft.assume(name, "NVLink-C2C to its CPU", why)
            elif not (item.gpu.c2c_MBps and parent == item.cpu.name):
                # A coherent link to the same CPU carries everything: NCCL's paths are the widest.
                link = self._pcie(device, name, item.chip.pcie, why)
                self.draft.link(name, parent, type=gpu_pcie(link))
                self._note_slot(device, [name], link)
            for child in device.children:
                self._attach(child, parent)
        elif device.nets:
            self._attach_nic(device, parent)
        elif device.is_bridge or device.children:
            name = f"pcie{sum(n.startswith('pcie') for n, _ in self.extra)}"
            gen = max(self._newest(d) for d in device.walk()) or 4
            switch, why = pcie_switch(device.vendor, device.device)
            if stated := self._model(device, "switch"):
                switch, why = stated, ""
            if why and (device.vendor is not None or device.cls is not None):
                self.draft.assume(name, f"PCIe switch {switch}", why)
            self.extra.append((name, {"switch": switch}))
            self.draft.source(name, _describe_element(device.text, line=device.line))
            link = self._pcie(device, name, gen, "the fastest device below it")
            self._suspicious(device, name)
            self.draft.link(
                name, parent, type=link, count=_bundle_size(device.width)
            )
            for child in device.children:
                self._attach(child, name)
        elif not device.ignored:
            display = device.is_class(0x03)
            kind = (
                "a display adapter without <gpu>"
                if display
                else "not a GPU, NIC or switch"
            )
            self.draft.assume(
                device.text or f"line {device.line}",
                "ignored",
                f"{kind}: PCI class 0x{device.cls or 0:06x}",
            )

    def _gpus_per_cpu(self, item: PlacedGpu) -> int:
        """Return the number of GPUs on the CPU of this GPU if they share its NVLink-C2C.

        0 if the GPU does not have NVLink-C2C, or the file names the CPU.
        """
        cpu_text = item.cpu.arch or item.cpu.vendor or item.device.speed
        if cpu_text or item.chip.form != "superchip":
            return 0
        return sum(other.cpu is item.cpu for other in self.gpus.values())

    def _newest(self, device: ImportedDevice) -> int:
        """Return the PCIe generation of a device in the file, otherwise its probable generation."""
        stated = generation(device.speed)
        if stated is None and id(device) in self.gpus:
            stated = self.gpus[id(device)].chip.pcie
        if stated is None and device.nets:
            stated = _slot_gen(self.ports[id(device.nets[0])].adapter.gbps)
        return stated or 0

    def _attach_nic(self, device: ImportedDevice, parent: str) -> None:
        ports = [self.ports[id(net)] for net in device.nets]
        names = [port.name for port in ports]
        gen = _slot_gen(max(port.adapter.gbps for port in ports))
        link = self._pcie(device, names[0], gen, "enough for the rate of the NIC")
        self._note_slot(device, names, link)
        if len(names) > 1:
            card = f"card{sum(n.startswith('card') for n, _ in self.extra)}"
            switch, _ = pcie_switch(device.vendor, device.device)
            self.extra.append((card, {"switch": switch, "latency": "1ns"}))
            self.draft.source(
                card,
                _describe_element(
                    device.text, f"{len(names)} ports", line=device.line
                ),
            )
            self.draft.link(card, parent, type=link)
            self.draft.assume(
                names,
                f"ports of one card share its {link} slot",
                "interfaces of one PCI device",
            )
            parent = card
        for name in names:
            self.draft.link(name, parent, type=link)

    def _note_slot(
        self, device: ImportedDevice, names: list[str], link: str
    ) -> None:
        """Note the PCIe slot that NCCL reads if it differs from the existing slot."""
        if not device.told_speed and device.told_width is None:
            return
        gen = generation(device.told_speed or device.speed)
        lanes = device.told_width or device.width
        override = pcie_type(gen, lanes) if gen and lanes in LANES else link
        if override != link:
            slot = override.removeprefix("pcie-")
            self.draft.settings.setdefault("told_pcie", {}).update(
                dict.fromkeys(names, slot)
            )

    def _pcie(self, device: ImportedDevice, name: str, gen: int, why: str) -> str:
        """Return the type of the link between a device and its parent, by default `gen` with 16 lanes."""
        if stated := self.draft.remarks.slots.get(device.bus):
            return stated
        gen_stated, width = generation(device.speed), max(0, device.width or 0)
        speed_text = f"{printable(device.speed, 24)!r}" if device.speed else ""
        if gen_stated is None:
            missing = (
                f"unknown speed {speed_text}"
                if speed_text
                else "no speed in the file"
            )
            self.draft.assume(name, f"PCIe generation {gen}", f"{missing}; {why}")
        elif gts(device.speed) != PCIE_GTS[gen_stated]:
            self.draft.assume(
                name,
                f"PCIe generation {gen_stated}",
                f"the nearest to the file's {speed_text}",
            )
        width //= _bundle_size(device.width)
        lanes = (
            min(LANES, key=lambda lanes: (abs(lanes - width), -lanes))
            if width
            else 16
        )
        if not width:
            self.draft.assume(name, "16 lanes", f"no width in the file; {why}")
        elif lanes != width:
            self.draft.assume(
                name, f"{lanes} lanes", f"the nearest to the file's {width}"
            )
        return pcie_type(gen_stated or gen, lanes)

    def _suspicious(self, device: ImportedDevice, name: str) -> None:
        up = (generation(device.speed) or 0, device.width or 0)
        below = max(
            (generation(child.speed) or 0 for child in device.children), default=0
        )
        if up[0] and below - up[0] >= 2:
            self.draft.assume(
                name,
                f"its link to the CPU runs at generation {up[0]}, as in the file",
                f"devices below it run at generation {below}: an idle link may have been asleep"
                " when the file was written",
            )

    # NICs, CPUs, network.

    def _add_nics(self) -> None:
        for port in self.ports.values():
            net, device, name = port.net, port.device, port.name
            keys = nic_keys(self.draft, port.adapter, net.gdr)
            self.draft.node(name, "nic", **keys)
            if port.adapter.why:
                self.draft.assume(name, f"NIC {keys['nic']}", port.adapter.why)
            texts = [net.name, device.text if device is not None else ""]
            texts += [f"{net.speed_mbps / 1000:g} Gb/s"] if net.speed_mbps else []
            texts += ["reduces in the network"] if net.collective else []
            self.draft.source(name, _describe_element(*texts, line=net.line))
            interface = (
                net.name if net.port in (None, 1) else f"{net.name}:{net.port}"
            )
            if _DEVICE.fullmatch(interface):
                self.draft.settings.setdefault("nic_names", {})[name] = interface
            if device is None:
                self.draft.link(name, port.cpu.name, type=pcie_type(3, 16))
                self.draft.assume(
                    name,
                    "joined to its CPU like a PCIe Gen3 x16 card",
                    "an interface without a PCI device: virtual",
                )
        for name, keys in self.extra:
            self.draft.node(name, "switch", **keys)

    def _add_cpus(self) -> None:
        for name, result in self.cpus.items():
            self.draft.node(name, "switch", switch=result.name)
        remarks = self.draft.remarks
        numbers = {
            cpu.name: -1 if cpu.numa is None else cpu.numa
            for cpu in self.machine.cpus
        }
        usual: list[str] = []
        for name, result in self.cpus.items():
            stated = remarks.memory.get(numbers[name], "")
            memory = add_memory(self.draft, name, result, stated)
            usual += [] if stated else [memory]
        if usual:
            self.draft.assume(usual, *USUAL_MEMORY)
        if remarks.sockets is None:
            self._join_hosts()
            return
        names = {cpu.numa: cpu.name for cpu in self.machine.cpus}
        for one in remarks.sockets:
            if one.a in names and one.b in names and one.a != one.b:
                self.draft.link(
                    names[one.a], names[one.b], count=one.count, type=one.type
                )

    def _join_hosts(self) -> None:
        """Join the NUMA nodes of every host, as NCCL assumes."""
        for a, b in combinations(self.machine.cpus, 2):
            if a.host == b.host:
                result = self.cpus[a.name]
                count = result.numa_links if len(self.cpus) == 2 else 1
                self.draft.link(a.name, b.name, count=count, type=result.numa)
                self.draft.assume(
                    [a.name, b.name],
                    f"joined to the other NUMA nodes by {count} x {result.numa}",
                    "links of CPUs are not in the file; every pair, as NCCL assumes",
                )


def _bundle_size(width: int | None) -> int:
    """Return the number of links of 16 lanes in a width of 32, 48 .. 128 lanes, otherwise 1."""
    return width // 16 if width and width % 16 == 0 and width <= 128 else 1


def _slot_gen(gbps: float) -> int:
    """Return the PCIe generation of an x16 slot that carries a rate."""
    return 3 if gbps <= 100 else 4 if gbps <= 200 else 5 if gbps <= 400 else 6


def _describe_element(*parts: str, line: int) -> str:
    """Return the names of an element in the file, and its line."""
    words = [*dict.fromkeys(part for part in parts if part)]
    words += [f"line {line}"] if line else []
    return ", ".join(words) or "not named"
