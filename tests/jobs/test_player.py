"""Laws of the player: order, kernels that share SMs, and calls that overlap."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from clusim.base.errors import InputError
from clusim.base.kept import SampleCache
from clusim.formats.recordings.model import Event, Group, Recording, tile
from clusim.jobs import joint
from clusim.jobs.joint import RATES_ERROR, JointTimes
from clusim.jobs.live import SeparateCalls
from clusim.jobs.model import CallWork, DelayWork, JobGraph, KernelWork, RankOperation, Work
from clusim.jobs.peers import groups_on, split_of, whole_groups
from clusim.jobs.player import ONE, BundleStart, CallBundle, JobTimes, Player, RunningKernel
from clusim.jobs.times import Times
from clusim.replays.api import replay_alike
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.simulation.setup import Setup
from jobs.cases import RELEASE, SYSTEM

SMS = 132
SUM = CallWork("allreduce", 1 << 20)


@dataclass
class HalvedCalls:
    """Times of calls of which two together progress at half of the rate each; records what is asked."""

    time_ps: int = 100
    held: int = 0
    most: int = 8
    apart: bool = False
    islands: list[tuple[BundleStart, ...]] = field(default_factory=list)

    def isolated_ps(self, bundle: CallBundle) -> int:
        return self.time_ps

    def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
        return not self.apart

    def ends_ps(self, island: Sequence[BundleStart]) -> list[int] | None:
        """One call after the other: the last end is that of fair sharing."""
        self.islands.append(tuple(island))
        if len(island) > self.most:
            return None
        ends, now_ps = [], 0
        for start in island:
            now_ps = max(now_ps, start.offset_ps) + self.time_ps
            ends.append(now_ps)
        return ends

    def rates16(self, bundles: Sequence[CallBundle]) -> list[int]:
        return [ONE // len(bundles)] * len(bundles)

    def held16(self, bundle: CallBundle) -> int:
        return self.held * ONE


def job_with(*operations: tuple[int, str, Work, tuple[int, ...], int]) -> JobGraph:
    """Return a job of rank, stream, work, dependencies and communicator of operations."""
    groups = [Group("one", (0, 1)), Group("other", (2, 3)), Group("all", (0, 1, 2, 3))]
    job = JobGraph("laws", 4, groups)
    for rank, stream, work, deps, group in operations:
        job.append(RankOperation(rank, stream, work, deps, group))
    return job


def player_of(job: JobGraph, calls: HalvedCalls, *, now_ps: int = 0, gap_ps: int = 0) -> Player:
    durations = [getattr(work, "time_ps", 0) for work in job.work]
    bundles = {
        at: CallBundle((job.members(at).ranks,), work)
        for at, work in enumerate(job.work)
        if isinstance(work, CallWork)
    }
    return Player(job, JobTimes(durations, bundles, SMS, gap_ps), calls, now_ps)


def random_job(seed: int, longest_ps: int = 90) -> JobGraph:
    """Return kernels, delays and calls of all ranks on three streams, with random dependencies."""
    rng = random.Random(seed)
    rows: list[tuple[int, str, Work, tuple[int, ...], int]] = []
    firsts: list[int] = []
    for number in range(30):
        time_ps = rng.randrange(longest_ps + 1)
        stream, group = rng.choice("abc"), 2
        works: tuple[Work, ...] = (KernelWork(time_ps), DelayWork(time_ps), SUM)
        work = rng.choice(works)
        before = rng.sample(range(number), min(number, rng.randrange(3)))
        firsts.append(len(rows))
        for rank in range(4):
            deps = tuple(firsts[other] + rank for other in before)
            rows.append((rank, stream, work, deps, group if work is SUM else -1))
    return job_with(*rows)


@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("seed", range(10))
def test_a_later_start_moves_all_ends(seed: int, most: int) -> None:
    job = random_job(seed)
    early, late = (
        player_of(job, HalvedCalls(most=most, held=9), now_ps=now_ps) for now_ps in (0, 12345)
    )
    early.play()
    late.play()
    assert late.ends_ps == {at: end_ps + 12345 for at, end_ps in early.ends_ps.items()}


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_left_after_zero_times(seed: int) -> None:
    job = random_job(seed, longest_ps=0)
    player = player_of(job, HalvedCalls(time_ps=0))
    assert player.play() == 0
    assert len(player.ends_ps) == len(job)


@pytest.mark.parametrize("seed", range(10))
def test_operations_follow_their_stream_and_dependencies(seed: int) -> None:
    job = random_job(seed)
    player = player_of(job, HalvedCalls())
    player.play()
    last: dict[tuple[int, str], int] = {}
    for at, key in enumerate(zip(job.rank, job.stream, strict=True)):
        before = [*job.deps[at], *([last[key]] if key in last else [])]
        time_ps = 100 if job.work[at] is SUM else getattr(job.work[at], "time_ps", 0)
        least_ps = max((player.ends_ps[other] for other in before), default=0) + time_ps
        assert player.ends_ps[at] >= least_ps
        if isinstance(job.work[at], DelayWork):
            assert player.ends_ps[at] == least_ps
        last[key] = at


def test_a_kernel_has_the_sms_that_communication_leaves() -> None:
    """A kernel of 100 ps beside a call of 50 ps on half of the SMs: 25 are done then, and 75 are left."""
    job = job_with((0, "k", KernelWork(100), (), -1), (0, "c", SUM, (), 0), (1, "c", SUM, (), 0))
    player = player_of(job, HalvedCalls(time_ps=50, held=SMS // 2))
    assert player.play() == 125
    bundles = {at: bundle._replace(time_ps=50) for at, bundle in player.needs.bundles.items()}
    free = replace(player.needs, bundles=bundles)
    assert Player(job, free, SeparateCalls({})).play() == 100


def test_two_calls_at_once_leave_to_a_kernel_what_both_leave() -> None:
    """With 33 of 132 SMs held by each of two calls, a kernel of 40 ps has the other half: it needs 80 ps."""
    rows = [(0, stream, SUM, (), group) for stream, group in (("a", 0), ("b", 2))]
    rows += [(rank, stream, SUM, (), g) for rank, stream, g in ((1, "a", 0), (1, "b", 2))]
    rows += [(rank, "b", SUM, (), 2) for rank in (2, 3)]
    job = job_with(*rows, (0, "k", KernelWork(40), (), -1))
    player = player_of(job, HalvedCalls(time_ps=500, held=33))
    player.play()
    assert player.ends_ps[len(rows)] == 80


@pytest.mark.parametrize("seed", range(10))
def test_kernels_of_a_rank_divide_its_sms(seed: int) -> None:
    """Kernels that start together end in the order of their work, and the last when all work is done."""
    rng = random.Random(seed)
    times = [rng.randrange(1000, 50_000) for _ in range(6)]
    job = job_with(
        *((0, f"k{at}", KernelWork(time_ps), (), -1) for at, time_ps in enumerate(times))
    )
    player = player_of(job, HalvedCalls())
    assert sum(times) <= player.play() <= sum(times) * 1.03
    assert sorted(range(6), key=player.ends_ps.__getitem__) == sorted(
        range(6), key=times.__getitem__
    )


def test_kernels_in_isolation_are_divided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a play grows with its operations, not with those in flight on other ranks: 3 x 10 divisions."""
    divided: list[int] = []
    settle = RunningKernel.settle

    def count(kernel: RunningKernel, now_ps: int, share16: int) -> None:
        divided.append(kernel.operation)
        settle(kernel, now_ps, share16)

    monkeypatch.setattr(RunningKernel, "settle", count)
    rows = [(rank, "a", KernelWork(10 + rank), (), -1) for _ in range(10) for rank in range(3)]
    player = player_of(job_with(*rows), HalvedCalls())
    assert player.play() == 120
    assert sorted(divided) == list(range(30))


def test_a_pause_is_before_everything_with_a_predecessor() -> None:
    rows = [(0, "a", DelayWork(10), (), -1), (0, "a", DelayWork(10), (), -1)]
    job = job_with(*rows, (0, "b", DelayWork(10), (1,), -1))
    player = player_of(job, HalvedCalls(), gap_ps=5)
    assert (player.play(), player.pauses_ps) == (40, 10)


def test_calls_of_a_communicator_run_in_sequence() -> None:
    """Also on different streams; calls of two communicators overlap."""
    same = [(rank, stream, SUM, (), 0) for stream in "ab" for rank in (0, 1)]
    sequence = player_of(job_with(*same), HalvedCalls())
    assert (sequence.play(), sequence.overlaps["exact"]) == (200, 0)
    other = [(rank, "b", SUM, (), 2) for rank in range(4)]
    overlap = player_of(job_with(*same[:2], *other), HalvedCalls())
    assert (overlap.play(), overlap.overlaps["exact"]) == (200, 1)


def test_equal_calls_of_disjoint_groups_are_one_entry() -> None:
    rows = [(rank, "a", SUM, (), rank // 2) for rank in range(4)]
    calls = HalvedCalls()
    player = player_of(job_with(*rows), calls)
    assert (player.play(), player.overlaps["exact"]) == (100, 0)
    assert calls.islands == [(BundleStart(0, CallBundle(((0, 1), (2, 3)), SUM)),)]
    # Calls that start later, or differ, are entries of their own.
    late = [(rank, "a", DelayWork(7), (), -1) for rank in (2, 3)]
    calls = HalvedCalls()
    player_of(job_with(*late, *rows), calls).play()
    assert [len(island) for island in calls.islands] == [1, 2]
    other = [*rows[:2], *((rank, "a", replace(SUM, bytes=8), (), 1) for rank in (2, 3))]
    calls = HalvedCalls()
    player_of(job_with(*other), calls).play()
    assert [len(island) for island in calls.islands] == [2]


def test_calls_without_common_wires_do_not_slow_each_other() -> None:
    """Calls of 100 ps, 40 ps apart, are islands of their own; a third that shares wires with both joins them."""
    late = [(rank, "b", DelayWork(40), (), -1) for rank in (2, 3)]
    rows = [(0, "a", SUM, (), 0), (1, "a", SUM, (), 0), *late]
    other = replace(SUM, bytes=8)
    rows += [(rank, "b", other, (), 1) for rank in (2, 3)]
    apart = player_of(job_with(*rows), HalvedCalls(apart=True))
    assert (apart.play(), apart.ends_ps[0], apart.overlaps) == (140, 100, {})

    class Crossed(HalvedCalls):
        def is_shared(self, one: CallBundle, other: CallBundle) -> bool:
            return not {*one.groups[0]}.isdisjoint(other.groups[0])

    last = [(rank, "c", DelayWork(60), (), -1) for rank in range(4)]
    last += [(rank, "c", replace(SUM, bytes=16), (), 2) for rank in range(4)]
    calls = Crossed()
    crossed = player_of(job_with(*rows, *last), calls)
    assert crossed.play() == 300
    assert [start.offset_ps for start in calls.islands[-1]] == [0, 40, 60]
    assert crossed.overlaps == {"exact": 1}


def test_groups_on_one_node_share_its_wires() -> None:
    calls = JointTimes(Setup("dgx-h100", nodes=3), Times(1 << 20, SampleCache(None)))
    first, same, second, across, others = (
        CallBundle((ranks,), SUM) for ranks in ((0, 1), (6, 7), (8, 9), (1, 9), (10, 18))
    )
    assert calls.is_shared(first, same)
    assert not calls.is_shared(first, second)
    assert calls.is_shared(first, across)
    assert calls.is_shared(across, others)
    assert not calls.is_shared(first, others)


def test_rates_divide_the_time_of_calls() -> None:
    """Two calls of 100 ps, 40 ps apart, at half of the rate together: 60 ps are left of the first after 40 ps."""
    late = [(rank, "b", DelayWork(40), (), -1) for rank in range(4)]
    rows = [(rank, "a", SUM, (), 0) for rank in (0, 1)]
    job = job_with(*rows, *late, *((rank, "b", SUM, (), 2) for rank in range(4)))
    player = player_of(job, HalvedCalls(most=1))
    assert player.play() == 200
    assert (player.ends_ps[0], player.overlaps) == (40 + 2 * 60, {"rates": 1})


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    job = job_with((0, "a", DelayWork(1), (1,), -1), (0, "b", DelayWork(1), (0,), -1))
    with pytest.raises(InputError, match="waits for a call without end"):
        player_of(job, HalvedCalls()).play()


def test_groups_of_a_job_and_on_few_nodes() -> None:
    assert whole_groups((0, 2), 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert whole_groups((0, 2), 6) is None
    assert whole_groups((0, 3, 4), 8) is None
    assert groups_on(2, range(0, 64, 8), 8) == tuple((gpu, 8 + gpu) for gpu in range(8))
    assert groups_on(2, range(4), 8) == tuple(tuple(range(at, at + 4)) for at in (0, 4, 8, 12))
    for ranks in (range(8), (0, 2), range(16)):
        machines, _ = split_of(ranks, 8)
        assert set(whole_groups(ranks, 16) or ()) == set(groups_on(2, ranks, 8)) or machines > 2


MiB = 1 << 20


class Row(NamedTuple):
    """Call of a rank, after a delay on its stream [us]."""

    stream: str
    operation: str
    size: int
    ranks: Sequence[int] = range(4)
    delay_us: int = 0


OVERLAPS = {
    "staggered": [
        Row("a", "allreduce", 32 * MiB),
        Row("b", "all_gather", 32 * MiB, delay_us=100),
    ],
    "three calls": [
        Row("a", "allreduce", 32 * MiB),
        Row("b", "all_gather", 32 * MiB, delay_us=100),
        Row("c", "reduce_scatter", 64 * MiB, delay_us=250),
    ],
    "crossing pairs": [
        Row("a", "allreduce", 32 * MiB, (0, 1)),
        Row("b", "allreduce", 32 * MiB, (0, 2)),
    ],
}


def overlapping(name: str, *, alike: bool) -> Recording:
    result = Recording("torch", name, 4, alike=alike)
    for rank in range(1 if alike else 4):
        for row in OVERLAPS[name]:
            if row.delay_us:
                pause_ps = row.delay_us * 10**6
                result.events.append(Event("delay", rank, row.stream, duration_ps=pause_ps))
            ranks = tile(row.ranks, rank)
            assert ranks is not None
            group = result.group(row.stream, ranks)
            called = {"operation": row.operation, "bytes": row.size, "group": group}
            result.events.append(Event("collective", rank, row.stream, sequence=1, **called))  # type: ignore[arg-type]
    return result.finish()


@pytest.mark.parametrize("name", OVERLAPS)
def test_islands_equal_the_complete_job_and_rates_are_near(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ReplayRequest((), topology=SYSTEM, version=RELEASE, gap="none", granularity=8192)
    complete_ps = replay_recording(overlapping(name, alike=False), asked).total_ps
    one = replay_alike(overlapping(name, alike=True), asked)
    assert one.total_ps == complete_ps
    assert "overlaps of calls of several communicators: 1 simulated together" in one.notes
    assert one.bounds_ps is not None
    assert one.bounds_ps[0] <= one.total_ps < one.bounds_ps[1]
    monkeypatch.setattr(joint, "MOST_CALLS", 1)
    for most in (joint.MOST_SETS, 0):  # by sets, and by pairs
        monkeypatch.setattr(joint, "MOST_SETS", most)
        rated = replay_alike(overlapping(name, alike=True), asked)
        assert rated.total_ps == pytest.approx(complete_ps, rel=RATES_ERROR)
        assert any("timed by their rates of progress" in note for note in rated.notes)


def test_overlaps_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(1 << 20, SampleCache(None))
    bundles = [CallBundle(((0, 1, 2, 3),), replace(SUM, bytes=size * MiB)) for size in (1, 2)]
    starts = [BundleStart(0, bundles[0]), BundleStart(1000, bundles[1])]
    first = JointTimes(Setup(SYSTEM), times)
    ends, rates = first.ends_ps(starts), first.rates16(bundles)
    monkeypatch.setattr(joint, "whole_of", None)
    again = JointTimes(Setup(SYSTEM), times)
    assert again.ends_ps(starts) == ends
    assert again.rates16(bundles[::-1]) == list(rates)[::-1]


def test_a_call_holds_at_most_the_sms_of_its_channels() -> None:
    """Its CTAs end one after the other, so that the mean is below their number."""
    bundle = CallBundle(((0, 1, 2, 3),), replace(SUM, bytes=8 * MiB))
    calls = JointTimes(Setup(SYSTEM), Times(8192, SampleCache(None)))
    channels = Setup(SYSTEM).communicators().of((0, 1, 2, 3)).comm.num_channels
    assert 0.5 * channels < calls.held16(bundle) / ONE <= channels
