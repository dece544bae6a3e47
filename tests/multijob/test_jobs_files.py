"""Jobs files: kinds of jobs, and mistakes of a newcomer, each one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.errors import ClusimError
from clusim.base.resources import shipped_jobs
from clusim.multijob.api import JobsRequest, run_jobs, runner_of
from clusim.multijob.page import jobs_page
from clusim.multijob.report import draw_matrix, jobs_report
from clusim.multijob.result import JobsResult
from clusim.multijob.spec import load_jobs
from clusim.multijob.work import WorkWriter
from clusim.results.trace.reader import read_result
from clusim.simulation.speed import Speed, speed_of
from clusim.studies.sweep import read_grid, sweep
from clusim.studies.whatif.jobs import what_if_of_jobs

TRACES = Path(__file__).resolve().parents[2] / "traces"

STEP = """
topology: dgx-h100
nodes: 1
model: {base: gpt2, layers: 1, hidden: 128, heads: 8, vocab: 512}
sequence: 64
batch: {global: 8, micro: 1}
precision: bf16
data: {kind: ddp}
"""

KINDS = """
topology: dgx-h100
nodes: 3
jobs:
  training: {nodes: 0, train: step.yaml, repeat: 2}
  saved: {checkpoint: {job: training, servers: 2}, after: {job: training}}
  recorded: {nodes: 1, replay: minimal-2ranks.jsonl}
  noise: {nodes: 0-1, traffic: {pattern: permutation, message: 64KiB}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a jobs file, a workload and a recording."""
    path = tmp_path_factory.mktemp("jobs")
    (path / "step.yaml").write_text(STEP, encoding="utf-8")
    (path / "jobs.yaml").write_text(KINDS, encoding="utf-8")
    name = "minimal-2ranks.jsonl"
    (path / name).write_text((TRACES / name).read_text("utf-8"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> JobsResult:
    return run_jobs(folder / "jobs.yaml", trace_out=folder / "run.h5")


def test_every_kind_of_job_runs(result: JobsResult) -> None:
    training, saved, recorded, noise = result.jobs
    assert [job.kind for job in result.jobs] == ["train", "checkpoint", "replay", "traffic"]
    assert [job.ranks for job in result.jobs] == [8, 8, 8, 16]
    assert training.iterations == 2
    assert saved.iterations == 8
    assert recorded.mean_ps > 0
    assert noise.iterations == 16
    assert saved.start_ps == result.alone["training"].jobs["training"].ends_ps[0]
    text = jobs_report(result)
    assert "training  train" in text
    assert f"fairness: {result.fairness:.3f}" in text


def test_a_log_is_a_job(tmp_path: Path) -> None:
    """Its calls follow each other, planned for the nodes that it has here."""
    text = (TRACES / "nccl-8xh100.log").read_text("utf-8")
    (tmp_path / "calls.log").write_text(text, encoding="utf-8")
    jobs = "{topology: dgx-h100, jobs: {recorded: {replay: calls.log}}}"
    (tmp_path / "jobs.yaml").write_text(jobs, encoding="utf-8")
    runner = runner_of(tmp_path / "jobs.yaml")
    work = WorkWriter(runner.spec, runner.setup).write("recorded", 1)
    assert work.schedule is not None
    assert work.schedule.num_ranks == 8
    assert work.schedule.calls


def test_a_checkpoint_writes_the_states_of_its_job(folder: Path) -> None:
    """Weights and optimizer states of all parameters, each rank its part."""
    runner = runner_of(folder / "jobs.yaml")
    writer = WorkWriter(runner.spec, runner.setup)
    of_job = writer.write("saved", 1).messages
    assert of_job is not None
    plan = writer.plans["training"]
    each = plan.optimizer.weight + plan.optimizer.state
    assert int(of_job.size_bytes.sum()) == pytest.approx(plan.model.parameters * each, rel=1e-6)


def test_a_trace_has_the_tasks_and_messages_of_all_jobs(folder: Path, result: JobsResult) -> None:
    read = read_result(folder / "run.h5")
    assert read.messages is not None
    assert len(read.messages.source) == 24
    assert read.tasks.names == result.joint.result.tasks.names


def test_the_picture_of_the_matrix_has_a_cell_for_each_pair(result: JobsResult) -> None:
    (axes,) = draw_matrix(result).axes
    assert len(axes.texts) == 4 * 3 + 4


def test_the_page_has_the_matrix_and_the_verdict(result: JobsResult) -> None:
    page = jobs_page(result)
    assert result.verdict[0] in page
    for job in result.jobs:
        assert f">{job.name}<" in page
    assert page.count("<svg") == sum(len(run.times_ps) > 1 for run in result.joint.jobs.values())
    assert "Slowdown of the row" in page


def test_shipped_files_are_valid() -> None:
    for name in shipped_jobs():
        spec = load_jobs(name)
        assert spec.topology
        for job in spec.jobs.values():
            assert job.train is None or Path(job.train).is_file()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"jobs.noise.nodes": "0-5"}, "job noise: node 3; dgx-h100:nodes=3 has nodes 0 to 2"),
        ({"jobs.noise.train": "step.yaml"}, "a job has one of train, replay"),
        ({"jobs.noise": {}}, "this one has none"),
        ({"jobs.noise.ranks": "0-3"}, "nodes and ranks both place a job"),
        ({"jobs.noise.repeat": 3}, "traffic is without repeat"),
        ({"jobs.noise.traffic.pattern": "storm"}, "jobs.noise.traffic.pattern: 'storm'"),
        ({"jobs.saved.checkpoint.job": "nobody"}, "nobody is not a job of the file"),
        ({"jobs.saved.checkpoint.job": "noise"}, "checkpoints are of train jobs"),
        ({"jobs.saved.checkpoint.servers": "0"}, "servers must not be nodes of the job"),
        ({"jobs.saved.after.iterations": 9}, "job saved: training has 2 iterations, not 9"),
        ({"jobs.saved.after.job": "saved"}, "jobs begin after each other: saved"),
        ({"jobs.training.train": "nothing"}, "job training: "),
        ({"jobs.recorded.replay": "missing.log"}, "job recorded: "),
        ({"jobs.training.class": 9}, "class"),
        ({"jobs.training.class": 1, "jobs.saved.class": 2, "priority": [0]}, "priority: 1 classes"),
        ({"jobs.noise.traffic.duration": "1ms"}, "duration needs load"),
        ({"policy": "sender=nobody"}, "nobody"),
        ({"routing": "best"}, "best"),
    ],
)
def test_mistakes_are_one_line(folder: Path, change: dict[str, object], text: str) -> None:
    with pytest.raises(ClusimError) as failed:
        run_jobs(folder / "jobs.yaml", pairs=False, changes=change)
    lines = str(failed.value).splitlines()
    assert len(lines) == 1
    assert text in lines[0]


def test_an_unknown_file_names_a_shipped_one() -> None:
    with pytest.raises(ClusimError, match="training-beside-storage"):
        load_jobs("training-beside-storag")


def speed(text: str) -> Speed:
    change = speed_of(text)
    assert change is not None
    return change


def test_changes_have_a_row_for_each_job(tmp_path: Path) -> None:
    """A change of a key, of the links, and one that cannot run."""
    text = """
topology: dgx-h100
nodes: 2
jobs:
  reduce: {collective: {operation: allreduce, size: 64KiB}}
  copies: {nodes: 0, storage: {servers: 1, size: 1MiB}}
"""
    (tmp_path / "jobs.yaml").write_text(text, encoding="utf-8")
    base = JobsRequest(str(tmp_path / "jobs.yaml"))
    later = replace(base, changes={"jobs.copies.start": "10ms"})
    lost = replace(base, changes={"jobs.copies.storage.servers": "7"})
    changes = [("later", later), ("infiniband x2", speed("infiniband x2")), ("lost", lost)]
    result = what_if_of_jobs(base, changes)
    assert [run.of for run in result.baseline] == ["reduce", "copies"]
    assert [(row.change, row.of) for row in result.rows] == [
        (name, job) for name, _ in changes for job in ("reduce", "copies")
    ]
    apart, _, faster, copies, refused, _ = result.rows
    assert apart.planned.plan == "1.00 x alone"
    assert faster.planned.time_ps < result.baseline[0].outcome.time_ps
    assert copies.planned.time_ps < result.baseline[1].outcome.time_ps
    assert "node 7" in refused.planned.error
    with pytest.raises(ClusimError, match="of jobs, links can be faster"):
        what_if_of_jobs(base, [("hbm x2", speed("hbm x2"))])


def test_a_grid_has_a_row_for_each_change_of_jobs(tmp_path: Path) -> None:
    """Starts 30 us apart interleave the communication of two equal jobs."""
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "jobs: {jobs: two-jobs-on-a-link, change: {jobs.one.repeat: 2, jobs.other.repeat: 2,"
        " jobs.other.start: [0us, 30us]}}",
        encoding="utf-8",
    )
    rows = sweep(read_grid(grid), tmp_path / "rows.csv").rows
    assert [row["slowdown"] for row in rows] == pytest.approx([1.3, 1.0], abs=0.01)
    assert rows[0]["slowdowns"] == "one 1.301, other 1.301"


def test_a_class_of_a_table_is_not_dropped(tmp_path: Path) -> None:
    """Classes are of jobs: a column of the table would have no effect."""
    (tmp_path / "jobs.yaml").write_text(
        "{topology: 'fat-tree:k=4', jobs: {one: {flows: one.csv}}}", encoding="utf-8"
    )
    (tmp_path / "one.csv").write_text(
        "source,destination,bytes,class\n0,1,64,0\n", encoding="utf-8"
    )
    with pytest.raises(ClusimError, match="set the class of the job"):
        run_jobs(tmp_path / "jobs.yaml")
