"""Cache of parsed texts that ranks write repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")

MOST_TEXTS = 1 << 12
"""Maximum number of cached texts of one kind."""

LONGEST = 256
"""Maximum length of a cached text [characters]."""


def remembered(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Cache a function of a text for recent short texts; results must not be modified.

    Ranks write mostly equal lines, and programs restart: three of four messages are repeats.
    """
    known = lru_cache(MOST_TEXTS)(parse)

    @wraps(parse)
    def look(text: str) -> T:
        return known(text) if len(text) <= LONGEST else parse(text)

    return look
