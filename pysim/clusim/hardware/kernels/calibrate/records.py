"""Measurements on a GPU and their record: launches, operators, products, attention, copies, memory, long runs.

`measure` asks a `Measurer` and needs no GPU itself; `clusim.hardware.kernels.calibrate.probe` is the device of PyTorch.
A record can be kept, sent and turned into a file of kernels elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from clusim.base.errors import InputError

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
"""Operators whose cost on the host is measured."""

MOVED = (1 << 20, 16 << 20, 256 << 20, 1 << 30)
"""Bytes that copies inside the GPU read."""

LONG = (8192, 8192, 8192)
"""The product of the long run."""


class Measurer(Protocol):
    """A GPU that can be asked."""

    def about(self) -> dict[str, Any]:
        """Return ``name`` as the driver prints it, ``measured`` (where and when), and what else is known."""

    def kinds(self) -> tuple[str, ...]:
        """Return the element types it multiplies: ``bf16``, ``fp8``."""

    def launch_us(self, *, graph: bool) -> float:
        """Return the distance of two empty kernels in a stream or in a graph [us]."""

    def operator_us(self, name: str) -> float:
        """Return the host time to issue an operator [us]."""

    def product_us(self, kind: str, shape: tuple[int, int, int]) -> float:
        """Return the time of a product of m x k with k x n in a short run [us]."""

    def attention_us(self, shape: tuple[int, int, int, int, bool], *, backward: bool) -> float:
        """Return the time of fused attention, forwards or backwards [us]."""

    def moved_us(self, size_bytes: int) -> float:
        """Return the time of a copy inside the GPU that reads a number of bytes [us]."""

    def copy_GBps(self, direction: str) -> float:
        """Return the rate of copies from (``from``) or to (``to``) pinned host memory [GB/s]."""

    def long_us(self, shape: tuple[int, int, int]) -> float:
        """Return the time of a product at the end of ten seconds of it [us]."""


def measure(device: Measurer, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Return the record of a device; `say` hears what is being measured."""
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
    record["copies"] = {way: device.copy_GBps(way) for way in ("from", "to")}
    record["memory"] = [{"bytes": size, "us": device.moved_us(size)} for size in MOVED]
    record["products"] = []
    for kind in device.kinds():
        say(f"{len(SHAPES)} products of {kind}")
        for m, n, k in SHAPES:
            took = device.product_us(kind, (m, n, k))
            record["products"].append({"kind": kind, "m": m, "n": n, "k": k, "us": took})
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
    record["long"] = {"m": m, "n": n, "k": k, "short_us": short, "long_us": device.long_us(LONG)}
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
    """Return a record that was read from a file called `name`; raises `InputError` if it is none."""
    if not isinstance(data, dict) or data.get("format") != RECORD:
        raise InputError(f"{name}: no record of a GPU of the format {RECORD!r}")
    gpu = data.get("gpu")
    if not isinstance(gpu, dict) or not isinstance(gpu.get("name"), str):
        raise InputError(f"{name}: 'gpu' does not say the name of the GPU")
    for key, numbers in _POSITIVE.items():
        _check(data.get(key), numbers, f"{name}: {key}")
    for key, numbers in _LISTS.items():
        rows = data.get(key)
        if not isinstance(rows, list) or not rows:
            raise InputError(f"{name}: {key!r} is no list of measurements")
        for index, row in enumerate(rows):
            where = f"{name}: {key}[{index}]"
            _check(row, numbers, where)
            for word, kind in _WORDS.get(key, {}).items():
                if not isinstance(row.get(word), kind):
                    raise InputError(f"{where}: {word} is {row.get(word)!r}; must be {_SAID[kind]}")
    return data


_WORDS: dict[str, dict[str, type]] = {
    "products": {"kind": str, "m": int, "n": int, "k": int},
    "attention": {
        **dict.fromkeys(("batch", "heads", "tokens", "size"), int),
        **dict.fromkeys(("causal", "backward"), bool),
    },
}
_SAID = {str: "a word", int: "a whole number", bool: "true or false"}


def _check(row: Any, numbers: tuple[str, ...], where: str) -> None:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: is no mapping")
    for key in numbers:
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise InputError(f"{where}: {key} is {value!r}; must be a positive number")
