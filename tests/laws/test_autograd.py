"""What kernels of a layer move by who wrote them, counted by hand.

An element of the residual stream is read and written by a norm; backwards it takes input, gradient and output. An eager
framework's norm reads input and gradient again for the gradients of its weights. Where a residual goes past a norm two
gradients come together: automatic differentiation adds them by a kernel (two reads, a write); others read the second
one where the norm's gradient is written. A product for queries, keys and values is cut in three: an eager backward pass
copies their gradients together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.hardware import FRAMEWORKS
from clusim.workload.host import HostTimes
from clusim.workload.kernels import Gemm, Kernel
from clusim.workload.layers import Layer, Shard, gathering
from clusim.workload.models import find_model
from clusim.workload.models.transformer import Transformer
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny

TOKENS, HIDDEN = 128, 256


def block(framework: str, *, dropout: bool = False, gated: bool = False) -> dict[str, int]:
    """Return the elements that kernels of a block move, by name."""
    own = FRAMEWORKS[framework]
    model = find_model("gpt2")
    assert isinstance(model, Transformer)
    model = replace(
        model, hidden=HIDDEN, heads=4, kv_heads=4, head_size=64, intermediate=1024, dropout=dropout,
        gated=gated,
    )  # fmt: skip
    layer = model.build(Shard(sequence=TOKENS, sums=own.sums, eager=own.eager))[1]
    steps = (*layer.forward, *layer.backward)
    return {
        step.name: step.bytes // 2 for step in steps if isinstance(step, Kernel) and not step.gemm
    }


def test_norms_and_the_gradients_that_meet_at_them() -> None:
    local = TOKENS * HIDDEN
    for framework, back, summed in (
        ("pytorch", 5, 3),
        ("megatron", 3, 3),
        ("torch-compile", 4, 0),
        ("jax", 4, 0),
    ):
        found = block(framework)
        assert found["norm 1"] == 2 * local
        assert found["norm 2 backward"] == back * local
        assert found.get("summed norm 2", 0) == summed * local


def test_a_sum_comes_behind_the_norm_whose_gradient_it_adds() -> None:
    names = list(block("pytorch"))
    assert names.index("summed norm 1") == names.index("norm 1 backward") + 1


def test_residuals_cost_nothing_backwards_but_their_dropout() -> None:
    """Backwards dropout reads and writes gradients, and a byte of mask for every element of two."""
    local = TOKENS * HIDDEN
    plain, dropped = block("pytorch"), block("pytorch", dropout=True)
    assert plain["add"] == 3 * local
    assert not any(name.startswith("residual") for name in plain)
    assert dropped["residual"] == 3.5 * local
    assert dropped["residual backward"] == 2.5 * local


def test_activations_read_what_they_were_given_again() -> None:
    """GELU: input and gradient read, gradient written. SwiGLU: two inputs and a gradient read, two written."""
    assert block("pytorch")["activation backward"] == 3 * TOKENS * 1024
    assert block("pytorch", gated=True)["activation backward"] == 5 * TOKENS * 1024


def test_gradients_of_queries_keys_and_values_are_copied_together() -> None:
    assert block("pytorch")["joined qkv"] == 2 * TOKENS * 3 * HIDDEN
    assert "joined qkv" not in block("megatron")


def test_sums_and_copies_cost_the_host_nothing() -> None:
    found = make_plan(tiny("host: {framework: pytorch}\nparallel: {ranks: [0]}\n"), ideal(1)).host()
    assert isinstance(found, HostTimes)
    kernels = [Kernel(name, bytes=1, part="input") for name in ("summed norm 1", "joined qkv")]
    assert found.kernels(kernels).time_ps == 0
    assert found.kernels([Kernel("norm", bytes=1)]).time_ps == found.operator_ps


@pytest.mark.parametrize(("reduced", "each"), [(2, 4), (4, 4 + 6)])
def test_gathered_weights_have_their_gradients_put_together(reduced: int, each: int) -> None:
    """Each read and written at 16 bits; for sums of 32 bits read again and written as these."""
    layer = gathering(
        Layer(
            "l",
            "l",
            tensors=make_plan(tiny("parallel: {ranks: [0]}\n"), ideal(1)).stages[0][0][1].tensors,
        ),
        2,
        reduced,
    )
    (kernel,) = layer.backward
    assert isinstance(kernel, Kernel)
    assert kernel.bytes == each * layer.parameters


def test_products_that_add_read_and_write_sums() -> None:
    """A product of two outputs' rows that memory bounds: 2 (m + n) k + 2 m n bytes, or 8 m n instead of the last."""
    chip = make_plan(tiny("parallel: {ranks: [0]}\n"), ideal(1)).chip
    form = replace(
        chip.products.form, start_us=0.0, tile_us=0.0, l2=1e9, rate=1e9, store=1e9, sharp=12.0
    )
    bound = replace(chip, products=replace(chip.products, form=form, ratios=None))
    gemm = Gemm(1, 8192, 8192, 32)
    moved = [2 * (8192 + 8192) * 32 + each * 8192 * 8192 for each in (2, 8)]
    plain, added = bound.product_s(gemm), bound.product_s(gemm, adds=True)
    assert added / plain == pytest.approx(moved[1] / moved[0], rel=1e-3)


def test_who_adds_in_products() -> None:
    def adds(text: str) -> bool:
        return make_plan(
            tiny(f"gradient_bits: 32\nparallel: {{data: 2}}\n{text}"), ideal(2)
        ).chip.adds

    assert adds("")
    assert not adds("accumulation: added")
    assert not adds("data: {kind: fsdp}")
