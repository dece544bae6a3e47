"""Matrix products on tensor cores: time by tiles, waves and memory traffic.

**Hardware** A product of m x k with k x n is cut into tiles of the output. An SM computes one tile at a
time: it fills a pipeline, steps through k, and writes the tile. Tiles beyond the SMs wait for the next
wave. If there are fewer tiles than SMs, libraries cut k as well (split-K) and add up the parts, which
move through memory once more. Operands come from memory once and from L2 for every tile that uses them;
a few SMs cannot saturate it.
**Model** For every tile shape and every cut of k: waves x (start of a tile + its arithmetic + writing
it), against the bytes of memory and the bytes of L2; the three overlap as their p-norm. The fastest
choice is used, because the heuristics of libraries are tuned for it. A launch precedes it.
**Not modelled** The kernel that a release's heuristic selects, layouts of the operands, alignment,
sparse products.
**Parameters** `Form`: fitted by architecture, element type and library to measured products
(`clusim.hardware.kernels.measured_tables`, with the residual ratios).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

_HALF = ((256, 128), (256, 64), (128, 64), (128, 32), (64, 32), (64, 16), (128, 16))
TILES = (*_HALF, *((n, m) for m, n in _HALF), (128, 128), (64, 64))
"""Rows and columns of a tile of the output."""

SPLITS = (1, 2, 4, 8, 16, 32)
"""Parts that the inner dimension may be cut into."""

LEAST_PART = 64
"""Least inner dimension of such a part."""

STEP = 32
"""Inner dimension of one step of a tile."""

_CHOICES = np.array(
    [(rows, columns, parts) for rows, columns in TILES for parts in SPLITS], float
)


@dataclass(frozen=True, slots=True)
class Product:
    """Batch of `batch` matrix products of m x k with k x n.

    In a forward pass m are tokens, k input and n output features.

    Attributes
    ----------
    fresh : float
        Part of operands and output that memory moves: less than 1 where a convolution reads a pixel once for
        all places of its window.
    """

    batch: int
    m: int
    n: int
    k: int
    fresh: float = 1.0


@dataclass(frozen=True, slots=True)
class Silicon:
    """Parameters of a GPU for matrix products.

    Attributes
    ----------
    sms : int
        Streaming multiprocessors; each computes one tile at a time.
    flops : float
        Rate of the largest products at the element type [FLOP/s].
    memory_Bps : float
        Achievable memory rate [B/s].
    """

    sms: int
    flops: float
    memory_Bps: float


@dataclass(frozen=True, slots=True)
class Form:
    """Efficiency of an architecture and a library in matrix products.

    Attributes
    ----------
    start_us : float
        From the launch to the first tile, and the end of the kernel [us].
    rate : float
        Arithmetic rate within a large tile, relative to the largest products.
    memory : float
        Memory rate of products, relative to the achievable rate.
    tile_us : float
        Filling and draining the pipeline of a tile [us].
    l2 : float
        L2 rate, relative to the memory rate.
    spread : float
        Fraction of SMs that must load to saturate memory.
    store : float
        Rate at which an SM writes an output tile after its arithmetic, relative to its share of the memory
        rate.
    sharp : float
        Order of the norm by which arithmetic, memory and L2 overlap: 1 one after the other, large the
        longest only.
    whole : float
        Part of the last wave that waits for its slowest tile: 1 a complete wave, 0 tiles are spread
        (stream-K).
    split_us : float
        A further step for cut inner dimensions [us].
    half_tile : float
        Rows and columns x y / (x + y) of the tile at which an SM's arithmetic falls to 0.71 of its rate.
    """

    start_us: float
    rate: float
    memory: float
    tile_us: float
    l2: float
    spread: float
    store: float
    sharp: float
    whole: float
    split_us: float
    half_tile: float

    @classmethod
    def of(cls, values: dict[str, Any]) -> Form:
        """Return the form that a file has."""
        return cls(
            **{field.name: float(values[field.name]) for field in fields(cls)}
        )

    def at_clock(self, faster: float) -> Form:
        """Return the form at another clock; start and end times scale with clock cycles."""
        return replace(
            self,
            start_us=self.start_us / faster,
            tile_us=self.tile_us / faster,
            split_us=self.split_us / faster,
        )


def form_s(
    form: Form, chip: Silicon, shapes: Reals, sizes: tuple[float, float]
) -> Reals:
    """Return the times of products without `Ratios` [s].

    Parameters
    ----------
    shapes : array
        Rows of batch, m, n, k and the part that is fresh (`Product`).
    sizes : (float, float)
        Element of an operand and of the output [bytes].
    """
    batch, m, n, k, fresh = (
        column[:, None] for column in np.asarray(shapes, float).T
    )
    rows, columns, parts = _CHOICES.T
    operand, output = sizes
    blocks = batch * np.ceil(m / rows) * np.ceil(n / columns) * parts
    waves = blocks / chip.sms
    waves = np.maximum(1.0, form.whole * np.ceil(waves) + (1.0 - form.whole) * waves)
    fetched = rows * columns / (rows + columns)
    reached = (
        chip.flops / chip.sms * form.rate / np.hypot(1.0, form.half_tile / fetched)
    )
    steps = np.ceil(k / parts / STEP) * STEP
    store_s = rows * columns * output * chip.sms / (form.store * chip.memory_Bps)
    arithmetic = waves * (
        form.tile_us * 1e-6 + 2 * rows * columns * steps / reached + store_s
    )
    moved = fresh * batch * (operand * (m * k + k * n) + output * m * n)
    moved = moved + np.where(parts > 1, 8.0 * parts * batch * m * n, 0.0)
    busy = np.minimum(1.0, blocks / (form.spread * chip.sms))
    memory = moved / (form.memory * chip.memory_Bps * busy)
    reread = batch * m * n * k * operand * (1 / rows + 1 / columns)
    inside = reread / (form.l2 * chip.memory_Bps)
    combined_s = _norm(form.sharp, arithmetic, memory, inside)
    allowed = (parts == 1) | (k / parts >= LEAST_PART)
    time_s = np.where(
        allowed, combined_s + np.where(parts > 1, form.split_us * 1e-6, 0.0), np.inf
    )
    result: Reals = form.start_us * 1e-6 + time_s.min(axis=1)
    return result


def _norm(order: float, *terms: Reals) -> Reals:
    largest = np.maximum(np.maximum(terms[0], terms[1]), terms[2])
    total: Reals = largest * sum((term / largest) ** order for term in terms) ** (
        1.0 / order
    )
    return total


@lru_cache(maxsize=65536)
def product_s(
    form: Form, chip: Silicon, product: Product, sizes: tuple[float, float]
) -> float:
    """Return the time of one product without `Ratios` [s]."""
    shape = np.array(
        [[product.batch, product.m, product.n, product.k, product.fresh]]
    )
    return float(form_s(form, chip, shape, sizes)[0])
