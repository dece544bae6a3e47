"""Jobs as data: columns, recordings and back, matching of the operations of several ranks."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import chakra_writer
from clusim.formats.recordings.kinds import reader
from clusim.formats.recordings.model import ABSENT, Event, Group, Recording
from clusim.jobs.match import Matcher
from clusim.jobs.model import CallWork, DelayWork, JobGraph, KernelWork, MessageWork, RankOperation
from clusim.jobs.read import job_of
from jobs.cases import CASES, recording

TRACES = Path(__file__).resolve().parents[2] / "traces"

SHIPPED = {
    "chakra-4ranks": "chakra",
    "flight-2ranks": "flight",
    "inspector-8ranks.jsonl": "inspector",
    "kineto-2ranks": "kineto",
    "mlp-tp4.hlo.txt": "hlo",
    "nsys-2ranks": "nsys",
    "profiler-2ranks": "profiler",
    "ring-4.goal": "goal",
}
"""Recordings, and their kinds."""


def shipped(name: str) -> JobGraph:
    return job_of(reader(SHIPPED[name])(str(TRACES / name)))


def places_of(job: JobGraph) -> list[tuple[int, str, int]]:
    """Return rank, stream and position in the stream of every operation."""
    seen: Counter[tuple[int, str]] = Counter()
    result = []
    for rank, stream in zip(job.rank, job.stream, strict=True):
        result.append((rank, stream, seen[rank, stream]))
        seen[rank, stream] += 1
    return result


def described(job: JobGraph) -> dict[tuple[int, str, int], tuple[Any, ...]]:
    """Return a description of every operation that does not depend on the order of independent operations."""
    places = places_of(job)
    met: dict[Any, set[tuple[int, str, int]]] = defaultdict(set)
    matcher = Matcher(job, range(len(job)))
    for unit in matcher.units():
        for at in unit:
            met[at] = {places[other] for other in unit}
    result = {}
    for at, place in enumerate(places):
        ranks = job.members(at).ranks if job.group[at] != ABSENT else ()
        peer = ranks[job.peer[at]] if job.peer[at] != ABSENT else ABSENT
        others = {places[dep] for dep in job.deps[at]}
        deps = {other for other in others if other[:2] != place[:2]}
        result[place] = (job.work[at], ranks, peer, job.tag[at], deps, met[at])
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_job_written_as_a_chakra_trace_and_read_is_the_same(tmp_path: Path, name: str) -> None:
    """With the communicators of messages, which decide their channels."""
    job = job_of(recording(name))
    files = chakra_writer.write(recording(name), tmp_path / "job.et")
    read = job_of(reader("chakra")([str(file) for file in files]))
    assert described(read) == described(job)


def test_communicators_with_equal_ranks_are_two() -> None:
    groups = [Group("first", (0, 1)), Group("second", (0, 1))]
    job = JobGraph("two", 2, groups)
    for group in range(2):
        for rank in range(2):
            job.append(RankOperation(rank, str(group), CallWork("allreduce", 64), group=group))
    assert Matcher(job, range(4)).units() == [[0, 1], [2, 3]]


def test_equal_work_is_stored_once() -> None:
    job = JobGraph("kernels", 1)
    for _ in range(3):
        job.append(RankOperation(0, "stream", KernelWork(time_ps=5)))
    assert len({id(work) for work in job.work}) == 1
    assert len(job) == 3


def test_two_million_operations_fit_300_megabytes() -> None:
    job = JobGraph("kernels", 1)
    for at in range(10_000):
        job.append(RankOperation(0, "stream", KernelWork(time_ps=at % 7), start_ps=at))
    columns = (getattr(job, name) for name in RankOperation._fields)
    assert sum(map(sys.getsizeof, columns)) * 200 < 300e6


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recording_is_a_job_in_order(name: str) -> None:
    """Dependencies name earlier operations of the rank; a call has one operation per rank and one kind of work."""
    job = shipped(name)
    for at in range(len(job)):
        assert all(dep < at and job.rank[dep] == job.rank[at] for dep in job.deps[at])
    for unit in Matcher(job, range(len(job))).units():
        works = [job.work[at] for at in unit]
        if not isinstance(works[0], CallWork):
            continue
        ranks = [job.rank[at] for at in unit]
        assert len(set(ranks)) == len(ranks)
        assert set(ranks) <= set(job.members(unit[0]).ranks)
        assert {type(work) for work in works} == {CallWork}


@pytest.mark.parametrize("name", SHIPPED)
def test_bytes_and_kernel_times_are_those_of_the_recording(name: str) -> None:
    source = reader(SHIPPED[name])(str(TRACES / name))
    job = job_of(source)
    sums: Counter[tuple[int, str]] = Counter()
    wanted: Counter[tuple[int, str]] = Counter()
    for at, work in enumerate(job.work):
        if isinstance(work, CallWork | MessageWork):
            sums[job.group[at], work.kind] += work.bytes
        elif isinstance(work, KernelWork | DelayWork):
            sums[ABSENT, work.kind] += work.time_ps
    for event in source.events:
        moves = event.kind in ("collective", "send", "recv")
        key = (event.group if moves else ABSENT, event.kind)
        wanted[key] += event.bytes if moves else max(0, event.duration_ps)
    assert sums == wanted


def test_a_communicator_that_is_absent_is_named_with_its_place() -> None:
    job = JobGraph("job", 1, [])
    job.append(RankOperation(0, "s", CallWork("allreduce", 64), group=3, where="file:7"))
    with pytest.raises(InputError, match="file:7: group 3 does not exist"):
        job.members(0)


def test_times_of_a_job_are_from_its_first_event() -> None:
    """Clocks of logs count from 1970: picoseconds since then need more than 64 bits."""
    epoch_ps = 1_700_000_000 * 10**12
    starts = (epoch_ps + 5, epoch_ps, ABSENT)
    events = [Event("compute", 0, start_ps=start_ps) for start_ps in starts]
    job = job_of(Recording("log", "clock", 1, events=events))
    assert [*job.start_ps] == [5, 0, ABSENT]
