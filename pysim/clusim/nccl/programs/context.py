"""Inputs of every writer of a NCCL program: the call, the communicator, and its paths as positions and NICs.

Between two GPUs a channel uses all their parallel NVLinks, as memory addresses are spread over them. `filling_bytes`
is the call size from which the channels are in a steady stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TypeVar

from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.collectives.rings_and_trees import Ring, Tree, Ways
from clusim.nccl.chunking import buffers
from clusim.nccl.communicator import LOOPS_OVER_HEADS, Communicator, NcclPlan
from clusim.nccl.connect import Channel
from clusim.nccl.programs.message_shapes import LONGEST, shape_of_message
from clusim.nccl.transports import transport_of
from clusim.schedule.collective_writer import CollectiveWriter, Part, split
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.topology.rails import Rails

NONE = -1

Way = TypeVar("Way", Ring, Tree)


@dataclass(slots=False)
class Context:
    """One collective to be written.

    Attributes
    ----------
    writer : clusim.schedule.collective_writer.CollectiveWriter
        Destination of the programs; positions are the ranks of `comm`.
    choice : clusim.nccl.NcclPlan
        Algorithm, protocol, channels and chunks.
    """

    writer: CollectiveWriter
    fabric: Fabric
    comm: Communicator
    choice: NcclPlan
    collective: Collective

    @property
    def algorithm(self) -> Algorithm:
        """Return the chosen algorithm."""
        return self.choice.selection.algorithm

    @cached_property
    def parts(self) -> list[Part]:
        """Return the part of each channel.

        Releases before 2.19 let all channels walk over the data together; then each gets an even part here, which
        is as much work, but not the same bytes.
        """
        length = (
            self.writer.stride
            if self.collective.has_blocks
            else self.writer.call.bytes
        )
        if self.choice.parts:
            result = [
                Part(
                    part.channel,
                    part.offset,
                    part.num_bytes,
                    _chunk(part.chunk_bytes),
                )
                for part in self.choice.parts
            ]
            # If ranks do not divide the buffer evenly, blocks are rounded to elements and the last is shorter.
            last = result.pop()
            return [*result, last._replace(length=length - last.offset)]
        chunk = _chunk(self.choice.chunks.chunk_bytes)
        parts = split(length, self.choice.selection.threads.num_channels)
        return [part._replace(chunk=chunk) for part in parts]

    @property
    def least_slice(self) -> int:
        """Return the least slice of the Simple protocol [bytes]."""
        fifo = buffers(
            self.algorithm,
            self.choice.selection.protocol,
            self.collective,
            self.comm.settings,
        )
        return max(16, fifo.step_bytes * fifo.slice_steps // 32 // 16 * 16)

    def channel(self, number: int) -> Channel:
        """Return a channel of the communicator; there may be more parts than channels with NVLS."""
        return self.comm.channels[number % len(self.comm.channels)]

    @cached_property
    def ring_ways(self) -> Ways:
        """Return the rings of all channels, and the parts; large slices are spread over the rails of a NIC."""
        rings = {}
        parts = self._spread_parts
        for part in parts:
            if part.route not in rings:
                rings[part.route] = self._ring(part.channel, part.route)
        return Ways(rings=_number_ways(rings, Ring(())), parts=parts)

    @cached_property
    def tree_ways(self) -> Ways:
        """Return the trees of all channels, and the parts; as of `ring_ways`."""
        trees = {}
        parts = self._spread_parts
        for part in parts:
            if part.route not in trees:
                trees[part.route] = self._tree(part.channel, part.route)
        return Ways(trees=_number_ways(trees, Tree(())), parts=parts)

    @cached_property
    def _width(self) -> int:
        """Return the number of rails of a NIC over which its plugin spreads messages.

        A message is a slice of Simple, and a full chunk of LL and LL128, which are finer here.
        """
        rails = max(
            (len(net) for rails in self._rail_numbers for net in rails), default=1
        )
        simple = self.choice.selection.protocol is Protocol.SIMPLE
        slices = self.choice.chunks.slices_per_chunk if simple else 1
        ring = (
            self.algorithm is Algorithm.RING
            and self.collective is Collective.ALLREDUCE
        )
        pieces = self.comm.group.num_ranks if ring else 1
        largest = max(
            (min(part.chunk, -(-part.length // pieces)) for part in self.parts),
            default=0,
        )
        largest = (
            largest
            // slices
            * self.fabric.protocols[self.writer.call.protocol].expand_120
            // 120
        )
        adapters = [node.nic for node in self.fabric.nodes if node.nic is not None]
        return transport_of(adapters[0]).stripes(largest, rails) if rails > 1 else 1

    @cached_property
    def _spread_parts(self) -> list[Part]:
        """Return the parts, each cut for the rails its messages are spread over; they share its CTA."""
        width = self._width
        if width == 1:
            return self.parts
        result = []
        for part in self.parts:
            chunk = _chunk(part.chunk // width)
            for member, share in enumerate(split(part.length, width)):
                offset = len(self.comm.channels) * (member + 1) + part.channel
                at = part.offset + share.offset
                result.append(
                    Part(part.channel, at, share.length, chunk, offset, width)
                )
        return result

    @cached_property
    def _rail_numbers(self) -> list[list[tuple[int, ...]]]:
        """Return, per node and NIC of NCCL, the rails of the fabric it consists of."""
        if self.comm.group.num_nodes == 1:
            return [[] for _ in self.comm.machines]
        arrays = arrays_of(self.fabric)
        rails = Rails(arrays)
        result = []
        for machine in self.comm.machines:
            zone = arrays.zone_of(self.comm.ranks[machine.ranks[0]])
            names = [
                self.fabric.nodes[int(arrays.targets["node"][nic])].name
                for nic in rails.nics(zone)
            ]
            number = {name: rail for rail, name in enumerate(names)}
            result.append(
                [tuple(number[name] for name in net) for net in machine.adapters]
            )
        return result

    def rail(self, position: int, adapter: int, route: int) -> int:
        """Return the rail of the fabric for a NIC of a position's node.

        If there are several, `route` selects one: in rotation for the channels of a NIC, or one of the parts of
        `ring_ways` and `tree_ways`.
        """
        rails = self._rail_numbers[self.comm.machine_of[position]]
        if not rails:
            return NONE
        members = rails[adapter % len(rails)]
        count = len(self.comm.channels)
        turn = route % count // len(rails)
        if route >= count:
            turn = turn * self._width + route // count - 1
        return members[turn % len(members)]

    def head_rail(self, position: int, adapter: int, channel: int) -> int:
        """Return the rail of a head's NIC on a channel: every head rotates over all pairs of channels.

        Plugins spread messages over the rails of a NIC. A pair consists of a channel of each tree, so that the rails
        have equal loads.
        """
        rails = self._rail_numbers[self.comm.machine_of[position]]
        if not rails:
            return NONE
        members = rails[adapter % len(rails)]
        return members[channel // 2 % len(members)]

    def _ring(self, number: int, route: int) -> Ring:
        channel = self.channel(number)
        order = channel.ring
        if self.comm.group.num_nodes == 1:
            return Ring(order)
        hops = zip(order, (*order[1:], order[0]), strict=True)
        return Ring(
            order,
            rails=tuple(self.ring_rails(channel, route, a, b) for a, b in hops),
        )

    def ring_rails(
        self, channel: Channel, number: int, a: int, b: int
    ) -> tuple[int, int]:
        """Return the rails by which a channel leaves the node of one position and enters another's."""
        if (
            self.comm.machine_of[a] == self.comm.machine_of[b]
            or not channel.ring_adapters
        ):
            return NONE, NONE
        leave = channel.ring_adapters[self.comm.machine_of[a]][1]
        enter = channel.ring_adapters[self.comm.machine_of[b]][0]
        return self.rail(a, leave, number), self.rail(b, enter, number)

    def _tree(self, number: int, route: int) -> Tree:
        channel = self.channel(number)
        if self.comm.group.num_nodes == 1:
            return tree_of(channel)
        rails = [(NONE, NONE)] * len(channel.parent)
        for child, parent in enumerate(channel.parent):
            if (
                parent >= 0
                and self.comm.machine_of[child] != self.comm.machine_of[parent]
            ):
                rails[child] = (
                    self._tree_rail(channel, route, child),
                    self._tree_rail(channel, route, parent),
                )
        return Tree(channel.parent, rails=tuple(rails))

    def _tree_rail(self, channel: Channel, number: int, position: int) -> int:
        """Return the rail of a position: the top of its node's chain uses the NIC the channel enters by."""
        if not channel.tree_adapters:
            return NONE
        machine_of = self.comm.machine_of
        machine = machine_of[position]
        parent = channel.parent[position]
        top = parent < 0 or machine_of[parent] != machine
        return self.rail(
            position, channel.tree_adapters[machine][0 if top else 1], number
        )


def tree_of(channel: Channel) -> Tree:
    """Return the tree of a channel, by any rails."""
    return Tree(channel.parent)


def _number_ways(routes: Mapping[int, Way], nothing: Way) -> list[Way]:
    """Return numbered ways as a list, with `nothing` for missing numbers."""
    return [
        routes.get(number, nothing) for number in range(max(routes, default=-1) + 1)
    ]


def _chunk(chunk_bytes: int) -> int:
    return max(16, chunk_bytes // 16 * 16)


FILLS = 2
"""Chunks of a channel after which further chunks need equal times."""


def filling_bytes(fabric: Fabric, comm: Communicator, plan: NcclPlan | None) -> int:
    """Return the size from which on a call of this plan needs equal time per further byte [bytes].

    Channels of a tree start the next chunk immediately, but the up and down phases overlap only with as many chunks as
    the tree has stages. A channel by heads processes one chunk per head (at most the number of GPUs of a node) before
    it continues; between nodes its senders run ahead until the slots of their connections are full. Without a plan the
    call consists of sends and receives.
    """
    if plan is None:
        same = comm.group.num_nodes == 1
        chunk = shape_of_message(comm, fabric, LONGEST, same)[1].chunk_bytes
        return FILLS * chunk * comm.group.num_ranks * comm.p2p_per_peer
    algorithm, chunks = plan.selection.algorithm, FILLS
    if algorithm is Algorithm.RING:
        chunks = FILLS * comm.group.num_ranks
    elif algorithm is Algorithm.TREE:
        chunks = max(FILLS, tree_of(comm.channels[0]).depth())
    elif algorithm in LOOPS_OVER_HEADS:
        loops = (
            FILLS if comm.group.num_nodes == 1 else fabric.protocols["simple"].slots
        )
        chunks = loops * max(1, comm.group.num_ranks // comm.group.num_nodes)
    return plan.chunks.chunk_bytes * plan.num_channels * chunks
