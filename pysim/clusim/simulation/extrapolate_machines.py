"""Kernel times on many nodes, extrapolated from fewer: one term per cause.

**Steps.** In a ring, and in all-to-all, gather and scatter, every rank adds a step of the same bytes. Two runs, with
the size scaled to their ranks, determine the time of a step; the time is linear in the number of ranks.

**Levels.** Trees and in-switch reductions move the same bytes on every node for any number of nodes. Every further
level delays the first chunk; later chunks follow in a pipeline at a constant rate. Two runs of the first chunk of
every channel determine the time of a level, and the larger of them with all bytes determines the rest.
In PAT the bytes of a rank grow as (n - 1) / n; its rest is scaled accordingly.

Both runs have the algorithm, protocol, channels and chunks of the complete communicator. **Not modelled** Longer
distances than in the runs: switch levels that only large networks have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2

from clusim.base.terms.operations import Algorithm, Collective
from clusim.nccl import Communicator, NcclPlan
from clusim.nccl.connect import NONE, double_tree
from clusim.schedule.dtypes import element
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

Timed = Callable[[Request, NcclPlan | None], int]
"""Callable that simulates a request as planned and returns the kernel time [ps]."""

_TREES = (Algorithm.TREE, Algorithm.NVLS_TREE)


def anchor_nodes(comm: Communicator, plan: NcclPlan | None, most_ranks: int) -> tuple[int, int]:
    """Return the two node counts to extrapolate from; trees need some depth."""
    per_node = max(1, comm.group.num_ranks // comm.group.num_nodes)
    least = 4 if _by_steps(plan) or per_node > most_ranks else 8
    large = max(least, 1 << max(1, most_ranks // per_node).bit_length() - 1)
    return large // 2, large


def followed(
    request: Request, plan: NcclPlan | None, nodes: tuple[int, int], timed: Timed
) -> tuple[int, str]:
    """Return the time of a kernel [ps] extrapolated from `nodes` nodes, and the method."""
    runs = _Runs(request, plan, timed)
    if _by_steps(plan):
        return runs.steps(nodes)
    return runs.levels(nodes)


def longest_run(
    request: Request, plan: NcclPlan | None, nodes: int
) -> tuple[Request, NcclPlan | None]:
    """Return the longest run of `followed`, on `nodes` nodes, and its plan."""
    return _Runs(request, plan, _untimed).largest(nodes)


def _untimed(request: Request, plan: NcclPlan | None) -> int:
    raise AssertionError("only the simulated run is needed, not its time")


def tree_levels(num_nodes: int) -> int:
    """Return the depth of the deeper of NCCL's two trees, in nodes below the root."""
    deepest = 0
    above = [double_tree(num_nodes, node) for node in range(num_nodes)]
    for which in (0, 1):
        for node in range(num_nodes):
            depth, at = 0, above[node][which][0]
            while at != NONE:
                depth, at = depth + 1, above[at][which][0]
            deepest = max(deepest, depth)
    return deepest


def recut(
    comm: Communicator, plan: NcclPlan, size_bytes: int, *, element_bytes: int = 4
) -> NcclPlan:
    """Return a plan with the same algorithm and chunks for another size or communicator."""
    same = comm.plan_of(replace(plan.selection, num_bytes=size_bytes), element_bytes=element_bytes)
    chunk = plan.chunks.chunk_bytes
    parts = tuple(replace(part, chunk_bytes=chunk) for part in same.parts)
    return replace(same, chunks=plan.chunks, parts=parts)


def _by_steps(plan: NcclPlan | None) -> bool:
    return plan is None or plan.selection.algorithm is Algorithm.RING


def _levels(plan: NcclPlan, num_nodes: int) -> float:
    """Return the levels of an algorithm on `num_nodes` nodes.

    PAT sends blocks individually, one after the other.
    """
    if plan.selection.algorithm in _TREES:
        return float(tree_levels(num_nodes))
    if plan.selection.algorithm is Algorithm.PAT:
        return float(num_nodes)
    return log2(num_nodes)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of a request on fewer nodes."""

    request: Request
    plan: NcclPlan | None
    timed: Timed

    def steps(self, nodes: tuple[int, int]) -> tuple[int, str]:
        """Extrapolate two runs linearly in the number of ranks."""
        ranks = self.request.setup.num_ranks
        points = []
        for number in nodes:
            part, part_plan = self._same_steps(number)
            points.append((part.setup.num_ranks, self.timed(part, part_plan)))
        (x1, t1), (x2, t2) = points
        time_ps = t2 + round((t2 - t1) * (ranks - x2) / (x2 - x1))
        return max(time_ps, 1), f"from {nodes[0]} and {nodes[1]} nodes, linear in ranks"

    def _same_steps(self, nodes: int) -> tuple[Request, NcclPlan | None]:
        """Return the request on `nodes` nodes with the same bytes per step, and its plan."""
        request, plan = self.request, self.plan
        operation = request.operation if plan is None else plan.selection.collective
        fewer, size = self._fewer(nodes), request.size_bytes
        if operation not in ("sendrecv", Collective.BROADCAST, Collective.REDUCE):
            size = max(min(size, 8), size * fewer.num_ranks // request.setup.num_ranks // 16 * 16)
        part_plan = None
        if plan is not None:
            width = min(element(request.dtype).size_bytes, size)
            part_plan = fewer.comm.plan_of(
                replace(plan.selection, num_bytes=size), element_bytes=width
            )
        return replace(request, setup=fewer, size_bytes=size), part_plan

    def largest(self, nodes: int) -> tuple[Request, NcclPlan | None]:
        """Return the longest run on `nodes` nodes, and its plan."""
        if _by_steps(self.plan):
            return self._same_steps(nodes)
        return self._of_levels(nodes, self.request.size_bytes)

    def levels(self, nodes: tuple[int, int]) -> tuple[int, str]:
        """Add levels to the run on the larger number of nodes."""
        request, plan = self.request, self.plan
        assert plan is not None
        many = request.setup.num_nodes
        size = request.size_bytes
        first = min(size, plan.chunks.chunk_bytes * plan.num_channels)
        small, large = nodes
        starts = [self._on(number, first) for number in nodes]
        whole = starts[1] if first == size else self._on(large, size)
        at = [_levels(plan, number) for number in nodes]
        level_ps = max(0.0, (starts[1] - starts[0]) / (at[1] - at[0]))
        more = _levels(plan, many) - at[1]
        share = 1.0
        if plan.selection.algorithm is Algorithm.PAT:
            share = (1 - 1 / many) / (1 - 1 / large)
        time_ps = starts[1] + more * level_ps + (whole - starts[1]) * share
        note = f"from {small} and {large} nodes, each further level {level_ps / 1e6:.3g}us"
        return max(1, round(time_ps)), note

    def _fewer(self, nodes: int) -> Setup:
        """Return the setup with `nodes` nodes.

        A plan fixes its channels, so that curves over nodes share the runs.
        """
        setup = self.request.setup
        return setup.smaller(nodes) if self.plan is None else replace(setup, nodes=nodes)

    def _on(self, nodes: int, size_bytes: int) -> int:
        return self.timed(*self._of_levels(nodes, size_bytes))

    def _of_levels(self, nodes: int, size_bytes: int) -> tuple[Request, NcclPlan]:
        """Return the request on `nodes` nodes with `size_bytes`, and its plan.

        The plan has the chunks of the complete run.
        """
        fewer = self._fewer(nodes)
        assert self.plan is not None
        width = min(element(self.request.dtype).size_bytes, size_bytes)
        part_plan = recut(fewer.comm, self.plan, size_bytes, element_bytes=width)
        return replace(self.request, setup=fewer, size_bytes=size_bytes), part_plan
