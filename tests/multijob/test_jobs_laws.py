"""Laws of several jobs on one fabric, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusim.multijob.api import compare_jobs, run_jobs, runner_of
from clusim.multijob.result import JobsResult

MIB = 1 << 20
PACKET = 4096

TWO_SENDERS = """
topology: fat-tree:k=4
jobs:
  one: {flows: one.csv}
  other: {flows: other.csv}
"""


def write(folder: Path, text: str, **tables: str) -> Path:
    """Write a jobs file, and tables of flows beside it."""
    path = folder / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    for name, rows in tables.items():
        table = "source,destination,bytes\n" + rows
        (folder / f"{name}.csv").write_text(table, encoding="utf-8")
    return path


def run(path: Path, **options: Any) -> JobsResult:
    options.setdefault("granularity", "packet")
    return run_jobs(path, **options)


@pytest.fixture(scope="module")
def incast(tmp_path_factory: pytest.TempPathFactory) -> JobsResult:
    """Two jobs with 1 MiB each from hosts of two pods to host 0."""
    folder = tmp_path_factory.mktemp("incast")
    return run(write(folder, TWO_SENDERS, one=f"4,0,{MIB}\n", other=f"8,0,{MIB}\n"))


def last_link_ps(result: JobsResult) -> list[int]:
    """Return the time that the bytes of each job need on the link to host 0 [ps]."""
    wire = result.joint.result.wires.names.index("edge0->host0.0")
    return [int(run.result.wires.counters["busy_ps"][wire]) for run in result.alone.values()]


def test_equal_jobs_slow_each_other_equally(incast: JobsResult) -> None:
    """Each has half of the last link: both need the time of the other's bytes there in addition."""
    for job, busy_ps in zip(incast.jobs, reversed(last_link_ps(incast)), strict=True):
        assert job.mean_ps - job.alone_ps == pytest.approx(busy_ps, rel=2 * PACKET / MIB)
    assert incast.fairness == pytest.approx(1.0, abs=1e-4)


def test_the_matrix_of_two_jobs_is_their_slowdown(incast: JobsResult) -> None:
    one, other = incast.jobs
    assert incast.matrix == {
        "one": {"other": one.slowdown},
        "other": {"one": other.slowdown},
    }
    assert incast.runs == 3


def test_jobs_share_the_last_link_in_halves(incast: JobsResult) -> None:
    """Hosts 4 and 8 are in different pods: only the way from the core to host 0 may be common."""
    last = incast.shared[0]
    assert last.shares == pytest.approx({"one": 0.5, "other": 0.5})
    assert any("one is 1.86 times slower, most by other" in line for line in incast.verdict)
    assert all("edge0->host0.0 is busy" in line for line in incast.verdict)


def test_bytes_of_a_wire_are_those_of_its_jobs(incast: JobsResult) -> None:
    """With one path for each flow a job moves the same bytes beside others."""
    sums = sum(np.asarray(alone.wire_bytes, np.int64) for alone in incast.alone.values())
    assert np.array_equal(incast.joint.wire_bytes, sums)


def test_the_shorter_job_ends_after_twice_its_bytes(tmp_path: Path) -> None:
    """Processor sharing: n and 3n bytes on one link end at 2n and 4n; each n more than alone."""
    path = write(tmp_path, TWO_SENDERS, one=f"4,0,{MIB}\n", other=f"8,0,{3 * MIB}\n")
    result = run(path)
    short_ps, _ = last_link_ps(result)
    for job in result.jobs:
        assert job.mean_ps - job.alone_ps == pytest.approx(short_ps, rel=0.02)


def test_the_first_class_is_as_alone(tmp_path: Path) -> None:
    """The link serves class 0 first: its job loses at most a packet per hop, the other one waits for all its bytes."""
    text = TWO_SENDERS.replace("{flows: other.csv}", "{flows: other.csv, class: 1}")
    rows = {"one": f"4,0,{MIB}\n", "other": f"8,0,{MIB}\n"}
    result = run(write(tmp_path, text + "priority: [0, 1]\n", **rows))
    one, other = result.jobs
    first_ps, _ = last_link_ps(result)
    assert one.mean_ps - one.alone_ps < 0.02 * first_ps
    assert other.mean_ps - other.alone_ps == pytest.approx(first_ps, rel=0.02)


APART = """
topology: dgx-h100
nodes: 4
jobs:
  one: {nodes: 0-1, collective: {operation: allreduce, size: 1MiB}, repeat: 2}
  other: {nodes: 2-3, collective: {operation: alltoall, size: 1MiB}}
  copies: {nodes: 0, storage: {servers: 1, size: 256KiB}, repeat: 3}
"""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> JobsResult:
    """Run two jobs that share nodes, and one with nodes of its own, in bursts."""
    return run(write(tmp_path_factory.mktemp("apart"), APART), granularity="quick")


def test_jobs_that_share_nothing_do_not_slow_each_other(apart: JobsResult) -> None:
    """To the picosecond, also in bursts, which depend on the size of a run."""
    alone = apart.alone["other"].jobs["other"]
    assert apart.joint.jobs["other"].times_ps.tolist() == alone.times_ps.tolist()
    row = apart.matrix["other"]
    assert row == {"one": 1.0, "copies": 1.0}
    assert apart.jobs[0].slowdown > 1


def test_paths_do_not_depend_on_other_jobs(tmp_path: Path) -> None:
    """Paths by hash: eight flows between pods meet by chance, the same beside a job within a node."""
    pairs = "".join(f"{host},{15 - host},65536\n" for host in range(4, 12))
    one, other = run(write(tmp_path, TWO_SENDERS, one="0,1,65536\n1,0,65536\n", other=pairs)).jobs
    assert other.slowdown == 1.0
    assert one.slowdown == 1.0


def test_pairs_that_share_nothing_are_not_run(apart: JobsResult) -> None:
    """Three runs in isolation and one of all, which is that of the pair that shares: the third job changes nothing."""
    assert apart.runs == 3 + 1


def test_iterations_follow_each_other(apart: JobsResult) -> None:
    run = apart.alone["one"].jobs["one"]
    first, second = run.times_ps
    assert second == pytest.approx(first, rel=0.02)
    assert run.begins_ps[1] == run.ends_ps[0]


def test_closed_loops_begin_when_the_message_before_has_arrived(apart: JobsResult) -> None:
    """Three messages one after the other on each of eight pairs; the later ones need the time of their bytes."""
    times = apart.alone["copies"].jobs["copies"].times_ps.reshape(8, 3)
    assert times[:, 1:] == pytest.approx(256 * 1024 / 50e9 * 1e12, rel=0.05)
    assert (times[:, 0] > times[:, 1]).all()


def test_a_job_begins_after_iterations_of_another(tmp_path: Path) -> None:
    text = APART.replace("size: 1MiB}}", "size: 1MiB}, after: {job: one, iterations: 2}}")
    result = run(write(tmp_path, text), pairs=False)
    assert result.jobs[1].start_ps == result.alone["one"].jobs["one"].ends_ps[1]
    assert "other begins when one in isolation has ended iteration 2" in result.notes


def test_a_job_fills_the_time_of_the_others(tmp_path: Path) -> None:
    """A quarter of the bytes: at least three iterations; the last begins before the others have ended in isolation."""
    text = TWO_SENDERS.replace(
        "{flows: other.csv}", "{storage: {servers: 0, size: 16KiB}, nodes: 1, repeat: fill}"
    )
    text = text.replace("fat-tree:k=4", "dgx-h100\nnodes: 2")
    result = run(write(tmp_path, text, one=f"0,8,{MIB}\n"), pairs=False)
    one, other = (result.alone[job.name].jobs[job.name] for job in result.jobs)
    count = len(other.times_ps) // 8
    assert count > 2
    assert other.end_ps >= one.end_ps > other.end_ps * (count - 1) / count * 0.9


def test_both_engines_agree_on_programs_beside_messages(tmp_path: Path) -> None:
    text = """
topology: dgx-1v
jobs:
  reduce: {collective: {operation: allreduce, size: 4KiB, algorithm: ring}}
  copies: {flows: copies.csv}
"""
    path = write(tmp_path, text, copies="0,5,8192\n3,1,4096\n")
    prints = []
    for engine in ("c", "reference"):
        runner = runner_of(path, granularity="packet")
        runner.engine = engine
        prints.append(compare_jobs(runner).joint.result.fingerprint)
    assert prints[0] == prints[1]


def test_switch_reductions_of_two_jobs_have_groups_of_their_own(tmp_path: Path) -> None:
    """In-network reductions number their groups. Both jobs use units of the same switches, which serve them in turn."""
    text = """
topology: dgx-h100
nodes: 4
jobs:
  one: {nodes: 0-1, collective: {operation: allreduce, size: 256KiB, algorithm: sharp}}
  other: {nodes: 2-3, collective: {operation: allreduce, size: 256KiB, algorithm: sharp}}
"""
    result = run(write(tmp_path, text), granularity="quick")
    assert [job.slowdown for job in result.jobs] == pytest.approx([1, 1], abs=1e-3)
    assert result.matrix["one"]["other"] == result.jobs[0].slowdown


STEPS = """
topology: tree:n=4,arity=2
jobs:
  one:
    ranks: 0,2
    collective: {operation: allreduce, size: 1MiB, algorithm: ring, compute: 60us}
    repeat: 4
  other:
    ranks: 1,3
    collective: {operation: allreduce, size: 1MiB, algorithm: ring, compute: 60us}
    repeat: 4
"""


def test_steps_that_begin_together_share_the_link_and_later_ones_interleave(tmp_path: Path) -> None:
    """Bytes that need M on the link, iterations of T alone: T + M beside an equal job, T if it begins later than M."""
    path = write(tmp_path, STEPS)
    same = run(path)
    one = same.jobs[0]
    wires = same.alone["one"].result.wires
    busy_ps = wires.counters["busy_ps"][wires.names.index("switch0.0->switch1.0.0")] / 4
    assert one.mean_ps - one.alone_ps == pytest.approx(busy_ps, rel=0.02)
    later = run(path, changes={"jobs.other.start": "30us"})
    assert [job.slowdown for job in later.jobs] == pytest.approx([1, 1], abs=1e-3)
    assert later.jobs[0].alone_ps == one.alone_ps
