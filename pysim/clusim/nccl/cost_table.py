"""Costs that NCCL's tuner compares: latency and bandwidth by collective, algorithm and protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl.constants import Version, since
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.tables import Tables

if TYPE_CHECKING:
    from clusim.nccl.env import Settings

Key = tuple[Collective, Algorithm, Protocol]


@dataclass(frozen=True, slots=True)
class Cost:
    """One entry of the table.

    Attributes
    ----------
    latency_us, bandwidth_GBps : float
        As NCCL prints them; a bandwidth of 0 is "not to be used".
    why_not : str
        Why it is not to be used.
    """

    latency_us: float = 0.0
    bandwidth_GBps: float = 0.0
    why_not: str = ""


@dataclass(frozen=True)
class CostTable:
    """All costs of a communicator, and their inputs."""

    version: Version
    group: RankGroup
    graphs: Mapping[Algorithm, Graph]
    costs: Mapping[Key, Cost]
    tables: Tables
    settings: Settings

    def cost(
        self, collective: Collective, algorithm: Algorithm, protocol: Protocol
    ) -> Cost:
        """Return one entry."""
        return self.costs[collective, algorithm, protocol]

    def time_us(
        self,
        collective: Collective,
        algorithm: Algorithm,
        protocol: Protocol,
        num_bytes: int,
        num_channels: int,
    ) -> float | None:
        """Return the predicted time for `num_bytes`, or None if the combination is disabled.

        Parameters
        ----------
        num_bytes : int
            The larger of a rank's sent and received sizes [bytes].
        num_channels : int
            Channels of the communicator.
        """
        cost = self.costs[collective, algorithm, protocol]
        bandwidth, latency = cost.bandwidth_GBps, cost.latency_us
        if not bandwidth:
            return None
        key = collective, algorithm, protocol
        latency *= self.plateau(key, num_bytes, num_channels)
        return latency + num_bytes / (
            1000 * self.correct_bandwidth(key, num_bytes, bandwidth)
        )

    def correct_bandwidth(self, key: Key, num_bytes: int, bandwidth: float) -> float:
        """Return a bandwidth with the correction of a size [GB/s]."""
        collective, algorithm, protocol = key
        steps = (num_bytes >> 6).bit_length() - 1
        factors = self.tables.tree_correction[protocol]
        if (
            algorithm is Algorithm.TREE
            and collective is Collective.ALLREDUCE
            and steps >= 0
        ):
            bandwidth *= factors[steps] if steps < min(len(factors), 23) else 1.0
        return bandwidth

    def plateau(self, key: Key, num_bytes: int, num_channels: int) -> float:
        """Return the factor on the latency of large multi-node Simple rings."""
        group = self.group
        ring = (Collective.ALLREDUCE, Algorithm.RING, Protocol.SIMPLE)
        if key != ring or group.num_nodes == 1:
            return 1.0
        if not since(self.version, "plateau by channel"):
            large = num_bytes >= group.num_ranks / 16 * 65536
        else:
            large = num_bytes // (num_channels * group.num_ranks) >= 64
        return self.tables.plateau[group.lowest_capability >= 80] if large else 1.0

    def settle_choice(
        self,
        collective: Collective,
        num_bytes: int,
        best: tuple[Algorithm, Protocol],
    ) -> tuple[Algorithm, Protocol]:
        """Return the choice after rules that replace the fastest entry; NCCL has none."""
        return best

    def plan_channels(
        self, algorithm: Algorithm, collective: Collective, num_bytes: int
    ) -> int:
        """Return the channels of a plan outside the tuner's algorithms; 0 without one, as in NCCL."""
        return 0

    def regular_bytes(self, num_bytes: int) -> int:
        """Return a size for which the choice does not depend on its divisors; in NCCL every size."""
        return num_bytes

    def thread_bytes(
        self, collective: Collective, protocol: Protocol, limit: int
    ) -> int:
        """Return the bytes per thread before another channel is used, `limit` without a rule for the collective."""
        return limit
