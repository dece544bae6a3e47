"""Shared parts of an image's connections: legs, targets, and payloads."""

from __future__ import annotations

from typing import Literal

from clusim.base.errors import ScheduleError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE, Op
from clusim.engine.image import OPCODES
from clusim.schedule.ir import Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.node import HostTraits, NicTraits
from clusim.topology.packets import Protocol


def protocol_of(arrays: FabricArrays, name: str) -> Protocol:
    """Return the topology's protocol called `name`."""
    protocols = arrays.fabric.protocols
    result = protocols.get(name)
    if result is None:
        listing = ", ".join(protocols) or "none"
        raise ScheduleError(
            f"{arrays.fabric.name}: has no protocol {name!r}; it has {listing}"
        )
    return result


PlaceName = Literal["direct", "peer", "staged", "network"]


@dataclass(frozen=True, slots=True)
class Leg:
    """Common part of an image's connections that take the same path.

    Attributes
    ----------
    src, dst : int
        Endpoints.
    tail_ps, head_ps : int
        Latencies of the flags [ps].
    hops : int
        Wires that a packet crosses, including requests and responses.
    packet_bytes : int
        Payload limit of its packets [bytes].
    width : int
        First wires over which it may spread.
    forms : frozenset of int
        Formats of the wires that it crosses.
    routing : str or None
        Routing between NICs (`clusim.lowering.spreads.Routing`, not ``auto``); None leaves the policy to the schedule.
    nak_ps, reorder_bytes : int, int or None
        As of `clusim.lowering.spreads.Receiver`.
    nic : NicTraits or None
        Sending NIC, for rate control; `line_wire` is its first wire into the network.
    """

    src: int
    dst: int
    kind: int
    tail_ps: int = 0
    head_ps: int = 0
    hops: int = 0
    packet_bytes: int = 128
    width: int = 1
    forms: frozenset[int] = frozenset()
    via_first: int = NONE
    via_last: int = NONE
    stage: int = NONE
    routing: str | None = None
    nak_ps: int = 1
    reorder_bytes: int | None = None
    nic: NicTraits | None = None
    line_wire: int = NONE


@dataclass(frozen=True, slots=True)
class Proxied:
    """The proxy between the two legs of a connection.

    Attributes
    ----------
    endpoint : int
        Endpoint that holds its data.
    thread : int
        Endpoint of the GPU whose host thread it is.
    nic, host : NicTraits, HostTraits
        Its NIC, and the costs of host threads there.
    ask_ps : int
        Part of the last leg's `head_ps` for which eager messages do not wait: the receiver's ready message [ps].
    """

    endpoint: int
    thread: int
    nic: NicTraits
    host: HostTraits
    ask_ps: int


@dataclass(frozen=True, slots=True)
class Place:
    """Path of a connection: one leg, or two with a proxy between them."""

    name: PlaceName
    legs: tuple[Leg, ...]
    proxy: Proxied | None = None


@dataclass(slots=True)
class CarriedTraffic:
    """Traffic of one connection: payload on the wire [bytes], slices and hops per packet."""

    wire_bytes: int = 0
    slices: int = 0
    hops: int = 1

    def packets(self, packet_bytes: int) -> int:
        """Return the number of packets."""
        return -(-self.wire_bytes // packet_bytes)


def multimem_hops(connection: Connection, op: str) -> int:
    flags, members = OPCODES[op].flags, len(connection.members)
    reduce, multicast = 2 + 2 * members, 1 + members
    return (reduce if flags & Op.REDUCE else 0) + (
        multicast if flags & Op.MCAST else 0
    )
