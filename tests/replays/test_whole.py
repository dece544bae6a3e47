"""Recordings of any kind on a machine: overlap, measured times, another machine, what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import Event, Group, Recording
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.replays.replayreport import replay_report

US = 1_000_000
REQUEST = ReplayRequest(("trace",), topology="dgx-h100", gap="none")


def training(steps: int = 2) -> Recording:
    """Return steps in which half of the computing hides an all-reduce."""
    events: list[Event] = []
    for rank in range(8):
        for step in range(steps):
            at = len(events)
            start = 1000 * US * step
            common = {"group": 0, "sequence": step, "operation": "allreduce", "bytes": 1 << 20}
            events += [
                Event("compute", rank, "7", "forward", start_ps=start, duration_ps=100 * US),
                Event(
                    "collective",
                    rank,
                    "20",
                    deps=(at,),
                    start_ps=start + 100 * US,
                    duration_ps=90 * US,
                    **common,
                ),  # type: ignore[arg-type]
                Event(
                    "compute",
                    rank,
                    "7",
                    "backward",
                    start_ps=start + 100 * US,
                    duration_ps=200 * US,
                ),
                Event(
                    "compute",
                    rank,
                    "7",
                    "optimizer",
                    deps=(at + 1,),
                    start_ps=start + 300 * US,
                    duration_ps=50 * US,
                ),
            ]
    return Recording("kineto", "trace.json", 8, [Group("world", tuple(range(8)))], events)


def test_what_overlapped_overlaps() -> None:
    found = replay_recording(training(), REQUEST)
    assert found.total_ps == pytest.approx(2 * 350 * US, rel=0.05)
    assert found.compute_ps == 700 * US
    (call,) = found.calls
    assert (call.operation, call.bytes, call.count, call.measured_us) == (
        "allreduce",
        1 << 20,
        2,
        90.0,
    )
    assert 10 * US < call.time_ps < 200 * US
    assert found.recorded_ps == 1350 * US
    assert "computing 700 us" in replay_report(found)


def test_kernels_without_recorded_times_compute_as_long_as_simulated() -> None:
    """Two products of 1 Tflop in turn on one of two ranks: the mean is half of the run, which they are."""
    kernel = Event("compute", 0, "7", "product", dtype="bfloat16", flops=10**12)
    events = [kernel, replace(kernel, deps=(0,)), Event("compute", 1, "7", "short", duration_ps=US)]
    found = replay_recording(
        Recording("hlo", "m.hlo", 2, [Group("world", (0, 1))], events), REQUEST
    )
    assert found.total_ps > 1000 * US
    assert found.compute_ps == pytest.approx((found.total_ps + US) / 2, rel=0.01)


def test_recorded_pauses_are_part_of_the_time() -> None:
    found = replay_recording(training(), replace(REQUEST, gap="logged"))
    assert found.total_ps == pytest.approx((350 + 650 + 350) * US, rel=0.05)


def test_another_machine() -> None:
    found = replay_recording(training(1), replace(REQUEST, other="dgx-a100"))
    (call,) = found.calls
    assert call.other is not None
    assert call.other.time_ps > call.time_ps
    assert found.other_total_ps >= found.total_ps


def test_recorded_algorithms_are_used_on_the_own_machine_only() -> None:
    recording = training(1)
    recording.events = [
        replace(e, algorithm="tree", protocol="ll", channels=4) if e.kind == "collective" else e
        for e in recording.events
    ]
    (call,) = replay_recording(recording, replace(REQUEST, other="dgx-a100")).calls
    assert (call.algorithm, call.protocol, call.channels, call.from_log) == ("Tree", "LL", 4, True)
    assert call.other is not None
    assert call.other.channels != 4


def test_the_machine_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"does not contain the system; set --topology"):
        replay_recording(training(), replace(REQUEST, topology=None))


def test_nothing_recorded() -> None:
    with pytest.raises(InputError, match="no recorded event"):
        replay_recording(Recording("kineto", "trace.json", 8), REQUEST)


def test_more_ranks_than_one_machine_join_machines() -> None:
    ranks = tuple(range(16))
    events = [Event("collective", r, group=0, operation="allreduce", bytes=4096) for r in ranks]
    found = replay_recording(Recording("goal", "x", 16, [Group("world", ranks)], events), REQUEST)
    assert (found.machines, found.ranks) == (2, 16)
