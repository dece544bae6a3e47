"""The slices an instance works through, in order (section 7, iteration)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusim.engine.abi import Mode
from clusim.engine.reference.arithmetic import ceil_div, round_up
from clusim.engine.reference.specs import InstanceSpec, PrimSpec


@dataclass(frozen=True, slots=True)
class InstanceStep:
    """One step of an instance; `number` is the primitive's index in the template, `slots` what it takes."""

    loop: int
    number: int
    prim: PrimSpec
    bytes: int
    slots: int


def loop_count(spec: InstanceSpec) -> int:
    """Return the number of loops of the instance through its template."""
    per_loop = spec.chunk_bytes
    if spec.template.mode == Mode.INTERLEAVED:
        per_loop *= spec.template.nchunks
    loops = ceil_div(spec.length, per_loop)
    return max(loops, 1) if any(prim.sync for prim in spec.template.prims) else loops


def slices(spec: InstanceSpec) -> Iterator[InstanceStep]:
    """Yield every slice that is not skipped."""
    for loop in range(loop_count(spec)):
        for number, prim in enumerate(spec.template.prims):
            for i in range(prim.repeat):
                sizes = _slice_sizes(spec, prim, _piece_bytes(spec, prim, i, loop))
                for place, size in enumerate(sizes):
                    slots = spec.slots_per_slice
                    if place == len(sizes) - 1 and not prim.sync:
                        slots *= spec.slices - place
                    yield InstanceStep(loop, number, prim, size, slots)


def _piece_bytes(spec: InstanceSpec, prim: PrimSpec, i: int, loop: int) -> int:
    template = spec.template
    q = (prim.base + prim.coef * spec.rotation + prim.step * i) % template.nchunks
    chunk = spec.chunk_bytes
    if template.mode == Mode.BLOCKED:
        lo = q * spec.stride + spec.offset + loop * chunk
        hi = min(lo + chunk, q * spec.stride + spec.offset + spec.length, spec.limit)
        return max(0, hi - lo)
    span = template.nchunks * chunk
    rem = spec.length - loop * span
    c = chunk
    if rem < span:
        c = min(chunk, round_up(ceil_div(rem, template.nchunks), spec.align))
    return min(max(min(rem, span) - q * c, 0), c)


def _slice_sizes(spec: InstanceSpec, prim: PrimSpec, piece_bytes: int) -> list[int]:
    if prim.sync:
        return [0]
    z = max(round_up(ceil_div(piece_bytes, spec.slices), 16), spec.slice_min)
    sizes = [min(max(piece_bytes - j * z, 0), z) for j in range(spec.slices)]
    return [size for size in sizes if size > 0]
