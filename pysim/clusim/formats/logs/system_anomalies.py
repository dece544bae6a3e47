"""Anomalies of a job's systems: slow transports, channels, missing links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from clusim.base.json_schema import JsonObject
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Log
from clusim.formats.logs.raw_log import Member
from clusim.hardware import nccl_link_GBps
from clusim.hardware.product_names import gpu_by_product


@dataclass(frozen=True, slots=True)
class Anomaly(JsonObject):
    """An anomaly: a short word for programs, and a sentence for users."""

    kind: str
    text: str


def comm_name(log: Log, communicator: LoggedCommunicator) -> str:
    """Return the communicator as the start of a sentence; empty if it is the only one."""
    return (
        ""
        if len(log.communicators) == 1
        else f"communicator {communicator.number}: "
    )


def transport_anomalies(
    log: Log, communicator: LoggedCommunicator
) -> Iterator[Anomaly]:
    """Yield transports that are slow, or that differ between channels."""
    where = comm_name(log, communicator)
    shm: set[tuple[int, int]] = set()
    p2p: set[tuple[int, int]] = set()
    nets: Counter[tuple[str, bool]] = Counter()
    channels: dict[tuple[int, int], Counter[str]] = {}
    connections = log.connections_of(communicator)
    for _channel, index, source, target, route, _ in connections:
        if route.kind == "SHM":
            shm.add((source, target))
        elif route.kind == "P2P":
            p2p.add((source, target))
        elif route.kind == "NET":
            nets[route.how, route.gdr] += 1
        if index == 0:
            channels.setdefault((source, target), Counter())[route.label] += 1
    if shm:
        pairs = sorted({(min(a, b), max(a, b)) for a, b in shm})
        listing = ", ".join(f"{a}-{b}" for a, b in pairs[:8]) + (
            ", ..." if len(pairs) > 8 else ""
        )
        more = "they are on one host, where P2P may be possible"
        if p2p:
            more = f"while {len(p2p)} pairs use P2P"
        elif any(
            name in log.facts.environment
            for name in ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")
        ):
            more = "because the environment forbids P2P"
        yield Anomaly("SHM", f"{where}ranks {listing} use host memory (SHM), {more}")
    for name in sorted({how for how, _ in nets}):
        with_gdr, without = nets[name, True], nets[name, False]
        if name.lower().startswith("socket"):
            more = (
                "; no InfiniBand or RoCE device was found" if _no_device(log) else ""
            )
            yield Anomaly(
                "socket",
                f"{where}{without} connections between nodes use TCP sockets{more}",
            )
        elif without:
            some = (
                f"{without} of {with_gdr + without}"
                if with_gdr
                else f"all {without}"
            )
            yield Anomaly(
                "GDR",
                f"{where}{some} connections over NET/{name} are without GPUDirect RDMA",
            )
    mixed = [pair for pair, labels in channels.items() if len(labels) > 1]
    if mixed:
        a, b = mixed[0]
        listing = ", ".join(f"{n} x {label}" for label, n in channels[a, b].items())
        yield Anomaly(
            "channels", f"{where}{len(mixed)} pairs use different transports on different channels,"
            f" e.g. {a} -> {b}: {listing}",
        )  # fmt: skip


def _no_device(log: Log) -> bool:
    return any(kind.startswith("NET/IB : No device") for kind in log.facts.unknown)


def graph_anomalies(log: Log, communicator: LoggedCommunicator) -> Iterator[Anomaly]:
    """Yield missing links and CPUs of other NUMA nodes."""
    where = comm_name(log, communicator)
    members = log.members(communicator)
    rings = log.rings(communicator)
    total = max((m.channel_total for m in members), default=NONE)
    if 0 < total != len(rings) and rings:
        yield Anomaly(
            "channels", f"{where}{len(rings)} of {total} rings are in the log"
        )
    for channel, ring in rings.items():
        if len(set(ring)) != communicator.n_ranks > 0:
            yield Anomaly(
                "ring",
                f"{where}ring {channel} visits {len(set(ring))} of {communicator.n_ranks} ranks",
            )
            break
    numa = _numa(log, communicator)
    crossings = []
    for channel, ring in rings.items():
        steps = zip(ring, ring[1:] + ring[:1], strict=True)
        zones = [(numa[a], numa[b]) for a, b in steps if a in numa and b in numa]
        crossings.append((sum(a != b and a[0] == b[0] for a, b in zones), channel))
    nvlink = any(node.link == "NVL" for member in members for node in member.system)
    if crossings and not nvlink and max(crossings)[0]:
        n, channel = max(crossings)
        yield Anomaly(
            "NUMA", f"{where}ring {channel} crosses between CPU sockets {n} times"
        )
    for member in members:
        yield from _links(log, communicator, member)


def _numa(log: Log, communicator: LoggedCommunicator) -> dict[int, tuple[str, str]]:
    """Return host and CPU of each rank that the topology print names."""
    result: dict[int, tuple[str, str]] = {}
    for member in log.members(communicator):
        cpu = ""
        host = log.facts.processes[member.process].host
        for node in member.system:
            if node.depth == 0 and node.name.startswith("CPU/"):
                cpu = node.name
            elif node.name.startswith("GPU/") and cpu and node.note.isdigit():
                result.setdefault(int(node.note), (host, cpu))
    return result


def _links(
    log: Log, communicator: LoggedCommunicator, member: Member
) -> Iterator[Anomaly]:
    """Compare the NVLinks in the topology print with the chip's, and NICs with each other."""
    host = log.facts.processes[member.process].host
    links: dict[str, float] = {}
    gpu, nics = "", {}
    for node in member.system:
        if node.name.startswith("GPU/") and node.note:
            gpu = node.name if node.link != "NVL" else gpu
        if node.link == "NVL" and gpu:
            links[gpu] = links.get(gpu, 0.0) + node.bw
        if node.name.startswith("NET/"):
            nics[node.name] = node.bw
    name = communicator.gpu_of.get(member.rank, "")
    chip = gpu_by_product(name)
    if chip is not None and chip.has_fixed_links and chip.link.startswith("nvlink"):
        link_GBps = nccl_link_GBps(chip.compute_capability)
        for gpu, bw in links.items():
            if bw < 0.97 * link_GBps * chip.links:
                yield Anomaly(
                    "NVLink",
                    f"{host}: {gpu} ({name}) has {bw / link_GBps:.0f} NVLinks ({bw:g} GB/s), the chip {chip.links}",
                )
    if nics and min(nics.values()) < 0.9 * max(nics.values()):
        slow = min(nics, key=lambda nic: nics[nic])
        yield Anomaly(
            "slow NIC",
            f"{host}: {slow} has {nics[slow]:g} GB/s, the fastest {max(nics.values()):g}",
        )
