"""Folded steps against the same steps with nothing folded."""

from __future__ import annotations

from pathlib import Path

import pytest

import clusim
from clusim.workload import load_workload
from clusim.workload.parallel import fold
from support.covering import THOROUGH
from support.workloads import tiny

A100 = clusim.load("dgx-a100")
WIDE = {"model": "{base: gpt3-1.3b, layers: 4}", "sequence": "512"}
PIPELINE = "parallel: {tensor: 2, pipeline: 2, data: %d}\npipeline: {schedule: %s}"

CASES = {
    "gpipe": PIPELINE % (1, "gpipe"),
    "1f1b": PIPELINE % (1, "1f1b"),
    "overlapped": PIPELINE % (1, "1f1b, messages: overlapped"),
    "interleaved": PIPELINE % (1, "interleaved, chunks: 2"),
    "replicas": PIPELINE % (2, "1f1b"),
    "sequence": "parallel: {tensor: 4, data: 1}\ntensor: {sequence_parallel: true}",
    "host": "parallel: {tensor: 2, pipeline: 2, data: 1}\nhost: {framework: megatron}",
}


@pytest.mark.parametrize("name", CASES)
def test_a_folded_step_takes_what_it_takes_written(name: str) -> None:
    # With less work per kernel the host is in time for fewer of them, and folded blocks hide more.
    work = tiny(CASES[name], **WIDE | ({"sequence": "1024"} if name == "host" else {}))
    # In larger bursts messages of chunks, and of late hosts, differ by more than is asserted.
    size_bytes = 4096 if name in ("interleaved", "host") else 16384
    plain, folded, every = (
        clusim.train(work, A100, steps=1, granularity=size_bytes, fold=blocks)
        for blocks in ("none", "auto", "all")
    )
    assert (
        0 < folded.fold.proved_identical == folded.fold.folded < every.fold.folded
        or name == "sequence"
    )
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=5e-4)
    assert folded.mean("exposed") == pytest.approx(plain.mean("exposed"), rel=1e-3)
    # What was not proved may differ by more: messages and reductions are beside it. Largest: 0.201%.
    assert every.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=2.1e-3)


@pytest.mark.parametrize("name", ["resnet50-dgx1v", *(["bert-allreduce"] if THOROUGH else [])])
def test_a_shipped_step_folded_takes_what_it_takes_written(name: str) -> None:
    """In bursts of one size, so that only folding differs."""
    plain, folded = (
        clusim.train(load_workload(name), steps=1, granularity="coarse", fold=blocks)
        for blocks in ("none", "auto")
    )
    assert folded.fold.proved_identical == folded.fold.folded > 0
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=5e-4)


def test_blocks_that_a_trace_cannot_hold_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MOST_ROWS", 1)
    work = tiny(CASES["gpipe"])
    how = {"steps": 1, "granularity": "coarse", "trace_out": tmp_path / "run.h5", "confirm": False}
    notes = clusim.train(work, A100, **how).notes
    assert notes[-1].startswith("trace: ")
    assert notes[-1].endswith("replicated blocks are pauses, too many tasks")
    monkeypatch.undo()
    assert not any(note.startswith("trace: ") for note in clusim.train(work, A100, **how).notes)
