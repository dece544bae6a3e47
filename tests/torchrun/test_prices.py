"""Prices of operators: products, attention and memory traffic."""

from __future__ import annotations

import pytest

from clusim.programs.prices import Prices, TensorShape
from clusim.topology import load
from clusim.workload.kernels import PRECISIONS, Gemm, Kernel, chip_of

FABRIC = load("dgx-h100")
PRICES = Prices(FABRIC)
CHIP = chip_of(FABRIC, PRECISIONS["bf16"])


def half(*sizes: int) -> TensorShape:
    return TensorShape(sizes, "bfloat16", 2)


def test_a_matrix_product_is_that_of_training() -> None:
    price = PRICES.price("mm", (half(4096, 8192), half(8192, 1024)), (half(4096, 1024),))
    moved = 2 * (4096 * 8192 + 8192 * 1024 + 4096 * 1024)
    gemm = Gemm(1, 4096, 1024, 8192)
    assert price.time_ps == CHIP.time_ps(Kernel("mm", gemm.flops, moved, gemm))
    assert price.measured


def test_a_batch_of_products_costs_what_its_products_cost() -> None:
    one = PRICES.price("bmm", (half(1, 2048, 2048), half(1, 2048, 2048)), (half(1, 2048, 2048),))
    many = PRICES.price("bmm", (half(8, 2048, 2048), half(8, 2048, 2048)), (half(8, 2048, 2048),))
    assert many.time_ps == pytest.approx(8 * one.time_ps, rel=0.15)


def test_an_addition_moves_two_inputs_and_one_output() -> None:
    big = half(1 << 28)
    price = PRICES.price("add", (big, big), (big,))
    seconds = 3 * big.bytes / CHIP.memory_Bps
    assert price.time_ps == pytest.approx(seconds * 1e12, rel=0.01)


def test_a_copy_in_place_does_not_read_its_target() -> None:
    big = half(1 << 28)
    copied = PRICES.price("copy_", (big, big), (big,)).time_ps
    added = PRICES.price("add_", (big, big), (big,)).time_ps
    assert copied == pytest.approx(2 / 3 * added, rel=0.01)


def test_an_embedding_reads_its_rows_and_not_its_table() -> None:
    rows = TensorShape((8, 1024), "int64", 8)
    out = half(8, 1024, 4096)
    small = PRICES.price("embedding", (half(1_000, 4096), rows), (out,))
    large = PRICES.price("embedding", (half(1_000_000, 4096), rows), (out,))
    assert small == large


def test_a_causal_mask_nearly_halves_long_attention() -> None:
    q = half(2, 32, 8192, 128)
    name = "_scaled_dot_product_flash_attention"
    full = PRICES.price(name, (q, q, q), (q,)).time_ps
    masked = PRICES.price(name, (q, q, q), (q,), {"causal": True}).time_ps
    assert 0.5 < masked / full < 0.6


def test_a_backward_convolution_is_two_products_and_one_without_input_gradient() -> None:
    x, w, y = half(64, 256, 56, 56), half(256, 256, 3, 3), half(64, 256, 56, 56)
    both = PRICES.price("convolution_backward", (y, x, w), (x, w)).time_ps
    one = PRICES.price("convolution_backward", (y, x, w), (w,)).time_ps
    forward = PRICES.price("convolution", (x, w), (y,)).time_ps
    assert both == pytest.approx(2 * one, rel=0.02)
    assert one == pytest.approx(forward, rel=0.1)


def test_sorting_is_marked_as_not_measured() -> None:
    assert not PRICES.price("sort", (half(1 << 20),), (half(1 << 20),)).measured
    assert PRICES.price("add", (half(1 << 20),), (half(1 << 20),)).measured
