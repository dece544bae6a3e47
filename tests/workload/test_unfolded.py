"""What was folded is in the trace: its totals are those of the command to the picosecond, its timeline has layers."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import clusim
from clusim.analysis.blame import blame
from clusim.analysis.calls import collectives
from clusim.analysis.critical import open_traced
from clusim.analysis.memory import memory
from clusim.analysis.overlap import overlap
from clusim.analysis.pipeline import timeline
from clusim.analysis.tasks import run_tasks
from clusim.base.errors import TraceError
from clusim.report.export.kineto import write_kineto
from clusim.report.export.nccl_log import write_nccl_log
from clusim.report.export.perfetto import write_perfetto
from clusim.report.export.run import Run
from clusim.report.page_data import Feed
from clusim.results.intervals import Union
from clusim.results.trace.reader import read_result
from clusim.training import TrainingResult, train
from clusim.workload import load_workload
from clusim.workload.parallel import fold
from support.covering import THOROUGH
from support.limits import Counted
from support.workloads import tiny

A100 = clusim.load("dgx-a100")
CASES = {
    "pipeline": "parallel: {tensor: 2, pipeline: 2, data: 1}",
    "overlapped": "parallel: {tensor: 2, pipeline: 2, data: 2}\npipeline: {messages: overlapped}",
    "interleaved": "parallel: {tensor: 2, pipeline: 2, data: 1}\npipeline: {schedule: interleaved, chunks: 2}",
    "sequence": "parallel: {tensor: 4, data: 1}\ntensor: {sequence_parallel: true}",
    "host": "parallel: {tensor: 2, pipeline: 2, data: 1}\nhost: {framework: megatron}",
}
SHIPPED = ("resnet50-dgx1v", "bert-parameter-server")
LARGE = ("bert-allreduce", "megatron-22b")
"""Steps of 10 s of processor time and more, in thorough runs only."""


def traced(name: str, path: Path, **options: Any) -> TrainingResult:
    """Simulate steps with a trace: of a small case, all of whose blocks are folded, or of a shipped workload."""
    if name in (*SHIPPED, *LARGE):
        return train(load_workload(name), trace_out=path, confirm=False, **options)
    how: dict[str, Any] = {"granularity": 4096, "fold": "all", "confirm": False, **options}
    return train(tiny(CASES[name]), A100, trace_out=path, **how)


def command_rows(found: TrainingResult) -> dict[int, tuple[int, int, int]]:
    """Return compute, exposed and all communication of every rank, as the command says them [ps]."""
    return {row.rank: (row.compute_ps, row.exposed_ps, row.communication_ps) for row in found.ranks}


@pytest.mark.parametrize("name", [*CASES, *SHIPPED, *(LARGE if THOROUGH else ())])
def test_totals_of_a_trace_are_those_of_the_command(name: str, tmp_path: Path) -> None:
    path = tmp_path / "step.h5"
    found = traced(name, path, steps=1)
    assert found.fold.folded or name == "bert-parameter-server"
    wanted = command_rows(found)
    rows = [row for row in overlap(path).rows() if row["level"] == "rank"]
    names = ("compute_ps", "exposed_ps", "communication_ps")
    totals = {int(row["of"]): tuple(row[name] for name in names) for row in rows}
    # A server is no rank of the step.
    assert {rank: totals[rank] for rank in wanted} == wanted
    shares = Feed.open(path, findings=False).shares
    page = zip(shares.ranks, shares.compute + shares.both, shares.exposed, strict=True)
    shown = {rank: (busy, bare) for rank, busy, bare in page}
    assert {rank: shown[rank] for rank in wanted} == {rank: own[:2] for rank, own in wanted.items()}
    assert blame(path).facts["time_ps"] == found.step_ps[-1]
    assert sum(row["time_ps"] for row in blame(path).rows()) == found.step_ps[-1]


@pytest.mark.parametrize(
    ("fold", "granularity"),
    [
        *[("none", "coarse"), ("all", "step"), ("proved", "coarse")],
        *([("none", "step"), ("all", "coarse"), ("proved", "step")] if THOROUGH else []),
    ],
)
def test_a_trace_takes_no_run_more_and_has_the_answer_of_steps_without(
    fold: str, granularity: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.h5"
    plain, kept = Counted(), Counted()
    told: dict[str, Any] = {"fold": fold, "granularity": granularity, "confirm": False}
    work = tiny(CASES["overlapped"])
    found = train(work, A100, watch=plain, **told)
    traced = train(work, A100, watch=kept, trace_out=path, **told)
    assert kept.runs == plain.runs
    assert (traced.step_ps, traced.fold, traced.ranks) == (found.step_ps, found.fold, found.ranks)
    shown = read_result(path)
    assert shown.fingerprint == traced.result.fingerprint == found.result.fingerprint
    assert shown.provenance.granularity_note == found.result.provenance.granularity_note
    rows = shown.tasks.blocks
    assert (found.fold.folded == 0) == (rows is None)


@pytest.mark.parametrize("name", ["pipeline", "overlapped"])
def test_the_last_of_several_steps_has_the_totals_of_the_command(name: str, tmp_path: Path) -> None:
    """The command shows the last step: the trace has all of them, so its tasks are cut there."""
    path = tmp_path / "steps.h5"
    found = traced(name, path, steps=3)
    low, high = sum(found.step_ps[:-1]), sum(found.step_ps)
    for tasks, own in zip(run_tasks(open_traced(path)), command_rows(found).values(), strict=True):
        computing, talking = (
            Union(start[kind], tasks.end_ps[kind])
            for start, kind in (
                (tasks.start_ps, tasks.computes),
                (tasks.moves_ps, tasks.communicates),
            )
        )
        window = np.clip(np.stack([talking.start_ps, talking.end_ps]), low, high)
        hidden = int(computing.within(*window).sum())
        moving = int((window[1] - window[0]).sum())
        compute = int(computing.within(low, high))
        assert (compute, moving - hidden, moving) == own


def test_a_folded_trace_has_what_a_written_one_has(tmp_path: Path) -> None:
    """The same tasks by name and kind, the same collectives and bytes; times differ by what folding moves them."""
    work = tiny(CASES["pipeline"])
    paths = [tmp_path / f"{fold}.h5" for fold in ("none", "all")]
    for path in paths:
        train(work, A100, steps=1, granularity=4096, fold=path.stem, trace_out=path, confirm=False)
    plain, folded = ([task for rank in Run.open(path).by_rank() for task in rank] for path in paths)
    kernels, calls = (
        [Counter((t.rank, t.stream) for t in rows if t.kind == kind) for rows in (plain, folded)]
        for kind in ("kernel", "program")
    )
    assert calls[0] == calls[1]
    # A block ends with a kernel, which a pass that is written goes on with.
    assert all(kernels[0][key] <= kernels[1][key] for key in kernels[0])
    assert {task.name for task in plain} == {task.name for task in folded}
    asked = [
        Counter(
            {
                (row["operation"], row["size_bytes"], row["ranks"]): row["times"]
                for row in collectives(path).rows()
            }
        )
        for path in paths
    ]
    assert set(asked[0]) == set(asked[1])
    assert collectives(paths[0]).facts["collectives"] == collectives(paths[1]).facts["collectives"]
    kernel_bytes = [
        {row["endpoint"]: row["kernel_bytes"] for row in memory(path).rows()} for path in paths
    ]
    assert kernel_bytes[0] == kernel_bytes[1]


def test_the_timeline_shows_passes(tmp_path: Path) -> None:
    path = tmp_path / "step.h5"
    traced("pipeline", path, steps=1)
    line = timeline(path)[0]
    assert line.startswith("rank 0 |")
    assert set("fFbB") & set(line)
    names = {task.name for rank in Run.open(path).by_rank() for task in rank}
    assert {"F0", "B0", "F7", "B7"} <= names
    assert not any("[folded]" in name for name in names)


def test_exports_have_the_tasks_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "step.h5"
    found = traced("sequence", path, steps=1)
    tasks = sum(len(rank) for rank in Run.open(path).by_rank())
    assert write_perfetto(path, tmp_path / "x.pf", counters=False).slices >= tasks
    written = write_kineto(path, tmp_path / "kineto")
    for file, row in zip(written, found.ranks, strict=True):
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        own = [event for event in events if event.get("cat") == "kernel"]
        kernels_us = sum(
            event["dur"] for event in own if "Process Group Ranks" not in event["args"]
        )
        assert kernels_us == pytest.approx(row.compute_ps / 1e6)
        groups = {event["args"].get("Process Group Ranks") for event in own} - {None}
        assert groups == {"[0, 1, 2, 3]"}
    lines = write_nccl_log(path, tmp_path / "nccl.log")
    assert lines > sum(row["times"] * row["ranks"] for row in collectives(path).rows())


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a step with folded blocks."""
    path = tmp_path_factory.mktemp("blocks") / "step.h5"
    traced("pipeline", path, steps=1)
    return path


@pytest.mark.parametrize(
    ("column", "row", "value", "said"),
    [
        ("call", 0, 1 << 20, "must be 0 to"),
        ("start", 0, 1 << 50, "an end before its start"),
        ("stream", 0, 99, "must be 0 to"),
        ("rank", 0, 50, "must be 0 to"),
        ("pause", 0, 1 << 30, "must be 0 to"),
        ("end", -1, 1 << 60, "a task that ends after its pause"),
    ],
)
def test_damaged_blocks_are_refused_in_a_line(
    column: str, row: int, value: int, said: str, blocks: Path, tmp_path: Path
) -> None:
    path = shutil.copy(blocks, tmp_path / "step.h5")
    with h5py.File(path, "r+") as file:
        values = file[f"/blocks/{column}"][:]
        values[row] = value
        file[f"/blocks/{column}"][...] = values
    with pytest.raises(TraceError, match=said):
        read_result(path)


def test_too_many_tasks_of_blocks_are_not_in_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MOST_ROWS", 10)
    found = traced("pipeline", tmp_path / "step.h5", steps=1)
    assert found.fold.folded
    names = {t.name for rank in Run.open(tmp_path / "step.h5").by_rank() for t in rank}
    assert "F0 [folded]" in names
