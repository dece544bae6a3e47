"""Data path and flag latency between two ranks.

**Hardware** NCCL decides per pair of GPUs (``src/graph/paths.cc``, ``src/transport/*.cc``): NVLink if present;
PCIe peer-to-peer below PCIe switches; host memory (SHM) where PCIe would pass a root complex; between nodes a NIC,
which reads and writes GPU memory if it is near (GPUDirect), is reached over NVLink and a GPU that is near it (PXN),
or otherwise sends from host memory. **Model** The same choices from the class of the path
(`clusim.topology.rails.PathType`), as one or two *legs*, each of which becomes a connection of the image; between the
two, from GPU to proxy and from proxy to the other node, a proxy forwards slice by slice. A flag to the host takes the
latency of a write to host memory (its poll is in the NIC's parameters); a flag to a GPU waits for a poll over PCIe, a
round trip. **Not modelled** Copy engines, GDRCopy.
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
from clusim.topology.node import NicTraits
from clusim.topology.packets import Protocol
from clusim.topology.rails import PathType, path_type


class Networked:
    """Path of one connection over one rail."""

    def __init__(
        self, wire_ways: WireWays, connection: Connection, rail: int
    ) -> None:
        self.ways, self.connection = wire_ways, connection
        self.arrays, self.fabric = wire_ways.arrays, wire_ways.fabric
        self.protocol = protocol_of(wire_ways.arrays, connection.protocol)
        self.src, self.dst = connection.src, connection.dst
        self.rails = self._choose(rail)
        self.nics = [
            wire_ways.rails.nics(wire_ways.zones[rank])[rank_rails]
            for rank, rank_rails in zip(
                (self.src, self.dst), self.rails, strict=True
            )
        ]
        nodes = [
            self.fabric.nodes[int(self.arrays.targets["node"][nic])]
            for nic in self.nics
        ]
        self.adapters = [node.nic or NicTraits() for node in nodes]

    def _choose(self, rail: int) -> tuple[int, int]:
        """Return the rails of sender and receiver: `rail`, or the nearest one on the network."""
        rails, zones, connection = self.ways.rails, self.ways.zones, self.connection
        theirs, live = rails.nics(zones[self.dst]), rails.live((zones[self.dst],))
        if rail not in live:
            rail = rails.choice(self.dst, connection.channel)
        for rank, usable in (
            (self.dst, live),
            (self.src, rails.live((zones[self.src],))),
        ):
            if not usable or rail < 0:
                raise ScheduleError(
                    f"{self.fabric.name}: {self.fabric.ranks[rank]} (rank {rank}) lacks a NIC on the"
                    " network between nodes; add one, or use ranks of one node"
                )
        requested = connection.rail_out
        if not self.fabric.pxn and requested == ABSENT:
            return self._without_pxn(theirs[rail], rail), rail
        for local, far in (
            (rail if requested == ABSENT else requested, rail),
            *((o, o) for o in live),
        ):
            sender_rail = rails.partner(self.src, local, theirs[far])
            if sender_rail >= 0:
                return sender_rail, far
        raise ScheduleError(
            f"{self.fabric.name}: no network joins the NICs of rank {self.src} and rank {self.dst};"
            " use ranks that it joins"
        )

    def _without_pxn(self, nic: int, rail: int) -> int:
        """Return the sender's rail; raise `ScheduleError` if no network joins it with the receiver's NIC."""
        rails = self.ways.rails
        sender_rail = rails.choice(self.src, self.connection.channel)
        nics = rails.nics(self.ways.zones[self.src])
        if sender_rail >= 0 and self.arrays.on_same_plane(nics[sender_rail], nic):
            return sender_rail
        raise ScheduleError(
            f"{self.fabric.name}: no network joins NIC {sender_rail} of rank {self.src} and NIC {rail} of rank"
            f" {self.dst},"
            " and PXN is disabled (NCCL_PXN_DISABLE, or pxn of the topology); enable it, or use ranks of one rail"
        )

    def place(self) -> Place:
        """Return the legs of the connection."""
        wire_ways, nic = self.ways, self.adapters[0]
        if self.connection.kind == "flag":
            return Place("network", (self._flag(),))
        relayed = (
            self._reads()
            and self.fabric.pxn
            and not self._accesses_memory(self.src, 0)
        )
        helper = wire_ways.helper(self.src, self.rails[0]) if relayed else -1
        first, at = self._first_leg(helper)
        server = self.src if helper < 0 else helper
        proxy = Proxied(
            at,
            wire_ways.endpoint(server),
            nic,
            wire_ways.host(server),
            self._back_ps(self.adapters[1]),
        )
        return Place("network", (first, self._second_leg(at)), proxy)

    def _flag(self) -> Leg:
        """Return the leg of a flag without data."""
        wire_ways, src, dst = self.ways, self.src, self.dst
        forward_ps = (
            self._message_ps(0)
            + self.adapters[1].completion_ps
            + wire_ways.to_gpu(dst)
        )
        forward_ps += (
            wire_ways.to_host(src)
            + wire_ways.host(src).thread_ps
            + self.adapters[0].post_ps
        )
        back = wire_ways.to_host(dst) + self._message_ps(1) + wire_ways.to_gpu(src)
        return Leg(
            wire_ways.endpoint(src),
            wire_ways.endpoint(dst),
            ConnKind.FLAG,
            forward_ps,
            back,
        )

    def _accesses_memory(self, rank: int, side: int) -> bool:
        """Return True if the NIC of the sender (0) or receiver (1) accesses its GPU's memory."""
        able = self.adapters[1].gpudirect if side else self._reads()
        direct = able and self.ways.rails.direct(rank, self.rails[side])
        return direct or self.ways.is_host(rank)

    def _reads(self) -> bool:
        """Return True if the sender's NIC reads GPU memory at all."""
        return self.adapters[0].gpudirect and self.fabric.gdr_read

    def _message_ps(self, sender: int) -> int:
        """Return the time of a message without payload from NIC to NIC [ps]."""
        return self._network_ps() + self.adapters[sender].transit_ps

    def _back_ps(self, nic: NicTraits) -> int:
        """Return the time of an acknowledgement or a ready message, from the receiver to the sender [ps].

        The transport acknowledges no earlier than `NicTraits.ack_ps` after sending; longer ways hide in that time.
        """
        return max(self._network_ps(), nic.ack_ps - self._message_ps(0))

    def _network_ps(self) -> int:
        node = int(self.arrays.targets["node"][self.nics[0]])
        return self.arrays.latency_ps(self.ways.steps(node, (self.nics[1],)))

    def _first_leg(self, helper: int) -> tuple[Leg, int]:
        """Return the leg to the proxy, and the endpoint at which the proxy has its data.

        LL is sent from host memory, where the proxy checks its lines: no flag follows the data. A slot is free when
        the NIC reports that the message has arrived.
        """
        wire_ways, src, lines = self.ways, self.src, self.connection.protocol == "ll"
        endpoint = wire_ways.endpoint(src)
        simple = self.fabric.protocols.get("simple", self.protocol)
        fence = 0 if lines else simple.tail_fence_ps
        nic = self.adapters[0]
        head = self._message_ps(0) + self._back_ps(nic) + nic.completion_ps
        head += wire_ways.to_gpu(src) + self.protocol.head_fence_ps
        tail = wire_ways.to_host(src) + fence
        flag = Leg(endpoint, endpoint, ConnKind.FLAG, tail, head)
        if wire_ways.is_host(src) or (self._accesses_memory(src, 0) and not lines):
            return flag, endpoint
        uses_helper = helper >= 0 and not lines
        target = (
            wire_ways.endpoint(helper)
            if uses_helper
            else wire_ways.stage(src, self.nics[0])
        )
        if target == NONE:
            return flag, endpoint
        path = wire_ways.path(src, target)
        leg = Leg(
            src=endpoint,
            dst=target,
            kind=ConnKind.WRITE,
            tail_ps=0 if lines else max(tail, self.arrays.latency_ps(path) + fence),
            head_ps=head,
            hops=len(path),
            packet_bytes=wire_ways.packet_limit(src, path),
            width=len(self.arrays.group(self.arrays.node_of(src), target)),
            forms=wire_ways.formats(path),
        )
        return leg, target

    def _second_leg(self, proxy: int) -> Leg:
        """Return the leg from the proxy over both NICs to the receiver, or to host memory near it."""
        wire_ways, arrays, dst = self.ways, self.arrays, self.dst
        endpoint = wire_ways.endpoint(dst)
        sending, adapter = self.adapters
        gpudirect = self._accesses_memory(dst, 1)
        stage = NONE if gpudirect else wire_ways.stage(dst, self.nics[1])
        start = int(arrays.endpoints["node"][proxy])
        path = wire_ways.steps(
            start, (*self.nics, endpoint if stage == NONE else stage)
        )
        answer: tuple[int, ...] = ()
        if stage != NONE:
            back = wire_ways.steps(int(arrays.endpoints["node"][stage]), (endpoint,))
            answer = (*wire_ways.path(dst, stage), *back)
        is_direct = gpudirect and not wire_ways.is_host(dst)
        if is_direct and self.connection.protocol != "simple":
            tail = self.protocol.tail_fence_ps
        else:
            tail = (
                adapter.completion_ps
                + wire_ways.to_gpu(dst)
                + (adapter.flush_ps if is_direct else 0)
            )
        to_nic = len(wire_ways.steps(start, (self.nics[0],)))
        return Leg(
            src=proxy,
            dst=endpoint,
            kind=ConnKind.WRITE,
            tail_ps=tail + sending.post_ps + sending.transit_ps,
            head_ps=wire_ways.to_host(dst)
            + self._back_ps(adapter)
            + self.protocol.head_fence_ps,
            hops=len(path) + len(answer),
            packet_bytes=sending.mtu_bytes,
            width=len(arrays.group(start, self.nics[0])),
            forms=wire_ways.formats([*path, *answer]),
            via_first=self.nics[0],
            via_last=self.nics[1],
            stage=stage,
            routing=self.fabric.forwarding.routing(sending.adaptive),
            nak_ps=self._network_ps(),
            reorder_bytes=adapter.reorder_bytes,
            nic=sending,
            line_wire=path[to_nic],
        )


MOST_KEPT = 1 << 16
"""Cached paths of a topology above which the next run starts an empty cache."""


def places_of(arrays: FabricArrays) -> Places:
    """Return the path finder of a topology, shared by all runs without faults."""
    cache = arrays.fabric.cache
    if cache.get("arrays") is not arrays:
        return Places(arrays)
    result: Places | None = cache.get("places")
    if result is None or result.full:
        result = cache["places"] = Places(arrays)
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
        if self.zones[src] != self.zones[dst]:
            rail = connection.rail
            if rail < 0:
                rail = self.rails.choice(dst, connection.channel)
            if rail not in self.live(self.zones[dst]):
                turn = connection.channel  # the channel chooses another
        key = (
            src,
            dst,
            connection.kind,
            connection.protocol,
            connection.moved,
            rail,
            connection.rail_out,
            turn,
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
        protocol = protocol_of(self.arrays, connection.protocol)
        if src == dst:
            end = self.endpoint(src)
            flags = protocol.tail_fence_ps, protocol.head_fence_ps
            return Place("direct", (Leg(end, end, ConnKind.FLAG, *flags),))
        if self.zones[src] != self.zones[dst]:
            return Networked(self, connection, rail).place()
        path = self.path(src, self.endpoint(dst))
        kind = path_type(self.arrays, path)
        memory = self.memory(dst)
        if kind == PathType.NVL and self._over_nvlink(path):
            return Place(
                "direct",
                (self._link_leg(connection, path, self.is_read(connection)),),
            )
        if kind != PathType.NVL and self._over_pcie(kind, memory):
            return Place("peer", (self._link_leg(connection, path, read=False),))
        self._check_staged(src, dst, memory)
        return Place("staged", (self._staged_leg(connection, protocol, memory),))

    def _over_pcie(self, kind: PathType, memory: int) -> bool:
        """Return True if P2P may use PCIe; it must without host memory, if a level allows it."""
        return kind <= self.p2p_level or (
            memory == NONE and self.p2p_level > PathType.LOC
        )

    def _over_nvlink(self, path: Sequence[int]) -> bool:
        """Return True if P2P may use NVLink here: through another GPU from level NVB on."""
        if self.p2p_level >= PathType.NVB and self.fabric.nvb:
            return True
        between = (
            self.fabric.nodes[int(self.arrays.wires["src"][wire])]
            for wire in path[1:]
        )
        return self.p2p_level >= PathType.NVL and all(
            node.kind != "gpu" for node in between
        )

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
            " NICs inside a node need --env NCCL_SHM_DISABLE=1, which splits it into nodes"
        )

    def _link_leg(
        self, connection: Connection, path: Sequence[int], read: bool
    ) -> Leg:
        """Return the leg over NVLink or another network without hosts, or of PCIe writes to the peer's memory."""
        back = self.path(connection.dst, self.endpoint(connection.src))
        leg = self._plain(connection, path, back, read)
        there_ps, back_ps = (
            self.arrays.latency_ps(path),
            self.arrays.latency_ps(back),
        )
        protocol = protocol_of(self.arrays, connection.protocol)
        # Data of LL and LL128 contain their flags.
        in_data = connection.kind == "data" and connection.protocol != "simple"
        tail_ps = protocol.tail_fence_ps + (0 if in_data else there_ps)
        return replace(
            leg, tail_ps=tail_ps, head_ps=back_ps + protocol.head_fence_ps
        )

    def _staged_leg(
        self, connection: Connection, protocol: Protocol, memory: int
    ) -> Leg:
        """Return the leg through host memory near the receiver: one writes, the other reads."""
        arrays, src, dst = self.arrays, connection.src, connection.dst
        write_path, fetch = self.path(src, memory), self.path(dst, memory)
        answer = self.steps(
            int(arrays.endpoints["node"][memory]), (self.endpoint(dst),)
        )
        flags = connection.kind == "flag"
        limits = (
            self.packet_limit(src, write_path),
            self.packet_limit(dst, [*fetch, *answer]),
        )
        return Leg(
            src=self.endpoint(src),
            dst=self.endpoint(dst),
            kind=ConnKind.FLAG if flags else ConnKind.WRITE,
            tail_ps=arrays.latency_ps(write_path)
            + self.to_gpu(dst)
            + protocol.tail_fence_ps,
            head_ps=self.to_host(dst) + self.to_gpu(src) + protocol.head_fence_ps,
            hops=0 if flags else len(write_path) + len(fetch) + len(answer),
            packet_bytes=min(limits),
            width=len(arrays.group(arrays.node_of(dst), memory)),
            forms=self.formats([*write_path, *fetch, *answer]),
            stage=NONE if flags else memory,
        )

    def _plain(
        self,
        connection: Connection,
        path: Sequence[int],
        back: Sequence[int],
        read: bool,
    ) -> Leg:
        """Return a leg that carries the data of a connection over `path`, without flags."""
        src, dst = self.endpoint(connection.src), self.endpoint(connection.dst)
        flags = connection.kind == "flag"
        asks = connection.dst if read else connection.src
        return Leg(
            src=src,
            dst=dst,
            kind=ConnKind.FLAG
            if flags
            else ConnKind.READ
            if read
            else ConnKind.WRITE,
            hops=0 if flags else len(path) * (2 if read else 1),
            packet_bytes=128
            if flags
            else self.packet_limit(asks, back if read else path),
            routing=None if flags or read else self._between_hosts(connection),
            width=len(
                self.arrays.group(self.arrays.node_of(asks), src if read else dst)
            ),
            forms=self.formats([*path, *(back if read else ())]),
        )

    def _between_hosts(self, connection: Connection) -> str | None:
        """Return the routing between hosts without NICs; None leaves it to the schedule."""
        return (
            None
            if connection.path
            else self.hosts_routing(connection.src, connection.dst)
        )

    def is_read(self, connection: Connection) -> bool:
        """Return True if the receiver pulls the data over NVLink; LL and LL128 always push."""
        pulls = (
            connection.moved == "pull"
            if connection.moved
            else self.fabric.p2p == "read"
        )
        return (
            pulls and connection.kind == "data" and connection.protocol == "simple"
        )
