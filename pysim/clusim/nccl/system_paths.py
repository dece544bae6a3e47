"""Paths between the devices of a node as NCCL computes them: the widest of the shortest.

A path may pass through one GPU, over NVLink. Paths for which peer-to-peer access or GPUDirect is not allowed are
rerouted over a CPU, and paths to NICs over the GPU next to them (PXN).
"""

from __future__ import annotations

from clusim.nccl.constants import Path, since
from clusim.nccl.system import Device, Route, System, unknown

_BASE = {
    "nvl": Path.NVL,
    "c2c": Path.C2C,
    "pci": Path.PIX,
    "sys": Path.SYS,
    "net": Path.LOC,
}


def set_routes(system: System, p2p_level: Path) -> None:
    """Fill `System.routes`: shortest paths, then the detours of peer access, PXN and GPUDirect."""
    ends = [*system.gpus, *system.cpus, *system.adapters]
    if system.switch is not None:
        ends.append(system.switch)
    for end in ends:
        _reach(system, end)
    system.local_cpus = {gpu: _cpu_of(system, gpu) for gpu in system.gpus}
    _bend_peers(system, p2p_level)
    _near_cpus(system)
    _bend_adapters(system)
    for device in ends:
        system.routes[device, device] = Route((), 5000.0, Path.LOC)


def _reach(system: System, goal: Device) -> None:
    """Set the path of every device to `goal`, breadth first; of paths as short, the widest."""
    result: dict[Device, Route] = {goal: Route((), 5000.0, Path.LOC)}
    front = [goal]
    through_gpu = since(system.version, "nvb") and system.nvb
    while front:
        following: list[Device] = []
        for device in front:
            path = result[device]
            for link in device.links:
                other = link.remote
                if other is goal:
                    continue
                if device is not goal and device.kind == "gpu":
                    hop = (
                        link.kind == "nvl" and other.kind == "gpu" and path.hops <= 1
                    )
                    if not (hop and through_gpu):
                        continue
                rate = min(path.rate, link.rate)
                previous = result.get(other)
                if previous is not None and (
                    previous.hops <= path.hops or previous.rate >= rate
                ):
                    continue
                back = next(back for back in other.links if back.number == link.back)
                kind = max(path.type, _type(device, link.kind, other, path))
                result[other] = Route((back, *path.links), rate, kind)
                if other not in following:
                    following.append(other)
        front = following
    for device, route in result.items():
        system.routes[device, goal] = route


def _type(device: Device, kind: str, other: Device, path: Route) -> Path:
    if kind == "pci":
        if device.kind == "cpu" or other.kind == "cpu":
            return Path.PHB
        if device.kind == "pci" and other.kind == "pci":
            return Path.PXB
    if (
        kind == "nvl"
        and device.kind == "gpu"
        and path.type == Path.NVL
        and path.hops >= 1
    ):
        return Path.NVB
    return _BASE[kind]


def _via(system: System, a: Device, middle: Device, b: Device) -> None:
    """Send the path from `a` to `b` over `middle`."""
    first, second = system.route(a, middle), system.route(middle, b)
    if first is None or second is None:
        return
    kind = Path.PXN if middle.kind == "gpu" else max(first.type, second.type)
    route = Route((*first.links, *second.links), min(first.rate, second.rate), kind)
    system.routes[a, b] = route


def _cpu_of(system: System, device: Device) -> Device | None:
    nearest = [
        (route.hops, cpu.index, cpu)
        for cpu in system.cpus
        if (route := system.route(device, cpu)) is not None
    ]
    return min(nearest, key=lambda item: item[:2])[2] if nearest else None


def _bend_peers(system: System, level: Path) -> None:
    bent = []
    for a in system.gpus:
        for b in system.gpus:
            route = system.route(a, b)
            if a is b or route is None or peer_access(system, a, b, route, level):
                continue
            cpu = system.local_cpus[a]
            if cpu is not None:
                bent.append((a, cpu, b))
    for a, cpu, b in bent:
        _via(system, a, cpu, b)


def _coherent(system: System, gpu: Device, net: Device) -> bool:
    """Return True if a GPU's coherent link leads to the CPU with the NIC on its PCIe."""
    cpu = system.local_cpus[gpu]
    to_cpu = system.route(gpu, cpu) if cpu is not None else None
    other = system.route(net, cpu) if cpu is not None else None
    if to_cpu is None or other is None:
        return False
    return to_cpu.type == Path.C2C and other.type == Path.PHB


def _near_cpus(system: System) -> None:
    """Lower the path type between a GPU on a coherent link and a NIC of the same CPU to P2C."""
    if not since(system.version, "p2p through c2c"):
        return
    for gpu in system.gpus:
        for net in system.adapters:
            if _coherent(system, gpu, net):
                for ends in ((gpu, net), (net, gpu)):
                    route = system.routes[ends]
                    kind = min(Path.P2C, route.type)
                    system.routes[ends] = Route(route.links, route.rate, kind)


def _bend_adapters(system: System) -> None:
    relay = since(system.version, "pxn") and system.pxn
    owners = {net: system.local_gpu(net) for net in system.adapters}
    bent: list[tuple[Device, Device, Device]] = []
    for net in system.adapters:
        owner = owners[net]
        for gpu in system.gpus:
            mine = system.route(gpu, net)
            if owner is None or owner is gpu or not relay or mine is None:
                continue
            to_net, to_owner = system.route(owner, net), system.route(gpu, owner)
            if (
                to_net is None
                or to_owner is None
                or not direct_rdma(system, owner, net)
            ):
                continue
            if (
                to_net.type <= Path.P2C
                and to_owner.type <= Path.NVL
                and (to_net.rate > mine.rate or mine.type > Path.PXN)
            ):
                bent.append((gpu, owner, net))
    for gpu, owner, net in bent:
        _via(system, gpu, owner, net)
    for net in system.adapters:
        for gpu in system.gpus:
            if direct_rdma(system, gpu, net):
                continue
            cpu = system.local_cpus[gpu]
            if cpu is None:
                continue
            _via(system, net, cpu, gpu)
            if (gpu, owners[net], net) not in bent:
                _via(system, gpu, cpu, net)


def direct_rdma(system: System, gpu: Device, net: Device) -> bool:
    """Return True if a NIC reads and writes the memory of a GPU itself."""
    if not net.gpudirect or gpu.capability < 60:
        return False
    route = system.route(net, gpu)
    if route is None:
        return False
    if route.type == Path.PXN:
        return True
    if system.gdr_level is None and _coherent(system, gpu, net):
        return True  # at all releases, as data do (`Rails.direct`)
    return route.type <= (Path.PXB if system.gdr_level is None else system.gdr_level)


def _has_peer_access(gpu: Device) -> bool:
    """Return True if the driver lets a GPU reach others over PCIe."""
    if gpu.peer_access is None:
        raise unknown(
            gpu.chip, gpu.name, "peer_access", "true, or false for a GeForce card"
        )
    return gpu.peer_access


def peer_access(
    system: System, a: Device, b: Device, route: Route, level: Path
) -> bool:
    """Return True if two GPUs reach each other directly over a path."""
    if level is Path.LOC:
        return False
    is_set = system.settings.p2p_level is not None
    if not since(system.version, "peer access by driver"):
        level = level if is_set else max(level, Path.PXB)
    elif route.type > Path.NVB and not (_has_peer_access(a) and _has_peer_access(b)):
        return False
    if not is_set and system.cpu.vendor == "amd" and len(system.gpus) <= 2:
        level = Path.SYS
    return route.type <= level
