"""Time of a rank's host thread to issue the steps of layers; parameters are in `hardware.frameworks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusim.base.units import parse_time
from clusim.hardware import FRAMEWORKS, LAUNCH_QUEUE, PROCESSORS, Framework
from clusim.hardware.figures import Figure
from clusim.topology.model import Fabric
from clusim.workload.kernels import Kernel
from clusim.workload.layers import JOINED, SUMMED, Beside, Comm, Shard, Step
from clusim.workload.spec import HostSpec

SHAPES = 4
"""Granularity of score matrices in Megatron's fused softmax (fused_softmax.py, is_kernel_available)."""

LONGEST_FUSED = 2048
"""Longest rows of the fused softmax."""

SOFTMAX = "softmax"
"""Name of its kernel in the tables of layers."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Work of a host: its time [ps], and the kernels it puts into the queue."""

    time_ps: int
    launches: int


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Host thread of every rank.

    Attributes
    ----------
    operator_ps, again_ps, node_ps, collective_ps, message_ps, tensor_ps, microbatch_ps, step_ps : int
        As of `Framework`, on the node's processor [ps].
    softmax : int
        Operators per softmax of scores.
    queue : int
        Kernels that it can be ahead.
    """

    framework: Framework
    operator_ps: int
    again_ps: int
    node_ps: int
    collective_ps: int
    message_ps: int
    tensor_ps: int
    microbatch_ps: int
    step_ps: int
    queue: int
    softmax: int = 1

    def kernels(self, kernels: Iterable[Kernel]) -> Issue:
        """Return the host time to issue kernels."""
        own = list(kernels)
        if self.framework.whole:
            forward = any(kernel.part == "forward" for kernel in own)
            return Issue(self.operator_ps if forward else self.node_ps, 1)
        count = sum(map(self._operators, own))
        return Issue(sum(self._time(kernel) for kernel in own), count)

    def steps(self, steps: Iterable[Step]) -> Issue:
        """Return the host time to issue steps, including collectives."""
        own = list(_each(steps))
        work = self.kernels(step for step in own if isinstance(step, Kernel))
        calls = sum(isinstance(step, Comm) for step in own)
        return Issue(work.time_ps + calls * self.collective_ps, work.launches + calls)

    def _operators(self, kernel: Kernel) -> int:
        if kernel.name.startswith((SUMMED, JOINED)):
            return 0
        return self.softmax if kernel.name.startswith(SOFTMAX) else 1

    def _time(self, kernel: Kernel) -> int:
        count = self._operators(kernel)
        if kernel.part == "forward":
            return count * self.operator_ps
        if kernel.useful == 0:
            # Recomputed: an operator of the forward pass, and the overhead of checkpointing.
            return count * (self.operator_ps + self.again_ps)
        return count * self.node_ps


def _each(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps, with the two rows of parallel steps in sequence."""
    for step in steps:
        if isinstance(step, Beside):
            yield from _each((*step.one, *step.two))
        else:
            yield step


def host_of(spec: HostSpec, fabric: Fabric, shard: Shard, heads: int) -> HostTimes | None:
    """Return the host of a workload's ranks, or None if issuing costs no time.

    Parameters
    ----------
    heads : int
        Attention heads of a rank; 0 is no attention.
    """
    if spec.framework == "none":
        return None
    own = FRAMEWORKS[spec.framework]
    pace = _pace(fabric)

    def ps(figure: Figure) -> int:
        return round(parse_time(str(figure.value)) / pace)

    operator, node, again = ps(own.operator), ps(own.node), ps(own.again)
    if spec.per_operator is not None:
        # The user's measurement sets the speed of this host for both passes.
        ratio = spec.per_operator / max(1, operator)
        operator, node, again = spec.per_operator, round(node * ratio), round(again * ratio)
    queue = LAUNCH_QUEUE.value
    assert isinstance(queue, int)
    return HostTimes(
        framework=own,
        operator_ps=operator,
        again_ps=again,
        node_ps=node,
        collective_ps=ps(own.collective),
        message_ps=ps(own.message),
        tensor_ps=ps(own.tensor),
        microbatch_ps=ps(own.microbatch) + spec.data_loading,
        step_ps=ps(own.step),
        queue=spec.queue or queue,
        softmax=_softmax(own, shard, heads),
    )


def kernels_by(spec: HostSpec) -> tuple[bool, bool]:
    """Return two flags: separate kernels for sums of gradients, and eager kernels."""
    own = FRAMEWORKS.get(spec.framework)
    return (False, False) if own is None else (own.sums, own.eager)


def _softmax(own: Framework, shard: Shard, heads: int) -> int:
    fits = shard.batch * heads % SHAPES == 0 and shard.sequence <= LONGEST_FUSED
    return 1 if fits else own.unfused


def _pace(fabric: Fabric) -> float:
    """Return the speed of the first known processor relative to the reference; 1 if unknown."""
    for node in fabric.nodes:
        if node.host is not None and node.model in PROCESSORS:
            figure = PROCESSORS[node.model].pace
            assert isinstance(figure.value, float)
            return figure.value
    return 1.0
