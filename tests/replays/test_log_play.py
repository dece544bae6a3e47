"""Laws of the play of a log: sequences, and calls of several communicators that slow each other."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.formats.logs.calls import CallTable, LoggedCall
from clusim.jobs.joint import RATES_ERROR
from clusim.jobs.live import SeparateCalls
from clusim.jobs.player import CallBundle
from clusim.replays import replay
from clusim.replays.logplay import play_log, timed_calls
from clusim.replays.placing import ReplayRequest
from replays.samples import LogWriter

MiB = 1 << 20


def random_table(seed: int, comms: int, streams: int) -> tuple[CallTable, list[CallBundle]]:
    """Return 60 calls of some communicators and streams, some without a time stamp, and their bundles."""
    rng = random.Random(seed)
    table, now_ns = CallTable(), 5
    for line in range(60):
        call = LoggedCall(rng.randrange(comms), "allreduce", rng.randrange(1, 5))
        now_ns += rng.randrange(300)
        stamp = rng.choice((-1, now_ns))
        table.add(call, rng.randrange(-1, streams), stamp, line)
    ranks = [(2 * comm, 2 * comm + 1) for comm in range(comms)]
    bundles = [
        CallBundle((ranks[call.comm],), call, rng.randrange(1, 200_000)) for call in table.distinct
    ]
    return table, bundles


def last_end_ps(table: CallTable, bundles: list[CallBundle], gap: str | int) -> int:
    """Return the end of calls that wait for those before them in their communicator and stream only."""
    ready: dict[tuple[str, int], int] = {}
    ends = [0]
    first_ns = min((stamp for stamp in table.time_ns if stamp >= 0), default=0)
    pause_ps = gap if isinstance(gap, int) else 0
    for number, stream, stamp in zip(table.call, table.stream, table.time_ns, strict=True):
        queues = [("comm", table.distinct[number].comm)]
        queues += [("stream", stream)] if stream >= 0 else []
        earliest_ps = (stamp - first_ns) * 1000 if gap == "logged" and stamp >= 0 else 0
        start_ps = max(earliest_ps, *(ready.get(queue, 0) for queue in queues))
        ends.append(start_ps + bundles[number].time_ps)
        ready |= dict.fromkeys(queues, ends[-1] + pause_ps)
    return max(ends)


@pytest.mark.parametrize("gap", ["none", "logged", 7000])
@pytest.mark.parametrize(("comms", "streams"), [(1, 3), (1, 0), (3, 3), (4, 0)])
@pytest.mark.parametrize("seed", range(5))
def test_calls_wait_for_their_communicator_and_stream(
    seed: int, comms: int, streams: int, gap: str | int
) -> None:
    """One communicator is summed in columns, several are played."""
    table, bundles = random_table(seed, comms, streams)
    time_ps, _ = play_log(table, gap, bundles, SeparateCalls({}))
    assert time_ps == last_end_ps(table, bundles, gap)


def test_calls_before_an_unknown_time_are_played() -> None:
    table, bundles = random_table(1, comms=1, streams=0)
    count = timed_calls(table, 2)
    assert 0 < count == table.call.index(2) < len(table.call)
    time_ps, _ = play_log(table, "none", bundles[:2], SeparateCalls({}))
    assert time_ps == sum(bundles[number].time_ps for number in table.call[:count])


def test_long_overlaps_are_played_in_linear_time() -> None:
    """Each of 20,000 calls overlaps the next one; in quadratic time this needs minutes."""
    table = CallTable()
    for number in range(20_000):
        table.add(LoggedCall(number % 2, "allreduce", 8), -1, number, number)
    bundles = [CallBundle(((0, 1),), call, 1500) for call in table.distinct]
    time_ps, overlaps = play_log(table, "logged", bundles, SeparateCalls({}))
    assert (time_ps, overlaps) == (19_999 * 1000 + 1500, {"rates": 1})


@pytest.mark.parametrize("comms", [1, 2])
def test_time_stamps_may_be_years_apart(comms: int) -> None:
    """3 * 10^7 s have more ps than 64 bits hold."""
    table = CallTable()
    for number, stamp_ns in enumerate((0, 3 * 10**16)):
        table.add(LoggedCall(number % comms, "allreduce", 8), -1, stamp_ns, number)
    bundles = [CallBundle(((0, 1),), call, 5) for call in table.distinct]
    time_ps, _ = play_log(table, "logged", bundles, SeparateCalls({}))
    assert time_ps == 3 * 10**19 + 5


def overlapping(tmp_path: Path, calls: int) -> ReplayRequest:
    """Return a log of two communicators of eight GPUs, each with its stream."""
    log = LogWriter(8)
    sizes = (4 * MiB, 1 * MiB, 8 * MiB)
    for comm in range(2):
        log.init(comm)
    for number in range(calls):
        log.call("AllReduce", sizes[number % 3] // 4, comm=0, stream=0)
        log.call("AllGather", sizes[-number % 3] // 64, comm=1, stream=1)
    path = tmp_path / "nccl.log"
    path.write_text(log.text())
    return ReplayRequest((str(path),), topology="dgx-h100", gap="none", granularity="quick")


@pytest.mark.parametrize(("calls", "way"), [(2, "simulated together"), (6, "rates of progress")])
def test_overlapping_communicators_are_near_the_job_as_one_run(
    tmp_path: Path, calls: int, way: str
) -> None:
    """Few calls by their starts, longer sequences by rates; both are apart from the time between kernels."""
    request = overlapping(tmp_path, calls)
    found, whole = replay(request), replay(replace(request, whole=True))
    between_ps = max(call.time_ps - call.kernel_ps for call in found.calls) * calls
    assert whole.total_ps * (1 - RATES_ERROR) <= found.total_ps
    assert found.total_ps <= whole.total_ps * (1 + RATES_ERROR) + between_ps
    assert found.total_ps > max(comm.time_ps for comm in found.communicators)
    assert any(way in note for note in found.notes)
