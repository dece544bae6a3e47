"""Bound and forecast of a training step, without an estimate.

**Bound** A rank computes the kernels of all its microbatches, and waits for the collectives inside a layer that no
kernel hides. A stage begins after the forward passes of a chunk of all stages before it, and these end after the
backward passes of a chunk of theirs. A collective lasts at least until each GPU has received the other parts over
all its links, and each node over all its links to others. The optimizer's kernel follows. Weights that FSDP gathers in
each microbatch are another limit. No estimate may be below the bound.

**Forecast** The same with collectives as simulated: each kind of group with two sizes, and a line between them. FSDP
gathers the weights and scatters the gradients of a layer during another one, and a distributed optimizer reduces
gradients during the last backward pass and gathers weights after it. CTAs of hidden collectives hold SMs, which kernels
lack. The forecast orders layouts; the first ones are estimated.

**Not in both** The host, messages between ranks, exchanges in two legs (DeepEP).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

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

GroupShape = tuple[int, tuple[int, ...]]
"""Nodes of a group, and its GPUs on each by their positions."""


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


class CommCost(NamedTuple):
    """Time of a collective [ps], and its CTAs on a GPU."""

    time_ps: int
    ctas: int = 0


NO_COMM = CommCost(0)


class WireLimits:
    """Least times of collectives by the links of GPUs and nodes."""

    def __init__(self, fabric: Fabric) -> None:
        self.zones = zones_of(fabric)
        self.first = {
            zone: rank for rank, zone in reversed([*enumerate(self.zones)])
        }
        self.gpus_per_node = max(Counter(self.zones).values())
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
        """Return the nodes of a group and its GPUs on the one with most."""
        on_node: dict[int, list[int]] = {}
        for rank in ranks:
            zone = self.zones[rank]
            on_node.setdefault(zone, []).append(rank - self.first[zone])
        fullest: list[int] = max(on_node.values(), key=len)
        return len(on_node), tuple(fullest)

    def least_ps(self, shape: GroupShape, size_bytes: int) -> int:
        """Return the least time of a collective of a size [ps]: every GPU receives the parts of the others."""
        nodes, gpus = shape
        size = nodes * len(gpus)
        seconds = size_bytes * (size - 1) / size / self.gpu_Bps
        if nodes > 1 and self.node_Bps:
            seconds = max(seconds, size_bytes * (nodes - 1) / nodes / self.node_Bps)
        return int(seconds * 1e12)


class CommCurves:
    """Times of collectives by simulations of two sizes for each kind of group."""

    def __init__(self, setup: Setup, limits: WireLimits) -> None:
        self.setup, self.limits = setup, limits
        self.times = Times("coarse")
        self._curves: dict[tuple[str, GroupShape], tuple[CommCost, CommCost]] = {}

    @property
    def simulated(self) -> int:
        """Number of simulated collectives."""
        return len(SIZES) * len(self._curves)

    def cost(self, operation: str, shape: GroupShape, size_bytes: int) -> CommCost:
        """Return the time of a collective, and its CTAs."""
        key = operation, shape
        if key not in self._curves:
            first, last = (self._simulate(operation, shape, size) for size in SIZES)
            self._curves[key] = first, last
        one, two = self._curves[key]
        small, large = SIZES
        if size_bytes < small:
            return one
        more_ps = (two.time_ps - one.time_ps) * (size_bytes - small)
        return CommCost(one.time_ps + more_ps // (large - small), two.ctas)

    def _simulate(
        self, operation: str, shape: GroupShape, size_bytes: int
    ) -> CommCost:
        nodes, gpus = shape
        width = self.limits.gpus_per_node
        ranks = tuple(node * width + gpu for node in range(nodes) for gpu in gpus)
        setup = replace(self.setup, nodes=nodes if nodes > 1 else None, ranks=ranks)
        kernel = self.times.kernel(Request(setup, operation, size_bytes))
        return CommCost(kernel.time_ps, kernel.channels)


CommTime = Callable[[str, GroupShape, int], CommCost]
"""Cost of a collective: operation, group and size [bytes]."""


class StepForecast:
    """Forecast of the step of a plan by times of collectives, or its bound by the least ones.

    Attributes
    ----------
    comm : callable
        Cost of a collective.
    is_bound : bool
        Weights of FSDP are gathered at any time of a microbatch, not during the layer before.
    """

    def __init__(
        self, plan: ParallelPlan, limits: WireLimits, comm: CommTime | None = None
    ) -> None:
        self.plan, self.limits, self.is_bound = plan, limits, comm is None
        self.comm = comm or (
            lambda _, shape, size: CommCost(limits.least_ps(shape, size))
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
        reduction = self._comm(
            "reduce_scatter", group, parameters * plan.optimizer.sum_bytes
        )
        gather = self._comm("all_gather", group, parameters * plan.optimizer.weight)
        beside_ps = self._time_beside(stage.backward_ps, reduction)
        return beside_ps - stage.backward_ps + gather.time_ps

    def _time_beside(self, kernels_ps: int, *comms: CommCost) -> int:
        """Return the time of kernels beside collectives, whose CTAs hold a part of the SMs."""
        comm_ps = sum(comm.time_ps for comm in comms)
        held_ps = (
            sum(comm.time_ps * comm.ctas for comm in comms) // self.plan.chip.sms
        )
        return max(comm_ps, kernels_ps + held_ps)

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
            gather = self._weights(layer, stage, "all_gather")
            if not self.is_bound:
                scatter = self._weights(layer, stage, "reduce_scatter")
                forward_ps = self._time_beside(forward_ps, gather)
                backward_ps = self._time_beside(backward_ps, gather, scatter)
            self._layers[key] = forward_ps, backward_ps, gather.time_ps
        return self._layers[key]

    def _weights(self, layer: Layer, stage: int, operation: str) -> CommCost:
        """Return the cost of gathering the weights of a layer, or scattering its gradients, with FSDP."""
        optimizer = self.plan.optimizer
        if self.plan.zero != 3 or not layer.parameters:
            return NO_COMM
        group = self.plan.mesh.groups("shard", stage)[0]
        element = (
            optimizer.weight if operation == "all_gather" else optimizer.sum_bytes
        )
        return self._comm(operation, group, layer.parameters * element)

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
                cost = self._comm(step.operation, groups[0], step.bytes)
                end_ps = now_ps + cost.time_ps
                if step.key:
                    ends_ps[step.key] = end_ps
                else:
                    now_ps = end_ps
        return now_ps

    def _comm(
        self, operation: str, group: tuple[int, ...], size_bytes: int
    ) -> CommCost:
        if len(group) == 1:
            return NO_COMM
        return self.comm(operation, self.limits.shape(group), size_bytes)


@cache
def _kernel_ps(chip: Chip, kernel: Kernel) -> int:
    return chip.time_ps(kernel)
