"""What makes large steps fast changes nothing, or no more than it says: joint pauses, folded messages, the grain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.lowering import grain
from clusim.results.replicated import BlockTasks
from clusim.training import run as module
from clusim.training.breakdown import NOTHING
from clusim.training.proof import states
from clusim.training.result import TrainingResult
from clusim.workload.parallel.blocks import BlockEmitter
from clusim.workload.parallel.fold import Folded, FoldedBlock
from clusim.workload.parallel.symmetry import EqualPlaces
from support.workloads import ideal, tiny

A100 = clusim.load("dgx-a100")
PIPELINE = "parallel: {tensor: 2, pipeline: 2, data: 1}\npipeline: {schedule: %s}\n"


def pipelined(schedule: str, **options: Any) -> TrainingResult:
    return clusim.train(
        tiny(PIPELINE % schedule), A100, **{"steps": 1, "granularity": 512, **options}
    )


def test_one_pause_for_all_ranks_is_a_pause_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = pipelined("gpipe", fold="all")

    def each(self: BlockEmitter, ranks: Sequence[int], values: Mapping[int, Any], *_: Any) -> Any:
        return [((rank,), values[rank]) for rank in ranks]

    monkeypatch.setattr(BlockEmitter, "_alike", each)
    own = pipelined("gpipe", fold="all")
    assert joint.tasks < own.tasks
    assert joint.step_ps == own.step_ps
    assert joint.ranks == own.ranks
    assert (joint.fold, joint.traffic, joint.sharing) == (own.fold, own.traffic, own.sharing)


def test_folded_messages_take_what_they_take_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pipelined("interleaved, chunks: 2", fold="none")
    blocks = pipelined("interleaved, chunks: 2", fold="all")
    monkeypatch.setattr(module, "MOST_MESSAGES", 0)
    folded = pipelined("interleaved, chunks: 2", fold="all")
    # 8 microbatches forwards and backwards over each of the 3 borders between parts, both lanes in one block.
    assert folded.fold.folded == blocks.fold.folded + 8 * 2 * 3
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=5e-4)
    assert folded.step_ps[-1] == pytest.approx(blocks.step_ps[-1], rel=1e-6)
    assert folded.mean("exposed") == pytest.approx(plain.mean("exposed"), rel=5e-3)
    assert folded.traffic == plain.traffic


def test_messages_that_block_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written = pipelined("1f1b", fold="all")
    monkeypatch.setattr(module, "MOST_MESSAGES", 0)
    assert pipelined("1f1b", fold="all").result.fingerprint == written.result.fingerprint


def test_folded_reductions_that_nothing_is_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    work = tiny("parallel: {data: 4}\ndata: {kind: zero1, overlap: false}\n")
    plain = clusim.train(work, A100, steps=1, granularity="packet", fold="none")
    monkeypatch.setattr(module, "MOST_RANKS", 1)
    folded = clusim.train(work, A100, steps=1, granularity="packet", fold="all")
    assert folded.result.grants == 0 < plain.result.grants
    assert folded.fold.proved_identical == folded.fold.folded
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=1e-4)
    assert folded.traffic == plain.traffic


def test_reductions_beside_kernels_are_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    work = tiny("parallel: {data: 4}\ndata: {kind: ddp, bucket: 100KB, first_bucket: 50KB}\n")
    plain = clusim.train(work, ideal(4), steps=1, granularity=65536, fold="none")
    monkeypatch.setattr(module, "MOST_RANKS", 1)
    folded = clusim.train(work, ideal(4), steps=1, granularity=65536, fold="all")
    assert 0 < folded.fold.proved_identical < folded.fold.folded
    assert folded.fold.disturbed_share > 0
    # On links that cost nothing there is nothing to lose.
    assert folded.step_ps[-1] == pytest.approx(plain.step_ps[-1], rel=1e-3)
    assert folded.traffic == plain.traffic


def block(rank: int, wires: tuple[str, ...], *, message: bool = True) -> FoldedBlock:
    """Return a block of 100 ps at a rank; its task has the number of the rank."""
    found = Folded((rank,), {rank: 100}, BlockTasks.of_kernels((rank,), 100, 0), {}, 0, wires)
    return FoldedBlock({rank: rank}, {rank: ()}, found, message=message)


def test_messages_that_meet_on_a_wire_are_not_proved() -> None:
    blocks = [block(0, ("a", "b")), block(1, ("b",)), block(2, ("c",)), block(2, (), message=False)]
    start, end = np.array([0, 70, 200]), np.array([100, 170, 300])
    found = [state for _, state in states(blocks, {}, start, end)]
    assert [state.beside_ps for state in found] == [30, 30, 100, 100]
    assert not any(state.proved for state in found)
    apart = [state for _, state in states(blocks[:2], {}, np.array([0, 100]), np.array([100, 200]))]
    assert [(state.beside_ps, state.proved) for state in apart] == [(0, True)] * 2


def test_messages_beside_what_is_written_elsewhere_are_not_proved() -> None:
    spans = {5: replace(NOTHING, active=np.array([[90, 400]], np.int64))}
    ((_, state),) = states([block(0, ("a",))], spans, np.array([0]), np.array([100]))
    assert (state.beside_ps, state.proved) == (10, False)


def test_machines_at_the_same_switches_are_equal_places() -> None:
    places = EqualPlaces(clusim.load("dgx-a100", nodes=40))  # 20 machines at a leaf of each rail

    def pair(one: int, two: int) -> tuple[int, ...]:
        return tuple(machine * 8 + local for machine in (one, two) for local in range(8))

    near, far = places.of(pair(0, 1)), places.of(pair(3, 30))
    assert near.proved
    assert places.of(pair(12, 7)) == near
    assert places.of(pair(0, 1)[::-1]) != near
    assert not far.proved
    assert far.key != near.key
    assert places.of(pair(9, 21)) == far


CASES = {
    "tensor": "parallel: {tensor: 8}\n",
    "sequence": "parallel: {tensor: 4}\ntensor: {sequence_parallel: true}\n",
    "data": "parallel: {data: 8}\n",
    "sharded": "parallel: {data: 4}\ndata: {kind: fsdp}\n",
    "stages": "parallel: {tensor: 2, pipeline: 2, data: 2}\n",
}


@pytest.mark.parametrize("name", CASES)
def test_coarse_bursts_stay_within_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tiny(CASES[name], batch="{global: 8, micro: 1}", collectives="nccl")
    work.model.hidden, work.model.intermediate, work.sequence = 512, 2048, 512
    exact = clusim.train(work, A100, steps=1, granularity="packet")
    finest = replace(grain.RULES[grain.COARSE], exact_hops=1, target_hops=1, most_hops=1)
    monkeypatch.setitem(grain.RULES, grain.COARSE, finest)
    coarse = clusim.train(work, A100, steps=1, granularity="coarse")
    assert exact.error_bound == 0
    assert coarse.error_bound is not None
    off = abs(coarse.step_ps[-1] / exact.step_ps[-1] - 1)
    assert 0 < off <= coarse.error_bound


def test_the_grain_of_a_step_is_what_its_error_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    finest = replace(grain.RULES[grain.COARSE], exact_hops=1, target_hops=1, most_hops=1)
    monkeypatch.setitem(grain.RULES, grain.COARSE, finest)
    work = tiny(CASES["tensor"], collectives="nccl")
    found = clusim.train(work, A100, steps=1)
    # Most of it is exposed: 20% of that is too much, so what is cheap is exact.
    assert found.error_bound == 0
    assert found.step_ps == clusim.train(work, A100, steps=1, granularity="packet").step_ps
    monkeypatch.setattr(module, "WANTED_ERROR", 1.0)
    found = clusim.train(work, A100, steps=1)
    assert found.step_ps == clusim.train(work, A100, steps=1, granularity="coarse").step_ps
