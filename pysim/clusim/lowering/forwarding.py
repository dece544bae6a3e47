"""Choice of flows among equal paths between nodes, as route keys of connections.

**Hardware** InfiniBand switches forward by the destination address only; the subnet manager spreads
destinations over the upward paths in the order of their ports on the leaf switches (d-mod-k: Zahavi,
"Fat-tree routing and node ordering providing contention free traffic for MPI global collectives", 2012;
OpenSM's ``ftree``). Ethernet switches hash the packet's five-tuple (ECMP): addresses of both NICs, protocol,
UDP destination port 4791, and the UDP source port, which the driver derives from the numbers of both queue
pairs (Linux ``rdma_get_udp_sport``; NCCL leaves the flow label at 0). Switches with equal hash functions and
seeds choose alike, so that flows which met once meet again (polarisation). E-ECMP hashes the destination queue
pair as well (Gangidi et al., "RDMA over Ethernet for distributed AI training at Meta scale", SIGCOMM 2024).
A queue pair stays on one port of its NIC; drivers assign queue pairs to ports in turn, or a bond (LACP) hashes
the five-tuple. Parallel links inside a
node take turns.
**Model** One route key per queue pair. A graph node with n equal outputs takes the key's last digit of base n
and passes the rest on. The path of every flow is followed from node to node: inside the sending and receiving
node the digit is the channel's; at switches it is a digit of the destination's number, or the hash of the flow
and the switch; pinned paths replace it. Numbers of queue pairs are drawn by the seed of the run, as the NIC's
firmware assigns them. Over PXN, ranks share the queue pair of the GPU that sends for them
(``NCCL_NET_SHARED_COMMS``). With several queue pairs per connection messages use them in turn, or the packets of a
message alternate over them (``NCCL_IB_SPLIT_DATA_ON_QPS``: equal parts, which the NIC sends at the same time).
**Not modelled** Several addresses per port (LMC), subnet managers with other routing engines, weighted and
resilient hashing, hash functions that are linear in their seed.
**Parameters** `clusim.topology.model.Forwarding`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE
from clusim.lowering.hops import Leg
from clusim.lowering.paths import route_groups
from clusim.schedule.ir import Connection
from clusim.topology.arrays import FabricArrays
from clusim.topology.model import PinnedPath

FIRST_PORT = 0xC000
"""First UDP source port of RoCE v2."""

_NUMBERS = 1 << 24
"""Number of queue pair numbers of a NIC."""


def flow_hash(source: Array, destination: Array, number: Array, seed: int) -> Array:
    """Return a 32-bit hash of every (source, destination, number) and `seed`.

    The result is a uint32 array of the same shape.
    """
    x = source.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= destination.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    x += number.astype(np.uint64) * np.uint64(0x165667B19E3779F9) + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return np.asarray(x >> np.uint64(32), np.uint32)


@dataclass(frozen=True, slots=True)
class _Flows:
    """Queue pairs of connections between nodes, one row each.

    Attributes
    ----------
    start : ndarray
        Graph node that sends.
    first, last : ndarray
        NICs (target indices).
    turn : ndarray
        Digits of the choices inside nodes.
    number : ndarray
        Digits of the destination, or the flow's hash.
    bond : ndarray
        The flow's hash.
    queue : ndarray
        Index of the queue pair in its connection.
    hashed : ndarray of bool
        True if switches hash.
    """

    start: Array
    first: Array
    last: Array
    turn: Array
    number: Array
    bond: Array
    queue: Array
    hashed: Array


def route_keys(
    arrays: FabricArrays,
    connections: Sequence[Connection],
    legs: Sequence[Leg],
    seed: int,
) -> Array:
    """Return the route keys of the queue pairs of every connection.

    Inside a node all are the connection's key; aggregation trees have key 0. Between hosts without NICs one path is
    the hash of the ranks and the channel.

    Returns
    -------
    ndarray of uint32, shape (connections, queue pairs)

    Raises
    ------
    ScheduleError
        A pinned path is not a shortest path of its flows.
    """
    queues = arrays.fabric.forwarding.queues
    key_list = [
        0 if item.kind == "aggregation" else item.key for item in connections
    ]
    keys = np.repeat(np.array(key_list, np.uint32)[:, None], queues, axis=1)
    if any(leg.routing == "ecmp" and leg.via_last == NONE for leg in legs):
        src, dst, channel = np.array(
            [(c.src, c.dst, c.channel) for c in connections], np.int64
        ).T
        hashed = np.array([leg.routing == "ecmp" for leg in legs])
        keys[hashed] = flow_hash(src, dst, channel, seed)[hashed, None]
    ends = np.array(
        [(leg.via_first, leg.via_last) for leg in legs], np.int64
    ).reshape(-1, 2)
    away = np.flatnonzero(ends[:, 1] != NONE)
    if len(away):
        pairs = [(connections[number], legs[number]) for number in away.tolist()]
        flows = _flows(arrays, pairs, ends[away], seed)
        keys[away] = _follow_flows(arrays, flows, seed).reshape(-1, queues)
    return keys


def _flows(
    arrays: FabricArrays,
    pairs: Sequence[tuple[Connection, Leg]],
    ends: Array,
    seed: int,
) -> _Flows:
    """Return the queue pairs of connections with NICs at both `ends`."""
    forwarding = arrays.fabric.forwarding
    queue = np.tile(np.arange(forwarding.queues), len(pairs))
    row = np.repeat(np.arange(len(pairs)), forwarding.queues)
    line = np.array([leg.line_wire for _, leg in pairs], np.int64)
    hashes = np.array([forwarding.hashes(name) for name in arrays.format_names])
    line_hashes = hashes[arrays.wires["format"][np.where(line == NONE, 0, line)]]
    hashed = np.where(line == NONE, forwarding.hashes(""), line_hashes)
    rank = np.full(len(arrays.endpoints), -1, np.int64)
    rank[arrays.rank_endpoint] = np.arange(arrays.num_ranks)
    sender = rank[[leg.src for _, leg in pairs]]
    src, dst, channel = np.array(
        [(c.src, c.dst, c.channel) for c, _ in pairs], np.int64
    ).T
    sender = np.where(sender >= 0, sender, src)
    first, last = ends[row].T
    number = (channel * forwarding.queues)[row] + queue
    forward_hash = flow_hash(sender[row], dst[row], number, seed) % _NUMBERS
    reverse_hash = flow_hash(dst[row], sender[row], number, seed) % _NUMBERS
    fields = source_port(forward_hash, reverse_hash) * (
        forwarding.fields != "addresses"
    )
    if forwarding.fields == "queue-pair":
        fields += reverse_hash.astype(np.int64) << 16
    flow = flow_hash(first, last, fields, 0).astype(np.int64)
    start = arrays.endpoints["node"][[leg.src for _, leg in pairs]].astype(np.int64)
    destination = _destination_numbers(arrays)[last]
    return _Flows(
        start=start[row],
        first=first,
        last=last,
        turn=channel[row],
        number=np.where(hashed[row], flow, destination),
        bond=flow,
        queue=queue,
        hashed=hashed[row],
    )


def source_port(local: Array, remote: Array) -> Array:
    """Return the UDP source ports of flows between queue pairs with these numbers [int64].

    As Linux' ``rdma_calc_flow_label`` and ``rdma_flow_label_to_udp_sport`` for flow label 0.
    """
    label = local.astype(np.uint64) * remote.astype(np.uint64)
    label ^= label >> np.uint64(20)
    label ^= label >> np.uint64(40)
    low, high = label & np.uint64(0x3FFF), (label >> np.uint64(14)) & np.uint64(0x3F)
    return np.asarray(low ^ high, np.int64) + FIRST_PORT


def _follow_flows(arrays: FabricArrays, flows: _Flows, seed: int) -> Array:
    """Follow all flows from the sender to the receiver's NIC; return their route keys [uint32]."""
    forwarding, wires = arrays.fabric.forwarding, arrays.wires
    switch = np.arange(len(arrays.nodes)) * (forwarding.seeds != "equal")
    adapter = arrays.targets["node"].astype(np.int64)
    size_of = np.diff(arrays.group_off.astype(np.int64))
    pins = _Pins(arrays, forwarding.paths, flows) if forwarding.paths else None
    node, turn, number = flows.start.copy(), flows.turn.copy(), flows.number.copy()
    ordinal, key, weight = (np.zeros(len(node), np.int64) for _ in range(3))
    weight += 1
    passed = np.zeros(len(node), bool)
    for _ in range(len(arrays.nodes)):
        network = passed.copy()
        passed |= node == adapter[flows.first]
        target = np.where(passed, flows.last, flows.first)
        rows = np.flatnonzero(~passed | (node != adapter[flows.last]))
        group = route_groups(arrays, node[rows], target[rows])
        rows, group = rows[group != NONE], group[group != NONE]
        if not len(rows):
            break
        size, inside = size_of[group], ~network[rows]
        leaving = rows[inside & passed[rows]]
        turn[leaving] = turn[leaving] * forwarding.queues + flows.queue[leaving]
        hashed = flow_hash(
            flows.number[rows], switch[node[rows]], np.zeros_like(rows), seed
        )
        chosen = np.where(flows.hashed[rows], hashed.astype(np.int64), number[rows])
        digit = np.where(inside, turn[rows], chosen) % size
        if forwarding.ports == "hash":
            port = flow_hash(flows.bond[rows], node[rows], np.ones_like(rows), seed)
            digit = np.where(inside & passed[rows], port % size, digit)
        if pins is not None:
            digit = pins.digits(rows, node[rows], group, ordinal[rows], digit)
        turn[rows] = np.where(inside, turn[rows] // size, turn[rows])
        number[rows] = np.where(inside, number[rows], number[rows] // size)
        key[rows] += weight[rows] * digit
        weight[rows] = weight[rows] * size % 2**32
        wire = arrays.group_wires[
            arrays.group_off[group] + (digit + ordinal[rows]) % size
        ]
        ordinal[rows] = wires["ordinal"][wire]
        node[rows] = wires["dst"][wire]
    if pins is not None:
        pins.check()
    return np.asarray((key + weight * flows.turn) % 2**32, np.uint32)


class _Pins:
    """Pinned paths of flows: the next switch at each of their switches."""

    def __init__(
        self, arrays: FabricArrays, paths: Sequence[PinnedPath], flows: _Flows
    ) -> None:
        self.arrays, self.paths = arrays, paths
        index, node_of = (
            arrays.fabric.node_index,
            arrays.targets["node"].astype(np.int64),
        )
        self._path = np.full(len(flows.first), -1, np.int64)
        for number, path in enumerate(paths):
            mine = node_of[flows.last] == index[path.destination]
            if path.source:
                mine &= node_of[flows.first] == index[path.source]
            self._path[mine] = number
        self._steps = [
            [
                (index[a], index[b])
                for a, b in zip(path.via, path.via[1:], strict=False)
            ]
            for path in paths
        ]
        self._met: set[tuple[int, int]] = set()

    def digits(
        self, rows: Array, node: Array, group: Array, ordinal: Array, digit: Array
    ) -> Array:
        """Return the digits of flows at graph nodes; those on a pinned path lead to its next switch."""
        result, off = digit.copy(), self.arrays.group_off
        for number in np.unique(self._path[rows][self._path[rows] >= 0]).tolist():
            for at, following in self._steps[number]:
                for item in np.flatnonzero(
                    (self._path[rows] == number) & (node == at)
                ).tolist():
                    wires = self.arrays.group_wires[
                        off[group[item]] : off[group[item] + 1]
                    ]
                    onward = np.flatnonzero(
                        self.arrays.wires["dst"][wires] == following
                    )
                    if not len(onward):
                        self._refuse(number, at, following)
                    target = int(onward[digit[item] % len(onward)])
                    result[item] = (target - ordinal[item]) % len(wires)
                    self._met.add((number, at))
        return result

    def check(self) -> None:
        """Raise `ScheduleError` if flows with a pinned path do not reach one of its switches."""
        for number in np.unique(self._path[self._path >= 0]).tolist():
            for at, following in self._steps[number]:
                if (number, at) not in self._met:
                    self._refuse(number, at, following)

    def _refuse(self, number: int, at: int, following: int) -> None:
        path, nodes = self.paths[number], self.arrays.fabric.nodes
        raise ScheduleError(
            f"{self.arrays.fabric.name}: forwarding: paths: {number}: no shortest path to {path.destination}"
            f" leads from {nodes[at].name} to {nodes[following].name}"
        )


def _destination_numbers(arrays: FabricArrays) -> Array:
    """Return the number of every target among the NICs, by leaf switch [int64]."""
    targets = arrays.nic_targets
    leaf = np.full(len(arrays.nodes), len(arrays.nodes), np.int64)
    up = arrays.wires[arrays.nodes["zone"][arrays.wires["dst"]] == NONE]
    leaf[up["src"][::-1]] = up["dst"][::-1]  # the first of several wires counts
    order = np.lexsort((targets, leaf[arrays.targets["node"][targets]]))
    result = np.zeros(len(arrays.targets), np.int64)
    result[targets[order]] = np.arange(len(targets))
    return result
