"""NCCL's cost model: latency and bandwidth of every (collective, algorithm, protocol), by release.

The tables match those printed with ``NCCL_DEBUG_SUBSYS=TUNING``; they were compared with the logs named in
`clusim.nccl.tables`. That module has the constants that differ between releases, this one the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusim.base.records import dataclass
from clusim.base.terms.operations import (
    ALGORITHMS,
    COLLECTIVES,
    PROTOCOLS,
    Algorithm,
    Collective,
    Protocol,
)
from clusim.nccl.constants import MAX_DIRECT_HEADS, Path, Pattern, Version, since
from clusim.nccl.cost_table import Cost, CostTable, Key
from clusim.nccl.env import Settings, allows
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.tables import Tables, Triple, architecture_of, tables_for

_COLLNET = (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN)
_IN_SWITCH = (Algorithm.NVLS, Algorithm.NVLS_TREE)
ROOTED = (Collective.BROADCAST, Collective.REDUCE)
"""Collectives with a root."""


def binary_log(number: int) -> int:
    """Return the binary logarithm, rounded down; 0 for numbers below 1."""
    return max(0, number.bit_length() - 1)


@dataclass(frozen=True)
class CostModel:
    """Inputs of an entry."""

    version: Version
    group: RankGroup
    graphs: Mapping[Algorithm, Graph]
    settings: Settings
    tables: Tables

    @property
    def row(self) -> int:
        group = self.group
        return architecture_of(
            group.lowest_capability, group.highest_capability, self.version
        )

    @property
    def column(self) -> int:
        return min(self.group.num_nodes, 3) - 1

    def at(self, table: tuple[Triple, ...]) -> float:
        """Return the ceiling for this architecture and number of nodes."""
        return table[self.row][self.column]

    def ll_ceiling(self) -> float:
        if self.group.num_nodes == 1:
            return self.tables.ll_GBps[self.row][0]
        row = 1 if self.group.cpu_vendor == "amd" else 0
        return self.tables.ll_GBps[row][self.column]

    def steps(self, collective: Collective) -> int:
        n = self.group.num_ranks
        if collective is Collective.ALLREDUCE:
            return 2 * (n - 1)
        return n - 1 if collective.has_blocks else n

    def exists(self, collective: Collective, algorithm: Algorithm) -> bool:
        """Return True if the release has this algorithm for this collective at all."""
        version, reduce_all = self.version, collective is Collective.ALLREDUCE
        if algorithm is Algorithm.RING:
            return True
        if collective in ROOTED:
            return False
        if algorithm is Algorithm.TREE or algorithm is Algorithm.COLLNET_CHAIN:
            return reduce_all and (
                algorithm is Algorithm.TREE or since(version, "chains of collnet")
            )
        if algorithm is Algorithm.COLLNET_DIRECT:
            return reduce_all or since(version, "collnet for blocks")
        if algorithm is Algorithm.NVLS:
            return since(version, "nvls")
        if algorithm is Algorithm.NVLS_TREE:
            return reduce_all and since(version, "trees of nvls")
        return (
            collective.has_blocks
            and since(version, "pat")
            and self.group.ranks_per_node == 1
        )

    def bandwidth(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> float:
        graph, group = self.graphs[algorithm], self.group
        few_nodes = group.num_nodes <= 2 or algorithm in _COLLNET
        bus = graph.num_channels * (
            graph.intra_GBps if few_nodes else graph.inter_GBps
        )
        if algorithm in _IN_SWITCH:
            return self.in_switch(collective, algorithm, protocol, bus)
        if self.row == 1 and not since(self.version, "no ceiling on a100"):
            bus = min(bus, 235.0)
        if algorithm is Algorithm.RING:
            bus = self.ring(collective, protocol, bus)
        elif algorithm is Algorithm.TREE:
            bus = self.tree(collective, protocol, bus)
        elif algorithm is Algorithm.PAT:
            bus = 0.75 * bus if protocol is Protocol.SIMPLE else 0.0
        elif protocol is not Protocol.SIMPLE and since(
            self.version, "collnet is simple"
        ):
            return 0.0
        elif algorithm is Algorithm.COLLNET_DIRECT:
            bus = self.direct(collective, bus)
        if algorithm is Algorithm.RING:
            return bus * group.num_ranks / self.steps(collective)
        return bus if collective.has_blocks else bus * 0.5

    def ring(self, collective: Collective, protocol: Protocol, bus: float) -> float:
        group, version = self.group, self.version
        if protocol is Protocol.LL:
            share = 0.5
            if not since(version, "ll is half the bandwidth"):
                sums = collective in (Collective.ALLREDUCE, Collective.REDUCE)
                share = 1 / 4 if group.num_nodes > 1 or sums else 1 / 3
            return min(self.ll_ceiling(), bus * share)
        if protocol is Protocol.LL128:
            lone = group.ranks_per_node < 2 and not since(
                version, "ll128 of lone gpus"
            )
            ceiling = self.tables.ring_ll128_GBps[self.row][self.column]
            if not since(version, "ceilings by architecture"):
                ceiling = _LL128_28[collective]
            channels = self.graphs[Algorithm.RING].num_channels
            return min(bus * (0.7 if lone else 0.92), channels * ceiling)
        return bus

    def tree(self, collective: Collective, protocol: Protocol, bus: float) -> float:
        group, graph, version = self.group, self.graphs[Algorithm.TREE], self.version
        channels = graph.num_channels
        if not since(version, "ceilings by architecture"):
            return self.tree_28(collective, protocol, bus)
        bus = min(0.92 * bus, channels * self.at(self.tables.tree_GBps))
        if protocol is Protocol.LL:
            bus = min(bus / 3.8, self.ll_ceiling())
        elif protocol is Protocol.LL128:
            share = 7 / 9 if group.num_nodes == 1 else 120 / 128
            bus = min(bus * share, channels * self.at(self.tables.tree_ll128_GBps))
        if graph.pattern is Pattern.TREE and since(version, "plain trees lose"):
            bus *= 0.85
        return bus

    def tree_28(
        self, collective: Collective, protocol: Protocol, bus: float
    ) -> float:
        far, wide = (
            self.group.num_nodes > 2,
            self.row == 1 and protocol is Protocol.LL128,
        )
        ceiling = (105.0 if wide else 80.0) if far else (130.0 if wide else 110.0)
        bus = min(0.9 * bus, ceiling)
        if protocol is Protocol.LL:
            return bus / 3.8
        if protocol is Protocol.LL128:
            share = 7 / 9 if self.group.num_nodes == 1 else 0.915
            channels = self.graphs[Algorithm.TREE].num_channels
            return min(bus * share, _LL128_28[collective] * channels * 7 / 9)
        return bus

    def direct(self, collective: Collective, bus: float) -> float:
        graph, local = (
            self.graphs[Algorithm.COLLNET_DIRECT],
            self.group.ranks_per_node,
        )
        if collective is not Collective.ALLREDUCE:
            return local * min(graph.intra_GBps, 0.9 * graph.inter_GBps)
        if not graph.num_channels:
            return 0.0
        factor = local / graph.num_channels
        factor -= (factor - 1) / 2
        return bus / factor * (0.85 if self.group.lowest_capability >= 90 else 1.0)

    def in_switch(
        self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        bus: float,
    ) -> float:
        graph, group = self.graphs[algorithm], self.group
        heads = graph.num_channels
        if protocol is not Protocol.SIMPLE or heads < 2:
            return 0.0
        reduce_all = collective is Collective.ALLREDUCE
        if not since(self.version, "nvls efficiency"):
            return bus * 5 / 6 if reduce_all else bus
        intra = (
            graph.intra_GBps
            * self.tables.nvls_efficiency[self.row]
            * (heads - 1)
            / heads
        )
        local = group.ranks_per_node
        intra *= 2 if reduce_all else (local - 1) / local
        pair = group.num_nodes <= 2 and algorithm is Algorithm.NVLS_TREE
        bandwidth = min(intra, graph.inter_GBps * (2 if pair else 1))
        if algorithm is Algorithm.NVLS_TREE:
            bandwidth = min(bandwidth, self.at(self.tables.nvls_tree_GBps))
        bus = heads * bandwidth
        return bus * group.num_ranks / self.steps(collective) if reduce_all else bus

    def latency(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> float:
        group, tables = self.group, self.tables
        p = PROTOCOLS.index(protocol)
        graph, nodes = self.graphs[algorithm], group.num_nodes
        local = group.num_ranks // nodes
        intra_us = (
            tables.nvlink_us if graph.type_intra == Path.NVL else tables.pcie_us
        )
        base, intra = tables.base_us[algorithm][p], intra_us[algorithm][p]
        alone = group.ranks_per_node == 1 and since(
            self.version, "lone gpus as trees"
        )
        network = Algorithm.TREE if alone else algorithm
        inter = tables.network_us[network][p]
        inter += graph.latency_us * (2 if protocol is Protocol.SIMPLE else 1)
        if (
            nodes > 1
            and protocol is Protocol.LL
            and not since(self.version, "net overhead")
        ):
            intra *= 1.8
        if algorithm is Algorithm.RING:
            return base + self.ring_latency(collective, protocol, intra, inter)
        if algorithm is Algorithm.TREE:
            return base + 2 * ((local - 1) * intra + binary_log(nodes) * inter)
        if algorithm is Algorithm.COLLNET_DIRECT and since(
            self.version, "collnet is simple"
        ):
            return base + 2 * (min(1, local - 1) * intra + (local - 1) * 0.4) + inter
        if algorithm in _COLLNET:
            return base + 2 * (local - 1) * intra + inter
        if algorithm is Algorithm.NVLS:
            return base + intra + (inter if nodes > 1 else 0.0)
        if algorithm is Algorithm.NVLS_TREE:
            return base + intra + 2 * binary_log(nodes) * inter
        if protocol is not Protocol.SIMPLE:
            return 0.0
        return base + binary_log(nodes) * inter / 3.5 + group.num_ranks * 2.8

    def ring_latency(
        self, collective: Collective, protocol: Protocol, intra: float, inter: float
    ) -> float:
        group, tables = self.group, self.tables
        nodes, p = group.num_nodes, PROTOCOLS.index(protocol)
        steps = self.steps(collective)
        if collective in ROOTED:
            graph = self.graphs[Algorithm.RING]
            intra_us = (
                tables.nvlink_us if graph.type_intra == Path.NVL else tables.pcie_us
            )
            table = intra_us if nodes == 1 else tables.network_us
            if graph.same_channels:
                return table[Algorithm.RING][p]
            slow = protocol is Protocol.SIMPLE
            return steps * table[Algorithm.TREE if slow else Algorithm.RING][p]
        if nodes > 1 and since(self.version, "net overhead"):
            overhead = self.overhead_us() * (3 if protocol is Protocol.SIMPLE else 1)
            intra = max(intra, overhead)
        crossings = (nodes - 1) * (2 if collective is Collective.ALLREDUCE else 1)
        if (
            tables.inter_steps_extra
            and nodes > 1
            and collective is Collective.ALLREDUCE
        ):
            crossings = 2 * nodes
        return (steps - crossings) * intra + crossings * inter

    def overhead_us(self) -> float:
        """Return the cost of posting a ring step to the network [us]."""
        if self.settings.net_overhead_ns is not None:
            return self.settings.net_overhead_ns / 1000
        return 2.0 if self.group.cpu_vendor == "amd" else 1.0

    def why_not(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> str:
        """Return why an entry must not be used; empty if it may."""
        settings, group, version = self.settings, self.group, self.version
        reason = self.limitation(algorithm)
        if reason:
            return reason
        refusal = allows(settings, collective, protocol)
        if refusal is False:
            return f"NCCL_PROTO={settings.proto.text if settings.proto else ''}"
        if refusal is None and protocol is Protocol.LL128:
            reason = self.ll128_unsafe(algorithm)
            if reason:
                return reason
        refusal = allows(settings, collective, algorithm)
        spared = (
            algorithm is Algorithm.RING
            and collective is not Collective.ALLREDUCE
            and not since(version, "algorithms per collective")
        )
        if (
            refusal is False
            and not spared
            and not self.restores_ring_and_tree(collective, algorithm)
        ):
            return f"NCCL_ALGO={settings.algo.text if settings.algo else ''}"
        if algorithm in _IN_SWITCH and self.graphs[algorithm].num_channels < 2:
            return "fewer than two heads"
        if algorithm is Algorithm.PAT and group.ranks_per_node != 1:
            return "more than one rank per node"
        if algorithm is Algorithm.PAT and not settings.pat_enable:
            return "NCCL_PAT_ENABLE=0"
        return ""

    def restores_ring_and_tree(
        self, collective: Collective, algorithm: Algorithm
    ) -> bool:
        """Return True if NCCL re-enables Ring and Tree because no algorithm in ``NCCL_ALGO`` can run.

        Releases 2.8 to 2.23 do so without CollNet (``src/graph/tuning.cc``) for any value of the variable; later ones
        fail without an algorithm.
        """
        version, group, settings = self.version, self.group, self.settings
        if (
            algorithm not in (Algorithm.RING, Algorithm.TREE)
            or settings.algo is None
        ):
            return False
        late = since(version, "algorithms per collective")
        if late or not since(version, "collnet is ignored") or self._collnet:
            return False
        remaining = [Algorithm.RING, Algorithm.TREE]
        if since(version, "trees of nvls"):
            remaining.append(
                Algorithm.NVLS if group.num_nodes == 1 else Algorithm.NVLS_TREE
            )
        return not any(allows(settings, collective, name) for name in remaining)

    @property
    def _collnet(self) -> bool:
        """True if in-network reduction is available and enabled."""
        return self.group.collnet and self.settings.collnet_enable

    def limitation(self, algorithm: Algorithm) -> str:
        settings, group = self.settings, self.group
        if algorithm in _COLLNET:
            if not group.collnet:
                return (
                    "one node"
                    if group.num_nodes == 1
                    else "the network cannot reduce"
                )
            if not settings.collnet_enable:
                return "NCCL_COLLNET_ENABLE is not 1"
            if group.num_nodes < settings.collnet_node_threshold:
                return (
                    "one node"
                    if group.num_nodes == 1
                    else "NCCL_COLLNET_NODE_THRESHOLD"
                )
            max_local = group.max_local or group.num_ranks // group.num_nodes
            if (
                algorithm is Algorithm.COLLNET_DIRECT
                and max_local > MAX_DIRECT_HEADS + 1
            ):
                return f"more than {MAX_DIRECT_HEADS + 1} ranks per node"
        if algorithm in _IN_SWITCH:
            if not settings.nvls_enable:
                return "NCCL_NVLS_ENABLE=0"
            if not group.nvls:
                return "no NVLink switch that can reduce"
            if algorithm is Algorithm.NVLS_TREE and group.num_nodes == 1:
                return "one node"
            if (
                algorithm is Algorithm.NVLS
                and group.num_nodes > 1
                and not self._collnet
            ):
                return "several nodes, and the network does not reduce"
        return ""

    def ll128_unsafe(self, algorithm: Algorithm) -> str:
        graph, group, version = self.graphs[algorithm], self.group, self.version
        low, high = group.lowest_capability, group.highest_capability
        if not since(version, "ll128 by generation"):
            if not (low == high and low in (70, 80)):
                return "LL128 only on Volta or A100"
            intra, inter = Path.NVL, Path.PXB
        else:
            if low < 70 or (low != high and low < 90):
                return "LL128 needs GPUs of one kind, Volta or later"
            intra, inter = Path.NVB, Path.PXN if low >= 90 else Path.PXB
        if graph.type_intra > intra:
            return (
                f"LL128 needs paths up to {intra.name}, not {graph.type_intra.name}"
            )
        if group.num_nodes > 1 and graph.type_inter > inter:
            return f"LL128 needs the network at {inter.name} or nearer, not {graph.type_inter.name}"
        return ""


_LL128_28 = dict(zip(COLLECTIVES, (18.8, 12.0, 18.3, 15.2, 16.7), strict=True))
"""NCCL 2.8, src/graph/tuning.cc: ceiling of a channel per collective [GB/s]."""


def cost_table(
    group: RankGroup,
    graphs: Mapping[Algorithm, Graph],
    version: Version,
    settings: Settings | None = None,
) -> CostTable:
    """Return the costs of a communicator.

    Parameters
    ----------
    graphs : dict
        Result of the search per algorithm; `clusim.nccl.communicator` maps algorithms to graphs.
    """
    model = cost_model(group, graphs, version, settings or Settings())
    return CostTable(
        version, group, model.graphs, entries(model), model.tables, model.settings
    )


def cost_model(
    group: RankGroup,
    graphs: Mapping[Algorithm, Graph],
    version: Version,
    settings: Settings,
) -> CostModel:
    """Return the inputs of all entries, with an empty graph for algorithms without one."""
    none = Graph(Pattern.TREE)
    all_graphs = {algorithm: graphs.get(algorithm, none) for algorithm in ALGORITHMS}
    return CostModel(version, group, all_graphs, settings, tables_for(version))


def entries(model: CostModel) -> dict[Key, Cost]:
    """Return all entries of a model."""
    return {
        (collective, algorithm, protocol): _entry(
            model, collective, algorithm, protocol
        )
        for collective in COLLECTIVES
        for algorithm in ALGORITHMS
        for protocol in PROTOCOLS
    }


def _entry(
    model: CostModel,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
) -> Cost:
    if model.group.num_ranks < 2:
        return Cost(why_not="one rank")
    if not model.exists(collective, algorithm):
        return Cost(why_not=f"no {algorithm.value} for {collective.value}")
    latency = model.latency(collective, algorithm, protocol)
    reason = model.why_not(collective, algorithm, protocol)
    if reason:
        return Cost(latency, 0.0, reason)
    bandwidth = model.bandwidth(collective, algorithm, protocol)
    return Cost(latency, bandwidth, "" if bandwidth else f"no {protocol.value}")
