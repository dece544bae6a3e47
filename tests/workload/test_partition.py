"""Which layers a stage gets: best cuts against all cuts, and what a workload makes of them."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

import clusim
from clusim.base.errors import ClusimError, InputError
from clusim.workload.kernels import Kernel
from clusim.workload.layers import backward_steps
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from clusim.workload.parallel.stages import LayerCost, WorkerRates, balance_layers, replicate_stages
from support.workloads import tiny, written

A100 = clusim.load("dgx-a100")


def slowest(times: list[int], sizes: list[int]) -> int:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return max(sum(times[a:b]) for a, b in pairwise([0, *ends]))


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_better(seed: int) -> None:
    draw = random.Random(seed)
    times = [draw.randrange(0, 50) for _ in range(draw.randrange(1, 9))]
    parts = draw.randrange(1, len(times) + 1)
    sizes = balance_layers(times, [1] * parts)
    assert len(sizes) == parts
    assert sum(sizes) == len(times)
    assert min(sizes) >= 1
    every = [
        [b - a for a, b in pairwise([0, *cut, len(times)])]
        for cut in combinations(range(1, len(times)), parts - 1)
    ]
    assert slowest(times, sizes) == min(slowest(times, other) for other in every)


def test_by_hand() -> None:
    assert balance_layers([1, 1, 1, 3], [1, 1]) == [3, 1]
    assert balance_layers([4, 1, 1, 1, 1], [1, 1]) == [1, 4]
    assert balance_layers([1, 1, 1, 1, 1, 1], [2, 1]) == [4, 2]
    with pytest.raises(InputError, match="2 layers cannot be divided into 3 parts"):
        balance_layers([1, 2], [1, 1, 1])


def compositions(number: int) -> list[list[int]]:
    """Return all rows of numbers from 1 on with this sum, in all orders."""
    if not number:
        return [[]]
    return [[n, *rest] for n in range(1, number + 1) for rest in compositions(number - n)]


def takes(layers: list[LayerCost], rates: WorkerRates, stages: list[tuple[int, int]]) -> float:
    """Return the time from one microbatch to the next of stages with so many layers and workers."""
    slowest, layer, worker = 0.0, 0, 0
    for count, workers in stages:
        own = layers[layer : layer + count]
        inside = len(set(rates.machines[worker : worker + workers])) == 1
        rate = rates.inside_Bps if inside else rates.across_Bps
        summed = 2 * (workers - 1) / workers * sum(x.gradient_bytes for x in own) / rate
        slowest = max(slowest, max(sum(x.time_s for x in own), summed) / workers)
        if layer:
            near = rates.machines[worker - 1] == rates.machines[worker]
            rate = rates.inside_Bps if near else rates.across_Bps
            slowest = max(slowest, 2 * layers[layer - 1].output_bytes / rate)
        layer, worker = layer + count, worker + workers
    return slowest


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_with_replicas_is_better(seed: int) -> None:
    draw = random.Random(seed)
    layers = [
        LayerCost(draw.uniform(0.1, 3), draw.choice([0, 1, 20]), draw.choice([0, 0.5, 5]))
        for _ in range(draw.randrange(1, 6))
    ]
    workers, microbatches = draw.randrange(1, 6), draw.choice([6, 8, 60])
    machines = tuple(sorted(draw.randrange(2) for _ in range(workers)))
    rates = WorkerRates(10, draw.choice([1, 10]), machines)
    every = [
        list(zip(counts, own, strict=True))
        for counts in compositions(len(layers))
        for own in compositions(workers)
        if len(own) == len(counts) and not any(microbatches % n for n in own)
    ]
    if not every:
        with pytest.raises(InputError, match="cannot be divided"):
            replicate_stages(layers, rates, microbatches)
        return
    found = replicate_stages(layers, rates, microbatches)
    assert sum(count for count, _ in found) == len(layers)
    assert sum(own for _, own in found) == workers
    assert all(count >= 1 and not microbatches % own for count, own in found)
    assert takes(layers, rates, found) == pytest.approx(min(takes(layers, rates, x) for x in every))


def test_replicas_by_hand() -> None:
    """Large weights stay on one worker, as in PipeDream's fully connected layers; without them all share everything."""
    layers = [LayerCost(3, 0, 0), LayerCost(1, 1000, 0)]
    rates = WorkerRates(10, 10, (0, 0, 0, 0))
    assert replicate_stages(layers, rates, 12) == [(1, 3), (1, 1)]
    free = [layer._replace(gradient_bytes=0) for layer in layers]
    assert takes(free, rates, replicate_stages(free, rates, 12)) == 1
    across = WorkerRates(10, 0.001, (0, 0, 1, 1))
    assert replicate_stages([LayerCost(2, 1, 0)] * 2, across, 12) == [(1, 2), (1, 2)]


def plan_of(text: str, **fields: str) -> ParallelPlan:
    return make_plan(tiny(f"parallel: {{pipeline: 4}}\npipeline: {text}", **fields), A100)


def times_of(plan: ParallelPlan) -> list[int]:
    """Return what the kernels of a microbatch take on every stage [ps]."""
    return [
        sum(
            plan.chip.time_ps(step)
            for layer in layers
            for step in (*layer.forward, *backward_steps(layer))
            if isinstance(step, Kernel)
        )
        for (layers,) in plan.stages
    ]


def test_a_large_head_gets_a_stage_of_its_own() -> None:
    """A vocabulary so large that its head takes longer than three blocks."""
    model = "{base: llama3-8b, layers: 9, vocab: 400000}"
    even, best = (plan_of(f"{{partition: {name}}}", model=model) for name in ("even", "balanced"))
    kinds = [[layer.kind for layer in layers] for (layers,) in best.stages]
    assert kinds == [["embedding", *["block"] * 3], ["block"] * 3, ["block"] * 3, ["head"]]
    assert max(times_of(best)) < max(times_of(even))
    assert sum(times_of(best)) == sum(times_of(even))


def test_a_last_stage_may_have_the_head_alone() -> None:
    plan = plan_of("{layers: [2, 1, 1, 0]}")
    assert [len(layers) for (layers,) in plan.stages] == [3, 1, 1, 1]
    assert written(plan.workload, A100)[2].tasks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{layers: [2, 2]}", r"layers \[2, 2\]: must be 4 numbers with the sum 4"),
        ("{layers: [2, 2, 1, 0]}", "must be 4 numbers with the sum 4"),
        ("{layers: [4, 0, 0, 0]}", "a part is empty; each needs a layer"),
        ("{partition: balanced, layers: [1, 1, 1, 1]}", "balanced chooses the layers itself"),
    ],
)
def test_cuts_that_are_none_are_told(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message) as found:
        plan_of(text)
    assert "pipeline.layers" in str(found.value)
