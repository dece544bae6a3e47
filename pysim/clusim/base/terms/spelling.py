"""Normalised spelling of words."""

from __future__ import annotations


def plain(word: str) -> str:
    """Return a word in lower case and without separators: ``All-Reduce``, ``ALL_REDUCE`` are ``allreduce``."""
    return word.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
