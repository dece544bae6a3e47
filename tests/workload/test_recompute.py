"""Recomputation by layers and modules, derived by hand: operations that come to the step, bytes that are kept.

A GPT block of n tokens and hidden size h in 16-bit numbers (f = 4h inner size) keeps, beside the rest, the outputs of
two norms (2 n h bytes each), of the first matrix of its feed-forward block and of the activation (2 n f bytes each).
Computed again, the block's feed-forward part costs two products of 2 n h f operations.
"""

from __future__ import annotations

from typing import Any

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.workload.kernels import Kernel
from clusim.workload.layers import Comm, backward_steps
from clusim.workload.parallel.plan import ParallelPlan, make_plan
from support.workloads import tiny, written

A100 = clusim.load("dgx-a100")
H100 = clusim.load("dgx-h100")
TOKENS, HIDDEN, INNER, LAYERS = 128, 256, 1024, 4
ONE = "parallel: {data: 1}\n"
MOE = (
    "{base: mixtral-8x7b, layers: 2, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
    " expert_size: 512, vocab: 1024}"
)


def plan_of(text: str, **fields: Any) -> ParallelPlan:
    return make_plan(tiny(ONE + text, batch="{global: 2, micro: 1}", **fields), A100)


def again(plan: ParallelPlan) -> list[Any]:
    """Return what a microbatch does a second time."""
    layers = [layer for chunks in plan.stages for chunk in chunks for layer in chunk]
    whole = [s for layer in layers for s in backward_steps(layer)]
    plain = [s for layer in layers for s in layer.backward]
    assert len(whole) >= len(plain)
    return [s for s in whole if not any(s is other for other in plain)]


def operations(plan: ParallelPlan) -> int:
    return sum(step.flops for step in again(plan) if isinstance(step, Kernel))


def executed(text: str) -> int:
    """Return the operations that a whole step writes into its schedule."""
    work = tiny(ONE + text, batch="{global: 2, micro: 1}")
    return written(work, A100)[1].emitter.flops


@pytest.mark.parametrize(
    ("how", "done"),
    [
        ("{layers: 0}", 0),
        ("{layers: 1}", 1),
        ("{layers: 3}", 3),
        ("{layers: 99}", 4),
        ("{every: 1}", 4),
        ("{every: 2}", 2),
        ("{every: 3}", 1),
        ("{group: 2}", 4),
        ("{group: 3}", 4),
    ],
)
def test_layers_that_are_computed_again_add_their_forward_pass(how: str, done: int) -> None:
    block = plan_of("").stages[0][0][1]
    plan = plan_of(f"recompute: full\nrecomputation: {how}")
    assert operations(plan) == done * sum(kernel.flops for kernel in block.kernels("forward"))
    more = executed(f"recompute: full\nrecomputation: {how}") - executed("")
    assert more == 2 * operations(plan)
    # Utilisation does not count them.
    assert plan.model_flops == plan_of("").model_flops


@pytest.mark.parametrize("done", [0, 1, 3, 4])
def test_layers_that_are_computed_again_keep_their_input(done: int) -> None:
    own, none = (
        plan_of(text).memory(0)
        for text in (f"recompute: full\nrecomputation: {{layers: {done}}}", "")
    )
    block = plan_of("").stages[0][0][1].activations
    assert block.full == 2 * TOKENS * HIDDEN
    assert none.activations - own.activations == done * (block.none - block.full)


@pytest.mark.parametrize(("group", "inputs"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_groups_keep_one_input_and_are_whole_for_a_moment(group: int, inputs: int) -> None:
    own = plan_of(f"recompute: full\nrecomputation: {{group: {group}}}")
    none = plan_of("")
    layers = none.stages[0][0]
    block, ends = layers[1].activations, [layers[0].activations, layers[-1].activations]
    kept = inputs * block.full + sum(end.none for end in ends)
    assert own.memory(0).activations == kept
    widest = max(group * block.none, *(end.none for end in ends))
    assert own.memory(0).transient == widest


def test_all_of_it_is_the_word_without_more() -> None:
    for one, two in (
        ("recompute: full", "recompute: full\nrecomputation: {every: 1}"),
        (
            "recompute: selective",
            "recompute: selective\nrecomputation: {modules: [core_attn]}",
        ),
    ):
        assert executed(one) == executed(two)
        assert plan_of(one).memory(0) == plan_of(two).memory(0)


@pytest.mark.parametrize(
    ("modules", "freed", "products", "widest"),
    [
        ("[layernorm]", 2 * 2 * TOKENS * HIDDEN, 0, 2 * TOKENS * HIDDEN),
        ("[mlp_act]", 2 * TOKENS * INNER, 0, 2 * TOKENS * INNER),
        ("[mlp]", 2 * 2 * TOKENS * INNER, 2, 2 * 2 * TOKENS * INNER),
        # What is inside another module is freed and computed once.
        ("[mlp, mlp_act]", 2 * 2 * TOKENS * INNER, 2, 2 * 2 * TOKENS * INNER),
        ("[mlp_act, layernorm]", 2 * TOKENS * (INNER + 2 * HIDDEN), 0, 2 * TOKENS * INNER),
    ],
)
def test_a_module_frees_what_it_makes(modules: str, freed: int, products: int, widest: int) -> None:
    own = plan_of(f"recompute: selective\nrecomputation: {{modules: {modules}}}")
    kept, none = own.memory(0), plan_of("").memory(0)
    assert none.activations - kept.activations == LAYERS * freed
    assert operations(own) == LAYERS * products * 2 * TOKENS * HIDDEN * INNER
    # Or the gradients of the logits, before the layers are repeated.
    assert kept.transient == max(widest, none.transient)


def test_the_core_of_attention_is_computed_again_fused_or_not() -> None:
    text = "recompute: selective\nrecomputation: {modules: [core_attn]}\nattention: "
    scores = 2 * TOKENS * TOKENS * HIDDEN
    # Two products; a causal fused kernel does half of them.
    assert operations(plan_of(f"{text}plain")) == LAYERS * 2 * scores
    assert operations(plan_of(f"{text}flash")) == LAYERS * scores


@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_more_recomputation_takes_strictly_more_operations_and_less_memory(
    attention: str, precision: str
) -> None:
    """Megatron-LM repeats the core of attention also if it is one fused kernel."""
    text = f"precision: {precision}\nattention: {attention}\nrecompute: "
    plans = [make_plan(tiny(ONE + text + kind), H100) for kind in ("none", "selective", "full")]
    none, selective, full = map(operations, plans)
    assert 0 == none < selective < full
    kept = [plan.memory(0).activations for plan in plans]
    assert kept[0] > kept[1] > kept[2]


LLAMA = (
    "{base: llama3-8b, layers: 4, hidden: 256, heads: 8, kv_heads: 2, head_size: 32,"
    " intermediate: 896, vocab: 1024}"
)
OPERATORS = "recompute: selective\nrecomputation: {operators: torchtitan}"


class TestOperators:
    """TorchTitan's policy on a Llama block of n tokens, hidden size h, keys and values h / 4, inner size f.

    Its products are of queries, keys, values, output, w1, w3 and w2, of which the second, fourth and sixth are
    repeated.
    """

    def test_every_second_product_is_repeated(self) -> None:
        plan = plan_of(OPERATORS, model=LLAMA)
        assert operations(plan) == LAYERS * 2 * TOKENS * HIDDEN * (HIDDEN // 4 + HIDDEN + 896)
        assert not [s for s in again(plan) if isinstance(s, Kernel) and s.fused is not None]

    def test_results_of_the_others_and_of_attention_are_kept(self) -> None:
        kept, none = (plan_of(text, model=LLAMA).stages[0][0] for text in (OPERATORS, ""))
        products = HIDDEN + HIDDEN // 4 + 896 + HIDDEN
        attention = 2 * HIDDEN + 4 * 8
        assert kept[1].kept_bytes == TOKENS * (2 * HIDDEN + 2 * products + attention)
        assert kept[1].kept_bytes < none[1].kept_bytes
        assert [kept[i].kept_bytes for i in (0, -1)] == [none[i].kept_bytes for i in (0, -1)]

    def test_products_of_8_bits_are_all_repeated(self) -> None:
        plan = make_plan(
            tiny(f"{ONE}precision: fp8\n{OPERATORS}", batch="{global: 2, micro: 1}", model=LLAMA),
            H100,
        )
        width = HIDDEN + HIDDEN // 2 + HIDDEN + 3 * 896
        assert operations(plan) == LAYERS * 2 * TOKENS * HIDDEN * width

    def test_gathers_are_repeated_and_scattered_sums_are_kept(self) -> None:
        text = f"parallel: {{tensor: 2, data: 1}}\ntensor: {{sequence_parallel: true}}\n{OPERATORS}"
        plan = make_plan(tiny(text, batch="{global: 2, micro: 1}", model=LLAMA), A100)
        repeated = [step.operation for step in again(plan) if isinstance(step, Comm)]
        assert repeated == ["all_gather"] * 2 * LAYERS

    def test_pieces_of_an_overlapped_product_are_one_product(self) -> None:
        text = "parallel: {tensor: 2, data: 1}\ntensor: {sequence_parallel: true, overlap: true}\n"
        plans = [
            make_plan(tiny(text + more, batch="{global: 2, micro: 1}", model=LLAMA), A100)
            for more in (OPERATORS, "")
        ]
        own, none = (operations(plan) for plan in plans)
        assert (own, none) == (LAYERS * TOKENS * HIDDEN * (HIDDEN // 4 + HIDDEN + 896), 0)
        assert {step.operation for step in again(plans[0]) if isinstance(step, Comm)} == {
            "sendrecv"
        }


@pytest.mark.parametrize(("modules", "exchanges"), [("[moe_act]", 0), ("[moe]", 2)])
def test_experts_that_are_computed_again_exchange_their_tokens_again(
    modules: str, exchanges: int
) -> None:
    text = f"parallel: {{expert: 4}}\nrecompute: selective\nrecomputation: {{modules: {modules}}}"
    plan = make_plan(tiny(text, model=MOE), A100)
    found = [step.operation for step in again(plan) if isinstance(step, Comm)]
    assert found == ["alltoall"] * (2 * exchanges)


def test_latent_attention_makes_queries_keys_and_values_again() -> None:
    model = "{base: deepseek-v3, layers: 2, dense_layers: 2}"
    text = "recompute: selective\nrecomputation: {modules: [mla_up_proj]}"
    own, none = plan_of(text, model=model), plan_of("", model=model)
    heads, rope, nope, value = 128, 64, 128, 128
    made = heads * (2 * (nope + rope) + value)
    assert none.memory(0).activations - own.memory(0).activations == 2 * 2 * TOKENS * made
    up = 1536 * heads * (nope + rope) + 512 * heads * (nope + value)
    assert operations(own) == 2 * 2 * TOKENS * up


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recomputation: {layers: 2}", "layers, every and group need 'recompute: full'"),
        ("recompute: full\nrecomputation: {modules: [mlp]}", "modules need 'recompute: selective'"),
        ("recompute: full\nrecomputation: {layers: 1, group: 2}", "choose one of"),
        ("recompute: full\nrecomputation: {group: 2}\ndata: {kind: fsdp}", "need complete weights"),
        ("recompute: selective\nrecomputation: {modules: [mpl]}", "did you mean 'mlp'"),
        ("recomputation: {operators: torchtitan}", "operators need 'recompute: selective'"),
        (f"attention: plain\n{OPERATORS}", "operators need 'attention: flash'"),
        (
            "recompute: selective\nrecomputation: {modules: [mlp], operators: torchtitan}",
            "choose one of modules and operators",
        ),
        (
            "recompute: selective\nrecomputation: {modules: [mlp, moe]}",
            "recomputation: recompute: no layer has a module 'moe'; there are",
        ),
    ],
)
def test_what_contradicts_itself_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        plan_of(text)
