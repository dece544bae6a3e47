"""Search for the parallelism of a job: what it includes, bounds that hold, and the fastest layout of small spaces."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clusim
from clusim.base.errors import InputError, TopologyError
from clusim.simulation.setup import Setup
from clusim.studies.plan.clusters import PricedSearch, priced_clusters
from clusim.studies.plan.forecast import CommCost, CommCurves, StepForecast, WireLimits
from clusim.studies.plan.launchers import launch_arguments
from clusim.studies.plan.layouts import layouts
from clusim.studies.plan.search import MEMORY
from clusim.training.estimate import estimate
from clusim.workload import Workload
from clusim.workload.parallel.plan import model_of
from clusim_cli.main import cli

DENSE = {"base": "gpt3-1.3b", "layers": 2, "hidden": 512, "heads": 8, "kv_heads": 8, "vocab": 2048}
EXPERTS = {
    **{"base": "mixtral-8x7b", "layers": 2, "hidden": 512, "heads": 8, "kv_heads": 8},
    **{"intermediate": 1024, "experts": 4, "vocab": 2048},
}


def job(model: dict[str, Any] | str = DENSE, **more: Any) -> Workload:
    spec = {"name": "job", "model": model, "sequence": 256, "batch": {"global": 4}, **more}
    return Workload.model_validate(spec)


def command(*words: object) -> str:
    done = CliRunner().invoke(cli, ["plan", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_layouts_use_all_gpus_and_divide_the_batch() -> None:
    workload, fabric = job(), Setup("a100x4-mesh", 2).fabric
    found = list(layouts(model_of(workload.model), workload, fabric))
    assert len(set(found)) == len(found) > 60
    for one in found:
        assert prod((one.tensor, one.pipeline, one.context, one.data)) == 8
        assert one.tensor <= 4, "inside a node"
        assert 4 % (one.micro * one.data) == 0
        assert 2 % (one.pipeline * one.chunks) == 0
        assert one.states == "distributed-optimizer" or one.pipeline == 1
    assert {one.states for one in found} == {"distributed-optimizer", "fsdp", "hsdp"}


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_the_search_finds_the_best_of_a_space_and_no_estimate_is_below_its_bound(
    model: dict[str, Any],
) -> None:
    work = job(model, batch={"global": 2})
    whole = clusim.plan(work, "a100x4-mesh", estimates=1000)
    assert len(whole.steps) == whole.layouts - sum(whole.omitted.values()) > 20
    for row in whole.steps:
        assert row.bound_s <= row.step_time_s, row.words
        assert row.bound_s <= row.forecast_s, row.words
    few = clusim.plan(work, "a100x4-mesh", estimates=6)
    assert few.steps[0].step_time_s <= 1.01 * whole.steps[0].step_time_s
    assert whole.unknown == 0
    assert few.unknown <= len(whole.steps) - 6


def test_a_bound_by_hand() -> None:
    """Of one GPU it is the time of all kernels; the links of two GPUs carry half of a gathered tensor each."""
    fabric = Setup("a100x4-mesh").fabric
    limits = WireLimits(fabric)
    # Each GPU has four links of 25 GB/s to each of three others, and PCIe.
    assert 300e9 < limits.gpu_Bps < 340e9
    assert limits.least_ps((1, (0, 1)), 1 << 30) == int((1 << 29) / limits.gpu_Bps * 1e12)
    workload = job(parallel={"ranks": [0]})
    plan = clusim.train(workload, "a100x4-mesh", steps=1).plan
    found = StepForecast(plan, limits)
    step = clusim.train(workload, "a100x4-mesh", steps=1)
    assert found.time_ps() <= step.step_ps[-1] <= 1.02 * found.time_ps()


def test_layouts_beyond_the_memory_are_omitted_and_none_is_an_error() -> None:
    found = clusim.plan("llama3-8b", "a100x4-mesh", batch=4, sequence=4096, estimates=1)
    assert found.omitted[MEMORY] > 0
    assert found.steps[0].memory_GiB < 80
    with pytest.raises(InputError, match=r"llama3-405b: \d+ layouts, but no one fits a100x4-mesh"):
        clusim.plan("llama3-405b", "a100x4-mesh", batch=4, estimates=1)


def test_the_workload_of_the_fastest_layout_is_written_and_has_its_time(tmp_path: Path) -> None:
    source, out = tmp_path / "job.yaml", tmp_path / "best.yaml"
    source.write_text(json.dumps({"name": "job", "model": DENSE, "batch": {"global": 4}}))
    shown = command(source, "a100x4-mesh", "--estimates", "2", "-o", out, "--json")
    best = json.loads(shown)["steps"][0]
    again = estimate(out, steps=1, granularity="coarse", confirm=False)
    assert again.step_time_s == pytest.approx(best["step_time_s"], abs=1e-9)
    text = command(source, "a100x4-mesh", "--estimates", "2", "--launch", "megatron")
    assert "--micro-batch-size" in text
    assert "MFU" in text


def test_arguments_of_frameworks_name_the_sizes_of_the_layout() -> None:
    workload, fabric = job(), Setup("a100x4-mesh", 2).fabric
    model = model_of(workload.model)
    one = next(
        row
        for row in layouts(model, workload, fabric)
        if (row.tensor, row.pipeline, row.chunks, row.recompute) == (2, 2, 1, "full")
    )
    words = " ".join(launch_arguments("megatron", one, workload, model))
    assert "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" in words
    assert "--sequence-parallel --use-distributed-optimizer --recompute-granularity full" in words
    hybrid = next(row for row in layouts(model, workload, fabric) if row.states == "hsdp")
    words = " ".join(launch_arguments("torchtitan", hybrid, workload, model))
    assert f"data_parallel_replicate_degree {8 // hybrid.tensor // hybrid.shard}" in words


def test_a_layout_keeps_the_other_keys_of_a_pipeline_and_replaces_its_schedule() -> None:
    base = {
        **{"model": DENSE, "batch": {"global": 4}, "data": {"shard": 2, "bucket": "1MiB"}},
        "pipeline": {"schedule": "gpipe", "messages": "blocking", "scatter_gather": False},
    }
    one = next(
        row
        for row in layouts(model_of(job().model), job(), Setup("a100x4-mesh").fabric)
        if row.pipeline == 2 and row.states == "distributed-optimizer"
    )
    found = one.workload(base)
    assert (found.pipeline.schedule, found.pipeline.messages) == ("1f1b", "blocking")
    assert not found.pipeline.scatter_gather
    assert (found.data.shard, found.data.bucket) == (None, 1 << 20)


def test_frameworks_get_arguments_of_layouts_that_they_have_only(tmp_path: Path) -> None:
    source = tmp_path / "job.yaml"
    source.write_text(json.dumps({"model": DENSE, "batch": {"global": 4}}))
    shown = command(source, "a100x4-mesh", "--estimates", "8", "--launch", "torchtitan")
    title = shown.partition("torchtitan: ")[2].partition("\n")[0]
    assert "fsdp" in title or "hsdp" in title or title == "no layout in the table"


@pytest.mark.parametrize(
    ("model", "more", "problem"),
    [
        ("llama3-8c", {"batch": 8}, "llama3-8c"),
        ("llama3-8b", {}, "the batch is missing"),
    ],
)
def test_wrong_input_is_one_line(model: str, more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        clusim.plan(model, "dgx-a100", **more)


def test_the_cheapest_system_is_the_smallest_number_of_nodes_that_reaches_the_time() -> None:
    """A system with half the price per GPU needs twice the nodes, or is the cheapest if it does not."""
    one_s = clusim.plan(job(), "a100x4-mesh", estimates=2).steps[0].step_time_s
    prices = {"a100x4-mesh": 1.0, "gh200x4-mesh": 1.5}
    found = priced_clusters(job(), PricedSearch(prices, 0.9 * one_s, node_limit=4, estimates=2))
    by_system = {name: [row for row in found.steps if name in row.system] for name in prices}
    for name, rows in by_system.items():
        assert [row.gpus for row in rows] == [4 << number for number in range(len(rows))]
        for row in rows:
            assert row.price_per_hour == prices[name] * row.gpus
            assert row.reaches == (bool(row.words) and row.step_time_s <= 0.9 * one_s)
            if row.words:
                assert row.price_per_step == row.price_per_hour * row.step_time_s / 3600
            else:
                assert row.step_time_s > 0.9 * one_s, "its bound exceeds the time"
        assert not any(row.reaches for row in rows[:-1])
    reached = [row for row in found.steps if row.reaches]
    lowest = min(row.price_per_hour for row in reached)
    assert [row.price_per_hour for row in found.steps if row.cheapest] == [lowest]
    again = clusim.plan(job(), "gh200x4-mesh", estimates=2).steps[0]
    first = by_system["gh200x4-mesh"][0]
    assert (first.words, first.step_time_s) == (again.words, again.step_time_s)


def test_no_system_may_reach_the_time() -> None:
    found = priced_clusters(job(), PricedSearch({"a100x4-mesh:nodes=2": 1.0}, 1e-6))
    assert [(row.gpus, row.words, row.reaches) for row in found.steps] == [(8, "", False)]
    assert found.steps[0].step_time_s > 1e-6
    with pytest.raises(TopologyError, match="no such preset or file"):
        priced_clusters(job(), PricedSearch({"a100x4-mesh": 1.0, "typo": 1.0}, 1.0))
    with pytest.raises(InputError, match="must be above 0"):
        priced_clusters(job(), PricedSearch({}, 0.0))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "one TOPOLOGY, or --price SYSTEM=AMOUNT for each system and --within TIME"),
        (["a100x4-mesh", "--within", "1s"], "one TOPOLOGY, or"),
        (["--price", "a100x4-mesh=1"], "one TOPOLOGY, or"),
        (["--price", "a100x4-mesh", "--within", "1s"], "must be SYSTEM=AMOUNT, such as"),
        (["--price", "polaris=1", "--price", "polaris=2", "--within", "1s"], "two prices"),
        (["--price", "a100x4-mesh=-2", "--within", "1s"], "must be SYSTEM=AMOUNT"),
        (
            ["--price", "a100x4-mesh=1", "--within", "1s", "--launch", "megatron"],
            "not with --price",
        ),
    ],
)
def test_one_system_or_prices(words: list[str], error: str) -> None:
    done = CliRunner().invoke(cli, ["plan", "llama3-8b", "--batch", "8", *words])
    assert done.exit_code == 2
    assert error in done.output


def test_groups_of_a_shape_have_their_gpus_in_the_forecast() -> None:
    """Every second GPU of a DGX A100 has no pair on its PCIe switch, and NCCL finds fewer channels than for pairs."""
    setup = Setup("dgx-a100", 2)
    limits = WireLimits(setup.fabric)
    pairs, strided = limits.shape([0, 1, 8, 9]), limits.shape([0, 2, 4, 6, 8, 10, 12, 14])
    assert (pairs, strided) == ((2, (0, 1)), (2, (0, 2, 4, 6)))
    curves = CommCurves(setup, limits)
    four = curves.cost("all_gather", limits.shape([0, 1, 2, 3, 8, 9, 10, 11]), 1 << 26)
    assert curves.cost("all_gather", strided, 1 << 26).time_ps > 3 * four.time_ps
    assert curves.simulated == 4


def test_hidden_collectives_slow_kernels_by_the_sms_they_hold_or_last_longer() -> None:
    plan = clusim.train(job(), "a100x4-mesh", steps=1).plan
    found = StepForecast(plan, WireLimits(Setup("a100x4-mesh").fabric))
    sms = plan.chip.sms
    assert found._time_beside(1000 * sms, CommCost(100, 8)) == 1000 * sms + 800 // sms
    held = CommCost(400 * sms, sms // 4)
    assert (
        found._time_beside(1000 * sms, held, held)
        == 1000 * sms + 2 * (400 * sms * (sms // 4)) // sms
    )
    assert found._time_beside(1000, CommCost(3000, 8)) == 3000
