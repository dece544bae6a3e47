"""Verdicts of serving runs: parts of latencies by hand, and traffic beside transfers of caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusim.serving.api import load_model
from clusim.serving.forward import StepShape
from clusim.serving.page import COLUMNS, cache_shares, covered_time, serving_page
from clusim.serving.replica import StepRecord
from clusim.serving.report import layer_lines, layer_rows
from clusim.serving.result import Serving
from clusim.serving.spec import ServingSpec
from clusim.serving.verdict import (
    ARITHMETIC,
    BETWEEN,
    OTHERS,
    PROMPTS,
    WAITS,
    WEIGHTS,
    LatencyPart,
)

SMALL = {
    "model": "llama3-8b",
    "topology": "dgx-a100",
    "engine": {"name": "vllm", "step": "1ms", "sequence": "0us", "request": "10ms"},
    "requests": {"input": 512, "output": 32, "concurrency": 1, "count": 4},
}


def served(**changes: Any) -> Serving:
    return load_model(ServingSpec.model_validate({**SMALL, **changes})).run()


def times_ms(parts: list[LatencyPart]) -> dict[str, float]:
    return {part.name: part.time_ms for part in parts}


def test_one_request_waits_for_nothing() -> None:
    result = served()
    ttft, tpot = times_ms(result.verdict.ttft), times_ms(result.verdict.tpot)
    step = result.records[0].end_ps - result.records[0].start_ps
    assert ttft == pytest.approx({"steps of prompts": step * 1e-9, "host": 10.0})
    assert tpot["host"] == pytest.approx(1.0)
    assert sum(tpot.values()) == pytest.approx(result.tpot.mean * 1e3)
    assert not {BETWEEN, PROMPTS} & {*tpot}
    assert result.verdict.tpot[0].name == WEIGHTS


@pytest.mark.parametrize("rule", ["vllm-v1", "sglang"])
def test_parts_of_latencies_add_up(rule: str) -> None:
    load = {"input": 512, "output": 16, "concurrency": 12, "count": 36}
    result = served(requests=load, batching={"rule": rule, "max_batched_tokens": 1024})
    for parts, latency in ((result.verdict.ttft, result.ttft), (result.verdict.tpot, result.tpot)):
        assert sum(part.share for part in parts) == pytest.approx(1)
        assert sum(part.time_ms for part in parts) == pytest.approx(latency.mean * 1e3)
        assert all(part.share > 0 for part in parts)


def test_prompts_in_steps_cost_tokens_their_time() -> None:
    """A step with a prompt is the step without it, and what the prompt adds: by hand, at most the prompt's step."""
    load = {"input": 512, "output": {"uniform": [8, 24]}, "concurrency": 4, "count": 24}
    result = served(requests=load)
    parts = times_ms(result.verdict.tpot)
    model = load_model(ServingSpec.model_validate({**SMALL, "requests": load}))
    times = model.step_times(model.layout(model.spec.parallel))
    prompt = times.find(StepShape(512, 0, 0, ((512, 0),), 1, 512)).time_ps * 1e-9
    assert 0 < parts[PROMPTS] < 4 / 16 * prompt


def test_steps_cover_the_time_of_a_page() -> None:
    """Columns have the time of steps that overlap them, each part once."""
    rows = [StepRecord(0, 30, 1, 1, 0, 0, 1), StepRecord(10, 20, 1, 1, 0, 0, 1)]
    covered = covered_time(rows, np.array([0.0, 10.0, 15.0, 40.0]))
    assert covered.tolist() == [10.0, 10.0, 20.0]


def test_the_page_has_the_run() -> None:
    result = served(requests={"input": 64, "output": 8, "concurrency": 2, "count": 4})
    page = serving_page(result)
    edges = np.linspace(0, result.time_ps, COLUMNS + 1)
    assert cache_shares(result, edges).max() == pytest.approx(result.cache.peak)
    for word in ("Steps over time", "Requests", "Cache in use", "reads of weights", "TTFT"):
        assert word in page
    assert page.count("<rect") > 2 * result.count


def test_few_blocks_make_requests_wait_for_the_cache() -> None:
    load = {"input": 480, "output": 32, "concurrency": 12, "count": 24}
    verdict = served(requests=load, cache={"blocks": 4 * 32}, batching={"rule": "trtllm"}).verdict
    assert verdict.ttft[0].name == WAITS["blocks"]
    limited = served(requests=load, batching={"max_sequences": 4}).verdict
    assert limited.ttft[0].name == WAITS["sequences"]


def test_preemptions_are_named() -> None:
    load = {"input": 64, "output": 200, "concurrency": 6, "count": 6}
    result = served(requests=load, cache={"blocks": 50})
    assert result.cache.preemptions
    assert "the cache is full" in result.verdict.lines()[-1]


def test_many_sequences_are_limited_by_arithmetic() -> None:
    """Reading a bf16 weight takes as long as the arithmetic of peak / memory rate tokens."""
    model = load_model(ServingSpec.model_validate(SMALL))
    times = model.step_times(model.layout(model.spec.parallel))
    forward, end = times.forward, model.endpoint
    assert forward.balance == pytest.approx(forward.chip.peak_flops / end.mem_Bps)
    limits = {
        number: {
            row.limit for row in layer_rows((times, times), 512, number, 512) if row.name == "qkv"
        }
        for number in (8, 512)
    }
    assert limits == {8: {ARITHMETIC, WEIGHTS}, 512: {ARITHMETIC}}
    lines = layer_lines(layer_rows((times, times), 512, 8, 512))
    assert lines[-1].startswith("verdict: a decode step: ")
    assert WEIGHTS in lines[-1]


FAST = {
    "model": {"base": "llama3-8b", "layers": 1},
    "engine": {"step": "0us", "request": "1ms"},
    "transfer.setup": "0us",
    "requests.rate": 960,
    "requests.count": 12,
}


def test_the_part_of_other_traffic_is_what_a_run_without_it_saves() -> None:
    other = {"load": 0.6, "message": "4MiB"}
    busy, quiet = (
        load_model("llama3-8b-shared-nics", changes={**FAST, "beside": beside}).run()
        for beside in (other, None)
    )
    part = next(part for part in busy.verdict.ttft if part.name == OTHERS)
    assert part.share > 0.1
    assert busy.ttft.mean * (1 - part.share) == pytest.approx(quiet.ttft.mean, rel=0.02)
    assert not quiet.verdict.wires
    assert OTHERS not in times_ms(quiet.verdict.ttft)


def test_other_traffic_beside_transfers_doubles_the_time_to_the_first_token() -> None:
    """Caches need 64 % of the decode GPU's NIC, so that other traffic at 60 % of it doubles TTFT."""
    result = load_model("llama3-8b-shared-nics", changes={"requests.count": 40}).run()
    first, wires = result.verdict.ttft[0], result.verdict.wires
    assert first.name == OTHERS
    assert result.ttft.mean > 2 * result.ttft.mean * (1 - first.share)
    assert any("n1/nic0" in wire.name for wire in wires)
    for wire in wires:
        assert wire.busy > 0.8
        assert 0.2 < wire.caches < 0.5
