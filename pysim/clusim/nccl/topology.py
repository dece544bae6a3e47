"""NCCL's view of a node: GPUs, PCIe switches, CPUs, one merged NVLink switch and NICs.

NCCL does not use the real rates of links but its constants (`clusim.nccl.constants`): 20.6 GB/s for an NVLink of an
H100, 48 for PCIe Gen5 x16, speed / 8 for a NIC.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusim.base.errors import TopologyError
from clusim.hardware.pcie import GENERATIONS, LANES, lane_MBps
from clusim.nccl.constants import (
    LOCAL_GBps,
    Path,
    Version,
    cpu_of,
    pcie_GBps,
    since,
    socket_GBps,
)
from clusim.nccl.env import Settings
from clusim.nccl.system import Device, System, unknown
from clusim.nccl.system_paths import set_routes
from clusim.nccl.transports import (
    allowed_nics,
    restrict_transports,
    stated_latency_us,
    transport_of,
)
from clusim.topology.model import Fabric, Link
from clusim.topology.nccl_overrides import SWITCH, told_lines, told_of, told_slot
from clusim.topology.node import NETWORK, Node
from clusim.topology.subset import NodeParts, parts_of

_RANK = {"nvl": 0, "c2c": 1, "net": 2, "pci": 3, "sys": 5}


def _pcie_GBps(link: Link) -> float:
    """Return NCCL's bandwidth of a PCIe link [GB/s]: by the generation and lanes that have its rate."""
    rate_Bps = link.rate.bytes_per_s
    slots = [(gen, lanes) for gen in GENERATIONS for lanes in LANES]
    gen, lanes = min(
        slots,
        key=lambda slot: abs(lane_MBps(slot[0]) * slot[1] * 1e6 / rate_Bps - 1),
    )
    if abs(lane_MBps(gen) * lanes * 1e6 / rate_Bps - 1) < 0.03:
        return pcie_GBps(gen, lanes) * link.count
    # NCCL's constant 12 GB/s replaces the 15.7 of Gen3 x16, and so on.
    return round(rate_Bps * link.count / 1e9 * 0.762, 1)


def build_system(
    fabric: Fabric,
    version: Version,
    settings: Settings | None = None,
    *,
    zone: int = 0,
    ranks: Iterable[int] | None = None,
) -> System:
    """Return NCCL's view of one node of a topology.

    Parameters
    ----------
    zone : int
        Index of the node.
    ranks : iterable of int or None
        Participating GPUs, by their index in the node; None is all.
    """
    settings = settings or Settings()
    fabric = restrict_transports(fabric, settings)
    system = System(version, settings, pxn=fabric.pxn, nvb=fabric.nvb)
    parts = parts_of(fabric, zone)
    nodes, links = parts.nodes, parts.inside
    devices = _devices(system, nodes, links, ranks)
    if not system.gpus:
        raise TopologyError(f"{fabric.name}: no GPU in node {zone}; NCCL needs one")
    _join_all(system, nodes, links, devices)
    _tell(system, fabric)
    _add_adapters(system, fabric, parts, devices)
    _tell_slots(system, fabric)
    _join_sockets(system)
    for device in (*system.gpus, *system.cpus, *system.others):
        device.links.sort(key=lambda link: _RANK[link.kind])
    if fabric.gdr_level != "pxb":
        system.gdr_level = Path[fabric.gdr_level.upper()]
    set_routes(system, Path[fabric.p2p_level.upper()])
    return system


def _devices(
    system: System,
    nodes: dict[str, Node],
    links: list[Link],
    ranks: Iterable[int] | None,
) -> dict[str, Device]:
    selected = None if ranks is None else set(ranks)
    nvlinked = {
        end
        for link in links
        if link.cls in ("nvlink", "xgmi", "trunk")
        for end in (link.a, link.b)
    }
    devices: dict[str, Device] = {}
    count = 0
    for node in nodes.values():
        if node.kind == "gpu":
            count += 1
            if selected is not None and count - 1 not in selected:
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


def _gpu(node: Node, index: int) -> Device:
    end = node.endpoint
    if end is None or not end.compute_capability:
        raise unknown(
            end.chip if end else "", node.name, "compute_capability", "9.0"
        )
    return Device(
        "gpu",
        node.name,
        index,
        capability=end.compute_capability,
        chip=end.chip,
        architecture=end.architecture,
        peer_access=end.peer_access,
    )


def _join_all(
    system: System,
    nodes: dict[str, Node],
    links: list[Link],
    devices: dict[str, Device],
) -> None:
    for link in links:
        a, b = devices.get(link.a), devices.get(link.b)
        if a is None or b is None or a is b:
            continue
        if link.cls in ("nvlink", "xgmi", "trunk"):
            gpu = a if a.kind == "gpu" else b
            system.join(a, b, "nvl", system.link_GBps(gpu) * link.count)
        elif link.cls == "c2c" and {a.kind, b.kind} == {"gpu", "cpu"}:
            system.join(
                a, b, "c2c", round(link.rate.bytes_per_s * link.count / 1e9, 1)
            )
        elif link.cls == "pcie":
            system.join(a, b, "pci", _pcie_GBps(link))
    lonely = [
        gpu
        for gpu in system.gpus
        if not any(k.kind in ("pci", "c2c") for k in gpu.links)
    ]
    if lonely and not system.cpus:
        system.cpus.append(Device("cpu", "host", 0))
    for gpu in lonely:
        endpoint = nodes[gpu.name].endpoint
        rate = (
            endpoint.pcie_Bps / 1e9 * 0.762
            if endpoint and endpoint.pcie_Bps
            else 12.0
        )
        system.join(gpu, system.cpus[0], "pci", round(rate, 1))


def _tell(system: System, fabric: Fabric) -> None:
    """Replace the NVLinks by the overrides that NCCL reads, separately for each direction."""
    gpus = {gpu.name: gpu for gpu in system.gpus}
    overrides = {
        gpu: links
        for gpu in system.gpus
        if (links := told_of(fabric.told, gpu.name)) is not None
    }
    if not overrides:
        return
    system.told += told_lines(fabric)
    counts: dict[tuple[Device, Device], float] = {}
    for gpu in system.gpus:
        rate = system.link_GBps(gpu)
        existing = {
            link.remote: link.rate for link in gpu.links if link.kind == "nvl"
        }
        if gpu in overrides:
            ends = {
                (system.switch if to == SWITCH else gpus.get(to)): n
                for to, n in overrides[gpu].items()
            }
            existing = {
                end: n * rate
                for end, n in ends.items()
                if end is not None and end is not gpu
            }
        for other, existing_rate in existing.items():
            if existing_rate:
                counts[gpu, other] = existing_rate
            if existing_rate and other.kind != "gpu":
                counts[other, gpu] = existing_rate
    for device in (*system.gpus, *system.others):
        device.links = [link for link in device.links if link.kind != "nvl"]
    for (a, b), rate in counts.items():
        if (b, a) in counts and (a.kind, a.index) < (b.kind, b.index):
            system.join(a, b, "nvl", rate)
            next(
                link for link in b.links if link.remote is a and link.kind == "nvl"
            ).rate = counts[b, a]


def _tell_slots(system: System, fabric: Fabric) -> None:
    """Set the PCIe slot rates of GPUs and NICs to the overrides that NCCL reads."""
    if not fabric.told_pcie:
        return
    system.told += told_lines(fabric)
    members = {net.name: len(net.members) for net in system.adapters}
    for device in (*system.gpus, *system.others):
        slot = (
            told_slot(fabric, device.name) if device.kind in ("gpu", "nic") else None
        )
        for link in device.links if slot is not None else ():
            if link.kind == "pci":
                assert slot is not None
                link.rate = pcie_GBps(*slot) * members.get(f"NET/{device.index}", 1)
                for back in link.remote.links:
                    if back.remote is device and back.kind == "pci":
                        back.rate = link.rate


def _add_adapters(
    system: System,
    fabric: Fabric,
    parts: NodeParts,
    devices: dict[str, Device],
) -> None:
    nodes, links = parts.nodes, parts.inside
    uplinks = {
        end: link
        for link in parts.touching
        for end in (link.a, link.b)
        if link.cls != "pcie"
    }
    places: dict[str, tuple[Device, float]] = {}
    for link in links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if (
                nodes[end].kind == "nic"
                and other in devices
                and link.cls in ("pcie", "c2c")
            ):
                rate = _pcie_GBps(link) if link.cls == "pcie" else LOCAL_GBps
                places[end] = (
                    devices[other],
                    rate + places.get(end, (None, 0.0))[1],
                )
    groups: dict[tuple[str, int], list[str]] = {}
    nics = [name for name, node in nodes.items() if node.kind == "nic"]
    allowed = allowed_nics(system.settings.ib_hca, nics, fabric.nic_names)
    system.told += [allowed.note] if allowed.note else []
    for place, names in _by_place(places).items():
        names = [name for name in names if name in allowed.names]
        merged_nics = _count_merged_nics(names, nodes, place)
        for number, name in enumerate(names):
            groups.setdefault((place.name, number // merged_nics), []).append(name)
    rank = {name: number for number, name in enumerate(nodes)}
    for members in sorted(groups.values(), key=lambda names: rank[names[0]]):
        first = nodes[members[0]]
        place = places[members[0]][0]
        number = len(system.adapters)
        nic = Device("nic", members[0], number)
        net = Device(
            "net", f"NET/{number}", number, port=number, members=tuple(members)
        )
        net.speed_GBps = sum(
            _speed_GBps(nodes[name], uplinks.get(name)) for name in members
        )
        net.gpudirect = first.nic.gpudirect if first.nic else True
        net.collective = _reduces(fabric)
        if (
            first.nic is not None
            and first.nic.plugin_ps
            and since(system.version, "latency of plugins")
        ):
            net.latency_us = stated_latency_us(first.nic, system.capabilities[0])
        system.others.append(nic)
        system.adapters.append(net)
        system.join(nic, place, "pci", sum(places[name][1] for name in members))
        system.join(nic, net, "net", net.speed_GBps)


def _speed_GBps(node: Node, uplink: Link | None) -> float:
    """Return the speed reported by a NIC [GB/s]: its rate, otherwise its cable's in integer Gb/s."""
    if node.nic is not None and node.nic.speed_Bps:
        return node.nic.speed_Bps / 1e9
    return (
        round(uplink.rate.bytes_per_s * 8 / 1e9) / 8 if uplink is not None else 0.0
    )


def _by_place(places: dict[str, tuple[Device, float]]) -> dict[Device, list[str]]:
    result: dict[Device, list[str]] = {}
    for name, (place, _) in places.items():
        result.setdefault(place, []).append(name)
    return result


def _count_merged_nics(
    names: list[str], nodes: dict[str, Node], place: Device
) -> int:
    """Return the number of NICs that the network plugin merges into one: the NICs of the same GPU."""
    if not names or not transport_of(nodes[names[0]].nic).stripe_bytes:
        return 1
    gpus = sum(link.remote.kind == "gpu" for link in place.links)
    return max(1, len(names) // gpus) if gpus else 1


def _reduces(fabric: Fabric) -> bool:
    """Return True if the switches between nodes can reduce."""
    switches = [
        node
        for node in fabric.nodes
        if node.zone == NETWORK and node.kind == "switch"
    ]
    return bool(switches) and all(node.unit is not None for node in switches)


def _join_sockets(system: System) -> None:
    for i, a in enumerate(system.cpus):
        for b in system.cpus[i + 1 :]:
            system.join(a, b, "sys", socket_GBps(a.cpu, system.version))
