"""Results of a graph search, and the payload of a NCCL collective.

Both are plain values: the graphs for tuner, connections and lowering, the payload for the programs of a plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clusim.base.errors import TopologyError
from clusim.base.records import dataclass
from clusim.nccl.constants import Path, Pattern
from clusim.schedule.dtypes import ELEMENTS, element
from clusim.schedule.ir import ABSENT


@dataclass(frozen=True, slots=True)
class CollectivePayload:
    """Payload of a collective; see `clusim.schedule.CollectiveCall`. `root` counts in the given ranks."""

    operation: str
    bytes: int
    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT

    @classmethod
    def from_recording(cls, call: Any) -> CollectivePayload:
        """Return the payload of a recorded call, which has these fields, that programs can run.

        Unsupported types are moved as bytes, sizes are rounded to elements; a barrier is an all-reduce of one element.
        """
        if call.operation == "barrier":
            return cls("allreduce", 4)
        dtype = call.dtype if call.dtype in ELEMENTS else "uint8"
        size = element(dtype).size_bytes
        moved = max(size, call.bytes // size * size)
        return cls(call.operation, moved, dtype, call.redop, call.root)


@dataclass(frozen=True, slots=True)
class Graph:
    """Channels of one pattern inside a node.

    Attributes
    ----------
    num_channels : int
        Channels found; 0 if there are none.
    intra_GBps, inter_GBps : float
        Bandwidth of a channel between GPUs and to the network [GB/s].
    type_intra, type_inter : Path
        Farthest allowed path type.
    same_channels : bool
        All channels visit the GPUs in the same order.
    cross_nic : int
        1: a ring may enter and leave by different NICs; 2: channels do so in pairs.
    latency_us : float
        Latency that the network plugin reports [us].
    orders : tuple of tuple of int
        Per channel, GPUs of the node in order; for NVLS only the head comes first.
    adapters : tuple of tuple of int
        Per channel, the NIC it enters and the one it leaves by; empty without a network.
    hops : int
        Links used, the tie-breaker of the search.
    alternating : bool
        Odd nodes run the rings backwards (RCCL), so that rings stay on rails where they leave by another NIC.
    """

    pattern: Pattern
    num_channels: int = 0
    intra_GBps: float = 0.0
    inter_GBps: float = 0.0
    type_intra: Path = Path.LOC
    type_inter: Path = Path.PIX
    same_channels: bool = False
    cross_nic: int = 0
    latency_us: float = 0.0
    orders: tuple[tuple[int, ...], ...] = ()
    adapters: tuple[tuple[int, int], ...] = ()
    hops: int = 0
    alternating: bool = False

    def line(self) -> str:
        """Return the graph as NCCL's log has it."""
        return (
            f"Pattern {int(self.pattern)}, crossNic {self.cross_nic}, nChannels {self.num_channels},"
            f" bw {self.intra_GBps:f}/{self.inter_GBps:f}, type {self.type_intra.name}/{self.type_inter.name},"
            f" sameChannels {int(self.same_channels)}"
        )


IDS = ("ring", "tree", "CollNet chain", "NVLS", "CollNet direct")
"""Graphs by their id in a file."""

NVLS_ID = 3
"""The graph whose channels have a single GPU, the head."""


@dataclass(frozen=True, slots=True)
class GraphChannel:
    """A channel of a file: its GPUs and NICs in order, and its line."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...]
    line: int


@dataclass(frozen=True, slots=True)
class GraphFile:
    """Graphs of a file, ``NCCL_GRAPH_FILE``: id, graph without orders, channels."""

    where: str
    graphs: tuple[tuple[int, Graph, tuple[GraphChannel, ...]], ...]

    def find(
        self, number: int, devices: tuple[int, int], cross_nic: int
    ) -> Graph | None:
        """Return the graph with an id for a node of so many GPUs and NICs; None leaves it to the search.

        Raises
        ------
        TopologyError
            Channels without the GPUs and NICs of the node.
        """
        best = None
        for speed, graph, channels in self.graphs:
            if (
                speed != number
                or not channels
                or (graph.cross_nic == 1 and cross_nic == 0)
            ):
                continue
            for channel in channels:
                self._check(number, channel, devices)
            orders = tuple(channel.gpus for channel in channels)
            ends = [
                (channel.nets[0], channel.nets[1])
                for channel in channels
                if devices[1]
            ]
            best = replace(graph, orders=orders, adapters=tuple(ends))
        return best

    def _check(
        self, number: int, channel: GraphChannel, devices: tuple[int, int]
    ) -> None:
        count, num_nets = devices
        head = number == NVLS_ID
        devices_of_channel = f"{'one' if head else 'all'} of GPUs 0 to {count - 1}"
        right = sorted(channel.gpus) == list(range(count))
        if head:
            right = len(channel.gpus) > 0 and max(channel.gpus) < count
        if right and num_nets:
            devices_of_channel = f"two of NICs 0 to {num_nets - 1} between nodes"
            right = len(channel.nets) == 2 and max(channel.nets) < num_nets
        if not right:
            raise TopologyError(
                f"{self.where}:{channel.line}: channel of the {IDS[number]} graph; it needs {devices_of_channel}"
            )


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a communicator and their nodes, as far as costs depend on them.

    Attributes
    ----------
    lowest_capability, highest_capability : int
        Compute capability of the GPUs times ten.
    cpu_vendor : str
        ``intel``, ``amd``, ``arm``, ``power`` or ``other``.
    nvls : bool
        GPUs and switches can reduce in the switch.
    collnet : bool
        The network can reduce (SHARP).
    max_local : int
        Most ranks on one node; 0 selects the average.
    nvlink_only : bool
        All ranks of a node reach each other over NVLink.
    least_local : int
        Fewest ranks on one node.
    least_nic_GBps : float
        Smallest bandwidth of a path from a GPU to a NIC that it uses [GB/s].
    """

    num_ranks: int
    num_nodes: int
    lowest_capability: int
    highest_capability: int
    cpu_vendor: str
    nvls: bool = False
    collnet: bool = False
    max_local: int = 0
    nvlink_only: bool = True
    least_local: int = 0
    least_nic_GBps: float = 0.0

    @property
    def ranks_per_node(self) -> float:
        """Return the average number of ranks on a node."""
        return self.num_ranks / self.num_nodes
