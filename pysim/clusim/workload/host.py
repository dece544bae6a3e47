"""Hosts of GPUs: issue of work by host threads, host memory, and traffic of a node's GPUs.

**Path to host memory** over PCIe and its switches, or NVLink-C2C. **Model** All GPUs of a node copy at
the same time, each to the nearest memory; a link or memory used by several GPUs is shared evenly. **Not
modelled** Other traffic on these links: that of NICs.

**Host threads** are tasks on a separate stream of the rank; issue times are in
`clusim.hardware.frameworks`. **Hardware** A host queues kernels on its GPU and continues; the GPU
processes the queue. A kernel starts once it is issued and its dependencies are complete; a full queue
blocks the host until a slot is free. Some calls wait until the GPU is idle. **Model** A pause on the
stream ``host`` for every run of kernels, block or collective. The work after a run waits for both, so a
step lasts as long as the slower of the two wherever they meet, and a host that is ahead stays ahead. A
run waits for the host of the previous run: its kernels can start while it is still being issued. **Not
modelled** The first kernel of a run starts when the host begins the run, not one operator later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.base.units import parse_time
from clusim.hardware import FRAMEWORKS, LAUNCH_QUEUE, PROCESSORS, Framework
from clusim.hardware.figures import Figure
from clusim.schedule.builder import ProgramBuilder
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric, Link
from clusim.workload.kernels import Kernel
from clusim.workload.layers import JOINED, SUMMED, Beside, Comm, Shard, Step
from clusim.workload.spec import HostSpec


def joins_gpus(link: Link) -> bool:
    """True if a link is NVLink among GPUs and their switches, and not to a host."""
    return link.format.startswith("nvlink") and "c2c" not in link.format


def peer_rates(fabric: Fabric) -> tuple[float, float]:
    """Return the first GPU's rates over NVLink (or PCIe) and over its node's network [B/s].

    All GPUs of a node share its network evenly; without a network the second rate equals the first.
    """
    by_name = {node.name: node for node in fabric.nodes}
    first = fabric.nodes[arrays_of(fabric).node_of(0)]
    rates: dict[bool, float] = {}
    out = 0.0
    for link in fabric.links:
        rate = float(link.rate.bytes_per_s * link.count)
        ends = by_name[link.a], by_name[link.b]
        if first in ends:
            nvlink = joins_gpus(link)
            rates[nvlink] = rates.get(nvlink, 0.0) + rate
        zones = {node.zone for node in ends}
        if first.zone in zones and len(zones) > 1:
            out += rate
    gpus = sum(
        node.kind == "gpu" and node.zone == first.zone for node in fabric.nodes
    )
    inside = rates.get(True) or rates.get(False) or out / gpus
    return inside, out / gpus or inside


TO_HOST = "copies to host"
"""Stream of all copies to the host, which run in sequence."""


@dataclass(frozen=True, slots=True)
class HostWay:
    """A GPU's share of the path to host memory when all GPUs of the node use it.

    Attributes
    ----------
    rate_Bps : float
        Copies in one direction [B/s].
    memory_Bps : float
        Its share of the host memory bandwidth for CPU kernels [B/s].
    """

    rate_Bps: float
    memory_Bps: float


def host_way(fabric: Fabric) -> HostWay:
    """Return the path of the first GPU to its host's memory."""
    by_name = {node.name: node for node in fabric.nodes}
    first = fabric.nodes[arrays_of(fabric).node_of(0)]
    neighbours: dict[str, list[tuple[str, Link]]] = {}
    for link in fabric.links:
        if joins_gpus(link):
            continue
        for one, two in ((link.a, link.b), (link.b, link.a)):
            if by_name[one].zone == by_name[two].zone == first.zone:
                neighbours.setdefault(one, []).append((two, link))
    used: Counter[int] = Counter()
    shared: Counter[str] = Counter()
    paths = {}
    for node in fabric.nodes:
        if node.kind != "gpu" or node.zone != first.zone:
            continue
        memory, links = _to_memory(
            node.name,
            neighbours,
            {n for n in neighbours if by_name[n].kind == "memory"},
        )
        paths[node.name] = memory, links
        used.update(id(link) for link in links)
        shared[memory] += 1
    memory, links = paths.get(first.name, ("", []))
    if not links:
        raise InputError(
            f"{fabric.name}: {first.name} is not connected to host memory"
        )
    rate = min(link.rate.bytes_per_s * link.count / used[id(link)] for link in links)
    end = by_name[memory].endpoint
    assert end is not None, "memories are endpoints"
    return HostWay(rate, end.mem_Bps * end.mem_efficiency / shared[memory])


def _to_memory(
    start: str, neighbours: dict[str, list[tuple[str, Link]]], memories: set[str]
) -> tuple[str, list[Link]]:
    """Return the nearest memory and the links to it; empty if it is unreachable."""
    reached: dict[str, list[Link]] = {start: []}
    row = [start]
    while row:
        following = []
        for name in row:
            if name in memories:
                return name, reached[name]
            for other, link in neighbours.get(name, ()):
                if other not in reached:
                    reached[other] = [*reached[name], link]
                    following.append(other)
        row = following
    return "", []


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
        launched = list(kernels)
        if self.framework.whole:
            forward = any(kernel.part == "forward" for kernel in launched)
            return Issue(self.operator_ps if forward else self.node_ps, 1)
        count = sum(map(self._operators, launched))
        return Issue(sum(self._time(kernel) for kernel in launched), count)

    def steps(self, steps: Iterable[Step]) -> Issue:
        """Return the host time to issue steps, including collectives."""
        ordered = list(_flatten_steps(steps))
        work = self.kernels(step for step in ordered if isinstance(step, Kernel))
        calls = sum(isinstance(step, Comm) for step in ordered)
        return Issue(
            work.time_ps + calls * self.collective_ps, work.launches + calls
        )

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


def _flatten_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps, with the two rows of parallel steps in sequence."""
    for step in steps:
        if isinstance(step, Beside):
            yield from _flatten_steps((*step.one, *step.two))
        else:
            yield step


def host_of(
    spec: HostSpec, fabric: Fabric, shard: Shard, heads: int
) -> HostTimes | None:
    """Return the host of a workload's ranks, or None if issuing costs no time.

    Parameters
    ----------
    heads : int
        Attention heads of a rank; 0 is no attention.
    """
    if spec.framework == "none":
        return None
    framework = FRAMEWORKS[spec.framework]
    pace = pace_of(fabric) * spec.speed

    def ps(figure: Figure) -> int:
        return round(parse_time(str(figure.value)) / pace)

    times = {f"{name}_ps": ps(figure) for name, figure in framework.named_figures()}
    if spec.per_operator is not None:
        # The user's measurement sets the speed of this host for both passes.
        given_ps = round(spec.per_operator / spec.speed)
        ratio = given_ps / max(1, times["operator_ps"])
        times["operator_ps"] = given_ps
        for name in ("node_ps", "again_ps"):
            times[name] = round(times[name] * ratio)
    times["microbatch_ps"] += round(spec.data_loading / spec.speed)
    queue = LAUNCH_QUEUE.value
    assert isinstance(queue, int)
    softmax = _softmax(framework, shard, heads)
    return HostTimes(
        framework=framework, **times, queue=spec.queue or queue, softmax=softmax
    )


def kernels_by(spec: HostSpec) -> tuple[bool, bool]:
    """Return two flags: separate kernels for sums of gradients, and eager kernels."""
    framework = FRAMEWORKS.get(spec.framework)
    return (False, False) if framework is None else (framework.sums, framework.eager)


def _softmax(framework: Framework, shard: Shard, heads: int) -> int:
    fits = shard.batch * heads % SHAPES == 0 and shard.sequence <= LONGEST_FUSED
    return 1 if fits else framework.unfused


def pace_of(fabric: Fabric) -> float:
    """Return the speed of the first known processor relative to the reference; 1 if unknown."""
    for node in fabric.nodes:
        if node.host is not None and node.model in PROCESSORS:
            figure = PROCESSORS[node.model].pace
            assert isinstance(figure.value, float)
            return figure.value
    return 1.0


HOST_STREAM = "host"
"""Stream of the tasks of host threads."""


class HostThreads:
    """Host threads of all ranks."""

    def __init__(self, host: HostTimes, builder: ProgramBuilder) -> None:
        self.host, self.builder = host, builder
        self._queues: dict[int, deque[tuple[int, int]]] = {}
        self._ahead: dict[int, int] = {}

    def issue(self, rank: int, work: Issue, name: str) -> int:
        """Add the host time for issuing work, after a wait for queue slots; return the task."""
        queue, ahead = (
            self._queues.setdefault(rank, deque()),
            self._ahead.get(rank, 0),
        )
        after: tuple[int, ...] = ()
        while queue and ahead + work.launches > self.host.queue:
            task, launches = queue.popleft()
            ahead -= launches
            after = (task,)
        self._ahead[rank] = ahead
        return self.builder.delay(
            rank, work.time_ps, stream=HOST_STREAM, name=f"host {name}", after=after
        )

    def record_launches(self, rank: int, task: int, launches: int) -> None:
        """Record that `task` holds this number of launches in the queue of a rank."""
        self._queues.setdefault(rank, deque()).append((task, launches))
        self._ahead[rank] = self._ahead.get(rank, 0) + launches

    def wait(self, rank: int, tasks: Iterable[int]) -> None:
        """Make the host of a rank wait until its GPU has completed `tasks`."""
        self.builder.wait(rank, tuple(tasks), stream=HOST_STREAM)
        self._queues.pop(rank, None)
        self._ahead.pop(rank, None)
