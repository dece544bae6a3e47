"""Laws of kernels, each derived by hand: tiles and waves, traffic, attention by blocks, the clock under a power cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clusim.base.errors import InputError
from clusim.hardware.kernels import products
from clusim.hardware.kernels.fused import BLOCK, Fused, FusedForm, Power, fused_s, kept_clock
from clusim.hardware.kernels.measured_tables import STEP, Ratios, pack
from clusim.hardware.kernels.products import Form, Silicon, form_s

FREE = Form(
    start_us=0.0, rate=1.0, memory=1e9, tile_us=0.0, l2=1e9, spread=1e-9, store=1e12, sharp=12.0, whole=1.0,
    split_us=0.0, half_tile=0.0,
)  # fmt: skip
"""A form in which nothing costs anything but arithmetic."""

CHIP = Silicon(sms=10, flops=1e12, memory_Bps=1e12)


@pytest.fixture
def one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave products no choice but tiles of 128 x 128."""
    monkeypatch.setattr(products, "_CHOICES", np.array([[128.0, 128.0, 1.0]]))


def product(form: Form, m: int, n: int, k: int, chip: Silicon = CHIP, batch: int = 1) -> float:
    shape = np.array([[batch, m, n, k, 1.0]])
    return float(form_s(form, chip, shape, (2.0, 2.0))[0])


@pytest.mark.usefixtures("one_tile")
class TestTiles:
    tile_s = 2 * 128 * 128 * 1024 / 1e11
    """Arithmetic of a tile of k 1024 on one of ten SMs that share 1 TFLOP/s."""

    def test_one_wave_more_is_one_tile_more(self) -> None:
        full, more = (product(FREE, 128 * tiles, 128, 1024) for tiles in (10, 11))
        assert full == pytest.approx(self.tile_s)
        assert more - full == pytest.approx(self.tile_s)

    def test_tiles_that_are_spread_cost_their_share(self) -> None:
        spread = replace(FREE, whole=0.0)
        assert product(spread, 128 * 15, 128, 1024) == pytest.approx(1.5 * self.tile_s)
        # Fewer tiles than SMs are no faster than one.
        assert product(spread, 128, 128, 1024) == pytest.approx(self.tile_s)

    def test_a_row_more_than_a_tile_is_another_tile(self) -> None:
        assert product(FREE, 128 * 10 + 1, 128, 1024) == pytest.approx(2 * self.tile_s)

    def test_every_product_of_a_batch_has_tiles_of_its_own(self) -> None:
        assert product(FREE, 64, 64, 1024, batch=20) == pytest.approx(2 * self.tile_s)

    def test_each_wave_starts_and_ends_once(self) -> None:
        form = replace(FREE, start_us=3.0, tile_us=2.0, store=128 * 128 * 2 * 10 / 1e6)
        # Two waves: start of the kernel, and twice tile start, arithmetic and a microsecond of writing.
        expected = 3e-6 + 2 * (2e-6 + self.tile_s + 1e-6)
        assert product(form, 128 * 20, 128, 1024) == pytest.approx(expected)

    def test_without_inner_dimension_only_starts_are_left(self) -> None:
        form = replace(FREE, start_us=3.0, tile_us=2.0)
        assert product(form, 128, 128, 0) == pytest.approx(5e-6)

    def test_a_small_tile_fetches_more_and_computes_slower(self) -> None:
        # 128 x 128 / (128 + 128) = 64: at this half_tile the rate falls by the root of 2.
        slow = product(replace(FREE, half_tile=64.0), 1280, 128, 1024)
        assert slow == pytest.approx(2**0.5 * self.tile_s)


def test_doubling_the_peak_halves_what_is_bound_by_arithmetic() -> None:
    twice = replace(CHIP, flops=2e12)
    for shape in ((1280, 1280, 1024), (100, 3000, 640), (64, 64, 65536)):
        assert product(FREE, *shape) == pytest.approx(2 * product(FREE, *shape, chip=twice))


def test_doubling_the_memory_halves_what_is_bound_by_it() -> None:
    form = replace(FREE, memory=1e-6, sharp=12.0)
    once, twice = (
        product(form, 4096, 64, 64, replace(CHIP, memory_Bps=rate)) for rate in (1e12, 2e12)
    )
    moved = 2 * (4096 * 64 + 64 * 64 + 4096 * 64)
    assert once == pytest.approx(moved / 1e6)
    assert once == pytest.approx(2 * twice)


@pytest.mark.usefixtures("one_tile")
def test_few_tiles_do_not_keep_the_memory_busy() -> None:
    form = replace(FREE, memory=1e-6, spread=0.5)
    # Five of ten SMs keep it busy, so two tiles reach two fifths of its rate.
    moved = 2 * (256 * 64 + 64 * 128 + 256 * 128)
    assert product(form, 256, 128, 64) == pytest.approx(moved / 1e6 * 5 / 2)


def test_cutting_the_inner_dimension_fills_idle_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of 64 x 64 leaves nine of ten SMs idle; of eight parts each has an eighth of it."""
    monkeypatch.setattr(products, "_CHOICES", np.array([[64.0, 64.0, 1.0], [64.0, 64.0, 8.0]]))
    tile_s = 2 * 64 * 64 * 65536 / 1e11
    assert product(FREE, 64, 64, 65536) == pytest.approx(tile_s / 8)
    # A further step has to be worth it.
    assert product(replace(FREE, split_us=1e6), 64, 64, 65536) == pytest.approx(tile_s)
    # Parts have an inner dimension of 64 at least.
    assert product(FREE, 64, 64, 256) == pytest.approx(tile_s / 256)


class TestRatios:
    knots = ((1, 2, 4), (8, 16), (8, 16))
    logs = np.array([[[0.0, 0.2], [0.2, 0.4]], [[-0.5, 0.2], [0.2, 0.4]], [[1.0, 0.2], [0.2, 0.4]]])

    def test_knots_are_what_was_stored(self) -> None:
        ratios = Ratios(self.knots, pack(self.logs))
        for i, m in enumerate(self.knots[0]):
            for j, n in enumerate(self.knots[1]):
                for index, k in enumerate(self.knots[2]):
                    expected = pytest.approx(np.exp(self.logs[i, j, index]), abs=STEP)
                    assert ratios.at(m, n, k) == expected

    def test_between_knots_logarithms_are_halved(self) -> None:
        ratios = Ratios(self.knots, pack(self.logs))
        middle = ratios.at(2**0.5, 8, 8)
        assert middle == pytest.approx((ratios.at(1, 8, 8) * ratios.at(2, 8, 8)) ** 0.5)

    def test_beyond_the_grid_its_edge_holds(self) -> None:
        ratios = Ratios(self.knots, pack(self.logs))
        assert ratios.at(10**6, 1, 1) == ratios.at(4, 8, 8)

    def test_a_grid_of_another_size_is_refused(self) -> None:
        with pytest.raises(InputError, match="12 ratios for a grid"):
            Ratios(((1, 2), (8, 16), (8, 16)), pack(self.logs)).at(1, 8, 8)


class TestAttention:
    form = FusedForm(
        start_us=0.0, rate=1.0, score_ps=0.0, block_us=0.0, memory=1e9, sharp=12.0, whole=0.0
    )

    def test_a_causal_mask_leaves_half_of_the_blocks_and_half_the_diagonal(self) -> None:
        square = Fused(1, 1, 1, 8 * BLOCK, 8 * BLOCK, 64, 64)
        assert square.pairs == 64
        assert replace(square, causal=True).pairs == 8 * 9 / 2
        # Masks end at the last key: the last two of eight rows of blocks meet seven and eight blocks of keys.
        assert replace(square, rows=2 * BLOCK, causal=True).pairs == 15

    def test_products_take_their_operations(self) -> None:
        fused = Fused(4, 10, 10, 1024, 2048, 64, 128)
        flops = 2 * 4 * 10 * 1024 * 2048 * (64 + 128)
        assert fused_s(self.form, CHIP, fused) == pytest.approx(flops / CHIP.flops)
        assert fused_s(self.form, CHIP, replace(fused, backward=True)) == pytest.approx(
            2.5 * flops / CHIP.flops
        )

    def test_exponentials_do_not_depend_on_the_size_of_a_head(self) -> None:
        slow = replace(self.form, score_ps=7.0)
        for size in (64, 128):
            fused = Fused(1, 10, 10, 1024, 1024, size, size)
            more = fused_s(slow, CHIP, fused) - fused_s(self.form, CHIP, fused)
            assert more == pytest.approx(10 * 1024 * 1024 * 7e-12 / CHIP.sms)

    def test_no_block_is_cut(self) -> None:
        """One head of one block of rows runs on one SM, whatever the others do."""
        fused = Fused(1, 1, 1, BLOCK, 4096, 64, 64)
        flops = 2 * BLOCK * 4096 * 128
        assert fused_s(self.form, CHIP, fused) == pytest.approx(flops * CHIP.sms / CHIP.flops)

    def test_grouped_keys_are_read_once_for_their_queries(self) -> None:
        own = Fused(2, 8, 8, 1024, 1024, 64, 64)
        assert replace(own, kv_heads=2).elements_moved == own.elements_moved - 2 * 6 * 1024 * 128


class TestClock:
    def test_power_grows_with_the_third_power_of_the_clock(self) -> None:
        # 100 TFLOP/s of 8 pJ need 800 W; 100 W of 200 are left, an eighth: half the clock.
        assert kept_clock(Power(200.0, 100.0, 8.0, 100e12)) == pytest.approx(0.5)

    def test_what_needs_less_than_the_cap_keeps_its_clock(self) -> None:
        assert kept_clock(Power(1000.0, 100.0, 8.0, 100e12)) == 1.0

    def test_an_unknown_cap_caps_nothing(self) -> None:
        assert kept_clock(Power(0.0, 100.0, 8.0, 100e12)) == 1.0
