from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.workload.kernels import PRECISIONS
from clusim.workload.layers import Activations, Layer, Shard, Tensor
from clusim.workload.memory import (
    MEMORY_PARTS,
    PROCESS_PARTS,
    Keeping,
    Memory,
    find_optimizer,
    in_flight,
    stage_memory,
)
from clusim.workload.models import find_model
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, megatron_activation_bytes, recomputed, tiny

P = 1_000_000
LAYER = Layer("layer", "block", (Tensor("w", P),), activations=Activations(100, 10))
ADAM = find_optimizer("adam", PRECISIONS["bf16"])


@pytest.mark.parametrize(
    ("zero", "expected"),
    [(0, 16 * P), (1, 4 * P + 12 * P / 8), (2, 2 * P + 14 * P / 8), (3, 16 * P / 8)],
)
def test_zero_cuts_states_as_its_paper_says(zero: int, expected: float) -> None:
    memory = stage_memory([[LAYER]], ADAM, Keeping(zero=zero, data=8))
    assert memory.weights + memory.gradients + memory.optimizer == expected


def test_the_other_accounting_has_a_copy_of_the_gradients() -> None:
    wide = find_optimizer("adam", PRECISIONS["bf16"], 32)
    memory = stage_memory([[LAYER]], wide)
    assert memory.weights + memory.gradients + memory.optimizer == (2 + 2 + 16) * P


@pytest.mark.parametrize(("accumulation", "each"), [("fused", 18), ("added", 20)])
def test_products_that_add_to_sums_leave_no_other_gradients(accumulation: str, each: int) -> None:
    # Megatron-LM counts 18 bytes a parameter, or 6 and 12 over the shards.
    wide = f"gradient_bits: 32\naccumulation: {accumulation}\nparallel: {{data: 2}}"
    narrow = stages_of("gradient_bits: 16\nparallel: {data: 2}")[0]
    parameters = narrow.weights // 2
    own = stages_of(wide)[0]
    assert own.weights + own.gradients + own.optimizer == each * parameters
    cut = stages_of(f"{wide}\ndata: {{kind: distributed-optimizer}}")[0]
    assert cut.weights + cut.gradients + cut.optimizer == (each - 12 + 6) * parameters


def test_experts_are_replicated_less() -> None:
    layer = Layer("moe", "moe", (Tensor("w", 800), Tensor("e", 800, True)))
    assert stage_memory([[layer]], ADAM, Keeping(zero=3, data=8, expert_data=2)).weights == 2 * (
        100 + 400
    )


@pytest.mark.parametrize(("recompute", "kept"), [("none", 100), ("full", 10)])
def test_activations_are_those_of_microbatches_under_way(recompute: str, kept: int) -> None:
    layer = recomputed(LAYER, recompute)
    memory = stage_memory([[layer, layer]], ADAM, Keeping(held=3))
    assert memory.activations == 2 * 3 * kept
    chunked = stage_memory([[layer], [layer]], ADAM, Keeping(held=3))
    assert chunked.activations == 3 * kept


@pytest.mark.parametrize(
    ("schedule", "stage", "held"),
    [
        ("naive", 0, 1),
        ("gpipe", 0, 16),
        ("gpipe", 3, 16),
        ("1f1b", 0, 4),
        ("1f1b", 3, 1),
        ("zero-bubble", 1, 4),
        ("pipedream", 0, 4),
        ("pipedream", 3, 1),
        ("interleaved", 0, 4),
    ],
)
def test_microbatches_under_way(schedule: str, stage: int, held: int) -> None:
    assert in_flight(schedule, stage, 4, 16) == held


def test_interleaving_costs_the_published_memory() -> None:
    # Narayanan et al.: the first stage holds 1 + (p - 1) / (p v) times the activations of 1F1B.
    stages, chunks = 8, 3
    held = in_flight("interleaved", 0, stages, 64, chunks)
    assert held / chunks == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)), rel=1e-9)


@pytest.mark.parametrize(
    ("hidden", "heads", "shares"),
    [
        (6144, 64, (66.8, 49.4, 16.2, 7.6)),
        (12288, 96, (62.0, 56.5, 18.5, 8.7)),
        (20480, 128, (58.3, 62.0, 20.3, 9.4)),
        (25600, 160, (58.3, 62.0, 20.3, 9.4)),
    ],
)
def test_the_published_shares_of_activation_memory(
    hidden: int, heads: int, shares: tuple[float, ...]
) -> None:
    def kept(**how: Any) -> float:
        return megatron_activation_bytes(2048, 1, hidden, heads, 8, **how)

    ways: list[dict[str, Any]] = [
        {"sequence_parallel": True},
        {"recompute": "selective"},
        {"sequence_parallel": True, "recompute": "selective"},
        {"recompute": "full"},
    ]
    found = [100 * kept(**how) / kept() for how in ways]
    assert found == pytest.approx(shares, abs=0.13)


def test_what_is_missing_is_said_in_bytes() -> None:
    memory = stage_memory([[LAYER]], ADAM, capacity=10 * P)
    assert memory.missing == memory.total - 10 * P > 0
    assert memory.to_json()["fits"] is False
    assert stage_memory([[LAYER]], ADAM).missing == 0


A100 = clusim.load("dgx-a100")

LOSS = 2 * 128 * 1024
"""Gradients of logits of the small model, in 16 bits."""


def stages_of(text: str, **replace: str) -> list[Memory]:
    plan = make_plan(tiny(text, **replace), A100)
    return [plan.memory(stage) for stage in range(plan.mesh.pipeline)]


def test_pipedream_keeps_a_version_of_the_weights_for_every_microbatch_under_way() -> None:
    batch = "{global: 16, micro: 1}"
    model = "{base: mlp, sizes: [64, 64, 64, 64, 64]}"
    own = stages_of("parallel: {pipeline: 4}\npipeline: {schedule: pipedream}", model=model, batch=batch)  # fmt: skip
    assert [item.weights for item in own] == [
        (4 - stage) * 2 * (64 * 64 + 64) for stage in range(4)
    ]
    assert [item.in_flight for item in own] == [4, 3, 2, 1]
    assert len({item.gradients for item in own}) == 1


def test_gpipe_holds_all_microbatches_and_1f1b_as_many_as_stages() -> None:
    for schedule, held in (("gpipe", [16] * 4), ("1f1b", [4, 3, 2, 1]), ("zero-bubble", [4] * 4)):
        own = stages_of(
            f"parallel: {{pipeline: 4}}\npipeline: {{schedule: {schedule}}}", batch="{global: 32, micro: 1}"
        )  # fmt: skip
        assert [item.in_flight for item in own] == held
        naive = "parallel: {pipeline: 4}\npipeline: {schedule: naive}"
        one = stages_of(naive, batch="{global: 32, micro: 1}")
        assert [a.activations // b.activations for a, b in zip(own, one, strict=True)] == held


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_is_under_way_is_what_the_passes_leave(chunks: int) -> None:
    # As many microbatches as stages: all forward passes come first.
    assert in_flight("interleaved", 3, 4, 4, chunks) == (1 if chunks == 1 else 8)


def test_buffers_are_those_of_the_communicators() -> None:
    text = "communicators: {tensor: {channels: 4}, data: {channels: 2}}\nparallel: {tensor: 4}"
    assert stages_of(text)[0].buffers == (4 + 2) * 2 * (4 << 20)
    assert stages_of("parallel: {data: 1}")[0].buffers == 0


@pytest.mark.parametrize("shard", [1, 2, 4, 8])
def test_shards_hold_their_part_of_the_states(shard: int) -> None:
    batch = "{global: 8, micro: 1}"
    one = stages_of("data: {kind: ddp}", batch=batch)[0]
    own = stages_of(f"data: {{kind: fsdp, shard: {shard}}}", batch=batch)[0]
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(own, name) == pytest.approx(getattr(one, name) / shard, abs=1)


def test_experts_are_cut_over_what_their_replicas_share() -> None:
    """Eight ranks, two of them with the same experts each: 4 shards are one of an expert, 8 are two."""
    model = (
        "{base: mixtral-8x7b, layers: 2, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
        " expert_size: 512, vocab: 1024}"
    )
    text = "parallel: {{expert: 4}}\ndata: {{kind: fsdp, shard: {}}}"
    plan = make_plan(tiny(text.format(8), model=model), A100)
    tensors = [t for layer in plan.stages[0][0] for t in layer.tensors]
    dense, expert = (sum(t.elements for t in tensors if t.expert == e) for e in (False, True))
    for shard, parts in ((8, (8, 2)), (4, (4, 1)), (2, (2, 1))):
        own = stages_of(text.format(shard), model=model)[0].weights
        assert own == pytest.approx(2 * (dense / parts[0] + expert / parts[1]), abs=2)


def test_full_recomputation_needs_one_layer_again() -> None:
    none, full = (stages_of(f"recompute: {kind}")[0] for kind in ("none", "full"))
    assert full.activations < none.activations
    assert full.transient > none.transient == LOSS


def test_sharded_weights_are_whole_for_a_moment() -> None:
    def transient(more: str) -> int:
        return stages_of(f"data: {{kind: fsdp{more}}}")[0].transient

    sizes = sorted(
        (layer.parameters for layer in make_plan(tiny(), A100).stages[0][0]), reverse=True
    )
    gradients = 2 * sum(sizes[:2])
    for depth in (0, 1, 2):
        assert transient(f", prefetch: {depth}") == 2 * sum(sizes[: depth + 1]) + gradients + LOSS
    assert transient(", reshard: false") == 2 * sum(sizes) + gradients + LOSS


def test_a_process_needs_memory_besides_its_step() -> None:
    """Context, cuBLAS's workspaces of two threads, and gaps between blocks of the allocator."""
    one = stages_of("parallel: {data: 1}")[0]
    assert one.context == 500 << 20
    assert one.workspaces == 2 * (2 * (4096 << 10) + 8 * (16 << 10))
    assert one.convolutions == 0
    assert one.fragments == round(0.03 * (one.activations + one.transient))
    assert one.total == sum(getattr(one, name) for name in MEMORY_PARTS)


@pytest.mark.parametrize(
    ("system", "each"), [("dgx-h100", 32), ("hgx-b200", 32), ("mi300x", 128), ("mi250x", 32)]
)
def test_workspaces_are_those_that_pytorch_gives_to_two_handles(system: str, each: int) -> None:
    plan = make_plan(tiny("parallel: {data: 1}"), clusim.load(system))
    assert plan.memory(0).workspaces == 2 * each << 20


def test_a_workload_replaces_the_memory_of_a_process() -> None:
    given = {"context": 700 << 20, "workspaces": 0, "convolutions": 3 << 30}
    text = "memory: {context: 700MiB, workspaces: 0, convolutions: 3GiB, fragments: 0.2}"
    own = stages_of(f"parallel: {{data: 1}}\n{text}")[0]
    assert {name: getattr(own, name) for name in given} == given
    assert own.fragments == round(0.2 * (own.activations + own.transient))
    plan = make_plan(tiny("parallel: {data: 1}\nmemory: {context: 1GiB}"), A100)
    bases = [plan.process.basis(name) for name in PROCESS_PARTS]
    assert bases == ["given", "published", "assumed", "assumed"]


def test_a_chip_of_unknown_memory_has_no_process() -> None:
    plan = make_plan(tiny("parallel: {data: 1}\nmemory: {context: 1GiB}"), ideal(1))
    unknown = replace(plan, chip=replace(plan.chip, memory_bytes=0)).memory(0)
    assert [getattr(unknown, name) for name in PROCESS_PARTS] == [0] * 4


def passes(kept: list[int], gradients: list[int]) -> int:
    """Return the transient memory of layers with these activations and gradients."""
    layers = [
        Layer("layer", "block", activations=Activations(one, one, two))
        for one, two in zip(kept, gradients, strict=True)
    ]
    return stage_memory([layers], ADAM).transient


@pytest.mark.parametrize(
    ("kept", "gradients", "transient"),
    [
        ([100, 100], [10, 30], 30),
        # The first layer's pass begins when the second one's 100 bytes are free.
        ([100, 100], [90, 30], 30),
        ([100, 100], [150, 30], 50),
        ([100, 20, 20], [150, 30, 0], 110),
    ],
)
def test_gradients_add_to_the_peak_what_later_layers_have_not_freed(
    kept: list[int], gradients: list[int], transient: int
) -> None:
    assert passes(kept, gradients) == transient


def resnet(text: str = "", batch: int = 256) -> Memory:
    how = {"model": "resnet-50", "batch": f"{{global: {batch}, micro: {batch}}}"}
    return stages_of(f"parallel: {{data: 1}}\nprecision: fp16\noptimizer: momentum\n{text}", **how)[
        0
    ]


def test_convolutions_use_their_matrices_in_another_layout_if_nothing_is_freed_yet() -> None:
    """The shortcut of the last stage, before it two blocks of 7 x 7 pixels; the stem's 1 GB is free long before."""
    own = resnet()
    pixels = 256 * 7 * 7 * 2
    # Gradients of the last block exist without the workspace, too: its third convolution is the largest.
    block = pixels * 512 * 2048 // 2048 + 512 * 2048 * 2 + pixels * 2048
    assert own.convolutions == block
    assert resnet("memory: {convolutions: 0}").total < own.total


@pytest.mark.parametrize(("image", "batch"), [(224, 4), (96, 2)])
def test_a_resnet_keeps_the_tensors_that_pytorch_saves(image: int, batch: int) -> None:
    torch = pytest.importorskip("torch")
    path = Path(__file__).parents[2] / "docs" / "examples" / "single_gpu.py"
    with torch.device("meta"):
        model = runpy.run_path(str(path))["resnet"]().to(torch.bfloat16)
        images = torch.empty(batch, 3, image, image, dtype=torch.bfloat16)
    tensors = [*model.parameters(), *model.buffers()]
    weights = {tensor.untyped_storage()._cdata for tensor in tensors}
    saved: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    total = sum(storage.nbytes() for key, storage in saved.items() if key not in weights)
    ours = replace(find_model("resnet-50"), image=image).build(Shard(batch=batch))
    assert sum(layer.kept_bytes for layer in ours) == total


GPT2 = (
    "{{base: gpt2, layers: {0}, hidden: {1}, heads: {2}, kv_heads: {2}, head_size: 64, intermediate: {3},"
    " vocab: 50304, dropout: false}}"
)


@pytest.mark.parametrize(
    ("model", "sequence", "samples", "measured_MiB"),
    [
        ("resnet-50", 1, 256, 11_259),
        (GPT2.format(12, 768, 12, 3072), 1024, 16, 14_863),
        (GPT2.format(24, 1024, 16, 4096), 1024, 8, 15_706),
        (GPT2.format(36, 1280, 20, 5120), 1024, 4, 19_037),
    ],
)
def test_memory_of_steps_measured_on_an_h100(
    model: str, sequence: int, samples: int, measured_MiB: int
) -> None:
    """``max_memory_allocated`` of docs/examples/single_gpu.py (docs/accuracy-programs.md): without context and gaps."""
    adam = "momentum" if model == "resnet-50" else "adam"
    text = (
        f"parallel: {{ranks: [0]}}\noptimizer: {adam}\nloss: plain\nmemory: {{convolutions: 0}}\n"
    )
    how = {"model": model, "sequence": str(sequence), "batch": f"{{global: {samples}, micro: {samples}}}"}  # fmt: skip
    own = make_plan(tiny(text, **how), clusim.load("dgx-h100")).memory(0)
    assert (own.total - own.context - own.fragments) / 2**20 == pytest.approx(
        measured_MiB, rel=0.035
    )


def test_resnet_50_with_256_images_in_16_bits() -> None:
    """11.2 GB of activations (stem: 256 x 64 x 112 x 112 outputs of 2 B), 12 GB allocated, context and gaps."""
    own = resnet()
    assert own.activations == pytest.approx(11.2e9, rel=0.01)
    assert own.total - own.context - own.fragments == pytest.approx(11.8e9, rel=0.02)
    assert own.total == pytest.approx(12.6e9, rel=0.02)


def test_gradients_of_an_unfused_loss_also_exist_in_32_bits() -> None:
    plain, fused = (
        stages_of(f"parallel: {{data: 1}}\nloss: {kind}")[0] for kind in ("plain", "fused")
    )
    assert (plain.transient, fused.transient) == (6 * 128 * 1024, 2 * 128 * 1024)
    assert plain.activations == fused.activations


@pytest.mark.parametrize(("accumulation", "whole", "cut"), [("added", 8, 12), ("step", 4, 16)])
def test_zero_1_with_32_bit_gradients_is_counted_in_two_ways(
    accumulation: str, whole: int, cut: int
) -> None:
    """A copy in which microbatches are added up is on every rank; one that the step makes is cut with the states."""
    text = "parallel: {data: %d}\ndata: {kind: zero1}\ngradient_bits: 32\naccumulation: %s"
    for ranks in (2, 4):
        one = stages_of(text % (ranks, accumulation))[0]
        parameters = one.weights / 2
        states = one.weights + one.gradients + one.optimizer
        assert states / parameters == pytest.approx(whole + cut / ranks)
