"""Times of PyTorch's operators on a GPU, from the kernels of `clusim.workload.kernels`.

Matrix products, convolutions as implicit products, and fused attention have the measured tables, fused attention that
of the operator's library; every other operator has the traffic of its kernels (`clusim.workload.traffic`).
**Not modelled** Data that is still in L2; additional time of operators that sort, scan or build histograms.
**Parameters** The clock under the power cap, and the `steady` of an architecture if it was calibrated: an assumed one
stands for long runs of frameworks. Products of eight complete steps on one H100 are within 6% without it, and 15 to 25%
too long with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import find_dtype
from clusim.formats.recordings.model import OperatorCall, TensorShape
from clusim.hardware.kernels.fused import Fused, moved_s, vector_clock_Hz
from clusim.hardware.kernels.measured_tables import find_attention
from clusim.topology.arrays import arrays_of
from clusim.topology.components import preset_endpoint
from clusim.topology.model import Fabric
from clusim.topology.node import Endpoint
from clusim.workload.chips import chip_at, measured_on
from clusim.workload.kernels import PRECISIONS, Chip, Gemm, Kernel
from clusim.workload.traffic import GATHERS, KernelTraffic, moved_bytes, traffic_of


def product_precision(dtype: str) -> str:
    """Return the precision of matrix products of an element type of PyTorch; 32 bits for types without products."""
    data_type = find_dtype(dtype)
    peak = (
        data_type.peak if data_type is not None and data_type.mantissa_bits else ""
    )
    return next(
        (name for name, item in PRECISIONS.items() if item.peak == peak), "fp32"
    )


@dataclass(frozen=True, slots=True)
class Price:
    """Time of an operator [ps]; `measured` is False if only its memory traffic is known."""

    time_ps: int
    measured: bool


PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_addmm_activation"}
"""Operators of cuBLAS."""
_CONVOLUTIONS = ("convolution", "cudnn_convolution", "_convolution")
_ATTENTION = re.compile(
    r"^_scaled_dot_product_.*attention|^_flash_attention|^_efficient_attention"
)
_COMPLEX = re.compile(
    r"sort|topk|unique|cumsum|cumprod|histc|bincount|nonzero|scatter|index_put|multinomial"
)


class Prices:
    """Prices of operators on a GPU."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        flops = endpoint.peak_flops.get("f32", 0.0)
        capability = endpoint.compute_capability
        # Clocks of all SMs; GPUs without a published rate of 32 bits address elements at any rate.
        self._lane_Hz = endpoint.sms * vector_clock_Hz(
            flops, endpoint.sms, capability
        )
        self._chips: dict[str, Chip] = {}
        self._known: dict[OperatorCall, Price] = {}

    @classmethod
    def of(cls, fabric: Fabric) -> Prices:
        """Return the prices on a topology's first GPU."""
        endpoint = fabric.nodes[arrays_of(fabric).node_of(0)].endpoint
        assert endpoint is not None, "ranks are endpoints"
        return cls(endpoint)

    def chip(self, dtype: str, *, tf32: bool = False) -> Chip:
        """Return the chip at the precision of an element type; other types as 32 bits."""
        name = product_precision(dtype)
        if name == "fp32" and tf32:
            name = "tf32"
        if name not in self._chips:
            self._chips[name] = chip_at(self.endpoint, PRECISIONS[name], single=True)
        return self._chips[name]

    def price(self, call: OperatorCall) -> Price:
        """Return the price of an operator."""
        if call not in self._known:
            self._known[call] = self._price(call)
        return self._known[call]

    def _price(self, call: OperatorCall) -> Price:
        name, inputs, outputs = call.name, call.inputs, call.outputs
        dtype = next((s.dtype for s in inputs if len(s.sizes) >= 2), "float32")
        chip = self.chip(dtype, tf32="tf32" in call.flags)
        if call.work:
            return Price(
                chip.time_ps(Kernel(name, call.work[0], call.work[1])), True
            )
        moved = moved_bytes(call)
        if name in PRODUCTS:
            gemm = _product(inputs)
            return Price(chip.time_ps(Kernel(name, gemm.flops, moved, gemm)), True)
        if name in _CONVOLUTIONS:
            gemm = _convolution(inputs[1], outputs[0])
            return Price(chip.time_ps(Kernel(name, gemm.flops, moved, gemm)), True)
        if name == "convolution_backward":
            # Gradients of the input and of the weight are one product each.
            gemm = _convolution(inputs[2], inputs[0])
            one = chip.time_ps(Kernel(name, gemm.flops, moved // 2, gemm))
            return Price(one * sum(len(shape.sizes) > 2 for shape in outputs), True)
        if _ATTENTION.search(name):
            fused = _attention(name, inputs, causal="causal" in call.flags)
            return Price(
                self._attending(chip, name).time_ps(
                    Kernel(name, 0, moved, fused=fused)
                ),
                True,
            )
        time_ps = self._moved_ps(chip, traffic_of(call))
        return Price(time_ps, not _COMPLEX.search(name))

    def _attending(self, chip: Chip, name: str) -> Chip:
        """Return the chip with the attention of an operator's library, if PyTorch's kernels were measured on it."""
        library = "torch-cudnn" if "cudnn" in name else "torch-flash"
        table = find_attention(measured_on(self.endpoint), library)
        return chip if table is None else replace(chip, attention=table)

    def _moved_ps(self, chip: Chip, traffic: KernelTraffic) -> int:
        """Return the time of a kernel that moves data [ps]."""
        moved = moved_s(traffic.kind, traffic.bytes, chip.memory_Bps, eager=True)
        if traffic.singles and self._lane_Hz:
            moved = max(moved, traffic.singles / (traffic.per_clock * self._lane_Hz))
        return max(chip.floor_ps, round(moved * 1e12))


def price(
    operator: str,
    shapes: Sequence[Sequence[int]],
    dtype: str = "bfloat16",
    chip: str | Fabric = "h100-sxm5",
    outputs: Sequence[Sequence[int]] | None = None,
) -> Price:
    """Return the time of an ATen operator on a GPU, as `clusim torchrun` charges it.

    `Prices.price` accepts an `OperatorCall`: different types of tensors, and causal attention.

    Parameters
    ----------
    operator : str
        Name, with or without name space and overload: ``aten.mm``, ``aten::addmm.default``.
    shapes : sequence of sequence of int
        Sizes of the input tensors, in the order of the arguments.
    dtype : str
        Element type of the tensors.
    chip : str or Fabric
        Name of a GPU (`clusim topo list`), or a topology with that GPU as its first.
    outputs : sequence of sequence of int, optional
        Sizes of the results, by default of a product, attention or the broadcast inputs; required for a reduction.

    Raises
    ------
    InputError
        An unknown GPU or element type, or sizes that do not fit.

    Examples
    --------
    >>> price("aten.mm", [(8192, 4096), (4096, 4096)], "bfloat16", "h100-sxm5").measured
    True
    """
    name = re.split(r"[.:]+", operator.removeprefix("aten").lstrip(".:"))[0]
    data_type = find_dtype(dtype)
    if data_type is None or not name:
        raise InputError(
            f"{operator!r} of {dtype!r}: name an operator and an element type"
        )
    inputs = tuple(
        TensorShape(tuple(s), data_type.name, data_type.size_bytes) for s in shapes
    )
    try:
        results = (
            [tuple(s) for s in outputs]
            if outputs is not None
            else [_result(name, inputs)]
        )
        output_shapes = tuple(
            TensorShape(s, data_type.name, data_type.size_bytes) for s in results
        )
        prices = (
            Prices(preset_endpoint(chip))
            if isinstance(chip, str)
            else Prices.of(chip)
        )
        return prices.price(OperatorCall(name, inputs, output_shapes))
    except (ValueError, IndexError):
        raise InputError(
            f"{operator}: shapes {list(map(list, shapes))} do not fit"
        ) from None


def _result(name: str, inputs: Sequence[TensorShape]) -> tuple[int, ...]:
    """Return the sizes of the result of a product, of attention, or of broadcast inputs."""
    if name in PRODUCTS:
        gemm = _product(inputs)
        return (gemm.batch, gemm.m, gemm.n) if gemm.batch > 1 else (gemm.m, gemm.n)
    if _ATTENTION.search(name):
        q, v = inputs[0].sizes, inputs[2].sizes
        return (*q[:3], v[3])
    if name in GATHERS:
        return (*inputs[1].sizes, *inputs[0].sizes[1:])
    return tuple(map(int, np.broadcast_shapes(*(shape.sizes for shape in inputs))))


def _product(inputs: Sequence[TensorShape]) -> Gemm:
    a, b = [shape.sizes for shape in inputs if len(shape.sizes) >= 2][-2:]
    if a[-1] != b[-2]:
        raise ValueError("inner sizes differ")
    return Gemm(a[0] if len(a) == 3 else 1, a[-2], b[-1], a[-1])


def _convolution(weight: TensorShape, output: TensorShape) -> Gemm:
    """Return the implicit product of a convolution: outputs x channels, over the window."""
    channels, *window = weight.sizes
    places = output.sizes[0] * prod(output.sizes[2:])
    groups = max(1, output.sizes[1] // channels) if output.sizes[1] > channels else 1
    return Gemm(
        groups, places, max(1, output.sizes[1] // groups), max(1, prod(window))
    )


def _attention(name: str, inputs: Sequence[TensorShape], *, causal: bool) -> Fused:
    backward = "backward" in name
    q, k, v = (shape.sizes for shape in inputs[1 if backward else 0 :][:3])
    return Fused(
        q[0], q[1], k[1], q[2], k[2], q[3], v[3], causal=causal, backward=backward
    )
