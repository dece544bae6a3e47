"""Traffic of PyTorch's kernels: passes by hand, and times measured on an H100."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.terms.dtypes import find_dtype
from clusim.formats.recordings.model import OperatorCall, TensorShape
from clusim.topology.components import preset_endpoint
from clusim.workload.prices import Prices
from clusim.workload.traffic import (
    HELD_ROW_BYTES,
    LISTS_SHARE,
    SINGLE_PER_CLOCK,
    STATISTICS_SHARE,
    STRIDED,
    TRANSPOSED,
    TRANSPOSED_PER_CLOCK,
    KernelTraffic,
    traffic_of,
)

OPERATORS = Path(__file__).parent / "data" / "operators.csv"
SHORT = {"bf16": "bfloat16", "f32": "float32", "i64": "int64", "u64": "uint64", "i32": "int32"}
LARGE_BYTES = 64 << 20
PRICES = Prices(preset_endpoint("h100-sxm5"))


def tensor(text: str) -> TensorShape:
    """Return a tensor of the table, for example ``8192x1024:bf16``."""
    sizes, _, kind = text.partition(":")
    name = SHORT.get(kind, kind)
    found = find_dtype(name)
    held = 1 if found is None else found.size_bytes
    return TensorShape(tuple(int(n) for n in sizes.split("x") if n), name, held)


def call(name: str, inputs: str, outputs: str = "", *flags: str) -> OperatorCall:
    tensors = tuple(map(tensor, inputs.split())), tuple(map(tensor, outputs.split()))
    return OperatorCall(name, *tensors, flags)


def measured() -> list[tuple[OperatorCall, float, float]]:
    """Return the calls of the table with their times without and with other data in L2 [us]."""
    rows = []
    with OPERATORS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if " tensors of " not in row["inputs"]:
                flags = (row["note"],) if row["note"] in ("causal", STRIDED, TRANSPOSED) else ()
                one = call(row["operator"], row["inputs"], row["outputs"], *flags)
                rows.append((one, float(row["hot_us"]), float(row["cold_us"])))
    return rows


def moved_MiB(one: OperatorCall) -> float:
    return sum(shape.bytes for shape in (*one.inputs, *one.outputs)) / (1 << 20)


class TestPasses:
    """x is a tensor of 8192 x 1024 in 16 bits: 16 MiB."""

    X = 8192 * 1024 * 2

    def test_a_loss_reads_one_logit_per_row(self) -> None:
        logits, targets = "4096x50304:f32", "4096:i64"
        assert traffic_of(call("nll_loss_forward", f"{logits} {targets}", ":f32")).bytes < 1e5
        back = traffic_of(call("nll_loss_backward", f":f32 {logits} {targets}", logits))
        assert back.bytes == pytest.approx(4096 * 50304 * 4, rel=1e-3)

    def test_gradients_of_a_norm_read_twice(self) -> None:
        """Gradient and input, once for the input's gradient and once for the weights'."""
        x = "8192x1024:bf16"
        given = traffic_of(call("native_layer_norm_backward", f"{x} {x}", x))
        assert given == KernelTraffic(5 * self.X, "norm")

    def test_a_batch_norm_reads_its_statistics_first(self) -> None:
        x = "256x64x56x56:bf16"
        one = 256 * 64 * 56 * 56 * 2
        found = traffic_of(call("native_batch_norm", x, x))
        assert found == KernelTraffic(2 * one + one / STATISTICS_SHARE)

    def test_the_gradient_of_a_softmax_is_two_kernels(self) -> None:
        x = "8192x1024:bf16"
        assert traffic_of(call("_softmax_backward_data", f"{x} {x}", x)).bytes == 6 * self.X

    def test_rows_of_a_softmax_are_read_again_if_the_cache_does_not_hold_them(self) -> None:
        short, long = HELD_ROW_BYTES // 2, HELD_ROW_BYTES // 2 + 1
        for row, passes, kind in ((short, 2, "softmax"), (long, 4, "copy"), (1024, 2, "copy")):
            x = f"64x{row}:bf16"
            assert traffic_of(call("_log_softmax", x, x)) == KernelTraffic(
                passes * 64 * row * 2, kind
            )

    def test_a_filled_mask_is_a_copy_and_a_kernel_in_place(self) -> None:
        x, mask = "8192x1024:bf16", "8192x1024:bool"
        apart = traffic_of(call("masked_fill", f"{x} {mask}", x)).bytes
        inside = traffic_of(call("masked_fill_", f"{x} {mask}", x)).bytes
        assert apart - inside == 2 * self.X

    def test_lists_of_tensors_move_at_the_rate_of_their_type(self) -> None:
        for kind, size in (("bf16", 2), ("f32", 4)):
            x = f"8192x1024:{kind}"
            found = traffic_of(call("_fused_adamw_", f"{x} {x} {x} {x}", f"{x} {x} {x}")).bytes
            assert found == pytest.approx(7 * 8192 * 1024 * size / LISTS_SHARE[size])


@pytest.mark.parametrize(
    ("one", "per_clock"),
    [
        (call("add", "8192x1024:bf16 1024:bf16", "8192x1024:bf16"), SINGLE_PER_CLOCK),
        (call("add", "8192x1024:bf16 8192x1024:bf16", "8192x1024:bf16"), 0.0),
        (call("add", "8192x1024:bf16 :bf16", "8192x1024:bf16"), 0.0),
        (call("add", "8192x1024:bf16 8192x1024:bf16", "8192x1024:bf16", STRIDED), SINGLE_PER_CLOCK),
        (call("clone", "8192x1024:bf16", "8192x1024:bf16", TRANSPOSED), TRANSPOSED_PER_CLOCK),
        (call("_to_copy", "8192x1024:bf16", "8192x1024:f32"), SINGLE_PER_CLOCK),
        (call("_to_copy", "8192x1024:f32", "8192x1024:bf16"), 0.0),
    ],
)
def test_elements_are_addressed_one_by_one_without_vector_loads(
    one: OperatorCall, per_clock: float
) -> None:
    """132 SMs at 1.98 GHz; bytes otherwise."""
    found = traffic_of(one)
    assert found.singles == (8192 * 1024 if per_clock else 0)
    if per_clock:
        seconds = 8192 * 1024 / (per_clock * 67e12 / 256)
        assert PRICES.price(one).time_ps == pytest.approx(seconds * 1e12, rel=1e-6)


def errors(names: set[str], *, least_MiB: float = LARGE_BYTES / (1 << 20)) -> list[float]:
    """Return the errors of the rows of operators."""
    return [
        PRICES.price(one).time_ps / hot_us / 1e6 - 1
        for one, hot_us, _ in measured()
        if one.name in names and moved_MiB(one) >= least_MiB
    ]


STREAMS = {
    *("add", "add_", "mul", "clone", "copy_", "cat", "div", "neg", "pow", "relu", "silu", "tanh"),
    *("gelu", "gelu_backward", "silu_backward", "threshold_backward", "native_dropout"),
    *("native_dropout_backward", "masked_fill", "_to_copy", "_softmax_backward_data"),
}


@pytest.mark.parametrize(
    ("names", "count", "most"),
    [
        (STREAMS, 110, 0.05),
        ({"_log_softmax", "_log_softmax_backward_data", "nll_loss_backward"}, 28, 0.06),
        ({"native_layer_norm", "native_layer_norm_backward"}, 19, 0.15),
        ({"_fused_rms_norm", "_fused_rms_norm_backward", "native_batch_norm"}, 14, 0.16),
        ({"embedding", "embedding_dense_backward"}, 20, 0.18),
    ],
)
def test_kernels_are_met(names: set[str], count: int, most: float) -> None:
    """Large tensors, which L2 does not hold: mean error of each group."""
    found = errors(names)
    assert len(found) >= count
    assert sum(map(abs, found)) / len(found) < most


def test_attention_of_pytorch_is_met() -> None:
    """Forward and backward, both libraries; errors of shapes that calibrated nothing are in the file of kernels."""
    for name in ("flash", "cudnn"):
        for part in ("", "_backward"):
            found = errors({f"_scaled_dot_product_{name}_attention{part}"}, least_MiB=0)
            assert sum(map(abs, found)) / len(found) < 0.12, (name, part)


def test_products_are_met_without_the_factor_of_long_runs() -> None:
    """Products of training steps; rows of odd lengths are slower, which is not modelled."""
    found = []
    for one, hot_us, _ in measured():
        sizes = [n for shape in one.inputs[-2:] for n in shape.sizes]
        if one.name in ("mm", "addmm") and min(sizes) >= 768 and not any(n % 8 for n in sizes):
            found.append(PRICES.price(one).time_ps / hot_us / 1e6 - 1)
    assert len(found) > 90
    assert sum(map(abs, found)) / len(found) < 0.09
    assert abs(sum(found) / len(found)) < 0.03


def test_a_view_costs_as_much_on_half_the_multiprocessors() -> None:
    """Elements per SM and clock: a chip of half the SMs and its peak has half the rate."""
    one = call("add", "8192x4096:bf16 4096:bf16", "8192x4096:bf16")
    whole = preset_endpoint("h100-sxm5")
    peaks = {**whole.peak_flops, "f32": whole.peak_flops["f32"] / 2}
    half = Prices(replace(whole, sms=whole.sms // 2, peak_flops=peaks))
    assert half.price(one).time_ps == pytest.approx(2 * PRICES.price(one).time_ps, rel=1e-6)
