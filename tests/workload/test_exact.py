"""Numbers that are known exactly, on machines whose links cost nothing: idle shares of pipelines, bytes on wires."""

from __future__ import annotations

from typing import Any

import pytest

from clusim.hardware.kernels.fused import BLOCK
from clusim.training import TrainingResult, train
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Shard
from clusim.workload.models.parts import Recorder
from clusim.workload.models.transformer import Transformer
from support.workloads import ideal, tiny

SLOW = "optimizer: sgd\nhardware: {gemm_fraction: 0.000001}\n"
"""Kernels take seconds, so that the microseconds of messages do not show."""


HEADS = 24


def step(text: str, ranks: int, steps: int = 1, **replace: str) -> TrainingResult:
    work = tiny(text, **replace)
    how = {"granularity": 65536, "fold": "none", "confirm": False}
    return train(work, ideal(ranks), steps=steps, **how)


def pipeline(
    schedule: str, stages: int, microbatches: int, *, layers: int | None = None
) -> TrainingResult:
    count = layers or 16 // stages * stages
    return step(
        f"{SLOW}parallel: {{pipeline: {stages}}}\npipeline: {schedule}",
        stages,
        model="{base: mlp, sizes: [" + ", ".join(["64"] * (1 + count)) + "]}",
        batch=f"{{global: {64 * microbatches}, micro: 64}}",
    )


def idle_share(result: TrainingResult) -> float:
    idle = sum(row.total_ps - row.compute_ps for row in result.ranks)
    return idle / sum(row.total_ps for row in result.ranks)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_naive_pipeline_is_idle_for_all_but_one_stage(stages: int) -> None:
    found = pipeline("{schedule: naive}", stages, 2)
    assert idle_share(found) == pytest.approx((stages - 1) / stages, abs=1e-5)
    for row in found.ranks:
        assert row.compute_ps / row.total_ps == pytest.approx(1 / stages, abs=1e-5)


@pytest.mark.covering(2)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("messages", ["blocking", "overlapped"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 3), (4, 8), (8, 8)])
def test_a_filled_pipeline_is_idle_for_n_minus_1_of_n_plus_k_minus_1(
    schedule: str, messages: str, stages: int, microbatches: int
) -> None:
    found = pipeline(f"{{schedule: {schedule}, messages: {messages}}}", stages, microbatches)
    expected = (stages - 1) / (stages + microbatches - 1)
    assert idle_share(found) == pytest.approx(expected, abs=1e-5)
    assert found.bubble_fraction == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 6, 2), (3, 7, 2)]
)
def test_interleaving_divides_idle_time_by_the_chunks(
    stages: int, microbatches: int, chunks: int
) -> None:
    even = 16 // (stages * chunks) * stages * chunks
    schedule = f"{{schedule: interleaved, chunks: {chunks}}}"
    found = pipeline(schedule, stages, microbatches, layers=even)
    idle = (stages - 1) / chunks
    assert idle_share(found) == pytest.approx(idle / (microbatches + idle), abs=1e-5)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe", "dualpipe-v"])
def test_stages_with_two_parts_wait_as_their_slots_say(
    schedule: str, stages: int, microbatches: int
) -> None:
    """Forward, input and weight pass take the same, a unit u; 1/p of the idle units of `test_orders` each."""
    found = pipeline(f"{{schedule: {schedule}}}", stages, microbatches)
    idle = {"zb-v": stages - 1, "dualpipe": stages - 2, "dualpipe-v": 2 * (stages - 1)}[schedule]
    busy = 3 * microbatches * (1 if schedule == "dualpipe" else 2)
    assert idle_share(found) == pytest.approx(idle / (busy + idle), abs=1e-5)


@pytest.mark.parametrize(
    ("schedule", "boundaries"), [("1f1b", 3), ("zb-v", 6), ("dualpipe", 3), ("dualpipe-v", 6)]
)
def test_messages_cross_every_boundary_between_stages_twice(schedule: str, boundaries: int) -> None:
    """In a V the two parts in the middle are on one stage. Copies of the model add up their gradients, in pairs."""
    found = pipeline(f"{{schedule: {schedule}}}", 4, 8)
    handed = 64 * 64 * 2
    assert volume_of(found)["pipeline"] == 8 * 2 * boundaries * handed // 4
    whole = found.plan.model.parameters * 2
    if schedule == "dualpipe":
        # A stage has parts s and 3 - s, half of the model; an all-reduce of two sends its size.
        assert volume_of(found)["data"] == pytest.approx(whole / 2, rel=1e-2)
        assert [m.weights for m in found.memory] == [whole // 2] * 4
    else:
        assert "data" not in volume_of(found)
        assert [m.weights for m in found.memory] == [whole // 4] * 4
    assert found.plan.model_flops == pipeline("{schedule: 1f1b}", 4, 8).plan.model_flops


@pytest.mark.parametrize("layers", [(1, 3), (3, 1), (1, 1, 5, 1), (2, 3)])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_uneven_stages_wait_for_the_slowest(layers: tuple[int, ...], microbatches: int) -> None:
    """GPipe: all layers once, and the slowest stage's for every further microbatch, forwards and back."""
    counts = ", ".join(map(str, layers))
    text = f"{{schedule: gpipe, layers: [{counts}]}}"
    found = pipeline(text, len(layers), microbatches, layers=sum(layers))
    per_layer = found.ranks[0].compute_ps / microbatches / layers[0]
    expected = per_layer * (sum(layers) + (microbatches - 1) * max(layers))
    assert found.step_ps[-1] == pytest.approx(expected, rel=1e-5)


def test_three_stages_and_three_microbatches_fill_18_of_30_slots() -> None:
    found = pipeline("{schedule: gpipe}", 3, 3)
    slot = found.ranks[0].compute_ps / 6
    assert 3 * found.step_ps[-1] / slot == pytest.approx(30, abs=1e-3)
    assert sum(row.compute_ps for row in found.ranks) / slot == pytest.approx(18, abs=1e-3)


def sent(found: TrainingResult) -> float:
    """Return the payload that leaves a GPU, on average [bytes]."""
    wires = found.result.wires
    own = [index for index, name in enumerate(wires.names) if name.startswith("gpu")]
    return float(wires.counters["payload"][own].sum()) / found.plan.mesh.size


def parameters(found: TrainingResult) -> int:
    return sum(layer.parameters for layer in found.plan.stages[0][0])


def volume_of(found: TrainingResult) -> dict[str, Any]:
    volumes: dict[str, Any] = found.to_json()["volume_bytes_per_gpu"]
    return volumes


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("ddp", 2),
        ("naive", 2),
        ("driver", 2),
        ("zero1", 2),
        ("zero2", 2),
        ("distributed-optimizer", 2),
        ("zero3", 3),
        ("fsdp", 3),
    ],
)
def test_wires_carry_what_theory_says_of_data_parallelism(
    ranks: int, kind: str, factor: int
) -> None:
    text = f"data: {{kind: {kind}}}\ncommunicators: {{data: {{protocol: simple}}}}"
    found = step(text, ranks, batch=f"{{global: {ranks}, micro: 1}}")
    expected = factor * (ranks - 1) / ranks * parameters(found) * 2
    assert sent(found) == pytest.approx(expected, rel=2e-3)
    assert volume_of(found)["data"] == pytest.approx(sent(found), rel=2e-3)


@pytest.mark.parametrize(("ranks", "shard"), [(4, 2), (8, 2), (8, 4), (8, 1), (8, 8)])
@pytest.mark.parametrize(
    ("kind", "inside"), [("fsdp", 3), ("zero1", 2), ("zero2", 2), ("distributed-optimizer", 2)]
)
def test_hybrid_shards_move_whole_weights_inside_and_a_part_of_the_gradients_across(
    kind: str, inside: int, ranks: int, shard: int
) -> None:
    """Gathers and scatters of P inside S shards, (S-1)/S of it each; an all-reduce of P/S over the N/S copies."""
    text = f"data: {{kind: {kind}, shard: {shard}}}\ncommunicators: {{data: {{protocol: simple}}}}"
    found = step(text, ranks, batch=f"{{global: {ranks}, micro: 1}}")
    size, copies = parameters(found) * 2, ranks // shard
    expected = inside * (shard - 1) / shard * size + 2 * (copies - 1) / copies * size / shard
    assert sent(found) == pytest.approx(expected, rel=2e-3)
    assert volume_of(found)["data"] == pytest.approx(sent(found), rel=2e-3)


@pytest.mark.parametrize(("accumulate", "times"), [("true", 1), ("false", 2)])
@pytest.mark.parametrize("kind", ["fsdp", "zero2"])
def test_copies_are_added_up_once_where_gradients_are_accumulated(
    kind: str, accumulate: str, times: int
) -> None:
    text = f"data: {{kind: {kind}, shard: 2, accumulate: {accumulate}}}"
    found = step(text, 4, batch="{global: 8, micro: 1}")
    whole = step(text.replace("shard: 2", "shard: 4"), 4, batch="{global: 8, micro: 1}")
    size = parameters(found) * 2
    # Per gather or scatter 1/2 instead of 3/4 of P; 2 x 1/2 of P/2 for each sum over the copies.
    moves = {"fsdp": 2 * 3, "zero2": 2 + 1}[kind]
    less, more = moves * (3 / 4 - 1 / 2) * size, times * size / 2
    assert sent(whole) - sent(found) == pytest.approx(less - more, rel=1e-2)


def test_a_distributed_optimizer_moves_as_much_as_an_all_reduce() -> None:
    one, two = (
        sent(step(f"data: {{kind: {kind}}}", 4, batch="{global: 4, micro: 1}"))
        for kind in ("ddp", "distributed-optimizer")
    )
    assert one == pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("mode", ["bsp", "async"])
def test_wires_carry_pushes_and_pulls(servers: int, mode: str) -> None:
    workers = 4
    text = f"data: {{kind: parameter-server, servers: {servers}, mode: {mode}}}"
    steps = 16 if mode == "async" else 1  # steps that overlap are measured in a steady window
    found = step(text, workers + servers, steps=steps, batch=f"{{global: {workers}, micro: 1}}")
    wires, own = found.result.wires, {}
    for index, name in enumerate(wires.names):
        source = name.partition("->")[0]
        own[source] = own.get(source, 0) + int(wires.counters["payload"][index])
    size = parameters(found) * 2 * steps
    for rank in range(workers):
        assert own[f"gpu{rank}"] == pytest.approx(size, rel=2e-3)
    for rank in range(workers, workers + servers):
        assert own[f"gpu{rank}"] == pytest.approx(workers * size / servers, rel=2e-3)


def test_wires_carry_two_all_reduces_each_way_and_layer() -> None:
    by_layers = [
        sent(
            step(
                "parallel: {tensor: 4}",
                4,
                model=f"{{base: gpt3-1.3b, layers: {layers}, hidden: 256, heads: 8, head_size: 32, kv_heads: 8,"
                " intermediate: 1024, vocab: 1024}",
                batch="{global: 1, micro: 1}",
            )
        )
        for layers in (2, 3)
    ]
    one = 2 * 3 / 4 * 128 * 256 * 2
    assert by_layers[1] - by_layers[0] == pytest.approx(4 * one, rel=1e-3)


def test_wires_carry_four_exchanges_per_layer_of_experts() -> None:
    by_layers = [
        sent(
            step(
                "parallel: {expert: 4}\ndata: {kind: naive}\noptimizer: sgd",
                4,
                model=f"{{base: mixtral-8x7b, layers: {layers}, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
                " expert_size: 64, vocab: 1024}",
                batch="{global: 4, micro: 1}",
            )
        )
        for layers in (1, 2)
    ]
    exchanges = 4 * 3 / 4 * (128 * 2 * 256 * 2)
    attention, router, norms = 4 * 256 * 256, 256 * 8, 2 * 256
    gradients = 2 * 3 / 4 * (attention + router + norms) * 2
    assert by_layers[1] - by_layers[0] == pytest.approx(exchanges + gradients, rel=1e-3)


def test_tables_are_exchanged_and_dense_layers_reduced() -> None:
    model = "{base: dlrm, rows: [1000, 1000, 1000, 1000], bottom: [512, 128], top: [256, 1]}"
    found = step("parallel: {expert: 4}\noptimizer: sgd", 4, model=model, batch="{global: 256, micro: 64}")  # fmt: skip
    layer = found.plan.stages[0][0][0]
    dense = sum(t.elements for t in layer.tensors if not t.expert)
    pooled = 64 * 4 * 128 * 2
    assert volume_of(found)["expert"] == 2 * 3 / 4 * pooled
    assert volume_of(found)["data"] == pytest.approx(2 * 3 / 4 * dense * 2, rel=1e-3)
    assert sent(found) == pytest.approx(sum(volume_of(found).values()), rel=1e-3)


def around(style: str, *, kv: int = 4, heads: int = 8) -> TrainingResult:
    """Return a step of one layer of 128 tokens on four ranks of the context dimension."""
    model = (
        f"{{base: llama3-8b, layers: 1, hidden: 256, heads: {heads}, kv_heads: {kv}, head_size: 32,"
        " intermediate: 512, vocab: 1024}"
    )
    text = f"parallel: {{context: 4, data: 1}}\ndata: {{kind: naive}}\ncontext: {{style: {style}}}"
    return step(text, 4, model=model, batch="{global: 1, micro: 1}")


@pytest.mark.parametrize("kv", [2, 8])
@pytest.mark.parametrize("style", ["ring", "all-gather"])
def test_keys_and_values_go_to_all_ranks(style: str, kv: int) -> None:
    found = around(style, kv=kv)
    part = 2 * kv * 32 * (128 // 4) * 2
    # Three times forwards; backwards keys and values, and their gradients.
    assert volume_of(found)["context"] == 3 * part * (1 + 2)
    whole = around(style, kv=kv).plan.model_flops
    assert whole == around("ulysses", kv=kv).plan.model_flops
    rest = volume_of(found)["data"]
    assert sent(found) == pytest.approx(volume_of(found)["context"] + rest, rel=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("tokens", "parts"), [(4096, 4), (8192, 8), (6144, 3)])
def test_attention_is_shared_out_alike_in_all_styles(tokens: int, parts: int, causal: bool) -> None:
    """A rank has s/n rows; of its s²/n pairs of rows and keys a causal mask leaves s²/2n, and a diagonal of blocks."""
    work = {}
    for style in ("ring", "ulysses", "all-gather"):
        rec = Recorder(Shard(1, tokens, context=parts, around=style, flash=True))
        model = Transformer("t", 1, 64 * HEADS, HEADS, HEADS, 64, 64, 64, causal=causal)
        model._core(rec, rec.shard, HEADS, HEADS)
        seen = [each for each in rec.forward if isinstance(each, Kernel) and each.fused]
        pairs = sum(kernel.fused.pairs * kernel.fused.heads for kernel in seen if kernel.fused)
        work[style] = pairs * BLOCK**2
        useful = sum(kernel.useful for kernel in seen)
        assert useful == 2 * HEADS * tokens**2 // parts * 2 * 64
    exact = HEADS * tokens**2 / parts / (2 if causal else 1)
    # Blocks on the diagonal count whole: half a block for each row, n times for the steps of a ring.
    diagonal = HEADS * tokens * BLOCK / 2 if causal else 0
    for style, pairs in work.items():
        assert exact <= pairs <= exact + diagonal * 1.01, style


@pytest.mark.parametrize(("kv", "there"), [(2, 4), (4, 4), (8, 8)])
def test_heads_are_exchanged_for_tokens(kv: int, there: int) -> None:
    """Queries, keys, values and the output of a quarter of the tokens; three quarters of each leave, and come back.

    Where there are two heads of keys for four ranks each goes to two of them.
    """
    found = around("ulysses", kv=kv)
    one = (128 // 4) * 32 * 2 * (8 + 2 * there + 8)
    assert volume_of(found)["context"] == 2 * 3 / 4 * one
    assert sent(found) == pytest.approx(
        volume_of(found)["context"] + volume_of(found)["data"], rel=1e-3
    )


def test_attention_is_the_same_work_however_keys_come() -> None:
    """A rank's quarter of the queries against all keys, or a quarter of the heads: the same operations."""
    flops = {style: around(style).executed_flops for style in ("ring", "all-gather", "ulysses")}
    assert len(set(flops.values())) == 1
