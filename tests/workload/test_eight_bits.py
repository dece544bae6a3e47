"""What 8-bit recipes keep and send: bytes by hand, of layers, weights and gathers.

A block of hidden size h = 256 with 8 heads and an inner size of 1,024, and n = 128 tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.workload.kernels import PRECISIONS
from clusim.workload.layers import Comm, Layer
from clusim.workload.parallel.plan import make_plan
from support.workloads import tiny, volume, written

H100, B200 = clusim.load("dgx-h100"), clusim.load("hgx-b200")
N, H = 128, 256
RECIPES = ("fp8", "fp8-current", "fp8-block", "mxfp8")
KEPT = {"bf16": 2, "fp8": 1, "fp8-current": 1, "fp8-block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32}
"""What a linear layer keeps of an element of its input [bytes]: in 8 bits once, with its scales."""

GQA = "{base: llama3-8b, layers: 2, hidden: 256, heads: 8, kv_heads: 2, head_size: 32, intermediate: 512, vocab: 1024}"
MOE = (
    "{base: mixtral-8x7b, layers: 2, hidden: 256, heads: 8, kv_heads: 8, head_size: 32, expert_size: 512,"
    " vocab: 1024}"
)
DEEPSEEK = (
    "{base: deepseek-v3, layers: 2, dense_layers: 0, hidden: 256, heads: 8, kv_heads: 8, vocab: 1024,"
    " experts: 8, top_k: 2, expert_size: 128, shared_experts: 1}"
)


def block(precision: str, text: str = "", fabric: Any = H100, **replace: str) -> Layer:
    """Return the second layer: the first is the embedding."""
    return make_plan(tiny(f"precision: {precision}\n{text}", **replace), fabric).stages[0][0][1]


class TestActivations:
    @pytest.mark.parametrize("precision", KEPT)
    def test_a_block_of_a_gpt(self, precision: str) -> None:
        """In 16 bits 34 bytes per token and feature (arXiv 2205.05198) and the sums of fused attention.

        Inputs of four products are 8 bits: two of h, the output of attention, and 4 h of the inner size. The output
        is kept in 16 bits by attention itself, and with delayed scales in 8 bits besides.
        """
        each, sums = KEPT[precision], N * 8 * 4
        inputs = (1 + 1 + 4) * each
        output = {"bf16": 2, "fp8": 2 + 1}.get(precision, 2)
        # Both inputs of norms, queries, keys, values and the inner size, and two masks of a byte.
        wide = (2 + 3 + 4) * 2 + 2
        assert block(precision).activations.none == N * H * (wide + inputs + output) + sums
        assert wide + 6 * 2 + 2 == 34

    @pytest.mark.parametrize("precision", KEPT)
    def test_plain_attention_needs_no_output_of_its_own(self, precision: str) -> None:
        each = KEPT[precision]
        found = block(precision, "recompute: selective\nattention: plain").kept_bytes
        assert found == N * H * (2 * 2 + 2 + 3 * 2 + 4 * 2 + (2 + 1 + 4) * each)

    @pytest.mark.parametrize("precision", KEPT)
    def test_grouped_queries_and_a_gated_block(self, precision: str) -> None:
        """Keys and values of a quarter of the heads; an inner size of 2 h, twice in 16 bits, once as an input."""
        each = KEPT[precision]
        output = {"fp8": 2 + 1}.get(precision, 2)
        found = block(precision, model=GQA).activations.none - N * 8 * 4
        assert found == N * H * ((2 + 1 + 2 / 4 + 4) * 2 + (1 + 1 + 2) * each + output)

    @pytest.mark.parametrize("precision", ["bf16", "fp8", "mxfp8"])
    @pytest.mark.parametrize("along", ["false", "true"])
    def test_over_two_ranks(self, precision: str, along: str) -> None:
        """Features of attention and the inner size are halved, the inputs of blocks with sequence parallelism."""
        each, part = KEPT[precision], 2 if along == "true" else 1
        output = {"fp8": 2 + 1}.get(precision, 2) / 2
        text = f"parallel: {{tensor: 2, data: 1}}\ntensor: {{sequence_parallel: {along}}}"
        found = block(precision, text).activations.none - N * 8 * 4 // 2
        whole = (2 * 2 + 2 + 2 * each) / part
        assert found == N * H * (whole + (3 * 2 + 4 * 2) / 2 + 4 * each / 2 + output)

    @pytest.mark.parametrize("precision", KEPT)
    def test_experts_cast_what_they_are_sent(self, precision: str) -> None:
        """Two experts a token: rows of h and 2 h as inputs, 4 h for the activation; the router's input has 16 bits."""
        each = KEPT[precision]
        output = {"fp8": 2 + 1}.get(precision, 2)
        found = block(precision, model=MOE).activations.none - N * 8 * 4
        routed = 2 * ((1 + 2) * each + 4 * 2)
        assert found == N * H * ((2 + 3 + 2) * 2 + each + output + routed)

    def test_layers_that_share_an_input_have_a_copy_each(self) -> None:
        """With latent attention two layers read the norm, and the shared expert reads what the router keeps."""
        wide, narrow = (
            block(name, model=DEEPSEEK).activations.none for name in ("bf16", "fp8-current")
        )
        inputs = 2 * (H + 128) + 128  # of both experts of a token, and of fc2 of the shared one
        latent = N * H * (2 - 2 * 1)
        assert wide - narrow == N * inputs + latent - N * H

    @pytest.mark.parametrize("module", ["layernorm", "mlp_act"])
    def test_a_module_frees_the_input_that_it_makes(self, module: str) -> None:
        elements = {"layernorm": 2 * N * H, "mlp_act": N * 4 * H}[module]
        for name, each in KEPT.items():
            text = f"recompute: selective\nrecomputation: {{modules: [{module}]}}"
            own = block(name, text)
            assert own.again is not None
            assert own.activations.none - own.again.kept == elements * each


COPIES = {
    "fp8": (2, 1),
    "fp8-current": (2, 1),
    "fp8-block": (2 * (1 + 4 / 128**2),) * 2,
    "mxfp8": (2 * (1 + 1 / 32),) * 2,
}
"""On Hopper, whose products need the other way round written, and on Blackwell."""


class TestWeights:
    """Per parameter of a product; the embedding, which is no factor, has 16 bits."""

    @pytest.mark.parametrize("precision", RECIPES)
    @pytest.mark.parametrize("kind", ["bf16", "fp8"])
    def test_copies(self, precision: str, kind: str) -> None:
        text = f"precision: {precision}\nprimary_weights: {kind}"
        for fabric, copies in zip((H100, B200), COPIES[precision], strict=True):
            plan = make_plan(tiny(text), fabric)
            tensors = [t for layer in plan.stages[0][0] for t in layer.tensors]
            factors = sum(t.elements for t in tensors if t.factor)
            rest = sum(t.elements for t in tensors) - factors
            assert factors == 4 * 12 * H**2
            each = copies + (2 if kind == "bf16" else 0)
            assert plan.memory(0).weights == round(2 * rest + each * factors)

    def test_16_bits_have_none(self) -> None:
        plan = make_plan(tiny(), H100)
        assert plan.memory(0).weights == 2 * plan.model.parameters

    def test_cut_weights_have_copies_while_they_are_whole(self) -> None:
        text = "precision: {}\ndata: {{kind: fsdp, prefetch: 1}}"
        wide, narrow = (make_plan(tiny(text.format(p)), H100) for p in ("bf16", "fp8"))
        assert wide.memory(0).weights == narrow.memory(0).weights
        assert narrow.memory(0).transient - wide.memory(0).transient == 2 * 2 * 12 * H**2

    @pytest.mark.parametrize(
        ("precision", "each"), [("fp8", 1), ("fp8-block", 1 + 4 / 128**2), ("mxfp8", 2)]
    )
    def test_weights_of_8_bits_are_gathered_as_they_are(self, precision: str, each: float) -> None:
        """MXFP8, which is cut in rows one way and in columns the other, is gathered before it is cast."""
        base = f"precision: {precision}\nparallel: {{data: 8}}\ndata: {{kind: distributed-optimizer}}\n"
        usual, own = (
            volume(
                written(
                    tiny(f"{base}primary_weights: {kind}", batch="{global: 8, micro: 1}"), H100
                )[1],
                "data",
            )
            for kind in ("bf16", "fp8")
        )
        assert usual - own == pytest.approx(7 / 8 * 4 * 12 * H**2 * (2 - each), abs=8)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("primary_weights: fp8", "use a precision of 8 bits"),
            ("precision: fp8\nprimary_weights: fp8\ndata: {kind: fsdp}", "use one of ddp"),
        ],
    )
    def test_what_cannot_be_says_why(self, text: str, words: str) -> None:
        with pytest.raises(ClusimError, match=f"primary_weights.*{words}|{words}"):
            make_plan(tiny(text), H100)


class TestGathers:
    @pytest.mark.parametrize("precision", KEPT)
    def test_products_along_the_sequence_gather_operands(self, precision: str) -> None:
        """Inputs of two pairs, once more for the weight gradients, and the gradients of their outputs."""
        text = "parallel: {tensor: 2, data: 1}\ntensor: {sequence_parallel: true}"
        own = block(precision, text)
        each, ways = KEPT[precision], 2 if precision == "mxfp8" else 1
        sizes = {
            (op, part): [
                step.bytes
                for step in (*own.forward, *own.backward)
                if isinstance(step, Comm) and (step.operation, step.part) == (op, part)
            ]
            for op in ("all_gather", "reduce_scatter")
            for part in ("forward", "input")
        }
        assert sizes["all_gather", "forward"] == [N * H * each] * 2
        assert sorted(sizes["all_gather", "input"]) == sorted(
            [N * H * each, N * H * ways * each] * 2
        )
        # Sums go round in 16 bits.
        assert (
            sizes["reduce_scatter", "forward"]
            == sizes["reduce_scatter", "input"]
            == [N * H * 2] * 2
        )

    def test_chips_that_take_operands_either_way_write_them_once(self) -> None:
        for precision, here, there in (("fp8", 1, 0), ("fp8-current", 2, 1), ("mxfp8", 1, 1)):
            for fabric, count in ((H100, here), (B200, there)):
                own = block(precision, fabric=fabric)
                made = [k for k in own.kernels("forward") if k.name.endswith((" cast", " amax"))]
                assert len(made) == 4 * count


def test_the_precisions_are_all_there() -> None:
    assert {name for name, item in PRECISIONS.items() if item.recipe} == set(RECIPES)
