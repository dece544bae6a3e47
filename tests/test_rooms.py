"""Limits of size and of names: syntax nodes of each room, nodes per line, names that tell nothing."""

from __future__ import annotations

import shutil

import pytest

from support.rooms import (
    LIMITS,
    ROOT,
    Limits,
    code_lines,
    has_reason,
    limits,
    measured,
    rises,
    unexplained_rises,
)

SLACK = 0.01
"""Share by which a limit may be above the present number."""


def test_every_room_has_a_limit() -> None:
    new, gone = (
        measured().rooms.keys() - limits().rooms.keys(),
        limits().rooms.keys() - measured().rooms.keys(),
    )
    assert not new, f"{new} are new: add them to {LIMITS.name}"
    assert not gone, f"{gone} are gone: run python tests/support/rooms.py"


@pytest.mark.parametrize("room", sorted(limits().rooms))
def test_a_room_stays_within_its_limit(room: str) -> None:
    nodes, most = measured().rooms[room], limits().rooms[room]
    assert nodes <= most, f"{room} has {nodes} syntax nodes; at most {most}"
    assert nodes >= most * (1 - SLACK), f"{room} is smaller: run python tests/support/rooms.py"


@pytest.mark.parametrize("name", sorted(limits().rates))
def test_density_and_names_do_not_get_worse(name: str) -> None:
    assert measured().rates[name] <= limits().rates[name]


def test_a_limit_rises_only_with_its_reason_in_the_message() -> None:
    """A rise of more than 1% needs a line "room: reason" in the commit that makes it."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no history of the limits: not a clone")
    assert unexplained_rises() == []


def test_a_rise_without_a_reason_is_found() -> None:
    before, after = Limits({"nccl": 1000, "base": 500}, {}), Limits({"nccl": 1011, "base": 505}, {})
    assert rises(before, after) == ["nccl"]
    assert has_reason("Add a tuner\n\nnccl: reads tuner files\n", "nccl")
    assert not has_reason("Add nccl: a tuner\n\nnccl:\n", "nccl")


def test_code_is_counted_without_blanks_comments_and_docstrings() -> None:
    text = '"""Module.\n\nMore.\n"""\n\nA = 1  # one\n"""Said of A."""\n\n\ndef f() -> str:\n'
    text += '    """Doc."""\n    # none\n    return """\n    text\n    """\n'
    assert code_lines(text) == 5
