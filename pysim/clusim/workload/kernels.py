"""Kernels and what they take on a chip: the roofline with achievable fractions.

**Hardware** and **Model** see `clusim.hardware.compute`. A kernel takes the longer of its arithmetic and its memory
traffic, and never less than the time between two launches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Literal

from clusim.errors import InputError
from clusim.fabric.arrays import arrays_of
from clusim.fabric.model import Fabric
from clusim.hardware import FAMILIES, compute
from clusim.units import parse_time
from clusim.vocabulary.dtypes import DTYPES
from clusim.workload.spec import HardwareSpec

__all__ = ["PRECISIONS", "Chip", "Gemm", "Kernel", "Part", "Precision", "chip_of"]

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
    """

    name: str
    peak: str
    bytes: int
    gemm_bytes: int
    dtype: str


def _precision(name: str, held: str, multiplied: str = "") -> Precision:
    """Return the formats of a run that holds one element type and multiplies another, by default the same."""
    kept, factor = DTYPES[held], DTYPES[multiplied or held]
    return Precision(name, factor.peak, kept.size_bytes, factor.size_bytes, kept.name)


PRECISIONS = {
    item.name: item
    for item in (
        _precision("bf16", "bfloat16"),
        _precision("fp16", "float16"),
        _precision("fp8", "bfloat16", "float8e4m3"),
        _precision("fp32", "float32"),
    )
}
"""``fp8`` multiplies 8-bit operands and keeps activations, weights and messages in bf16."""


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
        Floating-point operations it executes; memory traffic [bytes].
    gemm : Gemm or None
        Shape, if it is a matrix product.
    fused : bool
        Fused attention, which reaches less of the peak.
    core : bool
        Part of the attention core, which selective recomputation repeats.
    expert : bool
        Its work grows with the load of the rank's experts.
    useful : int
        Operations that utilisation counts, if they differ from `flops` (a causal kernel skips half of them); -1 is
        alike.
    """

    name: str
    flops: int = 0
    bytes: int = 0
    gemm: Gemm | None = None
    fused: bool = False
    part: Part = "forward"
    core: bool = False
    expert: bool = False
    useful: int = -1

    @property
    def counted_flops(self) -> int:
        """Operations that model utilisation counts."""
        return self.flops if self.useful < 0 else self.useful

    def as_part(self, part: Part) -> Kernel:
        """Return the same kernel in another part of the step."""
        return replace(self, part=part)


LEAST_SPLIT = 512
"""Least inner dimension of the parts of a matrix product that is cut along it."""


@dataclass(frozen=True)
class Chip:
    """What kernels can expect of a GPU.

    Attributes
    ----------
    peak_flops : float
        Dense peak at the run's precision [FLOP/s].
    gemm_fraction, attention_fraction : float
        Part of it that matrix products and fused attention reach.
    memory_Bps : float
        Memory rate that can be reached [B/s].
    memory_bytes : int
        Size of its memory [bytes]; 0 is unknown.
    floor_ps : int
        Least time of a kernel [ps].
    sustained : float
        What kernels reach of these in a long run.
    """

    name: str
    sms: int
    peak_flops: float
    gemm_fraction: float
    attention_fraction: float
    memory_Bps: float
    memory_bytes: int
    floor_ps: int
    sustained: float = 1.0

    @cached_property
    def _tiles(self) -> list[tuple[int, int, float]]:
        table = compute.GEMM_TILES.value
        assert isinstance(table, dict)
        found: list[tuple[int, int, float]] = []
        for name, rate in table.items():
            rows, columns = map(int, name.split("x"))
            found += [(*shape, float(rate)) for shape in {(rows, columns), (columns, rows)}]
        return sorted(found)

    def gemm_efficiency(self, gemm: Gemm) -> float:
        """Return the part of the peak that a matrix product of this shape reaches.

        Products with fewer tiles than SMs are cut along the inner dimension (split-K), as libraries do for the weight
        gradients of convolutions.
        """
        ramp = compute.GEMM_RAMP.value
        assert isinstance(ramp, int)
        best = 0.0
        for rows, columns, rate in self._tiles:
            tiles = gemm.batch * ceil(gemm.m / rows) * ceil(gemm.n / columns)
            splits = max(1, min(self.sms // tiles, gemm.k // LEAST_SPLIT))
            waves = ceil(tiles * splits / self.sms)
            filled = gemm.batch * gemm.m * gemm.n * splits / (waves * self.sms * rows * columns)
            best = max(best, rate * filled * gemm.k / (gemm.k + ramp * splits))
        return self.gemm_fraction * best

    def arithmetic_s(self, kernel: Kernel) -> float:
        """Return what the arithmetic of a kernel takes [s]."""
        if not kernel.flops:
            return 0.0
        fraction = self.attention_fraction if kernel.fused else self.gemm_fraction
        if kernel.gemm is not None:
            fraction = self.gemm_efficiency(kernel.gemm)
        return kernel.flops / (self.peak_flops * fraction)

    def time_ps(self, kernel: Kernel) -> int:
        """Return what a kernel takes when it has the chip for itself [ps]."""
        seconds = max(kernel.bytes / self.memory_Bps, self.arithmetic_s(kernel))
        return max(self.floor_ps, round(seconds / self.sustained * 1e12))


def chip_of(
    fabric: Fabric,
    precision: Precision,
    hardware: HardwareSpec | None = None,
) -> Chip:
    """Return the chip of a fabric's first GPU; `hardware` replaces figures of the presets."""
    own = hardware or HardwareSpec()
    node = fabric.nodes[arrays_of(fabric).node_of(0)]
    endpoint = node.endpoint
    assert endpoint is not None, "ranks are endpoints"
    peak = endpoint.peak_flops.get(precision.peak)
    if peak is None:
        known = [name for name, item in PRECISIONS.items() if item.peak in endpoint.peak_flops]
        raise InputError(
            f"precision {precision.name}: {endpoint.chip or node.name} has no rate for it; use"
            f" {' or '.join(known) or 'another chip'}"
        )
    family = FAMILIES[endpoint.architecture]
    fused = family.attention_fraction.value
    lasting = compute.SUSTAINED.value
    assert isinstance(fused, float)
    assert isinstance(lasting, float)
    found = own.gemm_fraction or endpoint.gemm_fraction
    if not found:
        raise InputError(
            f"chip {endpoint.chip!r} of {node.name}: gemm_fraction is not known; give the chip a base, or the"
            " workload 'hardware: {gemm_fraction: 0.8}'"
        )
    return Chip(
        name=endpoint.chip,
        sms=endpoint.sms,
        peak_flops=float(peak),
        gemm_fraction=found,
        attention_fraction=own.attention_fraction or fused,
        memory_Bps=endpoint.mem_Bps * endpoint.mem_efficiency,
        memory_bytes=endpoint.mem_bytes if own.memory is None else own.memory,
        floor_ps=parse_time(str(family.kernel_floor.value)),
        sustained=own.sustained or lasting,
    )
