"""Hot loops, compiled by numba if it is installed; imported only for long loops.

Without numba the same loops run in Python, about a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from clusim.analysis import loops

Loop = TypeVar("Loop", bound=Callable[..., Any])


def _compiled(loop: Loop) -> Loop:
    """Return a compiled loop, or the loop unchanged without numba."""
    try:
        from numba import njit
    except ModuleNotFoundError:
        return loop
    return cast(Loop, njit(cache=True)(loop))


slice_table = _compiled(loops.slice_table)
count_spans = _compiled(loops.count_spans)
