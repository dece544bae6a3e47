"""Arguments of collective operators in the PyTorch profiler: operation, group, size, element type."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import operation_starting
from clusim.formats.recordings.jsonstream import integer, integers, list_of

_OPERATORS = ("c10d::", "_c10d_functional::", "c10d_functional::")
_OUTPUT_FIRST = re.compile(
    r"^(?:_?all_?gather|_?reduce_?scatter|all_?to_?all|alltoall|gather|scatter)",
    re.IGNORECASE,
)
"""Operators of ``c10d`` with the output as first argument and the input as second."""

_NUMBERS = {
    "broadcast": ("Root", 2), "reduce": ("Root", 3), "gather": ("Root", 3), "scatter": ("Root", 3), "send": ("Rank", 2),
    "recv": ("Rank", 2),
}  # fmt: skip
"""Operators of ``c10d`` -> meaning and position of an integer among their arguments."""

SIZES = ("In msg nelems", "Out msg nelems")


def call_arguments(name: str, args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call, named as in newer releases, from a host operation.

    None if the operation is not a call.
    """
    if name == "record_param_comms":
        return (
            args
            if has_collective(args) or has_size(args)
            else _parse_comms_arguments(args)
        )
    if name.startswith("nccl:"):
        result = _sizes(_dims(args)[:1] or [args.get("Input Dims")], args)
        return (
            result | {"Collective name": name.removeprefix("nccl:")}
            if result
            else None
        )
    word = next(
        (name.removeprefix(front) for front in _OPERATORS if name.startswith(front)),
        "",
    )
    if not word or word.startswith("wait") or not operation_of(word):
        return None
    inputs, dims = list_of(args.get("Concrete Inputs")), _dims(args)
    result = {"Collective name": word}
    if not name.startswith("c10d::"):
        group = inputs[-1] if inputs else ""
        result |= (
            {"Process Group Name": group} if isinstance(group, str) and group else {}
        )
        return result | _sizes(dims[:1], args)
    operation = operation_of(word)
    key, at = _NUMBERS.get(operation, ("", 0))
    number = integer(inputs[at], 1 << 20) if key and at < len(inputs) else None
    if number is not None:
        result[key] = number
    output_first = _OUTPUT_FIRST.match(word) is not None
    return result | _sizes(
        [dims[1], dims[0]] if output_first and len(dims) > 1 else dims[:1], args
    )


def _parse_comms_arguments(args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a ``record_param_comms`` without metadata.

    These are the shapes of its input, and the name if it is recorded.
    """
    name = next(
        (
            word
            for word in list_of(args.get("Concrete Inputs"))
            if operation_of(word)
        ),
        None,
    )
    result = _sizes(_dims(args)[:1], args)
    return result | ({"Collective name": name} if name else {}) or None


def _dims(args: dict[str, Any]) -> list[Any]:
    """Return the shapes of the arguments of an operation."""
    return list_of(args.get("Input Dims", args.get("Input dims")))


def _sizes(dims: list[Any], args: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of input and output from their shapes; empty if unknown."""
    counts = [_elements(item) for item in dims]
    if not counts or not counts[0]:
        return {}
    kind = next(
        (word for word in list_of(args.get("Input type")) if _is_type(word)), ""
    )
    result = (
        dict(zip(SIZES, counts, strict=False))
        if all(counts)
        else {SIZES[0]: counts[0]}
    )
    return result | {"shapes": True} | ({"dtype": kind} if kind else {})


def _is_type(word: Any) -> bool:
    return isinstance(word, str) and find_dtype(word) is not None


def _elements(dims: Any, depth: int = 0) -> int:
    """Return the total number of elements of tensors in nested lists of dimensions."""
    if not dims or depth > 4:
        return 0
    numbers = integers(dims, 1 << 40)
    limit = 1 << 50
    if numbers is not None:
        return reduce(lambda product, item: min(product * item, limit), numbers, 1)
    return min(sum(_elements(item, depth + 1) for item in list_of(dims)), limit)


def has_collective(args: dict[str, Any]) -> bool:
    """Return True if arguments contain a known collective or message."""
    return bool(operation_of(args.get("Collective name")))


def has_size(args: dict[str, Any]) -> bool:
    """Return True if arguments contain a size, or are those of a barrier."""
    barrier = operation_of(args.get("Collective name")) == "barrier"
    return barrier or any(integer(args.get(key)) is not None for key in SIZES)


def operation_of(name: Any) -> str:
    """Return the operation of a name, or ``send`` or ``recv``; empty if unknown."""
    lower = name.lower() if isinstance(name, str) else ""
    message = next((kind for kind in ("send", "recv") if lower.startswith(kind)), "")
    return message or operation_starting(name)
