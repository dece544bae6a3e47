"""Console blocks of pages: every command runs, and prints what the page shows of its output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clusim_cli.main import run
from support.covering import THOROUGH

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("start.md", "faults.md", "what-if.md", "policies.md", "replay.md")
_BLOCK = re.compile(r"^```(yaml|python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Shown(NamedTuple):
    """A command, its shown output, and the commands before it whose files it reads."""

    command: str
    output: str
    before: tuple[Shown, ...]


def shown_on(page: str) -> list[Shown]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    result: list[Shown] = []
    for language, block in _BLOCK.findall(text):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:] if language == "console" else []
        for part in parts:
            command, _, output = part.partition("\n")
            if command.startswith("clusim "):
                files = re.findall(r"\S+\.h5\b", command)
                before = [one for one in result if _writes(one.command, files)]
                result.append(Shown(command, output, tuple(before)))
    return result


def _writes(command: str, files: list[str]) -> bool:
    return any(f"--trace-out {name}" in command for name in files)


def pattern(output: str) -> re.Pattern[str]:
    """Return the pattern of an output in which a line of ``...`` stands for any lines."""
    lines = output.splitlines()
    return re.compile(
        "".join(
            r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r" *\n"
            for line in lines
        )
    )


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page shows: blocks with a name in their first line."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = [block for language, block in _BLOCK.findall(text) if language != "console"]
    named = [(re.match(r"# (\S+\.(?:yaml|py))\n", block), block) for block in blocks]
    return {match[1]: block for match, block in named if match}


LONG = (
    "clusim nccl-tests all_reduce_perf dgx-h100 -b 16M --against ",
    "clusim nccl-tests all_reduce_perf dgx-h100 -b 1G -e 1G --against ",
    "clusim run dgx-h100 --size 1GiB",
    "clusim run dgx-h100 --size 1MiB --sensitivity",
    'clusim what-if "run dgx-h100 --size 1GiB"',
    'clusim what-if "train llama.yaml ',
    "clusim plot step.h5 timeline",
    "clusim shrink dgx-h100 --nodes 2 ",
    "clusim replay traces/nccl-8xh100.log --as dgx-a100",
)
"""Commands of 10 s and more, with those before them, in thorough runs only: their rooms test options and outputs."""


def cases() -> list[Any]:
    """Return the commands of all pages but those that run before another one, which compares their outputs, too."""
    found = []
    for page in PAGES:
        shown = shown_on(page)
        earlier = {one for later in shown for one in later.before}
        for number, one in enumerate(shown):
            if one not in earlier and (THOROUGH or not one.command.startswith(LONG)):
                found.append(pytest.param(page, one, id=f"{page}-{number}"))
    return found


def commands_compared() -> set[str]:
    """Return the commands whose output is compared."""
    return {case.values[1].command for case in cases()}


def test_long_commands_are_on_a_page() -> None:
    shown = [one.command for page in PAGES for one in shown_on(page)]
    assert all(sum(command.startswith(long) for command in shown) == 1 for long in LONG)


@pytest.mark.parametrize(("page", "shown"), cases())
def test_a_command_prints_what_the_page_shows(
    page: str,
    shown: Shown,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    for name, text in files_of(page).items():
        Path(name).write_text(text, encoding="utf-8")
    for one in (*shown.before, shown):
        capsys.readouterr()
        assert run(shlex.split(one.command)[1:]) == 0, one.command
        printed = capsys.readouterr().out
        if one.output.strip():
            assert pattern(one.output).fullmatch(printed), f"{one.command}\n{printed}"


def test_a_gap_stands_for_lines_and_nothing_else_does() -> None:
    assert pattern("a\n...\nd\n").fullmatch("a\nb\nc\nd\n")
    assert pattern("a\n...\n").fullmatch("a\n")
    assert not pattern("a\nd\n").fullmatch("a\nb\nd\n")
    assert not pattern("a.\n...\n").fullmatch("ab\n")


def test_pictures_of_the_first_page_are_drawn_by_its_commands() -> None:
    """`make docs` draws them anew (benchmarks/gallery.py)."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\(gallery/([\w-]+\.png)\)", text)
    blocks = re.findall(r"^```(?:console|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(pictures) >= 2
    for name in pictures:
        assert any(name in block for block in blocks), name
        assert (ROOT / "docs" / "gallery" / name).stat().st_size < 150_000, name
