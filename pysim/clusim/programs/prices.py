"""Times of PyTorch's operators on a GPU, from the kernels of `clusim.workload.kernels`.

Matrix products, convolutions as implicit products, and fused attention have the measured tables; every other operator
moves its inputs and outputs through memory once.
**Not modelled** Data that is still in L2; additional time of operators that sort, scan or build histograms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from clusim.base.terms.dtypes import find_dtype
from clusim.hardware.kernels.fused import Fused
from clusim.topology.model import Fabric
from clusim.workload.kernels import PRECISIONS, Chip, Gemm, Kernel, chip_of


def product_precision(dtype: str) -> str:
    """Return the precision of matrix products of an element type of PyTorch; 32 bits for types without products."""
    found = find_dtype(dtype)
    peak = found.peak if found is not None and found.mantissa_bits else ""
    return next((name for name, item in PRECISIONS.items() if item.peak == peak), "fp32")


@dataclass(frozen=True, slots=True)
class TensorShape:
    """TensorShape, element type and element size [bytes] of a tensor."""

    sizes: tuple[int, ...]
    dtype: str
    element_bytes: int

    @property
    def bytes(self) -> int:
        """Size [bytes]."""
        return prod(self.sizes) * self.element_bytes


@dataclass(frozen=True, slots=True)
class Price:
    """Time of an operator [ps]; `measured` is False if only its memory traffic is known."""

    time_ps: int
    measured: bool


_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_addmm_activation"}
_ATTENTION = re.compile(r"^_scaled_dot_product_.*attention|^_flash_attention|^_efficient_attention")
_NORM = re.compile(r"norm(?!al)")
_ROWS = re.compile(r"softmax|nll_loss|cross_entropy|logsumexp")
_FUNCTION = re.compile(
    r"gelu|silu|relu|tanh|sigmoid|dropout|exp|erf|pow|sqrt|log|sin|cos|threshold"
)
_WRITES_ONLY = {"copy_", "fill_", "zero_", "zeros", "ones", "full", "normal_", "uniform_"}
_GATHERS = {"embedding", "index", "index_select", "gather"}
_COMPLEX = re.compile(
    r"sort|topk|unique|cumsum|cumprod|histc|bincount|nonzero|scatter|index_put|multinomial"
)


class Prices:
    """Prices of operators on the GPUs of a topology.

    Parameters
    ----------
    tf32 : bool
        32-bit products may round their operands to TF32, as `torch.backends.cuda.matmul.allow_tf32`.
    """

    def __init__(self, fabric: Fabric, *, tf32: bool = False) -> None:
        self.fabric, self.tf32 = fabric, tf32
        self._chips: dict[str, Chip] = {}
        self._known: dict[tuple[object, ...], Price] = {}

    def chip(self, dtype: str) -> Chip:
        """Return the chip at the precision of an element type; other types as 32 bits."""
        name = product_precision(dtype)
        if name == "fp32" and self.tf32:
            name = "tf32"
        if name not in self._chips:
            self._chips[name] = chip_of(self.fabric, PRECISIONS[name])
        return self._chips[name]

    def price(
        self,
        name: str,
        inputs: Sequence[TensorShape],
        outputs: Sequence[TensorShape],
        options: Mapping[str, bool] | None = None,
    ) -> Price:
        """Return the price of an operator.

        Parameters
        ----------
        name : str
            Name in ATen without overload, for example ``addmm``.
        inputs, outputs : sequence of TensorShape
            Tensors in the order of the arguments and results; those written in place are in both.
        options : dict, optional
            ``causal``: mask of attention; ``transposed``: transposed convolution.
        """
        key = (name, tuple(inputs), tuple(outputs), tuple(sorted((options or {}).items())))
        if key not in self._known:
            self._known[key] = self._price(name, inputs, outputs, options or {})
        return self._known[key]

    def _price(
        self,
        name: str,
        inputs: Sequence[TensorShape],
        outputs: Sequence[TensorShape],
        options: Mapping[str, bool],
    ) -> Price:
        dtype = next((s.dtype for s in inputs if len(s.sizes) >= 2), "float32")
        chip = self.chip(dtype)
        moved = _moved(name, inputs, outputs)
        if name in _PRODUCTS:
            gemm = _product(inputs)
            return Price(chip.time_ps(Kernel(name, gemm.flops, moved, gemm)), True)
        if name in ("convolution", "cudnn_convolution", "_convolution"):
            gemm = _convolution(inputs[1], outputs[0])
            return Price(chip.time_ps(Kernel(name, gemm.flops, moved, gemm)), True)
        if name == "convolution_backward":
            # Gradients of the input and of the weight are one product each.
            gemm = _convolution(inputs[2], inputs[0])
            one = chip.time_ps(Kernel(name, gemm.flops, moved // 2, gemm))
            return Price(one * sum(len(shape.sizes) > 2 for shape in outputs), True)
        if _ATTENTION.search(name):
            fused = _attention(name, inputs, causal=options.get("causal", False))
            return Price(chip.time_ps(Kernel(name, 0, moved, fused=fused)), True)
        words = "norm" if _NORM.search(name) else "softmax" if _ROWS.search(name) else name
        if words == name and _FUNCTION.search(name):
            words = "activation"
        time_ps = chip.time_ps(Kernel(words, 0, moved))
        return Price(time_ps, not _COMPLEX.search(name))


def _moved(name: str, inputs: Sequence[TensorShape], outputs: Sequence[TensorShape]) -> int:
    """Return the memory traffic of an operator [bytes]."""
    written = sum(shape.bytes for shape in outputs)
    if name in _WRITES_ONLY:
        return written + sum(shape.bytes for shape in inputs[1:])
    if name in _GATHERS:
        return 2 * written + sum(shape.bytes for shape in inputs[1:])
    return written + sum(shape.bytes for shape in inputs)


def _product(inputs: Sequence[TensorShape]) -> Gemm:
    a, b = [shape.sizes for shape in inputs if len(shape.sizes) >= 2][-2:]
    return Gemm(a[0] if len(a) == 3 else 1, a[-2], b[-1], a[-1])


def _convolution(weight: TensorShape, output: TensorShape) -> Gemm:
    """Return the implicit product of a convolution: outputs x channels, over the window."""
    channels, *window = weight.sizes
    places = output.sizes[0] * prod(output.sizes[2:])
    groups = max(1, output.sizes[1] // channels) if output.sizes[1] > channels else 1
    return Gemm(groups, places, max(1, output.sizes[1] // groups), max(1, prod(window)))


def _attention(name: str, inputs: Sequence[TensorShape], *, causal: bool) -> Fused:
    backward = "backward" in name
    q, k, v = (shape.sizes for shape in inputs[1 if backward else 0 :][:3])
    return Fused(q[0], q[1], k[1], q[2], k[2], q[3], v[3], causal=causal, backward=backward)
