"""Replays of logs: calls, communicators, rings and trees, times, and what another machine changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.formats.logs.calls import call_table
from clusim.formats.logs.jobranks import job_ranks
from clusim.nccl import Settings, parse_version
from clusim.nccl.choice import Communicators
from clusim.replays import replay
from clusim.replays.channels import with_logged
from clusim.replays.placing import ReplayRequest
from replays.samples import LogWriter, job

TABLE = """\
# nThread 1 nGpus 1 minBytes 4194304 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0
# Using devices
{devices}
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     4194304       1048576     float     sum      -1    80.00   52.43   91.75       0    81.00   51.78   90.61       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 91.1
"""


def write(tmp_path: Path, log: LogWriter, extra: str = "") -> str:
    path = tmp_path / "nccl.log"
    path.write_text(log.text() + extra)
    return str(path)


def test_the_calls_of_a_log_are_replayed_in_order(tmp_path: Path) -> None:
    log = read_logs([write(tmp_path, job())])
    table = call_table(log)
    shown = [(table.distinct[n].operation, table.distinct[n].bytes) for n in table.call]
    assert shown == [
        ("allreduce", 4 << 20), ("allreduce", 4 << 20), ("all_gather", 1 << 20), ("reduce_scatter", 1 << 20),
        ("broadcast", 8192), ("messages", 1 << 16),
    ]  # fmt: skip
    assert table.counts.tolist() == [2, 1, 1, 1, 1]
    first, *_, broadcast, exchange = table.distinct
    assert (first.algorithm, first.protocol, first.channels) == ("Ring", "Simple", 2)
    assert (broadcast.root, broadcast.dtype) == (3, "float16")
    assert exchange.messages == tuple((r, (r + 1) % 8, 1 << 16) for r in range(8))
    assert not table.skipped


def test_rings_and_trees_of_the_log_are_used_unless_replanned(tmp_path: Path) -> None:
    log = read_logs([write(tmp_path, job())])
    machine = topology.load("dgx-h100")
    anew = Communicators(machine, parse_version("2.27.3"), Settings()).of(range(8))
    built = with_logged(anew, log, log.communicators[0])
    at = built.position
    assert [c.ring for c in built.comm.channels] == [
        tuple(at[r] for r in range(8)), tuple(at[r] for r in (0, 7, 6, 5, 4, 3, 2, 1)),
    ]  # fmt: skip
    for channel in built.comm.channels:
        assert [channel.parent[at[r]] for r in range(8)] == [-1, *(at[r] for r in range(7))]
        assert sum(len(below) for below in channel.children) == 7
    assert built.comm.num_channels == 2
    assert "2 rings and 2 trees of the log" in built.used
    assert anew.comm.num_channels == 24


def test_two_rings_are_slower_than_the_24_a_replan_finds(tmp_path: Path) -> None:
    request = ReplayRequest((write(tmp_path, job()),), topology="dgx-h100")
    logged, anew = replay(request), replay(replace(request, replan=True))
    assert [c.operation for c in logged.calls] == [c.operation for c in anew.calls]
    assert (logged.calls[0].algorithm, logged.calls[0].channels, logged.calls[0].from_log) == (
        "Ring",
        2,
        True,
    )
    assert not anew.calls[0].from_log
    assert anew.calls[0].time_ps < 0.5 * logged.calls[0].time_ps
    assert logged.total_ps == sum(c.time_ps * c.count for c in logged.calls)
    assert logged.total_calls == 6


def test_the_machine_is_concluded_and_said_line_by_line(tmp_path: Path) -> None:
    found = replay(ReplayRequest((write(tmp_path, job()),), calls=1))
    assert found.fabric == "dgx-h100"
    assert any("PCI buses 1b 43 52 61 9d c3 d1 df" in line for line in found.machine)
    assert found.total_calls == 1
    assert any("only the first 1 calls" in note for note in found.notes)


def test_without_a_clue_the_topology_is_asked_for(tmp_path: Path) -> None:
    log = LogWriter(2)
    log.init(buses=(1, 77))
    log.call("AllReduce", 1024)
    with pytest.raises(InputError, match=r"unknown system.*--topology dgx-h100"):
        replay(ReplayRequest((write(tmp_path, log),)))


def test_a_log_without_calls_says_how_to_get_them(tmp_path: Path) -> None:
    log = LogWriter(8)
    log.init()
    with pytest.raises(InputError, match=r"no call that could be replayed.*NCCL_DEBUG_SUBSYS"):
        replay(ReplayRequest((write(tmp_path, log),)))


def test_calls_that_cannot_be_are_skipped_and_counted(tmp_path: Path) -> None:
    log = LogWriter(8)
    log.init()
    log.call("AllReduce", 1024)
    log.call("AllReduce", 0)
    text = log.text().replace("count 0 datatype 7", "count 5 datatype 99")
    path = tmp_path / "odd.log"
    path.write_text(text)
    found = replay(ReplayRequest((str(path),), topology="dgx-h100"))
    assert found.total_calls == 1
    assert found.skipped == {"AllReduce with unknown datatype 99": 1}


def test_measured_times_stand_beside_predicted_ones(tmp_path: Path) -> None:
    log = LogWriter(8)
    log.init(rings=[range(8)])
    devices = "\n".join(
        f"#  Rank {r:2} Group  0 Pid {4000 + r:6} on      nodea device {r:2} [0x{bus:02x}] NVIDIA H100 80GB HBM3"
        for r, bus in enumerate((0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF))
    )
    path = tmp_path / "tests.log"
    path.write_text(TABLE.format(devices=devices) + log.text())
    found = replay(ReplayRequest((str(path),), env=(("NCCL_ALGO", "Ring"),)))
    (call,) = found.calls
    assert (call.operation, call.bytes, call.measured_us) == ("allreduce", 4 << 20, 80.0)
    assert call.error == pytest.approx(call.time_ps / 80e6 - 1)
    assert call.algorithm == "Ring"
    assert call.busbw_GBps == pytest.approx(call.algbw_GBps * 7 / 4)
    assert found.fabric == "dgx-h100"
    assert "each taken as one call" in " ".join(found.notes)


def test_another_machine_changes_each_call(tmp_path: Path) -> None:
    path = write(tmp_path, job())
    found = replay(ReplayRequest((path,), topology="dgx-a100", other="dgx-h100"))
    assert found.other == "dgx-h100"
    assert all(c.other is not None and c.other.time_ps < c.time_ps for c in found.calls)
    alone = replay(ReplayRequest((path,), topology="dgx-h100", replan=True))
    assert [c.other.time_ps for c in found.calls if c.other] == [c.time_ps for c in alone.calls]


def test_ranks_fill_machines_that_have_fewer_gpus(tmp_path: Path) -> None:
    found = replay(
        ReplayRequest((write(tmp_path, job()),), topology="dgx-h100", other="polaris", replan=True)
    )
    assert any("fill 2 nodes" in note for note in found.notes)
    assert found.calls[0].other is not None
    assert found.calls[0].other.time_ps > 2 * found.calls[0].time_ps


def test_gaps_are_between_the_calls_of_a_communicator(tmp_path: Path) -> None:
    path = write(tmp_path, job())
    base = replay(ReplayRequest((path,), topology="dgx-h100"))
    gaps = replay(ReplayRequest((path,), topology="dgx-h100", gap=10_000_000))
    assert gaps.total_ps == base.total_ps + 5 * 10_000_000
    with pytest.raises(InputError, match="without time stamps"):
        replay(ReplayRequest((path,), topology="dgx-h100", gap="logged"))


def test_one_run_of_everything_takes_as_long_as_its_calls(tmp_path: Path) -> None:
    path = write(tmp_path, job())
    single = replay(ReplayRequest((path,), topology="dgx-h100"))
    whole = replay(ReplayRequest((path,), topology="dgx-h100", whole=True))
    assert whole.total_calls == single.total_calls
    kernels = {(c.operation, c.bytes): c.kernel_ps for c in single.calls}
    for call in whole.calls:
        assert call.time_ps == pytest.approx(kernels[call.operation, call.bytes], rel=0.06)


def test_disjoint_communicators_run_side_by_side(tmp_path: Path) -> None:
    log = LogWriter(8)
    log.init(0, members=range(4))
    log.init(1, members=range(4, 8))
    for comm, members in ((0, range(4)), (1, range(4, 8))):
        log.call("AllReduce", 1 << 17, comm=comm, members=members, stream=comm)
    path = write(tmp_path, log)
    found = replay(ReplayRequest((path,), topology="dgx-h100"))
    assert [c.number for c in found.communicators] == [0, 1]
    assert found.total_ps == max(c.time_ps for c in found.calls)
    whole = replay(ReplayRequest((path,), topology="dgx-h100", whole=True))
    assert whole.total_ps < 1.2 * max(c.kernel_ps for c in found.calls)


def test_ranks_that_did_not_log_are_assumed_and_said(tmp_path: Path) -> None:
    whole = job()
    only = "".join(f"{line}\n" for line in whole.lines if f"{whole.head(0)} " in line)
    path = tmp_path / "rank0.log"
    path.write_text(only)
    log = read_logs([str(path)])
    table = call_table(log)
    assert table.distinct[-1].messages == tuple((r, (r + 1) % 8, 1 << 16) for r in range(8))
    assert "same distances" in table.assumed[0]
    ranks = job_ranks(log)
    assert ranks.of[0] == tuple(range(8))
    assert len(ranks.hosts) == 8
    found = replay(ReplayRequest((str(path),), topology="dgx-h100"))
    assert found.calls[0].operation == "allreduce"
    assert any("rank 0 of 8 logged" in note for note in found.notes)
