"""RCCL's cost model: NCCL's formulas with a share of the bus bandwidth per algorithm and protocol, by kind of node.

Source: ncclTopoTuneModel and ncclTopoGetAlgoTime of RCCL's src/graph/tuning.cc, and, since ROCm 7, the protocol by size
of src/rccl_wrap.cc. `clusim.nccl.rccl` has the constants.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusim.base.records import dataclass
from clusim.base.terms.operations import PROTOCOLS, Algorithm, Collective, Protocol
from clusim.nccl.constants import Path
from clusim.nccl.cost_table import CostTable
from clusim.nccl.costs import ROOTED, CostModel, binary_log, cost_model, entries
from clusim.nccl.env import Settings
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.rccl import BASE_US, AllPairs, KnownNode, Rccl, SizeRule, Tuning

_UNITS = ((1 << 16, 2048), (1024, 1024), (64, 64), (0, 1))
"""Least size -> bytes of all chunks of MSCCL's plan, with an element of float32 each."""


@dataclass(frozen=True)
class RcclTable(CostTable):
    """Costs of a communicator of RCCL.

    Attributes
    ----------
    tuning : Tuning
        Constants for its nodes.
    node : KnownNode or None
        Its nodes, if RCCL recognises them.
    """

    tuning: Tuning
    node: KnownNode | None = None

    def correct_bandwidth(
        self,
        key: tuple[Collective, Algorithm, Protocol],
        num_bytes: int,
        bandwidth: float,
    ) -> float:
        """Return a bandwidth with the correction of a size [GB/s]."""
        _, algorithm, protocol = key
        step = binary_log(num_bytes >> 6)
        if algorithm is Algorithm.TREE:
            factors = self.tuning.tree_correction[protocol]
        elif algorithm is Algorithm.RING and self.group.num_nodes > 1:
            factors = self.tuning.ring_correction[protocol]
        else:
            return bandwidth
        return bandwidth * factors[min(step, len(factors) - 1)]

    def plateau(
        self,
        key: tuple[Collective, Algorithm, Protocol],
        num_bytes: int,
        num_channels: int,
    ) -> float:
        """Return the factor on the latency of large multi-node rings, which RCCL does not have: 1."""
        return 1.0

    def settle_choice(
        self,
        collective: Collective,
        num_bytes: int,
        best: tuple[Algorithm, Protocol],
    ) -> tuple[Algorithm, Protocol]:
        """Return a plan of MSCCL, or the choice with the protocol that a size has over nodes (rccl_wrap.cc)."""
        pairs = self.all_pairs(collective, num_bytes)
        if pairs is not None:
            return Algorithm.MSCCL, pairs.protocol
        rule = self.rule(collective)
        if rule is None:
            return best
        size = (
            num_bytes // self.group.num_ranks if collective.has_blocks else num_bytes
        )
        protocol = Protocol.LL if size <= rule.ll_bytes else Protocol.SIMPLE
        doublings = binary_log(self.group.num_nodes) - 1
        limit_bytes = rule.ll128_bytes + doublings * rule.growth_bytes
        usable = self.costs[collective, best[0], Protocol.LL128].bandwidth_GBps > 0
        if usable and rule.ll_bytes < size <= limit_bytes:
            protocol = Protocol.LL128
        return best[0], protocol

    def all_pairs(self, collective: Collective, num_bytes: int) -> AllPairs | None:
        """Return the plan of MSCCL; None without one, with ``RCCL_MSCCL_ENABLE=0``, or if variables name algorithms."""
        settings = self.settings
        forced = settings.algo is not None or settings.proto is not None
        if forced or not settings.msccl_enable or settings.library is None:
            return None
        if collective is not Collective.ALLREDUCE or self.group.num_nodes > 1:
            return None
        return settings.library.all_pairs(self.node, num_bytes)

    def plan_channels(
        self, algorithm: Algorithm, collective: Collective, num_bytes: int
    ) -> int:
        """Return the channels of a plan of MSCCL; 0 without one."""
        pairs = self.all_pairs(collective, num_bytes)
        return (
            pairs.channels
            if pairs is not None and algorithm is Algorithm.MSCCL
            else 0
        )

    def regular_bytes(self, num_bytes: int) -> int:
        """Return the next size that the chunks of MSCCL's plans of such sizes divide."""
        unit = next(unit for low, unit in _UNITS if num_bytes >= low)
        return -(-num_bytes // unit) * unit

    def rule(self, collective: Collective) -> SizeRule | None:
        """Return the protocols by size over nodes, None on one node, before ROCm 7 and with ``NCCL_PROTO``."""
        if self.group.num_nodes == 1 or self.settings.proto is not None:
            return None
        return self.tuning.sizes.get(collective)

    def thread_bytes(
        self, collective: Collective, protocol: Protocol, limits: int
    ) -> int:
        """Return the bytes per thread before another channel is used."""
        rule = self.rule(collective)
        at = PROTOCOLS.index(protocol)
        if (
            rule is None
            or at >= len(rule.threads)
            or self.settings.thread_thresholds is not None
        ):
            return limits
        return rule.threads[at] * self.group.num_ranks


@dataclass(frozen=True)
class RcclModel(CostModel):
    """Inputs of an entry of RCCL; `node` is None for unknown nodes."""

    library: Rccl
    node: KnownNode | None
    tuning: Tuning

    def exists(self, collective: Collective, algorithm: Algorithm) -> bool:
        """Return True if RCCL has this algorithm for this collective at all."""
        if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
            return False
        if algorithm is Algorithm.PAT and self.settings.pat_enable != 1:
            return False
        return super().exists(collective, algorithm)

    def bandwidth(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> float:
        """Return the bandwidth of an entry [GB/s]."""
        group, graph = self.group, self.graphs[algorithm]
        few_nodes = group.num_nodes <= 2
        if (algorithm, protocol) == (Algorithm.TREE, Protocol.SIMPLE) and not (
            group.num_nodes > 1 or self.library.tree_simple
        ):
            return 0.0
        share = self.tuning.share["two" if few_nodes else "more"].get(algorithm)
        if share is None:
            return super().bandwidth(collective, algorithm, protocol)
        bus = graph.num_channels * (
            graph.intra_GBps if few_nodes else graph.inter_GBps
        )
        bus *= share[PROTOCOLS.index(protocol)]
        if algorithm is not Algorithm.RING:
            return bus * 0.5
        if group.num_nodes == 1 and protocol is Protocol.LL and collective in ROOTED:
            bus *= self.library.rooted_ll
        return bus * group.num_ranks / self.steps(collective)

    def latency(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> float:
        """Return the latency of an entry [us]."""
        if algorithm not in self.tuning.hop_us["nvlink"]:
            return super().latency(collective, algorithm, protocol)
        group, graph, p = (
            self.group,
            self.graphs[algorithm],
            PROTOCOLS.index(protocol),
        )
        link = "nvlink" if graph.type_intra == Path.NVL else "pcie"
        intra = self.tuning.hop_us[link][algorithm][p]
        network = self.tuning.hop_us["network"][algorithm][p]
        network += graph.latency_us * (2 if protocol is Protocol.SIMPLE else 1)
        if algorithm is Algorithm.TREE:
            local = group.num_ranks // group.num_nodes
            return BASE_US[p] + 2 * (
                (local - 1) * intra + binary_log(group.num_nodes) * network
            )
        steps = self.steps(collective)
        if collective in ROOTED:
            hop = intra if group.num_nodes == 1 else network
            return BASE_US[p] + (hop if graph.same_channels else steps * hop)
        if group.num_nodes == 1:
            return BASE_US[p] + steps * intra
        crossings = self.crossings(collective)
        intra = max(
            intra, self.overhead_us() * (3 if protocol is Protocol.SIMPLE else 1)
        )
        return BASE_US[p] + (steps - crossings) * intra + crossings * network

    def crossings(self, collective: Collective) -> int:
        """Return the steps of a ring between nodes."""
        nodes = self.group.num_nodes
        if collective is not Collective.ALLREDUCE:
            return nodes - 1
        return 2 * (nodes - 1) + self.library.extra_crossings

    def ll128_unsafe(self, algorithm: Algorithm) -> str:
        """Return why LL128 must not be used; empty if it may."""
        graph, library = self.graphs[algorithm], self.library
        first = self.node.ll128 if self.node is not None else None
        if first is None or self.version[:2] < max(first, library.ll128):
            return f"LL128 is not tuned by RCCL for these nodes with {library.gfx}"
        if graph.type_intra > Path.NVL or graph.type_inter > Path.PXB:
            return "LL128 needs xGMI between all GPUs and NICs at PXB or nearer"
        return ""


def rccl_table(
    group: RankGroup,
    graphs: Mapping[Algorithm, Graph],
    settings: Settings,
    node: KnownNode | None,
) -> RcclTable:
    """Return the costs of a communicator of RCCL, with the constants of `node` if its nodes are known."""
    library = settings.library
    assert library is not None
    plain = cost_model(group, graphs, library.version, settings)
    tuning = library.tuning(node)
    model = RcclModel(
        plain.version,
        group,
        plain.graphs,
        settings,
        plain.tables,
        library,
        node,
        tuning,
    )
    return RcclTable(
        plain.version,
        group,
        plain.graphs,
        entries(model),
        plain.tables,
        settings,
        tuning,
        node,
    )
