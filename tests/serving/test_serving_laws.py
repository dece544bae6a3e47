"""Laws of serving: latencies, throughput and memory by hand."""

from __future__ import annotations

from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.base.units import format_size
from clusim.hardware.engines import ENGINES
from clusim.hardware.kernels.decoding import Grouped
from clusim.hardware.kernels.products import Silicon
from clusim.serving.api import ServedModel, load_model
from clusim.serving.exchange import fullest_skew
from clusim.serving.forward import StepShape
from clusim.serving.layout import ReplicaLayout
from clusim.serving.report import layer_rows
from clusim.serving.requests import draw_requests
from clusim.serving.result import Serving
from clusim.serving.scheduler import RULES, Sequence, SequenceScheduler
from clusim.serving.spec import ReplicaSpec, ServingSpec
from clusim.serving.times import pad_tokens
from clusim.workload.models.presets import find_model
from clusim_cli.main import run

SMALL = {
    "model": "llama3-8b",
    "topology": "dgx-a100",
    "engine": {"name": "vllm", "step": "1ms", "sequence": "0us", "request": "10ms"},
    "requests": {"input": 512, "output": 32, "concurrency": 1, "count": 4},
}


def model_of(**changes: Any) -> ServedModel:
    data = {**SMALL, **changes}
    return load_model(ServingSpec.model_validate(data))


def served(**changes: Any) -> Serving:
    return model_of(**changes).run()


def requests(**values: Any) -> dict[str, Any]:
    return {"requests": {**SMALL["requests"], **values}}  # type: ignore[dict-item]


def test_one_request_is_a_prefill_and_one_step_a_token() -> None:
    model = model_of()
    result = model.run()
    times = model.step_times(model.layout(model.spec.parallel))
    prefill = times.find(StepShape(512, 0, 0, ((512, 0),), 1, 512)).time_ps
    host_ps = 1_000_000_000
    assert result.ttft_ps == [10 * host_ps + prefill + host_ps] * 4
    steps = [times.find(StepShape(1, 1, 512 + at, (), 1, 1)).time_ps + host_ps for at in range(31)]
    assert result.sequences[0].token_ps[-1] - result.sequences[0].token_ps[0] == sum(steps)
    assert result.tpot.mean == pytest.approx(sum(steps) / 31 * 1e-12)


def test_a_prefix_in_the_cache_leaves_the_rest_of_a_prompt() -> None:
    """512 tokens with 384 in common: the first prompt is computed, later ones have 128 behind 384."""
    model = model_of(cache={"prefix": True}, **requests(prefix=384))
    result, without = model.run(), served(**requests(prefix=384))
    times = model.step_times(model.layout(model.spec.parallel))
    rest = times.find(StepShape(128, 0, 0, ((128, 384),), 1, 128)).time_ps
    assert result.ttft_ps == [without.ttft_ps[0]] + [rest + 11 * 10**9] * 3
    assert without.ttft_ps[1] == without.ttft_ps[0]


def test_littles_law_in_a_closed_loop() -> None:
    result = served(**requests(concurrency=8, count=400, input=256, output=16))
    inside = sum(item.token_ps[-1] - item.arrival_ps for item in result.sequences)
    assert inside / result.time_ps == pytest.approx(8, rel=0.03)


def test_prefills_of_others_add_to_each_token() -> None:
    """Mean time per token = decode step + c / output x prefill, by the part of the time after the first token."""
    load = {"concurrency": 8, "count": 400, "input": 512, "output": {"uniform": [32, 96]}}
    result = served(**requests(**load))
    alone = served(**requests(concurrency=1, count=2, input=512, output=64))
    model = model_of()
    times = model.step_times(model.layout(model.spec.parallel))
    step = times.find(StepShape(8, 8, 8 * 544, (), 8, 8)).time_ps * 1e-12 + 1e-3
    prefill = alone.ttft.mean - 11e-3
    # A prompt joins a decode step, which then lasts as the prompt's products and the decoding attention.
    share = 64 * result.tpot.mean / result.latency.mean
    tokens = sum((item.token_ps[-1] - item.token_ps[0]) for item in result.sequences)
    per_token = tokens * 1e-12 / (result.output_tokens - result.count)
    joined = times.find(StepShape(519, 7, 7 * 544, ((512, 0),), 8, 519)).time_ps * 1e-12 + 1e-3
    assert joined < step + prefill + 1e-3
    assert per_token == pytest.approx(step + 8 / 64 * (joined - step) * share, rel=0.04)


def test_context_costs_the_bytes_of_the_cache_and_nothing_else() -> None:
    model = model_of()
    times = model.step_times(model.layout(model.spec.parallel))
    engine, end = model.engine, model.endpoint
    form = engine.decode_form((end.chip, end.architecture), "bf16", latent=False)
    one, two = (
        times.forward.kernels(StepShape(1, 1, cached, (), 1, 1)) for cached in (1 << 17, 1 << 18)
    )
    rows = zip(one, two, strict=True)
    grown = {a.name: (b.time_s - a.time_s) * a.number for a, b in rows if a.time_s != b.time_s}
    assert {*grown} == {"attention"}
    more_bytes = 32 * 2 * 8 * 128 * 2 * (1 << 17)
    assert grown["attention"] == pytest.approx(more_bytes / (form.share * end.mem_Bps), rel=0.02)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_step_reads_all_weights(precision: str) -> None:
    model = load_model(
        ServingSpec.model_validate(
            {
                "model": "llama3-70b",
                "topology": "dgx-h100",
                "precision": {"weights": precision},
                "parallel": {"tensor": 8},
            }
        )
    )
    layout = model.layout(model.spec.parallel)
    times = model.step_times(layout)
    least_s = layout.weight_bytes() / model.endpoint.mem_Bps
    products = {}
    for sequences in (1, 64):
        shape = StepShape(sequences, sequences, sequences * 1024, (), sequences, sequences)
        parts = {item.name: item.time_s * item.number for item in times.forward.kernels(shape)}
        assert sum(parts.values()) >= least_s
        products[sequences] = sum(
            parts[name] for name in ("qkv", "projection", "gate and up", "down")
        )
    assert products[64] <= 1.15 * products[1]


@pytest.mark.parametrize(
    ("name", "size"), [("llama3-70b", 327_680), ("llama3-8b", 131_072), ("deepseek-v3", 70_272)]
)
def test_bytes_of_a_token_in_the_cache(name: str, size: int) -> None:
    model = find_model(name)
    assert ReplicaLayout(model).token_bytes() == size  # type: ignore[arg-type]
    parts = ReplicaLayout(model, tensor=8)  # type: ignore[arg-type]
    assert parts.token_bytes() == (size if name == "deepseek-v3" else size // 8)


@pytest.mark.parametrize(
    "name", ["llama3-8b", "qwen3-235b-a22b", "deepseek-v3", "mixtral-8x7b", "gpt-oss-20b"]
)
def test_weights_are_the_parameters(name: str) -> None:
    model = find_model(name)
    assert ReplicaLayout(model).weight_bytes() / 2 == pytest.approx(model.parameters, rel=1e-3)  # type: ignore[arg-type]


OSS = {
    "model": "gpt-oss-120b",
    "topology": "dgx-h100",
    "precision": {"weights": "mxfp4"},
    "requests": {"concurrency": 1, "count": 1, "input": 64, "output": 2},
}


def test_the_cache_of_windowed_layers_stops_growing_at_the_window() -> None:
    """18 layers of 2 x 8 x 64 x 2 bytes a token see all; 18 others keep 128 tokens."""
    layout = ReplicaLayout(find_model("gpt-oss-120b"), weights="mxfp4")  # type: ignore[arg-type]
    layer = 2 * 8 * 64 * 2
    assert layout.token_bytes() == 18 * layer
    grown = [layout.sequence_bytes(tokens) for tokens in (1, 128, 129, 8192)]
    assert grown == [
        36 * layer,
        128 * 36 * layer,
        (129 * 18 + 128 * 18) * layer,
        (8192 + 128) * 18 * layer,
    ]
    scheduler = SequenceScheduler("vllm-v1", 8192, 8, 16, 10_000, window=128, windowed=1.0)
    scheduler.add(Sequence(0, 0, 8000, 2))
    scheduler.plan_step()
    assert scheduler.used_blocks == (8000 + 128) // 16


def test_attention_of_windowed_layers_stops_growing_at_the_window() -> None:
    model = load_model(ServingSpec.model_validate(OSS))
    forward = model.step_times(model.layout(model.spec.parallel)).forward

    def parts(cached: int) -> dict[str, tuple[float, int]]:
        shape = StepShape(8, 8, cached, (), 8, 8)
        return {item.name: (item.time_s, item.number) for item in forward.kernels(shape)}

    short, long = parts(8 * 128), parts(8 * 65536)
    assert short["attention"] == short["windowed attention"] == (short["attention"][0], 18)
    assert long["windowed attention"] == short["windowed attention"]
    assert long["attention"][0] > 2 * short["attention"][0]
    # A prompt of 64 blocks of 128 rows: half the square of blocks, or two blocks for each.
    whole, within = (
        forward._attention_s(StepShape(8192, 0, 0, ((8192, 0),), 1, 8192), window)
        for window in (0, 128)
    )
    assert whole > 3 * within


def test_training_of_models_with_windows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "model: gpt-oss-20b\nbatch: {global: 8, micro: 1}\nsequence: 128\n", encoding="utf-8"
    )
    assert run(["train", str(path), "dgx-h100"]) == 2
    assert "are modelled by `clusim serve` only" in capsys.readouterr().err


def test_only_experts_have_four_bits_in_mxfp4() -> None:
    """116.8 billion parameters, 114.7 of experts at 4.25 bits: 65 GB."""
    model = find_model("gpt-oss-120b")
    experts = 36 * 128 * 3 * 2880**2
    size = ReplicaLayout(model, weights="mxfp4").weight_bytes()  # type: ignore[arg-type]
    other = 2 * (model.parameters - experts)
    assert size == pytest.approx(experts * 4.25 / 8 + other, rel=1e-3)
    assert 60e9 < size < 66e9
    with pytest.raises(ClusimError, match="has no experts"):
        ReplicaLayout(find_model("llama3-8b"), weights="mxfp4")  # type: ignore[arg-type]


def test_tensor_parallelism_sums_twice_a_layer_and_once_the_logits() -> None:
    model = model_of(parallel={"tensor": 4})
    forward = model.step_times(model.layout(model.spec.parallel)).forward
    shape = StepShape(8, 8, 4096, (), 8, 8)
    sizes = {item.operation: item for item in forward.messages(shape)}
    assert sizes["allreduce"].number == 2 * 32
    assert sizes["allreduce"].size_bytes == 8 * 4096 * 2
    assert sizes["all_gather"].size_bytes == 8 * 128256 * 2
    alone = model_of()
    assert not [*alone.step_times(alone.layout(alone.spec.parallel)).forward.messages(shape)]


def test_queries_that_share_a_head_of_keys_cost_nothing() -> None:
    few = model_of(model={"base": "llama3-8b", "heads": 8, "head_size": 128, "kv_heads": 8})
    many = model_of(model={"base": "llama3-8b", "heads": 64, "head_size": 128, "kv_heads": 8})
    shape, times = StepShape(1, 1, 1 << 16, (), 1, 1), []
    for model in (few, many):
        forward = model.step_times(model.layout(model.spec.parallel)).forward
        times.append(
            next(item.time_s for item in forward.kernels(shape) if item.name == "attention")
        )
    assert times[0] == times[1]


def test_a_pipeline_gives_a_token_after_all_stages() -> None:
    model = model_of(parallel={"pipeline": 2}, model={"base": "llama3-8b", "layers": 32})
    result = model.run()
    times = model.step_times(model.layout(model.spec.parallel))
    stage = times.find(StepShape(1, 1, 512, (), 1, 1)).time_ps
    first, second = result.sequences[0].token_ps[:2]
    assert second - first == 2 * stage + 1_000_000_000


def test_two_batches_in_a_pipeline_share_its_stages() -> None:
    """With as many batches as stages the throughput is that of a stage, not of all stages one after the other."""
    one = served(parallel={"pipeline": 2}, **requests(concurrency=1, count=4, output=128))
    two = served(parallel={"pipeline": 2}, **requests(concurrency=2, count=8, output=128))
    assert two.tokens_per_s == pytest.approx(2 * one.tokens_per_s, rel=0.15)


def test_everything_is_conserved() -> None:
    for rule in RULES:
        result = served(
            batching={"rule": rule, "max_batched_tokens": 1024},
            **requests(
                concurrency=6, count=24, input={"uniform": [100, 700]}, output={"uniform": [2, 40]}
            ),
        )
        asked = draw_requests(model_of(**requests(concurrency=6, count=24, input={"uniform": [100, 700]},
                                                   output={"uniform": [2, 40]})).spec.requests)  # fmt: skip
        assert result.output_tokens == sum(item.output for item in asked)
        prompts = sum(record.prompt_tokens for record in result.records)
        assert prompts == sum(item.prompt for item in asked) or result.cache.preemptions
        assert all(len(item.token_ps) == item.output for item in result.sequences)
        assert all(np.diff(item.token_ps).min(initial=1) > 0 for item in result.sequences)


def test_a_full_cache_keeps_the_time_per_token_and_delays_the_first() -> None:
    """If 8 requests fit, 32 at a time wait for (32 - 16) / throughput longer than 16."""
    spec = {"batching": {"rule": "trtllm"}, "cache": {"blocks": 8 * 36}}
    load = {"input": 480, "output": {"uniform": [48, 96]}}
    half = served(**spec, **requests(concurrency=16, count=320, **load))
    full = served(**spec, **requests(concurrency=32, count=320, **load))
    assert full.tpot.mean == pytest.approx(half.tpot.mean, rel=0.02)
    later = np.median(full.ttft_ps[64:]) - np.median(half.ttft_ps[64:])
    assert later * 1e-12 == pytest.approx(16 / full.requests_per_s, rel=0.05)


def test_mean_wait_of_an_open_loop_is_that_of_md1() -> None:
    """Prompts only, equal, one at a time: rho S / 2 (1 - rho), within three standard errors."""
    single = served(**requests(concurrency=1, count=1, input=8192, output=1))
    service = single.ttft.mean - 10e-3
    load = 0.6
    waits = []
    for seed in range(5):
        changes = {
            "input": 8192,
            "output": 1,
            "concurrency": None,
            "rate": load / service,
            "count": 400,
        }
        result = served(**requests(**changes, seed=seed))
        waits.append(result.ttft.mean - single.ttft.mean)
    error = np.std(waits, ddof=1) / np.sqrt(len(waits))
    assert abs(np.mean(waits) - load * service / (2 * (1 - load))) < 3 * error + 0.02 * service


def test_padding_costs_the_next_graph() -> None:
    assert [pad_tokens(tokens) for tokens in (1, 3, 5, 33, 257, 512, 513)] == [
        1,
        4,
        8,
        40,
        272,
        512,
        513,
    ]
    model = model_of()
    times = model.step_times(model.layout(model.spec.parallel))
    shapes = [StepShape(pad_tokens(count), count, 40 * 512, (), 33, 40) for count in (33, 40)]
    parts = [{item.name: item.time_s for item in times.forward.kernels(shape)} for shape in shapes]
    assert parts[0]["qkv"] == parts[1]["qkv"]


def test_two_runs_are_equal_and_equal_arrivals_may_be_shuffled() -> None:
    one, two = (served(**requests(concurrency=4, count=12, output=20)).to_json() for _ in range(2))
    assert one == two


@pytest.mark.parametrize("more", [{"cache": {"blocks": 400}}, {}])
def test_more_blocks_never_lower_the_throughput(more: dict[str, Any]) -> None:
    load = requests(concurrency=16, count=64, input=512, output=64)
    few = served(cache={"blocks": 200}, **load)
    assert served(**more, **load).tokens_per_s >= few.tokens_per_s


def test_a_static_batch_is_the_sum_of_its_steps() -> None:
    result = served(batching={"rule": "static"}, **requests(concurrency=4, count=4, output=16))
    gaps = [record.end_ps - record.start_ps for record in result.records]
    assert sum(gaps) == result.records[-1].end_ps - result.records[0].start_ps


def test_experts_of_data_parallel_attention_exchange_tokens() -> None:
    spec = {
        "model": "deepseek-v3",
        "topology": "dgx-h200",
        "precision": {"weights": "fp8-block"},
        "parallel": {"tensor": 1, "expert": 8, "attention_data": 8},
    }
    model = load_model(ServingSpec.model_validate(spec))
    forward = model.step_times(model.layout(model.spec.parallel)).forward
    shape = StepShape(16, 16, 16 * 1024, (), 16, 128)
    sizes = [(item.operation, item.size_bytes, item.number) for item in forward.messages(shape)]
    assert sizes == [("all_gather", 128 * 7168 * 2, 58), ("reduce_scatter", 128 * 7168 * 2, 58)]
    tensor = {**spec, "parallel": {"tensor": 8, "expert": 8}}
    model = load_model(ServingSpec.model_validate(tensor))
    forward = model.step_times(model.layout(model.spec.parallel)).forward
    counts = {item.operation: item.number for item in forward.messages(shape)}
    assert counts["allreduce"] == 2 * 61


def deepep_model(nodes: int, **experts: Any) -> ServedModel:
    spec = {
        "model": "deepseek-v3",
        "topology": "dgx-h100",
        "nodes": nodes,
        "precision": {"weights": "fp8-block"},
        "parallel": {"expert": 8 * nodes, "attention_data": 8 * nodes},
        "experts": experts,
    }
    return load_model(ServingSpec.model_validate(spec))


def test_deepep_sends_a_token_to_each_of_its_experts_in_decoding() -> None:
    """16 tokens with 8 experts: 7,168 bytes, 56 scales of 4 and a mark of 16 there; 14,336 bytes back."""
    model = deepep_model(2, exchange="deepep", low_latency=True)
    times = model.step_times(model.layout(model.spec.parallel))
    decode = [*times.forward.messages(StepShape(16, 16, 16, (), 16, 256))]
    assert [item.operation for item in decode] == ["dispatch", "combine"]
    moved = [item.exchange for item in decode if item.exchange is not None]
    assert [item.across for item in moved] == [16 * 8 * (7168 + 56 * 4 + 16), 16 * 8 * 2 * 7168]
    assert [item.bytes * 2 for item in moved] == [item.across for item in moved]
    # Half of the bytes leave the node over a NIC of 50 GB/s; kernels have a least time.
    for message, comm in zip(decode, moved, strict=True):
        wire_s = comm.across / 2 / 50e9
        assert max(wire_s, comm.least_ps * 1e-12) <= times.message_s(message) < 3 * wire_s + 60e-6
    prompts = [*times.forward.messages(StepShape(4096, 0, 0, ((4096, 0),), 1, 65536))]
    assert not any(item.exchange.flags for item in prompts if item.exchange is not None)
    wrong = {"tensor": 2, "expert": 8, "attention_data": 8}
    with pytest.raises(ClusimError, match="needs whole experts on each rank; set expert to 16"):
        model.step_times(model.layout(ReplicaSpec(**wrong)))


def test_step_parts_divide_sequences_between_copies_of_attention() -> None:
    """256 sequences on 16 copies: 16 tokens of 8 x 7,408 bytes on each, half of them inside the node."""
    model = deepep_model(2, exchange="deepep", low_latency=True)
    times = model.step_times(model.layout(model.spec.parallel))
    rows = layer_rows((times, times), 1024, 256, 1024)
    names = [row.name for row in rows if row.step == "decode"]
    assert f"dispatch of {format_size(16 * 8 * 7408 // 2)}, 16 ranks" in names


def test_ranks_wait_for_the_fullest_group_of_experts() -> None:
    """Of two experts with popularity 1 and 1/2 the first has 2/3 of the tokens, a third more than half."""
    assert fullest_skew(256, 8, 0.0, 0) == 0
    assert fullest_skew(2, 2, 1.0, 3) == pytest.approx(1 / 3)
    skews = [fullest_skew(256, 8, 1.0, seed) for seed in range(4)]
    assert len({*skews}) == 4
    assert min(skews) > 0
    assert skews[1] == fullest_skew(256, 8, 1.0, 1)
    even, full = (deepep_model(1, power=power, seed=1) for power in (0.0, 1.0))
    shape = StepShape(4096, 0, 0, ((4096, 0),), 1, 32768)
    times = []
    for model in (even, full):
        forward = model.step_times(model.layout(model.spec.parallel)).forward
        times.append(next(item.time_s for item in forward.kernels(shape) if item.name == "experts"))
    assert times[1] > times[0]
    with pytest.raises(ValueError, match="set either skew or power"):
        deepep_model(1, power=1.0, skew=0.2)


def test_tokens_are_sent_once_to_a_group_of_ranks_with_their_experts() -> None:
    spec = {
        "model": "deepseek-v3",
        "topology": "dgx-h200",
        "precision": {"weights": "fp8-block"},
        "parallel": {"expert": 8, "attention_data": 8},
        "experts": {"exchange": "alltoall"},
    }
    model = load_model(ServingSpec.model_validate(spec))
    forward = model.step_times(model.layout(model.spec.parallel)).forward
    sizes = [item.size_bytes for item in forward.messages(StepShape(16, 16, 16, (), 16, 128))]
    # 8 of 256 experts, 32 on a rank: a rank has none of a token's with C(224, 8) / C(256, 8).
    missed = comb(224, 8) / comb(256, 8)
    copies = 16 * 8 * (1 - missed) * 7168
    assert sizes == [round(copies), 2 * round(copies)]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_grouped_experts_start_earlier_on_newer_chips(engine: str) -> None:
    """Kernels of Blackwell were measured: their figures are not those of Hopper, carried over."""
    form, work = ENGINES[engine].expert_form, Grouped(8, 8, 3 * 7168 * 256, 1.0, 2 * 7168)
    old, new = (
        form((chip, name), "fp8-block")
        for chip, name in (("h100-sxm5", "hopper"), ("b200-sxm", "blackwell"))
    )
    assert new.start_us < old.start_us
    chips = Silicon(132, 1979e12, 3.35e12), Silicon(148, 4500e12, 8e12)
    # 8 experts of 5.5 MB: 13 us of memory on H100, 5.5 us on B200.
    assert old.time_s(chips[0], work) > old.start_us * 1e-6 + 44e6 / 3.35e12
    assert new.time_s(chips[1], work) < old.time_s(chips[0], work)


def test_experts_of_types_that_were_not_measured_are_refused() -> None:
    engine = ENGINES["vllm"]
    with pytest.raises(ClusimError, match="grouped experts of vllm on h100-sxm5 are not measured"):
        engine.expert_form(("h100-sxm5", "hopper"), "nvfp4")
    notes = engine.assumptions(
        ("mi300x", "cdna3"), ("fp8-block", "bf16"), latent=False, experts=True
    )
    assert notes[1].endswith(
        "grouped experts of vllm on mi300x with weights of fp8-block as hopper fp8-block"
    )


def test_figures_of_other_chips_are_noted() -> None:
    def notes(topology: str, **more: Any) -> list[str]:
        return load_model(
            ServingSpec.model_validate({"model": "llama3-8b", "topology": topology, **requests(count=1), **more})
        ).run().notes  # fmt: skip

    assert notes("dgx-h100") == []
    assert notes("dgx-a100", precision={"cache": "fp8"}) == [
        "assumed: decode attention of vllm on a100-sxm4-80gb with a cache of fp8 as hopper fp8"
    ]
    assert notes("mi300x") == [
        "assumed: decode attention of vllm on mi300x with a cache of bf16 as hopper bf16"
    ]


def test_serve_is_public() -> None:
    assert clusim.serve is not None
