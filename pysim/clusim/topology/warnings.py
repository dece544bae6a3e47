"""Doubts about a result, in the same words everywhere, with the option that settles them.

Who describes a machine notes the assumptions that decide every answer on it; files that do not name their GPUs are the
usual ones. They are kept in `Fabric.sources`, so that topology files hold them, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusim.base.errors import InputError
from clusim.topology.model import Fabric

_KEY = "doubt"


def key_of(number: int) -> str:
    """Return the name in `Fabric.sources` of the doubt of a number, from 0."""
    return f"{_KEY} {number + 1}" if number else _KEY


def doubts_of(fabric: Fabric) -> list[str]:
    """Return the doubts about a system, and the options that settle them."""
    keys = (name for name in fabric.sources if re.fullmatch(rf"{_KEY}(?: \d+)?", name))
    return [f"an assumption decides: {fabric.sources[name]}" for name in keys]


def shown(doubts: Iterable[str]) -> list[str]:
    """Return the first lines of what is printed."""
    return [f"doubt: {line}" for line in doubts]


def refuse(doubts: Iterable[str], where: str) -> None:
    """Raise `InputError` if there is any doubt, for those who asked for none; `where` is what it is about."""
    lines = [f"{where}: {line}" for line in doubts]
    if lines:
        raise InputError("\n".join(lines))
