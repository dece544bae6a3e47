"""Transfers of caches from prefill to decode replicas, as flows on the system's network, beside other traffic.

**Hardware** The decode side reads the blocks of a prompt from the prefill side's GPUs over their NICs. **Model** A
decode rank reads its heads from prefill ranks: one flow for each pair of ranks. Transfers whose
times overlap are an island, simulated packet by packet (in bursts) with their starts and with other traffic; other
transfers are in isolation. Their times change when requests start, which changes the islands: runs are repeated until
latencies stay (`clusim.serving.pools`). **Not modelled** Other protocols than reads; gaps between
blocks; blocks of the prefill side that are free only after the transfer.
**Parameters** `setup_ps` of a transfer; `piece_ps` of a contiguous piece of a layer's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from clusim.results.result import Result
from clusim.serving.layout import ReplicaLayout
from clusim.serving.spec import BesideSpec
from clusim.serving.verdict import SharedWire
from clusim.simulation.api import result_of
from clusim.simulation.flows import Flow
from clusim.simulation.job import RunOptions
from clusim.simulation.request import TrafficRequest
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic
from clusim.topology.arrays import arrays_of
from clusim.topology.check_flow import endpoint_rates_Bps, wire_rates_Bps

MOST_ISLANDS = 48
"""Islands of several transfers that are simulated in a round; others are slowed equally."""

MOST_FLOWS = 64
"""Most flows of other traffic from a rank beside an island."""

MIXED_SHARE = 0.01
"""Least share of a wire's bytes for it to carry caches, or other traffic."""

MOST_WIRES = 3
"""Wires with both that a verdict names."""

PACKET_BYTES = 4096
"""Payload of the flows' packets, an MTU of RoCE [bytes]."""


@dataclass(frozen=True, slots=True)
class CacheTransfer:
    """Cache of a prompt between two replicas.

    Attributes
    ----------
    start_ps : int
        Time at which its data begin to move [ps].
    source, target : int
        First ranks of the copies of attention of the first stages.
    tokens : int
        Tokens of the prompt.
    """

    start_ps: int
    source: int
    target: int
    tokens: int


@dataclass
class TransferTimes:
    """Times of transfers between replicas of two layouts.

    Attributes
    ----------
    sources, targets : ReplicaLayout
        Of prefill and of decode replicas.
    beside : BesideSpec or None
        Other traffic.
    simulated : int
        Islands that were simulated.
    """

    setup: Setup
    sources: ReplicaLayout
    targets: ReplicaLayout
    beside: BesideSpec | None = None
    simulated: int = 0
    _alone: dict[CacheTransfer, int] = field(default_factory=dict)
    _islands: dict[tuple[CacheTransfer, ...], list[int]] = field(
        default_factory=dict
    )

    def flows(self, transfer: CacheTransfer) -> list[Flow]:
        """Return the flows of a transfer, one for each pair of ranks that share heads."""
        from_layout, to_layout = self.sources, self.targets
        layers = replace(to_layout, pipeline=1)
        cache_bytes = layers.sequence_bytes(transfer.tokens)
        result = []
        for stage in range(to_layout.pipeline):
            for source_stage, share in self._stages(stage):
                size_bytes = round(cache_bytes * share)
                source = transfer.source + source_stage * from_layout.group
                target = transfer.target + stage * to_layout.group
                for rank in range(to_layout.tensor):
                    owners = self._owners(rank)
                    part = max(1, size_bytes // len(owners))
                    result += [
                        Flow(source + owner, target + rank, part, transfer.start_ps)
                        for owner in owners
                    ]
        return result

    def _stages(self, stage: int) -> Iterable[tuple[int, Fraction]]:
        """Yield the prefill stages with layers of a decode stage, and these as a share of all layers."""
        have, stages = self.sources.pipeline, self.targets.pipeline
        low, high = Fraction(stage, stages), Fraction(stage + 1, stages)
        for number in range(have):
            begin, end = Fraction(number, have), Fraction(number + 1, have)
            share = min(high, end) - max(low, begin)
            if share > 0:
                yield number, share

    def _owners(self, rank: int) -> range:
        """Return the prefill ranks with the heads of a decode rank; latent caches are on every rank."""
        have, want = self.sources.tensor, self.targets.tensor
        if self.targets.model.latent is not None:
            return range(rank % have, rank % have + 1)
        first = rank * have // want
        return range(first, max(first + 1, (rank + 1) * have // want))

    def alone_ps(self, transfer: CacheTransfer) -> int:
        """Return the time of a transfer without other transfers, beside other traffic [ps].

        Without other traffic the time is linear in the tokens: it is simulated at powers of two only.
        """
        low = 1 << transfer.tokens.bit_length() - 1
        share = transfer.tokens / low - 1
        if self.beside is not None or not share:
            return self._simulated_ps(transfer, transfer.tokens)
        ends = (self._simulated_ps(transfer, size) for size in (low, 2 * low))
        return round((1 - share) * next(ends) + share * next(ends))

    def _simulated_ps(self, transfer: CacheTransfer, tokens: int) -> int:
        key = replace(transfer, start_ps=0, tokens=tokens)
        if key not in self._alone:
            self._alone[key] = self._simulate([key])[0]
        return self._alone[key]

    def times_ps(self, transfers: Sequence[CacheTransfer]) -> list[int]:
        """Return the time of each transfer, in the order of starts, beside overlapping ones [ps]."""
        result = [self.alone_ps(item) for item in transfers]
        stretched: list[float] = []
        islands = [
            island
            for island in self._overlapping(transfers, result)
            if len(island) > 1
        ]
        for count, island in enumerate(islands):
            if count < MOST_ISLANDS:
                times = self._island([transfers[at] for at in island])
                stretched += [
                    time / result[at] for at, time in zip(island, times, strict=True)
                ]
            else:
                factor = float(np.mean(stretched))
                times = [round(factor * result[at]) for at in island]
            for at, time in zip(island, times, strict=True):
                result[at] = time
        return result

    def _overlapping(
        self, transfers: Sequence[CacheTransfer], times_ps: Sequence[int]
    ) -> Iterable[list[int]]:
        """Yield the numbers of transfers that overlap, by their times in isolation."""
        island: list[int] = []
        end_ps = -1
        for at, transfer in enumerate(transfers):
            if island and transfer.start_ps >= end_ps:
                yield island
                island, end_ps = [], -1
            island.append(at)
            # Transfers of an island wait for each other at most.
            end_ps = max(end_ps, transfer.start_ps) + times_ps[at]
        if island:
            yield island

    def _island(self, transfers: Sequence[CacheTransfer]) -> list[int]:
        first = transfers[0].start_ps
        key = tuple(
            replace(item, start_ps=item.start_ps - first) for item in transfers
        )
        if key not in self._islands:
            self._islands[key] = self._simulate(key)
        return self._islands[key]

    def _simulate(self, transfers: Sequence[CacheTransfer]) -> list[int]:
        """Return the time of each transfer [ps], simulated with its start and other traffic."""
        self.simulated += 1
        result, owners = self._run_flows(transfers)
        messages = result.messages
        assert messages is not None, "traffic has messages"
        ends = np.zeros(len(transfers), np.int64)
        is_cache = messages.flow < len(owners)
        where = np.array(owners, np.int64)[messages.flow[is_cache]]
        np.maximum.at(ends, where, messages.end_ps[is_cache])
        return [
            int(end) - item.start_ps
            for end, item in zip(ends, transfers, strict=True)
        ]

    def _run_flows(
        self, transfers: Sequence[CacheTransfer]
    ) -> tuple[Result, list[int]]:
        """Return the run of transfers and other traffic, and the transfer of each of the first flows."""
        flows: list[Flow] = []
        owners: list[int] = []
        for number, transfer in enumerate(transfers):
            pairs = self.flows(transfer)
            flows += pairs
            owners += [number] * len(pairs)
        flows += self._other_flows(flows)
        traffic = Traffic.of_flows(flows, PACKET_BYTES)
        request = TrafficRequest(self.setup, traffic, "quick")
        return result_of(request, RunOptions(bins=2, histories=False)), owners

    def shared_wires(
        self, quiet: TransferTimes, transfers: Sequence[CacheTransfer]
    ) -> list[SharedWire]:
        """Return the busiest wires with caches and other traffic in the longest overlap of transfers.

        `quiet` is the same network without other traffic.
        """
        times = [self.alone_ps(item) for item in transfers]
        longest = max(self._overlapping(transfers, times), key=len)
        first = transfers[longest[0]].start_ps
        island = [
            replace(transfers[at], start_ps=transfers[at].start_ps - first)
            for at in longest
        ]
        (mixed, _), (alone, _) = self._run_flows(island), quiet._run_flows(island)
        all_bytes, cache_bytes = (
            np.maximum(run.wires.counters["bytes"].astype(float), 1.0)
            for run in (mixed, alone)
        )
        caches = np.minimum(cache_bytes / all_bytes, 1.0)
        busy = mixed.wires.counters["busy_ps"] / mixed.time_ps
        both = (cache_bytes > MIXED_SHARE * cache_bytes.max()) & (
            caches < 1 - MIXED_SHARE
        )
        order = [wire for wire in np.argsort(-busy, kind="stable") if both[wire]]
        return [
            SharedWire(
                mixed.wires.names[wire],
                float(busy[wire]),
                float(caches[wire]),
                float(1 - caches[wire]),
            )
            for wire in order[:MOST_WIRES]
        ]

    def _other_flows(self, flows: Sequence[Flow]) -> list[Flow]:
        """Return other traffic during some flows: messages of all ranks, at a part of the NICs' rate."""
        spec = self.beside
        if spec is None:
            return []
        arrays = arrays_of(self.setup.fabric)
        ranks = arrays.num_ranks
        rate_Bps = outer_rate_Bps(self.setup)
        per_rank = np.bincount(
            [flow.source for flow in flows],
            [flow.size_bytes for flow in flows],
            ranks,
        )
        last = max(flow.start_ps for flow in flows)
        time_s = last * 1e-12 + 2 * per_rank.max() / (rate_Bps * (1 - spec.load))
        count = max(1, round(time_s * rate_Bps * spec.load / spec.message))
        size_bytes = spec.message * -(-count // MOST_FLOWS)
        gap_ps = round(1e12 * size_bytes / (rate_Bps * spec.load))
        half = ranks // 2
        result = []
        for rank in range(ranks):
            target = (rank + half) % ranks
            result += [
                Flow(rank, target, size_bytes, start)
                for start in range(0, round(time_s * 1e12), gap_ps)
            ]
        return result


def outer_rate_Bps(setup: Setup) -> float:
    """Return the rate of a rank to other nodes [B/s]; of the endpoint in a single node."""
    arrays = arrays_of(setup.fabric)
    zone = arrays.nodes["zone"]
    source, target = zone[arrays.wires["src"]], zone[arrays.wires["dst"]]
    out = (source == zone[arrays.node_of(0)]) & (source != target)
    if not out.any():
        return float(endpoint_rates_Bps(arrays)[0])
    per_node = arrays.num_ranks // max(1, setup.fabric.num_zones)
    return float(wire_rates_Bps(arrays)[out].sum() / per_node)
