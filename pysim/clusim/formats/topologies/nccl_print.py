"""Importer of the tree that NCCL prints after ``=== System``: CPUs, PCIe, GPUs, NICs.

NCCL prints nominal rates (12 GB/s for PCIe Gen3 x16, 20 for an NVLink of an A100), from which PCIe
generation, lanes and number of links are derived. GPU model and memory rates are not printed. Links that
are not printed do not exist: NCCL queried the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from clusim.base.limits import fail
from clusim.formats.logs.raw_log import SystemNode
from clusim.formats.topologies.common import Draft, Imported
from clusim.formats.topologies.identify import (
    HIDDEN,
    PCIE_GTS,
    ImportedCpu,
    ImportedDevice,
    ImportedGpu,
    ImportedMachine,
    Net,
    PciClass,
)
from clusim.formats.topologies.wiring import wire_machine

_GTS = {3.0 * 2 ** (gen - 1): f"{rate:g} GT/s" for gen, rate in PCIE_GTS.items()}
"""NCCL's rate of 16 lanes per PCIe generation [GB/s]."""

_LOCAL_GBps = 1000.0
"""Rates from this value on mean that the device is local, without a link."""

_ARCHITECTURES = {1: "x86_64", 2: "ppc64", 3: "arm64"}
_VENDORS = {1: "GenuineIntel", 2: "AuthenticAMD", 3: "Shanghai"}
_INTEL_MODELS = {1: 79, 2: 106, 3: 143}
"""Models (family 6) by NCCL's number: Broadwell, Skylake to Ice Lake, Sapphire Rapids."""

_NUMBERS = re.compile(r"(-?\d{1,9})/(-?\d{1,9})/(-?\d{1,9})")


def read_print(
    nodes: Sequence[SystemNode],
    where: str,
    chip: str,
    links_of: Callable[[float], int],
    adapters: Sequence[tuple[str, str]] = (),
) -> Imported:
    """Return the node of a print.

    Parameters
    ----------
    chip : str
        Model of its GPUs.
    links_of : callable
        Maps NCCL's rate of NVLinks [GB/s] to the number of links.
    adapters : sequence of (str, str)
        Names and kinds (``IB``, ``RoCE``) of NICs by number.

    Raises
    ------
    TopologyError
        If the print is inconsistent.
    """
    draft = Draft(where, "log", chip=chip)
    draft.source("import", f"NCCL's === System lines: {where}")
    machine = _Reader(where, links_of, adapters).read(nodes)
    draft.settings["description"] = "read off NCCL's log"
    wire_machine(machine, draft)
    result = draft.finish("nccl-print", "NCCL's === System lines")
    if not result.counts["gpus"]:
        raise fail(where, 0, "names no GPU")
    return result


class _Reader:
    def __init__(
        self,
        where: str,
        links_of: Callable[[float], int],
        adapters: Sequence[tuple[str, str]],
    ) -> None:
        self.where, self.links_of, self.adapters = where, links_of, adapters
        self.machine = ImportedMachine(hint="")
        self.path: list[tuple[int, ImportedDevice | None]] = []

    def read(self, nodes: Sequence[SystemNode]) -> ImportedMachine:
        gpus = sorted(
            {self._bus(node.name) for node in nodes if node.name.startswith("GPU/") and node.link == "PCI"},
            key=lambda bus: int(bus or "0", 16),
        )  # fmt: skip
        self.number = {bus: index for index, bus in enumerate(gpus)}
        for node in nodes:
            kind = node.name.partition("/")[0]
            if node.depth == 0 and not node.link:
                if kind == "CPU":
                    self.machine.cpus.append(self._cpu(node))
                    self.path = []
                continue
            if not self.machine.cpus:
                raise fail(self.where, 0, f"{node.name} precedes all CPUs")
            while self.path and self.path[-1][0] >= node.depth:
                self.path.pop()
            self._node(node, kind)
        return self.machine

    @staticmethod
    def _bus(name: str) -> str:
        return name.partition("/")[2].rpartition("-")[2].lower()

    def _cpu(self, node: SystemNode) -> ImportedCpu:
        match = _NUMBERS.match(node.note)
        arch, vendor, model = (
            (int(n) for n in match.groups()) if match else (-1, -1, -1)
        )
        intel = vendor == 1
        number = self._bus(node.name)
        return ImportedCpu(
            numa=int(number) if number.isdecimal() else len(self.machine.cpus),
            arch=_ARCHITECTURES.get(arch, ""),
            vendor=_VENDORS.get(vendor, ""),
            family=6 if intel else None,
            model=_INTEL_MODELS.get(model) if intel else None,
        )

    def _node(self, node: SystemNode, kind: str) -> None:
        above = self.path[-1][1] if self.path else None
        if kind == "NET":
            self._net(node, above)
        elif node.link == "NVL" and above is not None:
            switch = kind == "NVS"
            target = HIDDEN if switch else self._bus(node.name)
            leads = PciClass.NVSWITCH if switch else PciClass.GPU
            above.join(target, self.links_of(node.bw), leads, text=node.name)
        elif node.link == "C2C" and above is not None and above.gpu is not None:
            above.gpu.c2c_MBps = round(node.bw * 1000)
        elif node.link == "PCI" and kind in ("PCI", "GPU", "NIC"):
            self._device(node, kind, above)

    def _device(
        self, node: SystemNode, kind: str, above: ImportedDevice | None
    ) -> None:
        bus = self._bus(node.name)
        device = ImportedDevice(bus=bus, text=node.name)
        device.speed, device.width = _slot(node.bw)
        if kind == "GPU":
            number = self.number.get(bus, 0)
            device.gpu = ImportedGpu(dev=number, rank=number, asked=True)
        elif kind == "PCI":
            device.cls = PciClass.BRIDGE
            if re.fullmatch(r"[0-9a-f]{16}", node.note):
                parts = [int(node.note[at : at + 4], 16) for at in range(0, 16, 4)]
                device.vendor, device.device, device.subvendor, device.subdevice = (
                    parts
                )
        (self.machine.cpus[-1].devices if above is None else above.children).append(
            device
        )
        self.path.append((node.depth, device))

    def _net(self, node: SystemNode, nic: ImportedDevice | None) -> None:
        index = self._bus(node.name)
        number = int(index) if index.isdecimal() else None
        name, kind = "", ""
        if number is not None and number < len(self.adapters):
            name, kind = self.adapters[number]
        parts = node.note.split("/")
        net = Net(
            name or f"net{index}", number, round(node.bw * 8000), guid=parts[0]
        )
        if nic is None or nic.speed is None:
            self.machine.cpus[-1].nets.append(net)
            return
        nic.cls = PciClass.ETHERNET if kind == "RoCE" else PciClass.INFINIBAND
        nic.nets.append(net)


def _slot(bw: float) -> tuple[str | None, int | None]:
    """Return speed and lanes of a rate; None for both if it is not a link."""
    if bw >= _LOCAL_GBps or bw <= 0:
        return None, None
    for lanes in (16, 8, 4):
        rate = bw * 16 / lanes
        for usual, speed in _GTS.items():
            if abs(rate - usual) < 0.02 * usual and (lanes == 16 or usual >= 12):
                return speed, lanes
    nearest = min(_GTS, key=lambda usual: abs(usual - bw))
    return _GTS[nearest], 16
