"""Measured matrix products and attention by chip, element type and library.

A file is written by ``benchmarks/fit_products.py`` and ``benchmarks/fit_attention.py``, or by ``clusim
calibrate gpu``. It contains the place of measurement, a `Form` for every element type and library, the
residual `Ratios`, and a `FusedForm` for every library of attention. Forms and ratios apply to all chips
of the architecture, with each chip's figures, because kernels of a library are written for an
architecture. Other architectures use only the forms.

Ratios are measured over computed times on a grid of shapes. They are interpolated in their logarithm,
linearly in the logarithms of m, n and k. Beyond the grid the nearest ratio on its edge is used, so that
the form decides how times grow there.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import exp, log2
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError, suggest
from clusim.base.limits import json_problem
from clusim.hardware.kernels.fused import Fused, FusedForm, fused_s
from clusim.hardware.kernels.products import Form, Product, Silicon, product_s

STEP = 0.02
"""Unit of the stored logarithms of ratios, which are bytes."""


@dataclass(frozen=True)
class Ratios:
    """Ratios on a grid.

    Attributes
    ----------
    knots : tuple of tuple of int
        Values of m, n and k, rising.
    packed : str
        Their logarithms in units of `STEP`, m slowest, along k each against the one before it, a signed byte each;
        compressed by zlib, in base64.
    """

    knots: tuple[tuple[int, ...], ...]
    packed: str

    @cached_property
    def _values(self) -> NDArray[np.int8]:
        shape = tuple(len(axis) for axis in self.knots)
        raw = zlib.decompress(base64.b64decode(self.packed))
        if len(raw) != int(np.prod(shape)):
            raise InputError(
                f"table of products: {len(raw)} ratios for a grid of {shape}"
            )
        return np.cumsum(
            np.frombuffer(raw, np.int8).reshape(shape), axis=-1, dtype=np.int8
        )

    def at(self, m: float, n: float, k: float) -> float:
        """Return measured / computed at a shape."""
        places = [
            _place(axis, value)
            for axis, value in zip(self.knots, (m, n, k), strict=True)
        ]
        total = 0.0
        for corner in product((0, 1), repeat=3):
            weight, index = 1.0, []
            for (low, share), side in zip(places, corner, strict=True):
                weight *= share if side else 1.0 - share
                index.append(low + side)
            if weight:
                total += weight * int(self._values[tuple(index)])
        return exp(total * STEP)


def _place(axis: tuple[int, ...], value: float) -> tuple[int, float]:
    """Return the knot left of a value, and how far on it is towards the next, in logarithms."""
    clamped = min(max(value, axis[0]), axis[-1])
    index = min(bisect_right(axis, clamped) - 1, len(axis) - 2)
    low, high = log2(axis[index]), log2(axis[index + 1])
    return index, (log2(clamped) - low) / (high - low)


def pack(logarithms: NDArray[np.float64]) -> str:
    """Return the text that `Ratios` has of logarithms of ratios on a grid."""
    units = np.clip(np.round(logarithms / STEP), -127, 127).astype(np.int8)
    # Differences may wrap around; the sums that invert them wrap as well.
    steps = np.diff(units, axis=-1, prepend=np.int8(0))
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode("ascii")


FORMAT = "clusim-kernels-1"
"""Format mark of a file."""

_FOLDER = Path(__file__).parent / "measured"


@dataclass(frozen=True)
class ProductTable:
    """Products of one element type by one library on one chip.

    Attributes
    ----------
    chip, architecture : str
        Place of measurement.
    kind, library : str
        Element type of the operands (``bf16``, ``fp8``, ``fp8-block``, ``nvfp4``), and kernel library.
    form : Form
        Fitted form.
    ratios : Ratios or None
        Residual ratios, if known.
    """

    chip: str
    architecture: str
    kind: str
    library: str
    form: Form
    ratios: Ratios | None = None

    def time_s(
        self, chip: Silicon, product: Product, sizes: tuple[float, float]
    ) -> float:
        """Return the time of a product on a GPU of the same architecture [s]."""
        result = product_s(self.form, chip, product, sizes)
        if self.ratios is None:
            return result
        return result * self.ratios.at(
            product.batch * product.m, product.n, product.k
        )


@dataclass(frozen=True)
class AttentionTable:
    """Fused attention by one library on one chip.

    Attributes
    ----------
    library : str
        ``flash2``, ``flash3``, ``cudnn``, ``flashinfer``.
    forward, backward : FusedForm
        Fitted forms. Without a measured backward pass, `backward` is the forward form.
    long : bool
        True if measured in long loops, at the sustained clock.
    """

    library: str
    forward: FusedForm
    backward: FusedForm
    long: bool = False

    def time_s(self, chip: Silicon, fused: Fused, element_bytes: int = 2) -> float:
        """Return the time on a GPU [s]."""
        form = self.backward if fused.backward else self.forward
        return fused_s(form, chip, fused, element_bytes)


@dataclass(frozen=True)
class KernelFile:
    """Content of a file of measured kernels.

    Attributes
    ----------
    products : mapping
        By element type and library, the default library of a type first.
    attention : mapping
        By library, the default first.
    figures : mapping
        Replacements of chip figures:``memory_efficiency``, ``sustained``, ``kernel_floor_us``.
    """

    products: dict[tuple[str, str], ProductTable]
    attention: dict[str, AttentionTable]
    figures: dict[str, float]


def shipped_files() -> dict[str, Path]:
    """Return the shipped files by chip."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.json"))}


@lru_cache
def load_file(path: Path) -> KernelFile:
    """Return the content of a file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: no table of kernels: {json_problem(error)}"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path}: no table of kernels of the format {FORMAT!r}")
    try:
        figures = {
            key: float(value) for key, value in data.get("figures", {}).items()
        }
        return KernelFile(_products(data), _attention(data), figures)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged table of kernels: {error!r}") from error


def _products(data: dict[str, Any]) -> dict[tuple[str, str], ProductTable]:
    result = {}
    knots = tuple(
        tuple(int(value) for value in data["knots"][axis]) for axis in "mnk"
    )
    for row in data["products"]:
        packed = row.get("ratios")
        ratios = Ratios(knots, str(packed)) if packed else None
        form = Form.of(row["form"])
        key = str(row["kind"]), str(row["library"])
        result[key] = ProductTable(
            str(data["chip"]), str(data["architecture"]), *key, form, ratios
        )
    return result


def _attention(data: dict[str, Any]) -> dict[str, AttentionTable]:
    result = {}
    for row in data.get("attention", ()):
        forward = FusedForm.of(row["forward"])
        backward = FusedForm.of(row.get("backward", row["forward"]))
        name = str(row["library"])
        result[name] = AttentionTable(name, forward, backward, bool(row.get("long")))
    return result


def _file(name: str) -> KernelFile:
    """Return the shipped file of a chip, or the file at a path (with a ``/`` or ``.json``)."""
    if "/" in name or name.endswith(".json"):
        return load_file(Path(name))
    shipped = shipped_files()
    if name not in shipped:
        raise InputError(
            f"no kernels were measured on {name!r}{suggest(name, shipped)}"
        )
    return load_file(shipped[name])


def find_table(name: str, kind: str, library: str = "") -> ProductTable | None:
    """Return the products of an element type; None if they were not measured.

    An empty `library` is the default one.

    Parameters
    ----------
    name : str
        A chip with a shipped file, or the path of a file (with a ``/`` or ``.json``).
    """
    for (element, table_kind), table in _file(name).products.items():
        if element == kind and library in ("", table_kind):
            return table
    return None


def find_figures(name: str) -> dict[str, float]:
    """Return the parameters of a file that replace those of the GPU."""
    return _file(name).figures


def find_attention(name: str, library: str = "") -> AttentionTable | None:
    """Return the fused attention of a library (default if empty); None if not measured."""
    for kind, table in _file(name).attention.items():
        if library in ("", kind):
            return table
    return None
