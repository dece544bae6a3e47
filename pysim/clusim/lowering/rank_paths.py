"""Data path and flag latency between two ranks.

**Hardware** NCCL decides per pair of GPUs (``src/graph/paths.cc``, ``src/transport/*.cc``): NVLink if present;
PCIe peer-to-peer below PCIe switches; host memory (SHM) where PCIe would pass a root complex; between nodes a NIC,
which reads and writes GPU memory if it is near (GPUDirect), is reached over NVLink and a GPU that is near it (PXN),
or otherwise sends from host memory. **Model** The same choices from the class of the path
(`clusim.topology.rails.PathType`), as one or two *legs*, each of which becomes a connection of the image; between the
two, from GPU to proxy and from proxy to the other node, a proxy forwards slice by slice. A flag to the host takes the
latency of a write to host memory (its poll is in the NIC's parameters); a flag to a GPU waits for a poll over PCIe, a
round trip. **Not modelled** Intra-node traffic over NICs, copy engines, GDRCopy.
**Parameters** `Nic`, `Fabric.p2p_level`, `Fabric.gdr_level`, `Fabric.gdr_read`, `Fabric.pxn`, `Fabric.shm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusim.base.errors import ScheduleError, TopologyError
from clusim.engine.abi import NONE, ConnKind
from clusim.lowering.hops import Leg, Place, Proxied, protocol_of
from clusim.lowering.paths import WireWays
from clusim.schedule.ir import ABSENT, Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.model import Protocol
from clusim.topology.node import NicTraits
from clusim.topology.rails import PathType, path_type


class Networked:
    """Path of one connection over one rail."""

    def __init__(
        self, ways: WireWays, connection: Connection, protocol: Protocol, rail: int
    ) -> None:
        self.ways, self.connection, self.protocol = ways, connection, protocol
        arrays = self.arrays = ways.arrays
        self.src, self.dst = connection.src, connection.dst
        self.rails = self._choose(rail)
        self.nics = [
            ways.rails.nics(ways.zone(rank))[rank_rails]
            for rank, rank_rails in zip((self.src, self.dst), self.rails, strict=True)
        ]
        nodes = [arrays.fabric.nodes[int(arrays.targets["node"][nic])] for nic in self.nics]
        self.adapters = [node.nic or NicTraits() for node in nodes]

    def _choose(self, rail: int) -> tuple[int, int]:
        """Return the rails of sender and receiver: `rail`, or the nearest one on the network."""
        rails, zone = self.ways.rails, self.ways.zone(self.dst)
        theirs = rails.nics(zone)
        live = rails.live((zone,))
        if rail not in live:
            rail = rails.choice(self.dst, self.connection.channel)
        for rank, result in (
            (self.dst, live),
            (self.src, rails.live((self.ways.zone(self.src),))),
        ):
            if not result or rail < 0:
                raise ScheduleError(
                    f"{self.arrays.fabric.name}: {self.arrays.fabric.ranks[rank]} (rank {rank}) lacks a NIC on the"
                    " network between nodes; add one, or use ranks of one node"
                )
        if not self.arrays.fabric.pxn and self.connection.rail_out == ABSENT:
            return self._without_pxn(theirs, rail), rail
        sender_rail = rails.partner(self.src, self._rail_out(rail), theirs[rail])
        if sender_rail >= 0:
            return sender_rail, rail
        for other in live:
            sender_rail = rails.partner(self.src, other, theirs[other])
            if sender_rail >= 0:
                return sender_rail, other
        raise ScheduleError(
            f"{self.arrays.fabric.name}: no network joins the NICs of rank {self.src} and rank {self.dst};"
            " use ranks that it joins"
        )

    def _without_pxn(self, theirs: list[int], rail: int) -> int:
        """Return the sender's rail; raise `ScheduleError` if no network joins it with `rail`."""
        rails, arrays = self.ways.rails, self.arrays
        sender_rail = rails.choice(self.src, self.connection.channel)
        nics = rails.nics(self.ways.zone(self.src))
        if sender_rail >= 0 and arrays.joined(nics[sender_rail], theirs[rail]):
            return sender_rail
        raise ScheduleError(
            f"{arrays.fabric.name}: no network joins NIC {sender_rail} of rank {self.src} and NIC {rail} of rank"
            f" {self.dst},"
            " and PXN is disabled (NCCL_PXN_DISABLE, or pxn of the topology); enable it, or use ranks of one rail"
        )

    def _rail_out(self, rail: int) -> int:
        asked = self.connection.rail_out
        return rail if asked == ABSENT else asked

    def place(self) -> Place:
        """Return the legs of the connection."""
        ways, nic = self.ways, self.adapters[0]
        if self.connection.kind == "flag":
            there = self._post_to_flag() + ways.to_host(self.src)
            head = ways.to_host(self.dst) + self._message_ps(1) + ways.to_gpu(self.src)
            ends = ways.endpoint(self.src), ways.endpoint(self.dst)
            there += ways.host(self.src).thread_ps + nic.post_ps
            leg = Leg(*ends, ConnKind.FLAG, there, head)
            return Place("network", (leg,))
        relayed = self._reads() and self.arrays.fabric.pxn and not self._near(self.src, 0)
        helper = self._helper() if relayed else -1
        first, at = self._first_leg(helper)
        server = self.src if helper < 0 else helper
        proxy = Proxied(at, ways.endpoint(server), nic, ways.host(server), self._ask_ps())
        return Place("network", (first, self._second_leg(at)), proxy)

    def _near(self, rank: int, side: int) -> bool:
        """Return True if the NIC of the sender (0) or receiver (1) accesses its GPU's memory."""
        able = self.adapters[1].gpudirect if side else self._reads()
        direct = able and self.ways.rails.direct(rank, self.rails[side])
        return direct or self._is_host(rank)

    def _reads(self) -> bool:
        """Return True if the sender's NIC reads GPU memory at all."""
        return self.adapters[0].gpudirect and self.arrays.fabric.gdr_read

    def _post_to_flag(self) -> int:
        """Return the time of a flag without data from NIC to the receiving GPU [ps]."""
        return self._message_ps(0) + self.adapters[1].completion_ps + self.ways.to_gpu(self.dst)

    def _message_ps(self, sender: int) -> int:
        """Return the time of a message without payload from NIC to NIC [ps]."""
        return self._network_ps() + self.adapters[sender].transit_ps

    def _ask_ps(self) -> int:
        """Return the time of the ready message, from the receiver's host to the sender's [ps]."""
        return self._network_ps() + self.adapters[1].ack_ps

    def _network_ps(self) -> int:
        arrays = self.arrays
        way = self.ways.steps(int(arrays.targets["node"][self.nics[0]]), (self.nics[1],))
        return arrays.latency_ps(way)

    def _first_leg(self, helper: int) -> tuple[Leg, int]:
        """Return the leg to the proxy, and the endpoint at which the proxy has its data.

        LL is sent from host memory, where the proxy checks its lines: no flag follows the data. A slot is free when
        the NIC reports that the message has arrived.
        """
        ways, src, lines = self.ways, self.src, self.connection.protocol == "ll"
        endpoint = ways.endpoint(src)
        simple = self.arrays.fabric.protocols.get("simple", self.protocol)
        fence = 0 if lines else simple.tail_fence_ps
        nic = self.adapters[0]
        head = self._message_ps(0) + self._network_ps() + nic.ack_ps + nic.completion_ps
        head += ways.to_gpu(src) + self.protocol.head_fence_ps
        tail = ways.to_host(src) + fence
        if self._is_host(src) or (self._near(src, 0) and not lines):
            return Leg(endpoint, endpoint, ConnKind.FLAG, tail, head), endpoint
        near = helper >= 0 and not lines
        target = ways.endpoint(helper) if near else self._memory(src, self.nics[0])
        if target == NONE:
            return Leg(endpoint, endpoint, ConnKind.FLAG, tail, head), endpoint
        way = ways.steps(self.arrays.node_of(src), (target,))
        flag = 0 if lines else max(tail, self.arrays.latency_ps(way) + fence)
        leg = Leg(
            src=endpoint,
            dst=target,
            kind=ConnKind.WRITE,
            tail_ps=flag,
            head_ps=head,
            hops=len(way),
            packet_bytes=ways.packet_limit(src, way),
            width=len(ways.group(self.arrays.node_of(src), target)),
            forms=ways.formats(way),
        )
        return leg, target

    def _second_leg(self, proxy: int) -> Leg:
        """Return the leg from the proxy over both NICs to the receiver, or to host memory near it."""
        ways, arrays, dst = self.ways, self.arrays, self.dst
        endpoint = ways.endpoint(dst)
        adapter = self.adapters[1]
        stage = NONE if self._near(dst, 1) else self._memory(dst, self.nics[1])
        goal = endpoint if stage == NONE else stage
        start = int(arrays.endpoints["node"][proxy])
        way = ways.steps(start, (*self.nics, goal))
        answer: tuple[int, ...] = ()
        if stage != NONE:
            there = ways.steps(arrays.node_of(dst), (stage,))
            back = ways.steps(int(arrays.endpoints["node"][stage]), (endpoint,))
            answer = (*there, *back)
        near = self._near(dst, 1) and not self._is_host(dst)
        if near and self.connection.protocol != "simple":
            tail = self.protocol.tail_fence_ps
        else:
            tail = adapter.completion_ps + ways.to_gpu(dst) + (adapter.flush_ps if near else 0)
        tail += self.adapters[0].post_ps + self.adapters[0].transit_ps
        return Leg(
            src=proxy,
            dst=endpoint,
            kind=ConnKind.WRITE,
            tail_ps=tail,
            head_ps=ways.to_host(dst) + self._ask_ps() + self.protocol.head_fence_ps,
            hops=len(way) + len(answer),
            packet_bytes=self.adapters[0].mtu_bytes,
            width=len(ways.group(start, self.nics[0])),
            forms=ways.formats([*way, *answer]),
            via_first=self.nics[0],
            via_last=self.nics[1],
            stage=stage,
            adaptive=self.adapters[0].adaptive,
            nic=self.adapters[0],
            line_wire=ways.steps(start, tuple(self.nics))[self._to_nic(start)],
        )

    def _to_nic(self, start: int) -> int:
        return len(self.ways.steps(start, (self.nics[0],)))

    def _helper(self) -> int:
        """Return a GPU that is next to the NIC and reached over NVLink (PXN), or -1."""
        key = self.src, self.rails[0]
        if key not in self.ways.helpers:
            self.ways.helpers[key] = self._find_helper()
        return self.ways.helpers[key]

    def _find_helper(self) -> int:
        ways, rail = self.ways, self.rails[0]
        candidates = [rank for rank in ways.ranks_in(ways.zone(self.src)) if rank != self.src]
        node = self.arrays.node_of(self.src)
        for rank in ways.rails.heads(candidates, rail) if candidates else ():
            if not ways.rails.direct(rank, rail):
                continue
            way = ways.steps(node, (ways.endpoint(rank),))
            if path_type(self.arrays, way) == PathType.NVL:
                return rank
        return -1

    def _memory(self, rank: int, nic: int) -> int:
        """Return the host memory reachable by a rank and nearest to a NIC of its node, or NONE."""
        key = rank, nic
        if key not in self.ways.stages:
            self.ways.stages[key] = self._find_memory(rank, nic)
        return self.ways.stages[key]

    def _find_memory(self, rank: int, nic: int) -> int:
        arrays = self.arrays
        low, high = arrays.machines.target_lo[self.ways.zone(rank) : self.ways.zone(rank) + 2]
        node = int(arrays.targets["node"][nic])
        result = [
            (arrays.distance(node, target), target)
            for target in arrays.machines.targets[low:high].tolist()
            if arrays.fabric.nodes[int(arrays.targets["node"][target])].kind == "memory"
            and arrays.distance(arrays.node_of(rank), target) >= 0
        ]
        best = min((item for item in result if item[0] >= 0), default=(0, NONE))[1]
        if best == NONE and (arrays.fabric.gdr_level == "loc" or not arrays.fabric.gdr_read):
            raise ScheduleError(
                f"{arrays.fabric.name}: rank {rank} lacks host memory to send from or to, and GPUDirect is disabled"
                " (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ, or the topology); add nodes of kind memory"
            )
        return best

    def _is_host(self, rank: int) -> bool:
        return self.arrays.fabric.nodes[self.arrays.node_of(rank)].kind == "host"


MOST_KEPT = 1 << 16
"""Cached paths of a topology above which the next run starts an empty cache."""


def places_of(arrays: FabricArrays) -> Places:
    """Return the path finder of a topology, shared by all runs without faults."""
    known = arrays.fabric.derived
    if known.get("arrays") is not arrays:
        return Places(arrays)
    result: Places | None = known.get("places")
    if result is None or result.full:
        result = known["places"] = Places(arrays)
    return result


class Places(WireWays):
    """Path finder of connections on a topology."""

    def __init__(self, arrays: FabricArrays) -> None:
        super().__init__(arrays)
        self.p2p_level = PathType[self.fabric.p2p_level.upper()]
        self._known: dict[tuple[int, int, str, str, str, int, int, int], Place] = {}

    @property
    def full(self) -> bool:
        """True if more than `MOST_KEPT` paths are cached, so that the next run drops them."""
        return len(self._known) > MOST_KEPT

    def of(self, connection: Connection) -> Place:
        """Return the path of a data or flag connection; raise `ScheduleError` without one."""
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
        result = self._known.get(key)
        if result is None:
            try:
                result = self._known[key] = self._find(connection, rail)
            except TopologyError as error:
                raise ScheduleError(
                    f"rank {src} cannot reach rank {dst} on {self.fabric.name}; use an algorithm over"
                    " neighbours, such as ring"
                ) from error
        return result

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
        """Return True if P2P may use PCIe; it must without host memory, if a level allows it."""
        return kind <= self.p2p_level or (memory == NONE and self.p2p_level > PathType.LOC)

    def _over_nvlink(self, way: Sequence[int]) -> bool:
        """Return True if P2P may use NVLink here: through another GPU from level NVB on."""
        if self.p2p_level >= PathType.NVB and self.fabric.nvb:
            return True
        between = (self.fabric.nodes[int(self.arrays.wires["src"][wire])] for wire in way[1:])
        return self.p2p_level >= PathType.NVL and all(node.kind != "gpu" for node in between)

    def _check_staged(self, src: int, dst: int, memory: int) -> None:
        """Raise `ScheduleError` if two ranks of a node have neither P2P nor shared host memory."""
        nodes = [self.arrays.node_of(rank) for rank in (src, dst)]
        if memory == NONE or not all(self.reaches(node, memory) for node in nodes):
            why = "no host memory is reachable from both"
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
        """Return the leg over NVLink, or over any network without hosts in between."""
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
        """Return the leg through host memory near the receiver: one writes, the other reads."""
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
        """Return a leg with the flag latencies `there_ps` and `back_ps`.

        Data of LL and LL128 contain their flags, so that `there_ps` does not count for them.
        """
        in_data = connection.kind == "data" and connection.protocol != "simple"
        tail = protocol.tail_fence_ps + (0 if in_data else there_ps)
        return replace(leg, tail_ps=tail, head_ps=back_ps + protocol.head_fence_ps)

    def is_read(self, connection: Connection) -> bool:
        """Return True if the receiver pulls the data over NVLink; LL and LL128 always push."""
        return (
            (connection.moved == "pull" if connection.moved else self.fabric.p2p == "read")
            and connection.kind == "data"
            and connection.protocol == "simple"
        )
