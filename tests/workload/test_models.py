from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.hardware.kernels.fused import Fused
from clusim.topology import Fabric, loads
from clusim.workload.chips import chip_of
from clusim.workload.kernels import PRECISIONS, Gemm, Kernel
from clusim.workload.layers import Comm, Layer, Shard, backward_steps, linear, total
from clusim.workload.memory import find_optimizer
from clusim.workload.models import MODELS, Transformer, find_model, from_config, read_config
from clusim.workload.recipes import casts
from clusim.workload.spec import HardwareSpec
from support.workloads import megatron_activation_bytes, recomputed


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet-50", 25_557_032),
        ("bert-large", 335_141_888),
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name: str, parameters: int) -> None:
    assert find_model(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [("gpt3-175b", 174.6, 1e-3), ("mixtral-8x22b", 140.6, 1e-3), ("deepseek-v3", 671, 1e-3)],
)
def test_parameters_are_those_of_the_papers(name: str, billions: float, tolerance: float) -> None:
    assert find_model(name).parameters / 1e9 == pytest.approx(billions, rel=tolerance)


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-1t"])
def test_operations_are_those_of_the_published_formula(name: str) -> None:
    model = find_model(name)
    assert isinstance(model, Transformer)
    s, h, v = 2048, model.hidden, model.vocab
    layers = model.build(Shard(batch=3, sequence=s, flash=False))
    found = sum(total(layers, part) for part in ("forward", "input", "weight"))
    formula = 72 * 3 * s * model.layers * h * h * (1 + s / (6 * h) + v / (12 * model.layers * h))
    assert found == pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize("fields", [{"tensor": 8}, {"tensor": 8, "sequence_parallel": True}])
def test_tensor_parallelism_divides_operations_evenly(fields: dict[str, Any]) -> None:
    model = find_model("gpt3-13b")
    whole = model.build(Shard(batch=2, sequence=2048))
    parts = model.build(Shard(batch=2, sequence=2048, **fields))
    for part in ("forward", "input", "weight"):
        assert 8 * total(parts[1:-1], part) == total(whole[1:-1], part)
    assert 8 * parts[1].parameters == pytest.approx(whole[1].parameters, rel=1e-3)


def test_the_backward_pass_has_twice_the_operations_of_the_forward_pass() -> None:
    for name in ("llama3-8b", "mixtral-8x7b", "resnet-50", "mlp"):
        layers = find_model(name).build(Shard(batch=2, sequence=512))
        back = total(layers, "input") + total(layers, "weight")
        assert back == 2 * total(layers, "forward"), name


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_are_those_of_the_published_formulas(
    name: str, sequence_parallel: bool, recompute: str
) -> None:
    model = find_model(name)
    assert isinstance(model, Transformer)
    shard = Shard(
        batch=1, sequence=2048, tensor=8, sequence_parallel=sequence_parallel, flash=False
    )
    kept = recomputed(model.build(shard)[1], recompute).kept_bytes
    if recompute == "full" and sequence_parallel:
        assert kept == 2 * 2048 * model.hidden // 8
        return
    formula = megatron_activation_bytes(
        2048,
        1,
        model.hidden,
        model.heads,
        8,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
    )
    assert kept == pytest.approx(formula, rel=1e-9)


def comms(layer: Layer, recompute: str = "none") -> list[list[str]]:
    steps = (layer.forward, backward_steps(recomputed(layer, recompute)))
    return [[step.operation for step in own if isinstance(step, Comm)] for own in steps]


def test_a_transformer_layer_synchronises_twice_each_way() -> None:
    block = find_model("gpt3-13b").build(Shard(batch=1, sequence=2048, tensor=4))[1]
    assert comms(block) == [["allreduce"] * 2] * 2
    assert comms(block, "full") == [["allreduce"] * 2, ["allreduce"] * 4]
    sizes = {step.bytes for step in block.forward if isinstance(step, Comm)}
    assert sizes == {2048 * 5120 * 2}


def test_sequence_parallelism_gathers_and_scatters_instead() -> None:
    block = find_model("gpt3-13b").build(
        Shard(batch=1, sequence=2048, tensor=4, sequence_parallel=True)
    )[1]
    forward = ["all_gather", "reduce_scatter"] * 2
    # Of either pair: the gradient is gathered, the input again for the weight gradient, the input gradient scattered.
    assert comms(block) == [forward, ["all_gather", "all_gather", "reduce_scatter"] * 2]


def test_context_parallelism_passes_keys_and_values_round() -> None:
    model = find_model("llama3-8b")
    block = model.build(Shard(batch=1, sequence=8192, context=4))[1]
    forward, backward = comms(block)
    assert forward == backward == ["sendrecv"] * 3
    sizes = [step.bytes for step in block.forward if isinstance(step, Comm)]
    assert sizes == [2 * 8 * 128 * 2048 * 2] * 3
    whole = model.build(Shard(batch=1, sequence=8192))[1]
    assert 4 * block.flops("forward") == whole.flops("forward")


def test_experts_get_their_tokens_by_all_to_all() -> None:
    block = find_model("mixtral-8x7b").build(Shard(batch=1, sequence=1024, expert=8))[1]
    assert comms(block) == [["alltoall"] * 2] * 2
    sizes = {step.bytes for step in block.forward if isinstance(step, Comm)}
    assert sizes == {1024 * 2 * 4096 * 2}
    assert sum(t.elements for t in block.tensors if t.expert) == 3 * 4096 * 14336


def test_a_convolution_reads_its_pixels_once() -> None:
    stem, first, *_ = find_model("resnet-50").build(Shard(batch=2))
    conv = next(k for k in stem.kernels("forward") if k.gemm is not None)
    assert conv.flops == 2 * 2 * 112 * 112 * 64 * 3 * 49
    assert conv.bytes == 2 * (2 * 224 * 224 * 3 + 3 * 49 * 64 + 2 * 112 * 112 * 64)
    second = [k for k in first.kernels("forward") if k.gemm is not None][1]
    assert second.bytes == 2 * (2 * 2 * 56 * 56 * 64 + 9 * 64 * 64)


def test_an_image_takes_the_published_operations() -> None:
    layers = find_model("resnet-50").build(Shard(batch=1))
    # 4.1 billion multiply-adds of an image of 224 x 224.
    assert total(layers, "forward") == pytest.approx(2 * 4.1e9, rel=0.01)


CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip


def test_a_hugging_face_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert read_config(path).parameters == find_model("llama3-8b").parameters


@pytest.mark.parametrize("key", [key for key in CONFIG if key != "model_type"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InputError, match=key):
        from_config({name: value for name, value in CONFIG.items() if name != key})


@pytest.mark.parametrize(
    "name", ["n_routed_experts", "num_routed_experts", "num_experts", "num_local_experts"]
)
def test_experts_go_by_many_names(name: str) -> None:
    model = from_config(CONFIG | {name: 8, "num_experts_per_tok": 2})
    assert (model.experts, model.top_k, model.expert_size) == (8, 2, 14336)


def test_deepseek_is_read_with_its_latent_attention() -> None:
    config = CONFIG | {
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    assert from_config(config).parameters == find_model("deepseek-v3").parameters
    del config["v_head_dim"]
    with pytest.raises(InputError, match="v_head_dim"):
        from_config(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5"),
        ({"num_experts": "8"}, "'num_experts' is '8'"),
        ({"num_experts": 8}, "'num_experts_per_tok'"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "top_k 9: must be 1 to 8"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [1]}, "every layer must"),
        ({"head_dim": "x"}, "'head_dim' is 'x'"),
        ({"hidden_size": 4097}, "not a multiple of 32 heads"),
        ({"hidden_size": 4096.0}, "'hidden_size' is 4096.0"),
        ({"hidden_size": 10**30}, "must be an integer"),
        ({"num_hidden_layers": 10**6}, "'num_hidden_layers' is 1000000"),
        ({"intermediate_size": [1, 2]}, "'intermediate_size' is"),
        ({"tie_word_embeddings": "no"}, "'tie_word_embeddings' is 'no'"),
        ({"hidden_act": 3}, "must be a name"),
        ({"is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"hidden_size": None, "text_config": {}}, "several parts"),
        ({"kv_lora_rank": 512}, "'q_lora_rank'"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as found:
        from_config(CONFIG | changes, "config.json")
    assert message in str(found.value)
    assert str(found.value).startswith("config.json: ")
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"model_type": "gemma", "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048,
          "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
          "intermediate_size": 16384, "vocab_size": 256000, "tie_word_embeddings": True}, 2_506_172_416),
        ({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
          "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064}, 7_615_616_512),
        ({"model_type": "phi3", "hidden_size": 3072, "num_key_value_heads": 32, "intermediate_size": 8192,
          "vocab_size": 32064}, 3_821_079_552),
        ({"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
          "intermediate_size": 24576, "vocab_size": 50432, "hidden_act": "gelu_fast"}, 20_554_567_680),
    ],
)  # fmt: skip
def test_other_families_have_their_published_parameters(
    changes: dict[str, Any], parameters: int
) -> None:
    assert from_config(CONFIG | changes).parameters == parameters


def test_gpt2_goes_by_its_own_names() -> None:
    config = {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
        "activation_function": "gelu_new", "tie_word_embeddings": True, "n_inner": None,
    }  # fmt: skip
    assert from_config(config).parameters == find_model("gpt2").parameters
    del config["n_inner"]
    with pytest.raises(InputError, match="'n_inner' is missing"):
        from_config(config)


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_size": "big"}'])
def test_a_bad_configuration_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        read_config(path)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor": 3}, "attention heads"),
        ({"expert": 2}, "no experts"),
        ({"tensor": 2, "sequence": 1023}, "sequence"),
        ({"sequence": 4096}, "positions"),
    ],
)
def test_impossible_cuts_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_model("gpt3-13b").build(Shard(**{"batch": 1, "sequence": 1024, **fields}))


def test_every_model_is_listed_when_a_name_is_wrong() -> None:
    with pytest.raises(InputError, match="did you mean 'gpt2-xl'"):
        find_model("gpt2-xll")
    assert len(MODELS) > 20


def _pair(chip: str) -> Fabric:
    """Return two GPUs of a chip of one's own."""
    return loads(
        f"name: own\nchips:\n  mine: {chip}\nnodes:\n  gpu0..1: {{kind: gpu, chip: mine}}\n"
        "links:\n  - {from: gpu0, to: gpu1, type: nvlink3, count: 12}\n"
    )


class TestChip:
    chip = chip_of(clusim.load("dgx-a100"), PRECISIONS["bf16"], HardwareSpec(sustained=1.0))

    def reached(self, gemm: Gemm) -> float:
        """Return the part of the peak that a matrix product reaches."""
        return gemm.flops / (self.chip.product_s(gemm) * self.chip.peak_flops)

    def test_large_products_reach_the_measured_rate(self) -> None:
        gemm = Gemm(1, 108 * 256, 128 * 64, 16384)
        reached = gemm.flops / self.chip.time_ps(Kernel("g", gemm.flops, gemm=gemm)) * 1e12
        assert reached / 312e12 == pytest.approx(0.88, abs=0.03)

    def test_narrow_and_short_products_reach_less(self) -> None:
        large = self.reached(Gemm(1, 8192, 8192, 8192))
        assert self.reached(Gemm(1, 8192, 64, 8192)) < 0.8 * large
        assert self.reached(Gemm(1, 8192, 8192, 64)) < 0.6 * large
        # 109 tiles leave SMs idle in their last wave.
        assert self.reached(Gemm(1, 256, 128 * 109, 4096)) < 0.75 * large

    def test_few_tiles_are_cut_along_the_inner_dimension(self) -> None:
        # The weight gradient of a 3 x 3 convolution: one row of tiles, a million pixels, each read once.
        gemm = Gemm(1, 9 * 64, 64, 1 << 20)
        seconds = self.chip.product_s(gemm, moved_bytes=2 * (64 + 64) << 20)
        assert gemm.flops / seconds / 312e12 > 0.2
        # One tile without anything to cut leaves all other SMs idle.
        assert self.reached(Gemm(1, 128, 128, 256)) < 0.02

    def test_the_clock_under_load_slows_arithmetic_only(self) -> None:
        slow = chip_of(clusim.load("dgx-a100"), PRECISIONS["bf16"], HardwareSpec(sustained=0.5))
        large = Kernel("g", gemm=Gemm(1, 16384, 16384, 16384))
        assert slow.time_ps(large) == pytest.approx(2 * self.chip.time_ps(large), rel=0.02)
        moved = Kernel("copy", bytes=10**9)
        assert slow.time_ps(moved) == self.chip.time_ps(moved)

    def test_a_card_keeps_the_clock_that_its_cap_leaves(self) -> None:
        """Arithmetic would draw 312e12 x 0.875 pJ = 273 W; of 400 W 320 are left for it, of 300 W 220."""
        module, card = (
            chip_of(_pair(f"{{base: a100-sxm4-80gb, power: {power}}}"), PRECISIONS["bf16"])
            for power in (400, 300)
        )
        assert module.sustained == pytest.approx(0.85)
        assert card.sustained == pytest.approx(0.85 * (220 / 273) ** (1 / 3))

    def test_memory_bound_kernels_take_their_bytes_and_a_start(self) -> None:
        rate = 2039e9 * 0.85
        for name, share in (("copy", 1.0), ("residual", 0.85), ("norm 1", 0.85)):
            kernel = Kernel(name, bytes=10**9)
            expected = (1e-6 + 1e9 / rate / share) * 1e12
            assert self.chip.time_ps(kernel) == pytest.approx(expected, rel=1e-6)

    def test_no_kernel_is_shorter_than_a_launch(self) -> None:
        assert self.chip.time_ps(Kernel("tiny", flops=1)) == 1_810_000

    def test_attention_takes_what_was_measured_of_its_library(self) -> None:
        """FlashAttention-2 on an A100, heads of 128, causal: forwards and backwards reach 182 TFLOP/s together."""
        fused = Fused(2, 16, 16, 8192, 8192, 128, 128, causal=True)
        flops = 3.5 * 2 * 2 * 16 * 8192 * 8192 * 256 // 2
        both = self.chip.fused_s(fused) + self.chip.fused_s(replace(fused, backward=True))
        assert flops / both == pytest.approx(182e12, rel=0.08)

    def test_a_given_fraction_replaces_what_was_measured(self) -> None:
        own = HardwareSpec(sustained=1.0, attention_fraction=self.chip.attention_fraction / 2)
        half = chip_of(clusim.load("dgx-a100"), PRECISIONS["bf16"], own)
        fused = Fused(1, 8, 8, 4096, 4096, 128, 128)
        assert half.fused_s(fused) == pytest.approx(2 * self.chip.fused_s(fused))

    def test_products_of_experts_run_one_after_the_other(self) -> None:
        four, one = Gemm(4, 512, 2048, 2048), Gemm(1, 512, 2048, 2048)
        grouped = self.chip.time_ps(Kernel("expert", gemm=four, expert=True))
        assert grouped == pytest.approx(4 * self.chip.time_ps(Kernel("one", gemm=one)), rel=1e-6)
        assert self.chip.time_ps(Kernel("batch", gemm=four)) < grouped

    def test_a_library_that_nobody_measured_is_refused(self) -> None:
        own = HardwareSpec(attention_library="flash9")
        with pytest.raises(InputError, match=r"attention_library 'flash9'.*flash2"):
            chip_of(clusim.load("dgx-a100"), PRECISIONS["bf16"], own)

    def test_a_chip_without_the_format_is_named(self) -> None:
        with pytest.raises(InputError, match=r"bf16.*fp16"):
            chip_of(clusim.load("dgx-1v"), PRECISIONS["bf16"])


@pytest.mark.parametrize(
    ("name", "precision", "bits", "total_bytes"),
    [("adam", "bf16", 16, 16), ("adam", "bf16", 32, 20), ("momentum", "fp16", 16, 12), ("sgd", "fp32", 16, 8),
     ("adam", "fp32", 16, 16)],
)  # fmt: skip
def test_bytes_per_parameter(name: str, precision: str, bits: int, total_bytes: int) -> None:
    optimizer = find_optimizer(name, PRECISIONS[precision], bits)
    assert optimizer.total == total_bytes
    assert optimizer.kernel(1000).bytes >= 1000 * (optimizer.state + optimizer.sum_bytes)


class TestRecipes:
    """A product of 256 tokens, 512 inputs and 1024 outputs."""

    product = linear("fc", Shard(), Gemm(1, 256, 1024, 512))

    @pytest.mark.parametrize(
        ("name", "each"), [("fp8", [1.0]), ("fp8-current", [2.0, 1.0]), ("fp8-block", [1.03125]), ("mxfp8", [1.03125])]
    )  # fmt: skip
    def test_operands_are_written_the_other_way_round_too(
        self, name: str, each: list[float]
    ) -> None:
        """A byte and its share of a scale are written once more; the largest element is a pass of its own."""
        forward, back, weight = self.product
        for kernel, elements in ((forward, 256 * 512), (back, 256 * 1024)):
            found = casts(kernel, PRECISIONS[name])
            assert [item.bytes for item in found] == [size * elements for size in each]
            assert all(item.gemm is None and item.flops == 0 for item in found)
            assert {item.part for item in found} == {kernel.part}
        assert casts(weight, PRECISIONS[name]) == []

    def test_16_bits_need_no_casts(self) -> None:
        assert casts(self.product[0], PRECISIONS["bf16"]) == []

    def test_a_block_casts_the_inputs_of_its_products_and_their_gradients(self) -> None:
        plain, cast = (
            find_model("gpt3-1.3b").build(
                Shard(batch=1, sequence=1024, precision=PRECISIONS[name])
            )[1]
            for name in ("bf16", "fp8-current")
        )
        for part in ("forward", "input"):
            products = [k for k in cast.kernels(part) if k.gemm is not None and not k.core]
            made = [k for k in cast.kernels(part) if k.name.endswith((" cast", " amax"))]
            assert len(products) == 4
            assert len(made) == 2 * len(products)
            assert cast.flops(part) == plain.flops(part)
        assert cast.kernels("weight") == linear_weights(cast)


def linear_weights(layer: Layer) -> list[Kernel]:
    """Return the products for weights of a layer."""
    return [k for k in layer.kernels("weight") if k.gemm is not None]
