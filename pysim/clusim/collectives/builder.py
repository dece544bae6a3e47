"""Builder of schedules of several collectives, messages and kernels, as in training steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, Unpack

from clusim.base.errors import InputError, ScheduleError
from clusim.base.records import dataclass
from clusim.collectives.algorithms.p2p import write_send
from clusim.collectives.api import Options, emit, make_call
from clusim.collectives.onesided import one_sided, put_call, signal_call
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.collective_writer import CollectiveWriter
from clusim.schedule.ir import CollectiveCall, Schedule, Task
from clusim.schedule.shapes import shape_of
from clusim.topology.model import Fabric


@dataclass(frozen=True, slots=True)
class _Half:
    """One side of a message until the other side is added."""

    end: Literal["send", "recv"]
    task: int
    bytes: int


class _SignalWait(NamedTuple):
    """A moment after signals `first` to `last` - 1 of a pair: sender and receiver."""

    task: int
    pair: tuple[int, int]
    first: int
    last: int


class ScheduleBuilder(ProgramBuilder):
    """A schedule under construction: tasks on streams of ranks.

    Tasks of one rank and stream run in the order in which they are added; streams run side by side. Every method
    that adds something returns the index of its task (a tuple of them for a collective), to be named in `after` or
    in `wait`.

    Examples
    --------
    >>> builder = ScheduleBuilder(2)
    >>> forward = [builder.kernel(rank, compute_ps=10**9) for rank in range(2)]
    >>> done = builder.collective("allreduce", 1 << 20, after={0: forward[:1], 1: forward[1:]})
    >>> for rank in range(2):
    ...     builder.wait(rank, done[rank])
    >>> schedule = builder.build()
    """

    def __init__(self, target: Fabric | int, name: str = "schedule") -> None:
        super().__init__(
            target if isinstance(target, int) else target.num_ranks, name
        )
        self.target = target
        self._open: dict[tuple[int, int, int], deque[_Half]] = {}
        self._signals: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._waits_for_signals: list[_SignalWait] = []

    def collective(
        self,
        operation: str,
        bytes: int,
        *,
        algorithm: str | None = None,
        stream: str = "comm0",
        after: Mapping[int, Iterable[int]] | None = None,
        **options: Unpack[Options],
    ) -> tuple[int, ...]:
        """Add a collective to `stream` of every rank of its group; `after` are tasks it waits for, by rank."""
        group = options.get("ranks")
        ranks = range(self.num_ranks) if group is None else group
        deps = [tuple((after or {}).get(rank, ())) for rank in ranks]
        return emit(
            self,
            self.target,
            operation,
            algorithm,
            bytes,
            stream=stream,
            after=deps,
            **options,
        )

    def send(
        self,
        rank: int,
        peer: int,
        bytes: int,
        *,
        tag: int = 0,
        stream: str = "p2p",
        after: Iterable[int] = (),
    ) -> int:
        """Add a send of `bytes` from `rank` to `peer`; the peer must receive with the same tag and size."""
        return self._half("send", (rank, peer, tag), bytes, stream, after)

    def recv(
        self,
        rank: int,
        peer: int,
        bytes: int,
        *,
        tag: int = 0,
        stream: str = "p2p",
        after: Iterable[int] = (),
    ) -> int:
        """Add a receive at `rank` of `bytes` from `peer`."""
        return self._half("recv", (peer, rank, tag), bytes, stream, after)

    def put(
        self,
        rank: int,
        peer: int,
        bytes: int,
        *,
        stream: str = "rma",
        after: Iterable[int] = (),
    ) -> int:
        """Add a one-sided write of `bytes` from `rank` to the memory of `peer`, without CTAs on either side.

        Its task ends when the data have left; when they have arrived, the peer counts a signal of `rank`. Puts and
        signals of a stream to the same peer arrive in order.
        """
        return self._one_sided(
            put_call(self.target, (rank, peer), bytes), stream, after
        )

    def signal(
        self, rank: int, peer: int, *, stream: str = "rma", after: Iterable[int] = ()
    ) -> int:
        """Add a signal of `rank` at `peer`, which arrives after the earlier puts of its stream to that peer."""
        return self._one_sided(signal_call(self.target, (rank, peer)), stream, after)

    def wait_signal(
        self,
        rank: int,
        peer: int,
        count: int = 1,
        *,
        stream: str = "rma",
        after: Iterable[int] = (),
    ) -> int:
        """Add a moment of `rank` after the next `count` signals of `peer`.

        Signals count in the order in which they are added, before or after the wait; a signal counts for one wait.
        """
        if count < 1:
            raise InputError(
                f"rank {rank}: a wait for {count} signals; must be >= 1"
            )
        task = self.marker(rank, f"signal of {peer}", stream=stream, after=after)
        pair = peer, rank
        first = max(
            (w.last for w in self._waits_for_signals if w.pair == pair), default=0
        )
        self._waits_for_signals.append(_SignalWait(task, pair, first, first + count))
        return task

    def _one_sided(
        self, call: CollectiveCall, stream: str, after: Iterable[int]
    ) -> int:
        """Write a put or a signal, and count its arrival."""
        task, memory = one_sided(self, call, stream, after)
        rank, peer = call.ranks
        self._signals[rank, peer].append(memory)
        return task

    def _count_signals(self) -> None:
        """Let every wait depend on its signals."""
        for task, (src, dst), first, last in self._waits_for_signals:
            sent = self._signals[src, dst]
            if len(sent) < last:
                raise ScheduleError(
                    f"rank {dst} waits for signal {last} of rank {src}, which sends {len(sent)}; add the others"
                )
            waiting = self._tasks[task]
            deps = tuple(sorted({*waiting.deps, *sent[first:last]}))
            self._tasks[task] = replace(waiting, deps=deps)

    def _half(
        self,
        end: Literal["send", "recv"],
        key: tuple[int, int, int],
        bytes: int,
        stream: str,
        after: Iterable[int],
    ) -> int:
        rank = key[0] if end == "send" else key[1]
        peer = key[1] if end == "send" else key[0]
        task = self.task(Task("program", rank, stream, name=f"{end} {peer}"), after)
        waiting = self._open.setdefault(key, deque())
        if waiting and waiting[0].end != end:
            self._join(key, waiting.popleft(), _Half(end, task, bytes))
        else:
            waiting.append(_Half(end, task, bytes))
        return task

    def _join(self, key: tuple[int, int, int], first: _Half, second: _Half) -> None:
        """Write the programs of a message after both sides were added."""
        if first.bytes != second.bytes:
            raise ScheduleError(
                f"message {key[0]} -> {key[1]} tag {key[2]}: {first.end} of {first.bytes} bytes meets"
                f" {second.end} of {second.bytes}; use the same size"
            )
        fabric = None if isinstance(self.target, int) else self.target
        options: Options = {"ranks": key[:2], "dtype": "uint8"}
        call = make_call(self.target, "send", "direct", first.bytes, options)
        index = self.call(call)
        tasks = (
            (first.task, second.task)
            if first.end == "send"
            else (second.task, first.task)
        )
        for task in tasks:
            self.assign(task, index)
        write_send(
            CollectiveWriter(
                self,
                call,
                shape_of(
                    call.protocol, protocols=fabric.protocols if fabric else None
                ),
                tasks,
            ),
            fabric,
        )

    def build(self) -> Schedule:
        """Return the checked schedule; every send must have met its receive."""
        for (src, dst, tag), waiting in self._open.items():
            if waiting:
                missing = "recv" if waiting[0].end == "send" else "send"
                raise ScheduleError(
                    f"message {src} -> {dst} tag {tag}: {waiting[0].end} without {missing}; add the {missing}"
                )
        self._count_signals()
        return super().build()
