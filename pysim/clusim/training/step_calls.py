"""Times of the calls and blocks of a step's job, in isolation and beside others.

**Model** A call in isolation is a part (`clusim.training.parts`), simulated beside the kernels of its stage; kernels
progress at the reduced rate of that simulation. Two calls of a rank in flight progress at rates from one simulation of
each distinct pair, in isolation and together.
Slow-downs by several calls add up. The rates of a block and of calls beside it are those of its kernels and inner
calls, played once for each distinct set; within a block they are even.

**Parameters** Pairs are distinct by location, operation and size in powers of two. Groups on many nodes are
simulated on `MOST_NODES`, for their rates only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.jobs.model import JobGraph
from clusim.jobs.player import (
    ONE,
    BundleStart,
    CallBundle,
    CallIsland,
    JobTimes,
    Player,
)
from clusim.schedule.ir import Task
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.training.parts import StepPart, StepParts, rounded
from clusim.training.step_job import StepBlock, StepCall, StepWork

MOST_NODES = 2
"""Nodes of each call on which a pair is simulated; **assumed**: rates on more are those between two."""

GPU_SMS = 1 << 10
"""Parts of a GPU that calls hold and kernels share: its resolution only."""

SHARED_BELOW16 = ONE - ONE // 500
"""Progress of calls beside each other from which their wires are separate [2^-16]; **assumed**: 0.2 % is rounding."""

OUTLAST = 64
"""Duration of a call beside a block, relative to the block; **assumed**: long enough to outlast it."""


Timed = StepCall | StepBlock


@dataclass
class StepPlayer(Player):
    """Player of representative ranks: only calls of a rank share wires; equal calls are separate."""

    def _find_shared(self, bundle: CallBundle) -> list[CallIsland]:
        candidates = [
            call for rank in bundle.groups[0] for call in self._calls_on[rank]
        ]
        shared = [
            call.island
            for call in candidates
            if self.calls.is_shared(call.bundle, bundle)
        ]
        return [*dict.fromkeys(island for island in shared if island is not None)]

    def _join_equal(self, bundle: CallBundle, operations: Sequence[int]) -> None:
        return None


@dataclass
class StepTimer:
    """Times of calls and blocks, as `clusim.jobs.player.CallTimer`."""

    parts: StepParts
    _bundles: dict[Timed, CallBundle] = field(default_factory=dict)
    _classes: dict[Any, int] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _pairs: dict[tuple[Timed, Timed], tuple[int, ...]] = field(default_factory=dict)
    _beside: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def part(self, call: StepCall) -> StepPart:
        """Return the part of a call."""
        return self.parts.find(call.key, call.work, call.traffic_Bps)

    def play(self, work: StepWork) -> Array:
        """Play work; return the ends of its tasks [ps]."""
        tasks, durations, bundles = work.tasks, [], {}
        for at, (task, done) in enumerate(zip(tasks, work.works, strict=True)):
            durations.append(0 if isinstance(done, Timed) else done.time_ps)
            if isinstance(done, Timed):
                bundles[at] = self._bundle(done, task.rank)
        job = JobGraph(
            "steps",
            0,
            rank=array("q", [task.rank for task in tasks]),
            stream=[task.stream for task in tasks],
            work=work.works,
            deps=[task.deps for task in tasks],
            group=array("q", [task.call for task in tasks]),
        )
        player = StepPlayer(job, JobTimes(durations, bundles, GPU_SMS), self)
        player.play()
        return np.array([player.ends_ps[at] for at in range(len(tasks))], np.int64)

    def _bundle(self, work: Timed, rank: int) -> CallBundle:
        if work not in self._bundles:
            if isinstance(work, StepBlock):
                bundle = CallBundle(
                    ((rank,),), work, self._beside_block(work, ())[0]
                )
            else:
                bundle = CallBundle((work.shown,), work, self.part(work).time_ps)
            self._bundles[work] = bundle
        return self._bundles[work]

    def isolated_ps(self, bundle: CallBundle) -> int:
        """Return the time of a call or block in isolation [ps]."""
        return bundle.time_ps

    def ends_ps(self, island: Sequence[BundleStart]) -> Sequence[int] | None:
        """Return the time of a call alone [ps]; None for several, which are timed by rates."""
        return [island[0].bundle.time_ps] if len(island) == 1 else None

    def held16(self, bundle: CallBundle) -> int:
        """Return the part of a GPU that kernels lose beside a call [2^-16]; 0 for blocks."""
        if not isinstance(bundle.work, StepCall):
            return 0
        return round((1 - self.part(bundle.work).share) * GPU_SMS * ONE)

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        """Return True for calls and blocks of a representative rank that slow each other."""
        apart = set(one.groups[0]).isdisjoint(other.groups[0])
        return not apart and min(self._pair(one.work, other.work)) < SHARED_BELOW16

    def rates16(self, bundles: Sequence[CallBundle]) -> Sequence[int]:
        """Return the progress of each bundle beside the others [2^-16]."""
        result = []
        for one in bundles:
            sharing = [
                o.work for o in bundles if o is not one and self.is_shared(one, o)
            ]
            if isinstance(one.work, StepBlock) and sharing:
                result.append(self._block_rates(one.work, sharing)[0])
            else:
                slower = sum(
                    ONE / self._pair(one.work, other)[0] - 1 for other in sharing
                )
                result.append(int(ONE / (1 + slower)))
        return result

    def class_of(self, work: Any) -> int:
        """Return the number of works that are as long in isolation and as fast beside others."""
        if work not in self._classes:
            content = work
            if isinstance(work, StepCall):
                place = self.parts.content(work.key, work.ranks)
                content = repr(place), rounded(work.traffic_Bps)
            elif isinstance(work, StepBlock):
                rows = zip(
                    work.inner.tasks,
                    map(self.class_of, work.inner.works),
                    strict=True,
                )
                content = tuple(
                    (task.stream, done, task.deps) for task, done in rows
                )
            self._classes[work] = self._numbers.setdefault(
                content, len(self._numbers)
            )
        return self._classes[work]

    def _pair(self, one: Timed, other: Timed) -> tuple[int, ...]:
        """Return the rates of two works of a rank beside each other."""
        if (one, other) not in self._pairs:
            if isinstance(one, StepBlock):
                rates = self._block_rates(one, [other])
            elif isinstance(other, StepBlock) or repr(other.key) < repr(one.key):
                rates = self._pair(other, one)[::-1]
            else:
                rates = self._call_rates(one, other)
            self._pairs[one, other] = rates
        return self._pairs[one, other]

    def _block_rates(
        self, block: StepBlock, calls: Sequence[Any]
    ) -> tuple[int, ...]:
        """Return the progress of a block, and of the calls beside it, which outlast it."""
        (alone_ps,), (time_ps, *done_ps) = (
            self._beside_block(block, beside) for beside in ((), calls)
        )
        return tuple(
            min(ONE, max(1, ONE * ps // max(1, time_ps)))
            for ps in (alone_ps or 1, *done_ps)
        )

    def _beside_block(
        self, block: StepBlock, calls: Sequence[StepCall]
    ) -> tuple[int, ...]:
        """Return the time of a block beside calls, and the work that these do in it [ps]."""
        key = (self.class_of(block), *map(self.class_of, calls))
        if key not in self._beside:
            tasks, works = [*block.inner.tasks], [*block.inner.works]
            for call in calls:
                beside, rank = replace(call, shown=(tasks[0].rank,)), tasks[0].rank
                long_ps = OUTLAST * self._beside_block(block, ())[0]
                self._bundles[beside] = CallBundle((beside.shown,), beside, long_ps)
                tasks.append(
                    Task("program", rank, f"beside {len(tasks)}", call=len(tasks))
                )
                works.append(beside)
            ends = self.play(StepWork(tasks, works)).tolist()
            first = len(block.inner.tasks)
            time_ps = max(ends[:first], default=0)
            done = [long_ps - end_ps + time_ps for end_ps in ends[first:]]
            self._beside[key] = (time_ps, *done)
        return self._beside[key]

    def _call_rates(self, one: StepCall, other: StepCall) -> tuple[int, ...]:
        """Return the rates of two calls, simulated once for equal pairs."""
        ranks = self._pair_ranks(one, other)
        pair = one.resize(), other.resize()
        question = self.parts.content([call.key for call in pair], ranks), "pair"
        return tuple(
            self.parts.times.stored(question, lambda: self._simulated(pair, ranks))
        )

    def _pair_ranks(self, one: StepCall, other: StepCall) -> tuple[int, ...]:
        """Return the ranks of two calls on few nodes of each, on common nodes first."""
        zones, places = self.parts.zones, [one.ranks, other.ranks]
        nodes = [dict.fromkeys(zones[rank] for rank in ranks) for ranks in places]
        chosen: set[int] = set()
        for each in nodes:
            both_first = sorted(
                each, key=lambda node: not all(node in row for row in nodes)
            )
            chosen.update(both_first[:MOST_NODES])
        return tuple(
            dict.fromkeys(rank for rank in chain(*places) if zones[rank] in chosen)
        )

    def _simulated(
        self, pair: Sequence[StepCall], ranks: tuple[int, ...]
    ) -> tuple[int, int]:
        """Simulate two calls in isolation, one after the other, and then together."""
        works = [call.work for call in pair]
        writer, tasks = self.parts.write(ranks, [works[:1], works[1:], works])
        if not all(tasks):
            return ONE, ONE
        ends = result_of(
            self.parts.request(writer), RunOptions(bins=2, histories=False)
        ).tasks.end_ps
        first, second, *both = (int(ends[[*row]].max()) for row in tasks)
        until = max(1, min(both) - second)
        alone = zip((first, second - first), both, strict=True)
        rates = [
            (time_ps - (end_ps - second - until)) / until
            for time_ps, end_ps in alone
        ]
        one16, other16 = (round(ONE * min(1.0, max(0.01, rate))) for rate in rates)
        return one16, other16
