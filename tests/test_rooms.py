"""The library only gets smaller: modules and lines of code per package may fall, and rise only on purpose."""

from __future__ import annotations

import pytest

from support.rooms import code_lines, limits, measured

SLACK = 20
"""Lines by which a limit may be above the present number."""


def test_every_package_has_a_limit() -> None:
    new, gone = measured().keys() - limits().keys(), limits().keys() - measured().keys()
    assert not new, f"{new} are new: add them to tests/rooms.json, and say why in the commit"
    assert not gone, f"{gone} are gone: run python tests/support/rooms.py"


@pytest.mark.parametrize("room", sorted(limits()))
def test_a_package_does_not_grow(room: str) -> None:
    """A rise needs its number changed in tests/rooms.json in the same commit, and a reason in its message."""
    modules, lines = measured()[room]
    most_modules, most_lines = limits()[room]
    assert modules <= most_modules, f"{room} has {modules} modules; at most {most_modules}"
    assert lines <= most_lines, f"{room} has {lines} lines of code; at most {most_lines}"
    smaller = most_modules > modules or most_lines - lines > SLACK
    assert not smaller, f"{room} has got smaller: run python tests/support/rooms.py"


def test_code_is_counted_without_blanks_comments_and_docstrings() -> None:
    text = '"""Module.\n\nMore.\n"""\n\nA = 1  # one\n"""Said of A."""\n\n\ndef f() -> str:\n'
    text += '    """Doc."""\n    # none\n    return """\n    text\n    """\n'
    assert code_lines(text) == 5
