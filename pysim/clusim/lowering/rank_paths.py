"""Which way data take between two ranks, and how long flags take on it.

**Hardware** NCCL decides per pair of GPUs (``src/graph/paths.cc``, ``src/transport/*.cc``): NVLink if there is any;
PCIe peer-to-peer below PCIe switches; host memory (SHM) where PCIe would pass a root complex; between machines a NIC,
which reads and writes GPU memory if it is near (GPUDirect), is reached over NVLink and a GPU that is near it (PXN),
or else sends from host memory. **Model** The same choices from the class of the way (`clusim.topology.rails.PathType`),
as one or two *legs*, each of which becomes a connection of the image; between the two a proxy forwards slice by
slice. A flag to the host takes the latency of a write to host memory (its poll is in the NIC's figures); a flag to a
GPU waits for a poll over PCIe, a round trip. **Not modelled** Intra-machine traffic over NICs, copy engines, GDRCopy.
**Parameters** `Nic`, `Fabric.p2p_level`, `Fabric.gdr_level`, `Fabric.gdr_read`, `Fabric.pxn`, `Fabric.shm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import ScheduleError, TopologyError
from clusim.engine.abi import NONE, ConnKind
from clusim.lowering.hops import Leg, Place, protocol_of
from clusim.lowering.networked import Networked
from clusim.lowering.paths import WireWays
from clusim.schedule.ir import Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.model import Protocol
from clusim.topology.rails import PathType, path_type

MOST_KEPT = 1 << 16
"""Ways that are kept with a fabric; a run with more of them does not leave them to the next."""


def places_of(arrays: FabricArrays) -> Places:
    """Return what finds the ways on a fabric: of a whole one the same for all its runs, so that each is found once."""
    known = arrays.fabric.derived
    if known.get("arrays") is not arrays:
        return Places(arrays)
    found: Places | None = known.get("places")
    if found is None or found.full:
        found = known["places"] = Places(arrays)
    return found


class Places(WireWays):
    """Finds the ways of connections on a fabric."""

    def __init__(self, arrays: FabricArrays) -> None:
        super().__init__(arrays)
        self.p2p_level = PathType[self.fabric.p2p_level.upper()]
        self._known: dict[tuple[int, int, str, str, str, int, int, int], Place] = {}

    @property
    def full(self) -> bool:
        """Whether it has found so many ways that it is better forgotten."""
        return len(self._known) > MOST_KEPT

    def of(self, connection: Connection) -> Place:
        """Return the way of a data or flag connection; raises `ScheduleError` if there is none."""
        src, dst = connection.src, connection.dst
        rail = turn = -1
        zone = self.zone(dst)
        if self.zone(src) != zone:
            rail = (
                connection.rail
                if connection.rail >= 0
                else self.rails.choice(dst, connection.channel)
            )
            if rail not in self.live(zone):
                turn = connection.channel  # the channel chooses another
        key = (
            *(src, dst, connection.kind, connection.protocol, connection.moved),
            *(rail, connection.rail_out, turn),
        )
        found = self._known.get(key)
        if found is None:
            try:
                found = self._known[key] = self._find(connection, rail)
            except TopologyError as error:
                raise ScheduleError(
                    f"rank {src} cannot reach rank {dst} on {self.fabric.name}; use an algorithm over"
                    " neighbours, such as ring"
                ) from error
        return found

    def _find(self, connection: Connection, rail: int) -> Place:
        src, dst = connection.src, connection.dst
        protocol = protocol_of(self.fabric, connection.protocol)
        if src == dst:
            end = self.endpoint(src)
            return Place(
                "direct",
                (Leg(end, end, ConnKind.FLAG, protocol.tail_fence_ps, protocol.head_fence_ps),),
            )
        if self.zone(src) != self.zone(dst):
            return Networked(self, connection, protocol, rail).place()
        way = self.steps(self.arrays.node_of(src), (self.endpoint(dst),))
        kind = path_type(self.arrays, way)
        memory = self.memory(dst)
        if kind == PathType.NVL and self._over_nvlink(way):
            return Place("direct", (self._direct(connection, protocol, way),))
        if kind != PathType.NVL and self._over_pcie(kind, memory):
            return Place("peer", (self._peer(connection, protocol, way),))
        self._check_staged(src, dst, memory)
        return Place("staged", (self._staged(connection, protocol, memory),))

    def _over_pcie(self, kind: PathType, memory: int) -> bool:
        """Return True if P2P may use PCIe; without host memory it has to, unless no level allows it."""
        return kind <= self.p2p_level or (memory == NONE and self.p2p_level > PathType.LOC)

    def _over_nvlink(self, way: Sequence[int]) -> bool:
        """Return True if P2P may use NVLink here: through another GPU from level NVB on."""
        if self.p2p_level >= PathType.NVB and self.fabric.nvb:
            return True
        between = (self.fabric.nodes[int(self.arrays.wires["src"][wire])] for wire in way[1:])
        return self.p2p_level >= PathType.NVL and all(node.kind != "gpu" for node in between)

    def _check_staged(self, src: int, dst: int, memory: int) -> None:
        """Raise `ScheduleError` if two ranks of a node have no transport: no P2P, and no host memory to share."""
        nodes = [self.arrays.node_of(rank) for rank in (src, dst)]
        if memory == NONE or not all(self.reaches(node, memory) for node in nodes):
            why = "there is no host memory that both reach"
        elif not self.fabric.shm:
            why = "SHM is disabled (NCCL_SHM_DISABLE, or shm of the topology)"
        else:
            return
        raise ScheduleError(
            f"{self.fabric.name}: no transport from rank {src} to rank {dst}: P2P is allowed up to"
            f" {self.fabric.p2p_level} (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, or p2p_level of the topology) and {why};"
            " NICs inside a node are not simulated"
        )

    def _direct(self, connection: Connection, protocol: Protocol, way: Sequence[int]) -> Leg:
        """Return the leg over NVLink, or over any fabric that has no hosts in between."""
        read = self.is_read(connection)
        back = self.back(connection.src, connection.dst)
        leg = self.plain(connection, way, back, read)
        return self.with_flags(
            leg, connection, self.arrays.latency_ps(way), self.arrays.latency_ps(back), protocol
        )

    def _peer(self, connection: Connection, protocol: Protocol, way: Sequence[int]) -> Leg:
        """Return the leg of PCIe writes into the peer's memory."""
        leg = self.plain(connection, way, self.back(connection.src, connection.dst), read=False)
        ends = (
            self.arrays.latency_ps(way),
            self.arrays.latency_ps(self.back(connection.src, connection.dst)),
        )
        return self.with_flags(leg, connection, *ends, protocol)

    def _staged(self, connection: Connection, protocol: Protocol, memory: int) -> Leg:
        """Return the leg through host memory near the receiver: the sender writes, the receiver reads."""
        arrays = self.arrays
        src, dst = connection.src, connection.dst
        there = self.steps(arrays.node_of(src), (memory,))
        fetch = self.steps(arrays.node_of(dst), (memory,))
        answer = self.steps(int(arrays.endpoints["node"][memory]), (self.endpoint(dst),))
        flags = connection.kind == "flag"
        tail = arrays.latency_ps(there) + self.to_gpu(dst) + protocol.tail_fence_ps
        head = self.to_host(dst) + self.to_gpu(src) + protocol.head_fence_ps
        return Leg(
            src=self.endpoint(src),
            dst=self.endpoint(dst),
            kind=ConnKind.FLAG if flags else ConnKind.WRITE,
            tail_ps=tail,
            head_ps=head,
            hops=0 if flags else len(there) + len(fetch) + len(answer),
            packet_bytes=min(
                self.packet_limit(src, there), self.packet_limit(dst, [*fetch, *answer])
            ),
            width=len(self.group(arrays.node_of(dst), memory)),
            forms=self.formats([*there, *fetch, *answer]),
            stage=NONE if flags else memory,
        )

    def plain(
        self, connection: Connection, way: Sequence[int], back: Sequence[int], read: bool
    ) -> Leg:
        """Return a leg that carries the data of a connection over `way`, without flags."""
        src, dst = self.endpoint(connection.src), self.endpoint(connection.dst)
        flags = connection.kind == "flag"
        requests = back if read else way
        asks = connection.dst if read else connection.src
        goal = src if read else dst
        return Leg(
            src=src,
            dst=dst,
            kind=ConnKind.FLAG if flags else ConnKind.READ if read else ConnKind.WRITE,
            hops=0 if flags else len(way) * (2 if read else 1),
            packet_bytes=128 if flags else self.packet_limit(asks, requests),
            width=len(self.group(self.arrays.node_of(asks), goal)),
            forms=self.formats([*way, *(back if read else ())]),
        )

    def with_flags(
        self, leg: Leg, connection: Connection, there_ps: int, back_ps: int, protocol: Protocol
    ) -> Leg:
        """Return a leg whose flags fly for `there_ps` and `back_ps`; those of LL and LL128 travel in the data."""
        in_data = connection.kind == "data" and connection.protocol != "simple"
        tail = protocol.tail_fence_ps + (0 if in_data else there_ps)
        return replace(leg, tail_ps=tail, head_ps=back_ps + protocol.head_fence_ps)

    def is_read(self, connection: Connection) -> bool:
        """Return whether the receiver pulls the data of a connection over NVLink; LL and LL128 always push."""
        return (
            (connection.moved == "pull" if connection.moved else self.fabric.p2p == "read")
            and connection.kind == "data"
            and connection.protocol == "simple"
        )
