"""Damaged and lost lines of plugins' recordings: counted, and reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import inspector
from clusim.formats.recordings.model import Recording
from clusim_formats.recordings import pluginlines, profiler

TRACES = Path(__file__).resolve().parents[3] / "traces"
READERS: dict[str, tuple[Callable[[str], Recording], str]] = {
    "comma": (pluginlines.read, "comma-4ranks"),
    "minimal": (pluginlines.read, "minimal-2ranks.jsonl"),
    "inspector": (inspector.read, "inspector-8ranks.jsonl"),
    "profiler": (profiler.read, "profiler-2ranks"),
}


def _copied(name: str, folder: Path) -> list[Path]:
    """Return copies of the files of a recording."""
    source = TRACES / name
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    return [folder / file.name for file in files]


def _reported(read: Callable[[str], Recording], folder: Path) -> str:
    """Return the error, or the assumptions and reasons of a recording."""
    try:
        found = read(str(folder))
    except InputError as error:
        return str(error)
    return "\n".join([*found.assumed, *(f"{n} x {reason}" for reason, n in found.skipped.items())])


@pytest.mark.parametrize("kind", READERS)
def test_every_cut_line_is_counted(kind: str, tmp_path: Path) -> None:
    read, name = READERS[kind]
    last = _copied(name, tmp_path)[-1]
    lines = last.read_text().splitlines()
    for number, line in enumerate(lines):
        if len(line) < 12:
            continue
        cut = [*lines[:number], line[: len(line) // 2], *lines[number + 1 :]]
        last.write_text("\n".join(cut))
        assert "refused" in _reported(read, tmp_path), (number, line)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("comma", '"seq_num":1', '"seq_num":7'),
        ("inspector", '"coll_sn":1,', '"coll_sn":7,'),
        ("minimal", '"seq":1', '"seq":7'),
    ],
)
def test_a_number_that_no_other_rank_has_is_reported(
    kind: str, old: str, new: str, tmp_path: Path
) -> None:
    """The line remains valid, but two collectives lack ranks."""
    read, name = READERS[kind]
    last = _copied(name, tmp_path)[-1]
    text = last.read_text()
    before = _reported(read, tmp_path)
    for spaced in (old, old.replace(":", ": ")):
        if spaced in text:
            last.write_text(text.replace(spaced, new, 1))
            break
    else:
        pytest.fail(f"no {old} in {text[:2000]}")
    after = _reported(read, tmp_path)
    assert "recorded by some of the recorded ranks only" in after
    assert after != before


@pytest.mark.parametrize("kind", ["minimal", "inspector", "profiler"])
def test_an_undamaged_recording_has_no_such_line(kind: str) -> None:
    read, name = READERS[kind]
    text = _reported(read, TRACES / name)
    assert "refused" not in text
    assert "some of the recorded ranks" not in text
