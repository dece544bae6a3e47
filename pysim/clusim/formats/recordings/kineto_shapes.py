"""Sizes of collectives from the shapes of PyTorch operations (``record_shapes=True``).

If kernels and ``record_param_comms`` do not contain sizes, as in older releases, the host operations around a launch
do: ``c10d::allreduce_``, ``_c10d_functional::all_gather_into_tensor``, ``nccl:all_reduce``, or ``record_param_comms``
itself. Each has a part of the information: `told` converts one to the arguments of newer releases, and `joined`
combines those of one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from clusim.base.terms.dtypes import find_dtype
from clusim.base.terms.operations import operation_starting
from clusim.formats.recordings.source import integer

_OPERATORS = ("c10d::", "_c10d_functional::", "c10d_functional::")
_OUTPUT_FIRST = re.compile(
    r"^(?:_?all_?gather|_?reduce_?scatter|all_?to_?all|alltoall|gather|scatter)", re.IGNORECASE
)
"""Operators of ``c10d`` with the output as first argument and the input as second."""

_NUMBERS = {
    "broadcast": ("Root", 2), "reduce": ("Root", 3), "gather": ("Root", 3), "scatter": ("Root", 3), "send": ("Rank", 2),
    "recv": ("Rank", 2),
}  # fmt: skip
"""Operators of ``c10d`` -> meaning and position of an integer among their arguments."""

_SIZES = ("In msg nelems", "Out msg nelems")
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+?)(?:_|\(|$)")
_KERNEL_TYPE = re.compile(
    r"_(f16|bf16|f32|f64|f8e4m3|f8e5m2|[iu](?:8|32|64)|half|float|double|__nv_bfloat16)(?:_|\(|$)"
)


def told(name: str, args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call, named as in newer releases, from a host operation.

    None if the operation is not a call.
    """
    if name == "record_param_comms":
        return args if named(args) or sized(args) else _recorded(args)
    if name.startswith("nccl:"):
        result = _sizes(_dims(args)[:1] or [args.get("Input Dims")], args)
        return result | {"Collective name": name.removeprefix("nccl:")} if result else None
    word = next((name.removeprefix(front) for front in _OPERATORS if name.startswith(front)), "")
    if not word or word.startswith("wait") or not (message_of(word) or operation_starting(word)):
        return None
    concrete = args.get("Concrete Inputs")
    given = concrete if isinstance(concrete, list) else []
    dims = _dims(args)
    result = {"Collective name": word}
    if not name.startswith("c10d::"):
        group = given[-1] if given else ""
        result |= {"Process Group Name": group} if isinstance(group, str) and group else {}
        return result | _sizes(dims[:1], args)
    operation = message_of(word) or operation_starting(word)
    key, at = _NUMBERS.get(operation, ("", 0))
    number = integer(given[at], 1 << 20) if key and at < len(given) else None
    if number is not None:
        result[key] = number
    output_first = _OUTPUT_FIRST.match(word) is not None
    return result | _sizes([dims[1], dims[0]] if output_first and len(dims) > 1 else dims[:1], args)


def _recorded(args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a ``record_param_comms`` without metadata.

    These are the shapes of its input, and the name if it is recorded.
    """
    concrete = args.get("Concrete Inputs")
    words = concrete if isinstance(concrete, list) else []
    name = next((word for word in words if message_of(word) or operation_starting(word)), None)
    result = _sizes(_dims(args)[:1], args)
    return result | ({"Collective name": name} if name else {}) or None


def _dims(args: dict[str, Any]) -> list[Any]:
    """Return the shapes of the arguments of an operation."""
    dims = args.get("Input Dims", args.get("Input dims"))
    return dims if isinstance(dims, list) else []


def _sizes(dims: list[Any], args: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of input and output from their shapes; empty if unknown."""
    counts = [_elements(item) for item in dims]
    if not counts or not counts[0]:
        return {}
    types = args.get("Input type")
    kind = next((word for word in types if _is_type(word)), "") if isinstance(types, list) else ""
    result = dict(zip(_SIZES, counts, strict=False)) if all(counts) else {_SIZES[0]: counts[0]}
    return result | {"shapes": True} | ({"dtype": kind} if kind else {})


def _is_type(word: Any) -> bool:
    return isinstance(word, str) and find_dtype(word) is not None


def _elements(dims: Any, depth: int = 0) -> int:
    """Return the total number of elements of tensors in nested lists of dimensions."""
    if not isinstance(dims, list) or depth > 4:
        return 0
    numbers = [integer(item, 1 << 40) for item in dims]
    if dims and all(item is not None for item in numbers):
        product = 1
        for item in numbers:
            product = min(product * (item or 0), 1 << 50)
        return product
    return min(sum(_elements(item, depth + 1) for item in dims), 1 << 50)


@lru_cache(4096)
def of_kernel(name: str) -> tuple[str, str]:
    """Return the operation and element type in the name of an NCCL kernel; empty if unknown.

    Only reductions have an element type, other operations move bytes. Messages are not operations.
    """
    kernel = _KERNEL.search(name)
    operation = operation_starting(kernel[1]) if kernel else ""
    kind = _KERNEL_TYPE.search(name)
    reduces = operation in ("allreduce", "reduce", "reduce_scatter")
    return operation, (kind[1].removeprefix("__nv_") if kind and reduces else "")


def named(args: dict[str, Any]) -> bool:
    """Return True if arguments contain a known collective or message."""
    name = args.get("Collective name")
    return bool(message_of(name) or _operation(name))


def sized(args: dict[str, Any]) -> bool:
    """Return True if arguments contain a size, or are those of a barrier."""
    barrier = _operation(args.get("Collective name")) == "barrier"
    return barrier or any(integer(args.get(key)) is not None for key in _SIZES)


def _operation(name: Any) -> str:
    return operation_starting(name.lstrip("_")) if isinstance(name, str) else ""


def message_of(name: Any) -> str:
    """Return ``send`` or ``recv`` for the name of a message, otherwise an empty string."""
    lower = name.lower() if isinstance(name, str) else ""
    return "send" if lower.startswith("send") else "recv" if lower.startswith("recv") else ""


def _kind(args: dict[str, Any]) -> str:
    """Return the operation or message kind of arguments."""
    name = args.get("Collective name")
    return message_of(name) or _operation(name)


def joined(kernel: str, own: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the combined arguments of a kernel and of the calls around its launch.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    own : dict
        Arguments of the kernel.
    others : iterable of dict
        Arguments of the calls, the nearest first; a call of another operation than those before is skipped.
    """
    result = {key: value for key, value in own.items() if key not in ("External id", "correlation")}
    by_name, kind = of_kernel(kernel)
    for args in others:
        here, before = _kind(args), _kind(result)
        if here and before and here != before:
            continue
        have_sizes = sized(result)
        for key, value in args.items():
            if key not in _SIZES or not have_sizes:
                result.setdefault(key, value)
    if not named(result) and by_name and sized(result):
        result["Collective name"] = by_name
    if kind and find_dtype(str(result.get("dtype"))) is None:
        result["dtype"] = kind
    return result
