"""What NCCL sees of a machine: GPUs, PCIe switches, CPUs, one merged NVLink switch, adapters, and paths between them.

NCCL does not use the real rates of links but its own constants (`clusim.nccl.constants`): 20.6 GB/s for an NVLink of an
H100, 48 for PCIe Gen5 x16, speed / 8 for an adapter. Paths are the shortest, of those the widest; a GPU may be
passed once, over NVLink. Paths that peer-to-peer access or GPUDirect must not take are bent over a CPU, and those to
adapters over the GPU next to them (PXN).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clusim.errors import TopologyError
from clusim.hardware.pcie import GENERATIONS, LANES, lane_MBps
from clusim.nccl.constants import (
    UNKNOWN_CPU,
    Cpu,
    LOCAL_GBps,
    Path,
    cpu_of,
    nvlink_GBps,
    pcie_GBps,
    socket_GBps,
)
from clusim.nccl.env import Settings, adapter_allowed
from clusim.nccl.versions import Version, since

if TYPE_CHECKING:
    from clusim.fabric.model import Fabric
    from clusim.fabric.model import Link as FabricLink
    from clusim.fabric.model import Node as FabricNode

__all__ = ["Device", "Link", "Route", "System", "build_system"]

Kind = Literal["gpu", "pci", "nvs", "cpu", "nic", "net"]
LinkKind = Literal["nvl", "c2c", "pci", "sys", "net"]

_BASE = {"nvl": Path.NVL, "c2c": Path.C2C, "pci": Path.PIX, "sys": Path.SYS, "net": Path.LOC}
_RANK = {"nvl": 0, "c2c": 1, "net": 2, "pci": 3, "sys": 5}


@dataclass(eq=False, slots=True)
class Link:
    """One direction of a connection; `rate` is in GB/s and `number` counts the links of a system."""

    kind: LinkKind
    rate: float
    remote: Device
    number: int
    back: int = -1


@dataclass(eq=False, slots=True)
class Device:
    """A device; `index` counts those of its kind.

    Attributes
    ----------
    capability : int
        Compute capability of a GPU times ten.
    architecture : str
        Of a GPU: row of the presets of launching.
    peer_access : bool or None
        Of a GPU: whether the driver lets it reach others over PCIe; None is unknown.
    speed_GBps, latency_us, collective : float, float, bool
        Of an adapter: its rate, the latency its plugin states, whether its network reduces.
    port : int
        Adapters with the same number share one port.
    members : tuple of str
        Adapters of the fabric that an adapter consists of.
    """

    kind: Kind
    name: str
    index: int
    links: list[Link] = field(default_factory=list)
    capability: int = 0
    chip: str = ""
    architecture: str = ""
    peer_access: bool | None = None
    cpu: Cpu = UNKNOWN_CPU
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
    links : tuple of Link
        The links in order.
    rate : float
        Bandwidth of the narrowest [GB/s].
    """

    links: tuple[Link, ...]
    rate: float
    type: Path

    @property
    def hops(self) -> int:
        """Return the number of links."""
        return len(self.links)


@dataclass(eq=False)
class System:
    """A machine as NCCL sees it.

    Attributes
    ----------
    gpus, adapters, cpus : list of Device
        By index; GPUs in the order of the ranks.
    routes : dict
        (device, device) -> path.
    """

    version: Version
    settings: Settings
    gpus: list[Device] = field(default_factory=list)
    adapters: list[Device] = field(default_factory=list)
    cpus: list[Device] = field(default_factory=list)
    switch: Device | None = None
    others: list[Device] = field(default_factory=list)
    routes: dict[tuple[Device, Device], Route] = field(default_factory=dict)
    num_links: int = 0
    gdr_level: Path | None = None

    @property
    def cpu(self) -> Cpu:
        """Return the processor of the machine."""
        return self.cpus[0].cpu if self.cpus else Cpu()

    @property
    def capabilities(self) -> tuple[int, int]:
        """Return the lowest and the highest compute capability times ten."""
        numbers = [gpu.capability for gpu in self.gpus]
        return min(numbers), max(numbers)

    def route(self, a: Device, b: Device) -> Route | None:
        """Return the path from one device to another."""
        return self.routes.get((a, b))

    def join(self, a: Device, b: Device, kind: LinkKind, rate: float) -> None:
        """Add a duplex link; a second one between the same devices makes the first wider."""
        for link in a.links:
            if link.remote is b and link.kind == kind:
                link.rate += rate
                next(
                    back for back in b.links if back.remote is a and back.kind == kind
                ).rate += rate
                return
        there, back = self.num_links, self.num_links + 1
        self.num_links += 2
        a.links.append(Link(kind, rate, b, there, back))
        b.links.append(Link(kind, rate, a, back, there))

    def trim_network(self) -> None:
        """Forget the adapters: all ranks are on this machine."""
        self.adapters = []
        self.routes = {
            ends: route
            for ends, route in self.routes.items()
            if ends[0].kind != "net" and ends[1].kind != "net"
        }

    def nearest(self, device: Device, among: Iterable[Device]) -> list[Device]:
        """Return the devices with the widest, of those the nearest kind of path."""
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
        """Return the adapter a GPU uses on a channel: GPUs that share adapters take turns."""
        nets = self.nearest(gpu, self.adapters)
        if not nets:
            return None
        sharers = self.nearest(nets[0], self.gpus)
        first = gpu.index
        if len(nets) & (len(nets) - 1) == 0:
            width = len(nets).bit_length() - 1
            first = int(f"{gpu.index % len(nets):0{width}b}"[::-1], 2) if width else 0
        return nets[(first + channel % -(-len(nets) // max(1, len(sharers)))) % len(nets)]

    def local_gpu(self, adapter: Device) -> Device | None:
        """Return the GPU that has an adapter as its own."""
        sharers = self.nearest(adapter, self.gpus)
        for channel in range(len(self.adapters) or 1):
            for gpu in sharers:
                if self.local_adapter(gpu, channel) is adapter:
                    return gpu
        return None


def _pcie_GBps(link: FabricLink) -> float:
    """Return what NCCL takes a PCIe link for [GB/s]: by the generation and lanes that have its rate."""
    rate_Bps = link.rate.bytes_per_s
    slots = [(gen, lanes) for gen in GENERATIONS for lanes in LANES]
    gen, lanes = min(slots, key=lambda slot: abs(lane_MBps(slot[0]) * slot[1] * 1e6 / rate_Bps - 1))
    if abs(lane_MBps(gen) * lanes * 1e6 / rate_Bps - 1) < 0.03:
        return pcie_GBps(gen, lanes) * link.count
    # 12 GB/s stand for the 15.7 of Gen3 x16, and so on.
    return round(rate_Bps * link.count / 1e9 * 0.762, 1)


def build_system(
    fabric: Fabric,
    version: Version,
    settings: Settings | None = None,
    *,
    zone: int = 0,
    ranks: Iterable[int] | None = None,
) -> System:
    """Return what NCCL sees of one machine of a fabric.

    Parameters
    ----------
    zone : int
        The machine.
    ranks : iterable of int or None
        GPUs that take part, by their number in the machine; None is all.
    """
    from clusim.nccl.routes import set_routes

    settings = settings or Settings()
    system = System(version, settings)
    nodes = {node.name: node for node in fabric.nodes if node.zone == zone}
    links = [link for link in fabric.links if link.a in nodes and link.b in nodes]
    devices = _devices(system, nodes, links, ranks)
    if not system.gpus:
        raise TopologyError(f"{fabric.name}: no GPU in machine {zone}; NCCL needs one")
    _join_all(system, nodes, links, devices)
    _add_adapters(system, fabric, nodes, links, devices)
    _join_sockets(system)
    for device in (*system.gpus, *system.cpus, *system.others):
        device.links.sort(key=lambda link: _RANK[link.kind])
    if fabric.gdr_level != "pxb":
        system.gdr_level = Path[fabric.gdr_level.upper()]
    set_routes(system, Path[fabric.p2p_level.upper()])
    return system


def _devices(
    system: System,
    nodes: dict[str, FabricNode],
    links: list[FabricLink],
    ranks: Iterable[int] | None,
) -> dict[str, Device]:
    wanted = None if ranks is None else set(ranks)
    nvlinked = {
        end for link in links if link.cls in ("nvlink", "xgmi", "trunk") for end in (link.a, link.b)
    }
    devices: dict[str, Device] = {}
    seen = 0
    for node in nodes.values():
        if node.kind == "gpu":
            seen += 1
            if wanted is not None and seen - 1 not in wanted:
                continue
            devices[node.name] = gpu = _gpu(node, len(system.gpus))
            system.gpus.append(gpu)
        elif node.kind == "switch" and node.tier == "root":
            cpu = Device("cpu", node.name, len(system.cpus), cpu=cpu_of(node.cpu))
            system.cpus.append(cpu)
            devices[node.name] = cpu
        elif node.kind == "switch" and node.name in nvlinked:
            if system.switch is None:
                system.switch = Device("nvs", "NVSwitch", 0)
                system.others.append(system.switch)
            devices[node.name] = system.switch
        elif node.kind == "switch":
            devices[node.name] = Device("pci", node.name, len(system.others))
            system.others.append(devices[node.name])
    return devices


def unknown(chip: str, node: str, field_: str, example: str) -> TopologyError:
    """Return the error that a chip does not say what NCCL decides by."""
    what = f"chip {chip!r} of {node}: {field_} is not known, and NCCL decides by it"
    return TopologyError(f"{what}; give the chip a base, or '{field_}: {example}'")


def _gpu(node: FabricNode, index: int) -> Device:
    end = node.endpoint
    if end is None or not end.compute_capability:
        raise unknown(end.chip if end else "", node.name, "compute_capability", "9.0")
    return Device(
        *("gpu", node.name, index),
        capability=end.compute_capability,
        chip=end.chip,
        architecture=end.architecture,
        peer_access=end.peer_access,
    )


def _join_all(
    system: System,
    nodes: dict[str, FabricNode],
    links: list[FabricLink],
    devices: dict[str, Device],
) -> None:
    for link in links:
        a, b = devices.get(link.a), devices.get(link.b)
        if a is None or b is None or a is b:
            continue
        if link.cls in ("nvlink", "xgmi", "trunk"):
            gpu = a if a.kind == "gpu" else b
            system.join(a, b, "nvl", nvlink_GBps(gpu.capability, system.version) * link.count)
        elif link.cls == "c2c" and {a.kind, b.kind} == {"gpu", "cpu"}:
            system.join(a, b, "c2c", round(link.rate.bytes_per_s * link.count / 1e9, 1))
        elif link.cls == "pcie":
            system.join(a, b, "pci", _pcie_GBps(link))
    lonely = [gpu for gpu in system.gpus if not any(k.kind in ("pci", "c2c") for k in gpu.links)]
    if lonely and not system.cpus:
        system.cpus.append(Device("cpu", "host", 0))
    for gpu in lonely:
        endpoint = nodes[gpu.name].endpoint
        rate = endpoint.pcie_Bps / 1e9 * 0.762 if endpoint and endpoint.pcie_Bps else 12.0
        system.join(gpu, system.cpus[0], "pci", round(rate, 1))


def _add_adapters(
    system: System,
    fabric: Fabric,
    nodes: dict[str, FabricNode],
    links: list[FabricLink],
    devices: dict[str, Device],
) -> None:
    uplinks = {end: link for link in fabric.links for end in (link.a, link.b) if link.cls != "pcie"}
    places: dict[str, tuple[Device, float]] = {}
    for link in links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if nodes[end].kind == "nic" and other in devices and link.cls in ("pcie", "c2c"):
                rate = _pcie_GBps(link) if link.cls == "pcie" else LOCAL_GBps
                places[end] = (devices[other], rate + places.get(end, (None, 0.0))[1])
    groups: dict[tuple[str, int], list[str]] = {}
    for place, names in _by_place(places).items():
        names = [name for name in names if adapter_allowed(system.settings, name)]
        together = _grouped(names, nodes, place)
        for number, name in enumerate(names):
            groups.setdefault((place.name, number // together), []).append(name)
    rank = {name: number for number, name in enumerate(nodes)}
    for members in sorted(groups.values(), key=lambda names: rank[names[0]]):
        first = nodes[members[0]]
        place = places[members[0]][0]
        number = len(system.adapters)
        nic = Device("nic", members[0], number)
        net = Device("net", f"NET/{number}", number, port=number, members=tuple(members))
        net.speed_GBps = sum(_speed_GBps(nodes[name], uplinks.get(name)) for name in members)
        net.gpudirect = first.nic.gpudirect if first.nic else True
        net.collective = _reduces(fabric)
        if _plugin(first) == "efa" and since(system.version, "latency of plugins"):
            net.latency_us = _plugin_latency_us(first, system.capabilities[0])
        system.others.append(nic)
        system.adapters.append(net)
        system.join(nic, place, "pci", sum(places[name][1] for name in members))
        system.join(nic, net, "net", net.speed_GBps)


def _speed_GBps(node: FabricNode, uplink: FabricLink | None) -> float:
    """Return the speed an adapter reports [GB/s]: its own, or else that of its cable in whole Gb/s."""
    if node.nic is not None and node.nic.speed_Bps:
        return node.nic.speed_Bps / 1e9
    return round(uplink.rate.bytes_per_s * 8 / 1e9) / 8 if uplink is not None else 0.0


def _plugin(node: FabricNode) -> str:
    return node.nic.plugin if node.nic is not None else "nccl"


def _plugin_latency_us(node: FabricNode, capability: int) -> float:
    """Return the latency the plugin of an adapter states; aws-ofi-nccl has 150 us for p3dn, the last before A100."""
    if capability < 80:
        return 150.0
    return node.nic.plugin_ps / 1e6 if node.nic is not None else 0.0


def _by_place(places: dict[str, tuple[Device, float]]) -> dict[Device, list[str]]:
    result: dict[Device, list[str]] = {}
    for name, (place, _) in places.items():
        result.setdefault(place, []).append(name)
    return result


def _grouped(names: list[str], nodes: dict[str, FabricNode], place: Device) -> int:
    """Return how many adapters the network plugin shows as one: EFA joins those that belong to the same GPU."""
    if not names or _plugin(nodes[names[0]]) != "efa":
        return 1
    gpus = sum(link.remote.kind == "gpu" for link in place.links)
    return max(1, len(names) // gpus) if gpus else 1


def _reduces(fabric: Fabric) -> bool:
    """Return whether the switches between machines can reduce."""
    from clusim.fabric.model import NETWORK

    switches = [node for node in fabric.nodes if node.zone == NETWORK and node.kind == "switch"]
    return bool(switches) and all(node.unit is not None for node in switches)


def _join_sockets(system: System) -> None:
    for i, a in enumerate(system.cpus):
        for b in system.cpus[i + 1 :]:
            system.join(a, b, "sys", socket_GBps(a.cpu, system.version))


def _has_peer_access(gpu: Device) -> bool:
    """Return whether the driver lets a GPU reach others over PCIe."""
    if gpu.peer_access is None:
        raise unknown(gpu.chip, gpu.name, "peer_access", "true, or false for a GeForce card")
    return gpu.peer_access


def peer_access(system: System, a: Device, b: Device, route: Route, level: Path) -> bool:
    """Return whether two GPUs reach each other directly over a path."""
    settings = system.settings
    if settings.p2p_disable:
        return False
    if not since(system.version, "asks the driver for peer access"):
        level = max(level, Path.PXB)
    elif route.type > Path.NVB and not (_has_peer_access(a) and _has_peer_access(b)):
        return False
    if settings.p2p_level is not None:
        level = settings.p2p_level
    elif system.cpu.vendor == "amd" and len(system.gpus) <= 2:
        level = Path.SYS
    return route.type <= level
