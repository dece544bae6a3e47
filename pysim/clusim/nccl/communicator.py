"""Communicators as NCCL sets them up, and the plan of a collective of some size.

`communicator` performs the deciding parts of ``ncclCommInitRank``: examine the nodes, search graphs, agree on the
number of channels, connect them, compute the cost table. `Communicator.plan` decides as a call such as
``ncclAllReduce``: algorithm, protocol, channels, threads, chunks.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import cached_property

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl.channels import num_channels, p2p_channels
from clusim.nccl.chunking import (
    ChannelPart,
    Chunks,
    Cutting,
    GroupShape,
    continuous_parts,
    distributes_continuously,
    nvls_tuning,
    plan_chunks,
)
from clusim.nccl.connect import Channel, SearchedMachine, connect
from clusim.nccl.constants import (
    LATEST,
    Path,
    Version,
    later_notes,
    max_channels,
    since,
)
from clusim.nccl.cost_table import CostTable
from clusim.nccl.costs import cost_table
from clusim.nccl.env import Settings
from clusim.nccl.env_notes import notes_on_chips, notes_on_variables
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.rccl import KnownNode, library_of
from clusim.nccl.rcclcosts import rccl_table
from clusim.nccl.rcclgraphs import known_node
from clusim.nccl.searched_systems import (
    ComparedSystem,
    search_graphs,
    short_name,
    systems_by_node,
)
from clusim.nccl.system import System
from clusim.nccl.transports import check_network, restrict_transports, with_plugins
from clusim.nccl.tuner import ChannelSupply, Selection, select
from clusim.topology.model import Fabric
from clusim.topology.node import NETWORK, Endpoint
from clusim.topology.subset import parts_of

_SIMPLE = Protocol.SIMPLE
LOOPS_OVER_HEADS = (Algorithm.NVLS, Algorithm.NVLS_TREE, Algorithm.COLLNET_DIRECT)
IN_LOOPS = (*LOOPS_OVER_HEADS, Algorithm.MSCCL)
"""Algorithms with channels that share the loops over the data."""


@dataclass(frozen=True)
class NcclPlan:
    """One collective as NCCL would run it.

    Attributes
    ----------
    selection : Selection
        Algorithm, protocol, channels, threads and the reason.
    chunks : Chunks
        Chunk and slices of a channel.
    parts : tuple of ChannelPart
        Part of each channel, since NCCL 2.19; empty before, when all channels shared the loops over the data.
    """

    selection: Selection
    chunks: Chunks
    parts: tuple[ChannelPart, ...]

    @property
    def num_channels(self) -> int:
        """Return the number of channels with work."""
        return len(self.parts) or self.selection.threads.num_channels


@dataclass(frozen=True)
class Communicator:
    """A communicator of all GPUs of a fabric.

    Attributes
    ----------
    machines : tuple of SearchedMachine
        Ranks, graphs and NICs of every node.
    systems : tuple of System
        NCCL's view of each node; equal nodes share one.
    graphs : dict
        Algorithm -> graph, as the cost model uses it: the minimum over nodes.
    num_searched : int
        Channels before they are doubled.
    num_channels, nvls_channels, collnet_channels, p2p_channels, p2p_per_peer : int
        The totals of the log line ``... coll channels``.
    p2p_least_bytes : int
        Least size for which messages are cut: a run that represents a longer one cuts its messages equally.
    ranks : tuple of int
        Per rank of the communicator, its rank on the fabric.
    overlaid : tuple of (str, str)
        Texts of figures that an overlay of the fabric replaces, and the values in their place.
    """

    name: str
    version: Version
    settings: Settings
    group: RankGroup
    machines: tuple[SearchedMachine, ...]
    systems: tuple[System, ...]
    graphs: dict[Algorithm, Graph]
    num_searched: int
    num_channels: int
    nvls_channels: int
    collnet_channels: int
    p2p_channels: int
    p2p_per_peer: int
    ranks: tuple[int, ...] = ()
    p2p_least_bytes: int = 0
    overlaid: tuple[tuple[str, str], ...] = ()

    @property
    def node_graphs(self) -> tuple[Graph, ...]:
        """Return the graphs of the first node by their id in files: ring, tree, CollNet chain, NVLS, CollNet direct."""
        first = self.machines[0]
        collnet = (
            self.graphs[Algorithm.COLLNET_CHAIN],
            self.graphs[Algorithm.COLLNET_DIRECT],
        )
        return first.ring, first.tree, collnet[0], first.nvls, collnet[1]

    @property
    def architecture(self) -> str:
        """Return the architecture of the oldest GPU, which determines launch overhead."""
        gpus = [gpu for system in self.systems for gpu in system.gpus]
        return min(gpus, key=lambda gpu: gpu.capability).architecture

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Return the notes on every plan: substitutes, unknown properties, variables without effect."""
        gpus = [gpu for system in self.systems for gpu in system.gpus]
        library = self.settings.library
        notes = (
            later_notes(self.version)
            + notes_on_chips(
                (gpu.chip, gpu.architecture, gpu.capability) for gpu in gpus
            )
            if library is None
            else library.missing(self.recognised_node)
        )
        unknown = [
            cpu.name
            for s in self.systems
            for cpu in s.cpus
            if cpu.cpu.vendor == "other"
        ]
        if unknown:
            notes.append(
                f"unknown processor {unknown[0]}: NCCL's defaults for unknown processors are used"
            )
        lines = dict.fromkeys(
            line for system in self.systems for line in system.told
        )
        return (*notes, *lines, *notes_on_variables(self.settings))

    @cached_property
    def machine_of(self) -> tuple[int, ...]:
        """Return the node of every position."""
        of = {
            rank: i
            for i, machine in enumerate(self.machines)
            for rank in machine.ranks
        }
        return tuple(of[rank] for rank in range(self.group.num_ranks))

    @cached_property
    def channels(self) -> list[Channel]:
        """Return rings and trees over all nodes."""
        library = self.settings.library
        limit = 0 if library is None else library.tree_channels
        return connect(
            self.machines, self.num_searched, self.num_channels, self.version, limit
        )

    @cached_property
    def table(self) -> CostTable:
        """Return the cost table."""
        if self.settings.library is None:
            return cost_table(self.group, self.graphs, self.version, self.settings)
        return rccl_table(
            self.group, self.graphs, self.settings, self.recognised_node
        )

    @cached_property
    def recognised_node(self) -> KnownNode | None:
        """Return the node that RCCL recognises; None with NCCL or on other nodes."""
        node = known_node(self.systems[0])
        return node[0] if node else None

    @property
    def library(self) -> str:
        """Return the name and release of the library, for people."""
        library = self.settings.library
        return f"NCCL {self.version}" if library is None else library.name

    @cached_property
    def nvls_heads(self) -> list[tuple[int, ...]]:
        """Return, per NVLS head, its rank on every node."""
        count = min(machine.nvls.num_channels for machine in self.machines)
        return [
            tuple(
                machine.ranks[machine.nvls.orders[head][0]]
                for machine in self.machines
            )
            for head in range(count)
        ]

    def select(
        self,
        collective: Collective,
        num_bytes: int,
        lanes: ChannelSupply | None = None,
        allowed: Container[tuple[Algorithm, Protocol]] | None = None,
    ) -> Selection:
        """Return NCCL's selection; `num_bytes` is nccl-tests' size, the larger of the bytes that a rank sends and
        receives. `lanes` and `allowed` are the channels and candidates of this call; None without restriction.
        """
        if num_bytes < 1:
            raise InputError(f"size {num_bytes}: must be at least 1 byte")
        return select(
            self.table, collective, num_bytes, lanes or self.lanes, allowed
        )

    @cached_property
    def lanes(self) -> ChannelSupply:
        """Return the channels that the communicator has for a collective."""
        heads = max(1, self.graphs[Algorithm.COLLNET_DIRECT].num_channels)
        return ChannelSupply(
            self.num_channels, self.nvls_channels, heads, self.settings
        )

    @cached_property
    def shape(self) -> GroupShape:
        """Return the inputs of chunk sizes."""
        group = self.group
        nvls = self.table.cost(
            Collective.ALLREDUCE, Algorithm.NVLS, _SIMPLE
        ).bandwidth_GBps
        return GroupShape(
            group.num_ranks,
            group.num_nodes,
            max(1, self.graphs[Algorithm.NVLS].num_channels),
            max(1, group.num_ranks // group.num_nodes),
            nvls or float("inf"),
            nvls_tuning(
                group, self.graphs[Algorithm.NVLS], self.version, self.settings
            ),
        )

    def plan(
        self, collective: Collective, num_bytes: int, *, element_bytes: int = 4
    ) -> NcclPlan:
        """Return NCCL's plan of a collective of `num_bytes` (as in `select`)."""
        return self.plan_of(
            self.select(collective, num_bytes), element_bytes=element_bytes
        )

    def plan_of(self, chosen: Selection, *, element_bytes: int = 4) -> NcclPlan:
        """Return NCCL's plan of a collective with a given algorithm, protocol and number of channels."""
        collective, num_bytes = chosen.collective, chosen.num_bytes
        count = chosen.threads.num_channels
        algorithm, protocol = chosen.algorithm, chosen.protocol
        shape = self._shape_for(algorithm)
        how = Cutting(
            algorithm, protocol, collective, shape, self.version, self.settings
        )
        parts: list[ChannelPart] = []
        if distributes_continuously(self.version) and algorithm not in IN_LOOPS:
            ranks = self.group.num_ranks
            count_bytes = (
                max(1, num_bytes // ranks) if collective.has_blocks else num_bytes
            )
            parts = continuous_parts(
                how,
                count_bytes,
                count,
                element_bytes=min(element_bytes, count_bytes),
                most_channels=self.num_channels,
            )
        chunks = plan_chunks(how, num_bytes, count)
        if parts:
            chunks = replace(
                chunks, chunk_bytes=max(part.chunk_bytes for part in parts)
            )
        return NcclPlan(chosen, chunks, tuple(parts))

    def _shape_for(self, algorithm: Algorithm) -> GroupShape:
        if algorithm in (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN):
            heads = max(1, self.graphs[Algorithm.COLLNET_DIRECT].num_channels)
            depth = 2 if algorithm is Algorithm.COLLNET_DIRECT else self.shape.depth
            return replace(self.shape, num_heads=heads, depth=depth)
        return self.shape


def communicator(
    fabric: Fabric,
    version: Version = LATEST,
    settings: Settings | None = None,
    *,
    ranks: Sequence[int] | None = None,
) -> Communicator:
    """Return the communicator that NCCL sets up for the GPUs of a topology.

    Parameters
    ----------
    ranks : sequence of int or None
        Participating ranks of the fabric, all of them GPUs; None is all GPUs.
    """
    library = library_of([end.architecture for end in _endpoints(fabric)], version)
    version = version if library is None else library.version
    settings = with_plugins(fabric, settings or Settings(), version)
    settings = replace(settings, library=library)
    fabric = restrict_transports(fabric, settings)
    members = _members(fabric, ranks)
    if sum(len(numbers) for numbers in members.values()) < 2:
        raise InputError(f"{fabric.name}: one GPU; a collective needs at least two")
    by_zone = systems_by_node(fabric, version, settings, members)
    systems = list(by_zone.values())
    if len(by_zone) == 1:
        systems[0].trim_network()
    else:
        check_network(fabric, settings)
    if len(systems) > 1 and any(not system.adapters for system in systems):
        raise InputError(
            f"{fabric.name}: a node without NICs cannot be in a communicator of several nodes"
        )
    result: dict[int, tuple[Graph, ...]] = {}
    machines: list[SearchedMachine] = []
    first = 0
    for zone, system in by_zone.items():
        if id(system) not in result:
            result[id(system)] = search_graphs(ComparedSystem(system.key(), system))
        ring, tree, nvls, *_ = result[id(system)]
        count = len(system.gpus)
        name = {short_name(name): name for name in parts_of(fabric, zone).nodes}
        adapters = tuple(
            tuple(name[short_name(m)] for m in net.members)
            for net in system.adapters
        )
        gpus = tuple(name[short_name(gpu.name)] for gpu in system.gpus)
        ranks_here = tuple(range(first, first + count))
        machines.append(
            SearchedMachine(ranks_here, ring, tree, nvls, adapters, gpus)
        )
        first += count
    agreed = _agree(fabric, systems, machines, list(result.values()))
    number = {name: rank for rank, name in enumerate(fabric.ranks)}
    on_fabric = tuple(number[name] for machine in machines for name in machine.gpus)
    overlaid = tuple((text, str(f.value)) for text, f in fabric.figures.items())
    return replace(agreed, ranks=on_fabric, overlaid=overlaid)


def _endpoints(fabric: Fabric) -> list[Endpoint]:
    return [
        node.endpoint
        for node in fabric.nodes
        if node.kind == "gpu" and node.endpoint
    ]


def _members(fabric: Fabric, ranks: Sequence[int] | None) -> dict[int, list[int]]:
    """Return a map from node to the numbers of its participating GPUs."""
    counts: dict[int, int] = {}
    place: dict[str, tuple[int, int]] = {}
    for node in fabric.nodes:
        if node.kind == "gpu":
            place[node.name] = node.zone, counts.get(node.zone, 0)
            counts[node.zone] = counts.get(node.zone, 0) + 1
    members: dict[int, list[int]] = {}
    for name in place if ranks is None else _names(fabric, ranks):
        if name not in place:
            raise InputError(
                f"rank {fabric.ranks.index(name)} ({name}): no GPU; NCCL needs one"
            )
        zone, number = place[name]
        members.setdefault(zone, []).append(number)
    if not members:
        raise InputError(f"{fabric.name}: no GPU; NCCL needs one")
    return members


def _names(fabric: Fabric, ranks: Sequence[int]) -> list[str]:
    for rank in ranks:
        if not 0 <= rank < fabric.num_ranks:
            raise InputError(
                f"rank {rank}: {fabric.name} has {fabric.num_ranks} ranks"
            )
    return [fabric.ranks[rank] for rank in ranks]


def _reduce_to_minimum(graphs: list[Graph]) -> Graph:
    """Return the first graph, reduced to the minimum over all nodes."""
    return replace(
        graphs[0],
        num_channels=min(g.num_channels for g in graphs),
        intra_GBps=min(g.intra_GBps for g in graphs),
        inter_GBps=min(g.inter_GBps for g in graphs),
        type_intra=max(g.type_intra for g in graphs),
        type_inter=max(g.type_inter for g in graphs),
        same_channels=all(g.same_channels for g in graphs),
    )


def _agree(
    fabric: Fabric,
    systems: list[System],
    machines: list[SearchedMachine],
    per_node: list[tuple[Graph, ...]],
) -> Communicator:
    version, settings = systems[0].version, systems[0].settings
    ring, tree, nvls, chain, direct = (
        _reduce_to_minimum([g[i] for g in per_node]) for i in range(5)
    )
    searched = min(ring.num_channels, tree.num_channels)
    ring, tree = (
        replace(ring, num_channels=searched),
        replace(tree, num_channels=searched),
    )
    capabilities = [system.capabilities for system in systems]
    low, high = min(c[0] for c in capabilities), max(c[1] for c in capabilities)
    group = RankGroup(
        sum(len(machine.ranks) for machine in machines),
        len(machines),
        low,
        high,
        systems[0].cpu.vendor,
        nvls=nvls.num_channels > 0 and _can_reduce(fabric),
        collnet=all(net.collective for s in systems for net in s.adapters)
        and len(machines) > 1,
        max_local=max(len(machine.ranks) for machine in machines),
        nvlink_only=ring.type_intra <= Path.NVB,
        least_local=min(len(machine.ranks) for machine in machines),
        least_nic_GBps=min(system.least_nic_GBps for system in systems),
    )
    graphs = {
        **{Algorithm.RING: ring, Algorithm.TREE: tree, Algorithm.PAT: tree},
        **{Algorithm.NVLS: nvls, Algorithm.NVLS_TREE: nvls},
        **{Algorithm.COLLNET_CHAIN: chain, Algorithm.COLLNET_DIRECT: direct},
    }
    count = num_channels(group, ring, chain, systems[0], searched)
    nvls_count = 0
    if group.nvls:
        requested = nvls_tuning(group, nvls, version, settings).channels
        max_ctas, min_ctas = (
            settings.max_ctas or max_channels(version),
            settings.min_ctas or 1,
        )
        nvls_count = max(min_ctas, min(max_ctas, requested))
    p2p, per_peer = p2p_channels(systems[0], group, count)
    collnet = count if since(version, "ll is half the bandwidth") else 0
    return Communicator(
        *(
            fabric.name,
            version,
            settings,
            group,
            tuple(machines),
            tuple(systems),
            graphs,
        ),
        *(searched, count, nvls_count, collnet, p2p, per_peer),
    )


def _can_reduce(fabric: Fabric) -> bool:
    """Return True if some switch inside the nodes reduces."""
    return any(
        node.unit is not None and node.zone != NETWORK for node in fabric.nodes
    )
