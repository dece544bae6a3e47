"""Kernels and their times on a GPU.

**Hardware** and **Model** see `clusim.hardware.kernels`: matrix products by measured tables, other
kernels by the longer of arithmetic and memory traffic; no kernel is shorter than the time between two
launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import DTYPES
from clusim.base.units import parse_size, parse_time
from clusim.hardware import FAMILIES, GPUS, Architecture, Gpu
from clusim.hardware.figures import value_of
from clusim.hardware.kernels.fused import (
    Fused,
    Power,
    kept_clock,
    moved_s,
    vector_clock_Hz,
)
from clusim.hardware.kernels.measured_tables import (
    AttentionTable,
    ProductTable,
    find_attention,
    find_figures,
    find_table,
    load_file,
    shipped_files,
)
from clusim.hardware.kernels.products import Product, Silicon
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.topology.node import Endpoint
from clusim.workload.spec import HardwareSpec

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


def chip_of(
    fabric: Fabric, precision: Precision, hardware: HardwareSpec | None = None
) -> Chip:
    """Return the chip of a topology's first GPU; `hardware` replaces preset parameters."""
    node = fabric.nodes[arrays_of(fabric).node_of(0)]
    assert node.endpoint is not None, "ranks are endpoints"
    return chip_at(node.endpoint, precision, hardware, node.name)


def chip_at(
    endpoint: Endpoint,
    precision: Precision,
    hardware: HardwareSpec | None = None,
    where: str = "",
    *,
    single: bool = False,
) -> Chip:
    """Return the chip of a GPU.

    Parameters
    ----------
    where : str
        Its name in messages.
    single : bool
        Prices of single kernels: without an assumed `steady` of the architecture, a factor of long runs.
    """
    spec, where = hardware or HardwareSpec(), where or endpoint.chip
    peak = _peak(endpoint, precision)
    if peak is None:
        names = [
            name
            for name, item in PRECISIONS.items()
            if _peak(endpoint, item) is not None
        ]
        raise InputError(
            f"precision {precision.name}: unsupported by {endpoint.chip or where}; use"
            f" {' or '.join(names) or 'another chip'}"
        )
    if spec.kernels is not None:
        endpoint = replace(endpoint, kernels=spec.kernels)
    family = FAMILIES[endpoint.architecture]
    measured = find_figures(endpoint.kernels) if endpoint.kernels else {}
    result = spec.gemm_fraction or endpoint.gemm_fraction
    stated, clock = (
        spec.sustained or measured.get("sustained"),
        _clock(endpoint, family),
    )
    is_short = single and family.steady.mark == "assumed"
    steady = 1.0 if is_short else float(str(family.steady.value))
    if not result:
        raise InputError(
            f"chip {endpoint.chip!r} of {where}: gemm_fraction missing; set the chip's base, or in the"
            " workload 'hardware: {gemm_fraction: 0.8}'"
        )
    return Chip(
        name=endpoint.chip,
        sms=endpoint.sms,
        peak_flops=float(peak),
        gemm_fraction=result,
        memory_Bps=endpoint.mem_Bps
        * measured.get("memory_efficiency", endpoint.mem_efficiency),
        memory_bytes=endpoint.mem_bytes if spec.memory is None else spec.memory,
        workspace_bytes=workspace_bytes(endpoint),
        floor_ps=round(measured["kernel_floor_us"] * 1e6)
        if "kernel_floor_us" in measured
        else parse_time(str(family.kernel_floor.value)),
        products=products_of(endpoint, precision),
        attention=attention_of(endpoint, spec.attention_library or ""),
        wider=wider_products(endpoint, precision),
        attending_flops=float(min(peak, endpoint.peak_flops.get("f16", peak))),
        given_fraction=spec.attention_fraction or 0.0,
        sustained=stated or steady * clock,
        attention_sustained=stated or clock,
        precision=replace(
            precision, transposes=not 100 <= endpoint.compute_capability < 120
        ),
        speed=spec.speed,
    )


def _peak(endpoint: Endpoint, precision: Precision) -> float | None:
    """Return the dense peak of a precision [FLOP/s]; None if the chip does not support it.

    The peak of TF32 is half of bf16's in all of NVIDIA's data sheets from the A100 on.
    """
    tensor = (
        endpoint.compute_capability >= 80
        and FAMILIES[endpoint.architecture].vendor != "amd"
    )
    if precision.peak == "tf32" and tensor and "bf16" in endpoint.peak_flops:
        return endpoint.peak_flops["bf16"] / 2
    return endpoint.peak_flops.get(precision.peak)


def _clock(endpoint: Endpoint, family: Architecture) -> float:
    """Return the clock of dense arithmetic under the power cap, relative to that of the peak rate."""
    idle, energy = (
        float(str(figure.value))
        for figure in (family.idle_power, family.flop_energy)
    )
    return kept_clock(
        Power(endpoint.power_W, idle, energy, endpoint.peak_flops.get("f16", 0.0))
    )


WARP_LEVEL = "a100-sxm4-80gb"
"""Chip with tensor cores that multiply for one warp at a time (``mma.sync``)."""


def measured_on(endpoint: Endpoint) -> str:
    """Return the chip with the measured kernels for a chip: named, or by its architecture.

    Blackwell's cards (compute capability 12) lack the instructions of its modules: they multiply as Ampere
    does (CUTLASS, guides to MMA programming).
    """
    if endpoint.kernels:
        return endpoint.kernels
    if endpoint.compute_capability >= 120:
        return WARP_LEVEL
    return str(FAMILIES[endpoint.architecture].kernels.value)


def _faster(endpoint: Endpoint, gpu: Gpu | None) -> float:
    """Return the clock of a chip relative to the measured one; 1 if one is unknown, or AMD's (lanes differ)."""
    rate = endpoint.peak_flops.get("f32")
    if gpu is None or not rate or FAMILIES[endpoint.architecture].vendor == "amd":
        return 1.0
    peaks = gpu.figures["peak_flops"].value
    assert isinstance(peaks, Mapping)
    clock_Hz = vector_clock_Hz(
        float(rate), endpoint.sms, endpoint.compute_capability
    )
    return clock_Hz / vector_clock_Hz(
        float(peaks["f32"]), gpu.sms, gpu.compute_capability
    )


def products_of(endpoint: Endpoint, precision: Precision) -> ProductTable:
    """Return the matrix products that were measured on a chip or on its family.

    Without measurements of its element type, or outside the measured architecture, the table has the form of
    16-bit products, in the latter case at the chip's clock: tables of 8 bits include casts.
    """
    name = measured_on(endpoint)
    plain = find_table(name, "bf16")
    if plain is None:
        raise InputError(f"kernels {name!r}: no products of bf16 were measured")
    gpu = GPUS.get(plain.chip)
    alike = (
        gpu is None
        or gpu.compute_capability // 10 == endpoint.compute_capability // 10
    )
    if endpoint.architecture != plain.architecture or not alike:
        return replace(
            plain, ratios=None, form=plain.form.at_clock(_faster(endpoint, gpu))
        )
    return find_table(name, precision.products) or replace(plain, ratios=None)


def wider_products(
    endpoint: Endpoint, precision: Precision
) -> tuple[WiderProducts, ...]:
    """Return the measured products that are at least as slow as 8-bit products of a precision.

    Tables of 8-bit products that were measured in a serving engine include its quantisation, which frameworks
    of training fuse or do separately (`clusim.workload.recipes`). The same product with scales per block, and
    the product of 16-bit operands, do more work.
    """
    name, table = measured_on(endpoint), products_of(endpoint, precision)
    if precision.gemm_bytes > 1 or table.kind not in ("fp8", "fp8-block"):
        return ()
    peak, wide_peak = (
        endpoint.peak_flops[precision.peak],
        endpoint.peak_flops["bf16"],
    )
    figures = {"fp8-block": (float(peak), 1.0), "bf16": (float(wide_peak), 2.0)}
    figures.pop(table.kind, None)
    tables = {
        kind: wider
        for kind in figures
        if (wider := find_table(name, kind)) is not None
    }
    return tuple(WiderProducts(tables[kind], *figures[kind]) for kind in tables)


def attention_of(endpoint: Endpoint, library: str = "") -> AttentionTable:
    """Return the fused attention measured on a chip or its family, by library or default.

    A library that was measured only elsewhere has the form measured there.
    """
    measured = measured_on(endpoint)
    places = [measured, *(name for name in shipped_files() if name != measured)]
    result = (
        table
        for name in places
        if (table := find_attention(name, library)) is not None
    )
    table = next(result, None)
    if table is None:
        names = {
            name
            for place in shipped_files().values()
            for name in load_file(place).attention
        }
        words = " or ".join(sorted(names))
        raise InputError(
            f"attention_library {library!r} was not measured; use {words}"
        )
    return table
