"""Puts and signals of NCCL's log: groups between waits, their time, and a put beside collectives in a whole replay."""

from __future__ import annotations

from pathlib import Path

import pytest

import clusim
from clusim.collectives import ScheduleBuilder
from clusim.formats.logs import read_logs
from clusim.formats.logs.calls import CallTable, call_table
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from replays.samples import LogWriter

MIB = 1 << 20


def halo(ranks: int = 8, steps: int = 2, count: int = MIB) -> LogWriter:
    """Return the log of ranks that put to both neighbours, signal the next and wait, `steps` times."""
    log = LogWriter(ranks, release="2.30.7")
    log.init(rings=[list(range(ranks))])
    log.call("AllReduce", MIB)
    for _ in range(steps):
        for rank in range(ranks):
            log.one_sided("PutSignal", rank, (rank + 1) % ranks, count)
            log.one_sided("PutSignal", rank, (rank - 1) % ranks, count)
            log.one_sided("Signal", rank, (rank + 1) % ranks)
            log.one_sided("WaitSignal", rank)
    return log


def table_of(tmp_path: Path, log: LogWriter) -> CallTable:
    path = tmp_path / "nccl.log"
    path.write_text(log.text())
    return call_table(read_logs([str(path)]))


def test_puts_between_waits_are_one_call(tmp_path: Path) -> None:
    """Two puts and a signal of each rank, and the same again after the waits: one distinct call, twice."""
    table = table_of(tmp_path, halo())
    assert [table.distinct[number].operation for number in table.call] == [
        "allreduce",
        "puts",
        "puts",
    ]
    puts = table.distinct[1]
    assert not table.skipped
    assert puts.bytes == 2 * MIB, "the most that a rank sends or receives"
    sent = {(a, b, size) for a, b, size in puts.messages}
    assert sent == {
        each
        for rank in range(8)
        for each in (
            (rank, (rank + 1) % 8, MIB),
            (rank, (rank - 1) % 8, MIB),
            (rank, (rank + 1) % 8, 0),
        )
    }
    assert len(puts.messages) == 24


def test_ranks_without_a_log_are_assumed_symmetric(tmp_path: Path) -> None:
    log = halo()
    log.lines = [line for line in log.lines if "[0]" in line]
    table = table_of(tmp_path, log)
    assert len(table.distinct[1].messages) == 24
    assert table.assumed


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            ("PutSignal", 0, 9, MIB),
            "PutSignal of a root or peer that the communicator does not have",
        ),
        (("PutSignal", 0, 1, 0), "PutSignal of 0 elements"),
    ],
)
def test_impossible_puts_are_skipped_by_name(
    tmp_path: Path, line: tuple[str, int, int, int], why: str
) -> None:
    log = halo(steps=0)
    log.one_sided(*line)
    assert table_of(tmp_path, log).skipped == {why: 1}


def test_a_replayed_put_has_the_time_of_a_put(tmp_path: Path) -> None:
    """A put of rank 0, alone: the replay's time is that of the same put and wait in a schedule."""
    log = LogWriter(8, release="2.30.7")
    log.init(rings=[list(range(8))])
    log.one_sided("PutSignal", 0, 3, 4 * MIB)
    log.one_sided("WaitSignal", 3)
    path = tmp_path / "nccl.log"
    path.write_text(log.text())
    found = replay(ReplayRequest((str(path),), topology="dgx-h100"))
    (call,) = found.calls
    assert (call.operation, call.bytes, call.algorithm) == ("puts", 4 * MIB, "Put")
    fabric = clusim.load("dgx-h100")
    builder = ScheduleBuilder(fabric)
    builder.put(0, 3, 4 * MIB)
    builder.wait_signal(3, 0)
    assert call.kernel_ps == clusim.simulate(fabric, builder.build()).time_ps


def test_a_whole_replay_keeps_the_order_of_puts_and_collectives(tmp_path: Path) -> None:
    """All calls of a log in one run: each step of puts follows the one before, so two last longer than one."""
    times = []
    for steps in (1, 2):
        path = tmp_path / f"{steps}.log"
        path.write_text(halo(steps=steps, count=4 * MIB).text())
        found = replay(ReplayRequest((str(path),), topology="dgx-h100", whole=True, gap="none"))
        assert {call.operation: call.count for call in found.calls} == {
            "allreduce": 1,
            "puts": steps,
        }
        times.append(found.total_ps)
    wire_ps = 2 * 4 * MIB / 450e9 * 1e12
    assert times[1] - times[0] > wire_ps
