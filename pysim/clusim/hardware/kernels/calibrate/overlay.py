"""Measurements on a GPU, their record, and its conversion into a kernel file.

`measure` reads launches, operators, products, attention, copies, memory and long runs from a `Measurer`
and needs no GPU; `clusim.hardware.kernels.calibrate.probe` is the PyTorch device. A record can be kept,
sent and converted elsewhere into a kernel file, which `kernels` of a chip or of a workload's `hardware`
names.

The forms of the chip's architecture are re-fitted to the products of the record, with ratios of the
residuals; attention keeps the form of the architecture's default library, with a rate that matches the
record. Memory, the clock of a long run and the minimum kernel time replace the chip's figures. All are
marked *calibrated*, with the place of measurement from the record.

Fits of forms and ratios to measured products.

Used for the shipped tables and by ``clusim calibrate gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from math import exp, log
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from clusim.base.errors import InputError
from clusim.base.units import parse_rate
from clusim.hardware import Gpu, gpu
from clusim.hardware.kernels.calibrate.fit import (
    KNOTS,
    ProductRows,
    fit_form,
    fit_ratios,
)
from clusim.hardware.kernels.fused import Fused, FusedForm, fused_s
from clusim.hardware.kernels.measured_tables import (
    FORMAT,
    find_attention,
    find_table,
)
from clusim.hardware.kernels.products import Silicon, form_s
from clusim.hardware.product_names import gpu_by_product

RECORD = "clusim-gpu-record-1"
"""Format mark of a record."""

SHAPES = tuple(
    (m, n, k)
    for m in (1, 16, 128, 512, 2048, 8192)
    for n in (1024, 4096, 14336)
    for k in (1024, 4096, 14336)
)
"""m, n, k of the products that are measured."""

ATTENTION = tuple(
    (batch, heads, tokens, size, causal)
    for batch, tokens in ((8, 1024), (4, 2048), (2, 4096), (1, 8192))
    for heads, size in ((32, 64), (16, 128))
    for causal in (False, True)
)
"""Samples, heads, tokens, size of a head, mask."""

OPERATORS = ("add", "linear", "layer_norm", "empty")
"""Operators with a measured host cost."""

MOVED = (1 << 20, 16 << 20, 256 << 20, 1 << 30)
"""Bytes that copies inside the GPU read."""

LONG = (8192, 8192, 8192)
"""The product of the long run."""


class Measurer(Protocol):
    """Interface of a GPU that can be measured."""

    def about(self) -> dict[str, Any]:
        """Return ``name`` (from the driver), ``measured`` (place and date), and other facts."""

    def kinds(self) -> tuple[str, ...]:
        """Return the element types it multiplies: ``bf16``, ``fp8``."""

    def launch_us(self, *, graph: bool) -> float:
        """Return the distance of two empty kernels in a stream or in a graph [us]."""

    def operator_us(self, name: str) -> float:
        """Return the host time to issue an operator [us]."""

    def product_us(self, kind: str, shape: tuple[int, int, int]) -> float:
        """Return the time of a product of m x k with k x n in a short run [us]."""

    def attention_us(
        self, shape: tuple[int, int, int, int, bool], *, backward: bool
    ) -> float:
        """Return the time of fused attention, forwards or backwards [us]."""

    def moved_us(self, size_bytes: int) -> float:
        """Return the time of a copy inside the GPU that reads a number of bytes [us]."""

    def copy_GBps(self, direction: str) -> float:
        """Return the rate of copies from (``from``) or to (``to``) pinned host memory [GB/s]."""

    def long_us(self, shape: tuple[int, int, int]) -> float:
        """Return the time of a product at the end of a ten-second run [us]."""


def measure(
    device: Measurer, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Return the record of a device; `say` is called with the name of each measurement."""
    say("launches and operators")
    record: dict[str, Any] = {
        "format": RECORD,
        "gpu": device.about(),
        "launch": {
            "stream_us": device.launch_us(graph=False),
            "graph_us": device.launch_us(graph=True),
        },
        "operators": {name: device.operator_us(name) for name in OPERATORS},
    }
    say("copies and memory")
    record["copies"] = {
        direction: device.copy_GBps(direction) for direction in ("from", "to")
    }
    record["memory"] = [
        {"bytes": size, "us": device.moved_us(size)} for size in MOVED
    ]
    record["products"] = []
    for kind in device.kinds():
        say(f"{len(SHAPES)} products of {kind}")
        for m, n, k in SHAPES:
            product_us = device.product_us(kind, (m, n, k))
            record["products"].append(
                {"kind": kind, "m": m, "n": n, "k": k, "us": product_us}
            )
    say("attention")
    record["attention"] = [
        dict(zip(("batch", "heads", "tokens", "size", "causal"), shape, strict=True))
        | {"backward": backward, "us": device.attention_us(shape, backward=backward)}
        for shape in ATTENTION
        for backward in (False, True)
    ]
    say("ten seconds of one product")
    m, n, k = LONG
    short = device.product_us("bf16", LONG)
    record["long"] = {
        "m": m,
        "n": n,
        "k": k,
        "short_us": short,
        "long_us": device.long_us(LONG),
    }
    return record


_POSITIVE: dict[str, tuple[str, ...]] = {
    "launch": ("stream_us", "graph_us"),
    "long": ("short_us", "long_us"),
}
_LISTS: dict[str, tuple[str, ...]] = {
    "products": ("m", "n", "k", "us"),
    "attention": ("batch", "heads", "tokens", "size", "us"),
    "memory": ("bytes", "us"),
}


def check_record(data: Any, name: str) -> dict[str, Any]:
    """Return a valid record read from the file `name`; raise `InputError` if it is invalid."""
    if not isinstance(data, dict) or data.get("format") != RECORD:
        raise InputError(f"{name}: no record of a GPU of the format {RECORD!r}")
    gpu = data.get("gpu")
    if not isinstance(gpu, dict) or not isinstance(gpu.get("name"), str):
        raise InputError(f"{name}: 'gpu' must contain the name of the GPU")
    for key, numbers in _POSITIVE.items():
        _check(data.get(key), numbers, f"{name}: {key}")
    for key, numbers in _LISTS.items():
        rows = data.get(key)
        if not isinstance(rows, list) or not rows:
            raise InputError(f"{name}: {key!r} must be a list of measurements")
        for index, row in enumerate(rows):
            where = f"{name}: {key}[{index}]"
            _check(row, numbers, where)
            for word, kind in _WORDS.get(key, {}).items():
                if not isinstance(row.get(word), kind):
                    raise InputError(
                        f"{where}: {word} is {row.get(word)!r}; must be {_SAID[kind]}"
                    )
    return data


_WORDS: dict[str, dict[str, type]] = {
    "products": {"kind": str, "m": int, "n": int, "k": int},
    "attention": {
        **dict.fromkeys(("batch", "heads", "tokens", "size"), int),
        **dict.fromkeys(("causal", "backward"), bool),
    },
}
_SAID = {str: "a word", int: "an integer", bool: "true or false"}


def _check(row: Any, numbers: tuple[str, ...], where: str) -> None:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: must be a mapping")
    for key in numbers:
        value = row.get(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < 1e15
        ):
            raise InputError(
                f"{where}: {key} is {value!r}; must be a positive number"
            )


_PEAKS = {"bf16": "bf16", "fp8": "f8"}
_SIZES = {"bf16": (2.0, 2.0), "fp8": (1.0, 2.0)}
STEPS = 600

FASTEST, SLOWEST = 1.1, 0.1
"""Limits of the fastest product of a record, relative to the chip's peak.

Boost clocks are included in the upper limit.
"""


def _chip(record: dict[str, Any], chip: str | None) -> Gpu:
    if chip is not None:
        return gpu(chip)
    name = str(record["gpu"]["name"])
    result = gpu_by_product(name)
    if result is None:
        raise InputError(
            f"no chip has the product name {name!r}; name the nearest one with --preset"
        )
    return result


def overlay(record: dict[str, Any], chip: str | None = None) -> dict[str, Any]:
    """Return the kernel file of a record; `chip` is the preset of an unknown product name."""
    preset = _chip(record, chip)
    family = str(preset.architecture.kernels.value)
    source = f"measured by clusim calibrate gpu: {record['gpu']}"
    figures = _figures(record, preset)
    reached = (
        parse_rate(str(preset.figures["memory_rate"].value)).bytes_per_s
        * figures["memory_efficiency"]
    )
    attending = _silicon(preset, "bf16", reached)
    return {
        "format": FORMAT,
        "chip": preset.name,
        "architecture": preset.architecture.name,
        "mark": "calibrated",
        "source": source,
        "figures": figures,
        "host": {
            "operators_us": record.get("operators", {}),
            "copies_GBps": record.get("copies", {}),
        },
        "knots": {axis: list(values) for axis, values in KNOTS.items()},
        "products": _products(record, preset, reached),
        "attention": [_attention(record, attending, family)],
    }


def _silicon(preset: Gpu, kind: str, reached: float) -> Silicon:
    peaks = preset.figures["peak_flops"].value
    assert isinstance(peaks, dict)
    if _PEAKS[kind] not in peaks:
        raise InputError(
            f"{preset.name}: the peak rate of {kind} is missing, but the record has such products"
        )
    fraction = float(str(preset.figures["gemm_fraction"].value))
    return Silicon(preset.sms, float(peaks[_PEAKS[kind]]) * fraction, reached)


def _figures(record: dict[str, Any], preset: Gpu) -> dict[str, float]:
    """Return replacements of chip figures: memory and clock shares, minimum kernel time."""
    rate = parse_rate(str(preset.figures["memory_rate"].value)).bytes_per_s
    moved = max(2 * row["bytes"] / row["us"] * 1e6 for row in record["memory"])
    ratio = record["long"]["short_us"] / record["long"]["long_us"]
    return {
        "memory_efficiency": round(min(1.0, moved / rate), 4),
        "sustained": round(min(1.0, ratio), 4),
        "kernel_floor_us": round(float(record["launch"]["stream_us"]), 3),
    }


def _products(
    record: dict[str, Any], preset: Gpu, reached: float
) -> list[dict[str, Any]]:
    result = []
    family = str(preset.architecture.kernels.value)
    for kind in dict.fromkeys(str(row["kind"]) for row in record["products"]):
        if kind not in _PEAKS:
            raise InputError(f"products of {kind!r}: use {' or '.join(_PEAKS)}")
        listed = [row for row in record["products"] if row["kind"] == kind]
        shapes = np.array(
            [[1, row["m"], row["n"], row["k"], 1] for row in listed], float
        )
        seconds = np.array([row["us"] for row in listed], float) * 1e-6
        rows, metal = (
            ProductRows(shapes, seconds, _SIZES[kind]),
            _silicon(preset, kind, reached),
        )
        _check_rates(rows, preset, kind)
        before = find_table(family, kind) or find_table(family, "bf16")
        assert before is not None, "files of architectures have products of bf16"
        form = fit_form(metal, rows, before.form, STEPS)
        apart = np.log(form_s(form, metal, shapes, _SIZES[kind]) / seconds)
        result.append(
            {
                "kind": kind,
                "library": "torch",
                "form": asdict(form),
                "fitted": {
                    "n": len(listed),
                    "form_mean_abs_pct": round(
                        100 * float(np.abs(np.expm1(apart)).mean()), 2
                    ),
                },
                "ratios": fit_ratios(form, metal, [rows]),
            }
        )
    return result


def _check_rates(rows: ProductRows, preset: Gpu, kind: str) -> None:
    """Raise `InputError` if product rates exceed the chip's peak or never approach it."""
    peaks = preset.figures["peak_flops"].value
    assert isinstance(peaks, dict)
    reached = 2 * rows.shapes[:, :4].prod(axis=1) / rows.seconds
    best, peak = float(reached.max()), float(peaks[_PEAKS[kind]])
    if not SLOWEST * peak <= best <= FASTEST * peak:
        raise InputError(
            f"{preset.name}: products of {kind} reach {best / 1e12:.3g} TFLOP/s at most, its peak is {peak / 1e12:.4g};"
            " the record is of another chip (--preset names it), or of one that was busy"
        )


def _attention(
    record: dict[str, Any], metal: Silicon, family: str
) -> dict[str, Any]:
    before = find_attention(family)
    assert before is not None, "files of architectures have attention"
    passes = {"forward": before.forward, "backward": before.backward}
    return {
        "library": "torch",
        **{
            name: asdict(_met(form, metal, record, name == "backward"))
            for name, form in passes.items()
        },
    }


def _met(
    form: FusedForm, metal: Silicon, record: dict[str, Any], backward: bool
) -> FusedForm:
    """Return a form with rate and score cost fitted to the record in the mean of logarithms."""
    rows = []
    for row in record["attention"]:
        if bool(row.get("backward")) == backward:
            heads, tokens, size = (
                int(row["heads"]),
                int(row["tokens"]),
                int(row["size"]),
            )
            shape = Fused(
                int(row["batch"]), heads, heads, tokens, tokens, size, size, bool(row["causal"]), backward
            )  # fmt: skip
            rows.append((shape, float(row["us"]) * 1e-6))
    for _ in range(8 if rows else 0):
        slower = exp(
            fmean(
                log(seconds / fused_s(form, metal, shape)) for shape, seconds in rows
            )
        )
        form = replace(
            form, rate=form.rate / slower, score_ps=form.score_ps * slower
        )
    return replace(
        form, rate=float(f"{form.rate:.4g}"), score_ps=float(f"{form.score_ps:.4g}")
    )
