"""What every writer of a NCCL program needs: the call, the communicator, and its ways as positions and NICs.

Between two GPUs a channel uses all their parallel NVLinks, as memory addresses are spread over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from clusim.collectives.orders import Ring, Tree, Ways
from clusim.fabric.model import Fabric
from clusim.fabric.rails import Rails
from clusim.nccl.chunking import buffers
from clusim.nccl.communicator import Communicator
from clusim.nccl.communicator import Plan as Choice
from clusim.nccl.connect import Channel
from clusim.nccl.constants import Algorithm, Collective
from clusim.schedule.builder import Part, Plan, split

__all__ = ["Context"]

NONE = -1


@dataclass(slots=False)
class Context:
    """One collective to be written.

    Attributes
    ----------
    plan : clusim.schedule.builder.Plan
        What is written into; positions are the ranks of `comm`.
    choice : clusim.nccl.Plan
        Algorithm, protocol, channels and chunks.
    """

    plan: Plan
    fabric: Fabric
    comm: Communicator
    choice: Choice
    collective: Collective

    @property
    def algorithm(self) -> Algorithm:
        """Return the chosen algorithm."""
        return self.choice.selection.algorithm

    @property
    def blocked(self) -> bool:
        """Return whether channels divide every rank's block instead of the buffer."""
        return self.collective in (Collective.ALLGATHER, Collective.REDUCESCATTER)

    @cached_property
    def parts(self) -> list[Part]:
        """Return what each channel works on.

        Releases before 2.19 let all channels walk over the data together; then each gets an even part here, which
        is as much work, but not the same bytes.
        """
        length = self.plan.stride if self.blocked else self.plan.call.bytes
        if self.choice.parts:
            found = [
                Part(part.channel, part.offset, part.num_bytes, _chunk(part.chunk_bytes))
                for part in self.choice.parts
            ]
            # A buffer that ranks do not divide evenly has blocks of whole elements, the last one a shorter one.
            last = found.pop()
            return [*found, last._replace(length=length - last.offset)]
        chunk = _chunk(self.choice.chunks.chunk_bytes)
        parts = split(length, self.choice.selection.threads.num_channels)
        return [part._replace(chunk=chunk) for part in parts]

    @property
    def least_slice(self) -> int:
        """Return the least slice of the Simple protocol [bytes]."""
        fifo = buffers(
            self.algorithm, self.choice.selection.protocol, self.collective, self.comm.settings
        )
        return max(16, fifo.step_bytes * fifo.slice_steps // 32 // 16 * 16)

    def channel(self, number: int) -> Channel:
        """Return a channel of the communicator; there may be more parts than channels with NVLS."""
        return self.comm.channels[number % len(self.comm.channels)]

    @cached_property
    def machine_of(self) -> list[int]:
        """Return the machine of every position."""
        found = [0] * self.comm.group.num_ranks
        for number, machine in enumerate(self.comm.machines):
            for rank in machine.ranks:
                found[rank] = number
        return found

    @cached_property
    def ring_ways(self) -> Ways:
        """Return the rings of all channels, and the parts."""
        return Ways(rings=self._rings(), parts=self.parts)

    @cached_property
    def tree_ways(self) -> Ways:
        """Return the trees of all channels, and the parts."""
        return Ways(trees=self._trees(), parts=self.parts)

    @cached_property
    def _rail_numbers(self) -> list[list[tuple[int, ...]]]:
        """Return, per machine and adapter of NCCL, the rails of the fabric it consists of."""
        if self.comm.group.num_nodes == 1:
            return [[] for _ in self.comm.machines]
        arrays = self.fabric.lower()
        rails = Rails(arrays)
        found = []
        for machine in self.comm.machines:
            zone = arrays.zone_of(self.comm.ranks[machine.ranks[0]])
            names = [
                self.fabric.nodes[int(arrays.targets["node"][nic])].name for nic in rails.nics(zone)
            ]
            number = {name: rail for rail, name in enumerate(names)}
            found.append([tuple(number[name] for name in net) for net in machine.adapters])
        return found

    def rail(self, position: int, adapter: int, channel: int) -> int:
        """Return the rail of the fabric behind an adapter of a position's machine."""
        rails = self._rail_numbers[self.machine_of[position]]
        if not rails:
            return NONE
        members = rails[adapter % len(rails)]
        return members[channel % len(members)]

    def _rings(self) -> list[Ring]:
        searched = max(1, self.comm.num_searched)
        rings: list[Ring] = []
        for number, channel in enumerate(self.comm.channels):
            if number >= searched and channel.ring == rings[number % searched].order:
                rings.append(rings[number % searched])
                continue
            order = channel.ring
            rails = None
            if self.comm.group.num_nodes > 1:
                hops = zip(order, (*order[1:], order[0]), strict=True)
                rails = tuple(self.ring_rails(channel, number, a, b) for a, b in hops)
            rings.append(Ring(order, rails=rails))
        return rings

    def ring_rails(self, channel: Channel, number: int, a: int, b: int) -> tuple[int, int]:
        """Return the rails by which a channel leaves the machine of one position and enters that of another."""
        if self.machine_of[a] == self.machine_of[b] or not channel.ring_adapters:
            return NONE, NONE
        leave = channel.ring_adapters[self.machine_of[a]][1]
        enter = channel.ring_adapters[self.machine_of[b]][0]
        return self.rail(a, leave, number), self.rail(b, enter, number)

    def _trees(self) -> list[Tree]:
        found = []
        for number, channel in enumerate(self.comm.channels):
            if self.comm.group.num_nodes == 1:
                found.append(Tree(channel.parent))
                continue
            rails = [(NONE, NONE)] * len(channel.parent)
            for child, parent in enumerate(channel.parent):
                if parent >= 0 and self.machine_of[child] != self.machine_of[parent]:
                    rails[child] = (
                        self._tree_rail(channel, number, child),
                        self._tree_rail(channel, number, parent),
                    )
            found.append(Tree(channel.parent, rails=tuple(rails)))
        return found

    def _tree_rail(self, channel: Channel, number: int, position: int) -> int:
        """Return the rail of a position: the top of its machine's chain uses the adapter the channel enters by."""
        if not channel.tree_adapters:
            return NONE
        machine = self.machine_of[position]
        parent = channel.parent[position]
        top = parent < 0 or self.machine_of[parent] != machine
        return self.rail(position, channel.tree_adapters[machine][0 if top else 1], number)


def _chunk(chunk_bytes: int) -> int:
    return max(16, chunk_bytes // 16 * 16)
