"""Estimates of training steps: their clock by hand, their parts once, and how far they are off the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base import kept as base_kept
from clusim.base.kept import PLACE, SampleCache
from clusim.results.cause_kinds import CauseKind
from clusim.training import TrainRequest, parts, train
from clusim.training.api import inputs
from clusim.training.estimate import estimate, estimated
from clusim.training.parts import StepPart
from clusim.training.step_calls import ONE, StepTimer
from clusim.training.step_job import JobEmitter, StepBlock, StepCall, StepJob
from clusim.training.uncomposed import StepEstimate
from clusim.workload.layers import Comm
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


class ByHand(StepTimer):
    """Times of calls by their dimensions: time [ps], part of a kernel's pace, pace beside another call."""

    def __init__(self, calls: dict[str, tuple[int, float, float]]) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.calls = calls

    def part(self, call: StepCall) -> StepPart:
        time_ps, share, _ = self.calls[call.key[1].dim]
        return StepPart(time_ps, share, {}, 0.0)

    def _call_rates(self, one: StepCall, other: StepCall) -> tuple[int, ...]:
        return tuple(round(ONE * self.calls[call.key[1].dim][2]) for call in (one, other))

    def class_of(self, work: Any) -> int:
        return id(work)


def call(dim: Any, *ranks: int) -> StepCall:
    return StepCall(ranks, ((), Comm(dim, "allreduce", 1)), ranks, None)  # type: ignore[arg-type]


def test_a_kernel_beside_communication_goes_on_at_its_share_of_its_pace() -> None:
    timer = ByHand({"data": (4_000_000, 0.5, 1.0)})
    # 4 us at half the pace are 2 us of 10; the other 8 us are done alone.
    job = StepJob(ideal(1), "by hand")
    job.enter((0,), "data", call("data", 0), {})
    job.kernel(0, compute_ps=10_000_000)
    assert timer.play(job.steps)[-1] == 12_000_000
    # 2 us alone, then 4 us beside, of which 2 us remain undone of 10: 6 us are left for afterwards.
    job = StepJob(ideal(1), "by hand")
    first = job.delay(0, 2_000_000, stream="data")
    job.enter((0,), "data", call("data", 0), {0: (first,)})
    job.kernel(0, compute_ps=10_000_000)
    assert timer.play(job.steps)[-1] == 12_000_000


def test_communication_starts_when_the_last_of_its_ranks_is_ready() -> None:
    timer, job = ByHand({"tensor": (5, 1.0, 1.0)}), StepJob(ideal(2), "by hand")
    waits = {rank: (job.kernel(rank, compute_ps=10 * (rank + 1)),) for rank in range(2)}
    job.enter((0, 1), "tensor", call("tensor", 0, 1), waits)
    job.enter((0,), "tensor", call("tensor", 0), {})
    assert timer.play(job.steps).tolist() == [10, 20, 25, 25, 30]


def block(job: StepJob) -> StepBlock:
    """Return 2 us of kernels, 4 us of communication, 2 us of kernels."""
    first = job.kernel(0, compute_ps=2_000_000)
    (middle,) = job.enter((0,), "tensor", call("tensor", 0), {0: (first,)})[0]
    job.kernel(0, compute_ps=2_000_000, after=(middle,))
    return StepBlock(job.steps, 0)


def test_calls_of_a_rank_slow_each_other() -> None:
    """At half its pace beside the other, the first lasts 8 us; the second then has 10 - 8 x 0.75 us left."""
    timer = ByHand({"tensor": (4_000_000, 1.0, 0.5), "data": (10_000_000, 1.0, 0.75)})
    job = StepJob(ideal(1), "by hand")
    for key in ("tensor", "data"):
        job.enter((0,), key, call(key, 0), {})
    assert timer.play(job.steps).tolist() == pytest.approx([8_000_000, 12_000_000], abs=1)


def test_a_block_beside_a_call_has_the_pace_of_its_work() -> None:
    """Kernels of 4 us last 8 beside the call, the inner call 8 for 4: 16 us for 8, in which the call does 14 of 16.

    Two blocks need 32 us; the call of 30 us does 28 in them and is done at 34.
    """
    timer = ByHand({"tensor": (4_000_000, 1.0, 0.5), "data": (30_000_000, 0.5, 0.75)})
    inner = block(StepJob(ideal(1), "by hand"))
    assert timer.play(inner.inner)[-1] == 8_000_000
    job = StepJob(ideal(1), "by hand")
    job.enter((0,), "data", call("data", 0), {})
    tail = job.enter((0,), "compute", inner, {}, "F0")
    job.enter((0,), "compute", inner, tail, "F1")
    ends = timer.play(job.steps) / 1e6
    assert ends.tolist() == pytest.approx([34, 16, 32], rel=1e-4)
    # Written out, its kernels and calls need as long.
    job = StepJob(ideal(1), "by hand")
    job.enter((0,), "data", call("data", 0), {})
    block(job)
    assert timer.play(job.steps)[-1] / 1e6 == pytest.approx(16, rel=1e-4)


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


def test_hosts_issue_the_blocks_of_a_pass_one_by_one() -> None:
    """An eager host is behind its GPU as long as in the simulation, to the nanosecond."""
    model = (
        "{base: gpt3-1.3b, layers: 8, hidden: 1024, heads: 8, head_size: 128, kv_heads: 8,"
        " intermediate: 4096, vocab: 1024}"
    )
    text = "parallel: {data: 8}\nhost: {framework: pytorch, speed: 4}"
    work = tiny(text, sequence="2048", model=model)
    real = train(work, A100, steps=1, granularity="coarse")
    found = estimate(work, A100, steps=1, granularity="coarse")
    assert not found.whole
    assert found.mean("host") == pytest.approx(real.mean("host"), abs=1e-9)


def test_messages_of_one_replica_represent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward messages of a microbatch pair, each with the two tensor ranks of the first replica."""
    written, between = [], JobEmitter.between

    def counted(self: JobEmitter, pairs: Any, *rest: Any, **options: Any) -> Any:
        written.append(pairs)
        return between(self, pairs, *rest, **options)

    monkeypatch.setattr(JobEmitter, "between", counted)
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
