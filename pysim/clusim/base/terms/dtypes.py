"""Element types: their names in all tools, and their sizes."""

from __future__ import annotations

from clusim.base.errors import InputError, suggest
from clusim.base.records import dataclass

REDUCTIONS = ("sum", "prod", "max", "min", "avg")
"""Reductions in the order of NCCL's enumeration (nccl.h)."""


@dataclass(frozen=True, slots=True)
class DataType:
    """A type of elements.

    Attributes
    ----------
    name : str
        In clusim: ``float32``.
    size_bytes : int
        Size of an element [bytes].
    storage : str
        NumPy type of elements that programs compute with (bf16: uint16); empty if they do not compute with
        it.
    mantissa_bits : int
        Explicit mantissa bits; 0 for integers.
    nccl : int
        Number in NCCL's enumeration (nccl.h); -1 if it is missing there.
    short : str
        In names of NCCL's kernels: ``f32``.
    tables : tuple of str
        In tables of nccl-tests, ``float``; the name in the current release first.
    others : tuple of str
        Further spellings in lower case, without prefixes like ``torch.``.
    moves_as : str
        Type of the programs that move it; empty if it is the same.
    """

    name: str
    size_bytes: int
    storage: str = ""
    mantissa_bits: int = 0
    nccl: int = -1
    short: str = ""
    tables: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    moves_as: str = ""

    @property
    def carrier(self) -> str:
        """Return the type of programs that move it."""
        return self.moves_as or self.name

    @property
    def peak(self) -> str:
        """Return the key of a chip's peak rates, empty if missing; bytes count as 8-bit floats."""
        if self.size_bytes == 1:
            return "f8"
        return self.short if self.mantissa_bits else ""


DTYPES: dict[str, DataType] = {
    item.name: item
    for item in (
        DataType("float64", 8, "<f8", 52, 8, "f64", ("double",), ("fp64",)),
        DataType("float32", 4, "<f4", 23, 7, "f32", ("float",), ("fp32", "tf32")),
        DataType("float16", 2, "<f2", 10, 6, "f16", ("half", "float16"), ("fp16",)),
        DataType("bfloat16", 2, "<u2", 7, 9, "bf16", ("bfloat16",)),
        DataType("int8", 1, "i1", 0, 0, "i8", ("int8", "char"), ("signed char",)),
        DataType("int32", 4, "<i4", 0, 2, "i32", ("int32", "int")),
        DataType("int64", 8, "<i8", 0, 4, "i64", ("int64",), ("long", "long int")),
        DataType("uint8", 1, "u1", 0, 1, "u8", ("uint8",), ("byte", "unsigned char")),
        DataType("uint32", 4, "<u4", 0, 3, "u32", ("uint32",)),
        DataType("uint64", 8, "<u8", 0, 5, "u64", ("uint64",)),
        DataType("float8e4m3", 1, "", 3, 10, "f8e4m3", ("f8e4m3", "fp8_e4m3", "fp8"), ("float8_e4m3fn",), "uint8"),
        DataType("float8e5m2", 1, "", 2, 11, "f8e5m2", ("f8e5m2", "fp8_e5m2"), ("float8_e5m2",), "uint8"),
        DataType("bool", 1, moves_as="uint8"),
        DataType("int16", 2, others=("short",), moves_as="uint8"),
        DataType("complex64", 8, others=("complexfloat",), moves_as="float32"),
        DataType("complex128", 16, others=("complexdouble",), moves_as="float64"),
    )
}  # fmt: skip
"""By clusim's name."""

BY_NUMBER = tuple(
    sorted(
        (item for item in DTYPES.values() if item.nccl >= 0),
        key=lambda item: item.nccl,
    )
)
"""NCCL's types by their number."""

IN_TABLES = {word: item for item in BY_NUMBER for word in item.tables}
"""Types by their names in tables of nccl-tests, in NCCL's order."""

_PREFIXES = ("nccl", "torch.", "at::", "c10::")
_BY_SPELLING = {
    word: item
    for item in DTYPES.values()
    for word in (item.name, item.short, *item.tables, *item.others)
    if word
}


def find_dtype(word: str) -> DataType | None:
    """Return the type in any spelling (``ncclFloat``, ``torch.float32``, ``f32``), else None."""
    short = word.strip().lower()
    for prefix in _PREFIXES:
        short = short.removeprefix(prefix)
    return _BY_SPELLING.get(short)


def own_dtype(word: str) -> str:
    """Return a type in clusim's spelling; unknown words are kept."""
    result = find_dtype(word)
    return result.name if result else word


def find_redop(word: str) -> str | None:
    """Return the reduction in any spelling (``SUM``, ``ncclSum``, ``Max``), else None."""
    short = word.strip().lower().removeprefix("nccl")
    return short if short in REDUCTIONS else None


_REDOPS_MEANT = {
    **dict.fromkeys(("add", "plus", "addition"), "sum"),
    **dict.fromkeys(("mul", "multiply", "times", "product"), "prod"),
    **{"mean": "avg", "average": "avg", "maximum": "max", "minimum": "min"},
}
"""Common mistaken words, and the intended reduction."""


def redop_named(word: str) -> str:
    """Return the reduction in any spelling; raise `InputError` for another word."""
    result = find_redop(word)
    if result is None:
        raise InputError(
            f"redop {word!r}: unknown{suggest(word, REDUCTIONS, _REDOPS_MEANT)}"
        )
    return result
