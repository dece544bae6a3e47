"""Prices of operators: products, attention and memory traffic."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.model import OperatorCall, TensorShape
from clusim.topology import load
from clusim.topology.components import preset_endpoint
from clusim.workload.chips import chip_at
from clusim.workload.kernels import PRECISIONS, Gemm, Kernel
from clusim.workload.prices import Price, Prices, price

FABRIC = load("dgx-h100")
PRICES = Prices.of(FABRIC)
CHIP = chip_at(preset_endpoint("h100-sxm5"), PRECISIONS["bf16"], single=True)


def priced(
    name: str,
    inputs: tuple[TensorShape, ...],
    outputs: tuple[TensorShape, ...],
    flags: tuple[str, ...] = (),
) -> Price:
    return PRICES.price(OperatorCall(name, inputs, outputs, flags))


def half(*sizes: int) -> TensorShape:
    return TensorShape(sizes, "bfloat16", 2)


def test_a_matrix_product_is_that_of_training_without_the_assumed_factor_of_long_runs() -> None:
    found = priced("mm", (half(4096, 8192), half(8192, 1024)), (half(4096, 1024),))
    moved = 2 * (4096 * 8192 + 8192 * 1024 + 4096 * 1024)
    gemm = Gemm(1, 4096, 1024, 8192)
    assert found.time_ps == CHIP.time_ps(Kernel("mm", gemm.flops, moved, gemm))
    assert found.measured


def test_a_batch_of_products_costs_what_its_products_cost() -> None:
    one = priced("bmm", (half(1, 2048, 2048), half(1, 2048, 2048)), (half(1, 2048, 2048),))
    many = priced("bmm", (half(8, 2048, 2048), half(8, 2048, 2048)), (half(8, 2048, 2048),))
    assert many.time_ps == pytest.approx(8 * one.time_ps, rel=0.15)


def test_an_addition_moves_two_inputs_and_one_output() -> None:
    big = half(1 << 28)
    found = priced("add", (big, big), (big,))
    seconds = 3 * big.bytes / CHIP.memory_Bps
    assert found.time_ps == pytest.approx(seconds * 1e12, rel=0.01)


def test_a_copy_in_place_does_not_read_its_target() -> None:
    big = half(1 << 28)
    copied = priced("copy_", (big, big), (big,)).time_ps
    added = priced("add_", (big, big), (big,)).time_ps
    assert copied == pytest.approx(2 / 3 * added, rel=0.01)


def test_an_embedding_reads_its_rows_and_not_its_table() -> None:
    rows = TensorShape((8, 1024), "int64", 8)
    out = half(8, 1024, 4096)
    small = priced("embedding", (half(1_000, 4096), rows), (out,))
    large = priced("embedding", (half(1_000_000, 4096), rows), (out,))
    assert small == large


def test_a_causal_mask_nearly_halves_long_attention() -> None:
    q = half(2, 32, 8192, 128)
    name = "_scaled_dot_product_flash_attention"
    full = priced(name, (q, q, q), (q,)).time_ps
    masked = priced(name, (q, q, q), (q,), ("causal",)).time_ps
    assert 0.5 < masked / full < 0.6


def test_a_backward_convolution_is_two_products_and_one_without_input_gradient() -> None:
    x, w, y = half(64, 256, 56, 56), half(256, 256, 3, 3), half(64, 256, 56, 56)
    both = priced("convolution_backward", (y, x, w), (x, w)).time_ps
    one = priced("convolution_backward", (y, x, w), (w,)).time_ps
    forward = priced("convolution", (x, w), (y,)).time_ps
    assert both == pytest.approx(2 * one, rel=0.02)
    assert one == pytest.approx(forward, rel=0.1)


def test_sorting_is_marked_as_not_measured() -> None:
    assert not priced("sort", (half(1 << 20),), (half(1 << 20),)).measured
    assert priced("add", (half(1 << 20),), (half(1 << 20),)).measured


def test_the_public_price_of_a_product_is_that_of_a_program() -> None:
    shapes = [(4096, 8192), (8192, 1024)]
    wanted = priced("mm", (half(*shapes[0]), half(*shapes[1])), (half(4096, 1024),))
    for name in ("mm", "aten.mm", "aten::mm.default"):
        assert (
            price(name, shapes, "bf16", "h100-sxm5")
            == price(name, shapes, "bf16", FABRIC)
            == wanted
        )


def test_a_bias_is_broadcast_to_the_result_by_default() -> None:
    given = price("aten.add", [(4096, 8192), (8192,)])
    assert given == price("aten.add", [(4096, 8192), (8192,)], outputs=[(4096, 8192)])


@pytest.mark.parametrize(
    ("operator", "shapes", "dtype", "words"),
    [
        ("aten.mm", [(2, 3), (4, 5)], "bf16", "do not fit"),
        ("aten.mm", [(2, 3)], "bf16", "do not fit"),
        ("aten.add", [(2, 3), (4, 3)], "bf16", "do not fit"),
        ("aten.add", [(2, 3)], "bfloat17", "element type"),
    ],
)
def test_shapes_that_do_not_fit_have_no_price(
    operator: str, shapes: list[tuple[int, ...]], dtype: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        price(operator, shapes, dtype)


def test_annotated_work_is_the_longer_of_arithmetic_and_traffic() -> None:
    shape = half(128, 128)
    bound = OperatorCall("scan", (shape,), (shape,), work=(0, 1 << 32))
    assert PRICES.price(bound).time_ps == pytest.approx(
        (1 << 32) / CHIP.memory_Bps * 1e12, rel=0.01
    )
    busy = OperatorCall("scan", (shape,), (shape,), work=(10**15, 1 << 32))
    wanted = 1e15 / (CHIP.peak_flops * CHIP.gemm_fraction * CHIP.sustained) * 1e12
    assert PRICES.price(busy).time_ps == pytest.approx(wanted, rel=0.01)
