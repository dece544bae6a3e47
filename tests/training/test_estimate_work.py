"""Work of estimates: at most that of the simulation, on fewer switches, and no run twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.kept import SampleCache
from clusim.simulation import api
from clusim.topology import subset
from clusim.training import TrainRequest, estimate, parts
from clusim.training.api import inputs, train_request
from clusim.training.estimate import estimated
from clusim.training.parts import StepParts
from clusim.training.run import trained
from clusim.training.uncomposed import WHOLE_NOTE
from clusim.workload import Workload
from support.workloads import tiny

SHARDED = """
name: sharded
model: {base: llama3-8b, layers: 2}
sequence: 4096
batch: {global: 8, micro: 1}
precision: bf16
data: {kind: fsdp}
topology: dgx-h100
"""

CASES: dict[str, str | Workload] = {
    "fsdp": SHARDED,
    "ddp": "resnet50-dgx1v",
    "stages": "megatron-22b",
    "tensor": tiny("parallel: {tensor: 8}", collectives="nccl"),
    "replicas": tiny("parallel: {tensor: 2, data: 4}", collectives="nccl"),
}

SMALL = "{base: gpt3-1.3b, layers: 1, hidden: 64, heads: 8, head_size: 8, kv_heads: 8, intermediate: 256, vocab: 256}"
"""A model of one bucket of gradients."""


@dataclass
class Counter:
    """Burst-hops and runs of the engine."""

    hops: int = 0
    runs: int = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    result, run = Counter(), api.run_job

    def counted(*job: Any, **options: Any) -> Any:
        ran = run(*job, **options)
        result.hops += ran.grants
        result.runs += 1
        return ran

    monkeypatch.setattr(api, "run_job", counted)
    return result


@pytest.mark.parametrize("name", CASES)
def test_an_estimate_needs_no_more_burst_hops_than_the_simulation(
    name: str, counter: Counter, tmp_path: Path
) -> None:
    work = CASES[name]
    if name == "fsdp":
        path = tmp_path / "work.yaml"
        path.write_text(str(work))
        work = str(path)
    request = train_request(work, "dgx-a100" if isinstance(work, Workload) else None, steps=2)
    whole = trained(request)
    simulated, counter.hops = counter.hops, 0
    found = estimated(request, SampleCache(None))
    assert 0 < counter.hops <= simulated
    assert not found.whole
    assert found.step_ps[-1] == pytest.approx(whole.step_ps[-1], rel=0.03)


@pytest.mark.parametrize("kind", ["ddp", "zero1"])
def test_a_step_that_has_its_parts_once_is_simulated_in_full(kind: str, counter: Counter) -> None:
    """Its parts are no less work; those of three steps are."""
    text = f"parallel: {{data: 8}}\ndata: {{kind: {kind}}}"
    work = tiny(text, collectives="nccl", model=SMALL)
    request = train_request(work, "dgx-a100", steps=1)
    whole = trained(request)
    simulated, counter.hops = counter.hops, 0
    found = estimated(request, SampleCache(None))
    assert counter.hops == simulated > 0
    assert (found.whole, WHOLE_NOTE in found.notes) == (True, True)
    assert found.step_ps == whole.step_ps
    composed = estimated(replace(request, steps=3), SampleCache(None))
    assert (composed.whole, WHOLE_NOTE in composed.notes) == (False, False)
    # All packets are exact where those of the step are, although one run's share of its packets would be less.
    assert composed.grain_error == 0.0
    assert composed.step_ps[-1] == pytest.approx(whole.step_ps[-1], rel=0.03)


def test_a_part_beside_kernels_is_one_run(counter: Counter) -> None:
    """Their length is by its bytes and links, so that it is not simulated in isolation first."""
    work = tiny("parallel: {data: 8}", collectives="nccl")
    request = train_request(work, "dgx-a100", steps=1)
    found = estimated(replace(request, granularity="coarse"), SampleCache(None))
    assert found.simulated == found.parts == counter.runs > 0


def test_kernels_outlast_their_part(monkeypatch: pytest.MonkeyPatch, counter: Counter) -> None:
    """Kernels of a 256th of the length grow until they do; their share and the part are the same."""
    work = tiny("parallel: {data: 8}", collectives="nccl")
    request, steps = train_request(work, "dgx-a100", steps=1, granularity="coarse"), []
    for least_ps in (parts.LEAST_KERNEL_PS, parts.LEAST_KERNEL_PS >> 8):
        monkeypatch.setattr(parts, "LEAST_KERNEL_PS", least_ps)
        monkeypatch.setattr(StepParts, "_linked_ps", lambda *_: parts.LEAST_KERNEL_PS)
        counter.runs = 0
        steps.append((estimated(request, SampleCache(None)), counter.runs))
    (one, one_runs), (other, other_runs) = steps
    assert other_runs > one_runs
    assert other.step_ps[-1] == pytest.approx(one.step_ps[-1], rel=1e-3)


def test_parts_that_were_exact_are_not_simulated_again(counter: Counter) -> None:
    """Parts of a small step are exact in the coarse pass, so that the finer pass has their times."""
    setup, work = inputs(
        tiny("parallel: {tensor: 4, data: 1}", collectives="nccl", sequence="8"), "dgx-a100", None
    )
    kept = SampleCache(None)
    coarse = estimated(TrainRequest(setup, work, steps=1, granularity="coarse"), kept)
    runs = counter.runs
    fine = estimated(TrainRequest(setup, work, steps=1, granularity="step"), kept)
    assert coarse.grain_error == fine.grain_error == 0.0
    assert (counter.runs, fine.simulated) == (runs, 0)
    assert fine.step_ps == coarse.step_ps


def test_parts_of_both_passes_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup, work = inputs(CASES["tensor"], "dgx-a100", None)
    counts = {}
    for granularity in ("coarse", "step"):
        request = TrainRequest(setup, work, steps=1, granularity=granularity)
        counts[granularity] = estimated(request, SampleCache(None)).simulated
        monkeypatch.setattr(estimate, "finest", lambda _error: False)
        monkeypatch.setattr(estimate, "WANTED_ERROR", -1.0)
    assert counts["step"] == counts["coarse"] > 0


@pytest.mark.parametrize("zones", [(0, 1, 2), (5, 21), (0, 30, 31)])
def test_only_switches_between_nodes_are_used(
    zones: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective of some nodes lasts as long with the complete network as with the switches between them."""
    times, sizes = [], []
    for most in (0, subset.MOST_ENDS):
        monkeypatch.setattr(subset, "MOST_ENDS", most)
        fabric = subset.on_nodes(clusim.load("dgx-a100", nodes=64), zones)
        times.append(clusim.collective(fabric, "allreduce", "64KiB", algorithm="ring").time_ps)
        sizes.append(len(fabric.nodes))
        fabric.cache.clear()
        clusim.load("dgx-a100", nodes=64).cache.clear()
    assert sizes[1] < sizes[0]
    assert times[0] == times[1]
