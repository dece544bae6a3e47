"""How much a piece of Python does and holds, as numbers that no other process on the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions, of Python or of C, are called while `function` runs."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def held_bytes(top: object) -> int:
    """Return what an object and all in it take, each once: tuples, dataclasses and plain values [bytes]."""
    found: dict[int, object] = {}
    waiting = [top]
    while waiting:
        item = waiting.pop()
        if id(item) in found:
            continue
        found[id(item)] = item
        if isinstance(item, tuple):
            waiting.extend(item)
        elif is_dataclass(item):
            waiting.extend(getattr(item, field.name) for field in fields(item))
    return sum(map(sys.getsizeof, found.values()))
