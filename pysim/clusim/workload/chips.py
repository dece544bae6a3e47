"""Chips of kernels: peaks and clock of a GPU, and its measured tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clusim.base.errors import InputError
from clusim.base.units import parse_time
from clusim.hardware import FAMILIES, GPUS, Architecture, Gpu
from clusim.hardware.kernels.fused import Power, kept_clock, vector_clock_Hz
from clusim.hardware.kernels.measured_tables import (
    AttentionTable,
    ProductTable,
    find_attention,
    find_figures,
    find_table,
    load_file,
    shipped_files,
)
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.topology.node import Endpoint
from clusim.workload.kernels import (
    PRECISIONS,
    Chip,
    Precision,
    WiderProducts,
    workspace_bytes,
)
from clusim.workload.spec import HardwareSpec


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
