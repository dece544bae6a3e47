"""Sizes of collectives from the shapes of the PyTorch operations that launched them (``record_shapes=True``).

Before kernels and ``record_param_comms`` said their sizes, and where they do not today, the host's operations around a
launch do: ``c10d::allreduce_``, ``_c10d_functional::all_gather_into_tensor``, ``nccl:all_reduce``,
``record_param_comms`` itself. Each tells a part: `told` makes the arguments of the newer releases of what one of them
says, and `joined` puts together what several say of one call.
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
"""Operators of ``c10d`` whose first argument is the output, and whose second is the input."""

_NUMBERS = {
    "broadcast": ("Root", 2), "reduce": ("Root", 3), "gather": ("Root", 3), "scatter": ("Root", 3), "send": ("Rank", 2),
    "recv": ("Rank", 2),
}  # fmt: skip
"""Operators of ``c10d`` -> what a whole number among their arguments is, and its place."""

_SIZES = ("In msg nelems", "Out msg nelems")
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+?)(?:_|\(|$)")
_KERNEL_TYPE = re.compile(
    r"_(f16|bf16|f32|f64|f8e4m3|f8e5m2|[iu](?:8|32|64)|half|float|double|__nv_bfloat16)(?:_|\(|$)"
)


def told(name: str, args: dict[str, Any]) -> dict[str, Any] | None:
    """Return what an operation of the host says of a call, by the names of newer releases; None if it is none."""
    if name == "record_param_comms":
        return args if named(args) or sized(args) else _recorded(args)
    if name.startswith("nccl:"):
        found = _sizes(_dims(args)[:1] or [args.get("Input Dims")], args)
        return found | {"Collective name": name.removeprefix("nccl:")} if found else None
    word = next((name.removeprefix(front) for front in _OPERATORS if name.startswith(front)), "")
    if not word or word.startswith("wait") or not (message_of(word) or operation_starting(word)):
        return None
    concrete = args.get("Concrete Inputs")
    given = concrete if isinstance(concrete, list) else []
    dims = _dims(args)
    found = {"Collective name": word}
    if not name.startswith("c10d::"):
        group = given[-1] if given else ""
        found |= {"Process Group Name": group} if isinstance(group, str) and group else {}
        return found | _sizes(dims[:1], args)
    operation = message_of(word) or operation_starting(word)
    key, at = _NUMBERS.get(operation, ("", 0))
    number = integer(given[at], 1 << 20) if key and at < len(given) else None
    if number is not None:
        found[key] = number
    output_first = _OUTPUT_FIRST.match(word) is not None
    return found | _sizes([dims[1], dims[0]] if output_first and len(dims) > 1 else dims[:1], args)


def _recorded(args: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a ``record_param_comms`` without metadata says: the shapes of what is sent, perhaps the name."""
    concrete = args.get("Concrete Inputs")
    words = concrete if isinstance(concrete, list) else []
    name = next((word for word in words if message_of(word) or operation_starting(word)), None)
    found = _sizes(_dims(args)[:1], args)
    return found | ({"Collective name": name} if name else {}) or None


def _dims(args: dict[str, Any]) -> list[Any]:
    """Return the shapes of the arguments of an operation."""
    dims = args.get("Input Dims", args.get("Input dims"))
    return dims if isinstance(dims, list) else []


def _sizes(dims: list[Any], args: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes that shapes of what goes in, and of what comes out, say; nothing if they say none."""
    counts = [_elements(item) for item in dims]
    if not counts or not counts[0]:
        return {}
    types = args.get("Input type")
    kind = next((word for word in types if _is_type(word)), "") if isinstance(types, list) else ""
    found = dict(zip(_SIZES, counts, strict=False)) if all(counts) else {_SIZES[0]: counts[0]}
    return found | {"shapes": True} | ({"dtype": kind} if kind else {})


def _is_type(word: Any) -> bool:
    return isinstance(word, str) and find_dtype(word) is not None


def _elements(dims: Any, depth: int = 0) -> int:
    """Return the number of elements of all tensors of nested lists of dimensions."""
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
    """Return the operation and the element type that the name of a kernel of NCCL tells, empty if it does not.

    Only what reduces has a type of its own; all else is moved as bytes. Messages are no operation.
    """
    kernel = _KERNEL.search(name)
    operation = operation_starting(kernel[1]) if kernel else ""
    kind = _KERNEL_TYPE.search(name)
    reduces = operation in ("allreduce", "reduce", "reduce_scatter")
    return operation, (kind[1].removeprefix("__nv_") if kind and reduces else "")


def named(args: dict[str, Any]) -> bool:
    """Return True if arguments say which collective or message it is."""
    name = args.get("Collective name")
    return bool(message_of(name) or _operation(name))


def sized(args: dict[str, Any]) -> bool:
    """Return True if arguments say how much is sent; a barrier has nothing to say."""
    barrier = _operation(args.get("Collective name")) == "barrier"
    return barrier or any(integer(args.get(key)) is not None for key in _SIZES)


def _operation(name: Any) -> str:
    return operation_starting(name.lstrip("_")) if isinstance(name, str) else ""


def message_of(name: Any) -> str:
    """Return ``send`` or ``recv`` if a name is of one, else nothing."""
    lower = name.lower() if isinstance(name, str) else ""
    return "send" if lower.startswith("send") else "recv" if lower.startswith("recv") else ""


def _kind(args: dict[str, Any]) -> str:
    """Return the operation or message of arguments."""
    name = args.get("Collective name")
    return message_of(name) or _operation(name)


def joined(kernel: str, own: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return what a kernel and the calls around its launch say of it together.

    Parameters
    ----------
    kernel : str
        Its name.
    own : dict
        Its own arguments.
    others : iterable of dict
        Those of calls, the nearest first; one of another operation than the ones before is left out.
    """
    found = {key: value for key, value in own.items() if key not in ("External id", "correlation")}
    by_name, kind = of_kernel(kernel)
    for args in others:
        here, before = _kind(args), _kind(found)
        if here and before and here != before:
            continue
        have_sizes = sized(found)
        for key, value in args.items():
            if key not in _SIZES or not have_sizes:
                found.setdefault(key, value)
    if not named(found) and by_name and sized(found):
        found["Collective name"] = by_name
    if kind and find_dtype(str(found.get("dtype"))) is None:
        found["dtype"] = kind
    return found
