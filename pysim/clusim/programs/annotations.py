"""Stated times of operators without a price: custom kernels, sorts, scans.

``clusim.torch`` in programs. Real GPUs ignore annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusim.base.errors import InputError
from clusim.base.units import parse_time
from clusim.programs.failures import program_line

Amount = int | float | Callable[..., int | float]
"""A number, or a function of the operator's arguments that returns it."""


@dataclass(frozen=True, slots=True)
class OperatorAnnotation:
    """Time [s], or floating-point operations and memory traffic [bytes] of an operator."""

    name: str
    time: Amount | None = None
    flops: Amount | None = None
    bytes: Amount | None = None

    def time_ps(self, args: Any, kwargs: Any) -> int | None:
        """Return the stated time for arguments [ps]; None if work is stated."""
        return (
            None
            if self.time is None
            else round(self._value("time", args, kwargs) * 1e12)
        )

    def work(self, args: Any, kwargs: Any) -> tuple[int, int]:
        """Return operations and memory traffic [bytes] for arguments."""
        flops, moved = (
            self._value(name, args, kwargs) for name in ("flops", "bytes")
        )
        return round(flops), round(moved)

    def _value(self, name: str, args: Any, kwargs: Any) -> float:
        amount = getattr(self, name)
        value = amount(*args, **kwargs) if callable(amount) else amount or 0
        if not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise InputError(
                f"annotation of {self.name}: {name} is {value!r}; must be a number >= 0"
            )
        return float(value)


_known: dict[str, OperatorAnnotation] = {}
_unused: dict[str, str] = {}
"""Annotated operators that were not called, and the lines of their annotations."""


def annotate(
    operator: Any,
    *,
    time: Amount | str | None = None,
    flops: Amount | None = None,
    bytes: Amount | None = None,
) -> None:
    """State the time or the work of an operator on a simulated GPU.

    Parameters
    ----------
    operator : str or operator
        Name with its name space (``"mylib::scan"``), ``torch.ops.mylib.scan``, or a function of
        ``torch.library.custom_op``.
    time : number, text or callable
        Time in isolation [s], a text with a unit (``"12us"``), or a function of the operator's arguments.
    flops, bytes : int or callable
        Floating-point operations and memory traffic [bytes], in place of the time: the longer of both on the GPU
        counts, also of other GPUs in replays.

    Raises
    ------
    InputError
        Time and work, an empty annotation, or an operator without a name.
    """
    name = _name(operator)
    if (time is None) == (flops is None and bytes is None):
        raise InputError(f"annotation of {name}: give time, or flops and bytes")
    seconds = parse_time(time) / 1e12 if isinstance(time, str) else time
    _known[name] = OperatorAnnotation(name, seconds, flops, bytes)
    _unused[name] = program_line()


def annotation_of(name: str) -> OperatorAnnotation | None:
    """Return the annotation of an operator by its name with name space, such as ``aten::sort``."""
    result = _known.get(name)
    if result is not None:
        _unused.pop(name, None)
    return result


def unused_annotations() -> dict[str, str]:
    """Return the annotated operators that were not called, with the lines of their annotations."""
    return dict(_unused)


def _name(operator: Any) -> str:
    schema = getattr(operator, "_schema", None)
    for name in (
        operator,
        getattr(schema, "name", None),
        getattr(operator, "_qualname", None),
        getattr(operator, "_qualified_op_name", None),
    ):
        if isinstance(name, str) and "::" in name:
            if "." in name:
                raise InputError(
                    f"annotation of {name}: is of all overloads; write {name.partition('.')[0]}"
                )
            return name
    raise InputError(
        f"annotation of {operator!r}: name the operator as NAMESPACE::NAME"
    )
