"""What each option of a replay changes, on the log of one job of eight GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.replays import Replay, replay
from clusim.replays.placing import ReplayRequest
from clusim.simulation.job import RunOptions
from clusim_cli.main import run as run_command
from replays.samples import LogWriter, job

SHIPPED = Path(__file__).resolve().parents[2] / "traces" / "nccl-8xh100.log"
MS = 10**9
STAMPS_MS = (0, 40, 41, 90, 95, 96)
"""When the six calls of the job were made [ms]."""


def stamped(log: LogWriter) -> str:
    """Return a log with the times NCCL_DEBUG_TIMESTAMP_FORMAT puts in front; calls are at `STAMPS_MS`."""
    seen: list[str] = []
    lines = []
    for line in log.lines:
        at = 0
        if "opCount" in line:
            call = line.split("opCount ")[1].split()[0]
            if call not in seen:
                seen.append(call)
            at = STAMPS_MS[seen.index(call)]
        lines.append(f"[2026-03-01 10:00:05.{at:03}] {line}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def request_(tmp_path: Path) -> ReplayRequest:
    path = tmp_path / "nccl.log"
    path.write_text(stamped(job()))
    return ReplayRequest((str(path),), topology="dgx-h100")


def per_call(found: Replay) -> dict[tuple[str, int], int]:
    return {(call.operation, call.bytes): call.time_ps for call in found.calls}


def test_gap_none_logged_and_a_time(request_: ReplayRequest) -> None:
    none = replay(replace(request_, gap="none"))
    logged = replay(replace(request_, gap="logged"))
    fixed = replay(replace(request_, gap=100 * 10**6))
    assert none.total_ps == sum(call.time_ps * call.count for call in none.calls)
    # No call takes a millisecond, so each starts when it was logged: the total is the last start and its time.
    (last,) = [call.time_ps for call in logged.calls if call.operation == "messages"]
    assert logged.total_ps == 96 * MS + last
    assert fixed.total_ps == none.total_ps + 5 * 100 * 10**6
    assert none.recorded_ps == 96 * MS
    assert per_call(none) == per_call(logged) == per_call(fixed)


def test_gap_logged_in_one_run(request_: ReplayRequest) -> None:
    whole = replay(replace(request_, gap="logged", whole=True))
    assert 96 * MS < whole.total_ps < 97 * MS


@pytest.mark.parametrize("other", ["dgx-h100", "dgx-a100"])
def test_eight_gpus_on_another_machine(request_: ReplayRequest, other: str) -> None:
    found = replay(replace(request_, other=other))
    alone = replay(replace(request_, topology=other, replan=True))
    assert found.other == other
    there = {(c.operation, c.bytes): c.other.time_ps for c in found.calls if c.other is not None}
    assert there == per_call(alone)
    assert found.other_total_ps == alone.total_ps
    # The log's two rings are slow: the same machine with its own 24 is faster, and the older one is between.
    here = per_call(found)
    assert there["allreduce", 4 << 20] < here["allreduce", 4 << 20]
    if other == "dgx-a100":
        h100 = per_call(replay(replace(request_, replan=True)))
        assert all(there[key] > h100[key] for key in h100)


def test_environment_changes_what_is_chosen_and_says_so(request_: ReplayRequest) -> None:
    logged = replay(request_)
    assert (logged.calls[0].algorithm, logged.calls[0].protocol) == ("Ring", "Simple")
    low = replay(replace(request_, env=(("NCCL_PROTO", "LL"),)))
    assert {call.protocol for call in low.calls if call.operation != "messages"} == {"LL"}
    assert not any(call.from_log for call in low.calls)
    # Protocols do not touch the search: the two rings of the log stay.
    assert {call.channels for call in low.calls if call.operation == "allreduce"} == {2}
    assert any(note.startswith("--env NCCL_PROTO: algorithms are") for note in low.notes)
    few = replay(replace(request_, env=(("NCCL_MAX_NCHANNELS", "1"),)))
    assert any("rings, trees and algorithms are re-planned" in note for note in few.notes)
    assert {call.channels for call in few.calls if call.algorithm == "Ring"} == {1}


@pytest.mark.parametrize("whole", [False, True])
def test_variables_without_effect_are_named(request_: ReplayRequest, whole: bool) -> None:
    """A variable of one node's NICs changes no plan of eight GPUs; a protocol does, and is not named."""
    env = (("NCCL_IB_HCA", "mlx5_0"), ("NCCL_PROTO", "LL"))
    notes = replay(replace(request_, env=env, whole=whole)).notes
    assert "obeyed, without effect on this job: NCCL_IB_HCA" in notes
    assert not any("NCCL_IB_HCA" in note for note in replay(replace(request_, whole=whole)).notes)


def test_what_the_job_had_set_already_changes_nothing(tmp_path: Path) -> None:
    log = job()
    log.lines.insert(0, f"{log.head(0)} NCCL INFO NCCL_PROTO set by environment to Simple")
    path = tmp_path / "nccl.log"
    path.write_text(log.text())
    assert "NCCL_PROTO" in read_logs([str(path)]).facts.environment
    request = ReplayRequest((str(path),), topology="dgx-h100")
    same = replay(replace(request, env=(("NCCL_PROTO", "Simple"),)))
    assert same.calls[0].from_log
    assert per_call(same) == per_call(replay(request))


def test_another_release_plans_anew(request_: ReplayRequest) -> None:
    same, older = (replay(replace(request_, version=v)) for v in ("2.27.3", "2.18"))
    assert same.calls[0].from_log
    assert not older.calls[0].from_log
    assert older.nccl_version.startswith("2.18")
    assert any(note.startswith("--nccl-version 2.18: rings, trees") for note in older.notes)


@pytest.mark.parametrize("whole", [False, True])
def test_a_trace_opens(
    request_: ReplayRequest, whole: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.h5"
    found = replay(replace(request_, whole=whole), RunOptions(trace_out=path, confirm=False))
    assert run_command(["info", str(path), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    # Every call once for each of its eight ranks: five distinct ones, or all six.
    assert info["columns"]["/tasks/start"]["shape"] == [8 * (6 if whole else 5)]
    if whole:
        assert info["time_ps"] == found.total_ps


def test_streams_and_communicators_overlap_in_one_run(tmp_path: Path) -> None:
    """Two communicators of the same GPUs: alone one after the other on a stream, side by side on two."""
    totals = []
    for streams in ((0, 0), (0, 1)):
        log = LogWriter(8)
        for comm in range(2):
            log.init(comm, rings=[range(8)])
            log.call("AllReduce", 1 << 20, comm=comm, stream=streams[comm])
        path = tmp_path / "nccl.log"
        path.write_text(log.text())
        totals.append(replay(ReplayRequest((str(path),), topology="dgx-h100", whole=True)).total_ps)
    assert totals[1] < 0.8 * totals[0]


def test_contradictory_ranks_and_missing_peers_are_told(tmp_path: Path) -> None:
    log = job()
    lost = [line for line in log.lines if not line.startswith(log.head(5))]
    wrong = [
        line.replace("count 1048576", "count 524288") if line.startswith(log.head(2)) else line
        for line in lost
    ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(wrong) + "\n")
    found = replay(ReplayRequest((str(path),), topology="dgx-h100"))
    assert found.total_calls == 6
    said = " ".join(found.notes)
    assert "1 of 8 ranks" in said or "rank 5" in said, found.notes
    assert "ranks call 2 collectives with different arguments, first at" in said


def test_one_clear_line_for_what_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text("Epoch 1: loss 2.5\n" * 50)
    with pytest.raises(InputError, match=r"nccl\.log: no line of NCCL.*replay --kind") as caught:
        replay(ReplayRequest((str(path),), topology="dgx-h100"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("whole", [False, True])
def test_what_breaks_is_planned_around_and_said(request_: ReplayRequest, whole: bool) -> None:
    asked = replace(request_, whole=whole)
    broken = replay(replace(asked, faults=("link gpu3:nvl5 down",)))
    (line,) = broken.faults
    assert line.startswith("link gpu3:nvl5 down: ")
    assert any(note.startswith("--fault: rings, trees and algorithms") for note in broken.notes)
    anew = replay(replace(asked, replan=True))
    assert not anew.faults
    assert broken.total_ps > anew.total_ps


def test_faults_that_come_later_have_the_clock_of_every_call(request_: ReplayRequest) -> None:
    late = replay(replace(request_, faults=("link gpu0:nvl1 down at 1s",)))
    assert per_call(late) == per_call(replay(request_))
    assert late.calls[0].from_log
    assert any(
        note.startswith("fault times count from the start of each call") for note in late.notes
    )
