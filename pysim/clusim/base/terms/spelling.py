"""Normalised spelling of words."""

from __future__ import annotations


def plain(word: str) -> str:
    """Return a word in lower case without separators: ``allreduce`` for ``All-Reduce``."""
    return word.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
