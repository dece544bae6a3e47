"""Texts that ranks write again and again: what is read of one is kept for the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

MOST_TEXTS = 1 << 12
"""Texts of one kind that are remembered."""

LONGEST = 256
"""Longest text that is remembered [characters]."""


def remembered(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let a function of a text, whose result nobody changes, remember the short texts it saw last.

    All ranks write most of their lines alike, and programs start again: three of four messages were there before.
    """
    known = lru_cache(MOST_TEXTS)(parse)

    @wraps(parse)
    def look(text: str) -> T:
        return known(text) if len(text) <= LONGEST else parse(text)

    return look
