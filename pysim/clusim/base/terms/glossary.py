"""Glossary of the terms in outputs and pages, from ``glossary.yaml``."""

from __future__ import annotations

from functools import cache
from importlib import resources

from clusim.base.errors import InputError, suggest

_HEAD = """\
<!-- Generated from pysim/clusim/base/terms/glossary.yaml by `make docs`. -->
# Glossary

Look up the terms of outputs and pages. `clusim glossary busbw` prints one.
"""


@cache
def glossary() -> dict[str, dict[str, str]]:
    """Return the definitions by group and term."""
    import yaml

    text = (
        resources.files("clusim.base.terms")
        .joinpath("glossary.yaml")
        .read_text("utf-8")
    )
    groups: dict[str, dict[str, str]] = yaml.safe_load(text)
    return groups


def find_terms(word: str) -> list[tuple[str, str]]:
    """Return the terms that contain a word, in any case, and their definitions; an equal term alone.

    Raises
    ------
    InputError
        No term contains it.
    """
    terms = {
        term: text for group in glossary().values() for term, text in group.items()
    }
    lowered = word.lower()
    equal = [
        (term, text)
        for term, text in terms.items()
        if lowered in term.lower().split(", ")
    ]
    matches = equal or [
        (term, text) for term, text in terms.items() if lowered in term.lower()
    ]
    if not matches:
        raise InputError(f"{word!r}: no such term{suggest(word, terms)}")
    return matches


def page() -> str:
    """Return docs/glossary.md."""
    parts = [_HEAD]
    for group, terms in glossary().items():
        rows = (f"| **{term}** | {text} |" for term, text in terms.items())
        parts.append(
            "\n".join(
                (f"## {group}", "", "| term | meaning |", "|---|---|", *rows, "")
            )
        )
    return "\n".join(parts)
