"""A node as NCCL sees it: its devices, the links between them, and paths."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import field, fields
from typing import TYPE_CHECKING, Literal

from clusim.base.errors import TopologyError
from clusim.base.records import dataclass
from clusim.nccl.constants import (
    UNKNOWN_CPU,
    CpuModel,
    Path,
    Version,
    nvlink_GBps,
)

if TYPE_CHECKING:
    from clusim.nccl.env import Settings

Kind = Literal["gpu", "pci", "nvs", "cpu", "nic", "net"]
LinkKind = Literal["nvl", "c2c", "pci", "sys", "net"]


@dataclass(eq=False, slots=True)
class DeviceLink:
    """One direction of a connection; `rate` is in GB/s and `number` counts the links of a system."""

    kind: LinkKind
    rate: float
    remote: Device
    number: int
    back: int = -1


@dataclass(eq=False, slots=True)
class Device:
    """A device; `index` counts devices of the same kind.

    Attributes
    ----------
    capability : int
        Compute capability of a GPU times ten.
    architecture : str
        Of a GPU: row of the launch presets.
    peer_access : bool or None
        Of a GPU: True if the driver allows peer access over PCIe; None if unknown.
    speed_GBps, latency_us, collective : float, float, bool
        Of a NIC: its rate, the latency its plugin reports, True if its network reduces.
    port : int
        NICs with the same number share one port.
    members : tuple of str
        NICs of the topology that form this NIC.
    """

    kind: Kind
    name: str
    index: int
    links: list[DeviceLink] = field(default_factory=list)
    capability: int = 0
    chip: str = ""
    architecture: str = ""
    peer_access: bool | None = None
    cpu: CpuModel = UNKNOWN_CPU
    speed_GBps: float = 0.0
    latency_us: float = 0.0
    collective: bool = False
    gpudirect: bool = True
    port: int = 0
    members: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Route:
    """A path between two devices.

    Attributes
    ----------
    links : tuple of DeviceLink
        The links in order.
    rate : float
        Bandwidth of the narrowest [GB/s].
    """

    links: tuple[DeviceLink, ...]
    rate: float
    type: Path

    @property
    def hops(self) -> int:
        """Return the number of links."""
        return len(self.links)


@dataclass(eq=False)
class System:
    """A node as seen by NCCL.

    Attributes
    ----------
    gpus, adapters, cpus : list of Device
        By index; GPUs in the order of the ranks.
    routes : dict
        (device, device) -> path.
    local_cpus : dict
        GPU -> nearest CPU; None without a path to one.
    told : list of str
        Notes on NVLink overrides and on assumed NICs.
    pxn, nvb : bool
        True if NICs of other GPUs (PXN), and GPUs without a direct link (NVB), are reached over NVLink.
    """

    version: Version
    settings: Settings
    gpus: list[Device] = field(default_factory=list)
    adapters: list[Device] = field(default_factory=list)
    cpus: list[Device] = field(default_factory=list)
    switch: Device | None = None
    others: list[Device] = field(default_factory=list)
    routes: dict[tuple[Device, Device], Route] = field(default_factory=dict)
    local_cpus: dict[Device, Device | None] = field(default_factory=dict)
    num_links: int = 0
    gdr_level: Path | None = None
    pxn: bool = True
    nvb: bool = True
    told: list[str] = field(default_factory=list)

    @property
    def cpu(self) -> CpuModel:
        """Return the processor of the node."""
        return self.cpus[0].cpu if self.cpus else CpuModel()

    @property
    def capabilities(self) -> tuple[int, int]:
        """Return the lowest and the highest compute capability times ten."""
        numbers = [gpu.capability for gpu in self.gpus]
        return min(numbers), max(numbers)

    def link_GBps(self, gpu: Device) -> float:
        """Return the library's bandwidth of a link between GPUs [GB/s]."""
        library = self.settings.library
        return (
            nvlink_GBps(gpu.capability, self.version)
            if library is None
            else library.link_GBps
        )

    def route(self, a: Device, b: Device) -> Route | None:
        """Return the path from one device to another."""
        return self.routes.get((a, b))

    def join(self, a: Device, b: Device, kind: LinkKind, rate: float) -> None:
        """Add a duplex link; a second link between the same devices adds to the rate of the first."""
        for link in a.links:
            if link.remote is b and link.kind == kind:
                link.rate += rate
                next(
                    back
                    for back in b.links
                    if back.remote is a and back.kind == kind
                ).rate += rate
                return
        forward, back = self.num_links, self.num_links + 1
        self.num_links += 2
        a.links.append(DeviceLink(kind, rate, b, forward, back))
        b.links.append(DeviceLink(kind, rate, a, back, forward))

    def trim_network(self) -> None:
        """Forget the NICs: all ranks are on this node."""
        self.adapters = []
        self.routes = {
            ends: route
            for ends, route in self.routes.items()
            if ends[0].kind != "net" and ends[1].kind != "net"
        }

    def key(self) -> tuple[Hashable, ...]:
        """Return a key that is equal for systems with equal devices, links and paths, apart from names."""
        every = [*self.gpus, *self.adapters, *self.cpus, *self.others]
        number = {device: i for i, device in enumerate(every)}
        for (
            device
        ) in every:  # and NICs that were forgotten, which links still lead to
            for link in device.links:
                if link.remote not in number:
                    number[link.remote] = len(every)
                    every.append(link.remote)
        devices = tuple(
            (
                *(getattr(device, name) for name in _DEVICE),
                *(
                    (k.kind, k.rate, number[k.remote], k.number, k.back)
                    for k in device.links
                ),
            )
            for device in every
        )
        routes = tuple(
            (
                number[a],
                number[b],
                *(link.number for link in route.links),
                route.rate,
                route.type,
            )
            for (a, b), route in self.routes.items()
        )
        roles = (
            len(self.gpus),
            len(self.adapters),
            len(self.cpus),
            self.switch and number[self.switch],
        )
        return (
            *(repr(getattr(self, name)) for name in _SYSTEM),
            *roles,
            devices,
            routes,
        )

    def nearest(self, device: Device, among: Iterable[Device]) -> list[Device]:
        """Return the devices with the widest path and, among these, the nearest path kind."""
        best: list[Device] = []
        key = (0.0, 0)
        for other in among:
            route = self.route(device, other)
            if route is None:
                continue
            mine = (route.rate, -int(route.type))
            if not best or mine > key:
                best, key = [], mine
            if mine == key:
                best.append(other)
        return best

    def local_adapter(self, gpu: Device, channel: int) -> Device | None:
        """Return the NIC that a GPU uses on a channel."""
        nets = self.local_adapters(gpu)
        return nets[channel % len(nets)] if nets else None

    def local_adapters(self, gpu: Device) -> list[Device]:
        """Return the NICs that a GPU uses, in the order of channels: GPUs that share NICs alternate.

        A GPU uses its share of the nearest NICs, or the number in ``NCCL_NETDEVS_POLICY``.
        """
        nets = self.nearest(gpu, self.adapters)
        if not nets:
            return []
        sharers = self.nearest(nets[0], self.gpus)
        first = gpu.index
        if len(nets) & (len(nets) - 1) == 0:
            width = len(nets).bit_length() - 1
            first = (
                int(f"{gpu.index % len(nets):0{width}b}"[::-1], 2) if width else 0
            )
        share = self.settings.netdevs_policy or -(-len(nets) // max(1, len(sharers)))
        return [
            nets[(first + turn) % len(nets)] for turn in range(min(share, len(nets)))
        ]

    @property
    def least_nic_GBps(self) -> float:
        """Return the smallest bandwidth of a path from a GPU to a NIC that it uses [GB/s]; 0 without NICs."""
        pairs = [
            (gpu, adapter)
            for gpu in self.gpus
            for adapter in self.local_adapters(gpu)
        ]
        routes = [self.route(gpu, adapter) for gpu, adapter in pairs]
        return min(
            (route.rate for route in routes if route is not None), default=0.0
        )

    def local_gpu(self, adapter: Device) -> Device | None:
        """Return the GPU that a NIC is local to."""
        sharers = [
            (gpu, self.local_adapters(gpu))
            for gpu in self.nearest(adapter, self.gpus)
        ]
        for channel in range(len(self.adapters) or 1):
            for gpu, nets in sharers:
                if nets and nets[channel % len(nets)] is adapter:
                    return gpu
        return None


_DEVICES = {"gpus", "adapters", "cpus", "switch", "others", "routes", "local_cpus"}
_SYSTEM = [one.name for one in fields(System) if one.name not in _DEVICES]
_DEVICE = [
    one.name
    for one in fields(Device)
    if one.name not in {"links", "name", "members"}
]
"""Fields of a device that enter the key: excluded are references to devices, links and paths, and names, which
decide nothing, so that the nodes of a cluster have equal keys.
"""


def unknown(chip: str, node: str, field_: str, example: str) -> TopologyError:
    """Return the error for a chip that lacks a property which NCCL needs."""
    message = f"chip {chip!r} of {node}: unknown {field_}, which NCCL needs"
    return TopologyError(
        f"{message}; set a base for the chip, or '{field_}: {example}'"
    )
