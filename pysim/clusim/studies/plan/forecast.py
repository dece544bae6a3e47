"""Bound and forecast of a training step, without an estimate.

**Bound** A rank computes the kernels of all its microbatches, and waits for the collectives inside a layer that no
kernel hides. A stage begins after the forward passes of a chunk of all stages before it, and these end after the
backward passes of a chunk of theirs. A collective lasts at least until each GPU has received the other parts over
all its links, and each node over all its links to others. The optimizer's kernel follows. Weights that FSDP gathers in
each microbatch are another limit. No estimate may be below the bound.

**Forecast** The same with collectives as simulated: each kind of group with two sizes, and a line between them. FSDP
gathers the weights of a layer during another one. A distributed optimizer reduces gradients during the last backward
pass, and gathers weights after it. The forecast orders layouts; the first ones are estimated.

**Not in both** The host, kernels slowed by communication, messages between ranks, exchanges in two legs (DeepEP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from clusim.jobs.times import Times
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.workload.kernels import Chip, Kernel
from clusim.workload.layers import Beside, Layer, Step, Wait, backward_steps
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.plan import ParallelPlan

SIZES = 1 << 20, 1 << 26
"""Sizes of the simulated collectives of a kind of group [bytes]."""

GroupShape = tuple[int, int]
"""Nodes of a group and its GPUs on each."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Work of a rank of a stage for a microbatch [ps].

    Attributes
    ----------
    forward_ps, backward_ps : int
        Passes through the complete stage.
    first_ps : int
        Both passes through its fastest chunk.
    gathered_ps : int
        Weights that are gathered for a microbatch.
    """

    forward_ps: int
    backward_ps: int
    first_ps: int
    gathered_ps: int


class WireLimits:
    """Least times of collectives by the links of GPUs and nodes."""

    def __init__(self, fabric: Fabric) -> None:
        self.zones = zones_of(fabric)
        zone_of = {node.name: node.zone for node in fabric.nodes}
        gpu_Bps: dict[str, float] = dict.fromkeys(fabric.ranks, 0.0)
        node_Bps: dict[int, float] = dict.fromkeys(self.zones, 0.0)
        for link in fabric.links:
            rate_Bps = link.count * link.rate.bytes_per_s
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if end in gpu_Bps:
                    gpu_Bps[end] += rate_Bps
                if zone_of.get(end) in node_Bps and zone_of.get(end) != zone_of.get(
                    other
                ):
                    node_Bps[zone_of[end]] += rate_Bps
        self.gpu_Bps, self.node_Bps = (
            max(gpu_Bps.values()),
            max(node_Bps.values(), default=0.0),
        )

    def shape(self, ranks: Iterable[int]) -> GroupShape:
        """Return the nodes of a group and its most GPUs on one."""
        counts: dict[int, int] = {}
        for rank in ranks:
            counts[self.zones[rank]] = counts.get(self.zones[rank], 0) + 1
        return len(counts), max(counts.values())

    def least_ps(self, shape: GroupShape, size_bytes: int) -> int:
        """Return the least time of a collective of a size [ps]: every GPU receives the parts of the others."""
        nodes, per_node = shape
        size = nodes * per_node
        seconds = size_bytes * (size - 1) / size / self.gpu_Bps
        if nodes > 1 and self.node_Bps:
            seconds = max(seconds, size_bytes * (nodes - 1) / nodes / self.node_Bps)
        return int(seconds * 1e12)


class CommCurves:
    """Times of collectives by simulations of two sizes for each kind of group."""

    def __init__(self, setup: Setup, limits: WireLimits) -> None:
        self.setup, self.limits = setup, limits
        self.times = Times("coarse")
        self._curves: dict[tuple[str, GroupShape], tuple[int, int]] = {}

    @property
    def simulated(self) -> int:
        """Number of simulated collectives."""
        return len(SIZES) * len(self._curves)

    def time_ps(self, operation: str, shape: GroupShape, size_bytes: int) -> int:
        """Return the time of a collective [ps]."""
        key = operation, shape
        if key not in self._curves:
            small, large = (
                self._simulated_ps(operation, shape, size) for size in SIZES
            )
            self._curves[key] = small, large
        small_ps, large_ps = self._curves[key]
        small, large = SIZES
        if size_bytes < small:
            return small_ps
        return small_ps + (large_ps - small_ps) * (size_bytes - small) // (
            large - small
        )

    def _simulated_ps(
        self, operation: str, shape: GroupShape, size_bytes: int
    ) -> int:
        nodes, per_node = shape
        setup = replace(
            self.setup, nodes=nodes if nodes > 1 else None, per_node=per_node
        )
        return self.times.kernel(Request(setup, operation, size_bytes)).time_ps


CommTime = Callable[[str, GroupShape, int], int]
"""Time of a collective: operation, group and size [ps]."""


class StepForecast:
    """Forecast of the step of a plan by times of collectives, or its bound by the least ones.

    Attributes
    ----------
    comm_ps : callable
        Time of a collective.
    is_bound : bool
        Weights of FSDP are gathered at any time of a microbatch, not during the layer before.
    """

    def __init__(
        self, plan: ParallelPlan, limits: WireLimits, comm_ps: CommTime | None = None
    ) -> None:
        self.plan, self.limits, self.is_bound = plan, limits, comm_ps is None
        self.comm_ps = comm_ps or (
            lambda _, shape, size: limits.least_ps(shape, size)
        )
        self._layers: dict[tuple[int, str, int], tuple[int, int, int]] = {}

    def time_ps(self) -> int:
        """Return the time of a step [ps]."""
        plan = self.plan
        stages = [self._stage(stage) for stage in range(plan.mesh.pipeline)]
        longest_ps = ahead_ps = 0
        for stage in stages:
            compute_ps = plan.microbatches * (stage.forward_ps + stage.backward_ps)
            gathered_ps = plan.microbatches * stage.gathered_ps
            longest_ps = max(longest_ps, ahead_ps + max(compute_ps, gathered_ps))
            ahead_ps += stage.first_ps
        exposed_ps = 0 if self.is_bound else self._exposed_ps(stages[0])
        optimizer = plan.optimizer.kernel(plan.optimizer_parameters(0))
        return longest_ps + exposed_ps + _kernel_ps(plan.chip, optimizer)

    def _exposed_ps(self, stage: StageTimes) -> int:
        """Return the reduction of gradients beyond a backward pass, and the gathers of weights after the optimizer."""
        plan = self.plan
        if plan.zero == 3:
            return 0
        group = plan.mesh.groups("shard", 0)[0]
        parameters = sum(
            layer.parameters for chunk in plan.stages[0] for layer in chunk
        )
        reduce_ps = self._comm_ps(
            "reduce_scatter", group, parameters * plan.optimizer.sum_bytes
        )
        gather_ps = self._comm_ps(
            "all_gather", group, parameters * plan.optimizer.weight
        )
        return max(0, reduce_ps - stage.backward_ps) + gather_ps

    def _stage(self, stage: int) -> StageTimes:
        forward_ps = backward_ps = gathered_ps = 0
        firsts: list[int] = []
        for chunk in self.plan.stages[stage]:
            layers = [self._layer(layer, stage) for layer in chunk]
            forward_ps += sum(row[0] for row in layers)
            backward_ps += sum(row[1] for row in layers)
            gathered_ps += sum(row[2] for row in layers)
            firsts.append(sum(row[0] + row[1] for row in layers))
        return StageTimes(forward_ps, backward_ps, min(firsts), gathered_ps)

    def _layer(self, layer: Layer, stage: int) -> tuple[int, int, int]:
        """Return the times of both passes of a layer, and of the gathers of its weights [ps]."""
        key = id(layer.forward), layer.kind, layer.parameters
        if key not in self._layers:
            passes = layer.forward, backward_steps(layer)
            forward_ps, backward_ps = (self._steps(steps, stage) for steps in passes)
            gather_ps = self._gather_ps(layer, stage)
            if not self.is_bound:
                forward_ps, backward_ps = (
                    max(forward_ps, gather_ps),
                    max(backward_ps, gather_ps),
                )
            self._layers[key] = forward_ps, backward_ps, gather_ps
        return self._layers[key]

    def _gather_ps(self, layer: Layer, stage: int) -> int:
        if self.plan.zero != 3 or not layer.parameters:
            return 0
        group = self.plan.mesh.groups("shard", stage)[0]
        size_bytes = layer.parameters * self.plan.optimizer.weight
        return self._comm_ps("all_gather", group, size_bytes)

    def _steps(self, steps: Iterable[Step], stage: int) -> int:
        """Return the time of a row of steps: kernels, and communication that later steps wait for [ps]."""
        now_ps, ends_ps = 0, dict[str, int]()
        for step in steps:
            if isinstance(step, Kernel):
                now_ps += _kernel_ps(self.plan.chip, step)
            elif isinstance(step, Beside):
                rows = (*step.one, *step.two)
                now_ps += self._steps(
                    (row for row in rows if isinstance(row, Kernel)), stage
                )
            elif isinstance(step, Wait):
                now_ps = max(now_ps, ends_ps.get(step.key, 0))
            elif step.operation != "sendrecv" and not step.across:
                groups = self.plan.mesh.groups(step.dim, stage)
                end_ps = now_ps + self._comm_ps(
                    step.operation, groups[0], step.bytes
                )
                if step.key:
                    ends_ps[step.key] = end_ps
                else:
                    now_ps = end_ps
        return now_ps

    def _comm_ps(
        self, operation: str, group: tuple[int, ...], size_bytes: int
    ) -> int:
        return (
            self.comm_ps(operation, self.limits.shape(group), size_bytes)
            if len(group) > 1
            else 0
        )


@cache
def _kernel_ps(chip: Chip, kernel: Kernel) -> int:
    return chip.time_ps(kernel)
