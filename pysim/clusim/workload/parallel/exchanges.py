"""Writer of the collectives and messages of a step, by the settings of the workload or NCCL's plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clusim.base.errors import ClusimError
from clusim.collectives.algorithms.sharp import uses_switches
from clusim.collectives.builder import ScheduleBuilder
from clusim.nccl.choice import Communicators
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import Site
from clusim.topology.model import Fabric
from clusim.workload.host import HostThreads, Issue
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.checks import Uneven, write_uneven
from clusim.workload.parallel.volumes import (
    SpannedMachines,
    Switched,
    Volume,
)
from clusim.workload.workload_file import complain

if TYPE_CHECKING:
    from clusim.workload.parallel.plan import ParallelPlan

Tails = dict[int, tuple[int, ...]]

STREAM = dict.fromkeys(
    ("replica", "expert_replica", "shard", "expert_shard", "copy", "expert_copy"),
    "data",
)

CHOSEN = frozenset(("channels", "protocol", "algorithm"))
"""Settings of a workload, in place of the library's choice."""


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
class ExchangeWriter:
    """Writer of the collectives and messages of a plan into a schedule.

    Attributes
    ----------
    tail : dict
        Tasks that the next kernel of a rank waits for.
    traffic : dict
        Traffic of each dimension.
    nccl : Communicators or None
        Plans by NCCL, used if the workload requests them and does not specify how a dimension communicates.
    host : HostThreads or None
        Host threads that issue the work; with None, issuing costs no time.
    """

    plan: ParallelPlan
    builder: ScheduleBuilder
    tail: Tails = field(default_factory=dict)
    traffic: dict[str, Volume] = field(default_factory=dict)
    nccl: Communicators | None = None
    host: HostThreads | None = None

    def __post_init__(self) -> None:
        """Read the load of experts and the nodes of ranks."""
        self.loads = self.plan.loads
        self._zones = zones_of(self.plan.fabric)
        if self.nccl is None and self.plan.workload.collectives == "nccl":
            self.nccl = _communicators(self.plan.fabric)

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
            and not CHOSEN & {*options}
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

    def join(self, done: Tails) -> None:
        """Make the next kernels of ranks wait for these tasks."""
        for rank, tasks in done.items():
            self.tail[rank] = (*self.tail.get(rank, ()), *tasks)


@lru_cache(maxsize=2)
def _communicators(fabric: Fabric) -> Communicators:
    """Return NCCL's communicators on a topology, cached so that searches are not repeated."""
    return Communicators(fabric)


def dim_of(dim: str) -> str:
    """Return the dimension in reports and settings for groups of `dim`."""
    return STREAM.get(dim, dim)


def _round_up(size: int, unit: int) -> int:
    """Return a size rounded up to a multiple of `unit`, at least one `unit`."""
    return max(unit, -(-size // unit) * unit)
