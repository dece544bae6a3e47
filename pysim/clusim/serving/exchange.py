"""Exchange of tokens for experts with DeepEP, and the load of the fullest group of experts.

**Hardware** DeepEP dispatches tokens to the ranks of their experts and combines the results: by normal kernels in
steps with prompts, by low-latency kernels in steps that decode only, if chosen. **Model** As in training steps
(`clusim.workload.deepep`): copies inside each node and between ranks at the same place of several nodes overlap, and
the longest is the time; kernels have a least time. Popularity of experts is a power of their rank, in an order by
seed; ranks wait for the group with the largest sum. **Not modelled** Orders by layer; chance of a step's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from clusim.base.errors import InputError
from clusim.serving.layout import PLAIN_BYTES, ReplicaLayout
from clusim.workload.deepep import DeepEp
from clusim.workload.layers import Comm
from clusim.workload.parallel.volumes import ExchangeLeg, legs_of


class ServedDeepEp(NamedTuple):
    """DeepEP between the ranks of a layout.

    Attributes
    ----------
    machines : int
        Nodes of a stage.
    inside_Bps : float
        Rate of a GPU to others of its node [B/s].
    low_latency : bool
        Low-latency kernels in steps without prompts.
    """

    layout: ReplicaLayout
    machines: int
    inside_Bps: float
    low_latency: bool

    def check(self) -> None:
        """Raise `InputError` for layouts that DeepEP does not support."""
        layout = self.layout
        if layout.attention_data > 1 and layout.expert != layout.group:
            raise InputError(
                f"experts: exchange deepep needs whole experts on each rank; set expert to {layout.group}"
            )
        if layout.group % self.machines:
            raise InputError(
                f"experts: exchange deepep: {layout.group} ranks are not equal parts of {self.machines} nodes"
            )

    def exchanges(self, tokens: int, *, prompts: bool) -> Iterator[Comm]:
        """Yield dispatch and combine of a layer, for the tokens of a copy of attention."""
        layout, model = self.layout, self.layout.model
        mode = DeepEp(
            fp8=True,
            machines=self.machines,
            low_latency=self.low_latency and not prompts,
            inside_Bps=self.inside_Bps,
        )
        per_rank = -(-tokens // layout.tensor)
        routed = mode.route_tokens(
            per_rank, model.hidden, layout.group, (model.experts, model.top_k)
        )
        directions: tuple[Literal["dispatch", "combine"], ...] = (
            "dispatch",
            "combine",
        )
        for direction in directions:
            size = mode.exchange_sizes(direction, routed, PLAIN_BYTES)
            yield Comm(
                "expert",
                "alltoall",
                size.inside,
                direction,
                channels=mode.blocks,
                least_ps=mode.least_ps(direction, routed, size.inside),
                across=size.across,
                flags=mode.low_latency,
            )


def exchange_legs(step: Comm, ranks: range, per_node: int) -> list[ExchangeLeg]:
    """Return one leg of each kind of an exchange: others are equal and on other wires."""
    zones = [rank // per_node for rank in range(ranks.stop)]
    legs = legs_of(step, tuple(ranks), zones)
    return list({leg._replace(ranks=()): leg for leg in reversed(legs)}.values())


def fullest_skew(experts: int, groups: int, power: float, seed: int) -> float:
    """Return the additional load of the fullest of equal groups of experts, as a fraction.

    The popularity of expert i of a shuffled order is (i + 1)^-power.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    popular = random.permutation(np.arange(1.0, experts + 1) ** -power)
    loads = popular.reshape(groups, -1).sum(axis=1)
    return float(loads.max() / loads.mean() - 1)
