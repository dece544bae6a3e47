"""Kernels and their times on a GPU.

**Hardware** and **Model** see `clusim.hardware.kernels`: matrix products by measured tables, other
kernels by the longer of arithmetic and memory traffic; no kernel is shorter than the time between two
launches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from clusim.base.terms.dtypes import DTYPES
from clusim.base.units import parse_size
from clusim.hardware import FAMILIES
from clusim.hardware.figures import value_of
from clusim.hardware.kernels.fused import (
    Fused,
    moved_s,
)
from clusim.hardware.kernels.measured_tables import (
    AttentionTable,
    ProductTable,
)
from clusim.hardware.kernels.products import Product, Silicon
from clusim.topology.node import Endpoint

SUM_BYTES = 4
"""Element of sums of gradients [bytes]."""

Part = Literal["forward", "input", "weight"]
"""Forward, or backward towards the inputs (activation gradient) or the weights."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of a training run.

    Attributes
    ----------
    peak : str
        Key of the chip's peak rates.
    bytes : int
        Element of activations, weights and messages [bytes].
    gemm_bytes : int
        Operand of matrix products [bytes].
    dtype : str
        Element type of collectives.
    products : str
        Table of measured matrix products.
    recipe : str
        Conversion of operands to 8 bits (`clusim.workload.recipes`); empty: tensors are kept in the
        operands' format.
    transposes : bool
        8-bit products accept operands in one orientation only, so that the other one is a copy: all chips
        except data-centre Blackwell (``is_non_tn_fp8_gemm_supported`` of TransformerEngine).
    """

    name: str
    peak: str
    bytes: int
    gemm_bytes: int
    dtype: str
    products: str = "bf16"
    recipe: str = ""
    transposes: bool = True


def _precision(name: str, stored: str, multiplied: str = "") -> Precision:
    """Return the formats of a run by element type held and multiplied (by default the same)."""
    dtype, factor = DTYPES[stored], DTYPES[multiplied or stored]
    products = {"float8e4m3": "fp8", "float32": "f32"}.get(factor.name, "bf16")
    return Precision(
        name, factor.peak, dtype.size_bytes, factor.size_bytes, dtype.name, products
    )


def _fp8(name: str, recipe: str, products: str = "fp8") -> Precision:
    """Return the formats of a run that multiplies 8-bit operands by a recipe."""
    plain = _precision(name, "bfloat16", "float8e4m3")
    return replace(plain, recipe=recipe, products=products)


PRECISIONS = {
    item.name: item
    for item in (
        _precision("bf16", "bfloat16"),
        _precision("fp16", "float16"),
        _fp8("fp8", "delayed"),
        _fp8("fp8-current", "current"),
        _fp8("fp8-block", "block", "fp8-block"),
        _fp8("mxfp8", "mxfp8"),
        _precision("fp32", "float32"),
        replace(_precision("tf32", "float32"), peak="tf32"),
    )
}
"""Number formats by name. 8-bit formats multiply 8-bit operands and keep all other tensors in bf16; ``fp8``
has delayed scales. ``tf32`` has 32 bits, of which products use 19.
"""


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` matrix products of m x k with k x n."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add is two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Elements read and written once each."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a layer.

    Attributes
    ----------
    flops, bytes : int
        Executed floating-point operations; memory traffic [bytes].
    gemm : Gemm or None
        Shape of a matrix product.
    fused : Fused or None
        Shape of fused attention.
    core : bool
        Part of the attention core, which selective recomputation repeats.
    expert : bool
        Its work grows with the load of the rank's experts.
    useful : int
        Operations counted in MFU, if they differ from `flops` (a causal kernel skips half of them); -1:
        equal.
    """

    name: str
    flops: int = 0
    bytes: int = 0
    gemm: Gemm | None = None
    fused: Fused | None = None
    part: Part = "forward"
    core: bool = False
    expert: bool = False
    useful: int = -1

    @property
    def counted_flops(self) -> int:
        """Operations counted in MFU."""
        return self.flops if self.useful < 0 else self.useful

    def as_part(self, part: Part) -> Kernel:
        """Return the same kernel in another part of the step."""
        return replace(self, part=part)


@dataclass(frozen=True, slots=True)
class WiderProducts:
    """Measured products that do at least the work of the run's: wider operands, or scales of smaller blocks.

    Attributes
    ----------
    peak_flops : float
        Dense peak of their operands' type [FLOP/s].
    operand_bytes : float
        Element of an operand [bytes].
    """

    table: ProductTable
    peak_flops: float
    operand_bytes: float


def workspace_bytes(endpoint: Endpoint) -> int:
    """Return the workspace that PyTorch gives to a handle of cuBLAS or hipBLAS [bytes]."""
    return parse_size(str(value_of(FAMILIES[endpoint.architecture].blas_workspace)))


@dataclass(frozen=True)
class Chip:
    """Parameters of a GPU for kernels.

    Attributes
    ----------
    peak_flops : float
        Dense peak at the run's precision [FLOP/s].
    gemm_fraction : float
        Fraction of that peak reached by the largest matrix products.
    memory_Bps : float
        Achievable memory bandwidth [B/s].
    memory_bytes : int
        Memory size [bytes]; 0 is unknown.
    workspace_bytes : int
        Workspace of a handle of the library for matrix products [bytes].
    floor_ps : int
        Least time of a kernel [ps].
    attending_flops : float
        Dense peak of fused attention: at 16 bits, also in 8-bit runs [FLOP/s].
    sustained, attention_sustained : float
        Fraction of short-benchmark speed in a long run, of products and of attention: the clock under the
        power cap, for products times `steady`, as they read operands from memory.
    products, attention : ProductTable, AttentionTable
        Measurements of matrix products and of fused attention.
    wider : tuple of WiderProducts
        Products that do at least the same work, so that the run's products are not slower.
    given_fraction : float
        Fraction of the peak reached by long fused attention, if the workload sets it; 0: as measured.
    eager : bool
        Kernels that move data are those of an eager framework.
    adds : bool
        Products for weight gradients add them to 32-bit sums, which they read and write.
    speed : float
        Factor of faster kernels.
    """

    name: str
    sms: int
    peak_flops: float
    gemm_fraction: float
    memory_Bps: float
    memory_bytes: int
    floor_ps: int
    products: ProductTable
    attention: AttentionTable
    wider: tuple[WiderProducts, ...] = ()
    given_fraction: float = 0.0
    workspace_bytes: int = 0
    attending_flops: float = 0.0
    sustained: float = 1.0
    attention_sustained: float = 1.0
    precision: Precision = PRECISIONS["bf16"]
    eager: bool = False
    adds: bool = False
    speed: float = 1.0

    @cached_property
    def silicon(self) -> Silicon:
        """Parameters of matrix products, at the clock under load."""
        return self._silicon(self.peak_flops)

    def _silicon(self, peak_flops: float) -> Silicon:
        rate = peak_flops * self.gemm_fraction * self.sustained
        return Silicon(self.sms, rate, self.memory_Bps)

    def product_s(
        self, gemm: Gemm, moved_bytes: int = 0, *, adds: bool = False
    ) -> float:
        """Return the time of a matrix product [s]: no longer than the time of wider products.

        Parameters
        ----------
        moved_bytes : int
            Its traffic, if that is less than its matrices.
        adds : bool
            True if it adds to an output of 32 bits.
        """
        sizes = self.precision.gemm_bytes, self.precision.bytes
        batch, m, n, k = gemm.batch, gemm.m, gemm.n, gemm.k
        full_bytes = batch * (sizes[0] * (m + n) * k + sizes[1] * m * n)
        fresh = min(1.0, moved_bytes / full_bytes) if moved_bytes else 1.0
        if adds:
            # Sums are read and written instead of an output.
            moved = fresh * full_bytes + batch * (2 * SUM_BYTES - sizes[1]) * m * n
            full_bytes += batch * (SUM_BYTES - sizes[1]) * m * n
            sizes, fresh = (sizes[0], SUM_BYTES), moved / full_bytes
        product = Product(batch, m, n, k, fresh)
        times = [self.products.time_s(self.silicon, product, sizes)]
        for wider in self.wider:
            silicon = self._silicon(wider.peak_flops)
            times.append(
                wider.table.time_s(silicon, product, (wider.operand_bytes, sizes[1]))
            )
        return min(times)

    def _products_s(self, kernel: Kernel) -> float:
        """Return the time of a kernel's products [s]; products of experts run in sequence."""
        gemm = kernel.gemm
        assert gemm is not None
        adds = self.adds and kernel.part == "weight"
        if not kernel.expert or gemm.batch == 1:
            return self.product_s(gemm, kernel.bytes, adds=adds)
        one = replace(gemm, batch=1)
        return gemm.batch * self.product_s(
            one, kernel.bytes // gemm.batch, adds=adds
        )

    @cached_property
    def _attending(self) -> Silicon:
        rate = (self.attending_flops or self.peak_flops) * self.gemm_fraction
        speed_share = 1.0 if self.attention.long else self.attention_sustained
        return Silicon(self.sms, rate * speed_share, self.memory_Bps)

    @cached_property
    def attention_fraction(self) -> float:
        """Fraction of the peak of long fused attention, forward and causal with heads of 128."""
        return self.given_fraction or self._measured_fraction

    @cached_property
    def _measured_fraction(self) -> float:
        long = Fused(1, 32, 32, 16384, 16384, 128, 128, causal=True)
        flops = 2 * long.heads * long.rows * long.columns * 2 * 128 / 2
        return flops / (
            self.attention.time_s(self._attending, long) * self.peak_flops
        )

    def fused_s(self, fused: Fused) -> float:
        """Return the time of fused attention [s]."""
        seconds = self.attention.time_s(self._attending, fused, self.precision.bytes)
        if self.given_fraction:
            seconds *= self._measured_fraction / self.given_fraction
        return seconds

    def arithmetic_s(self, kernel: Kernel) -> float:
        """Return the time of a kernel's arithmetic without waits for memory, waves and starts [s]."""
        fraction = self.gemm_fraction * self.sustained
        if kernel.fused is not None:
            fraction = self.attention_fraction
        return kernel.flops / (self.peak_flops * fraction)

    def time_ps(self, kernel: Kernel) -> int:
        """Return the time of a kernel without concurrent work on the GPU [ps]."""
        if kernel.gemm is not None:
            seconds = self._products_s(kernel)
        elif kernel.fused is not None:
            seconds = self.fused_s(kernel.fused)
        else:
            moved = moved_s(
                kernel.name, kernel.bytes, self.memory_Bps, eager=self.eager
            )
            seconds = max(moved, self.arithmetic_s(kernel))
        return round(max(self.floor_ps, round(seconds * 1e12)) / self.speed)

    def moved_bytes(self, kernel: Kernel) -> int:
        """Return the memory traffic of a kernel; faster kernels keep their rate."""
        return round(kernel.bytes / self.speed)
