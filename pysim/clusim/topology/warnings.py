"""Doubts about a result, in the same words everywhere, with the option that settles them.

Readers of topologies record the assumptions that affect every result on them; files that do not name
their GPUs are the usual case. They are kept in `Fabric.sources`, so that topology files also contain
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusim.base.errors import InputError
from clusim.topology.model import Fabric

_KEY = "doubt"


def key_of(number: int) -> str:
    """Return the key in `Fabric.sources` of the doubt with a number, from 0."""
    return f"{_KEY} {number + 1}" if number else _KEY


def doubts_of(fabric: Fabric) -> list[str]:
    """Return the doubts about a system, and the options that settle them."""
    keys = (name for name in fabric.sources if re.fullmatch(rf"{_KEY}(?: \d+)?", name))
    return [f"an assumption decides: {fabric.sources[name]}" for name in keys]


def shown(doubts: Iterable[str]) -> list[str]:
    """Return the doubts as lines of output."""
    return [f"doubt: {line}" for line in doubts]


def refuse(doubts: Iterable[str], where: str) -> None:
    """Raise `InputError` if any doubt exists; `where` is its subject."""
    lines = [f"{where}: {line}" for line in doubts]
    if lines:
        raise InputError("\n".join(lines))
