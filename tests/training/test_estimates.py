"""Estimates of training steps: their clock by hand, their parts once, and how far they are off the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base import kept as base_kept
from clusim.base.kept import PLACE, SampleCache
from clusim.results.causes import CauseKind
from clusim.results.replicated import DIMENSIONS, RankPattern
from clusim.training import TrainRequest, parts, train
from clusim.training.api import inputs
from clusim.training.breakdown import NOTHING, Spans
from clusim.training.clock import Clock, PhaseTime
from clusim.training.estimate import StepEstimator, estimate, estimated
from clusim.training.uncomposed import StepEstimate, overlap_notes
from support.machines import cluster_of, pcie_machine
from support.workloads import ideal, tiny

A100 = clusim.load("dgx-a100")
WIDE = {"model": "{base: gpt3-1.3b, layers: 1, vocab: 1024}", "sequence": "1024"}
PAIR = clusim.load("dgx-a100", nodes=2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path))
    return tmp_path


def both(text: str, fabric: clusim.Fabric = A100, **replaced: str) -> tuple[Any, StepEstimate]:
    """Return a step of four small layers as the engine has it, nothing folded, and its estimate."""
    work, options = tiny(text, **replaced), {"steps": 1, "granularity": 16384}
    return train(work, fabric, fold="none", **options), estimate(work, fabric, **options)


def test_a_kernel_beside_communication_goes_on_at_its_share_of_its_pace() -> None:
    clock = Clock(ideal(1), "clock")
    # 4 us at half the pace are 2 us of 10; the other 8 us are done alone.
    clock.move([0], "data", PhaseTime(4_000_000, 0.5), {})
    clock.kernel(0, compute_ps=10_000_000)
    assert clock.end[-1] == 12_000_000
    # 2 us alone, then 4 us beside, of which 2 us remain undone of 10: 6 us are left for afterwards.
    clock = Clock(ideal(1), "clock")
    first = clock.delay(0, 2_000_000, stream="data")
    clock.move([0], "data", PhaseTime(4_000_000, 0.5), {0: (first,)})
    clock.kernel(0, compute_ps=10_000_000)
    assert clock.end[-1] == 12_000_000
    assert (clock.kernel_ps, clock.alone_ps) == (12_000_000, 10_000_000)


def test_communication_starts_when_the_last_of_its_ranks_is_ready() -> None:
    clock = Clock(ideal(2), "clock")
    waits = {rank: (clock.kernel(rank, compute_ps=10 * (rank + 1)),) for rank in range(2)}
    done = clock.move([0, 1], "tensor", PhaseTime(5), waits)
    assert [clock.when(done[rank]) for rank in range(2)] == [25, 25]
    again = clock.move([0], "tensor", PhaseTime(5), {})
    assert clock.when(again[0]) == 30


@pytest.mark.parametrize(
    "text",
    [
        "parallel: {data: 1}",
        "parallel: {pipeline: 4, data: 1}\npipeline: {schedule: gpipe}",
        "parallel: {pipeline: 4, data: 1}\npipeline: {schedule: 1f1b, messages: overlapped}",
    ],
)
def test_where_links_cost_next_to_nothing_an_estimate_is_the_step(text: str) -> None:
    real, found = both("optimizer: sgd\nhardware: {gemm_fraction: 0.000001}\n" + text, ideal(4))
    assert found.step_ps[-1] == pytest.approx(real.step_ps[-1], rel=1e-5)
    assert found.bubble_fraction == pytest.approx(real.bubble_fraction, abs=1e-5)
    assert found.mean("compute") == pytest.approx(real.mean("compute"), rel=1e-5)


PLANS = {
    "tensor": "parallel: {tensor: 4, data: 1}",
    "sequence": "parallel: {tensor: 4, data: 1}\ntensor: {sequence_parallel: true}",
    "ddp": "parallel: {data: 8}",
    "zero1": "parallel: {tensor: 2, data: 4}\ndata: {kind: zero1}",
    "pipeline": "parallel: {tensor: 2, pipeline: 2, data: 2}\npipeline: {schedule: 1f1b}",
    "interleaved": "parallel: {tensor: 2, pipeline: 2, data: 1}\npipeline: {schedule: interleaved, chunks: 2}",
    "host": "parallel: {tensor: 2, data: 2}\nhost: {framework: pytorch}",
}


@pytest.mark.parametrize("name", PLANS)
def test_an_estimate_is_within_three_percent_of_the_engine(name: str) -> None:
    wide = {"model": "{base: gpt3-1.3b, layers: 4}", "sequence": "1024"}
    real, found = both(PLANS[name], **wide)
    assert found.step_ps[-1] == pytest.approx(real.step_ps[-1], rel=0.03)
    assert found.mean("compute") == pytest.approx(real.mean("compute"), rel=0.03)
    assert found.mfu == pytest.approx(real.mfu, rel=0.03)
    assert found.executed_flops == real.executed_flops
    assert {dim: own.sent_bytes for dim, own in found.traffic.items()} == {
        dim: own.sent_bytes for dim, own in real.traffic.items()
    }
    assert [row.rank for row in found.ranks] == [row.rank for row in real.ranks]


def test_messages_between_machines_are_parts_too() -> None:
    text = "parallel: {tensor: 8, pipeline: 2, data: 1}\npipeline: {schedule: 1f1b}"
    real, found = both(text, PAIR, model="{base: gpt3-1.3b, layers: 4}", sequence="1024")
    assert found.step_ps[-1] == pytest.approx(real.step_ps[-1], rel=0.03)


def test_messages_of_one_replica_represent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward messages of a microbatch pair, each with the two tensor ranks of the first replica."""
    written, between = [], StepEstimator.between

    def counted(self: StepEstimator, pairs: Any, *rest: Any, **options: Any) -> Any:
        written.append(pairs)
        return between(self, pairs, *rest, **options)

    monkeypatch.setattr(StepEstimator, "between", counted)
    text = "parallel: {tensor: 2, pipeline: 2, data: 2}\npipeline: {schedule: 1f1b}"
    estimate(tiny(text), A100, steps=1, granularity="coarse")
    assert {len(pairs) for pairs in written} == {2}
    assert len({rank for pairs in written for pair in pairs for rank in pair}) == 4


def request(text: str, **options: Any) -> TrainRequest:
    return TrainRequest(*inputs(tiny(text), A100), steps=1, granularity="coarse", **options)


def test_parts_are_simulated_once_and_shared_by_what_differs_elsewhere(folder: Path) -> None:
    text = "parallel: {tensor: 2, pipeline: %d, data: 1}\npipeline: {schedule: %s}"
    first = estimated(request(text % (2, "1f1b")), SampleCache(folder))
    assert 0 < first.simulated <= first.parts
    again = estimated(request(text % (2, "1f1b")), SampleCache(folder))
    assert (again.simulated, again.step_ps, again.ranks) == (0, first.step_ps, first.ranks)
    other = estimated(request(text % (2, "gpipe")), SampleCache(folder))
    assert other.simulated == 0
    assert other.bubble_fraction == pytest.approx(first.bubble_fraction, rel=0.2)


def test_what_another_version_kept_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SampleCache(folder).put("question", 1)
    assert SampleCache(folder).get("question") == 1
    monkeypatch.setattr(base_kept, "model_digest", lambda: "another")
    assert SampleCache(folder).get("question") is None


def test_a_step_that_is_one_part_has_the_verdict_and_limit_of_the_simulated_one() -> None:
    text = "parallel: {data: 4}\nstragglers: {ranks: {2: 1.5}}"
    work = tiny(text, collectives="nccl")
    real = train(work, A100, steps=1, granularity="coarse")
    before = real.verdict
    for found in [estimate(work, A100, steps=1, granularity="coarse") for _ in range(2)]:
        assert found.verdict == before
        assert found.diagnose() == real.diagnose() == found.verdict
        assert found.error_bound == real.error_bound
    causes = [cause for cause in found.verdict.causes if cause.kind == CauseKind.STRAGGLER]
    assert "rank 2" in causes[0].words()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:5],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data.replace(b'"time_ps": ', b'"time_ps": 1'),
        lambda data: data.partition(b"\n")[2],
    ],
)
def test_a_damaged_part_is_simulated_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    wanted = request("parallel: {tensor: 2, data: 1}")
    first = estimated(wanted, SampleCache(folder))
    for path in folder.glob("parts-*/*"):
        path.write_bytes(damage(path.read_bytes()))
    again = estimated(wanted, SampleCache(folder))
    assert (again.simulated, again.step_ps) == (first.simulated, first.step_ps)
    assert estimated(wanted, SampleCache(folder)).simulated == 0


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    wanted = request("parallel: {tensor: 2, data: 1}")
    assert (
        estimated(wanted, SampleCache(place)).simulated
        == estimated(wanted, SampleCache(place)).simulated
        > 0
    )


def test_clearing_removes_parts_and_nothing_else(folder: Path) -> None:
    kept = SampleCache(folder)
    kept.put("question", [1, 2])
    (folder / "mine.txt").write_text("stays")
    assert kept.sizes() == (1, 41 + len("[1, 2]"))
    kept.clear()
    assert kept.sizes() == (0, 0)
    assert kept.get("question") is None
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "parallel: {data: 2}\ndata: {kind: parameter-server}",
        "parallel: {tensor: 2, data: 1}\nstragglers: {ranks: {1: 1.5}}",
    ],
)
def test_a_step_whose_ranks_differ_is_one_part(text: str, folder: Path) -> None:
    real = train(tiny(text), A100, steps=1, granularity="coarse")
    for simulated in (1, 0):
        found = estimated(request(text), SampleCache(folder))
        assert (found.parts, found.simulated) == (1, simulated)
        assert (found.step_ps, found.ranks) == (real.step_ps, real.ranks)


def test_a_file_that_was_changed_is_another_question(folder: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 1024, "hidden_act": "silu",
        "tie_word_embeddings": False,
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(
        "model: {huggingface: config.json}\nsequence: 128\nbatch: {global: 8, micro: 1}\n"
        "parallel: {tensor: 8}\nstragglers: {ranks: {1: 1.5}}\n"
    )
    found = []
    for layers in (1, 2):
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        wanted = TrainRequest(*inputs(path, A100), steps=1, granularity="coarse")
        found.append(estimated(wanted, SampleCache(folder)))
    assert [one.simulated for one in found] == [1, 1]
    assert found[1].step_ps[-1] > found[0].step_ps[-1]


def test_a_fault_is_part_of_the_question(folder: Path) -> None:
    text = "parallel: {tensor: 2, data: 1}"
    plain = estimated(request(text), SampleCache(folder))
    setup, work = inputs(tiny(text), A100, faults=("rank 1 slow x2",))
    wanted = TrainRequest(setup, work, steps=1, granularity="coarse", estimate=True)
    assert estimated(wanted, SampleCache(folder)).step_ps[-1] > 1.5 * plain.step_ps[-1]


FOUR = clusim.load("dgx-a100", nodes=4)


@pytest.mark.parametrize("text", ["{tensor: 8, pipeline: 4}", "{tensor: 8, data: 4}"])
def test_parts_do_not_feel_machines_that_take_no_part(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = inputs(tiny(f"parallel: {text}\npipeline: {{schedule: 1f1b}}"), FOUR)
    wanted = TrainRequest(*asked, steps=1, granularity="coarse")
    cut = estimated(wanted, SampleCache(folder / "cut"))
    monkeypatch.setattr(parts, "_on_machines", lambda plan, _: plan)
    whole = estimated(wanted, SampleCache(folder / "whole"))
    assert cut.simulated == whole.simulated > 0
    assert (cut.step_ps, cut.ranks, cut.traffic) == (whole.step_ps, whole.ranks, whole.traffic)


@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_an_estimate_pauses_as_often_as_the_step(kind: str, tmp_path: Path) -> None:
    """Each node sends through a slot of a third of the rate of its cable, which it fills and pauses.

    A resumption travels 2 km, so that the slot is idle for 10 us of every pause. In bursts of slices, thresholds of
    megabytes would never pause a wire.
    """
    times = []
    for pfc in ("none", "{xoff: 20KiB, xon: 8KiB}"):
        extra = f"link_types: {{net: {{base: roce-200, length: 2 km, pfc: {pfc}}}}}"
        text = pcie_machine(gpus=1, nic="cx6-roce200", extra=extra)
        text = text.replace("type: pcie-gen4-x16}", "type: pcie-gen4-x4}", 1)
        text = text.replace("link: ib-hdr, switch: quantum", "link: net, switch: spectrum3")
        fabric = cluster_of(text, tmp_path, nodes=3)
        more = {"batch": "{global: 3, micro: 1}", **WIDE}
        work = tiny(f"parallel: {{data: 3}}\ndata: {{kind: {kind}}}", **more)
        real = train(work, fabric, steps=1, granularity="packet")
        found = estimate(work, fabric, steps=1, granularity="coarse")
        if pfc != "none":
            assert found.step_ps[-1] == pytest.approx(real.step_ps[-1], rel=0.03)
            assert not found.whole
        times.append(real.step_ps[-1])
    assert times[1] > 1.2 * times[0]


def test_a_note_bounds_the_mutual_slow_down_of_concurrent_communication() -> None:
    """Two of four spans overlap: 20 of 100 time units from 10 to 110, of which the repeated one has 10."""
    data, tensor = DIMENSIONS.index("data"), DIMENSIONS.index("tensor")
    none = np.zeros((0, 2), np.int64)
    moving = np.array([(0, 30, data), (20, 30, tensor), (50, 60, data)])
    again = RankPattern(none, np.array([(0, 10, tensor)]), 10)
    spans = Spans(none, moving, none, [(np.array([50, 150]), again)])
    (note,) = overlap_notes([NOTHING, spans], 10, 110)
    assert note.startswith("communication of data and tensor overlaps for 20.0% of the step")
    assert overlap_notes([Spans(none, moving[:1], none, [])], 10, 110) == []


def test_an_estimate_reports_communication_that_overlaps() -> None:
    """Gradients are reduced while the layers below are computed, whose tensor parallelism communicates as well."""
    text = "parallel: {tensor: 2, data: 4}"
    found = estimate(tiny(text), A100, steps=1, granularity="coarse")
    assert any("communication of data and tensor overlaps" in note for note in found.notes)
    alone = estimate(tiny("parallel: {data: 8}"), A100, steps=1, granularity="coarse")
    assert alone.notes == []
