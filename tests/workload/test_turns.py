"""Replicated stages of PipeDream: orders by hand, times and bytes on an ideal machine, nobody waits for ever."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.training import training_report
from clusim.workload.parallel.plan import make_plan
from clusim.workload.pipeline_schedules import Crew, round_robin
from support.workloads import ideal, tiny, volume, written
from workload.test_partition import compositions

MLP = "{base: mlp, sizes: [2048, 2048, 2048, 2048]}"
PIPEDREAM = (
    "parallel: {{pipeline: {}}}\npipeline: {{schedule: pipedream, replicas: {}, layers: {}}}\n"
)


def rows(*replicas: int, microbatches: int = 4) -> list[str]:
    crew = Crew(replicas)
    return [
        " ".join(map(str, round_robin(crew, worker, microbatches)))
        for worker in range(sum(replicas))
    ]


def test_workers_take_turns_by_hand() -> None:
    assert rows(2, 1) == ["F0 F2 B0 B2", "F1 F3 B1 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert rows(1, 2) == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 B0 F2 B2", "F1 B1 F3 B3"]
    assert rows(1, 1) == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert rows(2) == ["F0 B0 F2 B2", "F1 B1 F3 B3"]


@pytest.mark.parametrize("replicas", [own for n in range(2, 6) for own in compositions(n)], ids=str)
def test_nobody_waits_for_ever(replicas: list[int]) -> None:
    """All divisions of two to five GPUs into stages, sixty microbatches."""
    count = len(replicas)
    text = PIPEDREAM.format(sum(replicas), replicas, [1] * count)
    model = f"{{base: mlp, sizes: {[64] * (count + 1)}}}"
    work = tiny(text, model=model, batch="{global: 60, micro: 1}")
    _, writer, schedule = written(work, ideal(sum(replicas)))
    assert schedule.tasks
    done = [
        sum(t.name.startswith("B") and t.rank == r for t in schedule.tasks)
        for r in range(sum(replicas))
    ]
    crew = Crew(tuple(replicas))
    assert done == [60 // len(crew.of(worker)) for worker in range(sum(replicas))]
    assert len(writer.steps) == 1


def test_two_workers_keep_up_with_one_of_half_the_layers() -> None:
    """Two layers on two workers, one on one: a microbatch takes as long as the passes and step of a single layer.

    What comes to it are the sums of the two, which nothing hides here.
    """
    text = PIPEDREAM.format(3, [2, 1], [2, 1]) + "data: {overlap: false}\n"
    work = tiny(text, model=MLP, batch="{global: 262144, micro: 4096}")
    found = clusim.train(work, ideal(3), steps=2, granularity=65536, fold="none")
    plan = found.plan
    layer = plan.stages[0][0][1]
    passes = sum(plan.chip.time_ps(k) for part in ("forward", "input", "weight") for k in layer.kernels(part))  # type: ignore[arg-type]  # fmt: skip
    optimizer = plan.chip.time_ps(plan.optimizer.kernel(plan.optimizer_parameters(0)))
    summed = found.ranks[0].exposed_ps
    assert 0 < summed < 0.02 * found.step_ps[-1]
    expected = 64 * passes + 32 * optimizer + summed
    assert found.step_ps[-1] == pytest.approx(expected, rel=2e-3)


def test_each_round_sums_its_gradients_once() -> None:
    """A ring over r workers: each sends 2 (r-1)/r of the gradients of its stage a round; a lone one nothing."""
    text = PIPEDREAM.format(4, [3, 1], [2, 1])
    work = tiny(text, model=MLP, batch="{global: 12, micro: 1}")
    plan, writer, _ = written(work, ideal(4))
    size = 2 * sum(layer.parameters for layer in plan.stages[0][0])
    rounds = 12 // 3
    assert volume(writer, "data") * 4 == pytest.approx(rounds * 3 * 2 * 2 / 3 * size, rel=1e-3)


def test_one_stage_of_all_workers_is_data_parallel() -> None:
    text = PIPEDREAM.format(4, [4], [3])
    one = clusim.train(
        tiny(text, model=MLP, batch="{global: 4096, micro: 1024}"),
        ideal(4),
        steps=2,
        granularity=65536,
        fold="none",
    )
    two = clusim.train(
        tiny("parallel: {data: 4}", model=MLP, batch="{global: 4096, micro: 1024}"),
        ideal(4),
        steps=2,
        granularity=65536,
        fold="none",
    )
    assert one.step_time_s == pytest.approx(two.step_time_s, rel=1e-3)
    assert one.mfu == pytest.approx(two.mfu, rel=1e-3)
    assert one.to_json()["volume_bytes_per_gpu"] == two.to_json()["volume_bytes_per_gpu"]


def test_the_report_says_who_takes_turns() -> None:
    text = PIPEDREAM.format(3, [2, 1], [2, 1])
    work = tiny(text, model=MLP, batch="{global: 4, micro: 1}")
    found = clusim.train(work, ideal(3), steps=10, granularity=65536, fold="none")
    assert "alternating GPUs: 2 on 2, 1 on 1" in training_report(found)
    assert found.to_json()["stage_gpus"] == [2, 1]


def test_one_step_is_as_two() -> None:
    """PipeDream steps behind every backward pass, also if only one step is simulated."""
    text = "parallel: {pipeline: 2}\npipeline: {schedule: pipedream}"
    for steps in (1, 2):
        _, _, schedule = written(
            tiny(text, model=MLP, batch="{global: 4, micro: 1}"), ideal(2), steps
        )
        assert sum(t.name == "optimizer" for t in schedule.tasks) == 4 * 2 * steps


def test_workers_hold_what_fills_the_stages_behind() -> None:
    text = PIPEDREAM.format(4, [2, 1, 1], [1, 1, 1])
    plan = make_plan(tiny(text, model=MLP, batch="{global: 8, micro: 1}"), ideal(4))
    assert [plan.memory(worker).in_flight for worker in range(4)] == [2, 2, 2, 1]
    assert plan.memory(0).weights == 2 * plan.memory(3).weights


def test_the_partitioner_keeps_all_gpus_busy() -> None:
    """Three like layers on six GPUs of NVLink, sixty microbatches: half a layer's time is the best there is."""
    text = "parallel: {pipeline: 6}\npipeline: {schedule: pipedream, partition: replicated}"
    work = tiny(text, model=MLP, batch="{global: 61440, micro: 1024}")
    machine = clusim.load("dgx-a100")
    work.parallel.ranks = list(range(6))
    plan = make_plan(work, machine)
    slowest = max(
        sum(len(chunk) for chunk in plan.stages[plan.crew.first(s)]) / own
        for s, own in enumerate(plan.crew.replicas)
    )
    assert slowest == 0.5
    assert written(work, machine)[2].tasks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel: {pipeline: 4}\npipeline: {replicas: [2, 2]}", "need schedule pipedream"),
        (PIPEDREAM.format(4, [2, 1], [2, 2]), r"\[2, 1\]: must add up to the 4 GPUs"),
        (PIPEDREAM.format(4, [3, 1], [2, 2]), "8 microbatches are not a multiple of the 3 GPUs"),
        (PIPEDREAM.format(4, [2, 2], [4]), r"layers \[4\]: must be 2 numbers"),
        (PIPEDREAM.format(4, [2, 2], [2, 2]) + "data: {kind: zero1}", "summed by ddp"),
        (
            "parallel: {pipeline: 2, tensor: 2}\npipeline: {schedule: pipedream, replicas: [1, 1]}",
            "only other parallelism",
        ),
        (
            "parallel: {pipeline: 4}\npipeline: {schedule: pipedream, partition: replicated, replicas: [2, 2]}",
            "chooses the replicas itself",
        ),
    ],
)
def test_what_cannot_take_turns_is_told(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        make_plan(tiny(text), ideal(4))
