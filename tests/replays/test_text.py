"""Reports of replays: what is alike is one row, what is not there has no heading."""

from __future__ import annotations

from dataclasses import replace

from clusim.replays.replayreport import replay_report
from clusim.replays.report import CallResult, CommResult, Replay

CALL = CallResult(0, 2, "allreduce", 1 << 20, "float32", 3, "Ring", "LL", 4, 9_000_000, 10_000_000)


def report(calls: list[CallResult]) -> str:
    found = Replay("goal", "job.goal", "dgx-h100", 8, 1, "2.30", ["dgx-h100: as given"])
    numbers = sorted({call.communicator for call in calls})
    found.communicators = [CommResult(n, 2, 1, 4, "dp", 3, 30_000_000) for n in numbers]
    found.calls = calls
    return replay_report(found)


def test_symmetric_groups_are_one_row() -> None:
    calls = [replace(CALL, communicator=number) for number in (0, 1, 2, 5)]
    calls.append(replace(CALL, communicator=3, time_ps=11_000_000))
    text = report(calls)
    rows = [line.split() for line in text.splitlines() if "allreduce" in line]
    assert [row[0] for row in rows] == ["0-2,5", "3"]
    assert sum(line.split()[-1:] == ["dp"] for line in text.splitlines()) == 1
    assert "0-3,5" in text


def test_a_recording_without_calls_has_no_empty_tables() -> None:
    text = report([])
    assert "communicators" not in text
    assert "calls\n" not in text
