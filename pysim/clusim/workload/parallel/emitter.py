"""Writer of layer steps: kernels on the compute stream, one collective stream per dimension.

All ranks of a pipeline stage execute the same steps in parallel. Consecutive kernels become one task
that lasts the sum of their times; the engine lengthens it when communication occupies SMs or memory
bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from clusim.base.errors import ClusimError
from clusim.collectives import ScheduleBuilder
from clusim.collectives.algorithms.sharp import uses_switches
from clusim.nccl.choice import Communicators
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import Site
from clusim.topology.model import Fabric
from clusim.workload.host import HostThreads, Issue
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Beside, Comm, Layer, Step, backward_steps
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.checks import Uneven, write_uneven
from clusim.workload.parallel.fold import Folder
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.volumes import (
    SpannedMachines,
    Switched,
    Volume,
    legs_of,
)
from clusim.workload.pipeline_schedules import Action
from clusim.workload.spec import complain

Tails = dict[int, tuple[int, ...]]

Block = tuple[list[Step], tuple[str, tuple[int, ...]]]
"""Consecutive steps, and the key that distinguishes them from those of other blocks."""

STREAM = dict.fromkeys(
    ("replica", "expert_replica", "shard", "expert_shard", "copy", "expert_copy"),
    "data",
)

_CHOSEN = {
    "channels",
    "protocol",
    "algorithm",
}  # of a workload, in place of the library's choice


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collective or message of a dimension, as far as the parallelism determines it.

    Attributes
    ----------
    bytes : int
        Size as in `clusim.schedule.CollectiveCall` [bytes].
    algorithm, dtype : str or None
        None uses the workload's setting.
    channels, protocol : int and str
        With 0 channels the library chooses both.
    """

    dim: str
    operation: str
    bytes: int
    name: str = ""
    algorithm: str | None = None
    dtype: str | None = None
    channels: int = 0
    protocol: str = "simple"


@dataclass
class Emitter:
    """Writer of the steps of a plan into a schedule.

    Attributes
    ----------
    tail : dict
        Tasks that the next kernel of a rank waits for.
    traffic : dict
        Traffic of each dimension.
    flops : int
        Operations of all kernels, recomputation included.
    only : frozenset of int or None
        Ranks to write; groups of other ranks are omitted. None writes all.
    nccl : Communicators or None
        Plans by NCCL, used if the workload requests them and does not specify how a dimension communicates.
    host : HostThreads or None
        Host threads that issue the work; with None, issuing costs no time.
    """

    plan: ParallelPlan
    builder: ScheduleBuilder
    folder: Folder | None = None
    only: frozenset[int] | None = None
    tail: Tails = field(default_factory=dict)
    traffic: dict[str, Volume] = field(default_factory=dict)
    flops: int = 0
    nccl: Communicators | None = None
    host: HostThreads | None = None
    _open: dict[tuple[int, str], Tails] = field(default_factory=dict)
    _groups: dict[tuple[str, int], list[tuple[int, ...]]] = field(
        default_factory=dict
    )
    _backward: dict[int, list[Step]] = field(default_factory=dict)
    _times: dict[Kernel, int] = field(default_factory=dict)
    _launched: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the stragglers and the load of experts."""
        workload = self.plan.workload
        self._random = random.Random(workload.stragglers.seed)
        self._slow = {
            int(rank): factor for rank, factor in workload.stragglers.ranks.items()
        }
        self._jitter = workload.stragglers.jitter
        self.loads = self.plan.loads
        self._loads = self._load_of_ranks()
        self._zones = zones_of(self.plan.fabric)
        if self.nccl is None and workload.collectives == "nccl":
            self.nccl = _communicators(self.plan.fabric)

    @property
    def uniform(self) -> bool:
        """True if the same kernels always last equally long on all ranks."""
        return not self._slow and not self._jitter and len(set(self.loads)) <= 1

    def groups(self, dim: str, stage: int) -> list[tuple[int, ...]]:
        """Return the groups of a dimension in a stage, without groups of one."""
        key = (dim, stage)
        if key not in self._groups:
            result = [
                group
                for group in self.plan.mesh.groups(dim, stage)
                if len(group) > 1
            ]
            if self.only is not None:
                result = [group for group in result if set(group) <= self.only]
            self._groups[key] = result
        return self._groups[key]

    def ranks(self, stage: int) -> list[int]:
        """Return the ranks of a stage that are written."""
        return [
            r
            for r in self.plan.mesh.stage(stage)
            if self.only is None or r in self.only
        ]

    def coupled_ranks(self, stage: int) -> list[tuple[int, ...]]:
        """Return the sets of ranks of a stage that communicate within a microbatch."""
        return self.plan.mesh.coupled_ranks(stage)

    def backward(self, layer: Layer) -> list[Step]:
        """Return the backward steps of a layer, recomputation included."""
        if id(layer) not in self._backward:
            self._backward[id(layer)] = backward_steps(layer)
        return self._backward[id(layer)]

    def run(self, stage: int, steps: Iterable[Step], name: str) -> None:
        """Add `steps` on all ranks of a stage; communication still open at the end is waited for."""
        ranks, pending = self.ranks(stage), []
        for step in steps:
            if isinstance(step, Kernel):
                pending.append(step)
                continue
            self.kernels(ranks, pending, name)
            pending = []
            if isinstance(step, Comm):
                self._communicate(stage, step)
            elif isinstance(step, Beside):
                self._interleave(stage, step, name)
            else:
                self.join(self._open.pop((stage, step.key), {}))
        self.kernels(ranks, pending, name)

    def _interleave(self, stage: int, both: Beside, name: str) -> None:
        """Interleave two rows of steps at each communication; each row waits only for itself."""
        before = dict(self.tail)
        tails = [dict(before), dict(before)]
        rows = [_turns(both.one), _turns(both.two)]
        for turn in zip_longest(*rows, fillvalue=()):
            for index, steps in enumerate(turn):
                self.tail = tails[index]
                self.run(stage, steps, name)
        self.tail = {
            rank: tuple(
                dict.fromkeys((*tails[0].get(rank, ()), *tails[1].get(rank, ())))
            )
            for rank in tails[0] | tails[1]
        }

    def kernels(
        self, ranks: Sequence[int], kernels: Sequence[Kernel], name: str
    ) -> None:
        """Add one task with these kernels to every rank."""
        if not kernels:
            return
        flops = sum(kernel.flops for kernel in kernels)
        plain, loaded = (
            sum(self._time(k) for k in kernels if k.expert == expert)
            for expert in (False, True)
        )
        hbm = sum(map(self.plan.chip.moved_bytes, kernels))
        issue = self.host.host.kernels(kernels) if self.host is not None else None
        for rank in ranks:
            load = self._loads.get(rank, 1.0) if loaded else 1.0
            time_ps = (plain + loaded * load) * self._slow.get(rank, 1.0)
            if self._jitter:
                time_ps *= max(0.1, self._random.gauss(1.0, self._jitter))
            host = self._issue(rank, issue, name)
            task = self.builder.kernel(
                rank,
                compute_ps=max(1, round(time_ps)),
                hbm_bytes=hbm,
                name=name,
                after=self.tail.get(rank, ()),
            )
            self._behind(rank, task, host, issue)
            self.flops += flops

    def _issue(self, rank: int, issue: Issue | None, name: str) -> tuple[int, ...]:
        """Add the host work for a run of kernels; for a pass launched at once, only for the first."""
        if self.host is None or issue is None:
            return ()
        if self.host.host.framework.whole:
            if self._launched.get(rank) == name:
                return ()
            self._launched[rank] = name
        return (self.host.issue(rank, issue, name),)

    def _behind(
        self, rank: int, task: int, host: tuple[int, ...], issue: Issue | None
    ) -> None:
        """Make the next kernels wait for a task of the GPU, and for the host that issued it."""
        if self.host is not None and issue is not None and host:
            self.host.record_launches(rank, task, issue.launches)
        self.tail[rank] = (task, *host)

    def busy(self, ranks: Iterable[int], time_ps: int, name: str) -> None:
        """Add host work other than issuing kernels, before the hosts continue."""
        if self.host is None or not time_ps:
            return
        for rank in ranks:
            task = self.host.issue(rank, Issue(time_ps, 0), name)
            self.tail[rank] = (*self.tail.get(rank, ()), task)

    def synchronize(self, ranks: Iterable[int], name: str = "") -> None:
        """Make hosts wait until their GPUs are idle; a `name` marks that time."""
        if self.host is None:
            return
        for rank in ranks:
            if name:
                after = self.tail.get(rank, ())
                self.tail[rank] = (self.builder.marker(rank, name, after=after),)
            self.host.wait(rank, self.tail.get(rank, ()))

    def _time(self, kernel: Kernel) -> int:
        if kernel not in self._times:
            self._times[kernel] = self.plan.chip.time_ps(kernel)
        return self._times[kernel]

    def _load_of_ranks(self) -> dict[int, float]:
        mesh = self.plan.mesh
        if all(load == 1 for load in self.loads):
            return {}
        groups = [
            group
            for stage in range(mesh.pipeline)
            for group in mesh.groups("expert", stage)
        ]
        return {
            rank: load
            for group in groups
            for rank, load in zip(group, self.loads, strict=True)
        }

    def _communicate(self, stage: int, step: Comm) -> None:
        done: Tails = {}
        for group in self.groups(step.dim, stage):
            paced = self._pace(group, step)
            for leg in legs_of(step, group, self._zones):
                exchange = Exchange(
                    step.dim,
                    step.operation,
                    leg.bytes,
                    step.name,
                    algorithm=self._copy_algorithm(step, leg.ranks),
                    channels=leg.channels,
                    protocol=leg.protocol,
                )
                for rank, tasks in self.collective(
                    exchange, leg.ranks, leg.stream
                ).items():
                    done[rank] = (*done.get(rank, ()), *tasks, *paced.pop(rank, ()))
        if step.key:
            self._open[stage, step.key] = done
        else:
            self.join(done)

    def _copy_algorithm(self, step: Comm, ranks: Sequence[int]) -> str | None:
        """Return the algorithm of copy engines for their messages in a node without settings of the workload."""
        options = self._options(dim_of(step.dim), step.operation, step.bytes)
        inside = len({self._zones[rank] for rank in ranks}) == 1
        return (
            "copy-engines"
            if step.copies and inside and not _CHOSEN & {*options}
            else None
        )

    def _pace(self, group: Sequence[int], step: Comm) -> Tails:
        """Add delays of the minimum CTA time of a communication, parallel to its messages."""
        result: Tails = {}
        for rank in group if step.least_ps else ():
            task = self.builder.delay(
                rank,
                step.least_ps,
                stream=f"{step.dim} pace",
                name=step.name,
                after=self.tail.get(rank, ()),
            )
            result[rank] = (task,)
        return result

    def join(self, done: Tails) -> None:
        """Make the next kernels of ranks wait for these tasks."""
        for rank, tasks in done.items():
            self.tail[rank] = (*self.tail.get(rank, ()), *tasks)

    def collective(
        self,
        exchange: Exchange,
        group: Sequence[int],
        stream: str = "",
        after: Tails | None = None,
    ) -> Tails:
        """Add a collective of a group after its ranks' previous work; return its tasks by rank."""
        operation, size_bytes = exchange.operation, exchange.bytes
        dim = dim_of(exchange.dim)
        options = self._options(dim, operation, size_bytes)
        options["ranks"] = tuple(group)
        if exchange.dtype is not None and operation != "send":
            options["dtype"] = exchange.dtype
        if exchange.algorithm is not None:
            options["algorithm"] = exchange.algorithm
        if exchange.channels:
            options |= {"channels": exchange.channels, "protocol": exchange.protocol}
        experts = operation == "alltoall" and dim == "expert"
        if experts and len(set(self.loads)) == 1:
            size_bytes = round(size_bytes * self.loads[0])
        size = _round_up(size_bytes, len(group) * 16 if operation != "send" else 16)
        waits = {rank: (after or self.tail).get(rank, ()) for rank in group}
        self._enqueue(exchange, waits)
        tally = self.traffic.setdefault(dim, Volume())
        tasks: Sequence[int]
        if experts and len(set(self.loads)) > 1 and len(group) == len(self.loads):
            back = exchange.name.startswith(
                ("combine", "pooled")
            ) != exchange.name.endswith("gradient")
            uneven = Uneven(group, size, self.loads, back)
            tasks, sent = write_uneven(
                self.builder, self.plan.fabric, uneven, stream or dim, waits
            )
            tally.calls, tally.sent_bytes = tally.calls + 1, tally.sent_bytes + sent
        else:
            try:
                tasks, chosen = self._write(
                    operation, size, stream or dim, waits, options
                )
            except ClusimError as error:
                if self.plan.workload.communicator(dim) is None:
                    raise
                raise complain(
                    self.plan.workload, ("communicators", dim), str(error)
                ) from None
            dtype = options["dtype"] if self._by_nccl(operation, options) else ""
            kind = Switched(operation, chosen, size, len(group), dtype)
            tally.call(kind, group, self._machines(chosen, group))
        return {rank: (task,) for rank, task in zip(group, tasks, strict=True)}

    def _enqueue(self, exchange: Exchange, waits: Tails) -> None:
        """Enqueue a collective or message on the hosts of ranks; it then waits for that as well."""
        if self.host is None:
            return
        own_ps = self.host.host
        sends = exchange.operation == "send"
        enqueued = Issue(own_ps.message_ps if sends else own_ps.collective_ps, 1)
        for rank, tasks in waits.items():
            task = self.host.issue(
                rank, enqueued, exchange.name or dim_of(exchange.dim)
            )
            waits[rank] = (*tasks, task)

    def collectives(
        self,
        exchange: Exchange,
        groups: Sequence[tuple[int, ...]],
        stream: str = "",
        after: Tails | None = None,
    ) -> Tails:
        """Add one collective for each group, in parallel; ranks not in `after` wait for their last tasks."""
        result: Tails = {}
        for group in groups:
            waits = {r: (after or {}).get(r, self.tail.get(r, ())) for r in group}
            result |= self.collective(exchange, group, stream, waits)
        return result

    def _write(
        self,
        operation: str,
        size: int,
        stream: str,
        waits: Tails,
        options: dict[str, Any],
    ) -> tuple[Sequence[int], str]:
        """Add a collective by NCCL's plan or the workload's setting; return tasks and algorithm."""
        if self.nccl is None or not self._by_nccl(operation, options):
            tasks = self.builder.collective(
                operation, size, stream=stream, after=waits, **options
            )
        else:
            group, moved = (
                options["ranks"],
                CollectivePayload(operation, size, options["dtype"]),
            )
            after = [waits[rank] for rank in group]
            tasks = tuple(
                self.nccl.collective(Site(self.builder, stream, after), group, moved)
            )
        return tasks, self.builder.last_call.algorithm or ""

    def _by_nccl(self, operation: str, options: dict[str, Any]) -> bool:
        """True if NCCL chooses the algorithm, as the workload does not set it."""
        return (
            self.nccl is not None
            and not _CHOSEN & {*options}
            and self.nccl.knows(operation)
        )

    def _options(self, dim: str, operation: str, size_bytes: int) -> dict[str, Any]:
        """Return the workload's settings of a collective."""
        result: dict[str, Any] = {"dtype": self.plan.precision.dtype}
        spec = self.plan.workload.communicator(dim)
        if spec is not None:
            options = {
                "channels": spec.channels,
                "protocol": spec.protocol,
                "algorithm": (spec.algorithm or {}).get(operation),
            }
            result |= {
                name: value for name, value in options.items() if value is not None
            }
        if operation == "send":
            result.setdefault("channels", self._message_channels(size_bytes))
            result["dtype"] = "uint8"
        return result

    def _machines(self, algorithm: str, group: Sequence[int]) -> SpannedMachines:
        count = len({self._zones[rank] for rank in group})
        adding = algorithm != "sharp" or uses_switches(
            self.plan.fabric, tuple(group)
        )
        return SpannedMachines(count, adding)

    @staticmethod
    def _message_channels(size_bytes: int) -> int:
        """Return the channels of a message, at most 4 (NCCL: 2 to 4 per peer with one NIC), fewer if small."""
        return max(1, min(4, size_bytes >> 18))

    def message(
        self,
        exchange: Exchange,
        ends: tuple[int, int],
        after: Tails,
        stream: str = "",
    ) -> tuple[int, int]:
        """Add a message from one rank to another; return the tasks of sender and receiver."""
        src, dst = ends
        done = self.collective(
            exchange, ends, stream or f"{exchange.dim} {src}>{dst}", after
        )
        return done[src][0], done[dst][0]

    def between(
        self,
        pairs: Sequence[tuple[int, int]],
        size_bytes: int,
        action: Action,
        stream: str,
        *,
        both: bool,
    ) -> Tails:
        """Add parallel messages between stages, each after the work of its sender, or of `both`."""
        waits: Tails = {}
        for src, dst in pairs:
            waits[src] = self.tail.get(src, ())
            waits[dst] = self.tail.get(dst, ()) if both else waits[src]
        exchange = Exchange("pipeline", "send", size_bytes, str(action))
        # A sender that does not wait continues while its data are in buffers: a pause of fixed length cannot model
        # it.
        write = self.written_messages if both else self.messages
        return write(exchange, pairs, waits, stream)

    def messages(
        self,
        exchange: Exchange,
        pairs: Sequence[tuple[int, int]],
        waits: Tails,
        stream: str,
    ) -> Tails:
        """Add parallel messages of equal size; the two ranks of a message wait for the same tasks."""
        return self.written_messages(exchange, pairs, waits, stream)

    def written_messages(
        self,
        exchange: Exchange,
        pairs: Sequence[tuple[int, int]],
        waits: Tails,
        stream: str,
    ) -> Tails:
        """Add parallel messages of equal size, one for each pair of ranks."""
        done: Tails = {}
        for pair in pairs:
            pair_waits = {rank: waits[rank] for rank in pair}
            tasks = self.message(exchange, pair, pair_waits, stream)
            done |= {rank: (task,) for rank, task in zip(pair, tasks, strict=True)}
        return done

    def folds(self, *, in_parallel: bool = False) -> bool:
        """True if equal blocks are replicated, with `in_parallel` also those parallel to reductions."""
        return False

    def blocks(
        self, stage: int, blocks: Sequence[Block], prefix: Sequence[Step], name: str
    ) -> None:
        """Add the blocks of a pass, the first of them after `prefix`."""
        if not self.folds():
            self.run(
                stage,
                [*prefix, *(step for steps, _ in blocks for step in steps)],
                name,
            )
            return
        for steps, (kind, ids) in blocks:
            with_prefix = [*prefix, *steps] if prefix else steps
            self.block(stage, with_prefix, (kind, len(prefix), ids), name)
            prefix = []

    def block(self, stage: int, steps: Sequence[Step], key: Any, name: str) -> None:
        """Add the steps of a block; blocks with the same `key` are equal."""
        self.run(stage, steps, name)

    def optimizer(
        self, ranks: Iterable[int], elements: int, name: str = "optimizer"
    ) -> None:
        """Add an optimiser step over this number of parameters."""
        if elements > 0:
            self.kernels(tuple(ranks), [self.plan.optimizer.kernel(elements)], name)


@lru_cache(maxsize=2)
def _communicators(fabric: Fabric) -> Communicators:
    """Return NCCL's communicators on a topology, cached so that searches are not repeated."""
    return Communicators(fabric)


def _turns(steps: Iterable[Step]) -> list[list[Step]]:
    """Split steps after every communication that the next step waits for."""
    result: list[list[Step]] = [[]]
    for step in steps:
        result[-1].append(step)
        if isinstance(step, Comm) and not step.key:
            result.append([])
    return result


def dim_of(dim: str) -> str:
    """Return the dimension in reports and settings for groups of `dim`."""
    return STREAM.get(dim, dim)


def _round_up(size: int, unit: int) -> int:
    """Return a size rounded up to a multiple of `unit`, at least one `unit`."""
    return max(unit, -(-size // unit) * unit)
